"""Two real training processes that talk over gloo."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.train.support import run_ranks, train_arguments

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.datasets import Shelf

# Long limits, because a loaded machine takes several times as long for the imports.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_custom_loop_gets_every_frame_once_and_ends_together(shelf: Shelf, num_workers: int) -> None:
    runs = run_ranks("-m", "tests.train.two_rank_loop", str(shelf.root("many_tiny")), str(num_workers))
    told: list[dict[str, Any]] = []
    for run in runs:
        assert run.code == 0, run.output
        told.append(json.loads(re.findall(r"^TOLD (.*)$", run.output, re.MULTILINE)[0]))
    assert [one["rank"] for one in told] == [0, 1]

    for epoch in range(2):
        shares = [{i for batch in one["training"][epoch] for i in batch} for one in told]
        assert not shares[0] & shares[1]
        everything = [i for one in told for batch in one["training"][epoch] for i in batch]
        assert sorted(everything) == list(range(told[0]["frames"]))

        passes = [one["held_out"][epoch] for one in told]
        assert len(passes[0]) == len(passes[1])
        assert len({i for one in passes for batch in one for i in batch}) == told[0]["held_out_frames"]
        # The rank with fewer batches repeats its last one, and nothing else is repeated.
        assert all(batch == one[-1] for one in passes for batch in one if one.count(batch) > 1)


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
