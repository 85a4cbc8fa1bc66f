"""Which epoch and offset each worker begins its next pass at, shared by a rank's processes.

DataLoader workers are other processes, so the parent's `set_epoch` and the workers' own count of passes live
in shared memory: persistent workers, new workers of every pass and the training process itself all agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

from lerobot_streaming.errors import OptionError
from lerobot_streaming.plan import deal_batches

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_EPOCH, _OFFSET, _BATCH_SIZE, _PASSES = 0, 1, 2, 3
_MAX_WORKERS: Final = 1024


@dataclass(frozen=True, slots=True)
class Start:
    """Where a pass begins.

    Attributes:
        epoch: Coverage epoch.
        offset: Samples of the share to skip.
        share: Whose share of the rank's episodes this worker streams; after a resume the worker that was next
            in turn goes first, so shares move round.
    """

    epoch: int
    offset: int
    share: int


class Progress:
    """Epochs, offsets and passes of a rank's workers."""

    def __init__(self) -> None:
        """Begins at epoch 0, offset 0."""
        self._shared = torch.zeros(_PASSES + _MAX_WORKERS, dtype=torch.int64)
        self._shared.share_memory_()  # type: ignore[no-untyped-call]  # torch gives it no types.
        self._epoch: dict[int, int] = {}
        self._yielded: dict[int, int] = {}

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch of the next pass.

        Choosing the epoch that a loaded state is about to continue changes nothing, so that training loops
        which announce every epoch keep the offset.

        Args:
            epoch: Coverage epoch.
        """
        begun = bool(self._shared[_PASSES:].any())
        if epoch == int(self._shared[_EPOCH]) and not begun:
            return
        self._shared.zero_()
        self._shared[_EPOCH] = epoch

    def load(self, state: Mapping[str, Any], worker: int) -> None:
        """Takes over a state.

        Args:
            state: `epoch`, `offset`, `batch_size`.
            worker: This process's worker number.

        Raises:
            OptionError: A value is missing, negative or no integer.
        """
        values = {}
        for name in ("epoch", "offset", "batch_size"):
            value = state.get(name)
            if name == "batch_size" and value is None:
                value = 0
            elif isinstance(value, bool) or not isinstance(value, int) or value < (name == "batch_size"):
                raise OptionError(
                    f"The state's {name!r} must be an integer {'>= 1' if name == 'batch_size' else '>= 0'}, "
                    f"got "
                    f"{value!r}. A state has the keys epoch, offset and batch_size."
                )
            values[name] = value
        if values["batch_size"] and values["offset"] % values["batch_size"]:
            raise OptionError(
                f"The state's offset {values['offset']} is no multiple of its batch_size "
                f"{values['batch_size']}: "
                "it must count whole batches."
            )
        self._shared.zero_()
        self._shared[_EPOCH] = values["epoch"]
        self._shared[_OFFSET] = values["offset"]
        self._shared[_BATCH_SIZE] = values["batch_size"]
        self._epoch.pop(worker, None)
        self._yielded.pop(worker, None)

    def state(self, worker: int) -> dict[str, int | None]:
        """The state of the pass that this process is in, or of its next one.

        Args:
            worker: This process's worker number.

        Returns:
            `{"epoch", "offset", "batch_size"}`.
        """
        if worker in self._epoch:
            return {"epoch": self._epoch[worker], "offset": self._yielded[worker], "batch_size": None}
        passes = int(self._shared[_PASSES + worker])
        batch_size = int(self._shared[_BATCH_SIZE])
        return {
            "epoch": int(self._shared[_EPOCH]) + passes,
            "offset": 0 if passes else int(self._shared[_OFFSET]),
            "batch_size": None if passes or not batch_size else batch_size,
        }

    def begin(self, worker: int, num_workers: int, limits: Sequence[int | None]) -> Start:
        """Begins a pass of a worker.

        Args:
            worker: Worker number.
            num_workers: Workers of the rank.
            limits: Samples that each worker's share has per pass; None means endless.

        Returns:
            Where it begins.

        Raises:
            OptionError: The loaded offset lies beyond the epoch, or the rank has too many workers.
        """
        if worker >= _MAX_WORKERS:
            raise OptionError(f"num_workers must be at most {_MAX_WORKERS} per rank, got {num_workers}.")
        passes = int(self._shared[_PASSES + worker])
        self._shared[_PASSES + worker] = passes + 1
        epoch, offset, share = int(self._shared[_EPOCH]) + passes, 0, worker
        if passes == 0 and int(self._shared[_OFFSET]):
            offset, share = self._resumed(worker, num_workers, limits)
        self._epoch[worker], self._yielded[worker] = epoch, offset
        return Start(epoch, offset, share)

    def count(self, worker: int) -> None:
        """Counts a yielded sample."""
        self._yielded[worker] += 1

    def finish(self, worker: int) -> None:
        """Notes that a pass ran to its end: the state is the beginning of the next one."""
        self._epoch.pop(worker, None)
        self._yielded.pop(worker, None)

    def _resumed(self, worker: int, num_workers: int, limits: Sequence[int | None]) -> tuple[int, int]:
        """The offset and share of a worker after a resume."""
        offset, batch_size = int(self._shared[_OFFSET]), int(self._shared[_BATCH_SIZE])
        share = worker
        if batch_size and num_workers > 1:
            whole = [None if limit is None else -(-limit // batch_size) for limit in limits]
            batches, first = deal_batches(offset // batch_size, whole)
            share = (worker + first) % num_workers
            offset = batches[share] * batch_size
        limit = limits[share]
        if limit is not None:
            # A worker's last batch may be short, so a whole number of batches may reach past its end.
            if offset - limit >= max(batch_size, 1):
                raise OptionError(
                    f"The state's offset lies {offset - limit} samples beyond the {limit} samples of this "
                    f"share."
                )
            offset = min(offset, limit)
        return offset, share
