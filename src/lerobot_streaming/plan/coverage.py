"""The draws of one worker: every anchor of its episodes exactly once per epoch, mixed in a bounded pool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from lerobot_streaming.errors import OptionError, ShardingError
from lerobot_streaming.plan.admission import AdmissionQueue, PlanEpisode, check_size
from lerobot_streaming.plan.epoch_pass import (
    CHUNK_DRAWS,
    ChronologicalPass,
    EpochPass,
    RemainingPass,
    RoundRobinPass,
)
from lerobot_streaming.plan.epoch_seed import epoch_random, shuffle_in_place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["CoveragePlan", "PlanEpisode", "SamplingStrategy"]

SamplingStrategy = Literal["remaining", "round_robin"]
"""How the next frame is chosen from the pool: uniformly over all remaining frames, or one of each episode in
rounds."""


class OpenEpoch:
    """An epoch of a plan, opened at some place of it."""

    def __init__(self, epoch_pass: EpochPass, num_left: int, code_bits: int) -> None:
        """Take over a running pass; `CoveragePlan.open_epoch` makes these.

        Args:
            epoch_pass: The pass, with the draws before the place taken.
            num_left: Draws that it has left.
            code_bits: Bits of the frame number in a code.
        """
        self._pass = epoch_pass
        self._num_left = num_left
        self._code_bits = code_bits

    def remaining(self) -> dict[int, int]:
        """Count what is left of each episode, so that a resume fetches only what it needs.

        Returns:
            Position -> draws left, in the order of admission, without the episodes that have none left.
        """
        return self._pass.remaining()

    def rest(self) -> dict[int, list[int] | None]:
        """List what is left of each episode.

        Returns:
            Position -> frame numbers left, ascending, or None for an episode that is left as a whole; without
            the episodes that have none left.
        """
        mask = (1 << self._code_bits) - 1
        return {
            position: None if codes is None else [code & mask for code in codes]
            for position, codes in self._pass.rest().items()
        }

    def draws(self) -> Iterator[tuple[int, int]]:
        """Draw what is left; to be called once, after the questions above.

        Yields:
            (position, frame), where frame is the frame number in the episode.
        """
        code_bits = self._code_bits
        mask = (1 << code_bits) - 1
        while self._num_left > 0:
            codes = self._pass.take(min(CHUNK_DRAWS, self._num_left))
            self._num_left -= len(codes)
            for code in codes:
                yield code >> code_bits, code & mask


class CoveragePlan:
    """The order in which one worker draws its anchors, as a pure function of the constructor's arguments.

    Episodes are admitted to the pool strictly in `admission_order`: the next one as soon as the pool has
    fewer than `pool_size` episodes and its bytes fit into `byte_budget`. One that does not fit yet is waited
    for, never passed over: a large episode keeps its turn. An episode leaves with its last anchor, and
    admission is tried again before the next draw.
    """

    def __init__(
        self,
        episodes: Sequence[PlanEpisode],
        *,
        pool_size: int,
        byte_budget: int,
        strategy: SamplingStrategy,
        seed: int,
        shuffle: bool = True,
        size_of: Callable[[int], int] | None = None,
    ) -> None:
        """Check the arguments; no draw is computed yet.

        Args:
            episodes: The worker's episodes, at least one. All positions below are positions in this sequence.
            pool_size: Number of episodes that are mixed at a time, at least 1.
            byte_budget: Sum of `size_bytes` in bytes that the pool may hold at a time.
            strategy: "remaining": each draw is uniform over all frames not drawn yet of the residents.
                "round_robin": each round shuffles the residents and takes one random frame of each; an
                episode that is admitted during a round joins the next.
            seed: Order seed; any integer.
            shuffle: False gives the episodes in order and their frames ascending, whatever the strategy.
            size_of: Gives the compressed bytes of the episode at a position, when finding them out costs
                something. It is then asked when the episode's turn comes, in the order of admission, and
                `size_bytes` of the episodes is not used.

        Raises:
            ShardingError: There is no episode.
            OptionError: A number or the strategy is outside its range.
            ByteBudgetError: An episode is larger than the whole budget.
        """
        self._episodes = tuple(episodes)
        self._pool_size = pool_size
        self._byte_budget = byte_budget
        self._strategy = strategy
        self._seed = seed
        self._shuffle = shuffle
        self._size_of = self._stated_size if size_of is None else size_of
        self._check_arguments(sizes_stated=size_of is None)
        self._num_anchors = sum(episode.num_anchors for episode in self._episodes)
        last_frame = max(episode.first_anchor + episode.num_anchors - 1 for episode in self._episodes)
        self._code_bits = last_frame.bit_length()

    @property
    def episodes(self) -> Sequence[PlanEpisode]:
        """The worker's episodes."""
        return self._episodes

    @property
    def num_anchors(self) -> int:
        """Number of draws of one epoch."""
        return self._num_anchors

    def admission_order(self, epoch: int) -> list[int]:
        """Give the order in which the episodes enter the pool.

        Args:
            epoch: Coverage epoch, from 0.

        Returns:
            All positions; a random permutation that depends on the seed and the epoch, or 0, 1, 2, ...
            without shuffle.

        Raises:
            OptionError: `epoch` is negative.
        """
        _check_epoch(epoch)
        order = list(range(len(self._episodes)))
        if self._shuffle:
            shuffle_in_place(order, epoch_random("admission", self._seed, epoch))
        return order

    def epoch_draws(self, epoch: int, start: int = 0) -> Iterator[tuple[int, int]]:
        """Iterate over the draws of one epoch.

        Args:
            epoch: Coverage epoch, from 0.
            start: Number of draws to leave out at the beginning. That is a fast pass over them.

        Returns:
            An iterator of (position, frame), where frame is the frame number in the episode.

        Raises:
            OptionError: `epoch` is negative, or `start` is not from 0 to `num_anchors`.
        """
        _check_epoch(epoch)
        self._check_draw_number("start", start)
        return self._iterate_epoch(epoch, start)

    def draws(self, epoch: int = 0, offset: int = 0, *, repeat: bool) -> Iterator[tuple[int, int, int]]:
        """Iterate over draws, epoch after epoch.

        Args:
            epoch: Coverage epoch to begin with, from 0.
            offset: Number of draws to leave out, counted from the beginning of `epoch`. With `repeat` it may
                reach over any number of epochs, and whole epochs cost nothing.
            repeat: True: endless. False: only `epoch` itself.

        Returns:
            An iterator of (epoch, position, frame), where frame is the frame number in the episode.

        Raises:
            OptionError: `epoch` or `offset` is negative, or `offset` is above `num_anchors` without `repeat`.
        """
        _check_epoch(epoch)
        if not repeat:
            self._check_draw_number("offset", offset)
        elif offset < 0:
            raise OptionError(f"offset is {offset}; it must be at least 0.")
        return self._iterate(epoch, offset, repeat=repeat)

    def open_epoch(self, epoch: int, start: int = 0) -> OpenEpoch:
        """Go to a place in an epoch, from where it can be told what is left and what is drawn next.

        Args:
            epoch: Coverage epoch, from 0.
            start: Number of draws already done in this epoch. They cost one fast pass, here and now.

        Returns:
            The epoch, opened at that place.

        Raises:
            OptionError: `epoch` is negative, or `start` is not from 0 to `num_anchors`.
        """
        _check_epoch(epoch)
        self._check_draw_number("start", start)
        epoch_pass = self._open_pass(epoch)
        epoch_pass.skip(start)
        return OpenEpoch(epoch_pass, self._num_anchors - start, self._code_bits)

    def _iterate(self, epoch: int, offset: int, *, repeat: bool) -> Iterator[tuple[int, int, int]]:
        if not repeat:
            for position, frame in self._iterate_epoch(epoch, offset):
                yield epoch, position, frame
            return
        whole_epochs, start = divmod(offset, self._num_anchors)
        epoch += whole_epochs
        while True:
            for position, frame in self._iterate_epoch(epoch, start):
                yield epoch, position, frame
            epoch += 1
            start = 0

    def _iterate_epoch(self, epoch: int, start: int) -> Iterator[tuple[int, int]]:
        yield from self.open_epoch(epoch, start).draws()

    def _open_pass(self, epoch: int) -> EpochPass:
        if not self._shuffle:
            return ChronologicalPass(self._episodes, self._code_bits)
        admission = AdmissionQueue(
            self._size_of,
            self.admission_order(epoch),
            pool_size=self._pool_size,
            byte_budget=self._byte_budget,
        )
        pass_type = RemainingPass if self._strategy == "remaining" else RoundRobinPass
        return pass_type(self._episodes, self._code_bits, admission, epoch_random("draws", self._seed, epoch))

    def _stated_size(self, position: int) -> int:
        return self._episodes[position].size_bytes

    def _check_arguments(self, *, sizes_stated: bool) -> None:
        if not self._episodes:
            raise ShardingError(
                "A coverage plan got no episode; every worker needs at least one. Use fewer workers."
            )
        if self._pool_size < 1:
            raise OptionError(f"pool_size is {self._pool_size}; it must be at least 1.")
        if self._strategy not in get_args(SamplingStrategy):
            allowed = " or ".join(repr(name) for name in get_args(SamplingStrategy))
            raise OptionError(f"strategy is {self._strategy!r}; it must be {allowed}.")
        for position, episode in enumerate(self._episodes):
            if episode.first_anchor < 0 or episode.num_anchors < 1 or episode.size_bytes < 0:
                raise OptionError(
                    f"The episode at position {position} of the plan is {episode}; first_anchor and "
                    f"size_bytes must be at least 0 and num_anchors at least 1. Leave out episodes without "
                    f"anchors."
                )
            if sizes_stated:
                check_size(position, episode.size_bytes, self._byte_budget)

    def _check_draw_number(self, name: str, value: int) -> None:
        if not 0 <= value <= self._num_anchors:
            raise OptionError(
                f"{name} is {value}; it must be from 0 to {self._num_anchors}, the number of draws per epoch."
            )


def _check_epoch(epoch: int) -> None:
    """Raise OptionError for a negative epoch."""
    if epoch < 0:
        raise OptionError(f"epoch is {epoch}; it must be at least 0.")
