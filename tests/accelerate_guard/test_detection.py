"""Loaders that accelerate gets hold of, early, late or behind our back."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import DataLoader

from lerobot_streaming import StreamingLeRobotDataset
from lerobot_streaming.errors import UnprotectedLoaderError
from tests.support.datasets import REPO_ID
from tests.train.support import run_python

if TYPE_CHECKING:
    from tests.support.datasets import Shelf

pytest.importorskip("accelerate")
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")


@pytest.fixture
def dataset(shelf: Shelf) -> StreamingLeRobotDataset:
    return StreamingLeRobotDataset(REPO_ID, shelf.root("many_tiny"), episodes=[0, 1, 2], return_uint8=True)


def prepare_unprotected(loader: DataLoader[Any], *, dispatch: bool, num_processes: int = 2) -> Any:
    """accelerate's own function, past the name that is protected."""
    module = importlib.import_module("accelerate.data_loader")
    prepared = module.prepare_data_loader(
        loader,
        torch.device("cpu"),
        num_processes=num_processes,
        process_index=0,
        put_on_device=True,
        dispatch_batches=dispatch,
    )
    if dispatch:
        prepared.state = SimpleNamespace(num_processes=num_processes, process_index=0)
    return prepared


@pytest.mark.parametrize("dispatch", [True, False])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_loader_that_would_lose_episodes_is_an_error(
    dataset: Any, dispatch: bool, num_workers: int
) -> None:
    context = "fork" if num_workers else None
    loader = DataLoader(dataset, batch_size=2, num_workers=num_workers, multiprocessing_context=context)
    prepared = prepare_unprotected(loader, dispatch=dispatch)
    with pytest.raises(UnprotectedLoaderError, match=r"accelerate reads .*Accelerator\.prepare"):
        next(iter(prepared))


def test_a_wrapped_dataset_is_noticed_in_its_iterator_too(dataset: Any) -> None:
    shard = importlib.import_module("accelerate.data_loader").IterableDatasetShard(dataset, num_processes=2)
    with pytest.raises(UnprotectedLoaderError, match="IterableDatasetShard"):
        next(iter(shard))


def test_one_process_loses_nothing(dataset: Any) -> None:
    loader = DataLoader(dataset, batch_size=None)
    prepared = prepare_unprotected(loader, dispatch=False, num_processes=1)
    assert len(list(prepared)) == dataset.num_frames


def test_accelerate_may_be_imported_after_the_dataset() -> None:
    code = (
        "import sys\n"
        "from lerobot_streaming.accelerate_guard import protect_when_imported\n"
        "protect_when_imported(); protect_when_imported()\n"
        "assert 'accelerate' not in sys.modules\n"
        "import accelerate.accelerator as module\n"
        "assert hasattr(module.prepare_data_loader, '_lerobot_streaming')\n"
        "assert module.__spec__.loader.get_source(module.__name__)\n"
        "assert '_WaitForAccelerate' not in [type(finder).__name__ for finder in sys.meta_path]\n"
        "print('PROTECTED')\n"
    )
    run = run_python("-c", code)
    assert run.code == 0, run.output
    assert "PROTECTED" in run.output


def test_an_accelerate_that_has_changed_does_not_break_its_own_import() -> None:
    code = (
        "import accelerate.data_loader as data\n"
        "data.prepare_data_loader = lambda dataloader: dataloader\n"
        "from lerobot_streaming.accelerate_guard import protect_when_imported\n"
        "import sys; sys.modules.pop('accelerate.accelerator', None); sys.modules.pop('accelerate', None)\n"
        "protect_when_imported()\n"
        "import accelerate.accelerator as module\n"
        "assert module.prepare_data_loader is data.prepare_data_loader\n"
        "print('IMPORTED')\n"
    )
    run = run_python("-c", code)
    assert run.code == 0, run.output
    assert "IMPORTED" in run.output
