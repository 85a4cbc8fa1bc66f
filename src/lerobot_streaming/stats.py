"""Counters that workers write and the parent process reads while they run."""

from __future__ import annotations

from threading import Lock
from typing import Final

import torch

from lerobot_streaming.options import MAX_WORKERS

COUNTERS: Final = (
    "samples",
    "frames_decoded",
    "frames_from_cache",
    "camera_samples",
    "bytes_fetched",
    "requests",
    "retries",
    "fetch_s",
    "decode_s",
    "transform_s",
    "wait_s",
    "queue_depth",
    "pool_bytes",
    "frame_cache_bytes",
    "episodes_admitted",
    "episodes_skipped",
)
"""What is counted: sums since the dataset was made, except `queue_depth`, `pool_bytes` and
`frame_cache_bytes`, which say how it stands now. `camera_samples` (samples times cameras) is the base of
`decodes_per_sample`."""

_SECONDS: Final = frozenset(name for name in COUNTERS if name.endswith("_s"))


def new_table() -> torch.Tensor:
    """Counters of all workers of a rank, in memory that spawned and forked workers share.

    Returns:
        float64 tensor (MAX_WORKERS, len(COUNTERS)) of zeros.
    """
    table = torch.zeros((MAX_WORKERS, len(COUNTERS)), dtype=torch.float64)
    table.share_memory_()  # type: ignore[no-untyped-call]  # torch gives it no types.
    return table


class WorkerStats:
    """The counters of one worker. Thread-safe.

    Args:
        table: What `new_table` made.
        worker: Number of the worker within its rank.
    """

    def __init__(self, table: torch.Tensor, worker: int) -> None:
        """Writes to the worker's row."""
        self._row = table[worker].numpy()
        self._lock = Lock()

    def add(self, name: str, amount: float) -> None:
        """Adds to a counter.

        Args:
            name: One of `COUNTERS`.
            amount: What to add, in the counter's own unit.
        """
        with self._lock:
            self._row[_NUMBER[name]] += amount

    def count_read(self, num_bytes: int) -> None:
        """Counts one completed read.

        Args:
            num_bytes: Its size in bytes.
        """
        with self._lock:
            self._row[_NUMBER["requests"]] += 1
            self._row[_NUMBER["bytes_fetched"]] += num_bytes

    def put(self, name: str, value: float) -> None:
        """Sets a counter that says how something stands now.

        Args:
            name: One of `COUNTERS`.
            value: Its value.
        """
        self._row[_NUMBER[name]] = value


_NUMBER: Final = {name: number for number, name in enumerate(COUNTERS)}


def _report(row: torch.Tensor) -> dict[str, float]:
    values = dict(zip(COUNTERS, row.tolist(), strict=True))
    base = values.pop("camera_samples")
    report: dict[str, float] = {
        name: value if name in _SECONDS else int(value) for name, value in values.items()
    }
    report["decodes_per_sample"] = values["frames_decoded"] / base if base else 0.0
    return report


def report(table: torch.Tensor) -> dict[str, dict[str, float] | list[dict[str, float]]]:
    """What `StreamingLeRobotDataset.stats()` returns.

    Args:
        table: What `new_table` made.

    Returns:
        `{"total": {...}, "workers": [{...}, ...]}`; workers that never ran are left out.
    """
    used = [row for row in table if bool(row.any())]
    return {"total": _report(table.sum(dim=0)), "workers": [_report(row) for row in used]}
