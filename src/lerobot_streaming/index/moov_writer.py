"""Writes the boxes before a mini-MP4's payload, and computes their size without writing them.

Field layouts are those of ISO/IEC 14496-12. The movie's timescale is the media's, so that every duration is
exact.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lerobot_streaming.errors import Mp4FormatError
from lerobot_streaming.index.columns import search_sorted

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lerobot_streaming.index.tables import Mp4Header, SourceFile

_MAX_U32 = 0xFFFFFFFF
_MAX_I32 = 0x7FFFFFFF

WIDE_TIMES = _MAX_U32
"""Duration in ticks from which times are written in 64 bits; the last 32-bit number means "unknown"."""
WIDE_EDIT = _MAX_I32 + 1
"""Ticks from which the edit list is written in 64 bits."""
WIDE_OFFSETS = _MAX_U32 - (1 << 28) + 1
"""Payload bytes from which chunk offsets are written in 64 bits: decided without the header's own size, which
depends on the answer."""
MAX_SAMPLE_VALUES = {"duration": _MAX_U32, "size": _MAX_U32, "composition offset": _MAX_I32 >> 2}
"""Largest magnitudes of samples' numbers that the boxes can hold."""

_UNITY_MATRIX = struct.pack(">9i", 0x10000, 0, 0, 0, 0x10000, 0, 0, 0, 0x40000000)
_HANDLER_NAME = b"VideoHandler\0"
_TRACK_ID = 1

# Boxes whose size does not depend on the samples: moov, mvhd, trak, tkhd, mdia, mdhd, hdlr, minf, vmhd, dinf
# with dref and url, stbl.
_FIXED_BYTES = 8 + 108 + 8 + 92 + 8 + 32 + (32 + len(_HANDLER_NAME)) + 8 + 20 + 36 + 8
_WIDE_TIMES_BYTES = 3 * 12  # What version 1 of mvhd, tkhd and mdhd adds.


