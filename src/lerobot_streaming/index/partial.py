"""The index of a dataset before its complete sidecar exists: each file is indexed when it is first needed."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections import deque
from concurrent.futures import Future
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from lerobot_streaming.errors import BadVideoFilesError, FetchError, MissingFileError, Mp4Error, SidecarError
from lerobot_streaming.index.builder import DEFAULT_WORKERS, FileParser, index_files
from lerobot_streaming.index.sample_index import SampleIndex

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lerobot_streaming.index.cached import CachePlace
    from lerobot_streaming.index.identity import SidecarIdentity
    from lerobot_streaming.index.parts import PartStore
    from lerobot_streaming.index.tables import Mp4Header, SourceFile
    from lerobot_streaming.storage.base import RangeReader


class PartialIndex(SampleIndex):
    """Indexes files on demand, and ahead of demand once it is told in which order they will be needed.

    Tables stay in memory, and in the part store, where other processes find them. It pickles without its
    tables when there is a part store, so that a worker's copy is small.
    """

    def __init__(
        self,
        identity: SidecarIdentity,
        files: Mapping[str, int],
        reader: RangeReader,
        *,
        parts: PartStore | None,
        complete: CachePlace | None = None,
        threads: int = DEFAULT_WORKERS,
    ) -> None:
        """Reads nothing yet.

        Args:
            identity: What the index belongs to.
            files: Path -> size in bytes of all files of the dataset.
            reader: Where they are read from.
            parts: Where tables are kept between processes and runs, or None.
            complete: Where the complete sidecar will lie, once another process or thread has made it.
            threads: Files indexed ahead of demand at a time.
        """
        self.identity = identity
        self._files = MappingProxyType(dict(files))
        self._reader = reader
        self._parts = parts
        self._complete = complete
        self._threads = threads
        self._sources: dict[str, SourceFile] = {}
        self._start()

    @property
    def files(self) -> Mapping[str, int]:
        """Path -> size in bytes of every file of the dataset, indexed or not."""
        return self._files

    def header(self, path: str) -> Mp4Header:
        """Gives a file's header facts; the file is indexed when it has not been."""
        return self.source(path).header

    def source(self, path: str) -> SourceFile:
        """Gives a file's header and sample table; the file is indexed when it has not been.

        Args:
            path: POSIX path relative to the data root.

        Returns:
            The indexed file.

        Raises:
            SidecarError: The file is not one of the dataset.
            BadVideoFilesError: It is missing, damaged or of an unsupported form.
            FetchError: It could not be read.
        """
        known = self._sources.get(path)
        if known is not None:
            return known
        if path not in self._files:
            raise SidecarError(f"'{path}' is not among the {len(self._files)} video files of the dataset")
        with self._lock:
            future = self._pending.get(path)
            mine = future is None
            if future is None:
                future = self._pending[path] = Future()
        if mine:
            self._load(path, future)
        return future.result()

    def knows(self, path: str) -> bool:
        """Whether a file has been indexed, so that `source` answers at once.

        Args:
            path: POSIX path relative to the data root.

        Returns:
            True when nothing has to be read.
        """
        return path in self._sources

    def load(self, paths: Iterable[str]) -> None:
        """Indexes files now, several at a time.

        Args:
            paths: POSIX paths relative to the data root.

        Raises:
            BadVideoFilesError: Files cannot be indexed; the message lists all of them.
        """
        wanted = {path: self._files[path] for path in paths if path not in self._sources}
        sources = index_files(wanted, self._reader, workers=self._threads, parts=self._parts)
        self._sources.update((source.path, source) for source in sources)

    def load_ahead(self, paths: Iterable[str]) -> None:
        """Lets threads index files in the order in which they will be needed; a new call replaces the order.

        Args:
            paths: POSIX paths relative to the data root.
        """
        with self._lock:
            self._ahead.clear()
            self._ahead.extend(path for path in dict.fromkeys(paths) if path not in self._sources)
            missing = min(self._threads, len(self._ahead)) - self._num_running
            self._num_running += max(0, missing)
        for _ in range(missing):
            threading.Thread(target=self._run, name="lerobot-streaming-index", daemon=True).start()

    def close(self) -> None:
        """Ends the threads after the files that they are reading; what was read stays usable."""
        with self._lock:
            self._ahead.clear()

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out threads, and tables that other processes find in the part store."""
        kept = ("identity", "_reader", "_parts", "_complete", "_threads")
        state = {name: self.__dict__[name] for name in kept}
        state["_files"] = dict(self._files)
        state["_sources"] = {} if self._parts is not None and self._parts.exists() else dict(self._sources)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Takes a copy over in another process."""
        self.__dict__.update(state)
        self._files = MappingProxyType(state["_files"])
        self._start()

    def _start(self) -> None:
        self._parser = FileParser(self._reader, parts=self._parts)
        self._completed: SampleIndex | None = None
        self._begin_threads()
        _OPEN.add(self)

    def _begin_threads(self) -> None:
        self._lock = threading.Lock()
        self._complete_lock = threading.Lock()
        self._pending: dict[str, Future[SourceFile]] = {}
        self._ahead: deque[str] = deque()
        self._num_running = 0

    def _load(self, path: str, future: Future[SourceFile]) -> None:
        """Indexes one file for everybody who waits for it; a failure may be tried again."""
        try:
            source = self._sources[path] = self._find(path)
        except BaseException as error:  # noqa: BLE001  Whoever waits raises it, whatever it is.
            if isinstance(error, (Mp4Error, MissingFileError)):
                fault = BadVideoFilesError(
                    f"'{path}' below '{self._reader.root}' cannot be indexed: {error}. Restore it, or leave "
                    "its episodes out",
                    (path,),
                )
                fault.__cause__ = error
                future.set_exception(fault)
            else:
                future.set_exception(error)
        else:
            future.set_result(source)
        finally:
            with self._lock:
                self._pending.pop(path, None)

    def _find(self, path: str) -> SourceFile:
        # Once the complete sidecar is installed the parts are gone.
        if self._complete is not None and not (self._parts is not None and self._parts.exists()):
            with self._complete_lock:
                if self._completed is None:
                    self._completed = self._complete.open(self._files)
            if self._completed is not None:
                return self._completed.source(path)
        return self._parser.parse(path, self._files[path])

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._ahead:
                    self._num_running -= 1
                    return
                path = self._ahead.popleft()
            try:
                self.source(path)
            except (SidecarError, FetchError):
                # Raised again when the file is really needed.
                continue
            except RuntimeError:
                return  # The interpreter is ending.


_OPEN: weakref.WeakSet[PartialIndex] = weakref.WeakSet()


@atexit.register
def _close_open() -> None:
    for index in list(_OPEN):
        index.close()


def _after_fork() -> None:
    # The threads do not exist in the child, and one of them may have held the lock.
    for index in list(_OPEN):
        index._begin_threads()  # noqa: SLF001  The module's own class.


os.register_at_fork(after_in_child=_after_fork)
