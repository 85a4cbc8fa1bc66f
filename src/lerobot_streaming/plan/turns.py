"""The turn order in which a PyTorch DataLoader takes batches from its workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lerobot_streaming.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence


def deal_batches(batches_taken: int, limits: Sequence[int | None]) -> tuple[list[int], int]:
    """Say how many batches each worker has given, and whose turn is next.

    An in-order DataLoader takes one batch from worker 0, 1, 2, ... and starts over, leaving out the workers
    that have none left. The cost depends on the number of workers, not on the number of batches.

    Args:
        batches_taken: Batches taken so far from all workers together, at least 0. What exceeds the sum of the
            limits cannot have been taken and is ignored.
        limits: For each worker the number of batches it can give at most, or None when it is endless.

    Returns:
        The number of batches that each worker has given, and the worker that gives the next batch (0 when no
        worker has any left).

    Raises:
        OptionError: There is no worker, or a number is negative.
    """
    if not limits:
        raise OptionError("limits has no worker; give one entry for each worker (one for num_workers=0).")
    if batches_taken < 0:
        raise OptionError(f"batches_taken is {batches_taken}; it must be at least 0.")
    for worker, limit in enumerate(limits):
        if limit is not None and limit < 0:
            raise OptionError(
                f"limits[{worker}] is {limit}; it must be at least 0, or None for an endless worker."
            )

    given = [0] * len(limits)
    left = batches_taken
    rounds_done = 0
    active = list(range(len(limits)))
    # Each pass plays full rounds until the next worker runs dry (none at all for a worker that never had a
    # batch), so there are at most as many passes as workers, and one more.
    while active:
        finite = [limit for worker in active if (limit := limits[worker]) is not None]
        full_rounds = left // len(active)
        until_dry = min(finite) - rounds_done if finite else None
        if until_dry is None or full_rounds < until_dry:
            rounds_done += full_rounds
            left -= full_rounds * len(active)
            # A begun round: the first `left` active workers have already given in it.
            for turn, worker in enumerate(active):
                given[worker] = rounds_done + (1 if turn < left else 0)
            return given, active[left]
        rounds_done += until_dry
        left -= until_dry * len(active)
        for worker in active:
            given[worker] = rounds_done
        active = [worker for worker in active if limits[worker] != rounds_done]
    return given, 0
