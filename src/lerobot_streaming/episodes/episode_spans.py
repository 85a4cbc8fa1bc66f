"""The spans of many episodes in one video file, from metadata alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lerobot_streaming.episodes.layout import CameraTable, DatasetLayout
    from lerobot_streaming.index.spans import FrameIndex


def episode_spans(
    layout: DatasetLayout, table: CameraTable, frames: FrameIndex, positions: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Finds the samples that episodes of one file need.

    Args:
        layout: The selected episodes.
        table: One camera's place in its files.
        frames: Look-ups on the file.
        positions: int64 (e). Positions of episodes that lie in this file.

    Returns:
        (first int64 (e), last int64 (e)), both inclusive, decode order.
    """
    lengths = layout.lengths[positions]
    begins = table.from_seconds[positions]
    starts = np.cumsum(lengths + 1) - (lengths + 1)
    frame = np.arange(int((lengths + 1).sum())) - np.repeat(starts, lengths + 1)
    times = np.repeat(begins, lengths + 1) + frame / layout.fps
    # `to_timestamp` is the end of the last frame or, in some datasets, its beginning: reach for the later.
    ends = starts + lengths
    times[ends] = np.maximum(times[ends - 1], table.to_seconds[positions] - 1 / layout.fps)
    return frames.decode_spans(times, starts)


def beyond_file(
    layout: DatasetLayout,
    table: CameraTable,
    positions: NDArray[np.int64],
    file_ends: NDArray[np.float64] | float,
    tolerance_s: float,
) -> NDArray[np.bool_]:
    """Tells which episodes do not lie inside their file.

    Args:
        layout: The selected episodes.
        table: One camera's place in its files.
        positions: int64 (e). Positions of episodes.
        file_ends: float64 (e), or one for all. Time in seconds of the last frame of each episode's file.
        tolerance_s: Seconds that a frame may lie from its wanted time.

    Returns:
        bool (e), True where an episode begins after the last frame, or ends more than half a frame after it.
    """
    begins = table.from_seconds[positions]
    lasts = begins + (layout.lengths[positions] - 1) / layout.fps
    outside: NDArray[np.bool_] = (begins > file_ends + tolerance_s) | (lasts > file_ends + 0.5 / layout.fps)
    return outside
