"""The protocol that every place where bytes come from fulfils.

A reader is bound to one root (a directory, a dataset at one commit, a bucket, ...) and reads byte ranges of
the files below it. It is the only way in which the rest of the library touches payload storage, so every
network fault can be injected in one place.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class FileStat:
    """What storage says about one file without reading it.

    Attributes:
        size: The file's size in bytes.
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

    @abstractmethod
    def close(self) -> None:
        """Gives connections and descriptors back. Reading afterwards opens them again."""
        ...
