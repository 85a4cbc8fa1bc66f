from __future__ import annotations

import argparse
from typing import Any

import pytest
from torch.utils.data import DataLoader, Dataset

from tests.benchmarks.measuring import (
    GAUGES,
    Contender,
    Run,
    endless,
    error_line,
    interleave,
    median,
    run_once,
    spent,
    take,
)
from tests.benchmarks.scaling import summary

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")
OPTIONS = argparse.Namespace(rounds=2, seconds=0.0, warmup=0.0)


def _totals(samples: int, decoded: int, *, cached: int) -> dict[str, float]:
    totals: dict[str, float] = dict.fromkeys(("bytes_fetched", "requests", "decode_s", *GAUGES), 0)
    totals |= {"samples": samples, "frames_decoded": decoded, "bytes_fetched": 10 * samples}
    return totals | {"requests": samples / 2, "frame_cache_bytes": cached, "decodes_per_sample": 99.0}


def test_counters_count_the_timed_part_alone() -> None:
    found = spent(_totals(100, 900, cached=5), _totals(300, 1400, cached=7), cameras=2)
    assert found["samples"] == 200
    assert found["decodes_per_sample"] == pytest.approx(500 / 200 / 2)
    assert found["bytes_per_sample"] == 10
    assert found["requests_per_sample"] == 0.5
    assert (found["frame_cache_bytes_before"], found["frame_cache_bytes"]) == (5, 7)


class _Indices(Dataset[dict[str, Any]]):
    """Ten samples that are their own index."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"index": index}


class _Failing(_Indices):
    def __getitem__(self, index: int) -> dict[str, Any]:
        raise LookupError(f"no frame {index}\nand more")


def test_a_run_takes_what_the_steady_state_needs_and_ends_its_workers() -> None:
    from tests.benchmarks.measuring import worker_pids

    contender = Contender(
        name="x", make=lambda: DataLoader(_Indices(), batch_size=4, num_workers=1), steady_samples=17
    )
    run = run_once(contender, argparse.Namespace(seconds=0.01, warmup=0.0), cameras=1)
    # Passes of 4, 4 and 2 samples: one and a half of them are 18.
    assert run.warmup_samples == 18
    assert run.samples >= 1
    assert len(run.worker_pss_mib) == 1
    assert run.timed is None
    assert worker_pids() == []


def test_taking_counts_samples_and_passes_follow_one_another() -> None:
    batches = endless(DataLoader(_Indices(), batch_size=4))
    assert take(batches, 0, 11)[0] == 14
    with pytest.raises(RuntimeError, match="no batch"):
        next(endless(DataLoader(_Indices(), batch_size=11, drop_last=True)))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_error_is_told_in_one_line(num_workers: int) -> None:
    with pytest.raises(LookupError) as caught:
        next(iter(DataLoader(_Failing(), num_workers=num_workers)))
    assert error_line(caught.value) == "LookupError: no frame 0"
    assert error_line(ValueError()) == "ValueError"


def test_lerobots_class_may_fail_and_is_left_out_then() -> None:
    def loader(dataset: _Indices) -> DataLoader[Any]:
        return DataLoader(dataset, batch_size=2)

    mine = Contender(name="mine", make=lambda: loader(_Indices()))
    failing = Contender(name="lerobot streaming", make=lambda: loader(_Failing()))
    contenders = [failing, mine]
    assert interleave(contenders, OPTIONS, 1) == [
        "lerobot streaming failed in round 1: LookupError: no frame 0"
    ]
    assert contenders == [mine]
    assert len(mine.runs) == 2
    failing.name = "another"
    with pytest.raises(LookupError):
        interleave([failing], OPTIONS, 1)


def _run(speed: float) -> Run:
    zeros: dict[str, Any] = dict.fromkeys(
        ("first_batch_s", "samples", "warmup_samples", "steady_samples", "seconds", "cores_used"), 0
    )
    return Run(samples_per_second=speed, worker_pss_mib=[], **zeros)


def test_threads_are_compared_by_medians() -> None:
    runs = {1: [_run(10), _run(30), _run(11)], 2: [_run(20), _run(2), _run(33)]}
    assert median(runs[1], "samples_per_second") == 11
    assert summary(runs)["2"]["against_one"] == pytest.approx(20 / 11)
    assert summary(runs)["1"]["against_one"] == 1
