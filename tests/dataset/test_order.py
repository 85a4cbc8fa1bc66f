"""Coverage, order and state of `StreamingLeRobotDataset`."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import random
import time
from concurrent.futures import ProcessPoolExecutor
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from lerobot_streaming import StreamingLeRobotDataset
from lerobot_streaming.errors import OptionError, ShardingError
from tests.support.datasets import REPO_ID, Shelf
from tests.support.oracle import stream_items

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from lerobot_streaming.decode.frame_cache import FrameCache

# Forked workers start at once; that spawned ones work too is shown where it matters. Python 3.12 warns of any
# fork of a process that runs threads, and torch alone starts some.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")

KIND = "many_tiny"


def _order(source: Iterable[Any]) -> list[int]:
    return [int(item["index"]) for item in source]


def _dataset(shelf: Shelf, **arguments: Any) -> StreamingLeRobotDataset:
    return StreamingLeRobotDataset(REPO_ID, shelf.root(KIND), return_uint8=True, **arguments)


def _place(state: dict[str, Any]) -> dict[str, Any]:
    return {key: state[key] for key in ("epoch", "offset", "batch_size")}


def identity(item: Any) -> Any:
    return item


@pytest.mark.parametrize("strategy", ["remaining", "round_robin"])
@pytest.mark.parametrize("pool", [1, 3, None])
def test_every_frame_is_drawn_exactly_once_per_epoch(shelf: Shelf, strategy: Any, pool: int | None) -> None:
    dataset = _dataset(shelf, sampling_strategy=strategy, episode_pool_size=pool)
    everything = list(range(dataset.num_frames))
    passes = [_order(dataset) for _ in range(3)]
    assert all(sorted(one) == everything for one in passes)
    assert passes[0] != passes[1] != passes[2]
    again = _dataset(shelf, sampling_strategy=strategy, episode_pool_size=pool)
    assert [_order(again) for _ in range(3)] == passes


def test_repeat_runs_on_over_epochs(shelf: Shelf) -> None:
    dataset = _dataset(shelf, repeat=True)
    count = dataset.num_frames
    iterator = iter(dataset)
    drawn = [int(next(iterator)["index"]) for _ in range(2 * count + 5)]
    iterator.close()  # type: ignore[attr-defined]  # It is a generator.
    finite = _dataset(shelf)
    assert drawn[:count] == _order(finite)
    assert drawn[count : 2 * count] == _order(finite)
    assert drawn[2 * count :] == _order(finite)[:5]


def test_the_order_does_not_depend_on_threads_queues_or_timing(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = _order(
        _dataset(shelf, frame_cache_gb=0, decode_threads=1, decoded_queue_size=1, prefetch_episodes=0)
    )
    from lerobot_streaming.decode.frame_cache import FrameCache

    original = FrameCache.frames
    dice = random.Random(5)

    def delayed(self: FrameCache, *arguments: Any) -> Any:
        time.sleep(dice.random() * 0.004)
        return original(self, *arguments)

    monkeypatch.setattr(FrameCache, "frames", delayed)
    for options in (
        {"decode_threads": 4, "decoded_queue_size": 16},
        {"decode_threads": 3, "decoded_queue_size": 2, "prefetch_episodes": 2, "max_num_shards": 1},
    ):
        assert _order(_dataset(shelf, **options)) == expected


def test_set_epoch_chooses_the_plan_and_passes_count_up(shelf: Shelf) -> None:
    dataset = _dataset(shelf)
    passes = [_order(dataset) for _ in range(3)]
    dataset.set_epoch(1)
    assert [_order(dataset), _order(dataset)] == passes[1:]
    dataset.set_epoch(0)
    assert _order(dataset) == passes[0]
    with pytest.raises(OptionError, match="epoch must be an integer >= 0, got -1"):
        dataset.set_epoch(-1)


@pytest.mark.slow
@pytest.mark.parametrize("persistent", [True, False])
def test_passes_over_a_loader_differ_and_cover(shelf: Shelf, persistent: bool) -> None:
    def passes() -> list[list[int]]:
        loader = DataLoader(
            _dataset(shelf),
            batch_size=None,
            num_workers=2,
            persistent_workers=persistent,
            multiprocessing_context="spawn",
            collate_fn=identity,
        )
        return [_order(loader) for _ in range(2 if persistent else 3)]

    first = passes()
    assert len({tuple(one) for one in first}) == len(first)
    assert all(sorted(one) == sorted(first[0]) for one in first)
    assert len(set(first[0])) == len(first[0])
    if persistent:
        assert passes() == first


def test_a_state_continues_the_sequence_at_every_place(shelf: Shelf) -> None:
    whole = _dataset(shelf, repeat=True)
    count = whole.num_frames
    iterator = iter(whole)
    sequence = [int(next(iterator)["index"]) for _ in range(2 * count)]
    iterator.close()  # type: ignore[attr-defined]
    for stop in (0, 1, 7, count - 1, count, count + 3):
        dataset = _dataset(shelf, repeat=True)
        iterator = iter(dataset)
        for _ in range(stop):
            next(iterator)
        state = dataset.state_dict()
        iterator.close()  # type: ignore[attr-defined]
        assert _place(state) == {"epoch": 0, "offset": stop, "batch_size": None}
        state = json.loads(json.dumps(state))
        resumed = _dataset(shelf, repeat=True)
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        iterator = iter(resumed)
        assert [int(next(iterator)["index"]) for _ in range(20)] == sequence[stop : stop + 20]
        iterator.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("batches", [1, 2, 3, 7])
def test_a_rank_offset_is_dealt_to_the_workers_in_turn(shelf: Shelf, batches: int) -> None:
    def loader(dataset: StreamingLeRobotDataset) -> DataLoader[Any]:
        return DataLoader(dataset, batch_size=3, num_workers=2, multiprocessing_context="fork")

    expected = [batch["index"].tolist() for batch in loader(_dataset(shelf))]
    resumed = _dataset(shelf)
    resumed.load_state_dict({"epoch": 0, "offset": 3 * batches, "batch_size": 3})
    assert [batch["index"].tolist() for batch in loader(resumed)] == expected[batches:]


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"epoch": -1, "offset": 0, "batch_size": 1},
        {"epoch": 0, "offset": -1, "batch_size": None},
        {"epoch": 0, "offset": 2.0, "batch_size": None},
        {"epoch": 0, "offset": 2, "batch_size": 0},
        {"epoch": 0, "offset": 5, "batch_size": 2},
    ],
)
def test_a_wrong_state_is_refused(shelf: Shelf, state: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="state's"):
        _dataset(shelf).load_state_dict(state)


def test_an_offset_beyond_a_finite_epoch_is_refused(shelf: Shelf) -> None:
    dataset = _dataset(shelf)
    dataset.load_state_dict({"epoch": 0, "offset": 10_000, "batch_size": None})
    with pytest.raises(OptionError, match=r"lies 9.* samples beyond"):
        next(iter(dataset))


def test_ranks_share_the_episodes(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    drawn = []
    dataset = _dataset(shelf)
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        order = _order(dataset)
        assert len(order) == dataset.num_frames_for_rank(rank, 3) == dataset.num_frames_for_rank(rank, 3, 2)
        drawn += order
    assert sorted(drawn) == list(range(dataset.num_frames))
    episodes = sum(dataset.num_episodes_for_rank(rank, 3) for rank in range(3))
    assert episodes == dataset.num_episodes
    monkeypatch.setenv("WORLD_SIZE", "many")
    with pytest.raises(OptionError, match="WORLD_SIZE='many'"):
        next(iter(dataset))


# torch warns of more workers than cores.
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_too_many_ranks_or_workers_say_what_to_lower(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = StreamingLeRobotDataset(REPO_ID, shelf.root("av1"), episodes=[0, 1])
    loader = DataLoader(dataset, num_workers=3, multiprocessing_context="fork")
    with pytest.raises(ShardingError, match="num_workers"):
        next(iter(loader))
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(ShardingError, match="4 ranks"):
        next(iter(dataset))
    with pytest.raises(ShardingError, match="4 ranks"):
        dataset.num_episodes_for_rank(0, 4)


def test_anchors_at_the_ends_can_be_left_out(shelf: Shelf) -> None:
    from lerobot.datasets import EpisodeAwareSampler

    root = shelf.root("rotating_files")
    dataset = StreamingLeRobotDataset(REPO_ID, root, delta_timestamps={"action": [0.0, 0.1, 0.2]})
    dataset.limit_anchors(drop_n_first_frames=1, drop_n_last_frames=2)
    sampler = EpisodeAwareSampler(
        dataset.meta.episodes["dataset_from_index"],
        dataset.meta.episodes["dataset_to_index"],
        drop_n_first_frames=1,
        drop_n_last_frames=2,
    )
    items = list(dataset)
    assert sorted(_order(items)) == sorted(sampler)
    # Windows still reach what is no anchor any more.
    assert not any(item["action_is_pad"].any() for item in items)
    with pytest.raises(OptionError, match="drop_n_last_frames must be an integer >= 0, got -1"):
        dataset.limit_anchors(drop_n_last_frames=-1)
    with pytest.raises(ShardingError, match="No frame is left"):
        StreamingLeRobotDataset(REPO_ID, root).limit_anchors(drop_n_last_frames=1000)


def test_it_pickles_before_and_after_iteration_and_stays_small(shelf: Shelf) -> None:
    dataset = _dataset(shelf)
    copy = pickle.loads(pickle.dumps(dataset))
    expected = _order(dataset)
    assert _order(copy) == expected
    again = pickle.loads(pickle.dumps(dataset))
    again.set_epoch(0)
    assert _order(again) == expected
    assert again.meta.total_episodes == dataset.meta.total_episodes
    assert len(pickle.dumps(dataset)) < 200_000


def flaky_transform(image: torch.Tensor) -> torch.Tensor:
    """Uses all three random generators, as transforms of users do."""
    shift = int(torch.randint(0, 50, ())) + random.randrange(50) + int(np.random.randint(0, 50))  # noqa: NPY002
    return image + shift


def test_augmentation_repeats_and_leaves_the_process_alone(shelf: Shelf) -> None:
    def images(**options: Any) -> dict[int, torch.Tensor]:
        dataset = _dataset(shelf, image_transforms=flaky_transform, **options)
        dataset.set_epoch(options.pop("epoch", 0))
        key = dataset.meta.camera_keys[0]
        return {index: item[key] for index, item in stream_items(dataset).items()}

    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002
    states = torch.get_rng_state(), random.getstate(), str(np.random.get_state(legacy=False))  # noqa: NPY002
    first = images()
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert str(np.random.get_state(legacy=False)) == states[2]  # noqa: NPY002
    torch.manual_seed(4)
    second = images(decode_threads=1, decoded_queue_size=2, episode_pool_size=2)
    assert all(torch.equal(first[index], second[index]) for index in first)
    other = images(seed=43)
    assert any(not torch.equal(first[index], other[index]) for index in first)


def test_indexing_says_what_to_do(shelf: Shelf) -> None:
    with pytest.raises(TypeError, match=r"cannot be indexed \(got \[100\]\).*LeRobotDataset"):
        _dataset(shelf)[100]


def test_the_attributes_are_those_of_the_specification(shelf: Shelf, tmp_path: Path) -> None:
    root = shelf.root("rotating_files")
    dataset = StreamingLeRobotDataset(REPO_ID, root, episodes=[2, 0])
    assert dataset.root == root
    assert dataset.repo_id == REPO_ID
    assert dataset.repo_type == "dataset"
    assert dataset.revision == "v3.0"
    assert dataset.episodes == [2, 0]
    assert dataset.num_episodes == 2
    assert dataset.fps == dataset.meta.fps == 10
    assert dataset.num_shards == 2
    assert dataset.features.keys() == dataset.meta.features.keys()
    assert tmp_path.exists()


def test_stats_are_read_while_workers_run(shelf: Shelf) -> None:
    dataset = StreamingLeRobotDataset(REPO_ID, shelf.root("rotating_files"), return_uint8=True)
    loader = DataLoader(
        dataset, batch_size=None, num_workers=2, multiprocessing_context="spawn", collate_fn=identity
    )
    count = len(_order(loader))
    report = dataset.stats()
    total = report["total"]
    assert len(report["workers"]) == 2
    assert total["samples"] == count == dataset.num_frames
    assert total["episodes_admitted"] == dataset.num_episodes
    assert total["bytes_fetched"] > 0
    assert total["frames_decoded"] + total["frames_from_cache"] >= 2 * count
    assert 0 < total["decodes_per_sample"] < 2
    assert sum(worker["samples"] for worker in report["workers"]) == count


def test_two_iterators_of_one_dataset_do_not_disturb_each_other(shelf: Shelf) -> None:
    dataset = _dataset(shelf)
    first, second = iter(dataset), iter(dataset)
    pairs = [(int(a["index"]), int(b["index"])) for a, b in zip(first, second, strict=True)]
    everything = list(range(dataset.num_frames))
    assert sorted(a for a, _ in pairs) == sorted(b for _, b in pairs) == everything
    assert [a for a, _ in pairs] != [b for _, b in pairs]


def test_a_state_loaded_during_a_pass_is_for_the_next_one(shelf: Shelf) -> None:
    dataset = _dataset(shelf)
    expected = _order(dataset)
    dataset.set_epoch(0)
    iterator = iter(dataset)
    next(iterator)
    dataset.load_state_dict({"epoch": 0, "offset": 10, "batch_size": None})
    next(iterator)
    iterator.close()  # type: ignore[attr-defined]
    assert _order(dataset) == expected[10:]


def test_set_epoch_forgets_a_broken_off_pass(shelf: Shelf) -> None:
    dataset = _dataset(shelf)
    iterator = iter(dataset)
    next(iterator)
    iterator.close()  # type: ignore[attr-defined]
    dataset.set_epoch(7)
    assert _place(dataset.state_dict()) == {"epoch": 7, "offset": 0, "batch_size": None}


@pytest.mark.parametrize(
    "copy", [lambda one: pickle.loads(pickle.dumps(one)), deepcopy], ids=["pickle", "deepcopy"]
)
def test_a_copy_counts_its_own_passes_in_forked_workers(shelf: Shelf, copy: Any) -> None:
    dataset = copy(_dataset(shelf))
    loader = DataLoader(
        dataset, batch_size=None, num_workers=2, multiprocessing_context="fork", collate_fn=identity
    )
    first, second = _order(loader), _order(loader)
    assert sorted(first) == sorted(second)
    assert first != second
    assert dataset.stats()["total"]["samples"] == 2 * len(first)


def _streamed_on_a_rank(pickled: bytes) -> int:
    os.environ["RANK"], os.environ["WORLD_SIZE"] = "1", "2"
    dataset = pickle.loads(pickled)
    loader = DataLoader(
        dataset, batch_size=None, num_workers=2, multiprocessing_context="fork", collate_fn=identity
    )
    return len(_order(loader))


def test_a_dataset_pickled_in_a_launcher_streams_the_rank_that_it_arrives_at(shelf: Shelf) -> None:
    dataset = _dataset(shelf)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        streamed = pool.submit(_streamed_on_a_rank, pickle.dumps(dataset)).result()
    assert streamed == dataset.num_frames_for_rank(1, 2)


class Resuming(torch.utils.data.IterableDataset[Any]):
    """What torchdata's StatefulDataLoader does: each worker loads its own state before it iterates."""

    def __init__(self, dataset: StreamingLeRobotDataset, offsets: list[int]) -> None:
        self.dataset = dataset
        self.offsets = offsets

    def __iter__(self) -> Any:
        info = torch.utils.data.get_worker_info()
        assert info is not None
        state = {"epoch": 0, "offset": self.offsets[info.id], "batch_size": None}
        self.dataset.load_state_dict(state)
        assert _place(self.dataset.state_dict()) == state
        return iter(self.dataset)


