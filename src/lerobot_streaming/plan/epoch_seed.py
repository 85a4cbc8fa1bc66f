"""Random numbers that depend on (seed, epoch) and nothing else.

`random.Random` serves here rather than NumPy's generators because Python promises that `Random(int).random()`
gives the same numbers in every version; only that method is used, and the shuffle on top of it is our own.
The integer comes from SHA-256, never from `hash()`, which differs from process to process.
"""

from __future__ import annotations

import hashlib
from random import Random


def sample_seed(seed: int, epoch: int, frame_index: int) -> int:
    """Mix a seed for everything random that happens to one sample, such as its image transforms.

    Args:
        seed: Order seed of the run; any integer.
        epoch: Coverage epoch, from 0.
        frame_index: Global index of the anchor in the dataset (the `index` column).

    Returns:
        An integer from 0 to 2**63 - 1, which `torch.manual_seed` accepts, the same in every process, on every
        machine and in every Python version.
    """
    return _mix("sample", seed, epoch, frame_index) >> 193


def derived_seed(purpose: str, seed: int, number: int) -> int:
    """Make an order seed that is independent of the seed it comes from.

    Args:
        purpose: A name; different purposes get independent seeds.
        seed: Order seed of the run; any integer.
        number: Tells several seeds for one purpose apart.

    Returns:
        An order seed.
    """
    return _mix(purpose, seed, number)


def epoch_random(purpose: str, seed: int, epoch: int) -> Random:
    """Open the stream of random numbers that one purpose has in one epoch.

    Args:
        purpose: A name; different purposes get independent streams, so using more numbers for one never
            shifts another.
        seed: Order seed of the run; any integer.
        epoch: Coverage epoch, from 0.

    Returns:
        A generator of which only `random()` may be used: that is the method with a stable sequence.
    """
    return Random(_mix(purpose, seed, epoch))  # noqa: S311 - an order, not a secret


def shuffle_in_place(items: list[int], rng: Random) -> None:
    """Shuffle a list uniformly, with exactly `max(0, len(items) - 1)` numbers from the stream.

    Written out (Fisher-Yates) because `Random.shuffle` may change between Python versions.

    Args:
        items: The list to reorder.
        rng: Stream to take the numbers from.
    """
    random = rng.random
    for last in range(len(items) - 1, 0, -1):
        # random() < 1 - 2**-53, so the product never rounds up to last + 1.
        other = int(random() * (last + 1))
        items[last], items[other] = items[other], items[last]


def _mix(purpose: str, *numbers: int) -> int:
    """Hash a purpose and integers of any size to 256 bits."""
    text = ":".join([purpose, *(str(int(number)) for number in numbers)])
    return int.from_bytes(hashlib.sha256(text.encode("ascii")).digest(), "big")
