"""Random plans, and a plain model of the pool to hold their draws against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

from hypothesis import strategies as st

from lerobot_streaming.plan import CoveragePlan, PlanEpisode, SamplingStrategy

if TYPE_CHECKING:
    from collections.abc import Sequence

EPISODES = st.lists(
    st.builds(PlanEpisode, st.integers(0, 9), st.integers(1, 12), st.integers(0, 20)), min_size=1, max_size=10
)


@dataclass(frozen=True, slots=True)
class PlanCase:
    """The arguments of one plan."""

    episodes: list[PlanEpisode]
    pool_size: int
    byte_budget: int
    strategy: SamplingStrategy
    seed: int
    shuffle: bool

    def build(self) -> CoveragePlan:
        return CoveragePlan(
            self.episodes,
            pool_size=self.pool_size,
            byte_budget=self.byte_budget,
            strategy=self.strategy,
            seed=self.seed,
            shuffle=self.shuffle,
        )


@st.composite
def plan_cases(
    draw: st.DrawFn, *, strategy: SamplingStrategy | None = None, shuffle: bool | None = None
) -> PlanCase:
    """Any valid plan with few frames, from budgets that hold only the largest episode up to roomy ones."""
    episodes = draw(EPISODES)
    largest = max(episode.size_bytes for episode in episodes)
    return PlanCase(
        episodes=episodes,
        pool_size=draw(st.integers(1, 12)),
        byte_budget=largest + draw(st.integers(0, 60)),
        strategy=draw(st.sampled_from(get_args(SamplingStrategy))) if strategy is None else strategy,
        seed=draw(st.integers(-(2**65), 2**65)),
        shuffle=draw(st.booleans()) if shuffle is None else shuffle,
    )


@dataclass(frozen=True, slots=True)
class PoolStep:
    """One draw, and who was in the pool when it was made."""

    residents: list[int]
    drawn: int


def play_pool(
    case: PlanCase, admission_order: Sequence[int], draws: Sequence[tuple[int, int]]
) -> list[PoolStep]:
    """Follow the written admission rule, independently of the code under test, along a sequence of draws."""
    left = [episode.num_anchors for episode in case.episodes]
    waiting = list(admission_order)
    residents: list[int] = []
    steps: list[PoolStep] = []
    for position, _ in draws:
        while waiting:
            held = sum(case.episodes[resident].size_bytes for resident in residents)
            fits = held + case.episodes[waiting[0]].size_bytes <= case.byte_budget
            if len(residents) >= case.pool_size or not fits:
                break
            residents.append(waiting.pop(0))
        steps.append(PoolStep(list(residents), position))
        left[position] -= 1
        if left[position] == 0 and position in residents:
            residents.remove(position)
    return steps
