"""Deal whole episodes to ranks and workers, and a rank's byte budget to its workers."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from lerobot_streaming.errors import ByteBudgetError, OptionError, ShardingError
from lerobot_streaming.plan.units import format_gib

if TYPE_CHECKING:
    from collections.abc import Sequence


def shard_episodes(frame_counts: Sequence[int], num_shards: int) -> list[list[int]]:
    """Deal episodes to shards so that the shards hold about equally many frames.

    The longest episodes are dealt first (equal ones in the order of their positions), each to the shard with
    the fewest frames so far (the lowest-numbered one of several). No two shards then differ by more than the
    longest episode.

    Args:
        frame_counts: Frames of each episode, at least 1 each; positions in this sequence are what is dealt.
        num_shards: Number of shards, at least 1 and at most the number of episodes.

    Returns:
        For each shard the positions it got, ascending; never empty. Together the shards hold each position
        once.

    Raises:
        ShardingError: `num_shards` is below 1, or greater than the number of episodes.
    """
    counts = [int(count) for count in frame_counts]
    if num_shards < 1:
        raise ShardingError(
            f"Episodes cannot be dealt to {num_shards} shards; the number must be at least 1."
        )
    if num_shards > len(counts):
        raise ShardingError(
            f"{len(counts)} episode(s) cannot be dealt to {num_shards} shards: every shard needs at least "
            f"one whole episode. Lower the number of shards to at most {len(counts)}, or select more "
            f"episodes."
        )
    return deal_episodes(counts, num_shards)


def deal_episodes(frame_counts: Sequence[int], num_shards: int) -> list[list[int]]:
    """Deal episodes to shards as `shard_episodes` does, but let shards go empty where episodes are too few.

    Args:
        frame_counts: Frames of each episode, at least 1 each.
        num_shards: Number of shards, at least 1.

    Returns:
        For each shard the positions it got, ascending.
    """
    shards: list[list[int]] = [[] for _ in range(num_shards)]
    # (frames so far, shard): tuples compare by load first, then by shard number, which is the tie rule.
    loads = [(0, shard) for shard in range(num_shards)]
    # `sorted` is stable, so equal counts stay in the order of their positions.
    for position in sorted(range(len(frame_counts)), key=lambda index: -frame_counts[index]):
        load, shard = loads[0]
        shards[shard].append(position)
        heapq.heapreplace(loads, (load + frame_counts[position], shard))
    for members in shards:
        members.sort()
    return shards


def shards_for_worker(
    frame_counts: Sequence[int], *, rank: int, world_size: int, worker: int, num_workers: int
) -> list[int]:
    """Find the episodes of one worker: the rank's share first, then the same rule over the rank's workers.

    Args:
        frame_counts: Frames of each selected episode, at least 1 each.
        rank: Training process, from 0 to `world_size` - 1.
        world_size: Number of training processes, at least 1.
        worker: DataLoader worker of the rank, from 0 to `num_workers` - 1.
        num_workers: DataLoader workers of each rank; 0 (no worker processes) counts as 1.

    Returns:
        The positions of the worker's episodes in `frame_counts`, ascending; never empty.

    Raises:
        ShardingError: There are more ranks than episodes, or more workers than episodes of this rank.
        OptionError: `rank`, `world_size`, `worker` or `num_workers` is outside its range.
    """
    workers = max(1, num_workers)
    _check_place("rank", rank, "world_size", world_size)
    if num_workers < 0:
        raise OptionError(f"num_workers is {num_workers}; it must be at least 0.")
    _check_place("worker", worker, "num_workers (counted as at least 1)", workers)
    num_episodes = len(frame_counts)
    if world_size > num_episodes:
        raise ShardingError(
            f"{num_episodes} episode(s) cannot be dealt to {world_size} ranks: every rank needs at least "
            f"one whole episode. Lower the number of training processes (world size, --num_processes of "
            f"accelerate, --nproc-per-node of torchrun) to at most {num_episodes}, or select more episodes."
        )
    rank_shares = shard_episodes(frame_counts, world_size)
    share = rank_shares[rank]
    if workers > len(share):
        # The advice must hold for every rank: lowering to this rank's own number could fail on the next one.
        limit = min(len(members) for members in rank_shares)
        raise ShardingError(
            f"Rank {rank} of {world_size} has {len(share)} of the {num_episodes} episode(s), too few "
            f"for {workers} workers: every worker needs at least one whole episode. Lower "
            f"--num_workers (DataLoader num_workers) to at most {limit}, which is what the rank with the "
            f"fewest episodes has, or select more episodes."
        )
    by_worker = shard_episodes([frame_counts[position] for position in share], workers)
    return [share[index] for index in by_worker[worker]]


def worker_budgets(largest_bytes: Sequence[int], rank_budget_bytes: int) -> list[int]:
    """Split a rank's byte budget over its workers, evenly but for workers with a very large episode.

    A worker whose largest episode is above the even share gets exactly that episode's size; the others share
    what is left evenly (rounded down to a byte).

    Args:
        largest_bytes: Size in bytes of the largest episode of each worker.
        rank_budget_bytes: Byte budget of the rank.

    Returns:
        The budget of each worker in bytes, at least its largest episode; their sum is at most the rank's
        budget.

    Raises:
        ByteBudgetError: The largest episodes of all workers do not fit into the budget together.
    """
    needed = sum(largest_bytes)
    if needed > rank_budget_bytes:
        sizes = ", ".join(f"worker {worker}: {format_gib(size)}" for worker, size in enumerate(largest_bytes))
        # Fewer workers help only while every single episode fits.
        way_out = ", or lower the number of workers" if max(largest_bytes) <= rank_budget_bytes else ""
        raise ByteBudgetError(
            f"byte_budget_gb is {format_gib(rank_budget_bytes)} for this rank, but each of its "
            f"{len(largest_bytes)} worker(s) must be able to hold its largest episode (GiB: {sizes}), "
            f"together {format_gib(needed)} GiB. Raise byte_budget_gb to at least "
            f"{format_gib(needed)}{way_out}."
        )
    budgets = [0] * len(largest_bytes)
    left_bytes = rank_budget_bytes
    neediest_first = sorted(range(len(largest_bytes)), key=lambda worker: -largest_bytes[worker])
    for served, worker in enumerate(neediest_first):
        even_share = left_bytes // (len(largest_bytes) - served)
        if largest_bytes[worker] <= even_share:
            for other in neediest_first[served:]:
                budgets[other] = even_share
            break
        budgets[worker] = largest_bytes[worker]
        left_bytes -= largest_bytes[worker]
    return budgets


def _check_place(name: str, value: int, total_name: str, total: int) -> None:
    """Raise OptionError unless 0 <= value < total."""
    if total < 1:
        raise OptionError(f"{total_name} is {total}; it must be at least 1.")
    if not 0 <= value < total:
        raise OptionError(f"{name} is {value}; with {total_name} {total} it must be from 0 to {total - 1}.")
