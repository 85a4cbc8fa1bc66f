from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from lerobot_streaming.errors import OptionError
from tests.train.support import configure, train_arguments

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.datasets import Shelf


@pytest.fixture
def make(lerobot_train: Any, shelf: Shelf, tmp_path: Path) -> Any:
    """Builds the config and both datasets of a run on the 24 tiny episodes."""

    def build(*more: str, streaming: bool = True) -> tuple[Any, Any, Any]:
        arguments = train_arguments(shelf.root("many_tiny"), tmp_path / "out", *more, streaming=streaming)
        cfg = configure(arguments)
        return cfg, *lerobot_train.make_train_eval_datasets(cfg)

    return build


def anchors(dataset: Any) -> list[tuple[int, int]]:
    """Episode and frame of everything that a dataset which does not repeat gives."""
    return [(int(item["episode_index"]), int(item["frame_index"])) for item in dataset]


def one_epoch(dataset: Any) -> list[tuple[int, int]]:
    count = dataset.num_frames_for_rank(0, 1, 0)
    return [anchor for anchor, _ in zip(_endless(dataset), range(count), strict=False)]


def _endless(dataset: Any) -> Any:
    for item in dataset:
        yield int(item["episode_index"]), int(item["frame_index"])


def test_what_the_training_set_is_made_with(make: Any) -> None:
    from lerobot.transforms import ImageTransforms

    from lerobot_streaming import StreamingLeRobotDataset

    cfg, dataset, held_out = make(
        "--num_workers=3",
        "--tolerance_s=0.001",
        "--dataset.depth_output_unit=m",
        "--dataset.episodes=[3,1,2]",
        "--dataset.image_transforms.enable=true",
        "--dataset.streaming_decode_threads=1",
        "--dataset.streaming_byte_budget_gb=0.5",
    )
    assert type(dataset) is StreamingLeRobotDataset
    assert dataset.delta_timestamps is not None
    assert held_out is None
    assert (dataset.seed, dataset.repeat, dataset.shuffle, dataset.return_uint8) == (1000, True, True, True)
    assert (dataset.tolerance_s, dataset.depth_output_unit) == (0.001, "m")
    assert dataset.episodes == [3, 1, 2]
    assert isinstance(dataset.image_transforms, ImageTransforms)
    assert set(dataset.delta_timestamps) == {"action"}
    assert len(dataset.delta_timestamps["action"]) == 4
    options = dataset._options
    assert (options.max_num_shards, options.decode_threads, options.byte_budget_gb) == (3, 1, 0.5)
    assert f"3 episodes, {dataset.num_frames} frames" in cfg.dataset.streaming_order


def test_null_seed_means_42_and_no_workers_one_shard(make: Any) -> None:
    _, dataset, _ = make("--seed=null", "--num_workers=0")
    assert dataset.seed == 42
    assert dataset._options.max_num_shards == 1


def test_a_seed_of_zero_stays_zero(make: Any) -> None:
    assert make("--seed=0")[1].seed == 0


@pytest.mark.parametrize("use", ["true", "false"])
def test_statistics_are_those_of_map_style(make: Any, use: str) -> None:
    flag = f"--dataset.use_imagenet_stats={use}"
    streamed, stock = make(flag)[1].meta.stats, make(flag, streaming=False)[1].meta.stats
    assert streamed.keys() == stock.keys()
    for key in stock:
        assert streamed[key].keys() == stock[key].keys()
        for name in stock[key]:
            assert torch.equal(torch.as_tensor(streamed[key][name]), torch.as_tensor(stock[key][name]))


def test_items_are_those_of_map_style_training(make: Any) -> None:
    stock = make("--dataset.video_backend=pyav", streaming=False)[1]
    _, dataset, _ = make("--dataset.streaming_episode_pool_size=3")
    for item, _ in zip(dataset, range(12), strict=False):
        expected = stock[int(item["index"])]
        assert item.keys() == expected.keys()
        for key, value in expected.items():
            if isinstance(value, torch.Tensor):
                assert item[key].dtype == value.dtype
                assert torch.equal(item[key], value), key
            else:
                assert item[key] == value


