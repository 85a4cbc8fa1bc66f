"""Measure what more decode threads bring to a single DataLoader worker, interleaved in one run.

Run from the repository's root:

    python -m tests.benchmarks.scaling --shape A C --threads 1 2

One JSON file for each shape. Threads need cores of their own: the training process takes some of one, too.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.benchmarks.contenders import streaming_contender
from tests.benchmarks.measuring import Run, interleave, median
from tests.benchmarks.settings import add_rounds, describe_machine, enter, make_parser, write

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

_SETTINGS = ("rounds", "seconds", "warmup", "batch_size", "seed", "option", "threads")


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line.

    Args:
        arguments: The arguments; None for those of the process.

    Returns:
        The parsed arguments.
    """
    parser = make_parser(__doc__, shapes=("A", "C"))
    add_rounds(parser)
    parser.add_argument(
        "--threads", type=int, nargs="+", default=[1, 2], help="decode threads to compare (default: 1 2)"
    )
    parser.add_argument("--json-dir", type=Path, help="where scaling-SHAPE.json goes (default: --dir)")
    options = parser.parse_args(arguments)
    if options.threads[0] != 1 or len(set(options.threads)) != len(options.threads):
        parser.error(f"--threads is {options.threads}; it must begin with 1, the base, and name each once")
    return options


def summary(runs: Mapping[int, Sequence[Run]]) -> dict[str, dict[str, float]]:
    """Compare the numbers of threads.

    Args:
        runs: For each number of decode threads its runs; the base is 1.

    Returns:
        For each number (as text): median samples per second, the ratio of the medians to one thread's, the
        median share of the cores in use.
    """
    base = median(runs[1], "samples_per_second")
    return {
        str(threads): {
            "samples_per_second": median(some, "samples_per_second"),
            "against_one": median(some, "samples_per_second") / base,
            "cores_used": median(some, "cores_used"),
        }
        for threads, some in runs.items()
    }


def measure(shape: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measure one shape.

    Args:
        shape: Which.
        options: The command line.

    Returns:
        The result, for JSON.
    """
    from tests.benchmarks.shapes import describe, make_shape

    root = make_shape(options.dir, shape, episodes=options.episodes, frames=options.frames)
    data = describe(root)
    print(f"shape {shape}: {data}")
    contenders = {
        threads: streaming_contender(
            root, options, workers=1, name=f"{threads} decode thread(s)", decode_threads=threads
        )
        for threads in options.threads
    }
    interleave(list(contenders.values()), options, data["cameras"])
    runs = {threads: contender.runs for threads, contender in contenders.items()}
    found = summary(runs)
    for threads, numbers in found.items():
        print(
            f"shape {shape}, one worker, {threads} decode thread(s): {numbers['samples_per_second']:.1f} "
            f"samples/s, {numbers['against_one']:.2f} times one thread, {numbers['cores_used']:.0%} of cores"
        )
    return {
        "kind": "scaling",
        **describe_machine(),
        "shape": shape,
        "data": data,
        "settings": {name: getattr(options, name) for name in _SETTINGS},
        "threads": found,
        "runs": {str(threads): [asdict(run) for run in some] for threads, some in runs.items()},
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure each shape, print and write the JSON files.

    Args:
        arguments: The command line; None for that of the process.
    """
    options = parse_arguments(arguments)
    enter(options)
    for shape in options.shape:
        write(measure(shape, options), (options.json_dir or options.dir) / f"scaling-{shape}.json")


if __name__ == "__main__":
    main()