@dataclass(frozen=True, slots=True, eq=False)
class SpanTables:
    """The compact tables of a run of samples.

    Attributes:
        header: File-level facts of the source.
        times: int64 (r, 2). (samples, duration) runs for `stts`.
        composition: int64 (r, 2). (samples, offset) runs for `ctts`, or None when all offsets are 0.
        sync: int64 (k). 1-based sync samples for `stss`, or None when all are.
        chunks: int64 (r, 3). (first chunk, samples per chunk, sample entry) rows for `stsc`.
        chunk_places: int64 (c). Offset of each chunk in the payload.
        sizes: int64 (m). Bytes of each sample.
        payload_bytes: Bytes of the payload.
        duration: Sum of the durations in ticks.
        media_time: Composition time of the first sample in ticks; the presentation starts there.
        presented: Ticks from there to the end of the last presented frame.
    """

    header: Mp4Header
    times: NDArray[np.int64]
    composition: NDArray[np.int64] | None
    sync: NDArray[np.int64] | None
    chunks: NDArray[np.int64]
    chunk_places: NDArray[np.int64]
    sizes: NDArray[np.int64]
    payload_bytes: int
    duration: int
    media_time: int
    presented: int

    @property
    def _wide_times(self) -> bool:
        return max(self.duration, self.presented) >= WIDE_TIMES

    @property
    def _wide_edit(self) -> bool:
        return max(self.presented, self.media_time) >= WIDE_EDIT

    @property
    def _wide_offsets(self) -> bool:
        return self.payload_bytes >= WIDE_OFFSETS

    def size(self) -> int:
        """Computes the size in bytes of `build()`'s result, from the tables' lengths alone."""
        return header_bytes(
            self.header,
            samples=len(self.sizes),
            time_runs=len(self.times),
            composition_runs=0 if self.composition is None else len(self.composition),
            sync_samples=len(self.sizes) if self.sync is None else len(self.sync),
            chunk_rows=len(self.chunks),
            chunks=len(self.chunk_places),
            has_edit=self.media_time != 0,
            wide_edit=self._wide_edit,
            wide_times=self._wide_times,
            wide_offsets=self._wide_offsets,
        )

    def build(self) -> bytes:
        """Writes `ftyp`, `moov` and the header of `mdat`."""
        stbl = [
            _box(b"stsd", self.header.stsd_body),
            _table(b"stts", self.times, ">u4"),
            b"" if self.composition is None else self._ctts(self.composition),
            b"" if self.sync is None else _table(b"stss", self.sync, ">u4"),
            _table(b"stsc", self.chunks, ">u4"),
            _full(b"stsz", struct.pack(">II", 0, len(self.sizes)), self.sizes.astype(">u4").tobytes()),
            self._chunk_offsets(),
        ]
        url = _full(b"url ", flags=1)  # Flag 1: the media is in this file.
        minf = [
            _full(b"vmhd", bytes(8), flags=1),
            _box(b"dinf", _full(b"dref", struct.pack(">I", 1), url)),
            _box(b"stbl", *stbl),
        ]
        mdia = [
            self._timed(
                b"mdhd", struct.pack(">I", self.header.timescale), self.duration, _LANGUAGE_UNDEFINED
            ),
            _full(b"hdlr", bytes(4), b"vide", bytes(12), _HANDLER_NAME),
            _box(b"minf", *minf),
        ]
        trak = [self._tkhd(), self._edts(), _box(b"mdia", *mdia)]
        moov = _box(b"moov", self._mvhd(), _box(b"trak", *trak))
        if self._wide_offsets:
            mdat = struct.pack(">I4sQ", 1, b"mdat", self.payload_bytes + 16)
        else:
            mdat = struct.pack(">I4s", self.payload_bytes + 8, b"mdat")
        return self.header.ftyp + moov + mdat

    def _ctts(self, composition: NDArray[np.int64]) -> bytes:
        # Version 1 has signed offsets.
        return _table(b"ctts", composition, ">i4", version=1 if int(composition[:, 1].min()) < 0 else 0)

    def _chunk_offsets(self) -> bytes:
        offsets = (self.chunk_places + self.size())[:, None]
        return _table(b"co64", offsets, ">u8") if self._wide_offsets else _table(b"stco", offsets, ">u4")

    def _timed(self, kind: bytes, middle: bytes, duration: int, tail: bytes, flags: int = 0) -> bytes:
        """Writes a box that starts with creation and modification time (0), ..., duration."""
        wide = self._wide_times
        times, layout = (bytes(16), ">Q") if wide else (bytes(8), ">I")
        return _full(kind, times, middle, struct.pack(layout, duration), tail, version=int(wide), flags=flags)

    def _mvhd(self) -> bytes:
        # Rate 1.0, volume 1.0, matrix, next track number.
        tail = struct.pack(">IH10x", 0x10000, 0x100) + _UNITY_MATRIX + struct.pack(">24xI", _TRACK_ID + 1)
        return self._timed(b"mvhd", struct.pack(">I", self.header.timescale), self.presented, tail)

    def _tkhd(self) -> bytes:
        tail = (
            bytes(16) + _UNITY_MATRIX + struct.pack(">II", self.header.width << 16, self.header.height << 16)
        )
        # Flags: enabled, in movie.
        return self._timed(b"tkhd", struct.pack(">I4x", _TRACK_ID), self.presented, tail, flags=3)

    def _edts(self) -> bytes:
        if not self.media_time:
            return b""
        layout = ">IQqhh" if self._wide_edit else ">IIihh"
        edit = struct.pack(layout, 1, self.presented, self.media_time, 1, 0)
        return _box(b"edts", _full(b"elst", edit, version=int(self._wide_edit)))


_LANGUAGE_UNDEFINED = struct.pack(">HH", 0x55C4, 0)  # "und" in 3 times 5 bits.


def header_bytes[N: (int, NDArray[np.int64])](
    header: Mp4Header,
    *,
    samples: N,
    time_runs: N,
    composition_runs: N,
    sync_samples: N,
    chunk_rows: N,
    chunks: N,
    has_edit: N,
    wide_edit: N,
    wide_times: N,
    wide_offsets: N,
) -> N:
    """Computes the bytes before a payload from the lengths of the tables; for one span or for many at once.

    Args:
        header: File-level facts of the source.
        samples: Samples of the span.
        time_runs: Rows of `stts`.
        composition_runs: Rows of `ctts`; 0: there is none.
        sync_samples: Sync samples among the samples; when all are, there is no `stss`.
        chunk_rows: Rows of `stsc`.
        chunks: Rows of `stco`.
        has_edit: 1 when there is an edit list, else 0.
        wide_edit: 1 when it has 64-bit numbers, else 0.
        wide_times: 1 when durations have 64 bits, else 0.
        wide_offsets: 1 when chunk offsets and the payload's size have 64 bits, else 0.

    Returns:
        Bytes of what `SpanTables.build` gives.
    """
    fixed = len(header.ftyp) + _FIXED_BYTES + 8 + 8 + len(header.stsd_body) + 16 + 16 + 20 + 16
    size = fixed + 8 * time_runs + 12 * chunk_rows + 4 * samples + (4 + 4 * wide_offsets) * chunks
    size = size + 8 * wide_offsets + _WIDE_TIMES_BYTES * wide_times + (36 + 8 * wide_edit) * has_edit
    size = size + 16 * (composition_runs != 0) + 8 * composition_runs
    total: N = size + (16 + 4 * sync_samples) * (sync_samples != samples)
    return total


