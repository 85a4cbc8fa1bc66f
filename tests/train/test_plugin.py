from __future__ import annotations

import importlib
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.train.support import run_python

SCRIPT = "lerobot.scripts.lerobot_train"


@pytest.fixture
def plugin() -> Any:
    return importlib.import_module("lerobot_env_streaming")


def test_discovery_by_other_commands_loads_nothing() -> None:
    code = "import sys; old = set(sys.modules); import lerobot_env_streaming; print(set(sys.modules) - old)"
    run = run_python("-c", code)
    assert run.code == 0, run.output
    for heavy in ("torch", "lerobot.", "lerobot_streaming", "numpy", "av"):
        assert f"'{heavy}" not in run.output.replace("'lerobot_env_streaming'", "")


def test_the_distribution_has_the_name_that_discovery_looks_for() -> None:
    import importlib.metadata

    names = [distribution.metadata["Name"] for distribution in importlib.metadata.distributions()]
    assert "lerobot_env_streaming" in names


@pytest.mark.parametrize(
    ("arguments", "asks"),
    [
        ([], False),
        (["--dataset.streaming=true"], True),
        (["--dataset.streaming", "true"], True),
        (["--dataset.streaming=false"], False),
        (["--dataset.streaming", "false"], False),
        (["--dataset.streaming"], False),
        (["--dataset.streaming_decode_threads=2"], True),
        (["--dataset.repo_id=a/streaming"], False),
    ],
)
def test_what_counts_as_asking_for_streaming(plugin: Any, arguments: list[str], asks: bool) -> None:
    assert plugin._asks_for_streaming(arguments) is asks


@pytest.fixture
def broken_lerobot(stock_lerobot: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A lerobot of a version that we do not support, whose training script is loaded."""
    import importlib.metadata

    real = importlib.metadata.version
    monkeypatch.setattr(
        importlib.metadata, "version", lambda name: "0.9.0" if name == "lerobot" else real(name)
    )
    return stock_lerobot


def test_unsupported_version_changes_nothing_for_a_run_without_streaming(
    plugin: Any, broken_lerobot: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from lerobot.configs.default import DatasetConfig
    from lerobot.configs.train import TrainPipelineConfig

    monkeypatch.setattr(broken_lerobot, "make_train_eval_datasets", lambda cfg: ("stock", cfg))
    plugin._switch_on()
    assert TrainPipelineConfig.__dataclass_fields__["dataset"].type is DatasetConfig
    cfg = SimpleNamespace(dataset=SimpleNamespace(streaming=False))
    assert broken_lerobot.make_train_eval_datasets(cfg) == ("stock", cfg)
    assert capsys.readouterr() == ("", "")


def test_unsupported_version_ends_a_command_that_asks_for_streaming(
    plugin: Any, broken_lerobot: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert broken_lerobot is not None
    monkeypatch.setattr(sys, "argv", ["lerobot-train", "--dataset.streaming=true"])
    with pytest.raises(SystemExit, match=r"lerobot 0\.9\.0 is not supported.*streaming=false"):
        plugin._switch_on()


def test_unsupported_version_ends_a_run_whose_config_file_asks_for_streaming(
    plugin: Any, broken_lerobot: Any
) -> None:
    plugin._switch_on()
    with pytest.raises(RuntimeError, match=r"lerobot 0\.9\.0 is not supported"):
        broken_lerobot.make_train_eval_datasets(SimpleNamespace(dataset=SimpleNamespace(streaming=True)))


@pytest.mark.parametrize("factory", [None, lambda cfg, extra: (cfg, extra)])
def test_a_changed_factory_is_noticed_before_anything_is_changed(
    stock_lerobot: Any, monkeypatch: pytest.MonkeyPatch, factory: Any
) -> None:
    from lerobot.configs.default import DatasetConfig
    from lerobot.configs.train import TrainPipelineConfig

    from lerobot_streaming.errors import UnsupportedVersionError
    from lerobot_streaming.train import enable

    monkeypatch.setattr(stock_lerobot, "make_train_eval_datasets", factory)
    with pytest.raises(UnsupportedVersionError, match="make_train_eval_datasets"):
        enable()
    assert TrainPipelineConfig.__dataclass_fields__["dataset"].type is DatasetConfig


def test_a_changed_config_class_is_noticed(stock_lerobot: Any) -> None:
    from lerobot.configs.train import TrainPipelineConfig

    from lerobot_streaming.errors import UnsupportedVersionError
    from lerobot_streaming.train import enable

    before = stock_lerobot.make_train_eval_datasets
    TrainPipelineConfig.__annotations__["dataset"] = dict
    with pytest.raises(UnsupportedVersionError, match=r"TrainPipelineConfig\.dataset"):
        enable()
    assert stock_lerobot.make_train_eval_datasets is before


def test_enabling_twice_changes_nothing(lerobot_train: Any) -> None:
    from lerobot.configs.train import TrainPipelineConfig

    from lerobot_streaming.train import enable

    before = (lerobot_train.make_train_eval_datasets, dict(TrainPipelineConfig.__annotations__))
    enable()
    assert (lerobot_train.make_train_eval_datasets, dict(TrainPipelineConfig.__annotations__)) == before


def test_a_script_run_as_a_module_is_patched_too(lerobot_train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from lerobot.datasets.factory import make_train_eval_datasets

    from lerobot_streaming.train import enable

    main = ModuleType("__main__")
    main.__spec__ = importlib.machinery.ModuleSpec(SCRIPT, None)
    main.make_train_eval_datasets = make_train_eval_datasets  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "__main__", main)
    enable()
    assert main.make_train_eval_datasets is not make_train_eval_datasets
    assert main.make_train_eval_datasets.__wrapped__ is make_train_eval_datasets
    assert lerobot_train.make_train_eval_datasets.__wrapped__ is make_train_eval_datasets


def test_without_streaming_the_stock_factory_is_called(
    lerobot_train: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lerobot.datasets import factory

    monkeypatch.setattr(factory, "make_dataset", lambda cfg: ("stock", cfg))
    cfg = SimpleNamespace(dataset=SimpleNamespace(streaming=False, eval_split=0.0))
    assert lerobot_train.make_train_eval_datasets(cfg) == (("stock", cfg), None)
