"""A real dataset on the loopback Hub, and what streaming it gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from lerobot_streaming import StreamingLeRobotDataset
from tests.hub.conftest import TOKEN
from tests.support.oracle import Item, assert_same_items, stream_items

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.support.hub import LoopbackHub

KIND = "rotating_files"
"""Two cameras whose files change at other episodes, one Parquet file."""

REPO = "owner/set"
BUCKET = "owner/bucket"


def open_set(repo_id: str = REPO, **arguments: Any) -> StreamingLeRobotDataset:
    """Open the dataset on the Hub, or a bucket, with the owner's token."""
    return StreamingLeRobotDataset(repo_id, **{"token": TOKEN, "return_uint8": True, **arguments})


def assert_streams(
    expected: Mapping[int, Item],
    dataset: StreamingLeRobotDataset,
    *,
    num_workers: int = 0,
    start: str | None = None,
) -> None:
    """Stream one epoch and compare it with map-style.

    Args:
        expected: Map-style's items.
        dataset: The dataset under test.
        num_workers: DataLoader workers.
        start: How they start.
    """
    loader = DataLoader(dataset, batch_size=None, num_workers=num_workers, multiprocessing_context=start)
    assert_same_items(expected, stream_items(loader))


def payload_requests(hub: LoopbackHub) -> list[tuple[str, str, int]]:
    """Give (host, path below the repository, bytes) of all reads of data and video files."""
    found: list[tuple[str, str, int]] = []
    for request in hub.log:
        for folder in ("/data/", "/videos/"):
            if folder in request.path:
                path = folder.strip("/") + "/" + request.path.partition(folder)[2]
                found.append((request.host, path, request.bytes_sent))
                break
    return found


def disk_files(home: Path) -> dict[str, int]:
    """Give all files below a directory with their sizes."""
    return {
        path.relative_to(home).as_posix(): path.stat().st_size
        for path in home.rglob("*")
        if path.is_file() and not path.is_symlink()
    }
