"""How much is asked of the Hub: each file resolved once, each byte fetched once, little left on the disk."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from torch.utils.data import DataLoader

from lerobot_streaming.episodes.catalog import VideoCatalog
from tests.hub.streaming import BUCKET, REPO, disk_files, open_set, payload_requests

if TYPE_CHECKING:
    from pathlib import Path

    from lerobot_streaming import StreamingLeRobotDataset
    from tests.support.hub import Bucket, Dataset, LoopbackHub

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")


def _video_payload(dataset: StreamingLeRobotDataset) -> int:
    """Bytes of the selected episodes' own video samples."""
    layout, index = dataset._open.layout, dataset._open.index
    assert index is not None
    catalog = VideoCatalog(layout, index, 1e-4)
    plans = [
        catalog.plan(position, camera) for position in range(layout.num_episodes) for camera in layout.cameras
    ]
    return sum(length for plan in plans for _, length in plan.payload_runs)


def _video_bytes(hub: LoopbackHub) -> int:
    return sum(size for host, path, size in payload_requests(hub) if host == "cdn" and path.endswith(".mp4"))


@pytest.mark.parametrize("kind", ["dataset", "bucket"])
def test_one_process_resolves_each_file_once_and_fetches_each_byte_once(
    hub: LoopbackHub, streamed: Dataset, bucket: Bucket, kind: str
) -> None:
    assert streamed.commit
    assert bucket.objects
    repo_id = REPO if kind == "dataset" else BUCKET
    first = open_set(repo_id, repo_type=kind)  # Makes the index.
    hub.clear_log()
    dataset = open_set(repo_id, repo_type=kind)
    passes = [[int(item["index"]) for item in dataset] for _ in range(2)]
    assert all(sorted(drawn) == list(range(first.num_frames)) for drawn in passes)
    found = payload_requests(hub)
    resolved = Counter(path for host, path, _ in found if host == "hub")
    assert set(resolved.values()) == {1}
    assert _video_bytes(hub) == 2 * _video_payload(dataset)
    total = dataset.stats()["total"]
    # One request for each camera's span and for the rows of an episode; whoever opened has read the footer.
    per_pass = dataset.num_episodes * (len(dataset.meta.video_keys) + 1)
    assert total["requests"] == 2 * per_pass
    assert total["retries"] == 0
    # The footer is read when the dataset is opened, too.
    assert sum(size for host, _, size in found if host == "cdn") <= total["bytes_fetched"] + 64 * 1024


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_each_worker_resolves_each_of_its_files_once(hub: LoopbackHub, streamed: Dataset, start: str) -> None:
    assert streamed.commit
    dataset = open_set()
    hub.clear_log()
    loader = DataLoader(
        dataset, batch_size=4, num_workers=2, persistent_workers=True, multiprocessing_context=start
    )
    for _ in range(2):
        assert sum(len(batch["index"]) for batch in loader) == dataset.num_frames
    resolved = Counter(path for host, path, _ in payload_requests(hub) if host == "hub")
    assert max(resolved.values(), default=0) <= 2
    assert _video_bytes(hub) == 2 * _video_payload(dataset)
    del loader


def test_of_other_episodes_nothing_is_fetched(hub: LoopbackHub, streamed: Dataset) -> None:
    assert streamed.commit
    open_set()
    hub.clear_log()
    dataset = open_set(episodes=[2])
    assert len(list(dataset)) == dataset.num_frames
    assert _video_bytes(hub) == _video_payload(dataset)


def test_nothing_is_kept_but_metadata_and_index(streamed: Dataset, root: Path, lerobot_home: Path) -> None:
    assert streamed.commit
    assert not lerobot_home.exists()
    for _ in range(2):
        list(open_set())
    files = disk_files(lerobot_home)
    metadata = {path.relative_to(root).as_posix() for path in (root / "meta").rglob("*") if path.is_file()}
    kept = {re.sub(r"^hub/[^/]+/snapshots/[^/]+/", "", path) for path in files if path.startswith("hub/")}
    assert kept == metadata
    assert {path.split("/")[0] for path in files} <= {"hub", "streaming-sidecars", "streaming-indexes"}
    assert not [path for path in files if path.endswith((".mp4", ".tmp")) or "/data/" in path]
