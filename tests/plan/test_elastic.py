"""Changes of a job's shape: over every epoch each frame exactly once, whatever happens."""

from __future__ import annotations

import pickle
import random
from collections import Counter
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lerobot_streaming.errors import ByteBudgetError, OptionError, ShardingError
from lerobot_streaming.plan import (
    AnchorSelection,
    JobOrder,
    OrderSettings,
    Position,
    RankOrder,
    Rests,
    SamplingStrategy,
    Segment,
    replay,
    select_anchors,
)
from lerobot_streaming.plan.epoch_pass import RemainingPass
from tests.plan.shapes import make_settings

if TYPE_CHECKING:
    from collections.abc import Callable

type Draw = tuple[int, int, int]


def size_one(_: int) -> int:
    return 1


def take(rank: RankOrder, position: Position, batches: int, batch_size: int) -> list[Draw]:
    """What a DataLoader in front of a rank's workers gives from a position on, batch by batch."""
    done, first = rank.draws_done(position.epoch, position.offset, position.batch_size)
    streams = []
    for worker, count in enumerate(done):
        draws, _ = rank.worker(worker).begin(position.epoch, count, repeat=rank.settings.repeat)
        streams.append(draws)
    taken: list[Draw] = []
    turns = [(first + turn) % len(streams) for turn in range(len(streams))]
    while batches and turns:
        worker = turns.pop(0)
        batch = list(islice(streams[worker], batch_size))
        taken += batch
        if batch:
            batches -= 1
            turns.append(worker)
    return taken


@st.composite
def jobs(
    draw: st.DrawFn,
) -> tuple[AnchorSelection, Callable[[int], int], list[tuple[OrderSettings, int, int]]]:
    """Uneven episodes, and several shapes with the batches that each rank takes under them."""
    lengths = draw(st.lists(st.integers(1, 12), min_size=1, max_size=9))
    anchors = select_anchors(lengths, draw(st.integers(0, 1)) if min(lengths) > 1 else 0, 0)
    sizes = draw(st.lists(st.integers(0, 20), min_size=len(lengths), max_size=len(lengths)))
    repeat = draw(st.booleans())
    shapes = []
    for _ in range(draw(st.integers(1, 4))):
        workers = draw(st.integers(0, 4))
        shape = OrderSettings(
            world_size=draw(st.integers(1, min(4, len(anchors.counts)))),
            num_workers=workers,
            pool_size=draw(st.none() | st.integers(1, 5)),
            rank_pool=draw(st.integers(1, 6)),
            # Enough for the largest episodes of all workers of a rank, and sometimes hardly more.
            byte_budget=max(1, max(workers, 1) * max(sizes)) + draw(st.integers(0, 60)),
            strategy=draw(st.sampled_from(get_args(SamplingStrategy))),
            seed=draw(st.integers(-3, 3)),
            shuffle=draw(st.booleans()),
            repeat=repeat,
        )
        shapes.append((shape, draw(st.integers(1, 4)), draw(st.integers(0, 12))))
    return anchors, sizes.__getitem__, shapes


@settings(max_examples=300)
@given(jobs())
def test_every_frame_exactly_once_per_epoch_over_changes_of_shape(job: Any) -> None:
    anchors, size_of, shapes = job
    everything = {
        (position, anchors.first + frame)
        for position, count in zip(anchors.positions, anchors.counts, strict=True)
        for frame in range(count)
    }
    drawn: Counter[Draw] = Counter()
    history: list[Segment] = []
    for shape, batch_size, batches in shapes:
        rests = replay(anchors, size_of, history)
        order = JobOrder(anchors, size_of, shape, rests)
        start = Position(rests.first_epoch)
        for rank in range(shape.world_size):
            drawn.update(take(pickle.loads(pickle.dumps(order.rank(rank))), start, batches, batch_size))
        history.append(Segment(shape, Position(start.epoch, batches * batch_size, batch_size)))
    assert all(count == 1 for count in drawn.values())

    # What is left is exactly what has not been drawn of the epochs that were begun.
    rests = replay(anchors, size_of, [Segment.from_dict(segment.to_dict()) for segment in history])
    left = {
        (epoch, anchors.positions[number], frame)
        for epoch, rest in rests.epochs.items()
        for number, frames in rest.items()
        for frame in (
            range(anchors.first, anchors.first + anchors.counts[number]) if frames is None else frames
        )
    }
    begun = range(rests.next_epoch)
    assert left | drawn.keys() == {(epoch, *frame) for epoch in begun for frame in everything}
    assert not left & drawn.keys()

    # And the next shape draws it, before or while it goes on with its own plan.
    final = shapes[0][0]
    order = JobOrder(anchors, size_of, final, rests)
    for rank in range(final.world_size):
        part = order.rank(rank)
        for worker in range(len(part.shares)):
            one = part.worker(worker)
            for epoch in range(rests.first_epoch, rests.next_epoch + 1):
                draws, _ = one.begin(epoch, 0, repeat=False)
                drawn.update(draws)
    expected = {(epoch, *frame) for epoch in range(rests.next_epoch + 1) for frame in everything}
    assert drawn == Counter(expected)


