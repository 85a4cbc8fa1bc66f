"""One pass of one worker over its plan: plan, admission, fetch, decode, ordered delivery.

The consumer's own thread plans and delivers. It keeps a window of coming draws, hands the next ones to the
decode threads as soon as their episodes hold a reservation, and yields finished items in plan order.
"""

from __future__ import annotations

import atexit
import itertools
import os
import weakref
from dataclasses import dataclass
from threading import local
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any, Final

from lerobot_streaming.augmentation import augmentation_seed
from lerobot_streaming.decode.colour import ColourConverter
from lerobot_streaming.decode.frame_cache import FrameCache
from lerobot_streaming.decode.lookahead import LookAhead, window_length
from lerobot_streaming.decode.ordered import Activity, OrderedPipeline, Slot
from lerobot_streaming.decode.window import DrawWindow
from lerobot_streaming.episodes.byte_cache import EpisodeByteCache
from lerobot_streaming.episodes.fetcher import EpisodeFetcher, EpisodePayload
from lerobot_streaming.errors import ByteBudgetError
from lerobot_streaming.items import Item, ItemBuilder, transform_images
from lerobot_streaming.plan import sample_seed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

    from lerobot_streaming.decode.decoders import DecoderPool
    from lerobot_streaming.episodes.catalog import VideoCatalog
    from lerobot_streaming.episodes.layout import DatasetLayout
    from lerobot_streaming.episodes.rows import RowReader
    from lerobot_streaming.plan import WorkerOrder
    from lerobot_streaming.stats import WorkerStats
    from lerobot_streaming.storage.base import RangeReader

QUEUE_BYTES: Final = 1024**3
"""Bytes of finished items kept ahead per worker; the queue is shortened when items are so large that
`decoded_queue_size` of them would need more."""

_EARLY_PER_THREAD: Final = 2
"""Draws per decode thread whose GOPs are decoded before their turn, so that no thread is idle while another
one's long GOP holds the queue up."""

_JOIN_TIMEOUT_S: Final = 1.0
_HOLD_POLL_S: Final = 0.001


@dataclass(frozen=True, slots=True)
class Draw:
    """One planned sample.

    Attributes:
        epoch: Coverage epoch.
        position: Position of the episode in the dataset's selection.
        frame: Frame number of the anchor in its episode.
    """

    epoch: int
    position: int
    frame: int


@dataclass(frozen=True, slots=True)
class StreamParts:
    """What a pass is made of; all of it outlives the pass.

    Attributes:
        layout: The selected episodes.
        catalog: Spans and frame maps of their videos.
        rows: Reader of their rows.
        reader: Where bytes come from.
        byte_budget: Bytes of mini-MP4s that this worker may reserve.
        decoders: Open decoders of this worker.
        items: Builder of items.
        stats: Counters of this worker.
        order: What the worker draws.
        pool_size: Episodes that the plan mixes.
        prefetch: Episodes fetched ahead of the pool.
        fetch_threads: Episodes fetched at a time.
        decode_threads: Decode threads.
        queue_size: Finished items kept ahead.
        frame_cache_bytes: Bytes of decoded frames kept by look-ahead.
        draw_frame_bytes: Bytes of decoded frames that one draw wants.
        item_bytes: Bytes of one item's images.
        rgb_keys: Cameras that transforms apply to.
        transforms: Image transforms, or None.
        seed: Seed of order and augmentation.
    """

    layout: DatasetLayout
    catalog: VideoCatalog | None
    rows: RowReader
    reader: RangeReader
    byte_budget: int
    decoders: DecoderPool
    items: ItemBuilder
    stats: WorkerStats
    order: WorkerOrder
    pool_size: int
    prefetch: int
    fetch_threads: int
    decode_threads: int
    queue_size: int
    frame_cache_bytes: int
    draw_frame_bytes: int
    item_bytes: int
    rgb_keys: Sequence[str]
    transforms: Callable[[Any], Any] | None
    seed: int


type _Task = tuple[Draw, Future[EpisodePayload]]


_running: weakref.WeakSet[EpisodeStream] = weakref.WeakSet()


@atexit.register
def _close_running() -> None:
    """Ends the threads of iterators that were never closed, before the interpreter is torn down.

    A thread that comes back from C++ into a dying interpreter is ended there and then, inside frames that
    must not be left like that: the process would abort although its work is done.
    """
    for stream in list(_running):
        stream.close()


