"""`lerobot-build-mp4-sidecar`: the command line. What it does lies in `sidecar_job`, imported when needed."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_EPILOG = """\
examples:
  lerobot-build-mp4-sidecar --repo-id me/pens --root ~/datasets/pens
      indexes a local dataset into the cache that training looks in
  lerobot-build-mp4-sidecar --repo-id me/pens --root ~/datasets/pens --shard-index 3 --num-shards 64
      indexes one of 64 parts of it, for instance as one task of a cluster job
  lerobot-build-mp4-sidecar --repo-id me/pens --root ~/datasets/pens --merge parts/*.npz
      joins the parts; the result has the same bytes as one build
"""


def make_parser() -> argparse.ArgumentParser:
    """Makes the parser of the command line.

    Returns:
        The parser.
    """
    parser = argparse.ArgumentParser(
        prog="lerobot-build-mp4-sidecar",
        description="Index the MP4 files of a LeRobotDataset, so that streaming starts at once and fetches "
        "exactly the bytes that it needs. Only the files' headers are read, never the video.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--repo-id", required=True, help="dataset or bucket id on the Hub, or the label of a local dataset")
    add("--repo-type", choices=("dataset", "bucket"), default="dataset", help="default: %(default)s")
    add("--revision", help="branch, tag or commit; default: the dataset format's current version")
    add("--root", help="local directory that holds meta/; default: $HF_LEROBOT_HOME/REPO_ID")
    add("--data-root", help="where the videos lie: directory or fsspec URL; default: as the metadata")
    add("--output", help="file to write; default: its place in the local cache")
    add("--episodes", help="only the files of these episodes: N (the first N) or a list such as 0,4,7")
    add("--workers", type=int, default=8, help="files read at a time; default: %(default)s")
    add(
        "--range-backend",
        choices=("fsspec", "native-http"),
        default="native-http",
        help="how files on the Hub are read; default: %(default)s",
    )
    add(
        "--max-probe-mb",
        type=float,
        default=64,
        help="largest header (moov box) of a file that is read, MiB; default: %(default)s",
    )
    add("--push", action="store_true", help="publish the complete sidecar of a Hub dataset or bucket")
    add("--shard-index", type=int, help="build only this part, counted from 0")
    add("--num-shards", type=int, help="number of parts")
    add("--merge", nargs="+", metavar="PART", help="join parts instead of reading the videos")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        arguments: Command line arguments; None: those of the process.

    Returns:
        Exit code: 0 when the sidecar was written, 1 when it was not and why is on stderr, 2 for wrong
        arguments (raised by argparse as SystemExit), 130 after an interrupt.
    """
    parser = make_parser()
    options = parser.parse_args(arguments)
    if (options.shard_index is None) != (options.num_shards is None):
        parser.error("--shard-index and --num-shards belong together")
    if options.num_shards is not None and not 0 <= options.shard_index < options.num_shards:
        parser.error(
            f"--shard-index is {options.shard_index}; with --num-shards {options.num_shards} it must be from "
            f"0 to {options.num_shards - 1}"
        )
    if options.merge and options.num_shards is not None:
        parser.error("--merge joins parts and --shard-index builds one; give one of them")
    for name, value in (("--workers", options.workers), ("--max-probe-mb", options.max_probe_mb)):
        if not 0 < value < float("inf"):
            parser.error(f"{name} is {value}; it must be a number above 0")

    try:
        from lerobot_streaming.cli.sidecar_job import run  # noqa: PLC0415  --help must not wait for it.

        return run(options)
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        return 130


def script() -> None:
    """Runs the console script and ends the process."""
    code = main()
    sys.stdout.flush()
    if code == 130:
        # Threads may still wait for the network; nothing that they read is wanted any more.
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    script()
