"""Which pass it is: one number for all workers of an iterator, whoever began one before, and wherever."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch

from lerobot_streaming.errors import OptionError
from lerobot_streaming.pass_numbers import PassNumbers
from tests.dataset.loops import everything, flat, indices, loader, make, take

if TYPE_CHECKING:
    from lerobot_streaming import StreamingLeRobotDataset
    from tests.support.datasets import Shelf

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]


def test_a_sample_looked_at_before_counts_for_all_workers(shelf: Shelf) -> None:
    dataset = make(shelf)
    next(iter(dataset))
    begun = take(loader(dataset), 3)
    state = dataset.state_dict(batches=3, batch_size=2)
    assert (state["epoch"], state["offset"]) == (1, 6)
    resumed = make(shelf)
    resumed.load_state_dict(state)
    assert sorted(flat(begun + indices(loader(resumed)))) == everything(dataset)


def test_a_pass_with_fewer_workers_counts_for_all_of_the_next_one(shelf: Shelf) -> None:
    dataset = make(shelf)
    indices(loader(dataset, num_workers=1))
    fresh = make(shelf)
    fresh.set_epoch(1)
    assert indices(loader(dataset)) == indices(loader(fresh))


def _second_one_comes_late(worker: int) -> None:
    time.sleep(worker)


def test_a_pass_broken_off_before_all_workers_began_counts_for_all(shelf: Shelf) -> None:
    dataset = make(shelf)
    dataset.load_state_dict({"epoch": 0, "offset": 6, "batch_size": 2})
    take(loader(dataset, worker_init_fn=_second_one_comes_late, prefetch_factor=1), 1)
    assert dataset.state_dict(batches=1, batch_size=2)["offset"] == 8
    assert sorted(flat(indices(loader(dataset)))) == everything(dataset)


@pytest.mark.parametrize("persistent", [True, False])
def test_iterators_with_one_seed_are_different_passes(shelf: Shelf, persistent: bool) -> None:
    dataset = make(shelf)
    source = loader(dataset, persistent_workers=persistent)
    passes = []
    for _ in range(3):
        torch.manual_seed(0)
        passes.append(indices(source))
    assert dataset.state_dict(batches=0, batch_size=2)["epoch"] == 2
    assert all(sorted(flat(one)) == everything(dataset) for one in passes)
    assert passes[0] != passes[1] != passes[2]


def test_iterators_that_start_together_keep_their_workers_together() -> None:
    numbers = PassNumbers()
    assert [numbers.claim(0, 2, (seed, 0)) for seed in (7, 8)] == [1, 2]
    assert numbers.coming(1, (7, 0)) == 1
    assert [numbers.claim(1, 2, (seed, 0)) for seed in (8, 7)] == [2, 1]
    # The same seed once more is another iterator.
    assert numbers.claim(1, 2, (8, 0)) == 3
    assert numbers.claim(0, 2, (8, 0)) == 3
    numbers.give_back(0, 3)
    assert numbers.latest == 3
    numbers.give_back(1, 3)
    assert numbers.latest == 2
    numbers.reset()
    assert (numbers.latest, numbers.num_workers, numbers.last_num_workers) == (0, 0, 2)
    assert numbers.claim(255, 256, (7, 0)) == 1


def _claim_often(numbers: PassNumbers, worker: int, together: Any, given: Any) -> None:
    claimed = []
    for seed in range(50):
        together.wait(60)
        claimed.append(numbers.claim(worker, 2, (seed, 0)))
    given.put(claimed)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_agree_on_numbers(method: str) -> None:
    context: Any = multiprocessing.get_context(method)
    numbers, given, together = PassNumbers(), context.Queue(), context.Barrier(2)
    processes = [
        context.Process(target=_claim_often, args=(numbers, worker, together, given)) for worker in range(2)
    ]
    for process in processes:
        process.start()
    results = [given.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(60)
    assert results == [list(range(1, 51))] * 2


def test_a_look_in_the_parent_does_not_answer_for_the_workers(shelf: Shelf) -> None:
    dataset = make(shelf)
    look = iter(dataset)
    next(look)
    source = loader(dataset)
    iterator = iter(source)
    next(iterator)
    with pytest.raises(OptionError, match="how far the DataLoader's workers are"):
        dataset.state_dict()
    del iterator


def test_a_look_in_the_parent_is_not_the_state_of_a_forked_worker(shelf: Shelf) -> None:
    dataset = make(shelf)
    look = iter(dataset)
    next(look)
    whole = loader(dataset, stateful=True)
    state = whole.state_dict()
    expected = indices(whole)
    resumed = loader(make(shelf), stateful=True)
    resumed.load_state_dict(state)
    assert indices(resumed) == expected
    assert sorted(flat(expected)) == everything(dataset)


def test_the_state_before_a_pass_is_the_loaded_one(shelf: Shelf) -> None:
    dataset = make(shelf)
    take(loader(dataset), 3)
    state = dataset.state_dict(batches=3, batch_size=2)
    resumed = make(shelf)
    resumed.load_state_dict(state)
    assert resumed.state_dict(batches=0, batch_size=2) == state
    # Nothing of an earlier loader is left in it either.
    dataset.set_epoch(4)
    assert dataset.state_dict(batches=0, batch_size=2)["settings"]["num_workers"] == 0


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda dataset: pickle.loads(pickle.dumps(dataset))])
def test_a_copy_goes_on_where_its_original_stands(shelf: Shelf, copied: Any) -> None:
    dataset = make(shelf)
    iterator = iter(dataset)
    for _ in range(5):
        next(iterator)
    other = copied(dataset)
    assert other.state_dict() == dataset.state_dict()
    rest = [int(item["index"]) for item in iterator]
    assert [int(item["index"]) for item in other] == rest
    assert copied(dataset).state_dict() == dataset.state_dict()
    assert other.state_dict()["epoch"] == dataset.state_dict()["epoch"] == 1


def _rank(rank: int, dataset: StreamingLeRobotDataset, num_workers: int, turn: Any, given: Any) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2"}
    if rank:
        turn.wait(60)
    drawn = flat(indices(loader(dataset, num_workers=num_workers)))
    given.put(
        (drawn, dataset.state_dict(batches=0, batch_size=2)["epoch"], dataset.stats()["total"]["samples"])
    )
    turn.set()


@pytest.mark.parametrize(("method", "num_workers"), [("fork", 0), ("fork", 1), ("spawn", 1)])
def test_ranks_of_one_dataset_count_for_themselves(shelf: Shelf, method: str, num_workers: int) -> None:
    context: Any = multiprocessing.get_context(method)
    dataset = make(shelf)
    dataset.load_state_dict({"epoch": 2, "offset": 2, "batch_size": 2})
    given, turn = context.Queue(), context.Event()
    ranks = [
        context.Process(target=_rank, args=(rank, dataset, num_workers, turn, given)) for rank in range(2)
    ]
    for rank in ranks:
        rank.start()
    results = [given.get(timeout=60) for _ in ranks]
    for rank in ranks:
        rank.join(60)
    assert [epoch for _, epoch, _ in results] == [2, 2]
    assert [len(drawn) for drawn, _, _ in results] == [
        dataset.num_frames_for_rank(rank, 2) - 2 for rank in range(2)
    ]
    assert [samples for _, _, samples in results] == [len(drawn) for drawn, _, _ in results]
    # And nothing has come back to the launcher.
    assert dataset.state_dict()["offset"] == 2
    assert dataset.stats()["total"]["samples"] == 0


def test_a_new_batch_size_is_known_without_the_number_of_workers(shelf: Shelf) -> None:
    dataset = make(shelf)
    begun = take(loader(dataset), 4)
    resumed = make(shelf)
    resumed.load_state_dict(dataset.state_dict(batches=4, batch_size=2), batch_size=3)
    begun += take(loader(resumed, batch_size=3), 2)
    last = make(shelf)
    last.load_state_dict(resumed.state_dict(batches=2, batch_size=3))
    assert sorted(flat(begun + indices(loader(last, batch_size=3)))) == everything(dataset)


@pytest.mark.parametrize("number", [1.5, True, "1"])
def test_numbers_of_frames_left_out_are_checked(shelf: Shelf, number: Any) -> None:
    with pytest.raises(OptionError, match="drop_n_last_frames must be an integer"):
        make(shelf).limit_anchors(drop_n_last_frames=number)


def test_frames_are_left_out_before_anything_else(shelf: Shelf) -> None:
    dataset = make(shelf)
    dataset.load_state_dict({"epoch": 0, "offset": 4, "batch_size": 2})
    with pytest.raises(OptionError, match="right after the dataset is made"):
        dataset.limit_anchors(drop_n_last_frames=1)
    dataset = make(shelf)
    next(iter(dataset))
    with pytest.raises(OptionError, match="right after the dataset is made"):
        dataset.limit_anchors(drop_n_last_frames=1)


def test_running_workers_go_back_to_an_earlier_state_of_their_own(shelf: Shelf) -> None:
    dataset = make(shelf)
    source = loader(dataset, persistent_workers=True)
    first = indices(source)
    state = dataset.state_dict(batches=3, batch_size=2)
    for _ in range(2):
        dataset.load_state_dict(state)
        assert indices(source) == first[3:]


def test_the_epoch_of_a_rest_can_be_chosen_again_as_a_whole(shelf: Shelf) -> None:
    dataset = make(shelf)
    begun = take(loader(dataset), 4)
    state = dataset.state_dict(batches=4, batch_size=2)
    for num_workers in (None, 0):
        resumed = make(shelf)
        resumed.load_state_dict(state, num_workers=num_workers)
        resumed.set_epoch(0)
        rest = [int(item["index"]) for item in resumed]
        assert sorted(flat(begun) + rest) == everything(dataset)
        resumed.set_epoch(0)
        assert sorted(int(item["index"]) for item in resumed) == everything(dataset)
