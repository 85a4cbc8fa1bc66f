"""The order in which the streaming library delivers frames, computed from its plan without decoding."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lerobot_streaming import StreamingLeRobotDataset


def worker_indices(dataset: StreamingLeRobotDataset, worker: int, num_workers: int) -> Iterator[int]:
    """Give what one worker draws from the beginning of the first epoch on, endlessly.

    Args:
        dataset: A fresh dataset with `repeat=True` in the only rank.
        worker: The worker.
        num_workers: DataLoader workers; 0 means the process itself.

    Yields:
        Global frame numbers, as in an item's `index`.
    """
    resume = dataset._resume
    part = resume._orders.rank(resume._now(max(1, num_workers)), (), 0)
    draws, _ = part.worker(worker).begin(0, 0, repeat=True)
    first_index = dataset._open.layout.first_index
    for _, position, frame in draws:
        yield int(first_index[position]) + frame


class PlanBatches:
    """A batch sampler that makes each map-style worker load what the same streaming worker would.

    Both kinds of DataLoader take batches from their workers in turn.

    Args:
        dataset: A fresh dataset with `repeat=True` in the only rank.
        batch_size: Samples per batch.
        num_workers: Workers of the DataLoader.
    """

    def __init__(self, dataset: StreamingLeRobotDataset, batch_size: int, num_workers: int) -> None:
        self._dataset = dataset
        self._batch_size = batch_size
        self._num_workers = num_workers

    def __iter__(self) -> Iterator[list[int]]:
        workers = [
            worker_indices(self._dataset, worker, self._num_workers)
            for worker in range(max(1, self._num_workers))
        ]
        while True:
            for indices in workers:
                yield list(islice(indices, self._batch_size))
