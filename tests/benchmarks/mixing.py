"""Measure how well an epoch is mixed, for pool sizes and worker counts, against a global shuffle.

Pure arithmetic: the plan says what is drawn, and no dataset is needed. Run as
`python -m tests.benchmarks.mixing`.

For each batch, as a DataLoader makes it (each from one worker): how many distinct episodes it has, and how
evenly its frames are spread over the data set, as the entropy in bits of their positions in 64 equal bins.
"""

from __future__ import annotations

import argparse
import math
import random
from collections import Counter
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, get_args

from lerobot_streaming.plan import JobOrder, OrderSettings, SamplingStrategy, select_anchors

if TYPE_CHECKING:
    from collections.abc import Sequence

BINS = 64


@dataclass(frozen=True, slots=True)
class Mixing:
    """What was measured over one epoch.

    Attributes:
        episodes_per_batch: Mean number of distinct episodes in a full batch.
        entropy_bits: Mean entropy of the positions of a full batch's frames, in bits.
        episodes_in_tail: Distinct episodes in the last 5 % of the epoch.
    """

    episodes_per_batch: float
    entropy_bits: float
    episodes_in_tail: int


def measure(batches: Sequence[Sequence[tuple[int, int]]], lengths: Sequence[int], batch_size: int) -> Mixing:
    """Measure an epoch.

    Args:
        batches: The batches; each has (episode, frame) of its samples.
        lengths: Frames of each episode.
        batch_size: Samples of a full batch; short ones are left out of the means.

    Returns:
        The measures.
    """
    starts = [0, *accumulate(lengths)]
    total = starts[-1]
    full = [batch for batch in batches if len(batch) == batch_size]
    flat = [episode for batch in batches for episode, _ in batch]
    entropies = [
        _entropy([(starts[episode] + frame) * BINS // total for episode, frame in batch]) for batch in full
    ]
    return Mixing(
        sum(len({episode for episode, _ in batch}) for batch in full) / len(full),
        sum(entropies) / len(full),
        len(set(flat[-max(1, len(flat) // 20) :])),
    )


def streamed(
    lengths: Sequence[int], batch_size: int, *, pool_size: int, num_workers: int, strategy: SamplingStrategy
) -> list[list[tuple[int, int]]]:
    """Give the batches of one epoch of one rank, in the order in which a DataLoader gives them.

    Args:
        lengths: Frames of each episode.
        batch_size: Samples per batch.
        pool_size: Episodes that the rank mixes, shared out over its workers.
        num_workers: DataLoader workers.
        strategy: How frames are drawn from the pool.

    Returns:
        Batches of (episode, frame).
    """
    settings = OrderSettings(
        world_size=1,
        num_workers=num_workers,
        pool_size=None,
        rank_pool=pool_size,
        byte_budget=len(lengths),
        strategy=strategy,
        seed=42,
        shuffle=True,
        repeat=False,
    )
    part = JobOrder(select_anchors(lengths, 0, 0), lambda _: 1, settings).rank(0)
    by_worker = []
    for worker in range(len(part.shares)):
        draws, _ = part.worker(worker).begin(0, 0, repeat=False)
        sequence = [(position, frame) for _, position, frame in draws]
        by_worker.append([sequence[i : i + batch_size] for i in range(0, len(sequence), batch_size)])
    rounds = max(map(len, by_worker))
    return [batches[turn] for turn in range(rounds) for batches in by_worker if turn < len(batches)]


def shuffled(lengths: Sequence[int], batch_size: int) -> list[list[tuple[int, int]]]:
    """Give the batches of one epoch of a global shuffle.

    Args:
        lengths: Frames of each episode.
        batch_size: Samples per batch.

    Returns:
        Batches of (episode, frame).
    """
    frames = [(episode, frame) for episode, length in enumerate(lengths) for frame in range(length)]
    random.Random(42).shuffle(frames)
    return [frames[i : i + batch_size] for i in range(0, len(frames), batch_size)]


def table(lengths: Sequence[int], batch_size: int, pools: Sequence[int], workers: Sequence[int]) -> list[str]:
    """Make the table of README.md.

    Args:
        lengths: Frames of each episode.
        batch_size: Samples per batch.
        pools: Episodes that a rank mixes.
        workers: DataLoader workers.

    Returns:
        Its lines.
    """
    best = measure(shuffled(lengths, batch_size), lengths, batch_size)
    lines = [
        "| strategy | rank's pool | workers | episodes per batch | entropy, bits | episodes in last 5 % |",
        "|---|---|---|---|---|---|",
        _line("global shuffle | |", best),
    ]
    for strategy in get_args(SamplingStrategy):
        for pool_size in pools:
            for num_workers in workers:
                batches = streamed(
                    lengths, batch_size, pool_size=pool_size, num_workers=num_workers, strategy=strategy
                )
                got = measure(batches, lengths, batch_size)
                lines.append(_line(f"`{strategy}` | {pool_size} | {num_workers}", got))
    return lines


def uneven_lengths(episodes: int) -> list[int]:
    """Make uneven episodes.

    Args:
        episodes: How many.

    Returns:
        Frames of each, from 150 to 450.
    """
    dice = random.Random(7)
    return [dice.randint(150, 450) for _ in range(episodes)]


def _line(case: str, got: Mixing) -> str:
    return f"| {case} | {got.episodes_per_batch:.1f} | {got.entropy_bits:.2f} | {got.episodes_in_tail} |"


def _entropy(bins: Sequence[int]) -> float:
    shares = [count / len(bins) for count in Counter(bins).values()]
    return -sum(share * math.log2(share) for share in shares)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--episodes", type=int, default=200, help="number of episodes (default: 200)")
    parser.add_argument("--batch-size", type=int, default=32, help="samples per batch (default: 32)")
    parser.add_argument(
        "--pools", type=int, nargs="+", default=[8, 32, 128], help="episodes mixed by the rank"
    )
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4], help="DataLoader workers")
    arguments = parser.parse_args()
    lengths = uneven_lengths(arguments.episodes)
    for line in table(lengths, arguments.batch_size, arguments.pools, arguments.workers):
        print(line)


if __name__ == "__main__":
    main()
