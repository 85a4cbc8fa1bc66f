"""Which epoch and offset each worker begins its next pass at, shared by a rank's processes.

DataLoader workers are other processes, so the parent's `set_epoch` and `load_state_dict` and the workers' own
count of passes live in shared memory: persistent workers, new workers of every pass and the training process
itself all agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from lerobot_streaming.errors import OptionError
from lerobot_streaming.options import MAX_WORKERS, is_integer
from lerobot_streaming.plan import deal_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_EPOCH, _OFFSET, _BATCH_SIZE, _PASSES = 0, 1, 2, 3

type Limits = Callable[[], Sequence[int | None]]
"""Gives the samples that each worker's share has per pass; None means endless."""


@dataclass(slots=True)
class Pass:
    """One pass of one worker.

    Attributes:
        epoch: Coverage epoch at which it begins.
        offset: Samples of the share that are behind it; counts up as they are yielded.
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
        self._shared = torch.zeros(_PASSES + MAX_WORKERS, dtype=torch.int64)
        self._share()
        self._current: Pass | None = None
        self._passes_here = 0
        self._own: tuple[int, int] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out what belongs to this process."""
        return {"_shared": self._shared}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Takes the shared table over; a copy made by plain pickling gets one of its own."""
        self._shared = state["_shared"]
        self._share()
        self._current = None
        self._passes_here = 0
        self._own = None

    def _share(self) -> None:
        if not self._shared.is_shared():  # type: ignore[no-untyped-call]  # torch gives it no types.
            self._shared.share_memory_()  # type: ignore[no-untyped-call]  # torch gives it no types.

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch of the next pass.

        Choosing the epoch that a loaded state is about to continue changes nothing, so that training loops
        which announce every epoch keep the offset.

        Args:
            epoch: Coverage epoch.
        """
        begun = bool(self._shared[_PASSES:].any())
        if epoch == int(self._shared[_EPOCH]) and not begun and self._own is None:
            return
        self._reset(epoch, 0, 0)

    def load(self, state: Mapping[str, Any], *, in_worker: bool) -> None:
        """Takes over a state.

        Args:
            state: `epoch`, `offset`, `batch_size`.
            in_worker: Whether this process is a DataLoader worker, which resumes only itself.

        Raises:
            OptionError: A value is missing, negative or no integer.
        """
        values: dict[str, int] = {}
        for name in ("epoch", "offset", "batch_size"):
            value: Any = state.get(name)
            if name == "batch_size" and value is None:
                value = 0
            elif not is_integer(value) or value < (name == "batch_size"):
                raise OptionError(
                    f"The state's {name!r} must be an integer {'>= 1' if name == 'batch_size' else '>= 0'}, "
                    f"got {value!r}. A state has the keys epoch, offset and batch_size."
                )
            values[name] = int(value)
        if values["batch_size"] and values["offset"] % values["batch_size"]:
            raise OptionError(
                f"The state's offset {values['offset']} is no multiple of its batch_size "
                f"{values['batch_size']}: "
                "it must count whole batches."
            )
        if in_worker and not values["batch_size"]:
            self._own = values["epoch"], values["offset"]
            self._current = None
            return
        self._reset(values["epoch"], values["offset"], values["batch_size"])

    def state(self, worker: int, *, in_worker: bool) -> dict[str, int | None]:
        """The state of the pass that this process is in, or of its next one.

        Args:
            worker: This process's worker number.
            in_worker: Whether this process is a DataLoader worker.

        Returns:
            `{"epoch", "offset", "batch_size"}`.

        Raises:
            OptionError: Workers iterate, and only they know how far they are.
        """
        if self._current is not None:
            return {"epoch": self._current.epoch, "offset": self._current.offset, "batch_size": None}
        if self._own is not None:
            return {"epoch": self._own[0], "offset": self._own[1], "batch_size": None}
        passes = int(self._shared[_PASSES + worker])
        if not in_worker and int(self._shared[_PASSES:].sum()) > self._passes_here:
            raise OptionError(
                "state_dict() cannot say in the training process how far the DataLoader's workers are. Count "
                "the "
                "batches that you took and load {'epoch': ..., 'offset': batches * batch_size, 'batch_size': "
                "batch_size}, or use torchdata's StatefulDataLoader, which asks each worker."
            )
        batch_size = int(self._shared[_BATCH_SIZE])
        return {
            "epoch": int(self._shared[_EPOCH]) + passes,
            "offset": 0 if passes else int(self._shared[_OFFSET]),
            "batch_size": None if passes or not batch_size else batch_size,
        }

    def next_pass(self, worker: int, num_workers: int, limits: Limits) -> Pass:
        """Where the next pass of a worker begins; `begin` then counts it.

        Args:
            worker: Worker number.
            num_workers: Workers of the rank.
            limits: Samples that each worker's share has per pass.

        Returns:
            The pass.

        Raises:
            OptionError: The loaded offset cannot be continued, or the rank has too many workers.
        """
        if num_workers > MAX_WORKERS:
            raise OptionError(f"num_workers must be at most {MAX_WORKERS} per rank, got {num_workers}.")
        if self._own is not None:
            epoch, offset = self._own
            return Pass(epoch, _within(offset, limits()[worker], 0), worker)
        passes = int(self._shared[_PASSES + worker])
        epoch, offset = int(self._shared[_EPOCH]) + passes, int(self._shared[_OFFSET])
        if passes or not offset:
            return Pass(epoch, 0, worker)
        batch_size = int(self._shared[_BATCH_SIZE])
        if num_workers == 1:
            return Pass(epoch, _within(offset, limits()[worker], batch_size), worker)
        if not batch_size:
            raise OptionError(
                f"The state's offset {offset} has no batch_size, so it counts the samples of one process; it "
                f"cannot be dealt to {num_workers} workers. Load it together with the DataLoader's "
                "batch_size."
            )
        samples = limits()
        whole = [None if limit is None else -(-limit // batch_size) for limit in samples]
        batches, first = deal_batches(offset // batch_size, whole)
        share = (worker + first) % num_workers
        return Pass(epoch, _within(batches[share] * batch_size, samples[share], batch_size), share)

    def begin(self, worker: int, begun: Pass) -> None:
        """Counts a pass whose parts could be made.

        Args:
            worker: Worker number.
            begun: The pass.
        """
        if self._own is not None:
            # From here on this worker counts its epochs from its own state on.
            self._shared[_PASSES + worker] = begun.epoch - int(self._shared[_EPOCH])
            self._own = None
        self._shared[_PASSES + worker] += 1
        self._passes_here += 1
        self._current = begun

    def finish(self, ended: Pass) -> None:
        """Notes that a pass ran to its end: the state is the beginning of the next one."""
        if self._current is ended:
            self._current = None

    def _reset(self, epoch: int, offset: int, batch_size: int) -> None:
        self._shared.zero_()
        self._shared[_EPOCH], self._shared[_OFFSET], self._shared[_BATCH_SIZE] = epoch, offset, batch_size
        self._current, self._own, self._passes_here = None, None, 0


def _within(offset: int, limit: int | None, batch_size: int) -> int:
    """The offset, cut at the end of a finite share; a share's last batch may be short."""
    if limit is None or offset <= limit:
        return offset
    if offset - limit >= max(batch_size, 1):
        raise OptionError(
            f"The state's offset lies {offset - limit} samples beyond the {limit} samples of this share."
        )
    return limit
