from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from torch.utils.data import DataLoader

from lerobot_streaming.errors import OptionError
from tests.train.support import configure, train_arguments

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.datasets import Shelf

BATCH_SIZE = 2
STEP = 5


@pytest.fixture
def run(lerobot_train: Any, shelf: Shelf, tmp_path: Path) -> Any:
    """Builds the config and the training set of a run, which may resume a checkpoint that it wrote."""
    del lerobot_train
    from lerobot.common.train_utils import save_training_step

    from lerobot_streaming.train.factory import make_streaming_datasets

    class Runs:
        checkpoint = tmp_path / "checkpoints" / "000005"

        def start(self, *more: str) -> tuple[Any, Any]:
            cfg = self.configure(*more)
            return cfg, make_streaming_datasets(cfg)[0]

        def save(self, cfg: Any, step: int = STEP) -> None:
            """Write what resume reads of a checkpoint, with lerobot's own functions."""
            for folder in ("pretrained_model", "training_state"):
                (self.checkpoint / folder).mkdir(parents=True)
            cfg.save_pretrained(self.checkpoint / "pretrained_model")
            save_training_step(
                step, self.checkpoint / "training_state", num_processes=1, batch_size=cfg.batch_size
            )

        def resume(self, *more: str) -> Any:
            cfg = self.configure("--resume=true", *more)
            cfg.checkpoint_path = self.checkpoint
            return make_streaming_datasets(cfg)[0]

        def edit_saved(self, edit: Callable[[dict[str, Any]], None]) -> None:
            file = self.checkpoint / "pretrained_model" / "train_config.json"
            saved = json.loads(file.read_text())
            edit(saved)
            file.write_text(json.dumps(saved))

        def configure(self, *more: str) -> Any:
            root = shelf.root("many_tiny")
            return configure(train_arguments(root, tmp_path / "out", f"--batch_size={BATCH_SIZE}", *more))

    return Runs()


def batches(dataset: Any, count: int, num_workers: int) -> list[list[int]]:
    loader = DataLoader(
        dataset,
        batch_size=BATCH_SIZE,
        num_workers=num_workers,
        multiprocessing_context="fork" if num_workers else None,
    )
    iterator = iter(loader)
    taken = [next(iterator)["index"].tolist() for _ in range(count)]
    del iterator
    return taken


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_order_goes_on_where_the_checkpoint_stopped(run: Any, num_workers: int) -> None:
    flags = (f"--num_workers={num_workers}", "--dataset.streaming_episode_pool_size=4")
    cfg, dataset = run.start(*flags)
    # More than one epoch: the plan of the second one is part of the order too.
    count = dataset.num_frames // BATCH_SIZE + 8
    uninterrupted = batches(dataset, count, num_workers)
    run.save(cfg)
    assert batches(run.resume(*flags), count - STEP, num_workers) == uninterrupted[STEP:]


def test_a_checkpoint_of_a_later_epoch(run: Any) -> None:
    cfg, dataset = run.start()
    step = 2 * dataset.num_frames // BATCH_SIZE + 3
    uninterrupted = batches(dataset, step + 6, 0)
    run.save(cfg, step)
    assert batches(run.resume(), 6, 0) == uninterrupted[step:]


def test_with_an_eval_split(run: Any) -> None:
    cfg, dataset = run.start("--dataset.eval_split=0.2")
    uninterrupted = batches(dataset, STEP + 6, 0)
    run.save(cfg)
    assert batches(run.resume("--dataset.eval_split=0.2"), 6, 0) == uninterrupted[STEP:]


@pytest.mark.parametrize(
    ("flag", "was", "now"),
    [
        ("--seed", 1000, 1001),
        ("--batch_size", 2, 4),
        ("--num_workers", 0, 1),
        ("--dataset.episodes", None, [0, 1]),
        ("--dataset.eval_split", 0.0, 0.3),
        ("--dataset.streaming_episode_pool_size", None, 2),
        ("--dataset.streaming_sampling_strategy", "remaining", "round_robin"),
        ("--dataset.streaming_byte_budget_gb", 8.0, 2.0),
    ],
)
def test_a_differing_setting_is_refused_by_name(run: Any, flag: str, was: Any, now: Any) -> None:
    run.save(run.start()[0])
    with pytest.raises(OptionError) as caught:
        run.resume(f"{flag}={now}")
    message = str(caught.value)
    assert f"{flag}: {was!r} in the checkpoint, {now!r} now" in message
    assert f"--policy.path={run.checkpoint / 'pretrained_model'}" in message


def test_settings_that_do_not_change_the_order_may_differ(run: Any) -> None:
    run.save(run.start()[0])
    run.resume(
        "--dataset.streaming_decode_threads=1",
        "--dataset.streaming_frame_cache_gb=0",
        "--dataset.streaming_prefetch_episodes=1",
        "--steps=9",
    )


def test_another_number_of_processes_is_refused(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run.save(run.start()[0])
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(OptionError, match="number of processes: 1 in the checkpoint, 2 now"):
        run.resume()


def test_a_dataset_that_has_changed_is_refused(run: Any) -> None:
    run.save(run.start()[0])
    run.edit_saved(lambda saved: saved["dataset"].update(streaming_data_version="v3.0, 2 episodes, 5 frames"))
    with pytest.raises(OptionError, match=r"the dataset: 'v3\.0, 2 episodes, 5 frames' in the checkpoint"):
        run.resume()


def test_a_policy_that_drops_other_frames_is_refused(run: Any) -> None:
    run.save(run.start()[0])
    run.edit_saved(lambda saved: saved["policy"].update(drop_n_last_frames=7))
    with pytest.raises(OptionError, match=r"--policy\.drop_n_last_frames: 7 in the checkpoint, 0 now"):
        run.resume()


def test_a_checkpoint_of_map_style_training_is_refused(run: Any) -> None:
    cfg = run.configure("--dataset.streaming=false")
    run.save(cfg)
    with pytest.raises(OptionError, match=r"does not say how it sampled.*--policy\.path="):
        run.resume()


def test_a_checkpoint_of_lerobots_own_streaming_is_refused(run: Any) -> None:
    from lerobot.configs.default import DatasetConfig

    cfg = run.configure()
    cfg.dataset = DatasetConfig(cfg.dataset.repo_id, root=cfg.dataset.root, streaming=True)
    run.save(cfg)
    with pytest.raises(OptionError, match="does not say how it sampled"):
        run.resume()
