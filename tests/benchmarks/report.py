"""Make the published numbers from the committed results: chart, README.md, docs/performance.md.

Run from the repository's root. Add new results, and make everything anew:

    python -m tests.benchmarks.report --keep /tmp/lerobot-streaming-bench/*.json

Without arguments everything is made anew from what is committed.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from tests.benchmarks import results, tables
from tests.benchmarks.chart import draw

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).parents[2]
README = Path("README.md")
PAGE = Path("docs/performance.md")
CHART = Path("docs/figures/throughput.svg")


def replace_block(text: str, name: str, block: str) -> str:
    """Put a block between its two markers.

    Args:
        text: A Markdown file.
        name: Name of the markers: `<!-- NAME:begin -->` and `<!-- NAME:end -->`, once each.
        block: What stands between them from now on.

    Returns:
        The new text.

    Raises:
        ValueError: A marker is missing or there twice.
    """
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    for marker in (begin, end):
        if text.count(marker) != 1:
            raise ValueError(
                f"the marker {marker} is there {text.count(marker)} times; it must be there once"
            )
    before, _, rest = text.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise ValueError(f"the marker {end} stands before {begin}; it must stand behind it")
    return f"{before}{begin}\n{block}\n{end}{after}"


def blocks(folder: Path = results.RESULTS) -> dict[Path, dict[str, str]]:
    """Make the blocks of all pages.

    Args:
        folder: The committed results.

    Returns:
        For each page, relative to the repository's root, its blocks by name.
    """
    compared = results.load("compare", folder)
    return {
        README: {"numbers": tables.throughput(compared)},
        PAGE: {
            "contenders": tables.details(compared),
            "counters": tables.per_sample(compared),
            "threads": tables.threads(results.load("scaling", folder)),
            "memory": tables.memory(results.load("memory", folder)),
            "training": tables.training(results.load("train_gap", folder)),
        },
    }


def chart(folder: Path = results.RESULTS) -> str:
    """Draw the chart.

    Args:
        folder: The committed results.

    Returns:
        The SVG file's text.
    """
    compared = results.load("compare", folder)
    return draw(compared, {str(one["shape"]): tables.describe_shape(one["shape"]) for one in compared})


def render(root: Path, made: Mapping[Path, Mapping[str, str]]) -> dict[Path, str]:
    """Put the blocks into the pages.

    Args:
        root: The repository.
        made: What `blocks` gave.

    Returns:
        The new text of each page.
    """
    pages = {}
    for page, parts in made.items():
        text = (root / page).read_text()
        for name, block in parts.items():
            text = replace_block(text, name, block)
        pages[page] = text
    return pages


def main(arguments: Sequence[str] | None = None) -> None:
    """Keep new results and write all pages and the chart.

    Args:
        arguments: The command line; None for that of the process.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--keep", type=Path, nargs="+", default=[], metavar="JSON", help="results to commit, trimmed"
    )
    options = parser.parse_args(arguments)
    for path in results.keep(options.keep):
        print(f"kept {path.relative_to(ROOT)}")
    for page, text in {**render(ROOT, blocks()), CHART: chart()}.items():
        (ROOT / page).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / page).write_text(text)
        print(f"wrote {page}")


if __name__ == "__main__":
    main()
