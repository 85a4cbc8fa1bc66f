"""A range reader that counts what passes through it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lerobot_streaming.storage.base import FileStat, RangeReader

if TYPE_CHECKING:
    from collections.abc import Callable


class CountedReader(RangeReader):
    """Hands every call on to another reader and reports each read.

    Args:
        reader: The reader that does the work.
        report: Called with the bytes of each completed read.
    """

    def __init__(self, reader: RangeReader, report: Callable[[int], None]) -> None:
        """Wraps a reader."""
        self._reader = reader
        self._report = report

    @property
    def root(self) -> str:
        """The wrapped reader's root."""
        return self._reader.root

    def stat(self, path: str) -> FileStat:
        """Looks one file up with the wrapped reader."""
        return self._reader.stat(path)

    def read_into(self, path: str, offset: int, view: memoryview) -> None:
        """Reads with the wrapped reader and reports the bytes."""
        self._reader.read_into(path, offset, view)
        self._report(view.nbytes)

    def close(self) -> None:
        """Closes the wrapped reader."""
        self._reader.close()
