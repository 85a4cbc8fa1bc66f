"""Measure what a resume costs: a far offset in a large shard, and another shape of a very large job.

Pure arithmetic on one core, no dataset is needed. Run as `python -m tests.benchmarks.resume`.
"""

from __future__ import annotations

import argparse
import random
from time import perf_counter

from lerobot_streaming.plan import JobOrder, OrderSettings, Position, Segment, replay, select_anchors

BATCH_SIZE = 32
EPISODE_BYTES = 4_000_000


def size_of(_: int) -> int:
    """Give every episode the same size.

    Returns:
        Bytes.
    """
    return EPISODE_BYTES


def settings(world_size: int, num_workers: int) -> OrderSettings:
    """Make the default settings of a job.

    Args:
        world_size: Number of ranks.
        num_workers: Workers of each.

    Returns:
        The settings.
    """
    return OrderSettings(
        world_size, num_workers, None, 32, 8 * 1024**3, "remaining", 42, shuffle=True, repeat=True
    )


def far_offset(frames: int, offset: int) -> float:
    """Begin far into an endless pass over one shard.

    Args:
        frames: Frames of the shard.
        offset: Samples that are done.

    Returns:
        Seconds until the first draw is known.
    """
    anchors = select_anchors([300] * (frames // 300), 0, 0)
    begin = perf_counter()
    draws, _ = JobOrder(anchors, size_of, settings(1, 1)).rank(0).worker(0).begin(0, offset, repeat=True)
    next(draws)
    return perf_counter() - begin


def other_shape(episodes: int, ranks: int, workers: int, done: float) -> float:
    """Take over the rest of an epoch of a large job with half as many ranks.

    Args:
        episodes: Episodes of 200 to 400 frames.
        ranks: Ranks of the old job.
        workers: Workers of each rank.
        done: Share of the epoch that is done.

    Returns:
        Seconds until a worker's first draw is known.
    """
    dice = random.Random(0)
    anchors = select_anchors([dice.randrange(200, 401) for _ in range(episodes)], 0, 0)
    batches = int(sum(anchors.counts) * done / ranks / BATCH_SIZE)
    begin = perf_counter()
    segment = Segment(settings(ranks, workers), Position(0, batches * BATCH_SIZE, BATCH_SIZE))
    rests = replay(anchors, size_of, [segment])
    job = JobOrder(anchors, size_of, settings(max(1, ranks // 2), workers), rests)
    draws, _ = job.rank(0).worker(0).begin(rests.first_epoch, 0, repeat=True)
    next(draws)
    return perf_counter() - begin


def main() -> None:
    """Print the times."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--frames", type=int, default=1_000_000, help="frames of the shard")
    parser.add_argument("--offset", type=int, default=100_899_900, help="samples done in it")
    parser.add_argument("--episodes", type=int, default=100_000, help="episodes of the large job")
    parser.add_argument("--ranks", type=int, default=1000, help="its ranks")
    parser.add_argument("--workers", type=int, default=8, help="workers of each")
    arguments = parser.parse_args()
    seconds = far_offset(arguments.frames, arguments.offset)
    print(f"offset {arguments.offset} in a shard of {arguments.frames} frames: {seconds:.2f} s")
    for done in (0.5, 0.95):
        seconds = other_shape(arguments.episodes, arguments.ranks, arguments.workers, done)
        print(
            f"other shape, {arguments.episodes} episodes on {arguments.ranks} ranks, "
            f"{done:.0%} of the epoch done: {seconds:.1f} s"
        )


if __name__ == "__main__":
    main()
