"""The protocol that every place where bytes come from fulfils.

A reader is bound to one root (a directory, a dataset at one commit, a bucket, ...) and reads byte ranges of
the files below it. It is the only way in which the rest of the library touches payload storage, so every
network fault can be injected in one place.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from lerobot_streaming.errors import FetchError, MissingFileError
from lerobot_streaming.threads import daemon_pool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

DEFAULT_LOOK_UPS = 8


@dataclass(frozen=True, slots=True)
class FileStat:
    """What storage says about one file without reading it.

    Attributes:
        size: The file's size in bytes; -1 in an answer of `stat_many` for a file that does not exist.
        fingerprint: Text that changes when the content changes (mtime and size of a local file, a content
            hash, an ETag), or None when the store has no such thing or the root itself pins the content.
    """

    size: int
    fingerprint: str | None


@runtime_checkable
class RangeReader(Protocol):
    """Reads byte ranges of the files below one root.

    Paths are POSIX, relative to the root, without `..`. Every method may be called by many threads at once,
    and a reader pickles (without its connections or descriptors), so that it reaches spawned workers.
    """

    @property
    @abstractmethod
    def root(self) -> str:
        """The root as stable text; it becomes the `data_root` of a sidecar's identity."""
        ...

    @abstractmethod
    def stat(self, path: str) -> FileStat:
        """Looks one file up.

        Args:
            path: POSIX path relative to the root.

        Returns:
            Size in bytes and fingerprint.

        Raises:
            MissingFileError: There is no such file; the message names root and path.
            FetchError: Storage could not be asked.
        """
        ...

    def stat_many(self, paths: Iterable[str], *, look_ups: int = DEFAULT_LOOK_UPS) -> dict[str, FileStat]:
        """Looks many files up, in as few requests as the store allows.

        Args:
            paths: POSIX paths relative to the root.
            look_ups: Requests at a time, where each file needs its own; at least 1.

        Returns:
            Path -> size and fingerprint, in the order of `paths`. A missing file has the size -1, so that a
            caller can list it together with all other bad files.

        Raises:
            FetchError: Storage could not be asked.
        """

        def look_up(path: str) -> FileStat:
            try:
                return self.stat(path)
            except MissingFileError:
                return FileStat(-1, None)

        wanted = list(dict.fromkeys(paths))
        with daemon_pool(look_ups, "stat") as pool:
            return dict(zip(wanted, pool.map(look_up, wanted), strict=True))

    @abstractmethod
    def read_into(self, path: str, offset: int, view: memoryview) -> None:
        """Fills a buffer from one byte range, without an intermediate copy where storage allows that.

        Args:
            path: POSIX path relative to the root.
            offset: First byte of the range, from the start of the file; >= 0.
            view: Writable contiguous buffer; exactly `view.nbytes` bytes are read into it.

        Raises:
            MissingFileError: There is no such file.
            FetchError: Fewer bytes came than the range has; the message names path, offset, wanted and got.
        """
        ...

    def read(self, path: str, offset: int, length: int) -> bytes:
        """Reads one byte range.

        Args:
            path: POSIX path relative to the root.
            offset: First byte of the range, from the start of the file; >= 0.
            length: Bytes to read; >= 0.

        Returns:
            Exactly `length` bytes.

        Raises:
            MissingFileError: There is no such file.
            FetchError: As in `read_into`.
        """
        buffer = bytearray(length)
        self.read_into(path, offset, memoryview(buffer))
        return bytes(buffer)

    def watch_retries(self, on_retry: Callable[[], None] | None) -> None:  # noqa: ARG002 - few stores retry
        """Sets what counts the retries in this process; it is not pickled along.

        Args:
            on_retry: Called, from any thread, before each further attempt at something; None stops counting.
        """
        return

    def check_ranges(self, path: str) -> None:  # noqa: ARG002 - most stores can
        """Refuses a store that cannot read a part of a file.

        Args:
            path: Any file of it.

        Raises:
            FetchError: It gives whole files only, or could not be asked.
        """
        return

    def limit_requests(self, count: int) -> None:  # noqa: ARG002 - few stores are asked over a network
        """Sets how many requests this process may have under way at a time.

        Args:
            count: At least 1.
        """
        return

    @abstractmethod
    def close(self) -> None:
        """Gives connections and descriptors back. Reading afterwards opens them again."""
        ...


def check_path(path: str, root: str) -> str:
    """Checks that a path stays below its root.

    Args:
        path: The path that a caller asks for.
        root: The root, for the message.

    Returns:
        The path.

    Raises:
        FetchError: The path is empty, absolute, or has a `..` or a NUL.
    """
    if not path or path.startswith("/") or "\0" in path or ".." in path.split("/"):
        raise FetchError(
            f"path {path!r} is not a relative path below '{root}'; paths must be POSIX, relative to the data "
            "root and free of '..'"
        )
    return path


def check_offset(path: str, root: str, offset: int) -> None:
    """Checks the first byte of a range.

    Args:
        path: The file, for the message.
        root: Its root, for the message.
        offset: First byte of the range.

    Raises:
        FetchError: The offset is negative.
    """
    if offset < 0:
        raise FetchError(f"cannot read '{path}' below '{root}' at the negative offset {offset}")
