"""Where a dataset's next pass begins, and in which order it goes: shape, state and history put together."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from lerobot_streaming.errors import OptionError
from lerobot_streaming.options import is_integer
from lerobot_streaming.orders import Orders
from lerobot_streaming.plan import (
    AnchorSelection,
    JobOrder,
    OrderSettings,
    Position,
    select_anchors,
    shards_for_worker,
)
from lerobot_streaming.progress import Progress
from lerobot_streaming.ranks import RankMemory, in_worker, worker_and_count
from lerobot_streaming.state import State

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lerobot_streaming.opening import OpenDataset
    from lerobot_streaming.options import Options
    from lerobot_streaming.orders import History, SizesWith
    from lerobot_streaming.place import Pass
    from lerobot_streaming.plan import EpisodeSizes, WorkerOrder


class Resume:
    """The order of one dataset, and how far it has got.

    Args:
        opened: The open dataset.
        options: The checked options.
        seed: Order seed.
        shuffle: Whether the order is random.
        repeat: Whether a pass runs on over epochs.
        revision: Revision that the dataset is opened as.
        sizes_with: Gives the episodes' sizes with other cameras, for states that were taken with them.
    """

    def __init__(
        self,
        opened: OpenDataset,
        options: Options,
        *,
        seed: int,
        shuffle: bool,
        repeat: bool,
        revision: str,
        sizes_with: SizesWith,
    ) -> None:
        """Begins at the first epoch, with every frame."""
        self._open = opened
        self._options = options
        self._revision = revision
        self._sizes_with: SizesWith | None = sizes_with
        self._settings = OrderSettings(
            world_size=1,
            num_workers=0,
            pool_size=options.episode_pool_size,
            rank_pool=options.rank_pool,
            byte_budget=options.byte_budget_bytes,
            strategy=options.sampling_strategy,
            seed=seed,
            shuffle=shuffle,
            repeat=repeat,
            cameras=opened.cameras,
        )
        self._ranks = RankMemory()
        self._progress = Progress()
        self._asked_workers: int | None = None
        self._batch_size: int | None = None
        self._orders = self._make_orders(0, 0)
        self._data: str | None = None
        self._episodes_of: dict[tuple[int, int], int] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out what only the process that opened the dataset needs."""
        return {**self.__dict__, "_sizes_with": None}

    @property
    def num_episodes(self) -> int:
        """Selected episodes that have anchors."""
        return len(self._anchors.counts)

    def resumed_epoch(self) -> tuple[int, bool] | None:
        """The epoch that the next pass continues; see the dataset's method."""
        if self._progress.begun:
            return None
        rank, _ = self._ranks.current()
        now = self._now(self._asked_workers or 0)
        return self._progress.start(now, self._orders, rank)

    @property
    def iterates(self) -> bool:
        """Whether this training process is in a pass that it iterates itself."""
        return self._progress.iterates and not in_worker()

    def limit_anchors(self, drop_first: int, drop_last: int) -> None:
        """Leaves out frames at the ends of episodes; see `select_anchors`."""
        _check_number("drop_n_first_frames", drop_first, 0)
        _check_number("drop_n_last_frames", drop_last, 0)
        if self._progress.begun or self._progress.is_loaded:
            raise OptionError(
                "limit_anchors() was called after a pass had begun or a state was loaded, and their places "
                "would mean other frames. Call it right after the dataset is made."
            )
        self._orders = self._make_orders(drop_first, drop_last)
        self._data = None
        self._episodes_of = {}

    def num_frames_for_rank(self, rank: int, world_size: int, num_workers: int) -> int:
        """Anchors that one rank draws per epoch; see the dataset's method."""
        # Checks that no worker goes without.
        shards_for_worker(
            self._anchors.counts, rank=rank, world_size=world_size, worker=0, num_workers=num_workers
        )
        share = shards_for_worker(
            self._anchors.counts, rank=rank, world_size=world_size, worker=0, num_workers=1
        )
        return sum(self._anchors.counts[number] for number in share)

    def num_episodes_for_rank(self, rank: int, world_size: int) -> int:
        """Episodes that one rank draws from; see the dataset's method."""
        place = (rank, world_size)
        if place not in self._episodes_of:
            share = shards_for_worker(
                self._anchors.counts, rank=rank, world_size=world_size, worker=0, num_workers=1
            )
            # Workers that tell their state with every batch ask again and again.
            self._episodes_of[place] = len(share)
        return self._episodes_of[place]

    def batches_per_rank(
        self, world_size: int, batch_size: int, num_workers: int, *, remaining: bool, drop_last: bool
    ) -> list[int]:
        """Batches that each rank gives in a pass that ends; see the dataset's method."""
        _check_number("batch_size", batch_size, 1)
        _check_number("num_workers", num_workers, 0)
        settings = replace(self._settings, world_size=world_size, num_workers=num_workers, repeat=False)
        position = Position()
        history: History = ()
        if remaining and not self._progress.begun:
            position, history = self._progress.place(settings, self._orders, batch_size)
        job = JobOrder(self._anchors, self._open.sizes, settings, self._orders.rests(history))
        counts = []
        for rank in range(world_size):
            part = job.rank(rank)
            done, _ = part.draws_done(position.epoch, position.offset, position.batch_size)
            draws = zip(part.draws_per_pass(position.epoch), done, strict=True)
            left = [(whole or 0) - behind for whole, behind in draws]
            counts.append(sum(some // batch_size if drop_last else -(-some // batch_size) for some in left))
        return counts

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch of the next pass; see the dataset's method."""
        now = self._now(self._progress.last_num_workers)
        self._progress.set_epoch(epoch, now, self._orders)

    def expect_workers(self, num_workers: int) -> None:
        """Notes the worker count that the DataLoader was asked to have; see the dataset's method."""
        _check_number("num_workers", num_workers, 0)
        self._asked_workers = num_workers
        if not self._progress.begun:
            self._settle()

    def load(self, state: Mapping[str, Any], *, batch_size: int | None, num_workers: int | None) -> None:
        """Takes over a state; see the dataset's method."""
        loaded = State.from_dict(state)
        if loaded.data is not None and loaded.data != self.data:
            raise OptionError(
                f"The state was taken with other data ({loaded.data}) than this dataset holds ({self.data}). "
                "Open the same revision and episodes with the same frames left out, or begin anew."
            )
        for name, value, low in (("batch_size", batch_size, 1), ("num_workers", num_workers, 0)):
            if value is not None:
                _check_number(name, value, low)
        self._orders.expect(loaded, self._open.cameras, self._sizes_with or _unknown_sizes)
        self._progress.load(loaded, self._now(self._progress.last_num_workers))
        if in_worker():
            return
        self._batch_size = batch_size
        self._progress.expect_batch_size(batch_size)
        if num_workers is not None:
            self._asked_workers = num_workers
        if self._asked_workers is not None:
            self._settle()

    def state(self, batches: int | None, batch_size: int | None) -> State:
        """The state of this process, or of its rank; see the dataset's `state_dict`."""
        worker, num_workers = worker_and_count()
        if batches is None and batch_size is None:
            now = self._now(num_workers)
            state = self._progress.state(now, self._orders, worker)
        else:
            _check_number("batches", batches, 0)
            _check_number("batch_size", batch_size, 1)
            now = self._now(self._progress.num_workers)
            state = self._progress.rank_state(now, self._orders, int(batches or 0), int(batch_size or 1))
        return state if state.settings is None else replace(state, data=self.data)

    def next_pass(self) -> tuple[Pass, WorkerOrder]:
        """Begins this process's next pass, and counts it.

        Returns:
            The pass and the order.

        Raises:
            OptionError: The loaded state cannot be continued.
            ShardingError: Too few episodes for the ranks or workers.
            ByteBudgetError: The budget cannot be split so that each worker can hold its largest episode.
        """
        rank, world_size = self._ranks.current()
        worker, num_workers = worker_and_count()
        # Checks the numbers and says what to lower.
        shards_for_worker(
            self._anchors.counts, rank=rank, world_size=world_size, worker=worker, num_workers=num_workers
        )
        now = self._now(num_workers)
        begun = self._progress.next_pass(now, self._orders, (rank, worker, num_workers))
        try:
            part = self._orders.rank(begun.settings, begun.history, rank)
            return begun, part.worker(begun.share)
        except BaseException:
            self.cancel(begun)
            raise

    def begin(self, begun: Pass) -> None:
        """Notes that the first sample of a pass is wanted."""
        self._progress.begin(*worker_and_count(), begun)

    def cancel(self, begun: Pass) -> None:
        """Takes a pass back whose parts could not be made."""
        self._progress.cancel(worker_and_count()[0], begun)

    def adopt(self) -> bool:
        """Takes memory of its own in a training process that got the dataset from another one."""
        return self._progress.adopt()

    def finish(self, ended: Pass) -> None:
        """Notes that a pass ran to its end."""
        self._progress.finish(ended)

    @property
    def data(self) -> str:
        """Describes the frames that are drawn: equal texts mean equal frames."""
        if self._data is None:
            self._data = self._describe()
        return self._data

    def _describe(self) -> str:
        layout, anchors = self._open.layout, self._anchors
        digest = hashlib.sha256()
        for numbers in (layout.episode_index, layout.lengths, layout.first_index, anchors.positions):
            digest.update(np.asarray(numbers, dtype=np.int64).tobytes() + b";")
        digest.update(f"{anchors.first};".encode() + np.asarray(anchors.counts, dtype=np.int64).tobytes())
        return (
            f"{self._revision}, {layout.num_episodes} episodes, {layout.num_frames} frames, "
            f"{digest.hexdigest()[:16]}"
        )

    @property
    def _anchors(self) -> AnchorSelection:
        return self._orders.anchors

    def _make_orders(self, drop_first: int, drop_last: int) -> Orders:
        lengths = self._open.layout.lengths.tolist()
        return Orders(select_anchors(lengths, drop_first, drop_last), self._open.sizes)

    def _settle(self) -> None:
        """Turns the loaded state into one of the coming settings, so that no worker has to."""
        rank, world_size = self._ranks.current()
        asked = self._asked_workers or 0
        now = replace(self._settings, world_size=world_size, num_workers=asked)
        history = self._progress.settle(now, self._orders, self._batch_size)
        if history:
            self._orders.rank(now, history, rank)

    def _now(self, num_workers: int) -> OrderSettings:
        """The settings as they are, for a DataLoader with so many workers."""
        rank, world_size = self._ranks.current()
        asked, real = self._asked_workers, max(1, num_workers)
        if asked is not None and max(1, asked) > real:
            # A rank with fewer episodes than the workers asked for has one worker for each of them.
            lowered = real == self.num_episodes_for_rank(rank, world_size)
            num_workers = asked if lowered else num_workers
        elif asked is not None and max(1, asked) == real:
            num_workers = asked
        return replace(self._settings, world_size=world_size, num_workers=num_workers)


def _check_number(name: str, value: Any, low: int) -> None:
    if not is_integer(value) or value < low:
        raise OptionError(f"{name} must be an integer >= {low}, got {value!r}.")


def _unknown_sizes(cameras: tuple[str, ...] | None) -> EpisodeSizes:
    raise OptionError(
        f"The state was taken with other cameras ({'all' if cameras is None else list(cameras)}), and only "
        "the process that opened the dataset can tell what was drawn with them. Load the state there, or "
        "open the dataset with the `features` that it was taken with."
    )
