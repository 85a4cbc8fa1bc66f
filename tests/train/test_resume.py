from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from torch.utils.data import DataLoader

from lerobot_streaming.errors import OptionError
from lerobot_streaming.ranks import rank_and_world
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
                (self.checkpoint / folder).mkdir(parents=True, exist_ok=True)
            cfg.save_pretrained(self.checkpoint / "pretrained_model")
            save_training_step(
                step,
                self.checkpoint / "training_state",
                num_processes=rank_and_world()[1],
                batch_size=cfg.batch_size,
            )

        def resume(self, *more: str) -> Any:
            self.cfg = self.configure("--resume=true", *more)
            self.cfg.checkpoint_path = self.checkpoint
            return make_streaming_datasets(self.cfg)[0]

        def edit_saved(self, edit: Callable[[dict[str, Any]], None]) -> None:
            file = self.checkpoint / "pretrained_model" / "train_config.json"
            saved = json.loads(file.read_text())
            edit(saved)
            file.write_text(json.dumps(saved))

        def configure(self, *more: str) -> Any:
            root = shelf.root("many_tiny")
            return configure(train_arguments(root, tmp_path / "out", f"--batch_size={BATCH_SIZE}", *more))

    return Runs()


def batches(dataset: Any, count: int, num_workers: int, batch_size: int = BATCH_SIZE) -> list[list[int]]:
    loader = DataLoader(
        dataset,
        batch_size=batch_size,
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


def drawn_in(batches_taken: list[list[int]]) -> Counter[int]:
    return Counter(index for batch in batches_taken for index in batch)


@pytest.mark.parametrize(
    ("flag", "difference"),
    [
        ("--seed=1001", "seed: 1000 then, 1001 now"),
        ("--batch_size=3", "batch_size: 2 then, 3 now"),
        ("--num_workers=2", "num_workers: 0 then, 2 now"),
        ("--dataset.streaming_episode_pool_size=2", "pool_size: None then, 2 now"),
        (
            "--dataset.streaming_sampling_strategy=round_robin",
            "strategy: 'remaining' then, 'round_robin' now",
        ),
        ("--dataset.streaming_byte_budget_gb=2", f"byte_budget: {8 * 1024**3} then, {2 * 1024**3} now"),
    ],
)
def test_under_another_setting_the_rest_of_the_epoch_is_dealt_anew(
    run: Any, caplog: pytest.LogCaptureFixture, flag: str, difference: str
) -> None:
    cfg, dataset = run.start()
    before = batches(dataset, STEP, 0)
    run.save(cfg)
    resumed = run.resume(flag)
    assert difference in caplog.text
    batch_size, workers = run.cfg.batch_size, run.cfg.num_workers
    rest = dataset.num_frames - STEP * BATCH_SIZE
    later = batches(resumed, rest // batch_size + 9, workers, batch_size)
    drawn = drawn_in(before + later)
    assert set(drawn) == set(range(dataset.num_frames))
    # Two workers end their parts of the rest at different batches; nothing may come three times.
    assert max(drawn.values()) <= 2
    if workers == 0:
        flat = [index for batch in later for index in batch]
        assert sorted(index for batch in before for index in batch) + sorted(flat[:rest]) != flat
        assert drawn_in(before) + Counter(flat[:rest]) == Counter(range(dataset.num_frames))

    # The resumed run writes checkpoints from which it is continued exactly.
    run.save(run.cfg, STEP + 3)
    assert batches(run.resume(flag), 6, workers, batch_size) == later[3:9]


def test_several_changes_in_a_row(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cfg, dataset = run.start("--dataset.streaming_episode_pool_size=4")
    drawn = drawn_in(batches(dataset, STEP, 0))
    run.save(cfg)
    shapes = [(2, ("--batch_size=3",)), (1, ("--seed=5",)), (3, ("--batch_size=1",)), (2, ())]
    step = STEP
    for world_size, flags in shapes:
        monkeypatch.setenv("WORLD_SIZE", str(world_size))
        for rank in range(world_size):
            monkeypatch.setenv("RANK", str(rank))
            part = run.resume(*flags)
            drawn += drawn_in(batches(part, 3, 0, run.cfg.batch_size))
        step += 3
        # Twice: a run that is pre-empted under the same settings adds nothing to its history.
        run.save(run.cfg, step)
        run.resume(*flags)
        run.save(run.cfg, step)
    assert max(drawn.values()) == 1
    assert len(json.loads(run.cfg.dataset.streaming_order)["state"]["history"]) == 4
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("RANK", "0")
    rest = dataset.num_frames - sum(drawn.values())
    last = run.resume()
    drawn += drawn_in(batches(last, rest // BATCH_SIZE, 0))
    assert max(drawn.values()) == 1
    assert dataset.num_frames - sum(drawn.values()) == rest % BATCH_SIZE


@pytest.mark.parametrize("flag", ["--dataset.episodes=[0,1]", "--dataset.eval_split=0.3"])
def test_other_episodes_are_refused(run: Any, flag: str) -> None:
    run.save(run.start()[0])
    with pytest.raises(OptionError, match="taken with other data") as caught:
        run.resume(flag)
    assert f"--policy.path={run.checkpoint / 'pretrained_model'}" in str(caught.value)


def test_other_windows_are_told_and_do_not_change_the_order(
    run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    cfg, dataset = run.start()
    expected = batches(dataset, STEP + 4, 0)[STEP:]
    run.save(cfg)
    resumed = run.resume("--policy.chunk_size=5")
    assert "action: [0, 1, 2, 3] in the checkpoint, [0, 1, 2, 3, 4] now" in caplog.text
    assert batches(resumed, 4, 0) == expected


def test_a_worker_count_that_some_ranks_must_lower(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # 3 episodes on 2 ranks: one rank has one episode and one worker, the other one has two.
    monkeypatch.setenv("WORLD_SIZE", "2")
    flags = ("--dataset.episodes=[0,1,2]", "--num_workers=4")
    cfg, dataset = run.start(*flags)
    workers = [dataset.num_episodes_for_rank(rank, 2) for rank in range(2)]
    assert sorted(workers) == [1, 2]
    sequences = []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        sequences.append(batches(run.start(*flags)[1], STEP + 6, workers[rank]))
    run.save(cfg)
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        assert batches(run.resume(*flags), 6, workers[rank]) == sequences[rank][STEP:]


def test_settings_that_do_not_change_the_order_may_differ(run: Any) -> None:
    run.save(run.start()[0])
    run.resume(
        "--dataset.streaming_decode_threads=1",
        "--dataset.streaming_frame_cache_gb=0",
        "--dataset.streaming_prefetch_episodes=1",
        "--steps=9",
    )


def edit_note(run: Any, edit: Callable[[dict[str, Any]], None]) -> None:
    def edit_config(saved: dict[str, Any]) -> None:
        note = json.loads(saved["dataset"]["streaming_order"])
        edit(note)
        saved["dataset"]["streaming_order"] = json.dumps(note)

    run.edit_saved(edit_config)


def test_a_dataset_that_has_changed_is_refused(run: Any) -> None:
    run.save(run.start()[0])
    edit_note(run, lambda note: note["state"].update(data="v3.0, 2 episodes, 5 frames, 00"))
    with pytest.raises(OptionError, match=r"taken with other data \(v3\.0, 2 episodes, 5 frames, 00\)"):
        run.resume()


@pytest.mark.parametrize(
    "edit",
    [
        lambda note: note.pop("state"),
        lambda note: note.pop("step"),
        lambda note: note.update(step=STEP + 1),
        lambda note: note.update(state=[]),
        lambda note: note["state"].update(settings={"seed": 1}),
        lambda note: note["state"].update(history=[1]),
        lambda note: note["state"]["settings"].update(world_size=3),
    ],
)
def test_a_note_that_makes_no_sense_is_refused(run: Any, edit: Any) -> None:
    run.save(run.start()[0])
    edit_note(run, edit)
    with pytest.raises(OptionError, match="cannot continue the data order"):
        run.resume()


def test_a_policy_that_drops_other_frames_is_refused(run: Any) -> None:
    from lerobot_streaming.train.factory import make_streaming_datasets

    run.save(run.start()[0])
    cfg = run.configure("--resume=true")
    cfg.checkpoint_path = run.checkpoint
    cfg.policy.drop_n_last_frames = 2
    with pytest.raises(OptionError, match="taken with other data"):
        make_streaming_datasets(cfg)


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
