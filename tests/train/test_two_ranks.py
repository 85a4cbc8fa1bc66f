"""Two real training processes that talk over gloo."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.datasets import edit_data, set_column
from tests.train.support import run_python, run_ranks, train_arguments

if TYPE_CHECKING:
    from collections.abc import Iterable

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


def _steps(log: Path, rank: int) -> list[dict[str, Any]]:
    path = log.with_name(f"{log.name}.{rank}")
    # A line that was cut off by the kill has no end.
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def test_a_job_that_is_killed_continues_as_if_it_had_not_been(shelf: Shelf, tmp_path: Path) -> None:
    root, workers, total, saved = shelf.root("many_tiny"), 3, 18, 6
    # 7 uneven episodes.
    flags = ("--dataset.episodes=[0,2,3,7,11,16,20]", f"--num_workers={workers}", "--policy.dropout=0")
    checkpoints = (f"--steps={total}", f"--save_freq={saved}", "--save_checkpoint=true")

    def start(name: str) -> list[str]:
        arguments = train_arguments(root, tmp_path / name, *flags, *checkpoints)
        return ["-m", "tests.train.recorded_run", str(tmp_path / f"{name}.log"), *arguments]

    whole = run_ranks(*start("whole"))
    assert [run.code for run in whole] == [0, 0], whole[0].output

    log = tmp_path / "killed.log"
    killed = run_ranks(*start("killed"), kill_when=lambda: len(_steps(log, 0)) > saved + 2)
    assert [run.code for run in killed] == [-9, -9], killed[0].output
    config = tmp_path / f"killed/checkpoints/{saved:06}/pretrained_model/train_config.json"
    assert not (tmp_path / f"killed/checkpoints/{2 * saved:06}").exists()
    resumed = run_ranks(
        *("-m", "tests.train.recorded_run", str(tmp_path / "resumed.log")),
        *(f"--config_path={config}", "--resume=true"),
    )
    assert [run.code for run in resumed] == [0, 0], resumed[0].output

    expected = sorted(anchor for anchor in _selected_frames(root, flags[0]))
    drawn_once: list[int] = []
    for rank in range(2):
        uninterrupted = _steps(tmp_path / "whole.log", rank)
        parts = _steps(log, rank)[:saved] + _steps(tmp_path / "resumed.log", rank)
        assert [step["frames"] for step in parts] == [step["frames"] for step in uninterrupted]
        losses = [step["loss"] for step in parts]
        assert losses == pytest.approx([step["loss"] for step in uninterrupted], rel=1e-4)
        # Each worker goes through its own share again and again.
        for worker in range(workers):
            sequence = [frame for step in parts[worker::workers] for frame in step["frames"]]
            share = set(sequence)
            whole_epochs = len(sequence) // len(share)
            assert whole_epochs >= 1
            for epoch in range(whole_epochs):
                assert set(sequence[epoch * len(share) : (epoch + 1) * len(share)]) == share
            drawn_once += share
    assert sorted(drawn_once) == expected


def _selected_frames(root: Path, flag: str) -> list[int]:
    from lerobot_streaming import StreamingLeRobotDataset
    from tests.support.datasets import REPO_ID

    episodes = json.loads(flag.partition("=")[2])
    dataset = StreamingLeRobotDataset(REPO_ID, root, episodes=episodes)
    return [int(item["index"]) for item in dataset]


def test_lerobot_train_resumes_on_fewer_ranks(shelf: Shelf, tmp_path: Path) -> None:
    root = shelf.root("many_tiny")
    log = tmp_path / "two.log"
    arguments = train_arguments(
        root, tmp_path / "out", "--steps=4", "--save_checkpoint=true", "--num_workers=1", "--batch_size=4"
    )
    two = run_ranks("-m", "tests.train.recorded_run", str(log), *arguments)
    assert [run.code for run in two] == [0, 0], two[0].output
    config = tmp_path / "out/checkpoints/last/pretrained_model/train_config.json"
    frames = 84 - 2 * 4 * 4
    one = run_python(
        *("-m", "tests.train.recorded_run", str(tmp_path / "one.log"), f"--config_path={config}"),
        *("--resume=true", f"--steps={4 + frames // 4}"),
    )
    assert one.code == 0, one.output
    assert "world_size: 2 then, 1 now" in one.output
    drawn = [frame for rank in range(2) for step in _steps(log, rank) for frame in step["frames"]]
    drawn += [frame for step in _steps(tmp_path / "one.log", 0) for frame in step["frames"]]
    assert sorted(drawn) == list(range(84))


@pytest.mark.parametrize("launcher", ["torchrun", "accelerate"])
def test_launchers_start_lerobot_train_in_both_ways(shelf: Shelf, tmp_path: Path, launcher: str) -> None:
    script = str(Path(sys.executable).with_name("lerobot-train"))
    # The installed command by torchrun, `python -m` by accelerate. Of accelerate's ways to start several
    # processes on one machine, the one for GPUs needs no MPI; the policy's device is the CPU all the same.
    start = {
        "torchrun": ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", script),
        "accelerate": (
            *("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes=2", "--num_machines=1"),
            *("--mixed_precision=no", "--dynamo_backend=no", "-m", "lerobot.scripts.lerobot_train"),
        ),
    }[launcher]
    arguments = train_arguments(shelf.root("many_tiny"), tmp_path / "out", "--num_workers=1")
    run = run_python(*start, *arguments)
    assert run.code == 0, run.output
    assert "Effective batch size: 2 x 2 = 4" in run.output
    assert len(run.losses) == 3


def test_a_rank_that_fails_ends_the_job_with_its_cause(shelf: Shelf, tmp_path: Path) -> None:
    """One episode's rows are broken: whichever rank meets it, all of them end, and say why."""
    root = shelf.copy("many_tiny", tmp_path / "broken")
    edit_data(root, lambda table: set_column(table, "index", [*range(83), 1000]))
    script = str(Path(sys.executable).with_name("lerobot-train"))
    arguments = train_arguments(
        root, tmp_path / "out", "--num_workers=1", "--steps=60", "--save_checkpoint=false"
    )
    run = run_python("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", script, *arguments)
    assert run.code not in {0, -1}, run.output
    assert "RowError" in run.output
    assert "episode 23" in run.output.lower()
