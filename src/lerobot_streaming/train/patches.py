"""The places where lerobot itself is changed: one field's type, one encoder and two functions.

* `TrainPipelineConfig.dataset` is declared with our config class, which is how draccus finds the flags
  (command line, config files, `--help`).
* An encoder for that class leaves the flags out of `train_config.json` when streaming is off.
* `make_train_eval_datasets`, as the training script bound it by name, calls our factory when streaming is on.
* `_dataloader_worker_kwargs` of the training script gives the loaders of a streaming run a context in which
  workers start sooner (`worker_start`). Only speed depends on it, so a script without it is left as it is.

Everything is checked before anything is changed, and installing twice changes nothing.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

from lerobot_streaming.versions import check_lerobot_version, unsupported

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

TRAIN_SCRIPT: Final = "lerobot.scripts.lerobot_train"
FACTORY: Final = "make_train_eval_datasets"
WORKER_OPTIONS: Final = "_dataloader_worker_kwargs"
_MARK: Final = "_lerobot_streaming"


def install() -> None:
    """Change lerobot as the module's description says.

    Raises:
        UnsupportedVersionError: lerobot is of another version, or does not look as expected; nothing was
            changed.
    """
    check_lerobot_version()
    set_config_class = _prepare_config_class()
    scripts = _train_scripts()
    for script in scripts:
        _check_factory(script)
    set_config_class()
    for script in scripts:
        _wrap_factory(script)
        _wrap_worker_options(script)


def _prepare_config_class() -> Callable[[], None]:
    """Check that `TrainPipelineConfig.dataset` is as expected, and return what changes it."""
    import draccus  # noqa: PLC0415  # lerobot's own dependency, needed only here
    from lerobot.configs.default import DatasetConfig  # noqa: PLC0415
    from lerobot.configs.train import TrainPipelineConfig  # noqa: PLC0415

    from lerobot_streaming.train.config import StreamingDatasetConfig, encode_dataset_config  # noqa: PLC0415

    where = "lerobot.configs.train.TrainPipelineConfig.dataset"
    declared = TrainPipelineConfig.__dataclass_fields__.get("dataset")
    annotation = TrainPipelineConfig.__annotations__.get("dataset")
    if declared is None or annotation is not declared.type:
        raise unsupported("lerobot", where)
    if annotation is not StreamingDatasetConfig:
        if annotation is not DatasetConfig:
            raise unsupported("lerobot", where)
        stock = {stock_field.name for stock_field in fields(DatasetConfig)}
        if stock & StreamingDatasetConfig.__annotations__.keys():
            raise unsupported("lerobot", "lerobot.configs.default.DatasetConfig")

    def change() -> None:
        # draccus reads the annotations, and takes the field's own type for encoding.
        TrainPipelineConfig.__annotations__["dataset"] = StreamingDatasetConfig
        declared.type = StreamingDatasetConfig
        draccus.encode.register(StreamingDatasetConfig, encode_dataset_config)

    return change


def _train_scripts() -> list[ModuleType]:
    """Find the copies of the training script that hold the factory by name."""
    scripts = []
    main = sys.modules.get("__main__")
    # `python -m lerobot.scripts.lerobot_train` runs a copy of the script under the name `__main__`.
    if main is not None and getattr(getattr(main, "__spec__", None), "name", None) == TRAIN_SCRIPT:
        scripts.append(main)
    if TRAIN_SCRIPT in sys.modules or not scripts:
        scripts.append(importlib.import_module(TRAIN_SCRIPT))
    return scripts


def _check_factory(script: ModuleType) -> None:
    """Raise unless the script's factory takes the config and nothing else."""
    factory = getattr(script, FACTORY, None)
    if factory is None or list(inspect.signature(factory).parameters) != ["cfg"]:
        raise unsupported("lerobot", f"{TRAIN_SCRIPT}.{FACTORY}")


def _wrap_factory(script: ModuleType) -> None:
    """Make the script's factory build our datasets when streaming is on."""
    original = getattr(script, FACTORY)
    if getattr(original, _MARK, False):
        return

    @functools.wraps(original)
    def make_datasets(cfg: Any) -> tuple[Any, Any]:
        if not cfg.dataset.streaming:
            stock: tuple[Any, Any] = original(cfg)
            return stock
        # Imported here so that a run without streaming loads nothing of ours but the flags.
        from lerobot_streaming.train.factory import make_streaming_datasets  # noqa: PLC0415

        return make_streaming_datasets(cfg)

    setattr(make_datasets, _MARK, True)
    setattr(script, FACTORY, make_datasets)


def _wrap_worker_options(script: ModuleType) -> None:
    """Make the script's loaders start their workers in our way when streaming is on."""
    original = getattr(script, WORKER_OPTIONS, None)
    if original is None or getattr(original, _MARK, False):
        return

    @functools.wraps(original)
    def worker_options(cfg: Any) -> dict[str, Any]:
        options: dict[str, Any] = original(cfg)
        if cfg.dataset.streaming and "multiprocessing_context" in options:
            from lerobot_streaming.train.worker_start import worker_context  # noqa: PLC0415  # as above

            options["multiprocessing_context"] = worker_context(options["multiprocessing_context"], script)
        return options

    setattr(worker_options, _MARK, True)
    setattr(script, WORKER_OPTIONS, worker_options)