# A forked process has none of the threads, and their locks may be held for ever.
os.register_at_fork(after_in_child=_running.clear)


class EpisodeStream:
    """Yields the items of one pass in plan order.

    Args:
        parts: What the pass is made of.
        epoch: First coverage epoch.
        offset: Draws of it to skip; with `repeat` it may reach into later epochs.
        repeat: Whether epochs follow one another endlessly.
    """

    def __init__(self, parts: StreamParts, *, epoch: int, offset: int, repeat: bool) -> None:
        """Starts the threads; bytes are read from the first `__iter__` step on."""
        self._parts = parts
        if parts.catalog is not None:
            # Before the plan asks for the first size.
            parts.catalog.load_ahead(parts.order.admissions(epoch, offset, repeat=repeat))
        draws, frontier = parts.order.begin(epoch, offset, repeat=repeat)
        self._draws = (Draw(*draw) for draw in draws)
        self.cache = EpisodeByteCache(parts.byte_budget)
        self._queue_size = max(1, min(parts.queue_size, QUEUE_BYTES // max(1, parts.item_bytes)))
        lengths = [int(length) for length in parts.layout.lengths]
        lookahead = LookAhead(lengths, parts.items.camera_windows)
        self._lookahead = lookahead
        length = self._queue_size
        if parts.frame_cache_bytes:
            length = window_length(parts.frame_cache_bytes, parts.draw_frame_bytes, length)
        self._converters = local()
        self._closed = False
        self._frames = FrameCache(
            parts.frame_cache_bytes, lookahead, parts.decoders, parts.stats, lambda: self._closed
        )
        self._window: DrawWindow[Draw] = DrawWindow(
            lookahead,
            self._frames,
            budget_bytes=parts.frame_cache_bytes,
            length=length,
            early=_EARLY_PER_THREAD * parts.decode_threads,
            place=lambda draw: (draw.position, draw.frame),
        )
        self._fetcher = EpisodeFetcher(
            layout=parts.layout,
            catalog=parts.catalog,
            rows=parts.rows,
            reader=parts.reader,
            cache=self.cache,
            frontier=frontier,
            pool_size=parts.pool_size,
            prefetch=parts.prefetch,
            threads=parts.fetch_threads,
            num_known=length,
            stats=parts.stats,
        )
        # Last: its threads use all the rest.
        self._pipeline: OrderedPipeline[_Task, tuple[Draw, Item]] = OrderedPipeline(
            self._decode,
            threads=parts.decode_threads,
            name="lerobot-streaming-decode",
            idle=self._decode_early,
        )
        _running.add(self)

    def __iter__(self) -> Iterator[tuple[Draw, Item]]:
        """Yields (draw, item) until the plan ends. Closing the generator stops every thread."""
        parts = self._parts
        try:
            while True:
                # First of all, because it tells the fetcher which episodes the first draws wait for.
                self._fill_window()
                self._submit()
                if not len(self._pipeline):
                    if not len(self._window):
                        return
                    self._await_room()
                begin = perf_counter()
                draw, item = self._pipeline.pop()
                parts.stats.add("wait_s", perf_counter() - begin)
                self._fetcher.advance()
                # The threads go on with the next items while this one is transformed and used.
                self._submit()
                if parts.transforms is not None:
                    self._transform(draw, item, parts.transforms)
                self._report()
                yield draw, item
        finally:
            self.close()

    def close(self) -> None:
        """Stops every thread and releases every byte; safe to call twice."""
        if self._closed:
            return
        self._closed = True
        _running.discard(self)
        self._pipeline.close()
        self._fetcher.close()
        deadline = perf_counter() + _JOIN_TIMEOUT_S
        self._pipeline.join(deadline - perf_counter())
        self._fetcher.join(max(0.0, deadline - perf_counter()))
        self._frames.clear()
        self._parts.stats.put("queue_depth", 0)
        self._parts.stats.put("pool_bytes", 0)
        self._parts.stats.put("frame_cache_bytes", 0)

    def _fill_window(self) -> None:
        for draw in itertools.islice(self._draws, self._window.room(len(self._pipeline))):
            self._fetcher.expect(draw.position)
            self._window.add(draw)

    def _submit(self) -> None:
        while len(self._window) and len(self._pipeline) < self._queue_size:
            payload = self._fetcher.claim(self._window.first.position)
            if payload is None:
                return
            self._pipeline.submit((self._window.take(), payload))

    def _await_room(self) -> None:
        """Waits until nothing is decoded early: such a decode may be the last to hold an episode."""
        while self._fetcher.num_held:
            self._pipeline.check_idle()
            sleep(_HOLD_POLL_S)
        self._submit()
        if not len(self._pipeline):
            self._raise_no_room()

    def _raise_no_room(self) -> None:
        position = self._window.first.position
        raise ByteBudgetError(
            f"Episode {self._parts.layout.episode_index[position]} does not fit: "
            f"{self.cache.reserved_bytes} of {self.cache.budget_bytes} bytes stay reserved while nothing is "
            "being decoded. This is a fault of lerobot_streaming: please report it."
        )

    def _decode(self, slot: Slot[_Task, tuple[Draw, Item]]) -> tuple[Draw, Item]:
        """Makes one item; runs in a decode thread."""
        draw, item = self._make_item(slot)
        # Nothing refers to the episode's bytes on behalf of this draw any more, so they may be released.
        self._fetcher.draw_done(draw.position)
        return draw, item

    def _make_item(self, slot: Slot[_Task, tuple[Draw, Item]]) -> tuple[Draw, Item]:
        draw, future = slot.take()
        position, episode = draw.position, self._parts.layout.episode_index[draw.position]
        if "://" not in self._parts.reader.root:
            # Other stores have a deadline of their own, longer than the stall timeout, and say what failed.
            slot.begin(f"Fetching episode {episode}")
        payload = future.result()
        converter = getattr(self._converters, "value", None)
        if converter is None:
            converter = self._converters.value = ColourConverter()
        frames = []
        for camera, video in enumerate(payload.videos):
            slot.begin(f"Decoding frame {draw.frame} of episode {episode} from {video.path}")
            wanted = self._lookahead.frames_of(camera, position, draw.frame)
            frames.append(self._frames.frames(position, camera, video, wanted))
        item = self._parts.items.build(position, draw.frame, payload.rows, frames, converter)
        self._frames.draw_done(position, draw.frame, payload.videos)
        self._parts.stats.add("camera_samples", len(frames))
        return draw, item

    def _decode_early(self, activity: Activity) -> bool:
        """Decodes for a coming draw; runs in a decode thread that has nothing else to do."""
        found = self._window.next_early(self._fetcher.hold)
        if found is None:
            return False
        number, draw, payload = found
        del found
        failed = False
        try:
            if self._warm(draw, payload, activity):
                self._window.decoded_early(number)
        except Exception:  # noqa: BLE001  The draw itself meets the same error, and raises it in its turn.
            failed = True
        # Nothing refers to the episode's bytes here any more, not even a traceback, so they may be released.
        del payload
        self._fetcher.give_back(draw.position)
        return not failed

    def _warm(self, draw: Draw, payload: EpisodePayload, activity: Activity) -> bool:
        """Decodes what a draw wants and is not kept yet; says whether there was any."""
        decoded = False
        for camera, video in enumerate(payload.videos):
            episode = self._parts.layout.episode_index[draw.position]
            activity.begin(f"Decoding frame {draw.frame} of episode {episode} from {video.path}")
            wanted = self._lookahead.frames_of(camera, draw.position, draw.frame)
            decoded |= self._frames.warm(draw.position, camera, video, wanted)
        return decoded

    def _transform(self, draw: Draw, item: Item, transforms: Callable[[Any], Any]) -> None:
        """Transforms in the consumer's thread: the seeded generators are the process's own."""
        begin = perf_counter()
        index = int(self._parts.layout.first_index[draw.position]) + draw.frame
        with augmentation_seed(sample_seed(self._parts.seed, draw.epoch, index)):
            transform_images(item, self._parts.rgb_keys, transforms)
        self._parts.stats.add("transform_s", perf_counter() - begin)

    def _report(self) -> None:
        stats = self._parts.stats
        stats.add("samples", 1)
        stats.put("queue_depth", self._pipeline.num_finished)
        stats.put("pool_bytes", self.cache.resident_bytes)
        stats.put("frame_cache_bytes", self._frames.num_bytes)
