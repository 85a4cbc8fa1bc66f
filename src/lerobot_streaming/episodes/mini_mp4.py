"""Mini-MP4: a small, valid, self-contained MP4 of one span of one file's video samples.

Layout: `ftyp`, `moov`, `mdat` (players can start at once). Samples keep their decode order, durations and
composition offsets; their bytes keep the order that they have in the source file, so the payload is a few
runs of it. Field layouts are those of ISO/IEC 14496-12.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lerobot_streaming.index.moov_writer import span_tables

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lerobot_streaming.index.tables import SourceFile
    from lerobot_streaming.storage.base import RangeReader

_MAX_GAP_BYTES = 4096
_MAX_REQUEST_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True, eq=False)
class MiniMp4Plan:
    """What a mini-MP4 will hold, known exactly before a byte is fetched.

    Attributes:
        source: The indexed file.
        first: First sample of the span, decode order, inclusive.
        last: Last sample of the span, decode order, inclusive.
        size_bytes: Bytes of the finished mini-MP4: header plus payload.
        header_bytes: Bytes of `ftyp`, `moov` and the header of `mdat`; the payload starts there.
        payload_runs: (file offset, bytes) of contiguous video samples in file order; the payload is these
            runs one after the other. Bytes of other tracks between them are left out.
        sample_offsets: int64 (m). Byte offset of each sample of the span in the mini-MP4, decode order.
        sizes: int64 (m). Bytes of each sample of the span, decode order.
    """

    source: SourceFile
    first: int
    last: int
    size_bytes: int
    header_bytes: int
    payload_runs: tuple[tuple[int, int], ...]
    sample_offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]

    def header(self) -> bytes:
        """Builds everything before the payload.

        Returns:
            `header_bytes` bytes; equal plans give equal bytes.
        """
        places = self.sample_offsets - self.header_bytes
        payload_bytes = self.size_bytes - self.header_bytes
        return span_tables(self.source, self.first, self.last, places, payload_bytes).build()


def plan_mini_mp4(source: SourceFile, first: int, last: int) -> MiniMp4Plan:
    """Plans the mini-MP4 of one span; costs a few passes over the span's arrays and builds nothing.

    Args:
        source: The indexed file.
        first: First sample, decode order, inclusive; a sync sample, so that everything wanted decodes.
        last: Last sample, decode order, inclusive.

    Returns:
        The plan, with the exact size.

    Raises:
        ValueError: The span is empty or outside the file's samples.
        Mp4FormatError: A number of the source does not fit an MP4 box.
    """
    count = source.samples.num_samples
    if not 0 <= first <= last < count:
        raise ValueError(f"span {first}..{last} is not inside the samples 0..{count - 1} of '{source.path}'")
    offsets = source.samples.offsets[first : last + 1]
    sizes = source.samples.sizes[first : last + 1]
    runs, places, payload_bytes = _payload_layout(offsets, sizes)
    header_bytes = span_tables(source, first, last, places, payload_bytes).size()
    return MiniMp4Plan(
        source=source,
        first=first,
        last=last,
        size_bytes=header_bytes + payload_bytes,
        header_bytes=header_bytes,
        payload_runs=runs,
        sample_offsets=places + header_bytes,
        sizes=sizes,
    )


def fetch_mini_mp4(plan: MiniMp4Plan, reader: RangeReader, path: str) -> bytearray:
    """Fetches a mini-MP4 into one buffer, allocated once.

    Args:
        plan: What to fetch.
        reader: Where the source file is read from.
        path: The source file's path relative to the reader's root.

    Returns:
        The finished mini-MP4, `plan.size_bytes` bytes. Runs less than 4 KiB apart are read as one request.

    Raises:
        MissingFileError: The source file is gone.
        FetchError: A range could not be read.
    """
    buffer = bytearray(plan.size_bytes)
    buffer[: plan.header_bytes] = plan.header()
    view = memoryview(buffer)
    position = plan.header_bytes
    for group in _group_runs(plan.payload_runs):
        start = group[0][0]
        if len(group) == 1:
            length = group[0][1]
            reader.read_into(path, start, view[position : position + length])
            position += length
            continue
        scratch = memoryview(reader.read(path, start, group[-1][0] + group[-1][1] - start))
        for offset, length in group:
            view[position : position + length] = scratch[offset - start : offset - start + length]
            position += length
    return buffer


def _group_runs(runs: tuple[tuple[int, int], ...]) -> list[list[tuple[int, int]]]:
    """Joins runs that lie close together into requests of bounded size."""
    groups: list[list[tuple[int, int]]] = []
    for offset, length in runs:
        if groups:
            start, (before, size) = groups[-1][0][0], groups[-1][-1]
            near = offset - before - size < _MAX_GAP_BYTES
            if near and offset + length - start <= _MAX_REQUEST_BYTES:
                groups[-1].append((offset, length))
                continue
        groups.append([(offset, length)])
    return groups


def _payload_layout(
    offsets: NDArray[np.int64], sizes: NDArray[np.int64]
) -> tuple[tuple[tuple[int, int], ...], NDArray[np.int64], int]:
    """Gives (runs, place of each sample in the payload, bytes of the payload)."""
    order: NDArray[np.int64] | None = None
    if len(offsets) > 1 and not (offsets[1:] >= offsets[:-1]).all():
        order = np.argsort(offsets, kind="stable")
        offsets, sizes = offsets[order], sizes[order]
    # Samples may share bytes, so a run ends where the furthest end so far ends.
    ends = np.maximum.accumulate(offsets + sizes)
    starts = np.flatnonzero(offsets[1:] > ends[:-1]) + 1
    starts = np.concatenate((np.zeros(1, np.int64), starts))
    lasts = np.append(starts[1:], len(offsets)) - 1
    lengths = ends[lasts] - offsets[starts]
    bases = np.cumsum(lengths) - lengths
    run_of_sample = np.repeat(bases - offsets[starts], lasts - starts + 1)
    places = offsets + run_of_sample
    if order is not None:
        placed = np.empty_like(places)
        placed[order] = places
        places = placed
    runs = tuple(zip(offsets[starts].tolist(), lengths.tolist(), strict=True))
    return runs, places, int(lengths.sum())
