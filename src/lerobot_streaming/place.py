"""Where a rank stands, in memory that it shares with its DataLoader workers and with nobody else.

Workers are other processes, so the parent's `set_epoch` and `load_state_dict` and the number of the latest
pass live in shared memory: persistent workers, new workers of every pass and the training process agree.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import torch

from lerobot_streaming.pass_numbers import PassNumbers, share
from lerobot_streaming.plan import OrderSettings, Position
from lerobot_streaming.ranks import in_worker, iterator_seed
from lerobot_streaming.state import State

if TYPE_CHECKING:
    from lerobot_streaming.orders import History, Orders

EPOCH, OFFSET, BATCH_SIZE, VERSION, _CELLS = range(5)

_KEPT: Final = ("_shared", "_numbers", "_loaded", "_batch_size", "_version", "_owner")


@dataclass(slots=True)
class Pass:
    """One pass of one worker.

    Attributes:
        epoch: Coverage epoch at which it begins.
        offset: Samples of the share that are behind it; counts up as they are yielded.
        share: Whose share of the rank's episodes this worker streams; after a resume the worker that was next
            in turn goes first, so shares move round.
        settings: What the order depends on.
        history: The shapes that the job had before.
        number: How many passes of the rank have begun with it; 0 while a worker's own state has not begun.
    """

    epoch: int
    offset: int
    share: int
    settings: OrderSettings
    history: History
    number: int = 0


class Place:
    """The shared part of a rank's progress, and what one of its processes knows by itself."""

    def __init__(self) -> None:
        """Begins at epoch 0, offset 0."""
        self._process = os.getpid()
        self._shared = torch.zeros(_CELLS, dtype=torch.int64)
        share(self._shared)
        self._numbers = PassNumbers()
        self._loaded = State(Position())
        # Of the coming DataLoader, when it is known.
        self._batch_size: int | None = None
        self._version = 0
        self._owner = os.getpid()
        self._forget()

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out what belongs to this process, but tells a copy where it stands."""
        self._look()
        return {**{name: getattr(self, name) for name in _KEPT}, "_left_at": self._here()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Takes the shared memory over; a copy made by plain pickling gets its own and goes on from there."""
        self.__dict__.update(state)
        self._forget()
        if share(self._shared):
            self._numbers = self._numbers.own()
            self._go_on_alone()

    def adopt(self) -> bool:
        """Takes memory of its own in a training process that got the dataset from another process.

        Ranks that a launcher starts with one and the same dataset must not count each other's passes.

        Returns:
            Whether it did.
        """
        if self._owner == os.getpid() or in_worker():
            return False
        self._shared = self._shared.clone()
        share(self._shared)
        self._numbers = self._numbers.own()
        if self._process != os.getpid():
            self._left_at = self._here()
        self._go_on_alone()
        return True

    def _go_on_alone(self) -> None:
        left_at, self._left_at = self._left_at, None
        self._owner = os.getpid()
        self._forget()
        self._mine = self._numbers.latest
        if left_at is not None:
            self._loaded = left_at
            self._reset(left_at.position)

    def _here(self) -> State | None:
        """The place of the pass that the training process itself is in."""
        current = self._current
        if current is None or in_worker() or current.number != self._numbers.latest:
            return None
        return State(Position(current.epoch, current.offset), current.settings, current.history)

    def _forget(self) -> None:
        self._current: Pass | None = None
        self._left_at = getattr(self, "_left_at", None)
        # The latest pass that this process has begun.
        self._mine = 0
        self._own: State | None = None
        self._process = os.getpid()
        self._resets = self._numbers.resets
        self._iterators = 0

    def _look(self) -> None:
        """Forgets what a forked process inherited of its parent's passes, and passes before a new choice."""
        if self._process != os.getpid():
            self._forget()
        elif self._resets != self._numbers.resets:
            iterators = self._iterators
            self._forget()
            # Still tells this worker's iterators apart.
            self._iterators = iterators

    def _change(self, state: State) -> None:
        # Workers that are running know nothing of it, and must not go on with something else.
        self._version = int(self._shared[VERSION]) + 1
        self._shared[VERSION] = self._version
        self._loaded = state

    def _token(self) -> tuple[int, int] | None:
        seed = iterator_seed()
        return None if seed is None else (seed, self._iterators)

    def place(self, now: OrderSettings, orders: Orders, batch_size: int | None) -> tuple[Position, History]:
        """Where the loaded state begins under some settings.

        Args:
            now: The settings.
            orders: The dataset's orders.
            batch_size: Batch size of the coming DataLoader, when it is known.

        Returns:
            The position, and the shapes that the job had before.
        """
        return self._start(now, orders, batch_size)

    def _position(self) -> Position:
        epoch, offset, batch_size = (int(value) for value in self._shared[: BATCH_SIZE + 1])
        return Position(epoch, offset, batch_size or None)

    def _start(
        self, now: OrderSettings, orders: Orders, batch_size: int | None, *, tell: bool = False
    ) -> tuple[Position, History]:
        """Where the loaded state begins under these settings, and after which history."""
        state = replace(self._loaded, position=self._position())
        known = self._batch_size if batch_size is None else batch_size
        return orders.start(state, now, known, tell=tell)

    def _reset(self, position: Position) -> None:
        self._shared[:VERSION] = torch.tensor([position.epoch, position.offset, position.batch_size or 0])
        self._numbers.reset()
        self._forget()
