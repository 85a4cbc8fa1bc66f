"""Boxes of ISO base media files (ISO/IEC 14496-12, section 4.2), read without trusting a single length."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lerobot_streaming.errors import Mp4FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

MAX_CHILDREN = 4096
"""Boxes that one container may hold: real files have a few dozen, hostile ones would cost time."""


@dataclass(frozen=True, slots=True)
class Box:
    """One box that lies in memory.

    Attributes:
        kind: Four-character code.
        payload: The bytes behind the box header.
    """

    kind: bytes
    payload: memoryview

    @property
    def name(self) -> str:
        """The four-character code as printable text."""
        return fourcc(self.kind)


def fourcc(kind: bytes) -> str:
    """Gives a four-character code as text.

    Args:
        kind: Four bytes.

    Returns:
        Four characters; Latin-1, because QuickTime codes use the byte 0xA9.
    """
    return kind.decode("latin-1")


def parse_header(data: bytes | memoryview, offset: int) -> tuple[bytes, int, int] | None:
    """Reads a box header: 32-bit size and kind, followed by a 64-bit size when the first is 1.

    Args:
        data: Bytes that hold the header.
        offset: Where the header starts in them.

    Returns:
        (kind, header bytes, box bytes with header); box bytes is 0 for "up to the end of the file". None when
        `data` ends inside the header.

    Raises:
        Mp4FormatError: The size is smaller than the header itself.
    """
    if offset + 8 > len(data):
        return None
    size, kind = struct.unpack_from(">I4s", data, offset)
    header = 8
    if size == 1:
        if offset + 16 > len(data):
            return None
        (size,) = struct.unpack_from(">Q", data, offset + 8)
        header = 16
        if size == 0:
            raise Mp4FormatError(f"box {fourcc(kind)!r} has a 64-bit size of 0; the file is damaged")
    if size and size < header:
        raise Mp4FormatError(
            f"box {fourcc(kind)!r} claims {size} bytes, fewer than its own header ({header}); the file is "
            "damaged"
        )
    return kind, header, size


def iterate(payload: memoryview, inside: str) -> Iterator[Box]:
    """Walks the boxes of a container.

    Args:
        payload: The container's bytes behind its header (and behind its fixed fields, where it has some).
        inside: The container's name, for messages.

    Yields:
        Each box, in file order. Up to 7 zero bytes behind the last box are ignored: QuickTime writes a 32-bit
        zero as terminator.

    Raises:
        Mp4FormatError: A box does not fit its container, or there are more than `MAX_CHILDREN`.
    """
    position = 0
    for _ in range(MAX_CHILDREN):
        rest = len(payload) - position
        if rest < 8:
            if any(payload[position:]):
                raise Mp4FormatError(f"{rest} stray bytes at the end of box '{inside}'; the file is damaged")
            return
        parsed = parse_header(payload, position)
        if parsed is None:
            raise Mp4FormatError(f"box '{inside}' ends inside a box header; the file is damaged")
        kind, header, size = parsed
        if size == 0 or size > rest:
            raise Mp4FormatError(
                f"box {fourcc(kind)!r} in '{inside}' claims {size} bytes where {rest} are left; the file is "
                "damaged"
            )
        yield Box(kind, payload[position + header : position + size])
        position += size
    raise Mp4FormatError(f"box '{inside}' holds more than {MAX_CHILDREN} boxes")


class Container:
    """The child boxes of one container, by kind."""

    def __init__(self, payload: memoryview, name: str) -> None:
        """Walks the container once.

        Args:
            payload: The container's bytes behind its header.
            name: The container's name, for messages.

        Raises:
            Mp4FormatError: The children do not fit the container.
        """
        self.name = name
        self._children: dict[bytes, list[Box]] = {}
        for box in iterate(payload, name):
            self._children.setdefault(box.kind, []).append(box)

    def all(self, kind: bytes) -> list[Box]:
        """Gives the children of one kind.

        Args:
            kind: Four-character code.

        Returns:
            The boxes, in file order.
        """
        return self._children.get(kind, [])

    def optional(self, kind: bytes) -> memoryview | None:
        """Gives the payload of a child that occurs at most once.

        Args:
            kind: Four-character code.

        Returns:
            The payload, or None.

        Raises:
            Mp4FormatError: There are several.
        """
        found = self.all(kind)
        if len(found) > 1:
            raise Mp4FormatError(
                f"box '{self.name}' holds {len(found)} boxes '{fourcc(kind)}', at most 1 is allowed"
            )
        return found[0].payload if found else None

    def required(self, kind: bytes) -> memoryview:
        """Gives the payload of a child that occurs exactly once.

        Args:
            kind: Four-character code.

        Returns:
            The payload.

        Raises:
            Mp4FormatError: There is none, or there are several.
        """
        payload = self.optional(kind)
        if payload is None:
            raise Mp4FormatError(f"box '{self.name}' lacks its box '{fourcc(kind)}'; the file is damaged")
        return payload

    def child(self, kind: bytes) -> Container:
        """Opens a child container that occurs exactly once.

        Args:
            kind: Four-character code.

        Returns:
            The child.

        Raises:
            Mp4FormatError: There is none, there are several, or its children do not fit.
        """
        return Container(self.required(kind), fourcc(kind))


def unpack(layout: str, payload: memoryview, offset: int, name: str) -> tuple[int, ...]:
    """Reads big-endian numbers at a fixed place of a box.

    Args:
        layout: `struct` layout without the byte order; integers only.
        payload: The box behind its header.
        offset: First byte.
        name: The box's name, for messages.

    Returns:
        The numbers.

    Raises:
        Mp4FormatError: The box is too short.
    """
    try:
        return struct.unpack_from(">" + layout, payload, offset)
    except struct.error as error:
        raise Mp4FormatError(
            f"box '{name}' is cut off after {len(payload)} bytes; the file is damaged"
        ) from error


def table(
    payload: memoryview, offset: int, rows: int, dtype: str, columns: int, name: str
) -> NDArray[np.integer]:
    """Views a table of big-endian numbers, after checking that the box holds it.

    Args:
        payload: The box behind its header.
        offset: First byte of the table.
        rows: Rows that the box claims.
        dtype: NumPy type of one number, such as `>u4`.
        columns: Numbers per row.
        name: The box's name, for messages.

    Returns:
        (rows, columns) view of the box, nothing copied.

    Raises:
        Mp4FormatError: The box is too short for the rows it claims.
    """
    width = np.dtype(dtype).itemsize * columns
    if rows * width > len(payload) - offset:
        raise Mp4FormatError(
            f"box '{name}' claims {rows} entries of {width} bytes, but holds {max(len(payload) - offset, 0)} "
            "bytes of them; the file is damaged"
        )
    view: NDArray[np.integer] = np.frombuffer(payload, dtype, rows * columns, offset)
    return view.reshape(rows, columns)
