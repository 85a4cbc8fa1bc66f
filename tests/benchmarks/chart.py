"""The throughput chart: an SVG file of plain rectangles and text, readable on light and on dark pages."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from tests.benchmarks.contenders import (
    LEROBOT,
    MAP_PYAV,
    MAP_TORCHCODEC,
    RAW,
    RAW_RANDOM,
    STREAMING,
)
from tests.benchmarks.results import ratio

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LABELS = {
    STREAMING: "this library",
    MAP_TORCHCODEC: "map-style, torchcodec",
    MAP_PYAV: "map-style, pyav",
    LEROBOT: "lerobot's own streaming",
    RAW: "bare libav, same frames",
    RAW_RANDOM: "bare libav, random frames",
}
"""What the contenders are called in chart and tables, in the order in which they are shown."""

_CLASSES = {STREAMING: "ours", RAW: "raw", RAW_RANDOM: "raw"}
_WIDTH, _LEFT, _RIGHT = 720, 230, 60
_BAR, _GAP, _HEAD, _TOP = 16, 6, 24, 44

# An image follows the reader's own colour scheme, and the page around it may not: the panel brings its own
# background, so that its text is readable on either.
_STYLE = """\
<style>
.panel { fill: #ffffff; stroke: #d0d7de; }
.text { fill: #1f2328; font: 13px system-ui, sans-serif; }
.strong { font-weight: 600; }
.one { stroke: #59636e; stroke-dasharray: 3 3; }
.ours { fill: #0969da; }
.raw { fill: #9a6700; }
.other { fill: #818b98; }
@media (prefers-color-scheme: dark) {
.panel { fill: #0d1117; stroke: #3d444d; }
.text { fill: #f0f6fc; }
.one { stroke: #9198a1; }
.ours { fill: #4493f8; }
.raw { fill: #d29922; }
.other { fill: #656c76; }
}
</style>"""


def bars(result: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Give the bars of one shape.

    Args:
        result: A `compare` result.

    Returns:
        Name of each contender that ran, and its throughput against map-style with torchcodec, or with pyav
        where torchcodec does not load.
    """
    base = MAP_TORCHCODEC if MAP_TORCHCODEC in result["contenders"] else MAP_PYAV
    found = ((name, ratio(result, name, base)) for name in LABELS)
    return [(name, value) for name, value in found if value is not None]


def draw(results: Sequence[Mapping[str, Any]], describe: Mapping[str, str]) -> str:
    """Draw the chart.

    Args:
        results: `compare` results, one for each shape.
        describe: What each shape is.

    Returns:
        The SVG file's text.
    """
    groups = [(str(result["shape"]), bars(result)) for result in results]
    most = max((value for _, some in groups for _, value in some), default=1.0)
    scale = (_WIDTH - _LEFT - _RIGHT) / most
    height = _TOP + sum(_HEAD + len(some) * (_BAR + _GAP) + 2 * _GAP for _, some in groups)
    title = "Samples per second against map-style LeRobotDataset (1.0)"
    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
            f'viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(title)}">'
        ),
        f"<title>{escape(title)}</title>",
        _STYLE,
        f'<rect class="panel" x="0.5" y="0.5" width="{_WIDTH - 1}" height="{height - 1}" rx="6"/>',
        f'<text class="text strong" x="16" y="26">{escape(title)}</text>',
    ]
    top = _TOP
    for shape, some in groups:
        head = escape(f"{shape}: {describe.get(shape, '')}".rstrip(": "))
        lines.append(f'<text class="text strong" x="16" y="{top + 14}">{head}</text>')
        top += _HEAD
        end = top + len(some) * (_BAR + _GAP) - _GAP
        for name, value in some:
            width, middle = value * scale, top + _BAR - 4
            kind, label = _CLASSES.get(name, "other"), escape(LABELS[name])
            lines += [
                f'<text class="text" x="{_LEFT - 8}" y="{middle}" text-anchor="end">{label}</text>',
                f'<rect class="{kind}" x="{_LEFT}" y="{top}" width="{width:.1f}" height="{_BAR}" rx="2"/>',
                f'<text class="text" x="{_LEFT + width + 6:.1f}" y="{middle}">{value:.1f}</text>',
            ]
            top += _BAR + _GAP
        one = _LEFT + scale
        lines.append(
            f'<line class="one" x1="{one:.1f}" y1="{top - len(some) * (_BAR + _GAP) - 3}" '
            f'x2="{one:.1f}" y2="{end + 3}"/>'
        )
        top += 2 * _GAP
    return "\n".join([*lines, "</svg>"]) + "\n"
