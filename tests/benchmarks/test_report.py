from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest

from tests.benchmarks import report, results, tables
from tests.benchmarks.chart import draw
from tests.benchmarks.contenders import MAP_PYAV, MAP_TORCHCODEC, RAW, STREAMING

if TYPE_CHECKING:
    from pathlib import Path

AGAIN = "run `python -m tests.benchmarks.report` and commit what it writes"


def test_the_committed_pages_and_chart_are_what_the_committed_results_give() -> None:
    for page, text in report.render(report.ROOT, report.blocks()).items():
        assert (report.ROOT / page).read_text() == text, f"{page}: {AGAIN}"
    assert (report.ROOT / report.CHART).read_text() == report.chart(), AGAIN


def test_every_committed_result_is_small_and_under_its_own_name() -> None:
    paths = list(results.RESULTS.glob("*.json"))
    assert paths
    for path in paths:
        content = json.loads(path.read_text())
        assert path.name == results.file_name(content)
        assert results.trim(content) == content
        assert path.stat().st_size < 32_000


def _run(speed: float, *, decodes: float | None = None) -> dict[str, Any]:
    timed = None
    if decodes is not None:
        timed = {"decodes_per_sample": decodes, "bytes_per_sample": 9.0, "requests_per_sample": 0.1}
        timed |= {"decode_s": 4.0, "samples": 80}
    return {
        "samples_per_second": speed,
        "first_batch_s": 1.0,
        "cores_used": 0.5,
        "worker_pss_mib": [100.0, 200.0],
        "seconds": 8.0,
        "timed": timed,
        "stats": {"workers": ["large"]},
    }


def _raw(kind: str = "compare", **more: Any) -> dict[str, Any]:
    return {
        "kind": kind,
        "machine": "m",
        "cpu": "c",
        "cpu_count": 2,
        "versions": dict.fromkeys(("python", "lerobot", "torch", "torchcodec", "av"), "1"),
        "git_commit": "0123456789abcdef with changes",
        "shape": "C",
        "data": {},
        "settings": {"workers": 2, "batch_size": 16, "rounds": 3, "seconds": 8.0, "option": [], "seed": 0},
        **more,
    }


def _compared() -> dict[str, Any]:
    runs = {
        STREAMING: [_run(600, decodes=1.25), _run(500, decodes=1.5), _run(900, decodes=1.75)],
        MAP_TORCHCODEC: [_run(90), _run(100), _run(110)],
        RAW: [_run(250), _run(300), _run(200)],
    }
    return _raw(runs=runs, remarks=["something does not run"])


def test_raw_results_become_small_ones() -> None:
    small = results.trim(_compared())
    ours = small["contenders"][STREAMING]
    assert ours["samples_per_second"] == [600, 500, 900]
    assert ours["decodes_per_sample"] == 1.5
    assert ours["worker_pss_mib"] == 150
    assert ours["share_of_time"] == {"decode_s": 0.5}
    assert "runs" not in small
    assert results.trim(small) == small
    assert results.ratio(small, STREAMING, MAP_TORCHCODEC) == 6
    assert results.ratio(small, STREAMING, MAP_PYAV) is None


def test_what_is_no_result_is_refused() -> None:
    with pytest.raises(ValueError, match="'other'"):
        results.trim(_raw("other"))


def test_results_are_kept_under_their_shapes_name(tmp_path: Path) -> None:
    raw = tmp_path / "whatever.json"
    raw.write_text(json.dumps(_compared()))
    (kept,) = results.keep([raw], tmp_path / "kept")
    assert kept.name == "compare-C.json"
    (loaded,) = results.load("compare", tmp_path / "kept")
    assert loaded == results.trim(_compared())
    assert results.load("memory", tmp_path / "kept") == []


def test_the_throughput_table() -> None:
    text = tables.throughput([results.trim(_compared())])
    head, _, row, *notes = [line for line in text.splitlines() if line]
    assert (
        head
        == "| shape | samples/s | times map-style, torchcodec | times bare libav, same frames | decodes |"
    )
    assert row == "| C: 1 camera, 320x240, H264, GOP 60 | 600 | 6.0 | 2.4 | 1.50 |"
    assert "medians of 3 interleaved rounds of 8 s" in notes[0]
    assert "commit 0123456789ab with changes" in notes[0]
    assert notes[1] == "* Shape C: something does not run."
    assert tables.throughput([]) == tables.NOTHING


def test_the_other_tables() -> None:
    small = results.trim(_compared())
    assert "| C | this library | 600.0 | 500.0 | 900.0 | 1.00 | 150 | 50% |" in tables.details([small])
    assert "| C | 1.50 | 9 | 0.1000 | 0.50 |" in tables.per_sample([small])
    speeds = {"samples_per_second": 100.0, "against_one": 1.7, "cores_used": 0.9}
    assert "| C | 2 | 100.0 | 1.70 | 90% |" in tables.threads([_raw("scaling", threads={"2": speeds})])

    kinds = {"anonymous heap": {"pss_mib": 30.0, "private_mib": 20.0}}
    counters = {"frame_cache_bytes": 8 * 2**20, "pool_bytes": 2**20, "queue_depth": 1}
    workers = [{"pss_mib": size, "kinds": kinds} for size in (100.0, 110.0)]
    epochs = [{"epoch": number, "workers": workers, "counters": counters} for number in (1, 2)]
    grown = {"from_epoch": 1, "to_epoch": 2, "mib": 0.0, "percent": 0.0}
    memory = tables.memory([_raw("memory", epochs=epochs, growth=grown)])
    assert "| all | 105.0 | 105.0 |" in memory
    assert "| anonymous heap | 30.0 | 30.0 |" in memory
    assert "decoded frames | 4.0 | 4.0 |" in memory
    assert "+0.0 MiB per worker" in memory


def test_the_chart_has_a_bar_for_each_contender_that_ran() -> None:
    small = results.trim(_compared())
    root = ET.fromstring(draw([small, {**small, "shape": "D"}], {"C": "1 < 2 & 3"}))  # noqa: S314  Our own.
    name = "{http://www.w3.org/2000/svg}"
    widths = [
        float(bar.attrib["width"]) for bar in root.iter(f"{name}rect") if bar.attrib["class"] != "panel"
    ]
    assert len(widths) == 2 * 3
    assert widths[0] / widths[1] == pytest.approx(6, abs=0.05)
    words = [text.text for text in root.iter(f"{name}text")]
    assert "C: 1 < 2 & 3" in words
    assert "D" in words
    assert words.count("6.0") == 2
    ET.fromstring(draw([], {}))  # noqa: S314  Our own.


def test_blocks_go_between_their_markers_only() -> None:
    page = "a\n<!-- x:begin -->\nold\n<!-- x:end -->\nb\n"
    assert report.replace_block(page, "x", "new") == "a\n<!-- x:begin -->\nnew\n<!-- x:end -->\nb\n"
    for broken in ("", page + page, "<!-- x:end --><!-- x:begin -->"):
        with pytest.raises(ValueError, match="marker"):
            report.replace_block(broken, "x", "new")