def test_anchors_that_the_policy_cannot_use_are_left_out(make: Any, shelf: Shelf, tmp_path: Path) -> None:
    from lerobot.datasets import EpisodeAwareSampler

    from lerobot_streaming.train.factory import make_streaming_datasets

    cfg = make()[0]
    cfg.policy.drop_n_last_frames = 2
    dataset, _ = make_streaming_datasets(cfg)
    sampler = EpisodeAwareSampler(
        dataset.meta.episodes["dataset_from_index"],
        dataset.meta.episodes["dataset_to_index"],
        drop_n_last_frames=2,
    )
    count = dataset.num_frames_for_rank(0, 1, 0)
    drawn = sorted(int(item["index"]) for item, _ in zip(dataset, range(count), strict=False))
    assert drawn == sorted(sampler.indices)
    assert len(drawn) < dataset.num_frames
    assert tmp_path.exists()
    assert shelf is not None


def test_eval_split_is_disjoint_chronological_and_ends(make: Any) -> None:
    _, dataset, held_out = make("--dataset.eval_split=0.2", "--dataset.image_transforms.enable=true")
    stock_train, stock_held_out = make("--dataset.eval_split=0.2", streaming=False)[1:]
    assert dataset.episodes == stock_train.episodes
    assert held_out.episodes == sorted(stock_held_out.episodes)
    assert not set(dataset.episodes) & set(held_out.episodes)
    assert held_out.image_transforms is None
    assert dataset.image_transforms is not None
    lengths = held_out.meta.episodes["length"]
    expected = [(episode, frame) for episode in held_out.episodes for frame in range(lengths[episode])]
    assert anchors(held_out) == expected
    assert [int(item["index"]) for item in stock_held_out] == [int(item["index"]) for item in held_out]
    # The next evaluation sees the same again.
    assert anchors(held_out) == expected
    assert {episode for episode, _ in one_epoch(dataset)} == set(dataset.episodes)


def test_evaluation_uses_every_frame_whatever_the_policy_drops(make: Any) -> None:
    from lerobot_streaming.train.factory import make_streaming_datasets

    cfg = make("--dataset.eval_split=0.2")[0]
    cfg.policy.drop_n_last_frames = 2
    dataset, held_out = make_streaming_datasets(cfg)
    assert held_out is not None
    assert len(anchors(held_out)) == held_out.num_frames
    assert dataset.num_frames_for_rank(0, 1, 0) < dataset.num_frames


@pytest.mark.parametrize("max_samples", [1, 5, 9, 10_000])
def test_max_eval_samples_takes_the_frames_that_lerobot_takes(make: Any, max_samples: int) -> None:
    _, _, held_out = make("--dataset.eval_split=0.3", f"--max_eval_samples={max_samples}")
    stock = make("--dataset.eval_split=0.3", streaming=False)[2]
    tasks = stock.hf_dataset.data.column("task_index").to_numpy()
    index = stock.hf_dataset.data.column("index").to_numpy()
    per_task = max(1, max_samples // len(set(tasks.tolist())))
    expected = [int(i) for task in sorted(set(tasks.tolist())) for i in index[tasks == task][:per_task]]
    assert sorted(int(item["index"]) for item in held_out) == sorted(expected)


def test_a_split_that_leaves_nothing_is_refused(make: Any) -> None:
    with pytest.raises(OptionError, match="holds out all"):
        make("--dataset.eval_split=0.9", "--dataset.episodes=[0,1]")


def test_fewer_held_out_episodes_than_processes_are_refused(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(OptionError, match=r"max_eval_samples=2 holds out 2 episode\(s\) for 3 processes"):
        make("--dataset.eval_split=0.2", "--max_eval_samples=2")


def test_only_metadata_is_opened_for_the_split(make: Any, shelf: Shelf) -> None:
    # A local directory: nothing may appear in it, and nothing is copied anywhere.
    root = shelf.root("many_tiny")
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    make("--dataset.eval_split=0.2")
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before
