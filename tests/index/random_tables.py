"""Sample tables of all kinds, as no encoder makes them, and comparison of tables."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import strategies as st

from lerobot_streaming.index import Mp4Header, SampleTable, SourceFile
from lerobot_streaming.index import mapped_layout as layout
from lerobot_streaming.index.derive import encode_columns
from lerobot_streaming.index.mapped_columns import read_samples

if TYPE_CHECKING:
    from numpy.typing import NDArray

HEADER = Mp4Header(b"ftyp", 0, 0, 8, 100, True, "avc1", 15360, 0, 1, 64, 48, b"stsd")

DURATIONS = ("constant", "other last", "jitter", "bursts", "leap", "any", "huge", "zero")
COMPOSITIONS = ("zero", "constant", "negative", "b-frames", "any")
SIZES = ("constant", "small", "medium", "large", "zero")
OFFSETS = ("contiguous", "gaps", "chunks", "shuffled", "overlapping")
SYNCS = ("none", "all", "every", "any")
TIMES = ("edit in ticks", "edit in movie ticks", "edit in seconds", "rounded", "any", "few", "descending")


def _durations(kind: str, n: int, random: np.random.Generator) -> NDArray[np.int64]:
    durations: NDArray[np.int64] = np.full(n, int(random.integers(1, 5000)), np.int64)
    if kind == "other last":
        durations[-1] = random.integers(0, 1 << 20)
    elif kind == "jitter":
        durations += random.integers(0, 3, n)
    elif kind == "bursts":  # The mean says more than the most usual duration.
        durations = np.resize(np.array([1, 1, 1, 97], np.int64), n)
    elif kind == "leap":
        durations[random.integers(0, n)] += 1 << 28
    elif kind == "any":
        durations = random.integers(0, 1 << 32, n)
    elif kind == "huge":
        durations = random.integers(0, 1 << 62, n)
    elif kind == "zero":
        durations[:] = 0
    return durations


def _composition(kind: str, n: int, random: np.random.Generator) -> NDArray[np.int64]:
    if kind == "zero":
        return np.zeros(n, np.int64)
    if kind == "constant":
        return np.full(n, 1024)
    if kind == "negative":
        return np.full(n, -700)
    if kind == "b-frames":
        return np.resize(np.array([1024, 2560, 1024, 0, 512], np.int64), n)
    return random.integers(-(1 << 28), 1 << 28, n)


def _sizes(kind: str, n: int, random: np.random.Generator) -> NDArray[np.int64]:
    if kind == "constant":
        return np.full(n, 300)
    return random.integers(0, {"small": 200, "medium": 60_000, "large": 1 << 33, "zero": 2}[kind], n)


def _offsets(kind: str, sizes: NDArray[np.int64], random: np.random.Generator) -> NDArray[np.int64]:
    n = len(sizes)
    offsets: NDArray[np.int64] = np.cumsum(sizes) - sizes + int(random.choice([0, 48, 1 << 34]))
    if kind == "gaps":
        offsets += np.cumsum(random.integers(0, 50, n) * (random.random(n) < 0.05))
    elif kind == "chunks":
        offsets += np.arange(n) // 7 * 11
    elif kind == "shuffled":
        offsets = offsets[random.permutation(n)]
    elif kind == "overlapping":
        offsets -= np.minimum(offsets, random.integers(0, 3, n))
    return offsets


def _sync(kind: str, n: int, random: np.random.Generator) -> NDArray[np.int64]:
    if kind == "none":
        return np.empty(0, np.int64)
    if kind == "any":
        return np.flatnonzero(random.random(n) < 0.3)
    return np.arange(0, n, 1 if kind == "all" else int(random.integers(2, 30)))


def _times(
    kind: str, ticks: NDArray[np.int64], timescale: int, random: np.random.Generator
) -> NDArray[np.float64]:
    n = len(ticks)
    if kind == "edit in ticks":
        return (ticks - int(random.integers(0, 3000))) / timescale
    if kind == "edit in movie ticks":
        return (ticks * 5 + int(random.integers(0, 3000))) / (timescale * 5)
    if kind == "edit in seconds":
        return ticks / timescale + (float(random.integers(0, 5000)) / 1000 - 1024 / timescale)
    if kind == "rounded":
        return np.round(ticks / timescale, 6)
    if kind == "few":  # Many equal times.
        return random.integers(-4, 9, n) / 10
    if kind == "descending":
        return -np.arange(n) / 30
    return random.normal(0, 10.0 ** int(random.integers(-5, 300)), n)


def make_source(
    seed: int,
    n: int,
    *,
    durations: str = "constant",
    composition: str = "zero",
    sizes: str = "medium",
    offsets: str = "contiguous",
    sync: str = "every",
    times: str = "edit in ticks",
    entries: bool = False,
) -> SourceFile:
    """Makes a valid table; the same arguments give the same one."""
    random = np.random.default_rng(seed)
    timescale = int(random.choice([15360, 30000, 1000, 90000, 1]))
    steps, shifts = _durations(durations, n, random), _composition(composition, n, random)
    lengths = _sizes(sizes, n, random)
    places = _offsets(offsets, lengths, random)
    # A wrapped sum is as good a time as any other.
    ticks = np.cumsum(steps) - steps + shifts if durations != "huge" else np.arange(n) * 512
    table = SampleTable(
        pts_seconds=_times(times, ticks, timescale, random),
        durations=steps,
        composition_offsets=shifts,
        sizes=lengths,
        offsets=places,
        sync_samples=_sync(sync, n, random),
    )
    size = int((places + lengths).max())
    assert table.find_fault(size) is None
    index = random.integers(1, 3, n).astype(np.int32) if entries else None
    return SourceFile("a.mp4", size, dataclasses.replace(HEADER, timescale=timescale), table, index)


@st.composite
def source_files(draw: st.DrawFn, max_samples: int = 700) -> SourceFile:
    n = draw(st.integers(1, 30) | st.integers(1, max_samples))
    return make_source(
        draw(st.integers(0, 1 << 30)),
        n,
        durations=draw(st.sampled_from(DURATIONS)),
        composition=draw(st.sampled_from(COMPOSITIONS)),
        sizes=draw(st.sampled_from(SIZES)),
        offsets=draw(st.sampled_from(OFFSETS)),
        sync=draw(st.sampled_from(SYNCS)),
        times=draw(st.sampled_from(TIMES)),
        entries=draw(st.integers(0, 9)) == 0,
    )


def mapped(source: SourceFile) -> SourceFile:
    """Gives the table as a mapped index would, without a file."""
    record, data = encoded(source)
    samples, description_index = read_samples(layout.fields_of(record), np.frombuffer(data, np.uint8))
    return dataclasses.replace(source, samples=samples, description_index=description_index)


def encoded(source: SourceFile) -> tuple[Any, bytes]:
    record = np.zeros(1, layout.RECORD)[0]
    return record, encode_columns(record, source)


def assert_equal(found: SourceFile, wanted: SourceFile) -> None:
    """Compares everything, numbers bit for bit and with their types."""
    assert SourceFile.__slots__ == ("path", "size", "header", "samples", "description_index")
    assert (found.path, found.size, found.header) == (wanted.path, wanted.size, wanted.header)
    pairs = [(found.description_index, wanted.description_index)]
    pairs += [
        (getattr(found.samples, name)[:], getattr(wanted.samples, name)[:]) for name in SampleTable.__slots__
    ]
    for one, other in pairs:
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert (one.dtype, one.shape) == (other.dtype, other.shape)
            assert one.tobytes() == other.tobytes()
