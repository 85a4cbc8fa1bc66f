"""Let the loaders of all ranks end after equally many batches."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed

if TYPE_CHECKING:
    from collections.abc import Iterator


class EvenBatches:
    """A loader that goes on until the last rank's loader is done, repeating its own last batch meanwhile.

    Ranks hold different episodes, so an evaluation pass has more batches on some than on others. A rank that
    ends early would leave the others waiting in the model's collectives for ever. accelerate repeats samples
    for the same reason in map-style evaluation (`even_batches`).
    """

    def __init__(self, loader: Any, device: torch.device) -> None:
        """Wrap a loader.

        Args:
            loader: This rank's loader, with at least one batch.
            device: Device on which the process group communicates.
        """
        self._loader = loader
        self._device = device

    def __getattr__(self, name: str) -> Any:
        """Give everything else as the loader does."""
        if name == "_loader":  # not set yet, while a copy is being made
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __iter__(self) -> Iterator[Any]:
        """Yield the loader's batches, then repetitions of the last one until every rank is done.

        Yields:
            Batches.
        """
        batches = iter(self._loader)
        last = None
        while True:
            batch = next(batches, None)
            some_rank_goes_on = torch.tensor(int(batch is not None), device=self._device)
            torch.distributed.all_reduce(some_rank_goes_on, torch.distributed.ReduceOp.MAX)
            if not some_rank_goes_on.item():
                return
            last = last if batch is None else batch
            # A shallow copy: the training loop replaces entries of the dict that it gets.
            yield copy.copy(last)
