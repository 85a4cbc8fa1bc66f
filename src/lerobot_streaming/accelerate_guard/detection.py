"""Notice that accelerate re-shards or dispatches one of our datasets, where it could not be kept from it."""

from __future__ import annotations

import sys
from typing import Final

from lerobot_streaming.errors import UnprotectedLoaderError

_MODULE: Final = "accelerate.data_loader"
_WRAPPERS: Final = ("IterableDatasetShard", "DataLoaderDispatcher")


def refuse_unprotected_loader() -> None:
    """Raise if one of accelerate's wrappers that lose our episodes is at work on a dataset of ours.

    To be called where the dataset is used: such a wrapper is then among the callers. Both announce the epoch
    in the training process before they read, so workers need not exist for it to be seen.

    Raises:
        UnprotectedLoaderError: One is, in a job of several processes.
    """
    module = sys.modules.get(_MODULE)
    if module is None:
        return
    types = tuple(found for name in _WRAPPERS if isinstance(found := getattr(module, name, None), type))
    frame = sys._getframe(1)  # noqa: SLF001  There is no other way to know one's callers.
    while frame is not None:
        wrapper = frame.f_locals.get("self") if frame.f_globals.get("__name__") == _MODULE else None
        if isinstance(wrapper, types) and _num_processes(wrapper) > 1:
            raise UnprotectedLoaderError(
                f"accelerate reads a StreamingLeRobotDataset through its {type(wrapper).__name__}, which "
                "would lose the episodes of other processes: every process streams its own. Pass the "
                "DataLoader to Accelerator.prepare in the process that made the dataset, with a supported "
                "version of accelerate, and do not wrap it yourself."
            )
        frame = frame.f_back  # type: ignore[assignment]


def _num_processes(wrapper: object) -> int:
    # One of them knows the number itself, the other one keeps accelerate's state.
    own = getattr(wrapper, "num_processes", None)
    return int(own if own is not None else getattr(getattr(wrapper, "state", None), "num_processes", 1))
