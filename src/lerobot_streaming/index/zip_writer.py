"""Writes a ZIP archive of any number of members in memory that does not grow with it.

Python's `zipfile` keeps the directory in memory until the archive is closed, about 600 bytes for a member.
"""

from __future__ import annotations

import shutil
import zlib
from typing import IO, TYPE_CHECKING

from lerobot_streaming.index.zip_records import Member, directory_record, end_records, local_header

if TYPE_CHECKING:
    from collections.abc import Iterable


class ZipWriter:
    """An archive that is being written."""

    def __init__(self, file: IO[bytes], directory: IO[bytes]) -> None:
        """Writes nothing yet.

        Args:
            file: The archive, from its position on; can be written and positioned.
            directory: An empty file to collect the directory in; can be read, written and positioned.
        """
        self._file = file
        self._directory = directory
        self._count = 0
        self._end = file.tell()

    def add(self, name: str, chunks: Iterable[bytes | memoryview]) -> None:
        """Writes a member.

        Args:
            name: File name, ASCII; not that of another member.
            chunks: The content.

        Raises:
            OSError: It cannot be written.
        """
        member = Member(name.encode("ascii"), 0, 0, 0, self._end)
        crc = packed = size = 0
        compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
        self._file.seek(member.data_offset)
        for chunk in chunks:
            crc, size = zlib.crc32(chunk, crc), size + len(chunk)
            packed += self._file.write(compressor.compress(chunk))
        packed += self._file.write(compressor.flush())
        member = member._replace(crc=crc, packed=packed, size=size)
        self._file.seek(member.offset)
        self._file.write(local_header(member))
        self._file.seek(member.end)
        self._directory.write(directory_record(member))
        self._count += 1
        self._end = member.end

    def finish(self) -> None:
        """Writes the directory; nothing may be added afterwards.

        Raises:
            OSError: It cannot be written.
        """
        size = self._directory.tell()
        self._directory.seek(0)
        shutil.copyfileobj(self._directory, self._file)
        self._file.write(end_records(self._count, size, self._end))
