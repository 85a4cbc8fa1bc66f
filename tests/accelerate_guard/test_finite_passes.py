"""Passes that end, wrapped datasets and places in front of accelerate's loaders."""

from __future__ import annotations

import importlib
import logging
import multiprocessing
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import ChainDataset, DataLoader, IterableDataset

from lerobot_streaming.accelerate_guard import protect_loaders
from lerobot_streaming.accelerate_guard.even_batches import EvenBatches
from lerobot_streaming.errors import OptionError, ShardingError, UnprotectedLoaderError
from tests.dataset.loops import make

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.datasets import Shelf

accelerate = pytest.importorskip("accelerate")
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")


class Wrapped(IterableDataset[Any]):
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __iter__(self) -> Iterator[Any]:
        for item in self.inner:
            yield {"index": item["index"]}


class Numbers(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(8))


def prepare(loader: DataLoader[Any], num_processes: int = 2) -> Any:
    protect_loaders()
    module = importlib.import_module("accelerate.accelerator")
    return module.prepare_data_loader(
        loader,
        torch.device("cpu"),
        num_processes=num_processes,
        process_index=num_processes - 1,
        put_on_device=True,
    )


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("wrap", [Wrapped, lambda inner: ChainDataset([Wrapped(Wrapped(inner))])])
def test_a_wrapper_around_ours_is_neither_sharded_nor_dispatched(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, wrap: Any, num_workers: int
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    dataset = make(shelf, repeat=False)
    context = "fork" if num_workers else None
    loader = DataLoader(wrap(dataset), batch_size=2, num_workers=num_workers, multiprocessing_context=context)
    got = [int(index) for batch in prepare(loader) for index in batch["index"]]
    assert len(set(got)) == len(got) == dataset.num_frames_for_rank(1, 2)


def test_ours_mixed_with_what_does_not_shard_itself_is_refused(shelf: Shelf) -> None:
    loader = DataLoader(ChainDataset([make(shelf), Numbers()]), batch_size=2)
    with pytest.raises(UnprotectedLoaderError, match=r"ChainDataset.*together with a Numbers"):
        prepare(loader)
    assert prepare(loader, num_processes=1) is not None


def _even_batches(rank: int, folder: Path, counts: list[int], given: Any) -> None:
    torch.distributed.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=2)
    try:
        given.put((rank, list(EvenBatches(list(range(counts[rank])), torch.device("cpu")))))
    except ShardingError as error:
        given.put((rank, str(error)))


@pytest.mark.parametrize(
    ("counts", "expected"),
    [([1, 3], [[0, 0, 0], [0, 1, 2]]), ([0, 2], ["A rank has no batch"] * 2), ([0, 0], [[], []])],
)
def test_ranks_end_together_or_fail_together(tmp_path: Path, counts: list[int], expected: list[Any]) -> None:
    context: Any = multiprocessing.get_context("fork")
    given = context.Queue()
    ranks = [context.Process(target=_even_batches, args=(rank, tmp_path, counts, given)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    got = sorted(given.get(timeout=60) for _ in ranks)
    for rank in ranks:
        rank.join(60)
    for rank, result in got:
        assert result[: len(expected[rank])] == expected[rank]


def test_accumulated_gradients_and_passes_that_end_evenly_are_refused(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = importlib.import_module("accelerate.state").GradientState
    monkeypatch.setattr(state, "num_steps", 2)
    dataset = make(shelf)
    dataset.ends_evenly = True
    with pytest.raises(OptionError, match="gradient_accumulation_steps=2"):
        prepare(DataLoader(dataset, batch_size=2))
    dataset.only_evaluated = True
    assert isinstance(prepare(DataLoader(dataset, batch_size=2)), EvenBatches)


def test_finite_passes_on_several_processes_are_told_of(
    shelf: Shelf, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "lerobot_streaming")
    prepare(DataLoader(make(shelf, repeat=True), batch_size=2))
    prepare(DataLoader(make(shelf), batch_size=2), num_processes=1)
    assert not caplog.records
    prepare(DataLoader(make(shelf), batch_size=2))
    assert "different numbers of batches on the 2 processes" in caplog.text


def test_dropping_the_last_batches_of_finite_passes_is_refused(shelf: Shelf) -> None:
    with pytest.raises(OptionError, match="drop_last=True"):
        prepare(DataLoader(make(shelf), batch_size=2, drop_last=True), num_processes=1)
    assert prepare(DataLoader(make(shelf, repeat=True), batch_size=2, drop_last=True)) is not None


def test_a_loader_that_reads_ahead_needs_the_loops_count(shelf: Shelf) -> None:
    dataset = make(shelf)
    prepared = prepare(DataLoader(dataset, batch_size=2), num_processes=1)
    assert dataset.state_dict()["offset"] == 0
    iterator = iter(prepared)
    begun = [next(iterator)["index"].tolist() for _ in range(3)]
    with pytest.raises(OptionError, match="read a batch ahead"):
        dataset.state_dict()
    state = dataset.state_dict(batches=3, batch_size=2)
    rest = [batch["index"].tolist() for batch in iterator]
    resumed = make(shelf)
    resumed.load_state_dict(state)
    assert [batch["index"].tolist() for batch in DataLoader(resumed, batch_size=2)] == rest
    assert begun[0] != rest[0]
