"""Random numbers by (seed, epoch)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from lerobot_streaming.plan import sample_seed
from lerobot_streaming.plan.epoch_seed import epoch_random, shuffle_in_place


@given(st.integers(), st.integers(0, 2**40), st.integers(0, 2**40))
def test_sample_seeds_fit_torch_and_repeat(seed: int, epoch: int, frame_index: int) -> None:
    value = sample_seed(seed, epoch, frame_index)
    assert 0 <= value < 2**63
    assert value == sample_seed(seed, epoch, frame_index)


def test_sample_seeds_never_change() -> None:
    assert sample_seed(42, 0, 0) == 8377877386941149784
    assert sample_seed(42, 1, 7) == 968336344154118873


def test_sample_seeds_differ() -> None:
    values = {
        sample_seed(seed, epoch, frame)
        for seed in (-1, 1, 11)
        for epoch in (0, 1, 11)
        for frame in range(200)
    }
    assert len(values) == 3 * 3 * 200


def test_numbers_do_not_depend_on_the_process() -> None:
    program = (
        "from lerobot_streaming.plan.epoch_seed import epoch_random, sample_seed\n"
        "print(sample_seed(42, 0, 0), epoch_random('draws', 42, 3).random())"
    )
    here = f"{sample_seed(42, 0, 0)} {epoch_random('draws', 42, 3).random()}"
    environment = os.environ | {"PYTHONHASHSEED": "12345"}
    printed = subprocess.run(
        [sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True
    ).stdout
    assert printed.strip() == here


def test_streams_of_different_purposes_differ() -> None:
    assert epoch_random("admission", 1, 2).random() != epoch_random("draws", 1, 2).random()


def test_every_permutation_is_about_equally_likely() -> None:
    rng = epoch_random("test", 0, 0)
    counts: Counter[tuple[int, ...]] = Counter()
    for _ in range(24 * 200):
        items = [0, 1, 2, 3]
        shuffle_in_place(items, rng)
        counts[tuple(items)] += 1
    assert set(counts) == set(permutations(range(4)))
    # 200 expected; the standard deviation is 14. The stream is fixed, so this cannot fail by chance.
    assert all(130 < count < 270 for count in counts.values())