@settings(max_examples=100)
@given(jobs(), st.data())
def test_a_position_within_a_shape_continues_it_exactly(job: Any, data: st.DataObject) -> None:
    anchors, size_of, shapes = job
    (shape, batch_size, batches), *earlier = shapes
    history = [Segment(one, Position(0, size * count, size)) for one, size, count in earlier[:1]]
    rests = replay(anchors, size_of, history)
    order = JobOrder(anchors, size_of, shape, rests)
    stop = data.draw(st.integers(0, batches))
    start = Position(rests.first_epoch)
    for rank in range(shape.world_size):
        whole = take(order.rank(rank), start, batches, batch_size)
        begun = take(order.rank(rank), start, stop, batch_size)
        position = Position(start.epoch, stop * batch_size, batch_size)
        assert begun + take(order.rank(rank), position, batches - stop, batch_size) == whole


@settings(max_examples=100)
@given(jobs(), st.integers(0, 40))
def test_the_admissions_are_those_of_the_draws(job: Any, offset: int) -> None:
    anchors, size_of, shapes = job
    history = [Segment(one, Position(0, size * count, size)) for one, size, count in shapes[:2]]
    rests = replay(anchors, size_of, history)
    part = JobOrder(anchors, size_of, shapes[0][0], rests).rank(0)
    for worker in range(len(part.shares)):
        one = part.worker(worker)
        draws, admissions = one.begin(rests.first_epoch, offset, repeat=True)
        some = list(islice(draws, 60))
        last = some[-1][0]
        complete = Counter((epoch, position) for epoch, position, _ in some if epoch < last)
        granted: Counter[tuple[int, int]] = Counter()
        epoch, seen = some[0][0], set[int]()
        for position, count in islice(admissions, len(set(complete))):
            granted[epoch, position] += count
            seen.add(position)
            if {place for number, place in complete if number == epoch} == seen:
                epoch, seen = min((number for number, _ in complete if number > epoch), default=-1), set()
        assert granted == complete
        assert set(one.positions) >= {position for _, position, _ in some}


def test_ranks_that_ran_ahead_wait_for_the_others_epoch_by_epoch() -> None:
    # One rank holds 4 frames and the other one 40: the short one goes through many epochs.
    anchors = select_anchors([40, 4], 0, 0)
    shape = make_settings(num_workers=0)
    rests = JobOrder(anchors, size_one, shape).rests_after(0, 10, 1)
    assert rests.next_epoch == 3
    assert {
        epoch: {n: None if f is None else len(f) for n, f in left.items()}
        for epoch, left in rests.epochs.items()
    } == {
        0: {0: 30},
        1: {0: None},
        2: {0: None, 1: 2},
    }
    lone = JobOrder(anchors, size_one, make_settings(world_size=1, num_workers=0), rests).rank(0).worker(0)
    draws, _ = lone.begin(0, 0, repeat=True)
    some = list(islice(draws, 30 + 40 + 42 + 44))
    assert [epoch for epoch, _, _ in some] == [0] * 30 + [1] * 40 + [2] * 42 + [3] * 44


def test_fewer_rests_than_workers_leave_some_to_go_straight_on() -> None:
    anchors = select_anchors([10] * 8, 0, 0)
    rests = Rests({3: {5: [1, 2, 3]}}, next_epoch=4, generation=1)
    part = JobOrder(anchors, size_one, make_settings(num_workers=4), rests).rank(1)
    firsts = [next(part.worker(worker).begin(3, 0, repeat=True)[0])[0] for worker in range(4)]
    assert firsts == [4, 4, 4, 4]
    assert part.draws_per_pass(3) == [None] * 4
    finite = JobOrder(anchors, size_one, make_settings(num_workers=4, repeat=False), rests)
    assert finite.rank(1).draws_per_pass(3) == [0, 0, 0, 0]
    assert finite.rank(0).draws_per_pass(3) == [3, 0, 0, 0]
    assert list(finite.rank(1).worker(0).begin(3, 0, repeat=False)[0]) == []
    assert list(finite.rank(1).worker(0).begin(3, 0, repeat=False)[1]) == []


def test_the_next_epoch_is_the_new_settings_own_plan() -> None:
    anchors = select_anchors([7, 5, 9, 4, 12], 0, 0)
    rests = JobOrder(anchors, size_one, make_settings()).rests_after(0, 6, 2)
    new = make_settings(world_size=1, num_workers=2, strategy="round_robin")
    elastic, fresh = (JobOrder(anchors, size_one, new, one).rank(0) for one in (rests, None))
    for worker in range(2):
        later = [list(one.worker(worker).begin(1, 0, repeat=False)[0]) for one in (elastic, fresh)]
        assert later[0] == later[1]


