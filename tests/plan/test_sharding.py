"""Episodes to ranks and workers, bytes to workers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lerobot_streaming.errors import ByteBudgetError, OptionError, ShardingError
from lerobot_streaming.plan import shard_episodes, shards_for_worker, worker_budgets
from lerobot_streaming.plan.units import format_gib

FRAME_COUNTS = st.lists(st.integers(1, 500), min_size=1, max_size=40)


def test_the_longest_episodes_are_dealt_first_and_ties_go_by_number() -> None:
    # 9 -> 0, 5 (position 0) -> 1, 5 (position 3) -> 2, 4 -> 1 (load 5, tie with 2), 1 -> 2.
    assert shard_episodes([5, 1, 9, 5, 4], 3) == [[2], [0, 4], [1, 3]]
    assert shard_episodes([2, 2, 2, 2], 2) == [[0, 2], [1, 3]]


@given(FRAME_COUNTS, st.data())
def test_shards_are_disjoint_complete_and_balanced(frame_counts: list[int], data: st.DataObject) -> None:
    num_shards = data.draw(st.integers(1, len(frame_counts)))
    shards = shard_episodes(frame_counts, num_shards)
    assert len(shards) == num_shards
    assert all(shards)
    assert all(shard == sorted(shard) for shard in shards)
    assert sorted(position for shard in shards for position in shard) == list(range(len(frame_counts)))
    loads = [sum(frame_counts[position] for position in shard) for shard in shards]
    assert max(loads) - min(loads) <= max(frame_counts)
    assert shards == shard_episodes(frame_counts, num_shards)


@given(FRAME_COUNTS, st.data())
def test_dealing_follows_the_written_rule(frame_counts: list[int], data: st.DataObject) -> None:
    num_shards = data.draw(st.integers(1, len(frame_counts)))
    expected: list[list[int]] = [[] for _ in range(num_shards)]
    loads = [0] * num_shards
    for position in sorted(range(len(frame_counts)), key=lambda index: (-frame_counts[index], index)):
        shard = loads.index(min(loads))
        loads[shard] += frame_counts[position]
        expected[shard].append(position)
    assert shard_episodes(frame_counts, num_shards) == [sorted(shard) for shard in expected]


def test_unsigned_numpy_counts_are_sorted_like_integers() -> None:
    counts = np.array([1, 3, 2], dtype=np.uint64)
    assert shard_episodes(counts.tolist(), 2) == shard_episodes(list(counts), 2) == [[1], [0, 2]]


@given(FRAME_COUNTS, st.data())
def test_ranks_and_workers_together_hold_every_episode_once(
    frame_counts: list[int], data: st.DataObject
) -> None:
    world_size = data.draw(st.integers(1, len(frame_counts)))
    rank_shares = shard_episodes(frame_counts, world_size)
    num_workers = data.draw(st.integers(0, min(len(share) for share in rank_shares)))
    seen: list[int] = []
    for rank, share in enumerate(rank_shares):
        of_rank: list[int] = []
        for worker in range(max(1, num_workers)):
            positions = shards_for_worker(
                frame_counts, rank=rank, world_size=world_size, worker=worker, num_workers=num_workers
            )
            assert positions == sorted(positions)
            assert positions
            of_rank += positions
        assert sorted(of_rank) == share
        seen += of_rank
    assert sorted(seen) == list(range(len(frame_counts)))


def test_no_worker_processes_means_one_worker() -> None:
    alone = shards_for_worker([3, 4, 5], rank=0, world_size=1, worker=0, num_workers=0)
    assert alone == shards_for_worker([3, 4, 5], rank=0, world_size=1, worker=0, num_workers=1) == [0, 1, 2]


@pytest.mark.parametrize("num_shards", [0, -1, 3])
def test_impossible_shard_numbers_are_refused(num_shards: int) -> None:
    with pytest.raises(ShardingError, match=rf"{num_shards} shards.* at (least 1|most 2)"):
        shard_episodes([5, 5], num_shards)


def test_more_ranks_than_episodes_says_what_to_lower() -> None:
    with pytest.raises(ShardingError, match=r"2 episode\(s\) cannot be dealt to 4 ranks.*to at most 2"):
        shards_for_worker([5, 5], rank=0, world_size=4, worker=0, num_workers=1)


def test_more_workers_than_episodes_names_a_number_that_works_on_every_rank() -> None:
    # Rank 0 gets the long episode alone, rank 1 the other four.
    counts = [100, 1, 1, 1, 1]
    with pytest.raises(
        ShardingError, match=r"Rank 1 of 2 has 4 of the 5 .* for 5 workers.*--num_workers .* at most 1,"
    ):
        shards_for_worker(counts, rank=1, world_size=2, worker=0, num_workers=5)
    assert shards_for_worker(counts, rank=1, world_size=2, worker=3, num_workers=4) == [4]


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ({"rank": 2}, r"rank is 2; with world_size 2 it must be from 0 to 1"),
        ({"rank": -1}, r"rank is -1"),
        ({"world_size": 0}, r"world_size is 0; it must be at least 1"),
        ({"worker": 1}, r"worker is 1; .* from 0 to 0"),
        ({"num_workers": -1}, r"num_workers is -1; it must be at least 0"),
    ],
)
def test_places_outside_the_job_are_refused(place: dict[str, int], message: str) -> None:
    arguments = {"rank": 0, "world_size": 2, "worker": 0, "num_workers": 1} | place
    with pytest.raises(OptionError, match=message):
        shards_for_worker([1, 2, 3, 4], **arguments)


@pytest.mark.parametrize(
    ("largest", "budget", "expected"),
    [
        ([1, 1], 10, [5, 5]),
        ([1, 1, 1], 10, [3, 3, 3]),
        ([7, 1], 10, [7, 3]),
        ([1, 9, 5], 15, [1, 9, 5]),
        ([1, 8, 5, 1], 17, [2, 8, 5, 2]),
        ([0], 4, [4]),
        ([], 4, []),
    ],
)
def test_budgets_are_even_but_for_the_workers_that_need_more(
    largest: list[int], budget: int, expected: list[int]
) -> None:
    assert worker_budgets(largest, budget) == expected


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=12), st.integers(0, 3000))
def test_budgets_hold_the_largest_episode_and_fill_the_rank_budget(largest: list[int], slack: int) -> None:
    budget = sum(largest) + slack
    budgets = worker_budgets(largest, budget)
    assert budget - len(largest) < sum(budgets) <= budget
    assert all(share >= need for share, need in zip(budgets, largest, strict=True))
    # Whoever has more than the smallest share has it only because its episode needs it.
    assert all(share in (min(budgets), need) for share, need in zip(budgets, largest, strict=True))


def test_a_rank_budget_below_the_largest_episodes_names_the_sizes() -> None:
    gib = 1024**3
    with pytest.raises(ByteBudgetError) as caught:
        worker_budgets([gib + 1, gib], 2 * gib)
    message = str(caught.value)
    assert "byte_budget_gb is 2 " in message
    assert "worker 0: 1.000000001, worker 1: 1)" in message
    assert "at least 2.000000001, or lower the number of workers" in message
    with pytest.raises(ByteBudgetError) as caught:
        worker_budgets([3 * gib], 2 * gib)
    assert "lower the number of workers" not in str(caught.value)


@given(st.integers(0, 2**44))
def test_a_size_in_gib_converts_back_to_no_fewer_bytes(size_bytes: int) -> None:
    assert size_bytes <= int(float(format_gib(size_bytes)) * 1024**3) <= size_bytes + 1
