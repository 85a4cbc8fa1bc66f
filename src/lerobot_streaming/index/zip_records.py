"""The records of the ZIP archives that this library writes, byte for byte those of Python's `zipfile`.

Every member is deflated, has an ASCII name, and is smaller than 2 GiB. There may be any number of members,
and the archive may have any size (ZIP64).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

LOCAL_HEADER = struct.Struct("<4s5H3L2H")
DIRECTORY_RECORD = struct.Struct("<4s4B4H3L5H2L")
END = struct.Struct("<4s4H2LH")
END_64 = struct.Struct("<4sQ2H2L4Q")
LOCATOR_64 = struct.Struct("<4sLQL")

ZIP64_EXTRA_BYTES = 12

_VERSION, _VERSION_64 = 20, 45
_UNIX, _DEFLATED = 3, 8
# The earliest time that ZIP knows, 1980-01-01: the same input gives the same bytes.
_TIME, _DATE = 0, 1 << 5 | 1
_ATTRIBUTES = 0o600 << 16
# Where `zipfile` changes over; signed 32-bit readers exist.
_LIMIT = (1 << 31) - 1
_COUNT_LIMIT = (1 << 16) - 1


class Member(NamedTuple):
    """One member of an archive.

    Attributes:
        name: File name, ASCII.
        crc: CRC-32 of the content.
        packed: Bytes in the archive, without the local header.
        size: Bytes of the content.
        offset: Byte offset of the local header.
    """

    name: bytes
    crc: int
    packed: int
    size: int
    offset: int

    @property
    def data_offset(self) -> int:
        """Byte offset of the packed bytes."""
        return self.offset + LOCAL_HEADER.size + len(self.name)

    @property
    def end(self) -> int:
        """Byte offset behind the packed bytes."""
        return self.data_offset + self.packed


def local_header(member: Member) -> bytes:
    """Gives the header before a member's bytes.

    Args:
        member: The member.

    Returns:
        The header, `member.data_offset - member.offset` bytes.
    """
    facts = (_DEFLATED, _TIME, _DATE, member.crc, member.packed, member.size, len(member.name), 0)
    return LOCAL_HEADER.pack(b"PK\3\4", _VERSION, 0, *facts) + member.name


def directory_record(member: Member) -> bytes:
    """Gives a member's record in the archive's directory.

    Args:
        member: The member.

    Returns:
        The record.
    """
    version, offset, extra = _VERSION, member.offset, b""
    if offset > _LIMIT:
        version, offset, extra = _VERSION_64, 0xFFFFFFFF, struct.pack("<2HQ", 1, 8, member.offset)
    facts = (_DEFLATED, _TIME, _DATE, member.crc, member.packed, member.size, len(member.name), len(extra))
    tail = (0, 0, 0, _ATTRIBUTES, offset)
    head = DIRECTORY_RECORD.pack(b"PK\1\2", version, _UNIX, version, 0, 0, *facts, *tail)
    return head + member.name + extra


def end_records(count: int, size: int, offset: int) -> bytes:
    """Gives what stands behind an archive's directory.

    Args:
        count: Members.
        size: Bytes of the directory.
        offset: Byte offset of the directory.

    Returns:
        The end record, after those of ZIP64 where one of the numbers needs them.
    """
    before = b""
    if count > _COUNT_LIMIT or max(size, offset) > _LIMIT:
        before = END_64.pack(b"PK\6\6", 44, _VERSION_64, _VERSION_64, 0, 0, count, count, size, offset)
        before += LOCATOR_64.pack(b"PK\6\7", 0, offset + size, 1)
        count, size, offset = min(count, 0xFFFF), min(size, 0xFFFFFFFF), min(offset, 0xFFFFFFFF)
    return before + END.pack(b"PK\5\6", 0, 0, count, count, size, offset, 0)
