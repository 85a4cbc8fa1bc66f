"""What `Accelerator.prepare` does with a loader over one of our datasets: place it on the device, no more."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import logging
import sys
from typing import TYPE_CHECKING, Any, Final

from lerobot_streaming.accelerate_guard.announced_epochs import follow_the_dataset
from lerobot_streaming.accelerate_guard.even_batches import EvenBatches
from lerobot_streaming.errors import OptionError
from lerobot_streaming.versions import unsupported

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

MODULE: Final = "accelerate.accelerator"
_HOOK: Final = "prepare_data_loader"
_MARK: Final = "_lerobot_streaming"
_USED_ARGUMENTS: Final = {
    "dataloader",
    "device",
    "num_processes",
    "process_index",
    "split_batches",
    "put_on_device",
    "rng_types",
    "dispatch_batches",
    "torch_device_mesh",
}


def protect_loaders(*, required: bool = False) -> None:
    """Make `Accelerator.prepare` leave loaders over our datasets alone; others are prepared as ever.

    Calling it again changes nothing.

    Args:
        required: Whether a missing accelerate is an error.

    Raises:
        UnsupportedVersionError: accelerate does not look as expected; without the guard data would be lost.
        ModuleNotFoundError: accelerate is required and missing.
    """
    if not required and importlib.util.find_spec("accelerate") is None:
        return
    # `Accelerator` looks the function up in its own module, so this one name is all there is to change.
    module = importlib.import_module(MODULE)
    original = getattr(module, _HOOK, None)
    if getattr(original, _MARK, False):
        return
    if not callable(original) or not inspect.signature(original).parameters.keys() >= _USED_ARGUMENTS:
        raise unsupported("accelerate", f"{MODULE}.{_HOOK}")
    setattr(module, _HOOK, _guarded(original))


def _guarded(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def prepare_data_loader(dataloader: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_ours(dataloader.dataset):
            return original(dataloader, *args, **kwargs)
        call = signature.bind(dataloader, *args, **kwargs)
        call.apply_defaults()
        processes, index = _place(call.arguments)
        _refuse_what_shards_by_batch(call.arguments, processes)
        _lower_workers(dataloader, index, processes)
        call.arguments.update(
            num_processes=1,
            process_index=0,
            split_batches=False,
            dispatch_batches=False,
            # Its draws come from the plan, so there is no random state to keep equal over the ranks.
            rng_types=None,
            torch_device_mesh=None,
        )
        prepared = original(*call.args, **call.kwargs)
        follow_the_dataset(prepared)
        if processes > 1 and getattr(dataloader.dataset, "ends_evenly", False):
            return EvenBatches(prepared, call.arguments["device"])
        return prepared

    setattr(prepare_data_loader, _MARK, True)
    return prepare_data_loader


def _is_ours(dataset: object) -> bool:
    # An instance can only exist once its module is loaded; importing it here would slow down other loops.
    module = sys.modules.get("lerobot_streaming.dataset")
    return module is not None and isinstance(dataset, module.StreamingLeRobotDataset)


def _place(arguments: dict[str, Any]) -> tuple[int, int]:
    """Number of processes and own index, as accelerate sees them."""
    state = importlib.import_module("accelerate.state").PartialState()
    processes, index = arguments["num_processes"], arguments["process_index"]
    return (
        state.num_processes if processes is None else processes,
        state.process_index if index is None else index,
    )


def _refuse_what_shards_by_batch(arguments: dict[str, Any], processes: int) -> None:
    """Raise for accelerate options that want something else than a share of the episodes per process."""
    if arguments["split_batches"] and processes > 1:
        raise OptionError(
            "Accelerator(split_batches=True) cannot be used with StreamingLeRobotDataset: every process "
            "reads its own episodes. Leave it out, and give the DataLoader the batch size of one process."
        )
    mesh = arguments["torch_device_mesh"]
    names = getattr(mesh, "mesh_dim_names", None) or ()
    if any(name in names and mesh[name].size() > 1 for name in ("tp", "cp", "sp")):
        raise OptionError(
            "StreamingLeRobotDataset cannot be used with tensor, context or sequence parallelism: it would "
            "give different samples to the processes that share one batch. Use data parallelism."
        )


def _lower_workers(dataloader: Any, rank: int, processes: int) -> None:
    """Lower a worker count above the number of episodes of this rank: a worker without an episode cannot run.

    It is done here rather than in the run's config, so that each loader keeps as many workers as it can use,
    and so that a state records the number that was asked for, from which each rank derives its own.
    """
    dataloader.dataset.expect_workers(dataloader.num_workers)
    episodes = dataloader.dataset.num_episodes_for_rank(rank, processes)
    if dataloader.num_workers > episodes:
        logger.warning(
            "Lowering num_workers from %d to %d: this rank has %d %s episode(s), and every worker needs one",
            dataloader.num_workers,
            episodes,
            episodes,
            "held-out" if getattr(dataloader.dataset, "ends_evenly", False) else "training",
        )
        dataloader.num_workers = episodes
