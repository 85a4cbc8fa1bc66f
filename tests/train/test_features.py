"""`--dataset.streaming_features`: a run on some features is one on a dataset that has no others."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from draccus.utils import ParsingError

from lerobot_streaming.errors import OptionError
from tests.support.datasets import ACTION, CAMERA_A, CAMERA_B, REPO_ID, STATE, Shelf
from tests.train.support import configure, parse, read_json, run_lerobot_train, train_arguments

if TYPE_CHECKING:
    from pathlib import Path

FLAG = "--dataset.streaming_features"
SELECTED = f"{FLAG}=[{CAMERA_B},{STATE},{ACTION}]"
ALWAYS = {"index", "episode_index", "frame_index", "timestamp", "task_index"}
KEPT = {CAMERA_B, STATE, ACTION, *ALWAYS}


@pytest.fixture
def config(lerobot_train: Any, shelf: Shelf, tmp_path: Path) -> Any:
    """Gives the config of a run on the dataset with two cameras."""
    del lerobot_train

    def build(*more: str) -> Any:
        return configure(train_arguments(shelf.root("rotating_files"), tmp_path / "out", *more))

    return build


def make(cfg: Any) -> tuple[Any, Any]:
    from lerobot_streaming.train.factory import make_streaming_datasets

    return make_streaming_datasets(cfg)


@pytest.mark.parametrize("eval_split", ["0", "0.5"])
def test_everything_that_lerobot_sees_is_restricted(config: Any, eval_split: str) -> None:
    for dataset in make(config(SELECTED, f"--dataset.eval_split={eval_split}")):
        if dataset is None:
            assert eval_split == "0"
            continue
        item = next(iter(dataset))
        assert set(item) == {*KEPT, "task", f"{ACTION}_is_pad"}
        assert set(dataset.features) == set(dataset.meta.features) == KEPT
        assert set(dataset.meta.stats) == KEPT
        assert dataset.meta.camera_keys == [CAMERA_B]
        # Those of ImageNet, as in a run on all features.
        assert dataset.meta.stats[CAMERA_B]["mean"].flatten().tolist() == pytest.approx([0.485, 0.456, 0.406])


def test_without_the_flag_nothing_is_restricted(config: Any) -> None:
    dataset, _ = make(config())
    assert set(dataset.meta.features) == {*KEPT, CAMERA_A}
    assert {CAMERA_A, CAMERA_B} <= set(next(iter(dataset)))


def test_a_plain_config_of_lerobot_selects_nothing(config: Any) -> None:
    from lerobot.configs.default import DatasetConfig

    cfg = config()
    cfg.dataset = DatasetConfig(REPO_ID, root=cfg.dataset.root, streaming=True)
    dataset, _ = make(cfg)
    assert CAMERA_A in dataset.features


def test_windows_of_the_policy_are_those_of_the_selected_features(config: Any) -> None:
    from lerobot.policies.diffusion.configuration_diffusion import DiffusionConfig

    cfg = config(SELECTED)
    cfg.policy = DiffusionConfig(device="cpu", push_to_hub=False, drop_n_last_frames=0)
    dataset, _ = make(cfg)
    assert set(dataset.delta_indices) == {CAMERA_B, STATE, ACTION}
    assert len(next(iter(dataset))[CAMERA_B]) == 2


def test_the_inputs_of_a_new_policy_are_the_selected_features(config: Any) -> None:
    from lerobot.policies import make_policy

    cfg = config(SELECTED)
    dataset, _ = make(cfg)
    policy = make_policy(cfg.policy, ds_meta=dataset.meta)
    assert set(policy.config.input_features) == {CAMERA_B, STATE}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "is an empty list"),
        ("[action,action]", r"contains duplicates: \['action'\]"),
    ],
)
@pytest.mark.usefixtures("lerobot_train")
def test_a_selection_that_makes_no_sense_is_refused_by_the_parser(text: str, message: str) -> None:
    with pytest.raises(ParsingError) as caught:
        parse(["--dataset.repo_id=a/b", f"{FLAG}={text}"])
    assert isinstance(caught.value.__cause__, OptionError)
    with pytest.raises(OptionError, match=f"{FLAG} {message}"):
        raise caught.value.__cause__


@pytest.mark.usefixtures("lerobot_train")
def test_a_bare_name_is_refused_by_the_parser() -> None:
    with pytest.raises(ParsingError, match="streaming_features"):
        parse(["--dataset.repo_id=a/b", f"{FLAG}=action"])


def test_an_unknown_name_is_told_with_the_flag(config: Any) -> None:
    with pytest.raises(OptionError, match=rf"{FLAG} names \['nope'\], but the dataset has"):
        make(config(f"{FLAG}=[nope]"))


@pytest.mark.usefixtures("lerobot_train")
def test_the_flag_is_saved_and_unset_by_default(tmp_path: Path) -> None:
    from lerobot.configs.train import TrainPipelineConfig

    assert parse(["--dataset.repo_id=a/b"]).dataset.streaming_features is None
    cfg = parse(["--dataset.repo_id=a/b", "--dataset.streaming=true", f"{FLAG}=[b, a]"])
    cfg.save_pretrained(tmp_path)
    assert TrainPipelineConfig.from_pretrained(tmp_path).dataset.streaming_features == ["b", "a"]
    # A file of a run before there was the flag.
    file = tmp_path / "train_config.json"
    saved = read_json(file)
    del saved["dataset"]["streaming_features"]
    file.write_text(json.dumps(saved))
    assert TrainPipelineConfig.from_pretrained(tmp_path).dataset.streaming_features is None


def save_checkpoint(cfg: Any, folder: Path, step: int) -> None:
    from lerobot.common.train_utils import save_training_step

    for name in ("pretrained_model", "training_state"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    cfg.save_pretrained(folder / "pretrained_model")
    save_training_step(step, folder / "training_state", num_processes=1, batch_size=cfg.batch_size)


def resume(config: Any, folder: Path, *flags: str) -> Any:
    cfg = config("--resume=true", *flags)
    cfg.checkpoint_path = folder
    return make(cfg)[0]


def drawn(dataset: Any, count: int) -> list[int]:
    return [int(item["index"]) for item, _ in zip(dataset, range(count), strict=False)]


def test_a_resumed_run_notices_another_selection(
    config: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cfg = config(SELECTED)
    dataset, _ = make(cfg)
    expected = drawn(dataset, 18)
    save_checkpoint(cfg, tmp_path / "5", 5)
    assert drawn(resume(config, tmp_path / "5", SELECTED), 8) == expected[10:]
    assert "other features" not in caplog.text

    # Other features than cameras do not shape the order.
    assert drawn(resume(config, tmp_path / "5", f"{FLAG}=[{CAMERA_B},{ACTION}]"), 8) == expected[10:]
    assert f"left out: ['{STATE}']; new: none" in caplog.text
    caplog.clear()
    rest = drawn(resume(config, tmp_path / "5"), 17)
    assert f"left out: none; new: ['{CAMERA_A}']" in caplog.text
    assert f"cameras: ['{CAMERA_B}'] then, all now" in caplog.text
    assert sorted(expected[:10] + rest) == list(range(27))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_real_run_is_that_on_a_dataset_without_the_other_features(shelf: Shelf, tmp_path: Path) -> None:
    from lerobot.datasets import LeRobotDataset
    from lerobot.datasets.dataset_tools import remove_feature

    root = shelf.copy("rotating_files", tmp_path / "data")
    whole = LeRobotDataset(REPO_ID, root, video_backend="pyav")
    remove_feature(whole, CAMERA_A, output_dir=tmp_path / "removed", repo_id=REPO_ID)
    shutil.rmtree(root / "videos" / CAMERA_A)
    more = ("--policy.dropout=0", "--save_checkpoint=true", "--num_workers=2")
    runs, policies = [], []
    for name, place, flags in (("some", root, (SELECTED,)), ("removed", tmp_path / "removed", ())):
        out = tmp_path / f"out-{name}"
        run = run_lerobot_train(train_arguments(place, out, *more, *flags))
        assert run.code == 0, run.output
        runs.append(run)
        policies.append(out / "checkpoints/last/pretrained_model")
    assert len(runs[0].losses) == 3
    assert runs[0].losses == runs[1].losses
    for file in ("config.json", "model.safetensors", "policy_preprocessor.json"):
        assert (policies[0] / file).read_bytes() == (policies[1] / file).read_bytes(), file
    dataset = read_json(policies[0] / "train_config.json")["dataset"]
    assert dataset["streaming_features"] == [CAMERA_B, STATE, ACTION]

    resumed = run_lerobot_train(
        [f"--config_path={policies[0] / 'train_config.json'}", "--resume=true", "--steps=5"]
    )
    assert resumed.code == 0, resumed.output
    assert len(resumed.losses) == 2
    assert "Resuming the data order behind 6 samples" in resumed.output