def fits_boxes(header: Mp4Header) -> bool:
    """Tells whether the file-level numbers of a source fit the boxes.

    Args:
        header: File-level facts of the source.

    Returns:
        False when one is too large.
    """
    return header.timescale <= _MAX_U32 and max(header.width, header.height) <= 0xFFFF


def span_tables(
    source: SourceFile, first: int, last: int, places: NDArray[np.int64], payload_bytes: int
) -> SpanTables:
    """Makes the compact tables of a run of samples.

    Args:
        source: The indexed file.
        first: First sample, decode order, inclusive.
        last: Last sample, decode order, inclusive.
        places: int64 (m). Offset of each sample in the payload, decode order.
        payload_bytes: Bytes of the payload.

    Returns:
        The tables.

    Raises:
        Mp4FormatError: A number of the source does not fit the boxes.
    """
    samples, header = source.samples, source.header
    span = slice(first, last + 1)
    durations, sizes = samples.durations[span], samples.sizes[span]
    offsets = samples.composition_offsets[span]
    for name, array in (
        ("duration", durations),
        ("size", sizes),
        ("composition offset", np.abs(offsets)),
    ):
        limit = MAX_SAMPLE_VALUES[name]
        if not 0 <= int(array.min()) <= int(array.max()) <= limit:
            raise Mp4FormatError(
                f"'{source.path}': a sample {name} is outside 0..{limit}; rebuild the sidecar"
            )
    if not fits_boxes(header):
        raise Mp4FormatError(f"'{source.path}': timescale, width or height is too large; rebuild the sidecar")
    ticks = np.cumsum(durations) - durations + offsets
    lowest = int(ticks.min())
    if lowest < 0:
        # A presentation cannot start before the media does: move all of it, which keeps every distance.
        offsets, ticks = offsets - lowest, ticks - lowest
    # Leading pictures of the first GOP, which cannot be decoded without the one before, lie before the first
    # sample's time: the edit list hides them.
    media_time = int(ticks[0])
    sync_from, sync_to = search_sorted(samples.sync_samples, np.array((first, last + 1))).tolist()
    sync = samples.sync_samples[sync_from:sync_to] - (first - 1)
    entries = None if source.description_index is None else source.description_index[span]
    chunk_starts = _chunk_starts(places, sizes, entries)
    per_chunk = np.diff(chunk_starts, append=len(sizes))
    entry = np.ones_like(per_chunk) if entries is None else entries[chunk_starts].astype(np.int64)
    rows = _run_starts((per_chunk, entry))
    return SpanTables(
        header=header,
        times=_run_lengths(durations),
        composition=_run_lengths(offsets) if offsets.any() else None,
        sync=None if len(sync) == len(sizes) else sync[:, None],
        chunks=np.stack((rows + 1, per_chunk[rows], entry[rows]), axis=1),
        chunk_places=places[chunk_starts],
        sizes=sizes,
        payload_bytes=payload_bytes,
        duration=int(durations.sum()),
        media_time=media_time,
        presented=max(int((ticks + durations).max()) - media_time, 1),
    )


def _chunk_starts(
    places: NDArray[np.int64], sizes: NDArray[np.int64], entries: NDArray[np.int32] | None
) -> NDArray[np.int64]:
    """Starts a chunk wherever samples stop to be contiguous, or change their sample entry."""
    breaks = places[1:] != places[:-1] + sizes[:-1]
    if entries is not None:
        breaks = breaks | (entries[1:] != entries[:-1])
    return np.concatenate((np.zeros(1, np.int64), np.flatnonzero(breaks) + 1))


def _run_starts(columns: tuple[NDArray[np.int64], ...]) -> NDArray[np.int64]:
    changes = np.zeros(len(columns[0]) - 1, bool)
    for column in columns:
        changes |= column[1:] != column[:-1]
    return np.concatenate((np.zeros(1, np.int64), np.flatnonzero(changes) + 1))


def _run_lengths(values: NDArray[np.int64]) -> NDArray[np.int64]:
    starts = _run_starts((values,))
    return np.stack((np.diff(starts, append=len(values)), values[starts]), axis=1)


def _box(kind: bytes, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return struct.pack(">I4s", len(body) + 8, kind) + body


def _full(kind: bytes, *parts: bytes, version: int = 0, flags: int = 0) -> bytes:
    return _box(kind, struct.pack(">I", version << 24 | flags), *parts)


def _table(kind: bytes, rows: NDArray[np.int64], dtype: str, version: int = 0) -> bytes:
    return _full(kind, struct.pack(">I", len(rows)), rows.astype(dtype).tobytes(), version=version)
