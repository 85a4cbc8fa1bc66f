"""Which episodes are in the pool: strictly first in, bounded by a count and by bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lerobot_streaming.errors import ByteBudgetError
from lerobot_streaming.plan.units import format_gib

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True, slots=True)
class PlanEpisode:
    """What the plan must know of an episode.

    Attributes:
        first_anchor: Frame number in the episode of the first anchor, from 0.
        num_anchors: Number of anchors, at least 1; they are the frames `first_anchor` (inclusive) to
            `first_anchor + num_anchors` (exclusive).
        size_bytes: Compressed bytes that the episode holds while it is in the pool, at least 0. Unused by a
            plan that looks sizes up.
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
        self,
        size_of: Callable[[int], int],
        order: Sequence[int],
        *,
        pool_size: int,
        byte_budget: int,
    ) -> None:
        """Start with an empty pool.

        Args:
            size_of: Gives the compressed bytes of the episode at a position. It is asked once per episode,
                when nothing but this size decides whether the episode is admitted, since finding it out may
                mean to index a file.
            order: Positions in the order of admission.
            pool_size: Number of episodes that the pool holds at most.
            byte_budget: Sum of bytes that the pool holds at most.
        """
        self._size_of = size_of
        self._sizes: dict[int, int] = {}
        self._order = order
        self._pool_size = pool_size
        self._byte_budget = byte_budget
        self._num_admitted = 0
        self._num_residents = 0
        self._resident_bytes = 0

    def admit(self) -> Sequence[int]:
        """Admit the next episodes in order, up to the first that does not fit.

        Returns:
            The positions that were admitted now, in order; empty when none fits or none is left.

        Raises:
            ByteBudgetError: An episode is larger than the whole budget, so that admission would never get
                past it.
        """
        begin = self._num_admitted
        while self._num_admitted < len(self._order) and self._num_residents < self._pool_size:
            position = self._order[self._num_admitted]
            size_bytes = self._sizes.get(position)
            if size_bytes is None:
                size_bytes = self._sizes[position] = self._size_of(position)
                check_size(position, size_bytes, self._byte_budget)
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
        self._resident_bytes -= self._sizes.pop(position)

    def waiting(self) -> Sequence[int]:
        """List the episodes that have not been admitted yet.

        Returns:
            Their positions, in the order of admission.
        """
        return self._order[self._num_admitted :]


def check_size(position: int, size_bytes: int, byte_budget: int) -> None:
    """Refuse an episode that can never be admitted.

    Args:
        position: Its position in the plan, for the message.
        size_bytes: Its compressed bytes.
        byte_budget: Bytes that the pool holds at most.

    Raises:
        ByteBudgetError: The episode is larger than the whole budget.
    """
    if size_bytes > byte_budget:
        raise ByteBudgetError(
            f"The episode at position {position} of the plan has {size_bytes} bytes "
            f"({format_gib(size_bytes)} GiB), more than the whole byte budget of {byte_budget} bytes "
            f"({format_gib(byte_budget)} GiB). Raise byte_budget_gb."
        )
