"""Free pages between blocks that stay go back to the system."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from torch.utils.data import DataLoader, IterableDataset

from lerobot_streaming import StreamingLeRobotDataset
from lerobot_streaming.memory import heap
from tests.support.datasets import REPO_ID

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.datasets import Shelf

_HOLES = """
import ctypes, sys
from pathlib import Path
from lerobot_streaming.memory import heap

def resident_mib():
    fields = Path("/proc/self/status").read_text().split("RssAnon:")[1].split()
    return int(fields[0]) / 1024

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
# Blocks of up to 128 KiB come from the heap. Every tenth stays, so that no end of the heap gets free.
blocks = [libc.malloc(100_000) for _ in range(1000)]
for block in blocks:
    ctypes.memset(block, 1, 100_000)
for number, block in enumerate(blocks):
    if number % 10:
        libc.free(block)
before = resident_mib()
trimmer = heap.HeapTrimmer()
trimmer.tick()
early = resident_mib()
heap.monotonic = lambda now=heap.monotonic(): now + 60
trimmer.tick()
print(before - early, before - resident_mib())
"""


@pytest.mark.skipif(heap._find_trim() is None, reason="not glibc")
def test_free_pages_among_blocks_that_stay_are_given_back_after_some_seconds() -> None:
    done = subprocess.run([sys.executable, "-c", _HOLES], capture_output=True, text=True, check=True)
    at_once, later = map(float, done.stdout.split())
    assert at_once < 1
    assert later > 60


def test_a_c_library_without_the_function_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: object())
    trimmer = heap.HeapTrimmer()
    monkeypatch.setattr(heap, "monotonic", lambda: float("inf"))
    trimmer.tick()


class Watched(IterableDataset[tuple[int, int]]):
    """Says after a pass how often the process's heap was looked at and what its collector leaves out."""

    def __init__(self, dataset: StreamingLeRobotDataset) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[tuple[int, int]]:
        ticks: list[int] = []

        def tick(_trimmer: heap.HeapTrimmer) -> None:
            ticks.append(len(ticks))

        before = heap.HeapTrimmer.tick
        heap.HeapTrimmer.tick = tick  # type: ignore[assignment, method-assign]
        try:
            for _ in self.dataset:
                pass
        finally:
            heap.HeapTrimmer.tick = before  # type: ignore[method-assign]
        yield len(ticks), gc.get_freeze_count()


@pytest.mark.parametrize("num_workers", [0, 1])
def test_workers_alone_trim_and_leave_what_they_begin_with_to_no_collection(
    shelf: Shelf, num_workers: int
) -> None:
    dataset = StreamingLeRobotDataset(REPO_ID, shelf.root("many_tiny"), return_uint8=True)
    loader = DataLoader(
        Watched(dataset),
        batch_size=None,
        num_workers=num_workers,
        multiprocessing_context="fork" if num_workers else None,
    )
    ((ticks, frozen),) = [tuple(map(int, found)) for found in loader]
    assert ticks == (dataset.num_frames if num_workers else 0)
    # The interpreter itself begins with some hundreds.
    assert (frozen > 10_000) == (num_workers > 0)
