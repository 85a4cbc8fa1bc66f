"""Byte ranges of the files below any fsspec URL: S3, Google Cloud Storage, SFTP, memory, ..."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, Final

from lerobot_streaming.errors import ChangedFileError, FetchError, OptionError, StreamingError
from lerobot_streaming.storage.base import FileStat, RangeReader, check_offset, check_path
from lerobot_streaming.storage.forking import bury, renew_in_children
from lerobot_streaming.storage.fsspec_files import FsspecFiles, check_url, fingerprint
from lerobot_streaming.storage.governor import Governor
from lerobot_streaming.storage.retry import DEFAULT_DEADLINE_S, Retrier, RetryPolicy, TransientFault
from lerobot_streaming.storage.secrets import public_url

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lerobot_streaming.storage.retry import Deadline

DEFAULT_CONNECTIONS: Final = 16
DEFAULT_TIMEOUT_S: Final = 60.0
DEFAULT_RECHECK_S: Final = 60.0
_HOST: Final = "the store"


class FsspecReader(RangeReader):
    """Reads byte ranges below an fsspec URL, with retries."""

    def __init__(
        self,
        url: str,
        storage_options: Mapping[str, Any] | None = None,
        *,
        connections: int = DEFAULT_CONNECTIONS,
        deadline_s: float = DEFAULT_DEADLINE_S,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        recheck_s: float = DEFAULT_RECHECK_S,
        on_retry: Callable[[], None] | None = None,
    ) -> None:
        """Binds the reader to a URL; nothing is opened yet.

        Args:
            url: Root with its protocol, such as `s3://bucket/folder`.
            storage_options: Options of the file system, credentials for instance.
            connections: Most requests at a time; at least 1.
            deadline_s: Seconds for one read or look-up with all of its attempts; > 0.
            timeout_s: Seconds for one attempt; only asynchronous file systems can be held to it.
            recheck_s: Seconds after which a file that is read is looked up again, to notice that it changed.
            on_retry: Called before each further attempt.

        Raises:
            OptionError: The protocol is unknown, its package is not installed, the URL carries a query, or a
                number is out of range.
        """
        if connections < 1:
            raise OptionError(f"connections must be at least 1, got {connections}.")
        check_url(url)
        self._url = url
        self._options = dict(storage_options or {})
        self._connections = connections
        self._timeout_s = timeout_s
        self._recheck_s = recheck_s
        self._policy = RetryPolicy(deadline_s)
        self._start(on_retry, {})

    def _start(self, on_retry: Callable[[], None] | None, seen: Mapping[str, FileStat]) -> None:
        self._files = FsspecFiles(self._url, self._options, self._timeout_s)
        self._retrier = Retrier(self._policy, on_retry)
        self._governor = Governor(self._connections)
        self._known = {path: (found, -math.inf) for path, found in seen.items()}
        renew_in_children(self)

    @property
    def root(self) -> str:
        """The URL without credentials and without trailing slashes."""
        return public_url(self._url)

    def __repr__(self) -> str:
        """Names the root only: options may hold credentials."""
        return f"FsspecReader({self.root!r})"

    def watch_retries(self, on_retry: Callable[[], None] | None) -> None:
        """Sets what counts the retries in this process."""
        self._retrier.on_retry = on_retry

    def stat(self, path: str) -> FileStat:
        """Looks one file up.

        Args:
            path: POSIX path relative to the root.

        Returns:
            Size in bytes, and as fingerprint what the store has: ETag, version, checksum or time of change.

        Raises:
            MissingFileError: There is no such file.
            AccessError: The store refuses.
            FetchError: The store could not be asked, or does not say the size.
        """
        check_path(path, self.root)
        what = f"looking up '{path}' below '{self.root}'"
        found = self._retrier.run(lambda deadline: self._look_up(path, what, deadline), what)
        self._known.setdefault(path, (found, time.monotonic()))
        return found

    def read_into(self, path: str, offset: int, view: memoryview) -> None:
        """Fills a buffer from one byte range.

        Args:
            path: POSIX path relative to the root.
            offset: First byte of the range, from the start of the file; >= 0.
            view: Writable contiguous buffer; exactly `view.nbytes` bytes are read into it.

        Raises:
            MissingFileError: There is no such file.
            AccessError: The store refuses.
            ChangedFileError: The file is not the one that was looked up first.
            FetchError: The range leaves the file, or the bytes did not come within the deadline.
        """
        check_path(path, self.root)
        check_offset(path, self.root, offset)
        wanted = view.nbytes
        size = self._known_size(path)
        if not wanted:
            return
        if offset + wanted > size:
            raise FetchError(
                f"short read of '{path}' below '{self.root}': at offset {offset} wanted {wanted} bytes, got "
                f"{max(0, size - offset)}; the file is truncated or was replaced, copy it again"
            )
        what = f"reading '{path}' below '{self.root}', bytes {offset} to {offset + wanted - 1}"
        view.cast("B")[:] = self._retrier.run(
            lambda deadline: self._fetch(path, offset, wanted, what, deadline), what, num_bytes=wanted
        )

    def check_ranges(self, path: str) -> None:
        """Checks that the store answers a range with just that range.

        Args:
            path: A file; one of less than 2 bytes shows nothing.

        Raises:
            MissingFileError: There is no such file.
            FetchError: The store does not serve byte ranges, or could not be asked.
        """
        size = self.stat(path).size
        if size >= 2:
            self.read(path, size // 2, 1)

    def close(self) -> None:
        """Ends waits and lets the file systems go, which close their own connections."""
        self._retrier.close()
        self._files = FsspecFiles(self._url, self._options, self._timeout_s)

    def __getstate__(self) -> dict[str, Any]:
        """Pickles URL and options: connections and caches mean nothing in another process."""
        names = ("_url", "_options", "_connections", "_timeout_s", "_recheck_s", "_policy")
        # What the files were goes along, so that a worker notices that one was replaced before it started.
        return {name: getattr(self, name) for name in names} | {"seen": self._seen()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Rebuilds a reader without connections."""
        seen = state.pop("seen")
        self.__dict__.update(state)
        self._start(None, seen)

    def renew_after_fork(self) -> None:
        """Leaves, in a forked child, the parent's file systems alone: their event loop does not run there."""
        bury(self._files)
        self._start(self._retrier.on_retry, self._seen())

    def _seen(self) -> dict[str, FileStat]:
        return {path: found for path, (found, _) in list(self._known.items())}

    def _known_size(self, path: str) -> int:
        """Size of a file that is looked up again from time to time, so that a replaced one is noticed."""
        known = self._known.get(path)
        if known is None:
            return self.stat(path).size
        first, checked = known
        if time.monotonic() - checked >= self._recheck_s:
            found = self.stat(path)
            if found != first:
                raise ChangedFileError(
                    f"'{path}' below '{self.root}' changed while the run was reading it: first {first}, now "
                    f"{found}; start again, on data that nobody writes to"
                )
            self._known[path] = (first, time.monotonic())
        return first.size

    def _look_up(self, path: str, what: str, deadline: Deadline) -> FileStat:
        with self._governor.slot(_HOST, deadline):
            info = self._files.call("info", path, what, deadline)
            if info.get("type") == "directory":
                raise self._files.missing(path)
            size = info.get("size")
            if not isinstance(size, int):
                raise FetchError(
                    f"{what}: the store does not say the file's size, so no range can be checked"
                )
            found = fingerprint(info)
            if found is None:
                try:
                    changed = self._files.call("modified", path, what, deadline)
                except (StreamingError, TransientFault):
                    return FileStat(size, None)
                found = fingerprint({"size": size, "modified": changed})
            return FileStat(size, found)

    def _fetch(self, path: str, offset: int, wanted: int, what: str, deadline: Deadline) -> bytes:
        with self._governor.slot(_HOST, deadline):
            data: bytes = self._files.call(
                "cat_file", path, what, deadline, start=offset, end=offset + wanted
            )
            if len(data) > wanted:
                raise FetchError(
                    f"{what}: the store answered with {len(data)} bytes, so it does not serve byte ranges; "
                    "copy the data to a store that does, or to a local directory"
                )
            if len(data) < wanted:
                raise TransientFault(f"short body, {len(data)} of {wanted} bytes came")
            return data
