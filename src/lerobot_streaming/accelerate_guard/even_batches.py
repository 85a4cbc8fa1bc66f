"""Let the loaders of all ranks end after equally many batches."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed

from lerobot_streaming.errors import ShardingError

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
            loader: This rank's loader.
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

        Raises:
            ShardingError: On all ranks alike: some of them have no batch at all, and others have.
        """
        batches = iter(self._loader)
        last = None
        while True:
            batch = next(batches, None)
            first = last is None
            some_rank_goes_on, all_ranks_go_on = self._over_all_ranks(goes_on=batch is not None, both=first)
            if not some_rank_goes_on:
                return
            if first and not all_ranks_go_on:
                raise ShardingError(
                    "A rank has no batch in this pass while others have, so it has none to repeat until they "
                    "are through (ends_evenly): this happens when a pass is resumed near its end. Begin with "
                    "the next epoch (set_epoch), or use fewer ranks."
                )
            last = last if batch is None else batch
            # A shallow copy: the training loop replaces entries of the dict that it gets.
            yield copy.copy(last)

    def _over_all_ranks(self, *, goes_on: bool, both: bool) -> tuple[bool, bool]:
        """Say whether any rank goes on, and, when both are wanted, whether all of them do."""
        answers = []
        for operation in (torch.distributed.ReduceOp.MAX, torch.distributed.ReduceOp.MIN)[: 1 + both]:
            answer = torch.tensor(int(goes_on), device=self._device)
            torch.distributed.all_reduce(answer, operation)
            answers.append(bool(answer.item()))
        return answers[0], answers[-1]
