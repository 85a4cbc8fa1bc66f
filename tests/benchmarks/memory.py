"""Measure the memory of each DataLoader worker over several epochs, and what it is made of.

Run from the repository's root:

    python -m tests.benchmarks.memory --shape A

The library runs with its default settings and two workers as fast as it can. Whenever another epoch's number
of samples has been taken, the proportional memory (PSS) of each worker is read, by kind of mapping, together
with the library's own counters. In the first epoch caches fill; growth counts from the second one on.
"""

from __future__ import annotations

import os
import statistics
import time
from typing import TYPE_CHECKING, Any

from lerobot_streaming.cli.process_facts import pss_mib
from tests.benchmarks.contenders import streaming_contender
from tests.benchmarks.measuring import GAUGES, endless, take, worker_pids
from tests.benchmarks.settings import add_one_run, describe_machine, enter, make_parser, write
from tests.benchmarks.smaps import breakdown

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

_SETTINGS = ("workers", "epochs", "batch_size", "seed", "option")


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line.

    Args:
        arguments: The arguments; None for those of the process.

    Returns:
        The parsed arguments.
    """
    parser = make_parser(__doc__)
    add_one_run(parser, "memory")
    parser.add_argument("--epochs", type=int, default=5, help="epochs to run (default: %(default)s)")
    options = parser.parse_args(arguments)
    for name, low in (("workers", 1), ("epochs", 3)):
        if getattr(options, name) < low:
            parser.error(f"--{name} is {getattr(options, name)}; it must be at least {low}")
    return options


def look(stats: dict[str, Any]) -> dict[str, Any]:
    """Read the memory of all workers as it is now.

    Args:
        stats: What the dataset's `stats()` gave.

    Returns:
        PSS and kinds of each worker in MiB, and the gauges of the library's counters over all workers.
    """
    workers = [
        {
            "pss_mib": round(pss_mib(pid) or 0.0, 1),
            "kinds": {kind: share._asdict() for kind, share in breakdown(pid).items()},
        }
        for pid in worker_pids()
    ]
    return {
        "workers": workers,
        "main_pss_mib": round(pss_mib(os.getpid()) or 0.0, 1),
        "counters": {name: stats["total"][name] for name in GAUGES},
    }


def growth(epochs: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Say how much the workers grew from the second epoch's end to the last one's.

    Args:
        epochs: What `look` gave at the end of each; at least two.

    Returns:
        `from_epoch`, `to_epoch`, mean MiB per worker at both (`from_mib`, `to_mib`), and the difference in
        MiB (`mib`) and percent (`percent`).
    """
    start, end = (statistics.mean(one["pss_mib"] for one in epochs[at]["workers"]) for at in (1, -1))
    return {
        "from_epoch": 2,
        "to_epoch": len(epochs),
        "from_mib": round(start, 1),
        "to_mib": round(end, 1),
        "mib": round(end - start, 1),
        "percent": round(100 * (end - start) / start, 2),
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run the epochs.

    Args:
        options: The command line.

    Returns:
        The result, for JSON.
    """
    from tests.benchmarks.shapes import describe, make_shape

    root = make_shape(options.dir, options.shape, episodes=options.episodes, frames=options.frames)
    data = describe(root)
    contender = streaming_contender(root, options, workers=options.workers)
    batches = endless(contender.make())
    taken, epochs, begin = 0, [], time.perf_counter()
    for epoch in range(1, options.epochs + 1):
        samples, _ = take(batches, 0, epoch * data["frames"] - taken)
        taken += samples
        found = {"epoch": epoch, "seconds": round(time.perf_counter() - begin, 1)}
        epochs.append(found | look(contender.stats() or {}))
        sizes = ", ".join(f"{worker['pss_mib']:.0f}" for worker in epochs[-1]["workers"])
        counters = epochs[-1]["counters"]
        print(
            f"epoch {epoch}: workers {sizes} MiB; together they hold {counters['frame_cache_bytes'] >> 20} "
            f"MiB of decoded frames and {counters['pool_bytes'] >> 20} MiB of video",
            flush=True,
        )
    batches.close()  # type: ignore[attr-defined]  # It is a generator.
    return {
        "kind": "memory",
        **describe_machine(),
        "shape": options.shape,
        "data": data,
        "settings": {name: getattr(options, name) for name in _SETTINGS},
        "epochs": epochs,
        "growth": growth(epochs),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the epochs, print and write the JSON file.

    Args:
        arguments: The command line; None for that of the process.
    """
    options = parse_arguments(arguments)
    enter(options)
    result = measure(options)
    for worker, last in enumerate(result["epochs"][-1]["workers"]):
        print(f"worker {worker} at the end, MiB (PSS, of that private):")
        for kind, share in last["kinds"].items():
            print(f"  {kind:18}{share['pss_mib']:8.1f}{share['private_mib']:8.1f}")
    grown = result["growth"]
    print(
        f"growth from epoch {grown['from_epoch']} to {grown['to_epoch']}: {grown['mib']:+.1f} MiB per worker "
        f"({grown['percent']:+.1f} %)"
    )
    write(result, options.json or options.dir / f"memory-{options.shape}.json")


if __name__ == "__main__":
    main()
