"""Measure the streaming library against map-style LeRobot and against bare libav, interleaved in one run.

Run from the repository's root:

    python -m tests.benchmarks.compare --shape A

Every contender delivers batches of the same data set through a stock `DataLoader` with the same settings:
uint8 pictures and a window of 50 actions, in random order. In each round every contender runs once, for
`--seconds` after a warm-up; the table shows the medians over the rounds. Only the ratios of one run mean
something.
"""

from __future__ import annotations

import argparse
import gc
import importlib.metadata
import json
import multiprocessing
import os
import platform
import statistics
import subprocess
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lerobot_streaming.cli.process_facts import pss_mib

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch.utils.data import DataLoader

    from tests.benchmarks.raw_libav import RawFrames

ACTION_STEPS = 50
MAP_TORCHCODEC = "map torchcodec"
MAP_PYAV = "map pyav"
STREAMING = "streaming"
RAW = "raw libav"
CONTENDERS = (STREAMING, MAP_TORCHCODEC, MAP_PYAV, RAW)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one contender did in one round.

    Attributes:
        samples_per_second: After the warm-up.
        first_batch_s: Seconds from the start of the loader to its first batch.
        samples: Samples that were timed.
        worker_pss_mib: Proportional memory of each worker process at the end, MiB.
        stats: The streaming library's own counters at the end; None for the others.
    """

    samples_per_second: float
    first_batch_s: float
    samples: int
    worker_pss_mib: list[float]
    stats: dict[str, Any] | None = None


@dataclass(slots=True, kw_only=True)
class Contender:
    """One way to load the data set.

    Attributes:
        name: Its name in the table.
        make: Gives a new, unstarted loader.
        stats: Reads the counters of the latest loader.
        runs: One for each round.
    """

    name: str
    make: Callable[[], DataLoader[Any]]
    stats: Callable[[], dict[str, Any] | None] = lambda: None
    runs: list[Run] = field(default_factory=list)


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line.

    Args:
        arguments: The arguments; None for those of the process.

    Returns:
        The parsed arguments.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=("A", "B", "C", "D"), default="A", help="the data set's shape")
    parser.add_argument("--episodes", type=int, help="episodes of the data set (default: the shape's)")
    parser.add_argument("--frames", type=int, help="mean frames of an episode (default: the shape's)")
    parser.add_argument(
        "--dir",
        type=Path,
        default=Path(tempfile.gettempdir()) / "lerobot-streaming-bench",
        help="keeps the made data sets and caches between runs (default: %(default)s)",
    )
    parser.add_argument(
        "--rounds", type=int, default=5, help="rounds over all contenders (default: %(default)s)"
    )
    parser.add_argument(
        "--seconds", type=float, default=8.0, help="timed part of a run (default: %(default)s)"
    )
    parser.add_argument(
        "--warmup", type=float, default=3.0, help="untimed seconds before it (default: %(default)s)"
    )
    parser.add_argument("--workers", type=int, default=2, help="DataLoader workers (default: %(default)s)")
    parser.add_argument(
        "--batch-size", type=int, default=16, help="samples of a batch (default: %(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of every random order (default: %(default)s)"
    )
    parser.add_argument(
        "--contender", action="append", choices=CONTENDERS, help="run only this one; repeat for more"
    )
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=JSON",
        help="an argument of StreamingLeRobotDataset, such as episode_pool_size=16; repeat for more",
    )
    parser.add_argument(
        "--json", type=Path, help="where the numbers go (default: compare-SHAPE.json in --dir)"
    )
    return parser.parse_args(arguments)


def torchcodec_problem() -> str | None:
    """Say why torchcodec cannot be used here; None when it can."""
    try:
        import torchcodec.decoders  # noqa: F401
    except ImportError as error:
        return f"torchcodec is not installed ({error})"
    except RuntimeError as error:
        return f"torchcodec does not load ({str(error).strip().splitlines()[0]})"
    return None


def make_contenders(options: argparse.Namespace, root: Path) -> tuple[list[Contender], list[str]]:
    """Set up the contenders that can run here.

    Args:
        options: The command line.
        root: The data set.

    Returns:
        The contenders, and remarks about those that cannot run.
    """
    import torch
    from lerobot.datasets import LeRobotDataset
    from torch.utils.data import DataLoader, RandomSampler

    from lerobot_streaming import StreamingLeRobotDataset
    from tests.benchmarks.raw_libav import RawFrames
    from tests.support.datasets import REPO_ID, load_info

    fps = load_info(root)["fps"]
    deltas = {"action": [step / fps for step in range(ACTION_STEPS)]}
    loading = {"batch_size": options.batch_size, "num_workers": options.workers}
    started: list[StreamingLeRobotDataset] = []

    def random_order(dataset: LeRobotDataset | RawFrames) -> DataLoader[Any]:
        generator = torch.Generator().manual_seed(options.seed)
        sampler = RandomSampler(dataset, replacement=True, num_samples=10**9, generator=generator)
        return DataLoader(dataset, sampler=sampler, **loading)

    def streaming() -> DataLoader[Any]:
        extra = {
            name: json.loads(value) for name, _, value in (text.partition("=") for text in options.option)
        }
        arguments = {"seed": options.seed, "return_uint8": True, "repeat": True, **extra}
        dataset = StreamingLeRobotDataset(REPO_ID, root, delta_timestamps=deltas, **arguments)
        started[:] = [dataset]
        return DataLoader(dataset, **loading)

    def counters() -> dict[str, Any] | None:
        stats: dict[str, Any] = dict(started[0].stats())
        return stats

    def map_style(backend: str) -> Callable[[], DataLoader[Any]]:
        dataset = LeRobotDataset(
            REPO_ID, root, delta_timestamps=deltas, return_uint8=True, video_backend=backend
        )
        return lambda: random_order(dataset)

    wanted = options.contender or CONTENDERS
    remarks: list[str] = []
    contenders: list[Contender] = []
    if STREAMING in wanted:
        contenders.append(Contender(name=STREAMING, make=streaming, stats=counters))
    if MAP_TORCHCODEC in wanted:
        problem = torchcodec_problem()
        if problem is None:
            contenders.append(Contender(name=MAP_TORCHCODEC, make=map_style("torchcodec")))
        else:
            remarks.append(f"{problem}: map-style runs with pyav only")
    if MAP_PYAV in wanted:
        contenders.append(Contender(name=MAP_PYAV, make=map_style("pyav")))
    if RAW in wanted:
        frames = RawFrames(root)
        contenders.append(Contender(name=RAW, make=lambda: random_order(frames)))
    return contenders, remarks


def _take(batches: Iterator[dict[str, Any]], seconds: float) -> tuple[int, float]:
    """Draw whole batches for a time; returns the samples and the time they took."""
    samples = 0
    start = time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        samples += len(next(batches)["index"])
    return samples, elapsed


def run_once(contender: Contender, options: argparse.Namespace) -> Run:
    """Run one contender once.

    Args:
        contender: Which.
        options: The command line.

    Returns:
        What it did.
    """
    start = time.perf_counter()
    batches = iter(contender.make())
    next(batches)
    first_batch_s = time.perf_counter() - start
    _take(batches, options.warmup)
    samples, elapsed = _take(batches, options.seconds)
    pids = [child.pid for child in multiprocessing.active_children() if child.pid is not None]
    pss = [round(pss_mib(pid) or 0.0, 1) for pid in pids]
    stats = contender.stats()
    # The workers end with the iterator.
    del batches
    gc.collect()
    return Run(
        samples_per_second=samples / elapsed,
        first_batch_s=first_batch_s,
        samples=samples,
        worker_pss_mib=pss,
        stats=stats,
    )


def _git_commit() -> str:
    folder = Path(__file__).parent
    try:
        commit = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=folder, text=True).strip()
        changed = subprocess.check_output(["git", "status", "--porcelain"], cwd=folder, text=True).strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit + (" with changes" if changed else "")


def describe_machine() -> dict[str, Any]:
    """Say where and with what the numbers were measured."""
    import av

    versions: dict[str, str] = {"python": platform.python_version()}
    for package in ("lerobot", "lerobot_env_streaming", "torch", "torchcodec", "av", "datasets", "numpy"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    versions["libavcodec"] = ".".join(str(part) for part in av.library_versions["libavcodec"])
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "machine": platform.platform(),
        "cpu": models[0] if models else platform.processor(),
        "cpu_count": len(os.sched_getaffinity(0)),
        "versions": versions,
        "git_commit": _git_commit(),
    }


def _median(runs: Sequence[Run], name: str) -> float:
    return float(statistics.median(getattr(run, name) for run in runs))


def table(contenders: Sequence[Contender], cameras: int) -> str:
    """Write the medians as a table.

    Args:
        contenders: All contenders, with their runs.
        cameras: Frames of a sample.

    Returns:
        The table's lines.
    """
    speeds = {contender.name: _median(contender.runs, "samples_per_second") for contender in contenders}
    base = next((name for name in (MAP_TORCHCODEC, MAP_PYAV) if name in speeds), None)
    head = f"{'':16}{'samples/s':>11}{'frames/s':>10}{'spread':>8}{'first batch':>13}{'PSS/worker':>12}"
    lines = [head + (f"{'x ' + base:>18}" if base else "")]
    for contender in contenders:
        speed = speeds[contender.name]
        every = [run.samples_per_second for run in contender.runs]
        memory = [pss for run in contender.runs for pss in run.worker_pss_mib]
        line = f"{contender.name:16}{speed:11.1f}{speed * cameras:10.1f}"
        line += f"{(max(every) - min(every)) / speed:8.0%}{_median(contender.runs, 'first_batch_s'):11.2f} s"
        line += f"{statistics.median(memory) if memory else 0:8.0f} MiB"
        lines.append(line + (f"{speed / speeds[base]:18.2f}" if base else ""))
    return "\n".join(lines)


def streaming_counters(contenders: Sequence[Contender]) -> str | None:
    """Write the streaming library's own counters of the last round, per sample; None when it did not run."""
    runs = next((contender.runs for contender in contenders if contender.name == STREAMING), [])
    total = (runs[-1].stats or {}).get("total") if runs else None
    if not total or not total.get("samples"):
        return None
    per_sample = {
        name: total[name] / total["samples"] for name in ("bytes_fetched", "requests") if name in total
    }
    return f"streaming: {total.get('decodes_per_sample', 0):.2f} decodes per sample and camera, " + ", ".join(
        f"{value:.3g} {name} per sample" for name, value in per_sample.items()
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the data set, run all rounds, print the table and write the JSON file.

    Args:
        arguments: The command line; None for that of the process.
    """
    options = parse_arguments(arguments)
    # Before lerobot is imported: all caches stay in the folder, and nothing asks the network.
    os.environ["HF_HOME"] = str(options.dir / "huggingface")
    os.environ["HF_LEROBOT_HOME"] = str(options.dir / "lerobot")
    os.environ["HF_HUB_OFFLINE"] = "1"

    from tests.benchmarks.shapes import describe, make_shape

    start = time.perf_counter()
    root = make_shape(options.dir, options.shape, episodes=options.episodes, frames=options.frames)
    data = describe(root)
    print(f"shape {options.shape}: {data}, ready after {time.perf_counter() - start:.0f} s in {root}")
    contenders, remarks = make_contenders(options, root)
    for remark in remarks:
        print(remark)
    for number in range(options.rounds):
        # Each round starts with another contender, so that none always follows the same one.
        turn = number % len(contenders)
        for contender in contenders[turn:] + contenders[:turn]:
            contender.runs.append(run_once(contender, options))
            speed = contender.runs[-1].samples_per_second
            print(
                f"round {number + 1}/{options.rounds}: {contender.name:16}{speed:9.1f} samples/s", flush=True
            )
    print()
    print(table(contenders, data["cameras"]))
    counters = streaming_counters(contenders)
    if counters is not None:
        print(counters)
    result = {
        **describe_machine(),
        "shape": options.shape,
        "data": data,
        "settings": {
            name: getattr(options, name)
            for name in ("rounds", "seconds", "warmup", "workers", "batch_size", "seed", "option")
        },
        "remarks": remarks,
        "medians_samples_per_second": {
            contender.name: _median(contender.runs, "samples_per_second") for contender in contenders
        },
        "runs": {contender.name: [asdict(run) for run in contender.runs] for contender in contenders},
    }
    path = options.json or options.dir / f"compare-{options.shape}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=2, default=str) + "\n")
    print(f"written to {path}")


if __name__ == "__main__":
    main()
