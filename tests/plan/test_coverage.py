"""The draws of a worker: coverage, order, skipping."""

from __future__ import annotations

import pickle
from collections import Counter
from itertools import islice, permutations
from typing import TYPE_CHECKING, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lerobot_streaming.errors import ByteBudgetError, OptionError, ShardingError
from lerobot_streaming.plan import CoveragePlan, PlanEpisode, SamplingStrategy
from lerobot_streaming.plan.epoch_pass import CHUNK_DRAWS
from tests.plan.pools import PlanCase, plan_cases, play_pool

if TYPE_CHECKING:
    from collections.abc import Sequence

STRATEGIES: tuple[SamplingStrategy, ...] = get_args(SamplingStrategy)
TINY = [PlanEpisode(2, 3, 5), PlanEpisode(0, 2, 9), PlanEpisode(1, 4, 1)]


def make_plan(
    episodes: Sequence[PlanEpisode],
    *,
    pool_size: int = 2,
    byte_budget: int = 10,
    strategy: SamplingStrategy = "remaining",
    seed: int = 42,
    shuffle: bool = True,
) -> CoveragePlan:
    return CoveragePlan(
        episodes,
        pool_size=pool_size,
        byte_budget=byte_budget,
        strategy=strategy,
        seed=seed,
        shuffle=shuffle,
    )


def all_anchors(episodes: Sequence[PlanEpisode]) -> list[tuple[int, int]]:
    return [
        (position, episode.first_anchor + index)
        for position, episode in enumerate(episodes)
        for index in range(episode.num_anchors)
    ]


@pytest.mark.parametrize(
    ("strategy", "epoch", "expected"),
    [
        ("remaining", 0, [(2, 3), (1, 0), (2, 2), (2, 1), (2, 4), (1, 1), (0, 4), (0, 2), (0, 3)]),
        ("remaining", 1, [(0, 2), (2, 2), (2, 3), (0, 4), (2, 4), (2, 1), (0, 3), (1, 1), (1, 0)]),
        ("round_robin", 0, [(2, 1), (1, 1), (2, 4), (1, 0), (0, 2), (2, 3), (0, 4), (2, 2), (0, 3)]),
        ("round_robin", 1, [(0, 4), (2, 4), (2, 1), (0, 2), (0, 3), (2, 2), (1, 0), (2, 3), (1, 1)]),
    ],
)
def test_the_order_never_changes(
    strategy: SamplingStrategy, epoch: int, expected: list[tuple[int, int]]
) -> None:
    # A run that was started with an older release must be able to resume: do not adapt these values.
    plan = make_plan(TINY, strategy=strategy)
    assert plan.admission_order(0) == [1, 2, 0]
    assert plan.admission_order(1) == [0, 2, 1]
    assert list(plan.epoch_draws(epoch)) == expected


@given(plan_cases(), st.integers(0, 3))
def test_every_anchor_is_drawn_exactly_once_per_epoch(case: PlanCase, epoch: int) -> None:
    plan = case.build()
    drawn = list(plan.epoch_draws(epoch))
    assert sorted(drawn) == all_anchors(case.episodes)
    assert plan.num_anchors == len(drawn)
    assert drawn == list(case.build().epoch_draws(epoch))


@given(plan_cases(), st.integers(0, 3))
def test_admission_order_is_a_permutation(case: PlanCase, epoch: int) -> None:
    assert sorted(case.build().admission_order(epoch)) == list(range(len(case.episodes)))


@given(plan_cases(), st.integers(0, 3), st.data())
def test_skipped_draws_leave_the_rest_as_it_was(case: PlanCase, epoch: int, data: st.DataObject) -> None:
    plan = case.build()
    start = data.draw(st.integers(0, plan.num_anchors))
    everything = list(plan.epoch_draws(epoch))
    rest = everything[start:]
    assert list(plan.epoch_draws(epoch, start)) == rest
    assert list(plan.draws(epoch, start, repeat=False)) == [(epoch, *draw) for draw in rest]
    remaining = plan.open_epoch(epoch, start).remaining()
    assert remaining == Counter(position for position, _ in rest)
    # Ascending places in the admission order, that is, the order in which a resume needs them.
    assert list(remaining) == [position for position in plan.admission_order(epoch) if position in remaining]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("shuffle", [True, False])
def test_skipping_works_across_the_internal_chunks(strategy: SamplingStrategy, shuffle: bool) -> None:
    episodes = [PlanEpisode(index, 200 + index, 1) for index in range(12)]
    plan = make_plan(episodes, pool_size=4, strategy=strategy, shuffle=shuffle)
    everything = list(plan.epoch_draws(0))
    assert sorted(everything) == all_anchors(episodes)
    assert plan.num_anchors > 2 * CHUNK_DRAWS
    for start in (1, CHUNK_DRAWS - 1, CHUNK_DRAWS, CHUNK_DRAWS + 1, 2 * CHUNK_DRAWS, plan.num_anchors - 1):
        assert list(plan.epoch_draws(0, start)) == everything[start:]
        assert plan.open_epoch(0, start).remaining() == Counter(
            position for position, _ in everything[start:]
        )


