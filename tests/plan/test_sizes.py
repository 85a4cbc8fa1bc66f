"""Sizes that are asked for only where they matter."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from lerobot_streaming.plan import EpisodeSizes, JobOrder, OrderSettings, select_anchors
from lerobot_streaming.plan.units import format_gib

SETTINGS = OrderSettings(
    world_size=2,
    num_workers=2,
    pool_size=2,
    rank_pool=32,
    byte_budget=200,
    strategy="remaining",
    seed=1,
    shuffle=True,
    repeat=False,
)


@given(
    st.lists(st.tuples(st.integers(1, 8), st.integers(1, 40), st.integers(0, 60)), min_size=4, max_size=12),
    st.integers(1, 4),
    st.integers(100, 900),
)
def test_bounds_change_nothing(episodes: list[tuple[int, int, int]], pool: int, budget: int) -> None:
    anchors = select_anchors([frames for frames, _, _ in episodes], 0, 0)
    settings = replace(SETTINGS, pool_size=pool, byte_budget=budget)

    def bound(position: int) -> int:
        return episodes[position][1] + episodes[position][2]

    def exact(position: int) -> int:
        return episodes[position][1]

    for rank in range(2):
        for worker in range(len(JobOrder(anchors, exact, settings).rank(rank).shares)):
            draws = [
                list(
                    JobOrder(anchors, sizes, settings).rank(rank).worker(worker).begin(0, 0, repeat=False)[0]
                )
                for sizes in (EpisodeSizes(exact, bound=bound), EpisodeSizes(exact))
            ]
            assert draws[0] == draws[1]
            assert draws[0]


def test_no_exact_size_is_asked_for_where_bounds_suffice() -> None:
    anchors = select_anchors([5] * 12, 0, 0)
    asked: list[int] = []
    told: list[int] = []

    def exact(position: int) -> int:
        asked.append(position)
        return 10

    sizes = EpisodeSizes(exact, bound=lambda _: 50, load=told.extend)
    order = JobOrder(anchors, sizes, SETTINGS).rank(0).worker(1)
    assert len(list(order.begin(0, 0, repeat=False)[0])) == 15
    assert (asked, told) == ([], []), f"2 of 50 fit each worker's {format_gib(100)} GiB"
    # Two of them may not fit any more: the plan asks when their turn comes, but the budgets need no size.
    tight = JobOrder(anchors, sizes, replace(SETTINGS, pool_size=3)).rank(0).worker(1)
    draws, _ = tight.begin(0, 0, repeat=False)
    assert set(asked) == set(tight.admissions(0, 0, repeat=False))
    assert told == []
    assert len(list(draws)) == 15
    # An episode may be larger than a worker's even share: only exact sizes tell, and all of them are needed.
    asked.clear()
    JobOrder(anchors, sizes, replace(SETTINGS, byte_budget=90)).rank(0).worker(1)
    assert len(told) == 6
    assert sorted(asked) == sorted(told)
