from __future__ import annotations

from typing import get_args

import pytest

from lerobot_streaming.plan import SamplingStrategy
from tests.benchmarks.mixing import measure, shuffled, streamed, table, uneven_lengths
from tests.benchmarks.resume import far_offset, other_shape


def test_the_measures_of_known_batches() -> None:
    lengths = [64, 64]
    got = measure([[(0, 0), (0, 1), (0, 2), (0, 3)], [(0, 0), (1, 0), (1, 4), (0, 8)], [(1, 7)]], lengths, 4)
    # 128 frames in 64 bins: frames 0 to 3 fall into two bins, the second batch's into four.
    assert got.episodes_per_batch == 1.5
    assert got.entropy_bits == pytest.approx((1 + 2) / 2)
    assert got.episodes_in_tail == 1


@pytest.mark.parametrize("strategy", get_args(SamplingStrategy))
@pytest.mark.parametrize("num_workers", [1, 2])
def test_the_end_of_an_epoch_is_not_one_episode(strategy: SamplingStrategy, num_workers: int) -> None:
    """Forty episodes, a pool of eight, batches of 32: it can be avoided, so it is."""
    lengths = uneven_lengths(40)
    batches = streamed(lengths, 32, pool_size=8, num_workers=num_workers, strategy=strategy)
    got = measure(batches, lengths, 32)
    assert got.episodes_in_tail > 1
    assert got.episodes_per_batch > 0.6 * 8 / num_workers
    assert sum(map(len, batches)) == sum(lengths)


def test_a_pool_of_all_episodes_mixes_like_a_global_shuffle() -> None:
    lengths = uneven_lengths(20)
    best = measure(shuffled(lengths, 32), lengths, 32)
    got = measure(streamed(lengths, 32, pool_size=20, num_workers=1, strategy="remaining"), lengths, 32)
    assert got.episodes_per_batch == pytest.approx(best.episodes_per_batch, rel=0.05)
    assert got.entropy_bits == pytest.approx(best.entropy_bits, rel=0.05)


def test_the_table_has_a_line_for_each_case() -> None:
    assert len(table(uneven_lengths(10), 8, [2, 4], [1, 2])) == 3 + 2 * 2 * 2


def test_the_measures_of_a_resume_run() -> None:
    assert far_offset(3000, 10**8) > 0
    assert other_shape(episodes=40, ranks=4, workers=2, done=0.5) > 0