@given(plan_cases(), st.integers(0, 2), st.integers(0, 150), st.integers(0, 150))
def test_repeated_epochs_follow_one_another(case: PlanCase, epoch: int, offset: int, count: int) -> None:
    plan = case.build()
    expected = [
        (later, position, frame)
        for later in range(epoch, epoch + (offset + count) // plan.num_anchors + 1)
        for position, frame in plan.epoch_draws(later)
    ]
    got = list(islice(plan.draws(epoch, offset, repeat=True), count))
    assert got == expected[offset : offset + count]


def test_whole_epochs_are_skipped_by_arithmetic() -> None:
    plan = make_plan(TINY)
    offset = 10**8 + 5
    epoch, start = divmod(offset, 9)
    first = next(plan.draws(2, offset, repeat=True))
    assert first == (2 + epoch, *next(plan.epoch_draws(2 + epoch, start)))


@given(plan_cases(shuffle=True), st.integers(0, 3))
def test_the_pool_stays_within_its_bounds(case: PlanCase, epoch: int) -> None:
    plan = case.build()
    for step in play_pool(case, plan.admission_order(epoch), list(plan.epoch_draws(epoch))):
        assert step.drawn in step.residents
        assert len(step.residents) <= case.pool_size
        assert sum(case.episodes[position].size_bytes for position in step.residents) <= case.byte_budget


@given(plan_cases(shuffle=True, strategy="round_robin"), st.integers(0, 3))
def test_each_round_takes_one_frame_of_every_resident(case: PlanCase, epoch: int) -> None:
    plan = case.build()
    steps = play_pool(case, plan.admission_order(epoch), list(plan.epoch_draws(epoch)))
    begin = 0
    while begin < len(steps):
        at_start = steps[begin].residents
        of_round = [step.drawn for step in steps[begin : begin + len(at_start)]]
        assert sorted(of_round) == sorted(at_start)
        begin += len(at_start)


def test_rounds_differ_within_an_epoch() -> None:
    plan = make_plan([PlanEpisode(0, 1200, 1)] * 3, pool_size=3, strategy="round_robin")
    positions = [position for position, _ in plan.epoch_draws(0)]
    counts = Counter(tuple(positions[begin : begin + 3]) for begin in range(0, len(positions), 3))
    assert set(counts) == set(permutations(range(3)))
    assert all(130 < count < 270 for count in counts.values())


def test_remaining_draws_are_uniform_over_all_frames_of_the_pool() -> None:
    # Four frames of two episodes: all 24 orders must be equally likely, whatever episode a frame belongs to.
    plan = make_plan([PlanEpisode(0, 1, 1), PlanEpisode(0, 3, 1)])
    counts = Counter(tuple(plan.epoch_draws(epoch)) for epoch in range(24 * 200))
    assert set(counts) == set(permutations(all_anchors([PlanEpisode(0, 1, 1), PlanEpisode(0, 3, 1)])))
    # 200 expected; the standard deviation is 14. The seed is fixed, so this cannot fail by chance.
    assert all(130 < count < 270 for count in counts.values())


def test_an_admitted_episode_is_drawn_from_at_once() -> None:
    # Pool of 2, one-frame episodes: the second draw must be able to reach the third episode of the order.
    plan = make_plan([PlanEpisode(0, 1, 1)] * 4)
    reached = {plan.admission_order(epoch).index(list(plan.epoch_draws(epoch))[1][0]) for epoch in range(200)}
    assert reached == {0, 1, 2}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_round_robin_and_remaining_frames_come_in_random_order(strategy: SamplingStrategy) -> None:
    plan = make_plan([PlanEpisode(0, 3, 1)], strategy=strategy)
    counts = Counter(tuple(frame for _, frame in plan.epoch_draws(epoch)) for epoch in range(1200))
    assert set(counts) == set(permutations(range(3)))
    assert all(130 < count < 270 for count in counts.values())


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_large_episode_keeps_its_turn(strategy: SamplingStrategy) -> None:
    # Position 7 fills the whole budget. Small episodes would always fit first; it must not be passed over.
    episodes = [PlanEpisode(0, 5, 100 if position == 7 else 1) for position in range(30)]
    plan = make_plan(episodes, pool_size=8, byte_budget=100, strategy=strategy)
    places = set()
    for epoch in range(20):
        place = plan.admission_order(epoch).index(7)
        positions = [position for position, _ in plan.epoch_draws(epoch)]
        assert positions[5 * place : 5 * place + 5] == [7] * 5
        assert set(positions[: 5 * place]) == set(plan.admission_order(epoch)[:place])
        places.add(place)
    assert len(places) > 5


@given(plan_cases(shuffle=False), st.integers(0, 3))
def test_without_shuffle_frames_come_in_chronological_order(case: PlanCase, epoch: int) -> None:
    plan = case.build()
    assert list(plan.epoch_draws(epoch)) == all_anchors(case.episodes)
    assert plan.admission_order(epoch) == list(range(len(case.episodes)))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_seeds_and_epochs_give_different_orders(strategy: SamplingStrategy) -> None:
    episodes = [PlanEpisode(0, 10, 1)] * 10
    orders = {
        tuple(make_plan(episodes, strategy=strategy, seed=seed).epoch_draws(epoch))
        for seed in (-1, 0, 1, 42)
        for epoch in range(4)
    }
    assert len(orders) == 16
    # With one episode the admission order cannot make the difference: the frames must.
    frame_orders = {
        tuple(make_plan(episodes[:1], strategy=strategy, seed=seed).epoch_draws(epoch))
        for seed in (-1, 0, 1, 42)
        for epoch in range(4)
    }
    assert len(frame_orders) == 16
    admissions = {
        tuple(make_plan(episodes, strategy=strategy, seed=seed).admission_order(epoch))
        for seed in (-1, 0, 1, 42)
        for epoch in range(4)
    }
    assert len(admissions) == 16


def test_a_plan_pickles() -> None:
    plan = make_plan(TINY)
    assert list(pickle.loads(pickle.dumps(plan)).epoch_draws(3)) == list(plan.epoch_draws(3))


def test_an_episode_above_the_budget_is_named() -> None:
    with pytest.raises(ByteBudgetError, match=r"position 1 .* 9 bytes .* 8 bytes .*byte_budget_gb"):
        make_plan(TINY, byte_budget=8)


def test_a_plan_needs_an_episode() -> None:
    with pytest.raises(ShardingError, match="no episode"):
        make_plan([])


@pytest.mark.parametrize(
    "episode", [PlanEpisode(-1, 1, 1), PlanEpisode(0, 0, 1), PlanEpisode(0, 1, -1)], ids=str
)
def test_impossible_episodes_are_refused(episode: PlanEpisode) -> None:
    with pytest.raises(OptionError, match="position 3 of the plan"):
        make_plan([*TINY, episode])


def test_impossible_options_are_refused() -> None:
    with pytest.raises(OptionError, match="pool_size is 0"):
        make_plan(TINY, pool_size=0)
    with pytest.raises(OptionError, match="strategy is 'best'; it must be 'remaining' or 'round_robin'"):
        make_plan(TINY, strategy="best")  # type: ignore[arg-type]


@pytest.mark.parametrize("start", [-1, 10])
def test_draw_numbers_outside_the_epoch_are_refused_at_once(start: int) -> None:
    plan = make_plan(TINY)
    with pytest.raises(OptionError, match=f"start is {start}; it must be from 0 to 9"):
        plan.epoch_draws(0, start)
    with pytest.raises(OptionError, match=f"start is {start}"):
        plan.open_epoch(0, start).remaining()
    with pytest.raises(OptionError, match=f"offset is {start}"):
        plan.draws(0, start, repeat=False)


def test_negative_numbers_are_refused_at_once() -> None:
    plan = make_plan(TINY)
    with pytest.raises(OptionError, match="offset is -1"):
        plan.draws(0, -1, repeat=True)
    with pytest.raises(OptionError, match="epoch is -1"):
        plan.draws(-1, repeat=True)
    with pytest.raises(OptionError, match="epoch is -1"):
        plan.epoch_draws(-1)
    with pytest.raises(OptionError, match="epoch is -1"):
        plan.admission_order(-1)
    with pytest.raises(OptionError, match="epoch is -1"):
        plan.open_epoch(-1, 0).remaining()


@given(plan_cases())
def test_sizes_looked_up_late_give_the_same_plan(case: PlanCase) -> None:
    plan = CoveragePlan(
        [PlanEpisode(episode.first_anchor, episode.num_anchors, 0) for episode in case.episodes],
        pool_size=case.pool_size,
        byte_budget=case.byte_budget,
        strategy=case.strategy,
        seed=case.seed,
        shuffle=case.shuffle,
        size_of=lambda position: case.episodes[position].size_bytes,
    )
    assert list(plan.epoch_draws(1)) == list(case.build().epoch_draws(1))


def test_a_size_is_asked_for_when_the_episodes_turn_comes() -> None:
    asked: list[int] = []

    def size_of(position: int) -> int:
        asked.append(position)
        return 10

    episodes = [PlanEpisode(0, 2000, 0)] * 6
    plan = CoveragePlan(episodes, pool_size=2, byte_budget=100, strategy="remaining", seed=3, size_of=size_of)
    draws = plan.epoch_draws(0)
    next(draws)
    assert asked == plan.admission_order(0)[:2]
    assert len(list(draws)) == 11_999
    assert asked == plan.admission_order(0), "each once, in the order of admission"


def test_a_size_found_late_to_be_above_the_budget_is_an_error() -> None:
    plan = CoveragePlan(
        [PlanEpisode(0, 5, 0)],
        pool_size=1,
        byte_budget=100,
        strategy="remaining",
        seed=0,
        size_of=lambda _: 101,
    )
    with pytest.raises(ByteBudgetError, match="101 bytes"):
        list(plan.epoch_draws(0))
