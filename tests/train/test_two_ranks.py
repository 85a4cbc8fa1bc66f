"""Two real training processes that talk over gloo."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.train.support import run_ranks, train_arguments

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.support.datasets import Shelf

# Long limits, because a loaded machine takes several times as long for the imports.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_custom_loops_get_every_frame_once_end_together_and_resume(shelf: Shelf, num_workers: int) -> None:
    runs = run_ranks("-m", "tests.train.two_rank_loop", str(shelf.root("many_tiny")), str(num_workers))
    told: list[dict[str, Any]] = []
    for run in runs:
        assert run.code == 0, run.output
        told.append(json.loads(re.findall(r"^TOLD (.*)$", run.output, re.MULTILINE)[0]))
    assert [one["rank"] for one in told] == [0, 1]

    everything = list(range(told[0]["frames"]))
    for epoch in range(2):
        assert sorted(_all(one["training"][epoch] for one in told)) == everything

        # The rank with fewer batches repeats its last one, and nothing else is repeated.
        passes = [one["even"][epoch] for one in told]
        assert len(passes[0]) == len(passes[1]) == max(told[0]["batches"])
        assert len(set(_all(passes))) == told[0]["even_frames"]
        assert all(batch == one[-1] for one in passes for batch in one if one.count(batch) > 1)
    assert min(told[0]["batches"]) < max(told[0]["batches"])
    assert [len(one["cut"]) for one in told] == [min(told[0]["batches"])] * 2

    for one in told:
        third, fourth = one["expected"]
        assert one["early"] == one["late"] == [third[2:], fourth]
        assert one["ended"] == [[], fourth]
        assert sorted(_all([one["elastic"][1]])) == sorted(_all([fourth]))
    taken = _all(one["expected"][0][:2] for one in told)
    assert sorted(taken + _all(one["elastic"][0] for one in told)) == everything


def _all(passes: Iterable[list[list[int]]]) -> list[int]:
    return [index for batches in passes for batch in batches for index in batch]


def test_lerobot_train_on_two_ranks_with_evaluation(shelf: Shelf, tmp_path: Path) -> None:
    arguments = train_arguments(
        shelf.root("many_tiny"),
        tmp_path / "out",
        "--dataset.eval_split=0.1",
        "--eval_steps=2",
        "--steps=4",
        "--save_checkpoint=true",
    )
    runs = run_ranks("-m", "lerobot.scripts.lerobot_train", *arguments)
    for run in runs:
        assert run.code == 0, run.output
    assert "Effective batch size: 2 x 2 = 4" in runs[0].output
    assert len(re.findall("eval_loss=", runs[0].output)) == 2
    config = tmp_path / "out/checkpoints/last/pretrained_model/train_config.json"
    resumed = run_ranks(
        "-m", "lerobot.scripts.lerobot_train", f"--config_path={config}", "--resume=true", "--steps=5"
    )
    for run in resumed:
        assert run.code == 0, run.output
    assert "Resuming the data order behind 8 samples of each rank" in resumed[0].output
