"""States of custom loops that count their batches: exact continuation and other shapes."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import torch

from lerobot_streaming.errors import OptionError
from lerobot_streaming.storage.local import LocalReader
from tests.dataset.loops import SIX, everything, flat, indices, loader, make, take

if TYPE_CHECKING:
    from tests.support.datasets import Shelf

# Forked workers start at once; that spawned ones work too is shown where it matters. Python 3.12 warns of any
# fork of a process that runs threads, and torch alone starts some.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # More workers than cores.
]


@pytest.mark.parametrize("persistent", [True, False])
def test_the_loops_own_count_makes_a_state(shelf: Shelf, persistent: bool) -> None:
    dataset = make(shelf)
    whole = loader(dataset, persistent_workers=persistent)
    first = indices(whole)
    iterator = iter(whole)
    second = [next(iterator)["index"].tolist() for _ in range(3)]
    state = json.loads(json.dumps(dataset.state_dict(batches=3, batch_size=2)))
    assert (state["epoch"], state["offset"], state["batch_size"]) == (1, 6, 2)
    second += indices(iterator)
    resumed = make(shelf)
    resumed.load_state_dict(state)
    assert indices(loader(resumed)) == second[3:]
    assert first != second

    # A state of the resumed pass counts on from the loaded one.
    resumed = make(shelf)
    resumed.load_state_dict(state)
    assert take(loader(resumed), 2) == second[3:5]
    state = resumed.state_dict(batches=2, batch_size=2)
    again = make(shelf)
    again.load_state_dict(state)
    assert indices(loader(again)) == second[5:]
    with pytest.raises(OptionError, match="batch_size is 3, but the loaded state has 2"):
        resumed.state_dict(batches=2, batch_size=3)


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_another_number_of_workers_deals_the_rest(shelf: Shelf, num_workers: int, told: bool) -> None:
    dataset = make(shelf)
    begun = take(loader(dataset), 4)
    state = dataset.state_dict(batches=4, batch_size=2)
    resumed = make(shelf)
    resumed.load_state_dict(state, num_workers=num_workers if told else None)
    source = loader(resumed, num_workers=num_workers)
    assert sorted(flat(begun + indices(source))) == everything(dataset)
    # The next epoch is that of a run which had these settings from the start.
    fresh = make(shelf)
    fresh.set_epoch(1)
    assert indices(source) == indices(loader(fresh, num_workers=num_workers))


def test_changes_of_ranks_workers_pool_strategy_and_batch_size_in_a_row(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: Counter[int] = Counter()
    state: Any = None
    dataset = make(shelf)
    shapes: list[tuple[int, int, int, dict[str, Any]]] = [
        (1, 0, 1, {}),
        (2, 2, 1, {"episode_pool_size": 1}),
        (1, 3, 2, {"sampling_strategy": "round_robin"}),
        (3, 1, 1, {"seed": 9, "byte_budget_gb": 1.0}),
        (2, 0, 100, {"shuffle": False}),
    ]
    for number, (world_size, num_workers, batch_size, options) in enumerate(shapes):
        last = number == len(shapes) - 1
        monkeypatch.setenv("WORLD_SIZE", str(world_size))
        after = None
        for rank in range(world_size):
            monkeypatch.setenv("RANK", str(rank))
            dataset = make(shelf, **options)
            if state is not None:
                dataset.load_state_dict(state, batch_size=batch_size)
            source = loader(dataset, num_workers=num_workers, batch_size=batch_size)
            batches = indices(source) if last else take(source, 2)
            drawn.update(flat(batches))
            if num_workers:
                after = dataset.state_dict(batches=2, batch_size=batch_size)
            else:
                after = after or dataset.state_dict()
        state = after
    assert drawn == Counter(everything(dataset))


def test_a_finite_rank_that_has_nothing_left_gives_an_empty_pass(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = make(shelf)
    iterator = iter(dataset)
    order = [int(next(iterator)["index"]) for _ in range(dataset.num_frames - 1)]
    state = dataset.state_dict()
    iterator.close()  # type: ignore[attr-defined]
    monkeypatch.setenv("WORLD_SIZE", "2")
    resumed = []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        part = make(shelf)
        part.load_state_dict(state)
        resumed.append([int(item["index"]) for item in part])
        # The next pass is whole.
        assert sum(1 for _ in part) == part.num_frames_for_rank(rank, 2)
    assert sorted(map(len, resumed)) == [0, 1]
    assert sorted(order + flat(resumed)) == everything(dataset)


def test_running_workers_do_not_miss_a_state_of_other_settings(shelf: Shelf) -> None:
    dataset = make(shelf)
    source = loader(dataset, persistent_workers=True)
    take(source, 1)
    state = make(shelf, seed=5).state_dict()
    dataset.load_state_dict({**state, "offset": 4, "batch_size": 2})
    with pytest.raises(OptionError, match="already running"):
        next(iter(source))


def test_a_state_of_other_data_is_refused(shelf: Shelf) -> None:
    dataset = make(shelf)
    state = dataset.state_dict()
    with pytest.raises(OptionError, match="taken with other data"):
        make(shelf, episodes=SIX[:-1]).load_state_dict(state)
    dataset.limit_anchors(drop_n_last_frames=1)
    with pytest.raises(OptionError, match="taken with other data"):
        dataset.load_state_dict(state)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"other": 1}, r"keys \['other'\] are not known"),
        ({"share": -1}, "share must be"),
        ({"share": 1, "offset": 2}, "one DataLoader worker"),
        ({"history": 3}, "history must be"),
        ({"history": [{}]}, "history must hold"),
        ({"settings": {"seed": 1}}, "settings must have the names"),
        ({"data": 5}, "data must be a text"),
    ],
)
def test_parts_of_a_state_are_checked(shelf: Shelf, change: dict[str, Any], message: str) -> None:
    dataset = make(shelf)
    with pytest.raises(OptionError, match=message):
        dataset.load_state_dict({"epoch": 0, "offset": 0, "batch_size": None, **change})
    with pytest.raises(OptionError, match="batch_size must be an integer >= 1, got 0"):
        dataset.load_state_dict({"epoch": 0, "offset": 0, "batch_size": 1}, batch_size=0)


def test_a_resume_late_in_an_epoch_fetches_only_what_is_left(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    original = LocalReader.read_into

    def watched(self: LocalReader, path: str, offset: int, view: memoryview) -> None:
        read.append(path)
        original(self, path, offset, view)

    dataset = make(shelf, repeat=True, episode_pool_size=2, prefetch_episodes=0)
    count = dataset.num_frames
    order = [int(item["index"]) for item in make(shelf)]
    offset = int(count * 0.9)
    monkeypatch.setattr(LocalReader, "read_into", watched)
    resumed = make(shelf, episode_pool_size=2, prefetch_episodes=0)
    resumed.load_state_dict({"epoch": 0, "offset": offset, "batch_size": None})
    read.clear()
    items = list(resumed)
    assert [int(item["index"]) for item in items] == order[offset:]
    stats = resumed.stats()["total"]
    left = {int(item["episode_index"]) for item in items}
    assert stats["episodes_admitted"] == len(left) < len(SIX)
    # Not a frame more than a sync sample's worth before each wanted one was decoded.
    cameras = len(resumed.meta.camera_keys)
    assert stats["frames_decoded"] <= 2 * cameras * len(items)


def jitter(image: torch.Tensor) -> torch.Tensor:
    return image + torch.randint(0, 50, (), dtype=torch.uint8)


def test_augmentations_are_those_of_the_frame_whoever_draws_it(shelf: Shelf) -> None:
    def images(source: Any) -> dict[int, torch.Tensor]:
        return {
            int(index): image.clone()
            for batch in source
            for index, image in zip(batch["index"], batch[key], strict=True)
        }

    dataset = make(shelf, image_transforms=jitter)
    key = dataset.meta.camera_keys[0]
    expected = images(loader(dataset, num_workers=0))
    plain = images(loader(make(shelf), num_workers=0))
    assert any(not torch.equal(expected[index], plain[index]) for index in plain)
    state = make(shelf).state_dict()
    for num_workers, batch_size, offset in ((2, 2, 0), (2, 2, 4), (1, 3, 6)):
        resumed = make(shelf, image_transforms=jitter, decode_threads=1)
        resumed.load_state_dict({**state, "offset": offset}, num_workers=num_workers)
        got = images(loader(resumed, num_workers=num_workers, batch_size=batch_size))
        assert len(got) == len(expected) - offset
        assert all(torch.equal(image, expected[index]) for index, image in got.items())


def test_batches_per_rank_are_those_that_the_loaders_give(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = make(shelf)
    expected = dataset.batches_per_rank(2, 2, num_workers=2)
    monkeypatch.setenv("WORLD_SIZE", "2")
    got = []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        got.append(len(indices(loader(make(shelf)))))
    assert got == expected
    with pytest.raises(OptionError, match="batch_size must be an integer >= 1, got 0"):
        dataset.batches_per_rank(2, 0)


@pytest.mark.parametrize(("rank", "world"), [("2", "2"), ("-1", "2"), ("0", "0")])
def test_a_rank_outside_its_world_is_refused(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, rank: str, world: str
) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", world)
    with pytest.raises(OptionError, match="RANK must be from 0 to WORLD_SIZE - 1"):
        next(iter(make(shelf)))
