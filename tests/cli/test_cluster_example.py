"""The cluster example, run with datatrove's local executor."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lerobot_streaming.cli.build_mp4_sidecar import main
from lerobot_streaming.index import open_sidecar
from tests.support.datasets import REPO_ID, Shelf

EXAMPLE = Path(__file__).parents[2] / "examples" / "slurm_build_sidecar.py"


@pytest.mark.slow
def test_tasks_and_join_make_the_sidecar_of_one_build(
    shelf: Shelf, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = shelf.copy("rotating_files", tmp_path / "data")
    dataset = ["--repo-id", REPO_ID, "--root", str(root)]
    places = ["--parts-dir", str(tmp_path / "parts"), "--logs-dir", str(tmp_path / "logs")]
    program = [sys.executable, str(EXAMPLE), *dataset, *places, "--tasks", "3", "--local-workers", "2"]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "parts").glob("*.npz"))) == 3
    whole = tmp_path / "whole.npz"
    assert main([*dataset, "--output", str(whole)]) == 0
    capsys.readouterr()
    place = open_sidecar(whole).identity.cache_path(Path(os.environ["HF_LEROBOT_HOME"]))
    assert place.read_bytes() == whole.read_bytes()
