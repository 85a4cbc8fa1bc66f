"""Which epoch and offset each worker begins its next pass at, shared by a rank's processes.

DataLoader workers are other processes, so the parent's `set_epoch` and `load_state_dict` and the workers' own
count of passes live in shared memory: persistent workers, new workers of every pass and the training process
itself all agree.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import torch

from lerobot_streaming.errors import OptionError
from lerobot_streaming.options import MAX_WORKERS
from lerobot_streaming.plan import OrderSettings, Position
from lerobot_streaming.state import State

if TYPE_CHECKING:
    from lerobot_streaming.orders import History, Orders

_EPOCH, _OFFSET, _BATCH_SIZE, _VERSION, _NUM_WORKERS, _PASSES = range(6)

_KEPT: Final = ("_shared", "_loaded", "_version")


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
    """

    epoch: int
    offset: int
    share: int
    settings: OrderSettings
    history: History


class Progress:
    """Epochs, offsets and passes of a rank's workers."""

    def __init__(self) -> None:
        """Begins at epoch 0, offset 0."""
        self._shared = torch.zeros(_PASSES + MAX_WORKERS, dtype=torch.int64)
        self._share()
        self._loaded = State(Position())
        self._version = 0
        self._forget()

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out what belongs to this process."""
        return {name: getattr(self, name) for name in _KEPT}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Takes the shared table over; a copy made by plain pickling gets one of its own."""
        self.__dict__.update(state)
        self._share()
        self._forget()

    def _share(self) -> None:
        if not self._shared.is_shared():  # type: ignore[no-untyped-call]  # torch gives it no types.
            self._shared.share_memory_()  # type: ignore[no-untyped-call]  # torch gives it no types.

    def _forget(self) -> None:
        self._current: Pass | None = None
        self._passes_here = 0
        self._own: State | None = None

    @property
    def begun(self) -> bool:
        """Whether a pass has begun since an epoch was chosen or a state loaded."""
        return bool(self._shared[_PASSES:].any()) or self._own is not None

    def start(self, now: OrderSettings, orders: Orders, rank: int) -> tuple[int, bool]:
        """Where the next pass of a rank begins, when none has begun yet.

        Args:
            now: The settings.
            orders: The dataset's orders.
            rank: Training process.

        Returns:
            The epoch, and whether nothing of it is left to this rank.
        """
        position, history = self._start(now, orders, None)
        if now.repeat or not (position.offset or history):
            return position.epoch, False
        part = orders.rank(now, history, rank)
        done, _ = part.draws_done(position.epoch, position.offset, position.batch_size)
        return position.epoch, done == part.draws_per_pass(position.epoch)

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch of the next pass.

        Choosing the epoch that a loaded state is about to continue changes nothing, so that training loops
        which announce every epoch keep the offset.

        Args:
            epoch: Coverage epoch.
        """
        if self.begun or epoch != int(self._shared[_EPOCH]):
            self._reset(Position(epoch))

    def load(self, state: State, *, in_worker: bool) -> None:
        """Takes over a state.

        Args:
            state: The state.
            in_worker: Whether this process is a DataLoader worker, which resumes only itself.

        Raises:
            OptionError: The state is that of one of several workers, and this process is none.
        """
        if in_worker:
            self._own = state
            self._current = None
            return
        if state.share is not None and state.position.offset:
            raise OptionError(
                "The state is that of one DataLoader worker (it has a share), and can be loaded only by the "
                "same worker, as torchdata's StatefulDataLoader does."
            )
        if (state.settings, state.history) != (self._loaded.settings, self._loaded.history):
            # Workers that are running know nothing of it, and must not go on with something else.
            self._version = int(self._shared[_VERSION]) + 1
            self._shared[_VERSION] = self._version
        self._loaded = replace(state, share=None)
        self._reset(state.position)

    def settle(self, settings: OrderSettings, orders: Orders, batch_size: int | None) -> History:
        """Turns a loaded state of other settings into one of these, before any worker exists.

        Args:
            settings: The settings, with the worker count that the DataLoader is going to have.
            orders: Computes what the state's settings leave.
            batch_size: Batch size of the coming DataLoader, when it is known.

        Returns:
            The shapes that the job had before.
        """
        position, history = self._start(settings, orders, batch_size, tell=True)
        if history == self._loaded.history:
            self._loaded = replace(self._loaded, settings=settings)
        else:
            state = State(position, settings, history, data=self._loaded.data)
            self.load(state, in_worker=False)
        return history

    def state(self, now: OrderSettings, orders: Orders, worker: int, *, in_worker: bool) -> State:
        """The state of the pass that this process is in, or of its next one.

        Args:
            now: The settings, for the number of workers that this process has or is one of.
            orders: Computes what a loaded state of other settings leaves.
            worker: This process's worker number.
            in_worker: Whether this process is a DataLoader worker.

        Returns:
            The state.

        Raises:
            OptionError: Workers iterate, and only they know how far they are.
        """
        if self._current is not None:
            current = self._current
            share = current.share if in_worker else None
            return State(Position(current.epoch, current.offset), current.settings, current.history, share)
        if self._own is not None:
            return self._own
        passes = int(self._shared[_PASSES + worker])
        if not in_worker and int(self._shared[_PASSES:].sum()) > self._passes_here:
            raise OptionError(
                "state_dict() cannot say in the training process how far the DataLoader's workers are. Count "
                "the batches that you took of this pass and call state_dict(batches=..., batch_size=...), or "
                "use torchdata's StatefulDataLoader, which asks each worker."
            )
        if passes:
            position, history = self._start(now, orders, None)
            return State(Position(position.epoch + passes), now, history)
        loaded, position = self._loaded, self._position()
        known = now if loaded.settings is None and not position.offset else loaded.settings
        return State(position, known, loaded.history)

    def rank_state(self, now: OrderSettings, orders: Orders, batches: int, batch_size: int) -> State:
        """The state of a rank whose DataLoader has given some batches of its latest pass.

        Args:
            now: The settings, for the number of workers that the DataLoader has.
            orders: Computes what a loaded state of other settings leaves.
            batches: Batches taken.
            batch_size: Samples per batch.

        Returns:
            The state.

        Raises:
            OptionError: The pass continues one of another batch size.
        """
        passes = int(self._shared[_PASSES:].max())
        position, history = self._start(now, orders, None)
        if passes > 1:
            position = Position(position.epoch + passes - 1)
        if position.offset and position.batch_size != batch_size:
            raise OptionError(
                f"batch_size is {batch_size}, but the loaded state has {position.batch_size}. Say the new "
                "one when the state is loaded: load_state_dict(state, batch_size=...)."
            )
        offset = position.offset + batches * batch_size
        return State(Position(position.epoch, offset, batch_size), now, history)

    @property
    def num_workers(self) -> int:
        """DataLoader workers of the latest pass; 0 before the first one."""
        return int(self._shared[_NUM_WORKERS])

    def next_pass(self, now: OrderSettings, orders: Orders, place: tuple[int, int, int]) -> Pass:
        """Where the next pass of a worker begins; `begin` then counts it.

        Args:
            now: The settings.
            orders: The dataset's orders.
            place: Rank, worker and number of workers.

        Returns:
            The pass.

        Raises:
            OptionError: The loaded offset cannot be continued, or the rank has too many workers.
        """
        rank, worker, num_workers = place
        if num_workers > MAX_WORKERS:
            raise OptionError(f"num_workers must be at most {MAX_WORKERS} per rank, got {num_workers}.")
        if self._own is not None:
            return self._own_pass(self._own, now, orders, place)
        if int(self._shared[_VERSION]) != self._version:
            raise OptionError(
                "load_state_dict() got a state with settings of its own while DataLoader workers were "
                "already running. Load it before the DataLoader is first iterated, or make a new DataLoader."
            )
        position, history = self._start(now, orders, None, tell=worker == 0 and rank == 0)
        passes = int(self._shared[_PASSES + worker])
        if passes:
            position = Position(position.epoch + passes)
        if not position.offset:
            return Pass(position.epoch, 0, worker, now, history)
        part = orders.rank(now, history, rank)
        done, first = part.draws_done(position.epoch, position.offset, position.batch_size)
        if now.world_size == 1:
            _check_end(position, part.draws_per_pass(position.epoch))
        share = (worker + first) % num_workers
        return Pass(position.epoch, done[share], share, now, history)

    def begin(self, worker: int, num_workers: int, begun: Pass) -> None:
        """Counts a pass whose parts could be made.

        Args:
            worker: Worker number.
            num_workers: Workers of the rank.
            begun: The pass.
        """
        self._shared[_NUM_WORKERS] = num_workers
        if self._own is not None:
            # From here on this worker counts its epochs from its own state on.
            self._shared[_PASSES + worker] = begun.epoch - int(self._shared[_EPOCH])
            self._loaded = replace(self._loaded, settings=None, history=begun.history)
            self._own = None
        self._shared[_PASSES + worker] += 1
        self._passes_here += 1
        self._current = begun

    def finish(self, ended: Pass) -> None:
        """Notes that a pass ran to its end: the state is the beginning of the next one."""
        if self._current is ended:
            self._current = None

    def _own_pass(self, own: State, now: OrderSettings, orders: Orders, place: tuple[int, int, int]) -> Pass:
        rank, worker, num_workers = place
        differences = [] if own.settings is None else own.settings.differences(now)
        if differences:
            raise OptionError(
                f"The state of one DataLoader worker can be continued only with the settings that it was "
                f"taken with ({'; '.join(differences)}). To change them, save state_dict(batches=..., "
                "batch_size=...) in the training process."
            )
        position, share = own.position, worker if own.share is None else own.share
        if share >= num_workers:
            raise OptionError(f"The state's share is {share}, but there are {num_workers} worker(s).")
        part = orders.rank(now, own.history, rank)
        if position.batch_size is not None:
            # A rank's state, which its workers had not begun yet when they were asked.
            done, first = part.draws_done(position.epoch, position.offset, position.batch_size)
            share = (worker + first) % num_workers
            return Pass(position.epoch, done[share], share, now, own.history)
        _check_end(position, [part.draws_per_pass(position.epoch)[share]])
        return Pass(position.epoch, position.offset, share, now, own.history)

    def _position(self) -> Position:
        epoch, offset, batch_size = (int(value) for value in self._shared[: _BATCH_SIZE + 1])
        return Position(epoch, offset, batch_size or None)

    def _start(
        self, now: OrderSettings, orders: Orders, batch_size: int | None, *, tell: bool = False
    ) -> tuple[Position, History]:
        """Where the loaded state begins under these settings, and after which history."""
        state = replace(self._loaded, position=self._position())
        return orders.start(state, now, batch_size, tell=tell)

    def _reset(self, position: Position) -> None:
        self._shared[:_VERSION] = torch.tensor([position.epoch, position.offset, position.batch_size or 0])
        self._shared[_PASSES:] = 0
        self._forget()


def _check_end(position: Position, limits: list[int | None]) -> None:
    """Raise OptionError for an offset beyond the end; a share's last batch may be short."""
    size = position.batch_size or 1
    samples = [limit for limit in limits if limit is not None]
    if len(samples) < len(limits):
        return
    most = sum(-(-limit // size) * size for limit in samples)
    if position.offset > most:
        raise OptionError(
            f"The state's offset lies {position.offset - sum(samples)} samples beyond the {sum(samples)} "
            "samples of this share."
        )