def test_each_worker_resumes_its_own_state(shelf: Shelf) -> None:
    def loader(dataset: Any) -> DataLoader[Any]:
        return DataLoader(dataset, batch_size=1, num_workers=2, multiprocessing_context="fork")

    whole = [int(batch["index"]) for batch in loader(_dataset(shelf))]
    resumed = [int(batch["index"]) for batch in loader(Resuming(_dataset(shelf), [3, 3]))]
    assert resumed == whole[6:]


def test_a_state_that_cannot_be_dealt_to_workers_is_refused(shelf: Shelf) -> None:
    dataset = _dataset(shelf)
    dataset.load_state_dict({"epoch": 0, "offset": 20, "batch_size": None})
    with pytest.raises(OptionError, match="has no batch_size"):
        next(iter(DataLoader(dataset, num_workers=2, multiprocessing_context="fork")))


def test_the_training_process_does_not_guess_where_its_workers_are(shelf: Shelf) -> None:
    dataset = _dataset(shelf)
    loader = DataLoader(dataset, batch_size=4, num_workers=1, multiprocessing_context="fork")
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(OptionError, match="StatefulDataLoader"):
        dataset.state_dict()
    del iterator


def test_a_pass_that_is_refused_uses_nothing_up(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = _dataset(shelf)
    state = {"epoch": 0, "offset": 20, "batch_size": None}
    dataset.load_state_dict(state)
    with monkeypatch.context() as patch:
        patch.setenv("WORLD_SIZE", "1000")
        with pytest.raises(ShardingError):
            next(iter(dataset))
    assert dataset.state_dict() == state
