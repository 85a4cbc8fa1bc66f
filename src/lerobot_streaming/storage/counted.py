"""A range reader that counts what passes through it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lerobot_streaming.storage.base import DEFAULT_LOOK_UPS, FileStat, RangeReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


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

    def stat_many(self, paths: Iterable[str], *, look_ups: int = DEFAULT_LOOK_UPS) -> dict[str, FileStat]:
        """Looks many files up with the wrapped reader."""
        return self._reader.stat_many(paths, look_ups=look_ups)

    def read_into(self, path: str, offset: int, view: memoryview) -> None:
        """Reads with the wrapped reader and reports the bytes."""
        self._reader.read_into(path, offset, view)
        self._report(view.nbytes)

    def watch_retries(self, on_retry: Callable[[], None] | None) -> None:
        """Has the wrapped reader report its retries."""
        self._reader.watch_retries(on_retry)

    def close(self) -> None:
        """Closes the wrapped reader."""
        self._reader.close()
