"""Finds the top-level boxes of an MP4 file with as few small reads as its layout allows.

`moov` first: one read (plus one for the part of a long `moov` that the first did not reach). `moov` last: the
size of `mdat` tells where the next box starts, so a second read from there to the end of the file finds it.
The media itself is never read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lerobot_streaming.errors import Mp4FormatError, Mp4UnsupportedError
from lerobot_streaming.index.boxes import fourcc, parse_header

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FRONT_BYTES = 64 * 1024
"""Size of the first read: holds `ftyp`, the header of `mdat`, and the `moov` of an ordinary faststart
file."""

MAX_TOP_BOXES = 4096
MAX_READS = 64
_PEEK_BYTES = 4096


@dataclass(frozen=True, slots=True)
class TopBox:
    """One top-level box: kind, byte offset, bytes of its header, and bytes in all."""

    kind: bytes
    offset: int
    header: int
    size: int

    @property
    def end(self) -> int:
        """Byte offset behind the box."""
        return self.offset + self.size


@dataclass(frozen=True, slots=True)
class FileLayout:
    """What the top level of a file holds.

    Attributes:
        ftyp: The whole `ftyp` box, or None.
        moov: Payload of the `moov` box.
        moov_box: Where it lies.
        mdat_box: Where the first `mdat` lies.
    """

    ftyp: bytes | None
    moov: bytes
    moov_box: TopBox
    mdat_box: TopBox


class TopLevel:
    """Reads headers and boxes of the top level; keeps the last window of the file that was read."""

    def __init__(self, size: int, read: Callable[[int, int], bytes], max_moov_bytes: int) -> None:
        """Reads the front of the file.

        Args:
            size: The file's size in bytes.
            read: Gives `length` bytes at `offset`: read(offset, length).
            max_moov_bytes: Largest `moov` in bytes.

        Raises:
            Mp4FormatError: The file is too short for a single box.
        """
        if size < 8:
            raise Mp4FormatError(
                f"the file has {size} bytes, too few for an MP4; download or record it again"
            )
        self._size = size
        self._read = read
        self._max_moov_bytes = max_moov_bytes
        self._reads = 0
        self._start = 0
        self._window = b""
        self._found_moov = False
        self._load(0, min(size, FRONT_BYTES))

    def find(self) -> FileLayout:
        """Walks the top level until `moov` and `mdat` are known.

        Returns:
            The layout, with the payload of `moov`.

        Raises:
            Mp4FormatError: A box does not fit the file, or `moov` or `mdat` is missing.
            Mp4UnsupportedError: `moov` is larger than the limit.
        """
        ftyp: bytes | None = None
        moov = b""
        moov_box: TopBox | None = None
        mdat_box: TopBox | None = None
        for box in self.walk():
            if box.kind == b"ftyp" and ftyp is None:
                if box.size > _PEEK_BYTES:
                    raise Mp4FormatError(f"box 'ftyp' claims {box.size} bytes, more than {_PEEK_BYTES}")
                ftyp = self._bytes(box.offset, box.size)
            elif box.kind == b"mdat" and mdat_box is None:
                mdat_box = box
            elif box.kind == b"moov":
                if moov_box is not None:
                    raise Mp4FormatError("the file has two 'moov' boxes; remux it")
                moov_box = box
                moov = self._moov(box)
            elif box.kind == b"moof" and moov_box is None:
                raise Mp4UnsupportedError("fragmented MP4 ('moof' before 'moov') is not supported; remux it")
            if moov_box is not None and mdat_box is not None:
                return FileLayout(ftyp, moov, moov_box, mdat_box)
        missing = "moov" if moov_box is None else "mdat"
        raise Mp4FormatError(
            f"the file has no '{missing}' box; it is not an MP4 or was cut off while writing"
        )

    def walk(self) -> Iterator[TopBox]:
        """Walks the boxes of the top level from the start of the file.

        Yields:
            Each box, with its size resolved.

        Raises:
            Mp4FormatError: A box does not fit the file, or there are too many of them.
        """
        position = 0
        for _ in range(MAX_TOP_BOXES):
            if position == self._size:
                return
            box = self._header(position)
            yield box
            position = box.end
        raise Mp4FormatError(f"the file has more than {MAX_TOP_BOXES} top-level boxes")

    def _header(self, position: int) -> TopBox:
        rest = self._size - position
        if rest < 8:
            raise Mp4FormatError(f"the file ends inside a box header at byte {position}; it is cut off")
        needed = min(16, rest)
        if not self._holds(position, needed):
            # The tail behind a large `mdat` is `moov`: take it whole. A longer tail, or one behind a `moov`,
            # is media, so only peek.
            tail = rest <= self._max_moov_bytes and not self._found_moov
            self._load(position, rest if tail else min(rest, _PEEK_BYTES))
        parsed = parse_header(self._window, position - self._start)
        if parsed is None:
            raise Mp4FormatError(f"the file ends inside a box header at byte {position}; it is cut off")
        kind, header, size = parsed
        size = size or rest  # 0: up to the end of the file
        if size > rest:
            raise Mp4FormatError(
                f"box {fourcc(kind)!r} at byte {position} claims {size} bytes, but the file ends after "
                f"{rest}: it is truncated; download or record it again"
            )
        return TopBox(kind, position, header, size)

    def _moov(self, box: TopBox) -> bytes:
        if box.size > self._max_moov_bytes:
            raise Mp4UnsupportedError(
                f"box 'moov' has {box.size} bytes, more than the limit of {self._max_moov_bytes}; raise the "
                "limit (--max-probe-mb) or split the file"
            )
        self._found_moov = True
        return self._bytes(box.offset, box.size)[box.header :]

    def _bytes(self, offset: int, length: int) -> bytes:
        if not self._holds(offset, length):
            have = self._start + len(self._window)
            if self._start <= offset < have:
                # Keep what the front read already brought, and take the next box's header along.
                kept = self._window[offset - self._start :]
                end = min(offset + length + _PEEK_BYTES, self._size)
                self._load(have, end - have)
                self._start, self._window = offset, kept + self._window
            else:
                self._load(offset, length)
        start = offset - self._start
        return self._window[start : start + length]

    def _holds(self, offset: int, length: int) -> bool:
        return self._start <= offset and offset + length <= self._start + len(self._window)

    def _load(self, offset: int, length: int) -> None:
        self._reads += 1
        if self._reads > MAX_READS:
            raise Mp4FormatError(
                f"more than {MAX_READS} reads did not find the 'moov' and 'mdat' boxes; remux it"
            )
        window = self._read(offset, length)
        if len(window) != length:
            raise Mp4FormatError(
                f"reading {length} bytes at byte {offset} gave {len(window)}; the file is cut off"
            )
        self._start, self._window = offset, window
