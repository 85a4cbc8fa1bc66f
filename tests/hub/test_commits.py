"""Everything of one run is of one commit; what is replaced under a run is noticed."""

from __future__ import annotations

import json
import pickle
import re
from typing import TYPE_CHECKING

import pytest

from lerobot_streaming.errors import ChangedFileError, MissingFileError
from tests.hub.streaming import BUCKET, assert_streams, open_set
from tests.support.datasets import CAMERA_A, Shelf, video_files
from tests.support.oracle import Item, map_items

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.support.hub import Bucket, Dataset, LoopbackHub

type Items = Mapping[int, Item]


def _files(root: Path) -> dict[str, Path]:
    return {path.relative_to(root).as_posix(): path for path in root.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def other_root(shelf: Shelf) -> Path:
    return shelf.root("many_tiny")


def _replace(streamed: Dataset, root: Path, other_root: Path) -> str:
    """Commit a completely different dataset to `main`, and move the tag with it."""
    gone = dict.fromkeys(_files(root))
    commit = streamed.add_commit({**gone, **_files(other_root)})
    streamed.tag("v3.0", "main")
    return commit


def test_a_branch_and_a_tag_that_move_change_nothing(
    hub: LoopbackHub, streamed: Dataset, root: Path, expected: Items, other_root: Path
) -> None:
    first = streamed.commit
    dataset = open_set()
    hub.clear_log()
    second = _replace(streamed, root, other_root)
    assert_streams(expected, dataset)
    # As a worker that starts now, which knows of no file where it is.
    assert_streams(expected, pickle.loads(pickle.dumps(dataset)))
    assert dataset.revision == first
    paths = [request.path for request in hub.log if request.host == "hub"]
    commits = {commit for path in paths for commit in re.findall("/([0-9a-f]{40})/", path)}
    assert commits == {first}

    later = open_set()
    assert later.revision == second
    assert_streams(map_items(other_root, return_uint8=True), later)
    assert_streams(expected, open_set(revision=first))


@pytest.mark.parametrize("revision", ["main", "v3.0", "feature/x", None])
def test_every_kind_of_revision_is_resolved_once(
    hub: LoopbackHub, streamed: Dataset, revision: str | None
) -> None:
    streamed.branch("feature/x", "main")
    hub.clear_log()
    dataset = open_set(revision=revision)
    assert dataset.revision == streamed.commit
    asked = [request.path for request in hub.log if "/revision/" in request.path]
    assert len([path for path in asked if "lerobot-sidecars" not in path]) == 1


def test_a_stale_tag_decides(streamed: Dataset, root: Path, expected: Items, other_root: Path) -> None:
    stale = streamed.commit
    streamed.add_commit({**dict.fromkeys(_files(root)), **_files(other_root)})
    dataset = open_set()
    assert dataset.revision == stale
    assert_streams(expected, dataset)


def test_a_dataset_without_a_tag_needs_a_revision(hub: LoopbackHub, streamed: Dataset, root: Path) -> None:
    assert streamed.commit
    untagged = hub.add_dataset("owner/untagged", root)
    with pytest.raises(MissingFileError, match=r"no tag of a format version .* Pass the branch or commit"):
        open_set("owner/untagged")
    assert open_set("owner/untagged", revision="main").revision == untagged.commit


def _same_size(one: Path, other: Path) -> tuple[bytes, bytes]:
    """Two videos, made equally long by an empty box at the end of the shorter one."""
    left, right = one.read_bytes(), other.read_bytes()
    size = max(len(left), len(right)) + 16

    def padded(content: bytes) -> bytes:
        spare = size - len(content)
        return content + spare.to_bytes(4, "big") + b"free" + bytes(spare - 8)

    return padded(left), padded(right)


@pytest.fixture
def twins(bucket: Bucket, root: Path) -> tuple[str, bytes, bytes]:
    """A video of the bucket, and another content of the same size with which it still makes a dataset."""
    one = video_files(root, CAMERA_A)[0]
    # The same frames in other bytes would not show; the other camera shows other pictures.
    other = root / one.relative_to(root).as_posix().replace(CAMERA_A, CAMERA_A[:-1] + "b")
    path = one.relative_to(root).as_posix()
    first, second = _same_size(one, other)
    bucket.put(path, first)
    return path, first, second


def test_a_replaced_object_of_equal_size_invalidates_its_entry(
    bucket: Bucket, twins: tuple[str, bytes, bytes], root: Path, shelf: Shelf, tmp_path: Path
) -> None:
    path, first, second = twins
    for content, name in ((first, "first"), (second, "second"), (first, "again")):
        bucket.put(path, content)
        local = shelf.copy("rotating_files", tmp_path / name)
        (local / path).write_bytes(content)
        episodes = [0, 1]
        assert root != local
        assert_streams(
            map_items(local, return_uint8=True, episodes=episodes, tolerance_s=10),
            open_set(BUCKET, repo_type="bucket", episodes=episodes, tolerance_s=10),
        )


def test_an_object_replaced_under_a_run_is_an_error(bucket: Bucket, twins: tuple[str, bytes, bytes]) -> None:
    path, _, second = twins
    dataset = open_set(BUCKET, repo_type="bucket", episodes=[0])
    bucket.put(path, second)
    # As a worker that starts now: it asks anew where the file is, and knows from its parent what it was.
    worker = pickle.loads(pickle.dumps(dataset))
    with pytest.raises(ChangedFileError, match=rf"(?s){re.escape(path)}.*changed while the run"):
        list(worker)


def test_new_metadata_of_a_bucket_is_seen(
    bucket: Bucket, root: Path, expected: Items, other_root: Path
) -> None:
    assert_streams(expected, open_set(BUCKET, repo_type="bucket"))
    for path in _files(root):
        bucket.delete(path)
    for path, place in _files(other_root).items():
        bucket.put(path, place)
    assert_streams(map_items(other_root, return_uint8=True), open_set(BUCKET, repo_type="bucket"))


def test_cached_metadata_is_read_anew_when_asked_for(
    streamed: Dataset, lerobot_home: Path, expected: Items
) -> None:
    assert streamed.commit
    dataset = open_set()
    info = dataset.root / "meta" / "info.json"
    damaged = json.dumps(json.loads(info.read_text()) | {"total_frames": 1})
    info.write_text(damaged.ljust(info.stat().st_size))
    with pytest.raises(ValueError, match="total_frames"):
        open_set()
    assert_streams(expected, open_set(force_cache_sync=True))
    # A file that is gone is fetched without being asked for.
    info.unlink()
    assert_streams(expected, open_set())
    assert lerobot_home in dataset.root.parents


def test_a_file_missing_on_the_hub_is_named(streamed: Dataset, root: Path) -> None:
    path = video_files(root, CAMERA_A)[1].relative_to(root).as_posix()
    streamed.add_commit({path: None})
    streamed.tag("v3.0", "main")
    with pytest.raises(MissingFileError, match=re.escape(path)):
        open_set()
