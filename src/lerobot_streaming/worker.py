"""Builds what one worker of one rank streams with: its long-lived parts, and its part of the budgets."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import av
import numpy as np

from lerobot_streaming.decode.decoders import DecoderPool
from lerobot_streaming.episodes.rows import RowReader
from lerobot_streaming.items import Item, ItemBuilder
from lerobot_streaming.lerobot_values import decode_language
from lerobot_streaming.options import GIB
from lerobot_streaming.storage.counted import CountedReader
from lerobot_streaming.stream import StreamParts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lerobot_streaming.episodes.catalog import VideoCatalog
    from lerobot_streaming.opening import OpenDataset
    from lerobot_streaming.options import Options
    from lerobot_streaming.plan import WorkerOrder
    from lerobot_streaming.stats import WorkerStats
    from lerobot_streaming.storage.base import RangeReader

_PADDING: Final = 1.1
"""Allowance for the lines that libav pads (64 pixels came in lines of 128 bytes, 640 without padding). The
cache counts the true bytes; a window that is a little too long or short only changes how often a GOP is
decoded."""


@dataclass(slots=True)
class WorkerRuntime:
    """What lives as long as the worker: open files, footers, decoders, tables.

    Attributes:
        open: The open dataset.
        reader: Where bytes come from, counted.
        rows: Reader of rows.
        catalog: Spans and frame maps.
        decoders: Open decoders.
        items: Builder of items.
        stats: Counters of the worker.
    """

    open: OpenDataset
    rows: RowReader
    catalog: VideoCatalog | None
    decoders: DecoderPool
    items: ItemBuilder
    stats: WorkerStats
    reader: RangeReader


def set_worker_up() -> None:
    """Sets this process up as a DataLoader worker."""
    # PyAV hands FFmpeg's log to Python, which serialises the decode threads.
    av.logging.set_level(None)
    _freeze_once()


@cache
def _freeze_once() -> None:
    """Keeps the garbage collector from what the worker begins with, nearly all of which stays to its end.

    To look through it takes 0.3 s, which delays the first sample, and copies all pages that the worker shares
    with the training process.
    """
    gc.freeze()


def make_runtime(
    opened: OpenDataset, options: Options, num_workers: int, stats: WorkerStats
) -> WorkerRuntime:
    """Makes the long-lived parts of a worker.

    Args:
        opened: The open dataset.
        options: The checked options.
        num_workers: DataLoader workers of the rank, at least 1.
        stats: The worker's counters.

    Returns:
        The parts; nothing is read yet.
    """
    limit = options.decode_threads * max(1, len(opened.layout.cameras))
    if options.video_decoder_cache_size is not None:
        limit = max(1, options.video_decoder_cache_size // num_workers)
    reader = CountedReader(opened.reader, stats.count_read)
    reader.watch_retries(lambda: stats.add("retries", 1))
    reader.limit_requests(max(1, options.connections // num_workers))
    rows = RowReader(opened.layout, reader, decode_language)
    rows.share_footers(opened.rows)
    return WorkerRuntime(
        open=opened,
        rows=rows,
        catalog=opened.catalog,
        decoders=DecoderPool(limit),
        items=ItemBuilder(opened.layout, opened.items),
        stats=stats,
        reader=reader,
    )


def make_parts(
    runtime: WorkerRuntime,
    options: Options,
    order: WorkerOrder,
    *,
    num_workers: int,
    seed: int,
    transforms: Callable[[Any], Any] | None,
) -> StreamParts:
    """Makes what one worker streams.

    Args:
        runtime: The worker's long-lived parts.
        options: The checked options.
        order: What the worker draws.
        num_workers: DataLoader workers of the rank, at least 1.
        seed: Seed of the augmentations.
        transforms: Image transforms, or None.

    Returns:
        The parts of its passes.
    """
    opened = runtime.open
    draw_frame_bytes, item_bytes = _image_bytes(runtime)
    return StreamParts(
        layout=opened.layout,
        catalog=runtime.catalog,
        rows=runtime.rows,
        reader=runtime.reader,
        byte_budget=order.byte_budget,
        decoders=runtime.decoders,
        items=runtime.items,
        stats=runtime.stats,
        order=order,
        pool_size=options.pool_size_for_worker(num_workers),
        prefetch=options.prefetch_episodes,
        fetch_threads=options.max_num_shards,
        decode_threads=options.decode_threads,
        queue_size=options.decoded_queue_size,
        frame_cache_bytes=int(options.frame_cache_gb * GIB) // num_workers,
        draw_frame_bytes=draw_frame_bytes,
        item_bytes=item_bytes,
        rgb_keys=opened.items.rgb_keys,
        transforms=transforms,
        seed=seed,
    )


def _image_bytes(runtime: WorkerRuntime) -> tuple[int, int]:
    """Bytes of decoded frames that one draw wants, and bytes of one item's images."""
    opened, decoded, finished = runtime.open, 0.0, 0
    for camera, window in zip(opened.layout.cameras, runtime.items.camera_windows, strict=True):
        height, width = opened.layout.frame_size(camera)
        decoded += _PADDING * len(set(window)) * _frame_bytes(width, height, opened.pixel_formats[camera])
        is_uint8 = opened.items.return_uint8 and camera not in opened.items.depth_videos
        channels = 1 if camera in opened.items.depth_videos else 3
        finished += len(window) * channels * width * height * (1 if is_uint8 else 4)
    for key in opened.items.image_keys:
        shape = opened.layout.features[key]["shape"]
        finished += len(opened.items.delta_indices.get(key, (0,))) * int(np.prod(shape)) * 4
    return int(decoded), finished


def _frame_bytes(width: int, height: int, pixel_format: str | None) -> int:
    """Bytes of one decoded frame."""
    try:
        frame = av.VideoFrame(width, height, pixel_format or "yuv420p")
    except ValueError:
        return width * height * 3
    return sum(plane.buffer_size for plane in frame.planes)


def failing(error: BaseException) -> Iterator[Item]:
    """Give an iterator that fails when it is read, and not where it is made.

    Args:
        error: What it raises.

    Returns:
        The iterator.
    """

    def fail() -> Item:
        raise error

    return iter(fail, None)
