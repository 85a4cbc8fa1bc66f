"""Find our datasets inside of the datasets that users wrap around them."""

from __future__ import annotations

import sys
from typing import Any, Final

_LEVELS: Final = 4


def datasets_within(dataset: Any) -> tuple[list[Any], list[Any]]:
    """Find the datasets that an iterable dataset reads.

    Args:
        dataset: The dataset of a loader.

    Returns:
        Ours that it is or holds in its attributes (as `ChainDataset` does in a list), a few levels deep; and
        the other iterable datasets that hold none of ours.
    """
    # An instance can only exist once its module is loaded; importing it here would slow down other loops.
    module = sys.modules.get("lerobot_streaming.dataset")
    if module is None:
        return [], [dataset]
    return _within(dataset, module.StreamingLeRobotDataset, module.IterableDataset, _LEVELS)


def _within(dataset: Any, our_type: type, any_type: type, levels: int) -> tuple[list[Any], list[Any]]:
    if isinstance(dataset, our_type):
        return [dataset], []
    ours, others = [], []
    if levels and isinstance(dataset, any_type):
        for value in vars(dataset).values():
            for held in _members(value, any_type):
                more_ours, more_others = _within(held, our_type, any_type, levels - 1)
                ours += more_ours
                others += more_others
    return ours, others if ours or others else [dataset]


def _members(value: Any, any_type: type) -> list[Any]:
    several = value.values() if isinstance(value, dict) else value
    if not isinstance(value, list | tuple | set | dict):
        several = [value]
    return [held for held in several if isinstance(held, any_type)]
