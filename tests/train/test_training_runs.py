"""Real `lerobot-train` processes; each takes tens of seconds, most of it the import of lerobot."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.train.support import read_json, run_lerobot_train, train_arguments

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.datasets import Shelf

# Long limits, because a loaded machine takes several times as long for the imports.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize("how", ["script", "module"])
def test_streaming_trains(shelf: Shelf, tmp_path: Path, how: str) -> None:
    run = run_lerobot_train(train_arguments(shelf.root("many_tiny"), tmp_path / "out"), how=how)
    assert run.code == 0, run.output
    assert len(run.losses) == 3
    assert "streaming_decode_threads" in run.output


def test_too_many_workers_are_lowered(shelf: Shelf, tmp_path: Path) -> None:
    run = run_lerobot_train(
        train_arguments(
            shelf.root("many_tiny"), tmp_path / "out", "--num_workers=6", "--dataset.episodes=[0,1]"
        )
    )
    assert run.code == 0, run.output
    assert run.output.count("Lowering num_workers from 6 to 2") == 1


def test_evaluation_on_a_streamed_split(shelf: Shelf, tmp_path: Path) -> None:
    flags = ("--dataset.eval_split=0.2", "--eval_steps=2", "--steps=4", "--policy.dropout=0")
    losses = {}
    for streaming in (True, False):
        run = run_lerobot_train(
            train_arguments(
                shelf.root("many_tiny"),
                tmp_path / str(streaming),
                *flags,
                "--policy.optimizer_lr=0",
                "--policy.optimizer_lr_backbone=0",
                streaming=streaming,
            )
        )
        assert run.code == 0, run.output
        losses[streaming] = re.findall(r"eval_loss=(\S+)", run.output)
    assert len(losses[True]) == 2
    # Nothing is learnt, so the loss depends on the frames alone, and they are map-style's.
    assert losses[True] == losses[False]


def test_without_streaming_nothing_changes(shelf: Shelf, tmp_path: Path) -> None:
    runs, saved = [], []
    for how in ("script", "without plug-in"):
        out = tmp_path / "out"
        arguments = train_arguments(shelf.root("many_tiny"), out, "--save_checkpoint=true", streaming=False)
        run = run_lerobot_train(arguments, how=how)
        assert run.code == 0, run.output
        runs.append(run)
        model = out / "checkpoints/000003/pretrained_model"
        saved.append({path.name: path.read_bytes() for path in model.iterdir()})
        out.rename(tmp_path / how)
    assert runs[0].losses == runs[1].losses
    assert len(runs[0].losses) == 3
    # Weights, processors and train_config.json, byte for byte.
    assert saved[0] == saved[1]


def test_resume_continues_as_if_it_had_not_stopped(shelf: Shelf, tmp_path: Path) -> None:
    flags = ("--policy.dropout=0", "--save_checkpoint=true", "--num_workers=2")
    root = shelf.root("many_tiny")
    whole = run_lerobot_train(train_arguments(root, tmp_path / "whole", *flags, "--steps=6"))
    assert whole.code == 0, whole.output
    first = run_lerobot_train(train_arguments(root, tmp_path / "parts", *flags))
    assert first.code == 0, first.output
    config = tmp_path / "parts/checkpoints/last/pretrained_model/train_config.json"
    assert read_json(config)["dataset"]["streaming_order"]
    rest = run_lerobot_train([f"--config_path={config}", "--resume=true", "--steps=6"])
    assert rest.code == 0, rest.output
    assert "Resuming the data order behind 6 samples" in rest.output
    assert first.losses + rest.losses == whole.losses
    assert len(whole.losses) == 6

    other = run_lerobot_train([f"--config_path={config}", "--resume=true", "--steps=6", "--seed=7"])
    assert other.code == 0, other.output
    assert "seed: 1000 then, 7 now" in other.output


def test_a_bad_flag_ends_with_its_name_and_range(shelf: Shelf, tmp_path: Path) -> None:
    arguments = train_arguments(
        shelf.root("many_tiny"), tmp_path / "out", "--dataset.streaming_decode_threads=0"
    )
    run = run_lerobot_train(arguments)
    assert run.code != 0
    assert "--dataset.streaming_decode_threads must be an integer > 0, got 0." in run.output
