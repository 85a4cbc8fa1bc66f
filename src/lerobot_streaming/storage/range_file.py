"""A read-only file object over a `RangeReader`, for libraries that want to seek and read, such as pyarrow."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Buffer

    from lerobot_streaming.storage.base import RangeReader


class RangeFile(io.RawIOBase):
    """One file of a range reader as a seekable binary stream.

    Args:
        reader: Where the bytes come from.
        path: POSIX path relative to the reader's root.
        size: The file's size in bytes.
    """

    def __init__(self, reader: RangeReader, path: str, size: int) -> None:
        """Opens nothing: every read is one range of the reader, unless `preload` has read it before."""
        super().__init__()
        self._reader = reader
        self._path = path
        self._size = size
        self._place = 0
        self._loaded: list[tuple[int, bytes]] = []

    def preload(self, offset: int, length: int) -> None:
        """Reads a range at once; later reads inside it, or inside one read before, are served from memory.

        Args:
            offset: First byte.
            length: Bytes; cut at the end of the file.

        Raises:
            MissingFileError: There is no such file.
            FetchError: It could not be read.
        """
        data = self._reader.read(self._path, offset, max(0, min(length, self._size - offset)))
        self._loaded.append((offset, data))

    def readable(self) -> bool:
        """Says True."""
        return True

    def seekable(self) -> bool:
        """Says True."""
        return True

    def tell(self) -> int:
        """Offset in bytes of the next read."""
        return self._place

    def size(self) -> int:
        """Size of the file in bytes (pyarrow asks)."""
        return self._size

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Moves the place of the next read.

        Args:
            offset: Bytes, relative to what `whence` says.
            whence: `os.SEEK_SET`, `os.SEEK_CUR` or `os.SEEK_END`.

        Returns:
            The new offset from the start of the file.
        """
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._size}[whence]
        self._place = max(0, base + offset)
        return self._place

    def readinto(self, buffer: Buffer) -> int:
        """Reads into a buffer.

        Args:
            buffer: Writable buffer.

        Returns:
            Bytes read: the buffer's size, or less at the end of the file.
        """
        view = memoryview(buffer).cast("B")
        wanted = max(0, min(view.nbytes, self._size - self._place))
        if wanted:
            for offset, data in self._loaded:
                begin = self._place - offset
                if begin >= 0 and begin + wanted <= len(data):
                    view[:wanted] = data[begin : begin + wanted]
                    break
            else:
                self._reader.read_into(self._path, self._place, view[:wanted])
            self._place += wanted
        return wanted