def test_the_rest_is_balanced_and_mixed() -> None:
    anchors = select_anchors([50] * 40, 0, 0)
    rests = JobOrder(anchors, size_one, make_settings(pool_size=10)).rests_after(0, 250, 1)
    order = JobOrder(anchors, size_one, make_settings(world_size=3, num_workers=2, repeat=False), rests)
    loads = [sum(n or 0 for n in order.rank(rank).draws_per_pass(0)) for rank in range(3)]
    assert sum(loads) == 2000 - 500
    assert max(loads) - min(loads) <= 50


@pytest.mark.parametrize("large", [60, 90])
def test_a_rest_that_does_not_fit_the_budget_says_what_to_raise(large: int) -> None:
    # The plan of the new shape has both large episodes in one worker; the rest puts them into two.
    anchors = select_anchors([10, 10, 30, 30], 0, 0)
    sizes = [large, large, 5, 5]
    shape = make_settings(world_size=1, num_workers=2, byte_budget=200, pool_size=1)
    rests = Rests({0: {0: None, 1: None}}, 1, 1)
    part = JobOrder(anchors, sizes.__getitem__, shape, rests).rank(0)
    assert part.worker(0).byte_budget == 100
    tight = make_settings(world_size=1, num_workers=2, byte_budget=large + 20, pool_size=1)
    with pytest.raises(ByteBudgetError, match="byte_budget_gb"):
        JobOrder(anchors, sizes.__getitem__, tight, rests).rank(0).worker(0)


def test_more_ranks_than_episodes_are_refused() -> None:
    with pytest.raises(ShardingError, match=r"2 episode.*3 ranks"):
        JobOrder(select_anchors([3, 4], 0, 0), size_one, make_settings(world_size=3))


def test_whole_epochs_and_rests_are_skipped_by_arithmetic() -> None:
    anchors = select_anchors([7, 5, 9, 4, 12], 0, 0)
    rests = Rests({2: {0: [3, 4]}, 5: {1: None}}, 6, 1)
    one = JobOrder(anchors, size_one, make_settings(world_size=1, num_workers=1), rests).rank(0).worker(0)
    # 2 of epoch 2, whole epochs 3 and 4, 5 of epoch 5, then whole ones of 37.
    lengths = [2, 37, 37, 5, 37]
    flat = [(2 + index, frame) for index, length in enumerate(lengths) for frame in range(length)]
    assert [one.locate(2, offset) for offset in range(len(flat))] == flat
    assert one.locate(2, 81 + 37 * 10**9 + 3) == (6 + 10**9, 3)
    with pytest.raises(OptionError, match="at least 0"):
        one.locate(0, -1)


def test_a_random_long_history() -> None:
    dice = random.Random(3)
    anchors = select_anchors([dice.randrange(1, 30) for _ in range(25)], 0, 0)
    history: list[Segment] = []
    drawn: Counter[Draw] = Counter()
    for _ in range(12):
        rests = replay(anchors, size_one, history)
        shape = make_settings(
            world_size=dice.randrange(1, 6), num_workers=dice.randrange(0, 5), seed=dice.randrange(9)
        )
        batches, batch_size = dice.randrange(0, 20), dice.randrange(1, 8)
        order = JobOrder(anchors, size_one, shape, rests)
        for rank in range(shape.world_size):
            drawn.update(take(order.rank(rank), Position(rests.first_epoch), batches, batch_size))
        history.append(Segment(shape, Position(rests.first_epoch, batches * batch_size, batch_size)))
    assert max(drawn.values()) == 1
    complete = replay(anchors, size_one, history).first_epoch
    assert complete > 2
    assert sum(epoch < complete for epoch, _, _ in drawn) == complete * sum(anchors.counts)


def test_a_far_offset_costs_one_pass_over_one_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    computed = 0
    original = RemainingPass.take

    def counted(self: RemainingPass, count: int) -> list[int]:
        nonlocal computed
        computed += count
        return original(self, count)

    anchors = select_anchors([100] * 300, 0, 0)
    expected = next(
        JobOrder(anchors, size_one, make_settings(world_size=1, num_workers=1))
        .rank(0)
        .worker(0)
        .begin(3333, 10_000, repeat=False)[0]
    )
    monkeypatch.setattr(RemainingPass, "take", counted)
    order = JobOrder(anchors, size_one, make_settings(world_size=1, num_workers=1)).rank(0).worker(0)
    draws, admissions = order.begin(0, 30_000 * 3333 + 10_000, repeat=True)
    assert computed == 10_000
    assert next(draws) == expected
    # Only what is left of the epoch is admitted, and then the next epoch.
    counts = [count for _, count in islice(admissions, 300)]
    assert 20_000 in accumulate(counts)
