"""Files of very many samples, of which only the boxes exist."""

from __future__ import annotations

import numpy as np

from lerobot_streaming.index import Mp4Header, SampleTable, SourceFile
from lerobot_streaming.index.moov_writer import span_tables
from lerobot_streaming.index.mp4 import DEFAULT_FTYP
from tests.index.videos import index, plain


def big_source(count: int) -> SourceFile:
    generator = np.random.default_rng(0)
    sizes = generator.integers(2000, 9000, count)
    durations = np.full(count, 1001, np.int64)
    durations[::97] = 1002
    composition = generator.integers(0, 4, count) * 1001
    table = SampleTable(
        pts_seconds=np.zeros(count),
        durations=durations,
        composition_offsets=composition,
        sizes=sizes,
        offsets=(np.cumsum(sizes) - sizes) + np.arange(count) // 10 * 50,
        sync_samples=np.arange(0, count, 10),
    )
    stsd = index(plain()).header.stsd_body
    header = Mp4Header(DEFAULT_FTYP, 0, 0, 0, 0, True, "avc1", 30000, 0, 1, 64, 48, stsd)
    return SourceFile("big.mp4", int(table.offsets[:][-1] + sizes[-1]), header, table)


class Sparse:
    """A file of which only the front (and the tail) exist."""

    def __init__(self, front: bytes, size: int, tail: bytes = b"") -> None:
        self.front, self.size, self.tail, self.reads = front, size, tail, list[tuple[int, int]]()

    def read(self, offset: int, length: int) -> bytes:
        self.reads.append((offset, length))
        if self.tail and offset >= self.size - len(self.tail):
            start = offset - (self.size - len(self.tail))
            return self.tail[start : start + length]
        return self.front[offset : offset + length].ljust(length, b"\0")


def big_head(source: SourceFile) -> tuple[bytes, int]:
    """Gives everything of a file before its media, and the bytes of the media."""
    samples = source.samples
    places = samples.offsets[:] - samples.offsets[:][0]
    payload = int(places[-1] + samples.sizes[:][-1])
    return span_tables(source, 0, samples.num_samples - 1, places, payload).build(), payload
