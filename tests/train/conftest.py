"""Fixtures of the training integration's tests."""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.scheduling import leave_realtime

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def stock_lerobot() -> Iterator[Any]:
    """lerobot's training script without our patches, and as it was found afterwards."""
    import lerobot.scripts.lerobot_train as script
    from lerobot.configs.default import DatasetConfig
    from lerobot.configs.train import TrainPipelineConfig
    from lerobot.datasets import factory

    field = TrainPipelineConfig.__dataclass_fields__["dataset"]
    was = (field.type, script.make_train_eval_datasets, script._dataloader_worker_kwargs)
    TrainPipelineConfig.__annotations__["dataset"] = field.type = DatasetConfig
    script.make_train_eval_datasets = factory.make_train_eval_datasets
    script._dataloader_worker_kwargs = inspect.unwrap(script._dataloader_worker_kwargs)
    yield script
    TrainPipelineConfig.__annotations__["dataset"] = field.type = was[0]
    script.make_train_eval_datasets, script._dataloader_worker_kwargs = was[1:]


@pytest.fixture
def lerobot_train(stock_lerobot: Any) -> Any:
    """lerobot's training script with our patches."""
    from lerobot_streaming.train import enable

    enable()
    return stock_lerobot


@pytest.fixture(autouse=True)
def _plain_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    # lerobot's configs and the plug-in look at the command line, which is pytest's here.
    monkeypatch.setattr(sys, "argv", ["lerobot-train"])
    leave_realtime()
