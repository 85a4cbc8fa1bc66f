"""The admission frontier: fetches whole episodes ahead of the plan, within the byte budget.

Episodes are reserved strictly in the order in which the plan admits them, so speculative prefetch can never
take the room that an earlier episode needs: when nothing is being decoded any more, the next episode always
fits.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from threading import Lock, Thread
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from lerobot_streaming.episodes.fetch_queue import FetchQueue, PartedWork
from lerobot_streaming.errors import PipelineClosedError
from lerobot_streaming.threads import join_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lerobot_streaming.episodes.byte_cache import EpisodeByteCache
    from lerobot_streaming.episodes.catalog import VideoCatalog
    from lerobot_streaming.episodes.layout import DatasetLayout
    from lerobot_streaming.episodes.rows import RowReader, RowTable
    from lerobot_streaming.episodes.videos import EpisodeVideo
    from lerobot_streaming.stats import WorkerStats
    from lerobot_streaming.storage.base import RangeReader

_FIRST_DRAWS: Final = 16
"""Samples at the start of a pass, a usual batch, that have the machine to themselves: what only later ones
want is fetched afterwards. Threads that fetch take it from those that decode, and all wait for them."""


@dataclass(frozen=True, slots=True)
class EpisodePayload:
    """All that is held of a fetched episode.

    Attributes:
        position: Position of the episode.
        rows: Its rows.
        videos: One mini-MP4 per camera, in the order of the layout's cameras.
    """

    position: int
    rows: RowTable
    videos: tuple[EpisodeVideo, ...]


@dataclass(slots=True)
class _Resident:
    """An episode that holds a reservation."""

    payload: Future[EpisodePayload]
    leases: deque[int] = field(default_factory=deque)  # Draws left per epoch that shares it, oldest first.
    unclaimed: int = 0  # Draws of those leases that have not been handed to a decode thread.


class EpisodeFetcher:
    """Keeps the episodes of the coming draws in memory.

    Only the thread that consumes the plan calls `expect`, `advance` and `claim`; `draw_done` may be called by
    any thread.

    Args:
        layout: The selected episodes.
        catalog: Spans and frame maps of their videos; None for a dataset without videos.
        rows: Reader of their rows.
        reader: Where the video bytes come from.
        cache: Reservations against the byte budget.
        frontier: Endless or finite iterator of (position, draws) in the order in which the plan admits them.
        pool_size: Episodes that the plan mixes.
        prefetch: Episodes fetched ahead of the pool.
        threads: Reads at a time: of an episode's rows, or of one camera.
        num_known: Coming draws that `expect` is told of at a time.
        stats: Counters to report to.
    """

    def __init__(
        self,
        *,
        layout: DatasetLayout,
        catalog: VideoCatalog | None,
        rows: RowReader,
        reader: RangeReader,
        cache: EpisodeByteCache,
        frontier: Iterator[tuple[int, int]],
        pool_size: int,
        prefetch: int,
        threads: int,
        num_known: int,
        stats: WorkerStats,
    ) -> None:
        """Starts the fetch threads; nothing is fetched before `advance`."""
        self._layout = layout
        self._catalog = catalog
        self._rows = rows
        self._reader = reader
        self._cache = cache
        self._frontier = frontier
        self._limit = pool_size + prefetch
        self._stats = stats
        self._next: tuple[int, int] | None = None
        self._residents: dict[int, _Resident] = {}
        self._num_leases = 0
        self._num_held = 0
        self._lock = Lock()
        # Where fewer draws are known, their episodes would come one after the other.
        self._num_first = _FIRST_DRAWS if num_known >= _FIRST_DRAWS else 0
        self._work = FetchQueue(self._num_first)
        self._closed = False
        self._threads = [
            Thread(target=self._run, name=f"lerobot-streaming-fetch-{number}", daemon=True)
            for number in range(min(threads, self._limit))
        ]
        for thread in self._threads:
            thread.start()

    def expect(self, position: int) -> None:
        """Notes a coming draw, so that its episode is fetched before those of later draws.

        Args:
            position: Position of its episode.
        """
        self._work.expect(position)

    def advance(self) -> None:
        """Reserves and starts fetching the next episodes as far as pool, prefetch and budget allow.

        To be called for each sample that is delivered. It stops at an episode whose size is not known yet
        rather than wait for its files to be indexed.
        """
        if self._num_first:
            self._num_first -= 1
            if not self._num_first:
                self._work.go_on()
        with self._lock:
            self._grant()

    def claim(self, position: int) -> Future[EpisodePayload] | None:
        """Claims an episode for its next draw.

        Only draws of epochs whose lease has been granted can be claimed: an episode that is resident merely
        because the epoch before still decodes it may be released at any moment.

        Args:
            position: Position of the episode.

        Returns:
            Its payload, done or under way; None while the budget has no room for the episode yet.

        Raises:
            DatasetLayoutError: An episode lies beyond the end of a file.
            BadVideoFilesError: A file cannot be indexed.
        """
        while True:
            with self._lock:
                payload = self._take(position)
                if payload is None:
                    self._grant()
                    payload = self._take(position)
                if payload is not None:
                    return payload
                waiting = None if self._next is None else self._next[0]
            if waiting is None or self._size(waiting) is not None or self._catalog is None:
                return None
            # Not under the lock: this indexes the episode's files, and draws go on ending meanwhile.
            self._catalog.size(waiting)

    def _take(self, position: int) -> Future[EpisodePayload] | None:
        resident = self._residents.get(position)
        if resident is None or not resident.unclaimed:
            return None
        resident.unclaimed -= 1
        self._work.hurry(position)
        return resident.payload

    def _size(self, position: int) -> int | None:
        return 0 if self._catalog is None else self._catalog.known_size(position)

    def _grant(self) -> None:
        while self._num_leases < self._limit and not self._closed:
            if self._next is None:
                self._next = next(self._frontier, None)
                if self._next is None:
                    return
            position, draws = self._next
            resident = self._residents.get(position)
            if resident is None:
                size = self._size(position)
                if size is None or not self._cache.try_reserve(position, size):
                    return
                resident = self._residents[position] = _Resident(Future())
                self._stats.add("episodes_admitted", 1)
                self._work.put(position, self._parts_of(position, resident.payload))
            # An episode that is still resident from the epoch before is not fetched twice.
            resident.leases.append(draws)
            resident.unclaimed += draws
            self._num_leases += 1
            self._next = None

    def hold(self, position: int) -> EpisodePayload | None:
        """Keeps an episode that is there from being released, without waiting for one that is not.

        Args:
            position: Position of the episode.

        Returns:
            Its payload, to be given back with `give_back`; None when it is not there.
        """
        with self._lock:
            resident = self._residents.get(position)
            if resident is None or not resident.payload.done() or resident.payload.cancelled():
                return None
            if resident.payload.exception() is not None:
                return None
            resident.leases[0] += 1
            self._num_held += 1
            return resident.payload.result()

    def give_back(self, position: int) -> None:
        """Ends a `hold`. The caller must no longer refer to the payload.

        Args:
            position: Position of the episode.
        """
        self.draw_done(position)
        with self._lock:
            self._num_held -= 1

    @property
    def num_held(self) -> int:
        """Holds that have not been given back."""
        return self._num_held

    def draw_done(self, position: int) -> None:
        """Counts a draw whose decode has finished; after an episode's last one its bytes are released.

        The caller must no longer refer to the payload.

        Args:
            position: Position of the episode.
        """
        with self._lock:
            resident = self._residents.get(position)
            if resident is None:
                return  # The pipeline was closed meanwhile, and everything released.
            resident.leases[0] -= 1
            if resident.leases[0] > 0:
                return
            resident.leases.popleft()
            self._num_leases -= 1
            if not resident.leases:
                del self._residents[position]
                self._work.forget(position)
                # Under the same lock, so that no other thread sees an episode that is gone but still
                # reserved.
                self._cache.release(position)

    def close(self) -> None:
        """Stops the threads and releases every reservation. Fetches under way end by themselves."""
        self._closed = True
        self._work.close()
        with self._lock:
            positions = list(self._residents)
            for resident in self._residents.values():
                resident.payload.cancel()
            self._residents.clear()
        for position in positions:
            self._cache.release(position)

    def join(self, timeout_s: float) -> bool:
        """Waits for the threads to end.

        Args:
            timeout_s: Seconds to wait in all.

        Returns:
            Whether every thread has ended.
        """
        return join_all(self._threads, timeout_s)

    def _run(self) -> None:
        while (part := self._work.take()) is not None:
            part()
            # An idle thread must not keep the last episode's bytes alive.
            del part

    def _parts_of(self, position: int, payload: Future[EpisodePayload]) -> list[Callable[[], None]]:
        """Rows and cameras apart: on a slow link each of them is a few answers, one after the other."""
        reads: list[Callable[[], Any]] = [partial(self._rows.read, position)]
        if self._catalog is not None:
            read = self._catalog.read
            reads += [partial(read, position, camera, self._reader) for camera in self._layout.cameras]
        work = PartedWork(
            payload, [partial(self._read, read) for read in reads], partial(self._finish, position)
        )
        return work.parts

    def _read(self, read: Callable[[], Any]) -> Any:
        if self._closed:
            raise PipelineClosedError("The pipeline was closed while an episode was being fetched.")
        begin = perf_counter()
        try:
            return read()
        finally:
            self._stats.add("fetch_s", perf_counter() - begin)

    def _finish(self, position: int, found: list[Any]) -> EpisodePayload:
        rows: RowTable = found[0]
        videos: list[EpisodeVideo] = []
        if self._catalog is not None:
            videos += [
                self._catalog.match(position, camera, rows.timestamps, mini_mp4)
                for camera, mini_mp4 in zip(self._layout.cameras, found[1:], strict=True)
            ]
        self._cache.set_resident(position, sum(len(video.data) for video in videos))
        return EpisodePayload(position, rows, tuple(videos))
