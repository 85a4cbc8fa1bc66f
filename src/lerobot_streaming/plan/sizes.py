"""What the plan must know of episodes' sizes, asked for as late and as seldom as possible."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class EpisodeSizes:
    """Exact sizes that may cost something to find out, and bounds that cost nothing.

    Where a bound settles a question the exact size is not asked for: an index that is made bit by bit would
    have to be complete. Both give the same plan.

    Args:
        exact: Gives the compressed bytes of the episode at a position.
        bound: Gives bytes that they do not exceed; None: the exact ones.
        load: Is told of all positions whose exact sizes are about to be asked for.
    """

    def __init__(
        self,
        exact: Callable[[int], int],
        *,
        bound: Callable[[int], int] | None = None,
        load: Callable[[Sequence[int]], None] | None = None,
    ) -> None:
        """Ask nothing yet."""
        self._exact = exact
        self._bound = exact if bound is None else bound
        self._load = load

    @classmethod
    def of(cls, sizes: EpisodeSizes | Callable[[int], int]) -> EpisodeSizes:
        """Take sizes, or a function that gives exact ones at no cost.

        Args:
            sizes: Either.

        Returns:
            The sizes.
        """
        return sizes if isinstance(sizes, EpisodeSizes) else cls(sizes)

    def exact(self, position: int) -> int:
        """Give an episode's compressed bytes.

        Args:
            position: Its position in the selection.

        Returns:
            Bytes.
        """
        return int(self._exact(position))

    def largest(self, groups: Sequence[Sequence[int]]) -> list[int]:
        """Find the largest episode of each group.

        Args:
            groups: Groups of positions; some may be empty.

        Returns:
            Its bytes; 0 for an empty group.
        """
        if self._load is not None:
            self._load([position for group in groups for position in group])
        return [max(map(self.exact, group), default=0) for group in groups]

    def fit_alone(self, positions: Sequence[int], budget: int) -> bool:
        """Tell whether the bounds show that each of some episodes fits a budget.

        Args:
            positions: Their positions.
            budget: Bytes.

        Returns:
            False when only exact sizes can tell.
        """
        return all(self._bound(position) <= budget for position in positions)

    def fit_together(self, positions: Sequence[int], count: int, budget: int) -> bool:
        """Tell whether the bounds show that any of some episodes fit a budget together.

        Args:
            positions: Their positions.
            count: How many may come together.
            budget: Bytes.

        Returns:
            False when only exact sizes can tell.
        """
        return sum(sorted(map(self._bound, positions))[-count:]) <= budget
