"""A dataset's orders: a rank's part of the job's plan under some settings, after some history."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from lerobot_streaming.plan import JobOrder, Position, Segment, replay

if TYPE_CHECKING:
    from collections.abc import Callable

    from lerobot_streaming.plan import AnchorSelection, EpisodeSizes, OrderSettings, RankOrder, Rests
    from lerobot_streaming.state import State

_logger = logging.getLogger(__name__)

type History = tuple[Segment, ...]

type SizesWith = Callable[[tuple[str, ...] | None], EpisodeSizes]
"""Gives the episodes' sizes with some cameras; None: with all of the dataset."""


class Orders:
    """Computes orders when they are asked for, and keeps the last ones.

    What a history leaves can take many seconds to compute for a large job. A copy for a DataLoader worker
    takes the rank's part along, which is small, and not what all ranks have left.

    Args:
        anchors: The frames that are drawn.
        size_of: Gives the compressed bytes of the episode at a position of the selection.
    """

    def __init__(self, anchors: AnchorSelection, size_of: EpisodeSizes | Callable[[int], int]) -> None:
        """Computes nothing yet."""
        self.anchors = anchors
        self._size_of = size_of
        self._other_sizes: dict[tuple[str, ...] | None, EpisodeSizes] = {}
        self._rests: tuple[History, Rests] | None = None
        self._rank: tuple[tuple[OrderSettings, History, int], RankOrder] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out what all ranks have left."""
        return {**self.__dict__, "_rests": None}

    def expect(self, state: State, own: tuple[str, ...] | None, sizes_with: SizesWith) -> None:
        """Finds the sizes of the episodes for every other selection of cameras that a state has had.

        Args:
            state: The state.
            own: The cameras that are streamed now; None: all of the dataset.
            sizes_with: Gives the sizes with some cameras.
        """
        shapes = [segment.settings for segment in state.history]
        if state.settings is not None:
            shapes.append(state.settings)
        for cameras in {settings.cameras for settings in shapes} - {own, *self._other_sizes}:
            self._other_sizes[cameras] = sizes_with(cameras)

    def rests(self, history: History) -> Rests:
        """Says what a history leaves.

        Args:
            history: The shapes that the job has had, oldest first.

        Returns:
            The rests.
        """
        if self._rests is None or self._rests[0] != history:
            self._rests = history, replay(self.anchors, self._size_of, history, other_sizes=self._other_sizes)
        return self._rests[1]

    def rank(self, settings: OrderSettings, history: History, rank: int) -> RankOrder:
        """Gives a rank's part of the job's order.

        Args:
            settings: The settings.
            history: The shapes that the job had before.
            rank: Training process.

        Returns:
            Its part.

        Raises:
            ShardingError: There are fewer episodes than ranks.
        """
        key = (settings, history, rank)
        if self._rank is None or self._rank[0] != key:
            job = JobOrder(self.anchors, self._size_of, settings, self.rests(history))
            self._rank = key, job.rank(rank)
        return self._rank[1]

    def start(
        self, state: State, now: OrderSettings, batch_size: int | None, *, tell: bool
    ) -> tuple[Position, History]:
        """Says where a state begins under some settings, and after which history.

        Args:
            state: The state.
            now: The settings.
            batch_size: Batch size of the coming DataLoader, when it is known.
            tell: Whether to warn when the rest of an epoch is dealt anew.

        Returns:
            The state's own position and history when the settings are the same, or nothing was drawn with
            others; else the beginning of what they left, with one more shape in the history.
        """
        position = state.position
        differences = [] if state.settings is None else state.settings.differences(now)
        if None not in (batch_size, position.batch_size) and batch_size != position.batch_size:
            differences.append(f"batch_size: {position.batch_size} then, {batch_size} now")
        if not differences or not position.offset:
            return position, state.history
        before = now if state.settings is None else state.settings
        earlier, passed = state.history, self.rests(state.history)
        if earlier and position.epoch >= passed.next_epoch:
            # Nothing that they left is of concern any more; how many they were shapes the order.
            history: History = (Segment(before, position, passed.generation),)
        else:
            history = (*earlier, Segment(before, position))
        rests = self.rests(history)
        if tell:
            last = max(rests.first_epoch, rests.next_epoch - 1)
            _logger.warning(
                "The state was taken with other settings (%s): what is left of %s is dealt anew, each "
                "remaining frame once, and the epochs after it follow the present settings.",
                "; ".join(differences),
                f"epoch {last}" if last == rests.first_epoch else f"epochs {rests.first_epoch} to {last}",
            )
        return Position(rests.first_epoch), history
