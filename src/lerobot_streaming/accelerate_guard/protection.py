"""What `Accelerator.prepare` does with a loader over one of our datasets: place it on the device, no more."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import logging
from typing import TYPE_CHECKING, Any, Final

from lerobot_streaming.accelerate_guard.announced_epochs import follow_the_dataset
from lerobot_streaming.accelerate_guard.even_batches import EvenBatches
from lerobot_streaming.accelerate_guard.wrappers import datasets_within
from lerobot_streaming.errors import OptionError, UnprotectedLoaderError
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
        ours, others = datasets_within(dataloader.dataset)
        if not ours:
            return original(dataloader, *args, **kwargs)
        call = signature.bind(dataloader, *args, **kwargs)
        call.apply_defaults()
        processes, index = _place(call.arguments)
        _refuse_what_shards_by_batch(call.arguments, processes)
        if others and processes > 1:
            raise UnprotectedLoaderError(
                f"The loader's {type(dataloader.dataset).__name__} reads a StreamingLeRobotDataset, of which "
                f"every process streams episodes of its own, together with a {type(others[0]).__name__}, "
                "which every process would read in full. Give each of them a loader of its own."
            )
        for dataset in ours:
            _check_pass(dataset, dataloader, processes)
        itself = ours == [dataloader.dataset]
        if itself:
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
        if itself:
            follow_the_dataset(prepared)
        if processes > 1 and any(dataset.ends_evenly for dataset in ours):
            return EvenBatches(prepared, call.arguments["device"])
        return prepared

    setattr(prepare_data_loader, _MARK, True)
    return prepare_data_loader


def _check_pass(dataset: Any, dataloader: Any, processes: int) -> None:
    """Raise for what cannot work with passes that end, and tell the dataset how it is read."""
    # torchdata's loader takes its state before accelerate reads ahead.
    if not dataloader.num_workers and not hasattr(dataloader, "state_dict"):
        dataset.reader_looks_ahead = True
    if dataset.repeat:
        return
    if dataloader.drop_last:
        raise OptionError(
            "DataLoader(drop_last=True) over a pass that ends (repeat=False) drops the last batch of every "
            "worker, and such a place cannot be resumed. Leave drop_last out, or use repeat=True, whose "
            "batches are all full."
        )
    if processes == 1:
        return
    if not dataset.ends_evenly:
        logger.warning(
            "Passes that end (repeat=False) have different numbers of batches on the %d processes: with "
            "collectives in the loop set dataset.ends_evenly = True, or take "
            "min(dataset.batches_per_rank(...)) batches from each",
            processes,
        )
        return
    steps = importlib.import_module("accelerate.state").GradientState().num_steps
    if steps > 1 and not dataset.only_evaluated:
        raise OptionError(
            f"dataset.ends_evenly cannot be used with gradient_accumulation_steps={steps}: accelerate ends "
            "an accumulation early at a loader's own end, which comes at different steps on different "
            "processes. Use repeat=True and count steps, or gradient_accumulation_steps=1."
        )


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
