"""`lerobot-streaming-bench`: the command line. What it does lies in `bench_run`, imported when needed."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_EPILOG = """\
examples:
  lerobot-streaming-bench --repo-id me/pens --root ~/datasets/pens --workers 4
  lerobot-streaming-bench --repo-id me/pens --window action=50 --option episode_pool_size=16 --json out.json
"""


def make_parser() -> argparse.ArgumentParser:
    """Makes the parser of the command line.

    Returns:
        The parser.
    """
    parser = argparse.ArgumentParser(
        prog="lerobot-streaming-bench",
        description="Stream a dataset through a DataLoader as fast as it goes, and say what limits it.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--repo-id", required=True, help="dataset or bucket id on the Hub, or the label of a local dataset")
    add("--repo-type", choices=("dataset", "bucket"), default="dataset", help="default: %(default)s")
    add("--revision", help="branch, tag or commit; default: the dataset format's current version")
    add("--root", help="local dataset directory; default: $HF_LEROBOT_HOME/REPO_ID, else the Hub")
    add("--data-root", help="where the payload lies, when elsewhere: directory or fsspec URL")
    add("--workers", type=int, default=2, help="DataLoader workers; default: %(default)s")
    add("--batch-size", type=int, default=16, help="samples of a batch; default: %(default)s")
    add("--seconds", type=float, default=15, help="timed part of the run; default: %(default)s")
    add("--warmup", type=float, default=5, help="untimed seconds before it; default: %(default)s")
    add(
        "--window",
        action="append",
        default=[],
        metavar="FEATURE=STEPS",
        help="a window of STEPS frames from the anchor on, such as action=50; repeat for more",
    )
    add(
        "--option",
        action="append",
        default=[],
        metavar="NAME=JSON",
        help="another argument of StreamingLeRobotDataset, such as decode_threads=1; repeat for more",
    )
    add("--json", help="also write the numbers to this file")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        arguments: Command line arguments; None: those of the process.

    Returns:
        Exit code: 0, or 1 when the dataset cannot be streamed and why is on stderr; wrong arguments end the
        process with 2 (argparse).
    """
    parser = make_parser()
    options = parser.parse_args(arguments)
    for name, value, low in (
        ("--workers", options.workers, 0),
        ("--batch-size", options.batch_size, 1),
        ("--warmup", options.warmup, 0),
    ):
        if not value >= low:
            parser.error(f"{name} is {value}; it must be at least {low}")
    if not options.seconds > 0:
        parser.error(f"--seconds is {options.seconds}; it must be above 0")
    for name, texts in (("--window", options.window), ("--option", options.option)):
        for text in texts:
            if "=" not in text:
                parser.error(f"{name} is {text!r}; it must have the form NAME=VALUE")

    from lerobot_streaming.cli.bench_run import run  # noqa: PLC0415  --help must not wait for it.

    return run(options)


def script() -> None:
    """Runs the console script and ends the process."""
    sys.exit(main())


if __name__ == "__main__":
    script()
