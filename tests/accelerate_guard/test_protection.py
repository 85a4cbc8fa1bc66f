from __future__ import annotations

import importlib
import importlib.util
import logging
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from lerobot_streaming import StreamingLeRobotDataset
from lerobot_streaming.accelerate_guard import protect_loaders
from lerobot_streaming.errors import OptionError, UnsupportedVersionError
from tests.support.datasets import REPO_ID

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.datasets import Shelf

accelerate = pytest.importorskip("accelerate")


def accelerate_module() -> Any:
    """The module whose function is wrapped, as it is at the moment."""
    return importlib.import_module("accelerate.accelerator")


class Numbers(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(8))


@pytest.fixture(autouse=True)
def _guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    module = accelerate_module()
    # Restored after each test, whatever it installs.
    monkeypatch.setattr(module, "prepare_data_loader", module.prepare_data_loader)
    protect_loaders()


@pytest.fixture
def dataset(shelf: Shelf) -> StreamingLeRobotDataset:
    return StreamingLeRobotDataset(REPO_ID, shelf.root("many_tiny"), episodes=[0, 1, 2], shuffle=False)


def prepare(loader: DataLoader[Any], **arguments: Any) -> Any:
    """Call the function that `Accelerator.prepare` calls, as if there were more processes than there are."""
    module = accelerate_module()
    return module.prepare_data_loader(
        loader,
        torch.device("cpu"),
        **{
            "num_processes": 2,
            "process_index": 1,
            "put_on_device": True,
            "rng_types": ["torch"],
            **arguments,
        },
    )


def test_a_prepared_loader_gives_what_the_plain_one_gives(dataset: Any) -> None:
    plain = list(DataLoader(dataset, batch_size=4))
    dataset.set_epoch(0)
    prepared = accelerate.Accelerator(cpu=True).prepare(DataLoader(dataset, batch_size=4))
    got = list(prepared)
    assert [batch["task"] for batch in got] == [batch["task"] for batch in plain]
    assert all(isinstance(task, str) for batch in got for task in batch["task"])
    assert torch.equal(
        torch.cat([batch["index"] for batch in got]), torch.cat([batch["index"] for batch in plain])
    )


def test_batches_are_placed_on_the_device(dataset: Any) -> None:
    prepared = prepare(DataLoader(dataset, batch_size=4))
    prepared.device = torch.device("meta")  # a device that every machine has, and that is not the CPU
    batch = next(iter(prepared))
    assert {value.device.type for value in batch.values() if isinstance(value, torch.Tensor)} == {"meta"}
    assert isinstance(batch["task"][0], str)


def test_device_placement_can_be_left_out(dataset: Any) -> None:
    assert prepare(DataLoader(dataset, batch_size=4), put_on_device=False).device is None


@pytest.mark.parametrize("dispatch", [None, True, False])
def test_it_is_neither_dispatched_nor_sharded(dataset: Any, dispatch: bool | None) -> None:
    shard_type = importlib.import_module("accelerate.data_loader").DataLoaderShard
    prepared = prepare(DataLoader(dataset, batch_size=4), dispatch_batches=dispatch)
    assert isinstance(prepared, shard_type)
    assert prepared.dataset is dataset
    assert prepared.rng_types is None
    assert prepared.batch_size == 4
    assert sum(len(batch["index"]) for batch in prepared) == dataset.num_frames


def test_other_loaders_are_prepared_as_ever() -> None:
    prepared = prepare(DataLoader(Numbers(), batch_size=2), dispatch_batches=False)
    assert [batch.tolist() for batch in prepared] == [[2, 3], [6, 7]]


def test_installing_twice_wraps_once() -> None:
    module = accelerate_module()
    before = module.prepare_data_loader
    protect_loaders()
    assert module.prepare_data_loader is before


@pytest.mark.parametrize("found", [None, lambda dataloader, device: (dataloader, device)])
def test_a_changed_accelerate_is_an_error(monkeypatch: pytest.MonkeyPatch, found: Any) -> None:
    module = accelerate_module()
    monkeypatch.setattr(module, "prepare_data_loader", found)
    with pytest.raises(UnsupportedVersionError, match=r"accelerate .*prepare_data_loader is not as expected"):
        protect_loaders()


def test_without_accelerate_there_is_nothing_to_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(importlib, "import_module", pytest.fail)
    protect_loaders()


def test_split_batches_is_refused(dataset: Any) -> None:
    with pytest.raises(OptionError, match="split_batches"):
        prepare(DataLoader(dataset, batch_size=4), split_batches=True)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_too_many_workers_are_lowered_with_one_line(dataset: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lerobot_streaming")
    loader = DataLoader(dataset, batch_size=4, num_workers=7, prefetch_factor=3, persistent_workers=True)
    prepared = prepare(loader, num_processes=1, process_index=0)
    assert (prepared.num_workers, prepared.prefetch_factor, prepared.persistent_workers) == (3, 3, True)
    (record,) = caplog.records
    assert "Lowering num_workers from 7 to 3" in record.getMessage()


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_a_possible_worker_count_is_kept(dataset: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert prepare(DataLoader(dataset, num_workers=3), num_processes=1, process_index=0).num_workers == 3
    assert not caplog.records


def test_accelerates_set_epoch_at_the_start_keeps_a_loaded_position(dataset: Any) -> None:
    everything = [int(item["index"]) for item in dataset]
    dataset.load_state_dict({"epoch": 0, "offset": 4, "batch_size": 2})
    prepared = prepare(DataLoader(dataset, batch_size=2), num_processes=1, process_index=0)
    assert [int(i) for batch in prepared for i in batch["index"]] == everything[4:]
    # The next pass is a whole one.
    assert [int(i) for batch in prepared for i in batch["index"]] == everything
