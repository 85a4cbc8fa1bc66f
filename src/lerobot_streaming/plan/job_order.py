"""The order of a whole job: what each worker of each rank draws under some settings, and what that leaves.

A job whose shape changes (ranks, workers, batch size, pool, strategy, budget or seed) in the middle of an
epoch deals the rest of that epoch anew: whole episodes, with the frames of them that nobody has drawn. The
epochs after it are the new settings' own.

Workers count their epochs by themselves, and a share with few frames is through with an epoch sooner, so the
workers of an endless job may stand in different epochs when its shape changes. Then every epoch that anyone
has begun is completed by everyone, in ascending order: afterwards all frames have been used equally often.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lerobot_streaming.errors import ByteBudgetError, OptionError
from lerobot_streaming.plan.coverage import CoveragePlan, PlanEpisode
from lerobot_streaming.plan.epoch_seed import derived_seed
from lerobot_streaming.plan.settings import worker_pool_size
from lerobot_streaming.plan.sharding import deal_episodes, shard_episodes, shards_for_worker, worker_budgets
from lerobot_streaming.plan.sizes import EpisodeSizes
from lerobot_streaming.plan.turns import deal_batches
from lerobot_streaming.plan.units import format_gib
from lerobot_streaming.plan.worker_order import WorkerOrder, WorkerPass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lerobot_streaming.plan.anchors import AnchorSelection
    from lerobot_streaming.plan.settings import OrderSettings

type Left = dict[int, Sequence[int] | None]
"""Number of an episode among those with anchors -> frame numbers left, ascending; None for all anchors."""


@dataclass(frozen=True, slots=True)
class Rests:
    """What the shapes that a job has had so far leave to the next one.

    Attributes:
        epochs: For each epoch that was begun and is not complete, what is left of it.
        next_epoch: The first epoch of which nothing is done.
        generation: Number of shapes so far.
    """

    epochs: Mapping[int, Left] = field(default_factory=dict)
    next_epoch: int = 0
    generation: int = 0

    @property
    def first_epoch(self) -> int:
        """The epoch with which the next shape begins."""
        return min(self.epochs, default=self.next_epoch)


@dataclass(frozen=True, slots=True)
class RankOrder:
    """One rank's part of a job's order; small enough to be handed to its workers.

    Attributes:
        settings: The settings.
        anchors: The frames that are drawn, of all ranks.
        sizes: Of the episodes, by their positions in the selection.
        shares: For each worker the numbers of its episodes.
        rests: For each begun epoch what each worker has of its rest.
        generation: Number of shapes that the job had before.
    """

    settings: OrderSettings
    anchors: AnchorSelection
    sizes: EpisodeSizes
    shares: Sequence[Sequence[int]]
    rests: Mapping[int, Sequence[Left]]
    generation: int

    def worker(self, worker: int) -> WorkerOrder:
        """Make one worker's order.

        Args:
            worker: Worker of the rank.

        Returns:
            Its order; no draw is computed yet.

        Raises:
            ByteBudgetError: The budget cannot be split so that each worker can hold its largest episode.
        """
        budgets = self._budgets(self.shares)
        regular = self._pass(dict.fromkeys(self.shares[worker]), budgets[worker], self.settings.seed)
        if not self.rests:
            return WorkerOrder(regular, {}, budgets[worker])
        # A worker needs room for the largest episode of any rest that it was dealt, and for what its own plan
        # counts on.
        among = [
            sorted({number for dealt in self.rests.values() for number in dealt[index]})
            for index in range(len(self.shares))
        ]
        rest_budgets = self._budgets(among)
        rooms = [max(pair) for pair in zip(budgets, rest_budgets, strict=True)]
        if sum(rooms) > self.settings.byte_budget:
            raise ByteBudgetError(
                f"byte_budget_gb is {format_gib(self.settings.byte_budget)} for this rank, but while the "
                f"rest of the epoch is dealt to its {len(rooms)} worker(s), they need "
                f"{format_gib(sum(rooms))} GiB together. Raise byte_budget_gb to at least that, or lower the "
                f"number of workers."
            )
        seed = derived_seed("rest", self.settings.seed, self.generation)
        rests = {
            epoch: self._pass(dealt[worker], rest_budgets[worker], seed) if dealt[worker] else None
            for epoch, dealt in self.rests.items()
        }
        return WorkerOrder(regular, rests, rooms[worker])

    def draws_per_pass(self, epoch: int) -> list[int | None]:
        """Count what each worker can give in one pass.

        Args:
            epoch: Coverage epoch at which the pass begins.

        Returns:
            The draws of each worker, or None for an endless one.
        """
        if self.settings.repeat:
            return [None] * len(self.shares)
        if epoch in self.rests:
            return [
                sum(self._num_frames(number, frames) for number, frames in left.items())
                for left in self.rests[epoch]
            ]
        return [sum(self.anchors.counts[number] for number in share) for share in self.shares]

    def draws_done(self, epoch: int, offset: int, batch_size: int | None) -> tuple[list[int], int]:
        """Say how many draws each worker has done when the rank has taken some batches of a pass.

        Args:
            epoch: Epoch at which the pass began.
            offset: Samples that the rank has taken: whole batches, counted as if none had been short.
            batch_size: Samples per batch; None when a single worker counted its own.

        Returns:
            The draws of each worker, at most those that the pass has for it; and the worker that is next.

        Raises:
            OptionError: Without a batch size the offset cannot be dealt to several workers.
        """
        limits = self.draws_per_pass(epoch)
        if batch_size is None:
            if offset and len(limits) > 1:
                raise OptionError(
                    f"The state's offset {offset} has no batch_size, so it counts the samples of one "
                    f"process; it cannot be dealt to {len(limits)} workers. Load it together with the "
                    "DataLoader's batch_size."
                )
            given, first, batch_size = [offset] * len(limits), 0, 1
        else:
            whole = [None if limit is None else -(-limit // batch_size) for limit in limits]
            given, first = deal_batches(offset // batch_size, whole)
        done = [
            count * batch_size if limit is None else min(count * batch_size, limit)
            for count, limit in zip(given, limits, strict=True)
        ]
        return done, first

    def _budgets(self, shares: Sequence[Sequence[int]]) -> list[int]:
        budget = self.settings.byte_budget
        groups = [[self.anchors.positions[number] for number in share] for share in shares]
        everybody = [position for group in groups for position in group]
        if self.sizes.fit_alone(everybody, budget // max(1, len(groups))):
            return worker_budgets([0] * len(groups), budget)
        return worker_budgets(self.sizes.largest(groups), budget)

    def _num_frames(self, number: int, frames: Sequence[int] | None) -> int:
        return self.anchors.counts[number] if frames is None else len(frames)

    def _pass(self, left: Left, byte_budget: int, seed: int) -> WorkerPass:
        numbers = sorted(left)
        positions = [self.anchors.positions[number] for number in numbers]
        frames = [left[number] for number in numbers]
        episodes = [
            PlanEpisode(self.anchors.first, self.anchors.counts[number], 0)
            if some is None
            else PlanEpisode(0, len(some), 0)
            for number, some in zip(numbers, frames, strict=True)
        ]
        pool_size = worker_pool_size(self.settings.pool_size, self.settings.rank_pool, len(self.shares))
        # Where no pool that can form reaches the budget, sizes do not matter.
        roomy = self.sizes.fit_together(positions, pool_size, byte_budget)
        plan = CoveragePlan(
            episodes,
            pool_size=pool_size,
            byte_budget=byte_budget,
            strategy=self.settings.strategy,
            seed=seed,
            shuffle=self.settings.shuffle,
            size_of=None if roomy else lambda place: self.sizes.exact(positions[place]),
        )
        return WorkerPass(plan, positions, frames)


class JobOrder:
    """The order of all ranks under one shape of the job.

    Args:
        anchors: The frames that are drawn.
        size_of: Gives the compressed bytes of the episode at a position of the selection. It is asked for
            the episodes of a rank when a worker's order of that rank is made, and bounds do not suffice.
        settings: The settings.
        rests: What earlier shapes left.

    Raises:
        ShardingError: There are fewer episodes than ranks.
    """

    def __init__(
        self,
        anchors: AnchorSelection,
        size_of: EpisodeSizes | Callable[[int], int],
        settings: OrderSettings,
        rests: Rests | None = None,
    ) -> None:
        """Deal the episodes to the ranks."""
        self._anchors = anchors
        self._sizes = EpisodeSizes.of(size_of)
        self.settings = settings
        self.rests = Rests() if rests is None else rests
        if settings.world_size > len(anchors.counts):
            # Says what to lower.
            shards_for_worker(anchors.counts, rank=0, world_size=settings.world_size, worker=0, num_workers=1)
        self._shares = shard_episodes(anchors.counts, settings.world_size)
        self._dealt = {
            epoch: self._deal(left, settings.world_size) for epoch, left in self.rests.epochs.items()
        }

    def rank(self, rank: int) -> RankOrder:
        """Make one rank's part.

        Args:
            rank: Training process.

        Returns:
            Its part.
        """
        counts = self._anchors.counts
        share = self._shares[rank]
        workers = self.settings.workers(len(share))
        by_worker = shard_episodes([counts[number] for number in share], workers)
        return RankOrder(
            self.settings,
            self._anchors,
            self._sizes,
            [[share[index] for index in members] for members in by_worker],
            {epoch: self._deal(dealt[rank], workers) for epoch, dealt in self._dealt.items()},
            self.rests.generation,
        )

    def rests_after(self, epoch: int, offset: int, batch_size: int | None) -> Rests:
        """Say what the whole job leaves when every rank has taken equally many batches of a pass.

        Args:
            epoch: Epoch at which the pass began.
            offset: Samples that each rank has taken, counted as if no batch had been short. A rank whose pass
                ended before has taken all of its samples.
            batch_size: Samples per batch; None when ranks have one worker each, which counted its own.

        Returns:
            What is left to the next shape.
        """
        ends: list[tuple[WorkerOrder, int, dict[int, Left]]] = []
        for rank in range(self.settings.world_size):
            order = self.rank(rank)
            done, _ = order.draws_done(epoch, offset, batch_size)
            for index, count in enumerate(done):
                worker = order.worker(index)
                ends.append((worker, *worker.rests_after(epoch, count, repeat=self.settings.repeat)))
        next_epoch = max(untouched for _, untouched, _ in ends)
        number_of = {position: number for number, position in enumerate(self._anchors.positions)}
        epochs: dict[int, Left] = {}
        for worker, untouched, left in ends:
            for begun in range(epoch, next_epoch):
                rest = left.get(begun, {}) if begun < untouched else worker.whole_epoch()
                for position, frames in rest.items():
                    epochs.setdefault(begun, {})[number_of[position]] = frames
        return Rests(dict(sorted(epochs.items())), next_epoch, self.rests.generation + 1)

    def _deal(self, left: Left, num_shards: int) -> list[Left]:
        """Deal the rest of an epoch; some may get nothing."""
        numbers = sorted(left)
        counts = [
            self._anchors.counts[number] if (frames := left[number]) is None else len(frames)
            for number in numbers
        ]
        return [
            {numbers[index]: left[numbers[index]] for index in members}
            for members in deal_episodes(counts, num_shards)
        ]
