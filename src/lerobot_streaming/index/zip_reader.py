"""Reads the archives of `ZipWriter` from front to back in memory that does not grow with them.

It accepts exactly the bytes that `ZipWriter` writes, so what passes here is well formed for every reader.
Archives of other programs are read with `NpzArchive`.
"""

from __future__ import annotations

import os
import zlib
from typing import IO, TYPE_CHECKING

from lerobot_streaming.index.zip_records import (
    DIRECTORY_RECORD,
    END,
    END_64,
    LOCATOR_64,
    ZIP64_EXTRA_BYTES,
    Member,
    directory_record,
    end_records,
    local_header,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_CHUNK_BYTES = 1 << 16


def read_directory(file: IO[bytes]) -> Iterator[Member]:
    """Walks through an archive's directory.

    Args:
        file: The archive; nobody else may move its position meanwhile.

    Yields:
        The members in the order of their bytes, which follow each other without gaps.

    Raises:
        ValueError: A record is not as `ZipWriter` writes it; the text is what is wrong.
    """
    longest = END_64.size + LOCATOR_64.size + END.size
    file_size = file.seek(0, os.SEEK_END)
    file.seek(max(0, file_size - longest))
    tail = file.read()
    size, offset = _directory_place(tail)
    file.seek(offset)
    end = None
    count, rest = 0, size
    while rest > 0:
        member, length = _read_record(file)
        if end not in {None, member.offset}:
            raise ValueError(f"member {count} does not begin where the one before it ends")
        yield member
        end = member.end
        count, rest = count + 1, rest - length
    records = end_records(count, size, offset)
    if rest or end != offset or offset + size + len(records) != file_size or not tail.endswith(records):
        raise ValueError("the end of its directory is damaged")


def _directory_place(tail: bytes) -> tuple[int, int]:
    """Gives size and offset of the directory; `read_directory` compares all of the end records afterwards."""
    if len(tail) < END.size:
        raise ValueError("it is too short for an archive")
    end_64 = tail[: END_64.size]
    if end_64[:4] == b"PK\6\6" and len(tail) == END_64.size + LOCATOR_64.size + END.size:
        size, offset = END_64.unpack(end_64)[-2:]
    else:
        size, offset = END.unpack(tail[-END.size :])[5:7]
    if offset > 1 << 62:
        raise ValueError(f"its directory begins at byte {offset}")
    return size, offset


def _read_record(file: IO[bytes]) -> tuple[Member, int]:
    head = file.read(DIRECTORY_RECORD.size)
    if len(head) != DIRECTORY_RECORD.size:
        raise ValueError("its directory is cut off")
    fields = DIRECTORY_RECORD.unpack(head)
    crc, packed, size, name_bytes, extra_bytes = fields[9:14]
    offset = fields[-1]
    name, extra = file.read(name_bytes), file.read(extra_bytes)
    if extra_bytes == ZIP64_EXTRA_BYTES:
        offset = int.from_bytes(extra[4:], "little")
    member = Member(name, crc, packed, size, offset)
    record = head + name + extra
    if record != directory_record(member):
        raise ValueError(f"the record of '{name!r}' in its directory is damaged")
    return member, len(record)


def read_member(file: IO[bytes], member: Member) -> Iterator[bytes]:
    """Unpacks a member.

    Args:
        file: The archive; nobody else may move its position meanwhile.
        member: The member.

    Yields:
        The content in pieces of at most 64 KiB.

    Raises:
        ValueError: The member is damaged; the text is what is wrong.
    """
    file.seek(member.offset)
    header = local_header(member)
    if file.read(len(header)) != header:
        raise ValueError("is not where the archive's directory says")
    unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
    crc = size = 0
    rest = member.packed
    try:
        while not unpacker.eof:
            packed = unpacker.unconsumed_tail
            if not packed:
                packed = file.read(min(rest, _CHUNK_BYTES))
                rest -= len(packed)
            data = unpacker.decompress(packed, _CHUNK_BYTES)
            if not data and not packed:
                break
            crc, size = zlib.crc32(data, crc), size + len(data)
            if size > member.size:
                break
            yield data
    except zlib.error as error:
        raise ValueError(f"cannot be decompressed ({error})") from error
    if not unpacker.eof or rest or unpacker.unused_data or (crc, size) != (member.crc, member.size):
        raise ValueError("is damaged (its checksum or length differs)")
