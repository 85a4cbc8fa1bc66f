"""The committed results: how raw ones are made small, and how they are found again."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

RESULTS = Path(__file__).with_name("results")
"""Small copies of what was measured; README, docs/performance.md and the chart are made of them."""

_COMMON = ("kind", "machine", "cpu", "cpu_count", "versions", "git_commit", "shape", "data", "settings")
_KEPT = {
    "compare": ("remarks",),
    "scaling": ("threads",),
    "memory": ("epochs", "growth"),
    "train_gap": ("logged_dataloading_s", "account"),
}
_PER_SAMPLE = ("decodes_per_sample", "bytes_per_sample", "requests_per_sample")

type Result = dict[str, Any]


def file_name(result: Mapping[str, Any]) -> str:
    """Name the file of a result.

    Args:
        result: A raw or small one.

    Returns:
        Such as `compare-A.json`.
    """
    return f"{result['kind'].replace('_', '-')}-{result['shape']}.json"


def trim(raw: Mapping[str, Any]) -> Result:
    """Make a result small: medians and the throughput of each round instead of every worker's counters.

    Args:
        raw: What a measuring script wrote, or what this function gave.

    Returns:
        What is committed.

    Raises:
        ValueError: It is no result of a kind that is known.
    """
    kind = raw.get("kind")
    if kind not in _KEPT:
        raise ValueError(f"a result's kind is {kind!r}; it must be one of {', '.join(_KEPT)}")
    small = {name: raw[name] for name in (*_COMMON, *_KEPT[kind])}
    if kind == "compare":
        small["contenders"] = raw.get("contenders") or {
            name: _contender(runs) for name, runs in raw["runs"].items()
        }
    rounded: Result = _round(small)
    return rounded


def _contender(runs: Sequence[Mapping[str, Any]]) -> Result:
    pss = [size for run in runs for size in run["worker_pss_mib"]]
    found: Result = {
        "samples_per_second": [run["samples_per_second"] for run in runs],
        "first_batch_s": statistics.median(run["first_batch_s"] for run in runs),
        "worker_pss_mib": statistics.median(pss) if pss else None,
        "cores_used": statistics.median(run["cores_used"] for run in runs),
    }
    timed = [run["timed"] for run in runs if run["timed"]]
    if timed:
        found |= {name: statistics.median(one[name] for one in timed) for name in _PER_SAMPLE}
        found["share_of_time"] = {
            name: statistics.median(run["timed"][name] / run["seconds"] for run in runs)
            for name in sorted(timed[0])
            if name.endswith("_s")
        }
    return found


def _round(value: Any) -> Any:
    """Six significant digits are more than any measurement here has."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {name: _round(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_round(one) for one in value]
    return value


def keep(paths: Sequence[Path], folder: Path = RESULTS) -> list[Path]:
    """Add raw results to the committed ones; one of the same kind and shape is replaced.

    Args:
        paths: JSON files that the measuring scripts wrote.
        folder: Where the small copies go.

    Returns:
        The files written.
    """
    written = []
    for path in paths:
        small = trim(json.loads(path.read_text()))
        target = folder / file_name(small)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(small, indent=1) + "\n")
        written.append(target)
    return written


def load(kind: str, folder: Path = RESULTS) -> list[Result]:
    """Read the committed results of a kind.

    Args:
        kind: `compare`, `scaling`, `memory` or `train_gap`.
        folder: Where they are.

    Returns:
        The results, by shape.
    """
    found = (json.loads(path.read_text()) for path in sorted(folder.glob("*.json")))
    return sorted((one for one in found if one["kind"] == kind), key=lambda one: str(one["shape"]))


def speed(result: Mapping[str, Any], contender: str) -> float | None:
    """Give a contender's median throughput.

    Args:
        result: A `compare` result.
        contender: Its name.

    Returns:
        Samples per second; None where it did not run.
    """
    found = result["contenders"].get(contender)
    return None if found is None else float(statistics.median(found["samples_per_second"]))


def ratio(result: Mapping[str, Any], contender: str, base: str) -> float | None:
    """Compare two contenders of one run.

    Args:
        result: A `compare` result.
        contender: The one.
        base: The other.

    Returns:
        The ratio of their medians; None where one did not run.
    """
    one, other = speed(result, contender), speed(result, base)
    return None if one is None or other is None else one / other
