"""Measure the streaming library against the other ways to load a data set, interleaved in one run.

Run from the repository's root:

    python -m tests.benchmarks.compare --shape A

Every contender delivers batches of the same data set through a stock `DataLoader` with the same settings:
uint8 pictures and a window of 50 actions. `streaming` is this library, `map torchcodec` and `map pyav` are
`LeRobotDataset` in random order, `lerobot streaming` is lerobot's own streaming class, where it runs.
`raw libav` is the ceiling: exactly the frames of our plan in our order, each decoded alone from packets in
memory, no rows, no windows, no look-ahead.

In each round every contender runs once, for `--seconds` after a warm-up; the table shows the medians over
the rounds, and the counters of the timed parts only. Only the ratios of one run mean something.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from tests.benchmarks.contenders import (
    CONTENDERS,
    MAP_PYAV,
    MAP_TORCHCODEC,
    OPTIONAL,
    STREAMING,
    make_contenders,
)
from tests.benchmarks.measuring import Contender, interleave, median
from tests.benchmarks.settings import add_one_run, add_rounds, describe_machine, enter, make_parser, write

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

_SETTINGS = ("rounds", "seconds", "warmup", "workers", "batch_size", "seed", "option")


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line.

    Args:
        arguments: The arguments; None for those of the process.

    Returns:
        The parsed arguments.
    """
    parser = make_parser(__doc__)
    add_rounds(parser)
    add_one_run(parser, "compare")
    parser.add_argument(
        "--contender",
        action="append",
        choices=CONTENDERS + OPTIONAL,
        help="run only this one; repeat for more (default: all but the last)",
    )
    return parser.parse_args(arguments)


def table(contenders: Sequence[Contender], cameras: int) -> str:
    """Write the medians as a table.

    Args:
        contenders: All contenders, with their runs.
        cameras: Frames of a sample.

    Returns:
        The table's lines.
    """
    speeds = {contender.name: median(contender.runs, "samples_per_second") for contender in contenders}
    base = next((name for name in (MAP_TORCHCODEC, MAP_PYAV) if name in speeds), None)
    head = f"{'':18}{'samples/s':>11}{'frames/s':>10}{'spread':>8}{'first batch':>13}{'PSS/worker':>12}"
    lines = [head + (f"{'x ' + base:>18}" if base else "")]
    for contender in contenders:
        speed = speeds[contender.name]
        every = [run.samples_per_second for run in contender.runs]
        memory = [pss for run in contender.runs for pss in run.worker_pss_mib]
        line = f"{contender.name:18}{speed:11.1f}{speed * cameras:10.1f}"
        line += f"{(max(every) - min(every)) / speed:8.0%}{median(contender.runs, 'first_batch_s'):11.2f} s"
        line += f"{statistics.median(memory) if memory else 0:8.0f} MiB"
        lines.append(line + (f"{speed / speeds[base]:18.2f}" if base else ""))
    return "\n".join(lines)


def streaming_counters(contenders: Sequence[Contender]) -> str | None:
    """Write the streaming library's own counters per sample, medians; None when it did not run."""
    runs = next((contender.runs for contender in contenders if contender.name == STREAMING), [])
    timed = [run.timed for run in runs if run.timed is not None]
    if not timed:
        return None
    decodes, size, requests = (
        statistics.median(one[name] for one in timed)
        for name in ("decodes_per_sample", "bytes_per_sample", "requests_per_sample")
    )
    return (
        f"streaming, timed parts: {decodes:.2f} decodes per sample and camera, {size:.3g} bytes and "
        f"{requests:.3g} requests per sample"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the data set, run all rounds, print the table and write the JSON file.

    Args:
        arguments: The command line; None for that of the process.
    """
    options = parse_arguments(arguments)
    enter(options)

    from tests.benchmarks.shapes import describe, make_shape

    start = time.perf_counter()
    root = make_shape(options.dir, options.shape, episodes=options.episodes, frames=options.frames)
    data = describe(root)
    print(f"shape {options.shape}: {data}, ready after {time.perf_counter() - start:.0f} s in {root}")
    contenders, remarks = make_contenders(options, root)
    remarks += interleave(contenders, options, data["cameras"])
    print()
    for remark in remarks:
        print(remark)
    print(table(contenders, data["cameras"]))
    counters = streaming_counters(contenders)
    if counters is not None:
        print(counters)
    result = {
        "kind": "compare",
        **describe_machine(),
        "shape": options.shape,
        "data": data,
        "settings": {name: getattr(options, name) for name in _SETTINGS},
        "remarks": remarks,
        "medians_samples_per_second": {
            contender.name: median(contender.runs, "samples_per_second") for contender in contenders
        },
        "runs": {contender.name: [asdict(run) for run in contender.runs] for contender in contenders},
    }
    write(result, options.json or options.dir / f"compare-{options.shape}.json")


if __name__ == "__main__":
    main()
