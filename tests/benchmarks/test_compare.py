from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.datasets import Shelf


@pytest.mark.slow
def test_the_comparison_runs_on_a_tiny_data_set(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.benchmarks.compare", "--shape", "C", "--dir", str(tmp_path)]
    sizes = ["--episodes", "3", "--frames", "20", "--rounds", "1", "--seconds", "0.5", "--warmup", "0.1"]
    done = subprocess.run([*command, *sizes], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    result = json.loads((tmp_path / "compare-C.json").read_text())
    assert {"streaming", "map pyav", "raw libav"} <= result["medians_samples_per_second"].keys()
    assert all(speed > 0 for speed in result["medians_samples_per_second"].values())
    assert result["data"]["video_files"] == 2
    for name in result["medians_samples_per_second"]:
        assert name in done.stdout


@pytest.mark.parametrize("kind", ["av1", "h264_bframes", "rotating_files"])
def test_the_ceiling_decodes_the_right_frames(shelf: Shelf, kind: str) -> None:
    from tests.benchmarks.raw_libav import RawFrames
    from tests.support.oracle import map_items

    frames = RawFrames(shelf.root(kind))
    expected = map_items(shelf.root(kind), return_uint8=True)
    assert len(frames) == len(expected)
    for index in (*expected, *reversed(expected)):
        raw = frames[index]
        for camera in raw.keys() - {"index"}:
            assert (raw[camera] == expected[index][camera]).all(), f"{camera} of frame {index}"


def test_pictures_of_other_frames_are_counted(shelf: Shelf) -> None:
    from torch.utils.data import default_collate

    from tests.benchmarks.contenders import foreign_pictures
    from tests.benchmarks.raw_libav import RawFrames

    frames = RawFrames(shelf.root("rotating_files"))
    cameras = len(frames[0]) - 1
    batch = default_collate([frames[3], frames[7], frames[4]])
    assert foreign_pictures(batch, frames) == (0, cameras)
    batch["index"][1] = 8
    assert foreign_pictures(batch, frames) == (cameras, cameras)
