"""Streaming from the Hub, from buckets and from other stores gives what map-style gives locally."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import fsspec
import pytest
from torch.utils.data import DataLoader

from tests.hub.conftest import READ_TOKEN
from tests.hub.streaming import BUCKET, REPO, assert_streams, open_set
from tests.storage.s3 import S3Server
from tests.support.oracle import Item, assert_same_items, map_items, stream_items

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.support.hub import Bucket, Dataset

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")

type Items = Mapping[int, Item]


@pytest.mark.parametrize(
    ("num_workers", "start"), [(0, None), (2, "fork"), pytest.param(2, "spawn", marks=pytest.mark.slow)]
)
def test_a_private_dataset(streamed: Dataset, expected: Items, num_workers: int, start: str | None) -> None:
    dataset = open_set(token=READ_TOKEN)
    assert (dataset.revision, dataset.repo_type) == (streamed.commit, "dataset")
    assert_streams(expected, dataset, num_workers=num_workers, start=start)


def test_the_token_of_the_environment(
    streamed: Dataset, expected: Items, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", READ_TOKEN)
    assert streamed.commit
    assert_streams(expected, open_set(token=None))


def test_windows_and_a_selection(streamed: Dataset, root: Path) -> None:
    assert streamed.commit
    arguments: dict[str, Any] = {"episodes": [3, 1], "delta_timestamps": {"action": [-0.1, 0.0, 0.1, 0.4]}}
    assert_streams(map_items(root, return_uint8=True, **arguments), open_set(**arguments))


@pytest.mark.parametrize("where", [{"repo_type": "bucket"}, {"root": f"hf://buckets/{BUCKET}"}], ids=str)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_private_bucket(bucket: Bucket, expected: Items, where: dict[str, Any], num_workers: int) -> None:
    assert bucket.objects
    dataset = open_set(BUCKET, **where)
    assert dataset.repo_type == "bucket"
    assert dataset.meta.repo_type == "bucket"
    start = "fork" if num_workers else None
    assert_streams(expected, dataset, num_workers=num_workers, start=start)


def test_metadata_of_the_hub_and_payload_of_a_directory(
    streamed: Dataset, root: Path, expected: Items
) -> None:
    dataset = open_set(data_root=str(root))
    assert dataset.revision == streamed.commit
    assert_streams(expected, dataset)


# Other stores.


@pytest.fixture(scope="module")
def s3(root: Path) -> Iterator[S3Server]:
    with S3Server() as server:
        server.put("store", "sets/one/", _files(root))
        yield server


@pytest.mark.usefixtures("lerobot_home")
@pytest.mark.parametrize(
    ("num_workers", "start"), [(0, None), pytest.param(2, "spawn", marks=pytest.mark.slow)]
)
def test_s3(s3: S3Server, root: Path, expected: Items, num_workers: int, start: str | None) -> None:
    dataset = open_set(REPO, root=root, data_root="s3://store/sets/one", storage_options=s3.options)
    assert_streams(expected, dataset, num_workers=num_workers, start=start)


def _files(root: Path) -> dict[str, bytes]:
    """The payload; metadata stays local."""
    paths = [path for folder in ("data", "videos") for path in (root / folder).rglob("*") if path.is_file()]
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}


class FillMemory:
    """Puts files into the memory of a worker, where a `memory://` URL of its own would find nothing."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.files = files

    def __call__(self, worker: int = 0) -> None:
        del worker
        memory = fsspec.filesystem("memory")
        for path, content in self.files.items():
            memory.pipe_file(f"/sets/one/{path}", content)
            file = memory.store[f"/sets/one/{path}"]
            # A later time would mean that the file was replaced.
            file.created = file.modified = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.usefixtures("lerobot_home")
@pytest.mark.parametrize(
    ("num_workers", "start"), [(0, None), (2, "fork"), pytest.param(2, "spawn", marks=pytest.mark.slow)]
)
def test_memory(root: Path, expected: Items, num_workers: int, start: str | None) -> None:
    fill = FillMemory(_files(root))
    fill()
    try:
        loader = DataLoader(
            open_set(REPO, root=root, data_root="memory://sets/one"),
            batch_size=None,
            num_workers=num_workers,
            multiprocessing_context=start,
            worker_init_fn=fill if start == "spawn" else None,
        )
        assert_same_items(expected, stream_items(loader))
    finally:
        fsspec.filesystem("memory").rm("/sets", recursive=True)
