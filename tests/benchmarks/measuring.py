"""One run of one contender: warm-up, timed part, and what its counters say of the timed part alone."""

from __future__ import annotations

import gc
import multiprocessing
import os
import statistics
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lerobot_streaming.cli.process_facts import cpu_seconds, num_cores, pss_mib

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch.utils.data import DataLoader

GAUGES = ("queue_depth", "pool_bytes", "frame_cache_bytes")
"""Counters of the streaming library that say how it stands now; the others are sums."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one contender did in one round.

    Attributes:
        samples_per_second: After the warm-up.
        first_batch_s: Seconds from the start of the loader to its first batch.
        samples: Samples that were timed.
        warmup_samples: Samples that were taken before.
        steady_samples: Samples that it takes to reach the steady state; 0 where there is nothing to fill.
        seconds: Length of the timed part.
        cores_used: Share of the machine's cores that the loader's processes used in the timed part.
        worker_pss_mib: Proportional memory of each worker process at the end, MiB.
        timed: The streaming library's counters over the timed part; None for the others.
        stats: The same since the start, at the end; None for the others.
    """

    samples_per_second: float
    first_batch_s: float
    samples: int
    warmup_samples: int
    steady_samples: int
    seconds: float
    cores_used: float
    worker_pss_mib: list[float]
    timed: dict[str, float] | None = None
    stats: dict[str, Any] | None = None


@dataclass(slots=True, kw_only=True)
class Contender:
    """One way to load the data set.

    Attributes:
        name: Its name in the table.
        make: Gives a new, unstarted loader.
        stats: Reads the counters of the latest loader.
        steady_samples: Samples to be taken before anything is timed.
        runs: One for each round.
    """

    name: str
    make: Callable[[], DataLoader[Any]]
    stats: Callable[[], dict[str, Any] | None] = lambda: None
    steady_samples: int = 0
    runs: list[Run] = field(default_factory=list)


def spent(before: Mapping[str, float], after: Mapping[str, float], cameras: int) -> dict[str, float]:
    """Say what the library's counters counted between two moments.

    Args:
        before: Totals of `stats()` at the first moment.
        after: At the second.
        cameras: Cameras of a sample.

    Returns:
        The differences of the sums; of the gauges the values at both moments (`..._before` and as named);
        `decodes_per_sample` (frames decoded per sample and camera), `bytes_per_sample` and
        `requests_per_sample` of what lies between.
    """
    sums = after.keys() - {*GAUGES, "decodes_per_sample"}
    found: dict[str, float] = {name: after[name] - before.get(name, 0) for name in sorted(sums)}
    for name in GAUGES:
        found[f"{name}_before"], found[name] = before[name], after[name]
    samples = max(1, found["samples"])
    found["decodes_per_sample"] = found["frames_decoded"] / samples / max(1, cameras)
    found["bytes_per_sample"] = found["bytes_fetched"] / samples
    found["requests_per_sample"] = found["requests"] / samples
    return found


def endless(loader: DataLoader[Any]) -> Iterator[dict[str, Any]]:
    """Give a loader's batches, pass after pass.

    Args:
        loader: The loader.

    Yields:
        Its batches.

    Raises:
        RuntimeError: A pass has no batch.
    """
    while True:
        count = 0
        for batch in loader:
            count += 1
            yield batch
        if not count:
            raise RuntimeError("the loader gave no batch at all")


def take(batches: Iterator[dict[str, Any]], seconds: float, at_least: int = 0) -> tuple[int, float]:
    """Draw whole batches for a time.

    Args:
        batches: The loader's batches, endless.
        seconds: How long at least.
        at_least: How many samples at least.

    Returns:
        The samples, and the seconds that they took.
    """
    samples, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds or samples < at_least:
        samples += len(next(batches)["index"])
    return samples, max(elapsed, 1e-9)


def worker_pids() -> list[int]:
    """Find the DataLoader workers of this process, in the order of their start."""
    pids = (child.pid for child in multiprocessing.active_children())
    return sorted(pid for pid in pids if pid is not None)


def run_once(contender: Contender, options: argparse.Namespace, cameras: int) -> Run:
    """Run one contender once.

    Args:
        contender: Which.
        options: The command line, with `warmup` and `seconds`.
        cameras: Cameras of a sample.

    Returns:
        What it did.
    """
    start = time.perf_counter()
    batches = endless(contender.make())
    first = len(next(batches)["index"])
    first_batch_s = time.perf_counter() - start
    warm, _ = take(batches, options.warmup, contender.steady_samples - first)
    pids = worker_pids()
    processes = [*pids, os.getpid()]
    before, cpu_before = contender.stats(), sum(cpu_seconds(pid) or 0.0 for pid in processes)
    samples, elapsed = take(batches, options.seconds)
    after, cpu_after = contender.stats(), sum(cpu_seconds(pid) or 0.0 for pid in processes)
    pss = [round(pss_mib(pid) or 0.0, 1) for pid in pids]
    # The workers end with the iterator.
    batches.close()  # type: ignore[attr-defined]  # It is a generator.
    del batches
    gc.collect()
    return Run(
        samples_per_second=samples / elapsed,
        first_batch_s=first_batch_s,
        samples=samples,
        warmup_samples=first + warm,
        steady_samples=contender.steady_samples,
        seconds=elapsed,
        cores_used=(cpu_after - cpu_before) / elapsed / num_cores(),
        worker_pss_mib=pss,
        timed=spent(before["total"], after["total"], cameras) if before and after else None,
        stats=after,
    )


def median(runs: Sequence[Run], name: str) -> float:
    """Give the median of a number over runs.

    Args:
        runs: At least one.
        name: Attribute of `Run`.

    Returns:
        The median.
    """
    return float(statistics.median(getattr(run, name) for run in runs))


def interleave(contenders: list[Contender], options: argparse.Namespace, cameras: int) -> list[str]:
    """Run all contenders in turn, round after round.

    A contender that fails is left out from then on, and so are its earlier runs.

    Args:
        contenders: All of them; those that fail are removed.
        options: The command line, with `rounds`, `warmup` and `seconds`.
        cameras: Cameras of a sample.

    Returns:
        A remark on each contender that failed.
    """
    remarks = []
    width = max(len(contender.name) for contender in contenders) + 1
    for number in range(options.rounds):
        # Each round starts with another contender, so that none always follows the same one.
        turn = number % len(contenders)
        for contender in contenders[turn:] + contenders[:turn]:
            head = f"round {number + 1}/{options.rounds}: {contender.name:{width}}"
            try:
                run = run_once(contender, options, cameras)
            except Exception as error:
                if not contender.name.startswith("lerobot"):
                    raise
                remarks.append(f"{contender.name} failed in round {number + 1}: {error_line(error)}")
                contenders.remove(contender)
                print(f"{head} failed", flush=True)
                continue
            contender.runs.append(run)
            print(f"{head}{run.samples_per_second:9.1f} samples/s", flush=True)
    return remarks


def error_line(error: BaseException) -> str:
    """Give the line of an error that says what happened.

    Args:
        error: Any error; of one that a DataLoader brings from a worker, the worker's traceback is skipped.

    Returns:
        Type and first line of the message.
    """
    text = str(error).strip()
    if "Original Traceback" in text:
        # Behind the traceback's indented lines; of chained errors the last one is what was raised.
        lines = text.splitlines()
        last = max(number for number, line in enumerate(lines) if line.startswith("  File "))
        own = [line for line in lines[last:] if line and not line[0].isspace()]
        if own:
            return own[0]
    return f"{type(error).__name__}: {text.splitlines()[0] if text else ''}".rstrip(": ")
