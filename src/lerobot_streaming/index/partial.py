"""The index of a dataset before its complete sidecar exists: each file is indexed when it is first needed."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections import deque
from concurrent.futures import Future
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

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


_MAX_AHEAD: Final = 128
"""Files that are indexed ahead of demand."""

_MAX_TABLES: Final = 512
"""Tables that are kept in memory where the part store has them too; one of 10,000 samples takes 0.4 MB."""


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
            self._claim(path)
            return known
        if path not in self._files:
            raise SidecarError(f"'{path}' is not among the {len(self._files)} video files of the dataset")
        found = self._get(path)
        self._claim(path)
        return found

    def knows(self, path: str) -> bool:
        """Whether a file has been indexed, so that `source` answers at once.

        Args:
            path: POSIX path relative to the data root.

        Returns:
            True when nothing has to be read.
        """
        return self._completed is not None or path in self._sources

    def load(self, paths: Iterable[str]) -> None:
        """Indexes files now, several at a time.

        Args:
            paths: POSIX paths relative to the data root.

        Raises:
            BadVideoFilesError: Files cannot be indexed; the message lists all of them.
        """
        if self._open_complete() is not None:
            return
        wanted = {path: self._files[path] for path in paths if path not in self._sources}
        for source in index_files(wanted, self._reader, workers=self._threads, parts=self._parts):
            self._keep(source.path, source)

    def load_ahead(self, paths: Iterable[str]) -> None:
        """Lets threads index files in the order in which they will be needed; a new call replaces the order.

        They stay a bounded number of files ahead of what has been asked for.

        Args:
            paths: POSIX paths relative to the data root.
        """
        with self._lock:
            self._ahead.clear()
            self._ahead.extend(path for path in dict.fromkeys(paths) if path not in self._sources)
        self._start_threads()

    def close(self) -> None:
        """Ends the threads after the files that they are reading; what was read stays usable."""
        with self._lock:
            self._ahead.clear()

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out threads, and tables that other processes find in the part store."""
        kept = ("identity", "_reader", "_parts", "_complete", "_threads")
        state = {name: self.__dict__[name] for name in kept}
        state["_files"] = dict(self._files)
        state["_sources"] = dict(self._sources) if self._parts is None else {}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Takes a copy over in another process."""
        self.__dict__.update(state)
        self._files = MappingProxyType(state["_files"])
        self._start()

    def _start(self) -> None:
        self._completed: SampleIndex | None = None
        self._begin_threads()
        _OPEN.add(self)

    def _begin_threads(self) -> None:
        self._lock = threading.Lock()
        self._complete_lock = threading.Lock()
        # With locks of its own, which a forked child must not inherit either.
        self._parser = FileParser(self._reader, parts=self._parts)
        self._pending: dict[str, Future[SourceFile]] = {}
        self._ahead: deque[str] = deque()
        self._unclaimed: set[str] = set()
        self._num_running = 0

    def _start_threads(self) -> None:
        with self._lock:
            wanted = 0 if len(self._unclaimed) >= _MAX_AHEAD else min(self._threads, len(self._ahead))
            missing = max(0, wanted - self._num_running)
            self._num_running += missing
        for _ in range(missing):
            threading.Thread(target=self._run, name="lerobot-streaming-index", daemon=True).start()

    def _claim(self, path: str) -> None:
        """Notes that a file that was indexed ahead has been asked for: the threads may go on."""
        if path in self._unclaimed:
            with self._lock:
                self._unclaimed.discard(path)
            self._start_threads()

    def _get(self, path: str) -> SourceFile:
        with self._lock:
            future = self._pending.get(path)
            mine = future is None
            if future is None:
                future = self._pending[path] = Future()
        if mine:
            self._load(path, future)
        return future.result()

    def _keep(self, path: str, source: SourceFile) -> None:
        """Keeps a table; the oldest ones are forgotten where the part store has them."""
        with self._lock:
            self._sources[path] = source
            while self._parts is not None and len(self._sources) > _MAX_TABLES:
                del self._sources[next(iter(self._sources))]

    def _load(self, path: str, future: Future[SourceFile]) -> None:
        """Indexes one file for everybody who waits for it; a failure may be tried again."""
        try:
            source = self._find(path)
            self._keep(path, source)
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
        complete = self._open_complete()
        return self._parser.parse(path, self._files[path]) if complete is None else complete.source(path)

    def _open_complete(self) -> SampleIndex | None:
        """Opens the complete sidecar; once it is installed the parts are gone."""
        if self._completed is None and self._complete is not None:
            with self._complete_lock:
                if self._parts is None or not self._parts.exists():
                    self._completed = self._complete.open(self._files)
                    with self._lock:
                        self._sources.clear()
        return self._completed

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._ahead or len(self._unclaimed) >= _MAX_AHEAD:
                    self._num_running -= 1
                    return
                path = self._ahead.popleft()
                if path in self._sources:
                    continue
                self._unclaimed.add(path)
            try:
                self._get(path)
            except (SidecarError, FetchError):
                # Raised again when the file is really needed.
                with self._lock:
                    self._unclaimed.discard(path)
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
