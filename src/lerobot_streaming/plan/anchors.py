"""Which frames of the selected episodes are drawn at all."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lerobot_streaming.errors import OptionError, ShardingError

if TYPE_CHECKING:
    from collections.abc import Sequence

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AnchorSelection:
    """The frames of each selected episode that are drawn.

    Attributes:
        positions: Positions of the episodes that have anchors, ascending.
        first: First anchor of each, a frame number.
        counts: Number of anchors of each.
    """

    positions: Sequence[int]
    first: int
    counts: Sequence[int]


def select_anchors(lengths: Sequence[int], drop_first: int, drop_last: int) -> AnchorSelection:
    """Leaves out the frames at the ends of episodes that a policy cannot use, as lerobot's sampler does.

    Args:
        lengths: Frames of each selected episode.
        drop_first: Frames left out at the beginning of each.
        drop_last: Frames left out at the end of each.

    Returns:
        The anchors; episodes that lose all of their frames are left out.

    Raises:
        OptionError: A number is negative.
        ShardingError: No anchor is left.
    """
    for name, value in (("drop_n_first_frames", drop_first), ("drop_n_last_frames", drop_last)):
        if value < 0:
            raise OptionError(f"{name} must be >= 0, got {value}.")
    counts = np.asarray(lengths, dtype=np.int64) - drop_first - drop_last
    kept = np.nonzero(counts > 0)[0]
    if len(kept) < len(counts):
        _logger.warning(
            "%d of %d episodes are left out: drop_n_first_frames=%d and drop_n_last_frames=%d remove all of "
            "their frames.",
            len(counts) - len(kept),
            len(counts),
            drop_first,
            drop_last,
        )
    if not len(kept):
        raise ShardingError(
            f"No frame is left after drop_n_first_frames={drop_first} and drop_n_last_frames={drop_last}: "
            "every episode is shorter. Select longer episodes or lower the numbers of the policy."
        )
    return AnchorSelection(kept.tolist(), drop_first, counts[kept].tolist())
