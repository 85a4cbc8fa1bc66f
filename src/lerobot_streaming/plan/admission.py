"""Which episodes are in the pool: strictly first in, bounded by a count and by bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class PlanEpisode:
    """What the plan must know of an episode.

    Attributes:
        first_anchor: Frame number in the episode of the first anchor, from 0.
        num_anchors: Number of anchors, at least 1; they are the frames `first_anchor` (inclusive) to
            `first_anchor + num_anchors` (exclusive).
        size_bytes: Compressed bytes that the episode holds while it is in the pool, at least 0.
    """

    first_anchor: int
    num_anchors: int
    size_bytes: int


class AdmissionQueue:
    """Admits the episodes of one epoch into the pool in their order, and counts what the pool holds.

    When the next episode does not fit, admission waits for it rather than taking a smaller one from further
    behind. That keeps a large episode from being pushed to the end of the epoch by a stream of small ones.
    """

    def __init__(
        self, episodes: Sequence[PlanEpisode], order: list[int], *, pool_size: int, byte_budget: int
    ) -> None:
        """Start with an empty pool.

        Args:
            episodes: All episodes; none may be larger than `byte_budget`, or admission would never get past
                it.
            order: Positions in `episodes` in the order of admission.
            pool_size: Number of episodes that the pool holds at most.
            byte_budget: Sum of `size_bytes` that the pool holds at most.
        """
        self._episodes = episodes
        self._order = order
        self._pool_size = pool_size
        self._byte_budget = byte_budget
        self._num_admitted = 0
        self._num_residents = 0
        self._resident_bytes = 0

    def admit(self) -> list[int]:
        """Admit the next episodes in order, up to the first that does not fit.

        Returns:
            The positions that were admitted now, in order; empty when none fits or none is left.
        """
        begin = self._num_admitted
        while self._num_admitted < len(self._order) and self._num_residents < self._pool_size:
            size_bytes = self._episodes[self._order[self._num_admitted]].size_bytes
            if self._resident_bytes + size_bytes > self._byte_budget:
                break
            self._resident_bytes += size_bytes
            self._num_residents += 1
            self._num_admitted += 1
        return self._order[begin : self._num_admitted]

    def leave(self, position: int) -> None:
        """Take a resident out of the pool and free its bytes.

        Args:
            position: The episode that leaves.
        """
        self._num_residents -= 1
        self._resident_bytes -= self._episodes[position].size_bytes

    def waiting(self) -> list[int]:
        """List the episodes that have not been admitted yet.

        Returns:
            Their positions, in the order of admission.
        """
        return self._order[self._num_admitted :]
