from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.train.support import run_python

if TYPE_CHECKING:
    from collections.abc import Iterator

QUICKSTART = str(Path(__file__).parents[2] / "examples/quickstart.py")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A home directory, in which nothing may appear."""
    folder = tmp_path / "home"
    folder.mkdir()
    yield folder
    assert not list(folder.iterdir())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_quickstart_trains_and_reports(tmp_path: Path, home: Path) -> None:
    run = run_python(
        QUICKSTART, "--output-dir", str(tmp_path / "out"), env={"HOME": str(home)}, timeout_s=600
    )
    assert run.code == 0, run.output
    report = run.output.partition("\nCommand: ")[2]
    assert "--dataset.streaming=true" in report
    first, last = map(float, re.findall(r"([0-9.]+) \((?:first|last) 10 steps\)", report))
    assert last < first
    assert re.search(r"Training speed: +[0-9.]+ samples/s", report)
    assert re.search(r"Waiting for data: +[0-9.]+ %", report)


@pytest.mark.parametrize(
    ("arguments", "problem"), [(["--steps", "5"], "--steps must be"), (["--output-dir", "."], "is not empty")]
)
def test_bad_arguments_are_refused_at_once(arguments: list[str], problem: str) -> None:
    run = run_python(QUICKSTART, *arguments)
    assert run.code == 2
    assert problem in run.output
