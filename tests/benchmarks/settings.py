"""What the measuring scripts have in common: their options, the made data sets, machine and versions."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lerobot_streaming.cli.process_facts import num_cores

if TYPE_CHECKING:
    from collections.abc import Sequence

ACTION_STEPS = 50
"""Length of the window of actions that every contender delivers."""

_PACKAGES = ("lerobot", "lerobot_env_streaming", "torch", "torchcodec", "av", "datasets", "numpy")


def make_parser(description: str | None, *, shapes: Sequence[str] = ("A",)) -> argparse.ArgumentParser:
    """Make a parser with the options that all scripts have.

    Args:
        description: The script's docstring.
        shapes: Shapes that are measured by default; with one, `--shape` takes one.

    Returns:
        The parser; scripts add their own options.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    several: dict[str, Any] = {"nargs": "+", "default": list(shapes)}
    one: dict[str, Any] = {"default": shapes[0]}
    add(
        "--shape",
        choices=("A", "B", "C", "D"),
        help="the data set's shape (default: %(default)s)",
        **(several if len(shapes) > 1 else one),
    )
    add("--episodes", type=int, help="episodes of the data set (default: the shape's)")
    add("--frames", type=int, help="mean frames of an episode (default: the shape's)")
    add(
        "--dir",
        type=Path,
        default=Path(tempfile.gettempdir()) / "lerobot-streaming-bench",
        help="keeps the made data sets and caches between runs (default: %(default)s)",
    )
    add("--batch-size", type=int, default=16, help="samples of a batch (default: %(default)s)")
    add("--seed", type=int, default=0, help="seed of every random order (default: %(default)s)")
    add(
        "--option",
        action="append",
        default=[],
        metavar="NAME=JSON",
        help="an argument of StreamingLeRobotDataset, such as episode_pool_size=16; repeat for more",
    )
    return parser


def add_rounds(parser: argparse.ArgumentParser) -> None:
    """Add the options of the scripts that compare throughputs.

    Args:
        parser: What `make_parser` made.
    """
    add = parser.add_argument
    add("--rounds", type=int, default=5, help="rounds over all contenders (default: %(default)s)")
    add("--seconds", type=float, default=8.0, help="timed part of a run (default: %(default)s)")
    add(
        "--warmup",
        type=float,
        default=3.0,
        help="least untimed seconds before it (default: %(default)s). The streaming library is warmed up for "
        "longer if need be, until it is in its steady state: as many samples delivered as the look-ahead "
        "windows of all workers hold (frame_cache_gb sets that), or one epoch where that is less. Before, it "
        "decodes frames for draws to come that it has not delivered yet, and is slower than it will be.",
    )


def add_one_run(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the options of the scripts that run a loader and write one file.

    Args:
        parser: What `make_parser` made.
        name: Of the file: `NAME-SHAPE.json`.
    """
    add = parser.add_argument
    add("--workers", type=int, default=2, help="DataLoader workers (default: %(default)s)")
    add("--json", type=Path, help=f"where the numbers go (default: {name}-SHAPE.json in --dir)")


def enter(options: argparse.Namespace) -> None:
    """Keep all caches in the folder of the options, and ask no network. Before lerobot is imported.

    Args:
        options: The command line.
    """
    os.environ["HF_HOME"] = str(options.dir / "huggingface")
    os.environ["HF_LEROBOT_HOME"] = str(options.dir / "lerobot")
    os.environ["HF_HUB_OFFLINE"] = "1"


def extra_arguments(options: argparse.Namespace) -> dict[str, Any]:
    """Read the arguments of `--option`.

    Args:
        options: The command line.

    Returns:
        Arguments of `StreamingLeRobotDataset`.
    """
    pairs = (text.partition("=") for text in options.option)
    return {name: json.loads(value) for name, _, value in pairs}


def describe_machine() -> dict[str, Any]:
    """Say where and with what the numbers were measured."""
    import av

    versions: dict[str, str] = {"python": platform.python_version()}
    for package in _PACKAGES:
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
        "cpu_count": num_cores(),
        "versions": versions,
        "git_commit": _git_commit(),
    }


def _git_commit() -> str:
    folder = Path(__file__).parent
    try:
        commit = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=folder, text=True).strip()
        status = ["git", "status", "--porcelain", "--untracked-files=no"]
        changed = subprocess.check_output(status, cwd=folder, text=True).strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit + (" with changes" if changed else "")


def write(result: dict[str, Any], path: Path) -> None:
    """Write a result, and say where.

    Args:
        result: What JSON can hold.
        path: The file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=2, default=str) + "\n")
    print(f"written to {path}")
