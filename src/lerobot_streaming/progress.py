"""Which epoch and offset each worker begins its next pass at, and what state a process is in."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lerobot_streaming.errors import OptionError
from lerobot_streaming.options import MAX_WORKERS
from lerobot_streaming.place import EPOCH, VERSION, Pass, Place
from lerobot_streaming.plan import Position
from lerobot_streaming.ranks import in_worker
from lerobot_streaming.state import State

if TYPE_CHECKING:
    from lerobot_streaming.orders import History, Orders
    from lerobot_streaming.plan import OrderSettings


class Progress(Place):
    """Epochs, offsets and passes of a rank's workers."""

    @property
    def begun(self) -> bool:
        """Whether a pass has begun since an epoch was chosen or a state loaded."""
        self._look()
        return self._numbers.latest > 0 or self._own is not None

    @property
    def is_loaded(self) -> bool:
        """Whether a place in an epoch, or what is left of some, was loaded."""
        return bool(self._position().offset or self._loaded.history)

    @property
    def iterates(self) -> bool:
        """Whether this process is in a pass that it iterates itself."""
        self._look()
        return self._current is not None and self._current.number == self._numbers.latest

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

    def set_epoch(self, epoch: int, now: OrderSettings, orders: Orders) -> None:
        """Chooses the epoch of the next pass.

        Choosing the epoch that a loaded state is about to continue changes nothing, so that training loops
        which announce every epoch keep the offset.

        Args:
            epoch: Coverage epoch.
            now: The settings.
            orders: The dataset's orders.
        """
        if self.begun:
            _, history = self._start(now, orders, None)
            if history and epoch < orders.rests(history).next_epoch:
                # What earlier shapes left of it was drawn by the pass that has begun.
                self._change(State(Position()))
        elif epoch == int(self._shared[EPOCH]):
            return
        self._reset(Position(epoch))

    def load(self, state: State, now: OrderSettings) -> None:
        """Takes over a state; a DataLoader worker resumes only itself.

        Args:
            state: The state.
            now: The settings, with the worker count of the latest pass.

        Raises:
            OptionError: The state is that of one of several workers, and this process is none.
        """
        self._look()
        if in_worker():
            self._own = state
            self._current = None
            return
        if state.share is not None and state.position.offset:
            raise OptionError(
                "The state is that of one DataLoader worker (it has a share), and can be loaded only by the "
                "same worker, as torchdata's StatefulDataLoader does."
            )
        loaded = self._loaded
        if state.history != loaded.history or (state.settings or now).differences(loaded.settings or now):
            self._change(state)
        self._loaded = replace(state, share=None)
        self._reset(state.position)

    def expect_batch_size(self, batch_size: int | None) -> None:
        """Notes the batch size of the coming DataLoader.

        Args:
            batch_size: Samples per batch; None: that of the loaded state.
        """
        if in_worker():
            return
        was, self._batch_size = self._batch_size, batch_size
        if was != batch_size and self._position().offset:
            self._change(self._loaded)

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
            self.load(state, settings)
        return history

    def state(self, now: OrderSettings, orders: Orders, worker: int) -> State:
        """The state of the pass that this process is in, or of its next one.

        Args:
            now: The settings, for the number of workers that this process has or is one of.
            orders: Computes what a loaded state of other settings leaves.
            worker: This process's worker number.

        Returns:
            The state.

        Raises:
            OptionError: Workers iterate, and only they know how far they are.
        """
        self._look()
        if not in_worker() and self._numbers.latest > self._mine:
            raise OptionError(
                "state_dict() cannot say in the training process how far the DataLoader's workers are. Count "
                "the batches that you took of this pass and call state_dict(batches=..., batch_size=...), or "
                "use torchdata's StatefulDataLoader, which asks each worker."
            )
        if self._current is not None:
            current = self._current
            share = current.share if in_worker() else None
            return State(Position(current.epoch, current.offset), current.settings, current.history, share)
        if self._own is not None:
            return self._own
        passes = self._mine
        if not passes and in_worker():
            passes = self._numbers.coming(worker, self._token()) - 1
        if passes:
            position, history = self._start(now, orders, None)
            return State(Position(position.epoch + passes), now, history)
        return self._as_loaded(now)

    def _as_loaded(self, now: OrderSettings) -> State:
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
        self._look()
        passes = self._numbers.latest
        if not passes and not batches:
            return self._as_loaded(now)
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
        return self._numbers.num_workers

    @property
    def last_num_workers(self) -> int:
        """The same, but not forgotten when an epoch is chosen or a state loaded."""
        return self._numbers.last_num_workers

    def next_pass(self, now: OrderSettings, orders: Orders, place: tuple[int, int, int]) -> Pass:
        """Begins the next pass of a worker, and counts it.

        Args:
            now: The settings.
            orders: The dataset's orders.
            place: Rank, worker and number of workers.

        Returns:
            The pass.

        Raises:
            OptionError: The loaded offset cannot be continued, or the rank has too many workers.
        """
        _, worker, num_workers = place
        if num_workers > MAX_WORKERS:
            raise OptionError(f"num_workers must be at most {MAX_WORKERS} per rank, got {num_workers}.")
        self._look()
        token = self._token()
        self._iterators += 1
        if self._own is not None:
            return self._own_pass(self._own, now, orders, place)
        number = self._numbers.claim(worker, num_workers, token)
        try:
            begun = self._numbered_pass(number, now, orders, place)
        except BaseException:
            self._numbers.give_back(worker, number)
            raise
        self._mine = begun.number = number
        self._current = begun
        return begun

    def _numbered_pass(
        self, number: int, now: OrderSettings, orders: Orders, place: tuple[int, int, int]
    ) -> Pass:
        rank, worker, num_workers = place
        if int(self._shared[VERSION]) != self._version:
            raise OptionError(
                "load_state_dict() or set_epoch() changed the settings or the history of the order while "
                "DataLoader workers were already running. Call it before the DataLoader is first iterated, "
                "or make a new DataLoader."
            )
        position, history = self._start(now, orders, None, tell=worker == 0 and rank == 0)
        if number > 1:
            position = Position(position.epoch + number - 1)
        if not position.offset:
            return Pass(position.epoch, 0, worker, now, history)
        part = orders.rank(now, history, rank)
        done, first = part.draws_done(position.epoch, position.offset, position.batch_size)
        if now.world_size == 1:
            _check_end(position, part.draws_per_pass(position.epoch))
        share = (worker + first) % num_workers
        return Pass(position.epoch, done[share], share, now, history)

    def begin(self, worker: int, num_workers: int, begun: Pass) -> None:
        """Notes that the first sample of a pass is wanted: the pass of a worker's own state counts from here.

        torchdata also makes iterators of workers whose pass was at its end, and never reads them.

        Args:
            worker: Worker number.
            num_workers: Workers of the rank.
            begun: The pass.
        """
        del worker
        if begun.number or self._own is None:
            return
        # From here on this worker counts its epochs from its own state on.
        begun.number = max(1, begun.epoch - int(self._shared[EPOCH]) + 1)
        self._numbers.raise_to(begun.number, num_workers)
        self._loaded = replace(self._loaded, settings=None, history=begun.history)
        self._own = None
        self._mine = begun.number
        self._current = begun

    def cancel(self, worker: int, begun: Pass) -> None:
        """Takes a pass back whose parts could not be made.

        Args:
            worker: Worker number.
            begun: The pass.
        """
        if self._current is begun:
            self._current = None
            self._numbers.give_back(worker, begun.number)
            self._mine = min(self._mine, self._numbers.latest)

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
