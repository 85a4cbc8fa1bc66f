"""Reads the video sample table of an MP4 file from its `moov` box (ISO/IEC 14496-12)."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lerobot_streaming.errors import Mp4Error, Mp4FormatError, Mp4UnsupportedError
from lerobot_streaming.index import sample_boxes
from lerobot_streaming.index.boxes import Container, fourcc, table, unpack
from lerobot_streaming.index.layout import FileLayout, TopLevel
from lerobot_streaming.index.sample_entries import check_entries
from lerobot_streaming.index.tables import Mp4Header, SampleTable, SourceFile

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

MAX_MOOV_BYTES = 64 * 1024 * 1024
_MAX_TICKS = 1 << 62

DEFAULT_FTYP = struct.pack(">I4s4sI12s", 28, b"ftyp", b"isom", 0x200, b"isomiso2mp41")
"""Stands in for the `ftyp` box of a file that has none (they came later than the oldest MP4 files)."""


@dataclass(frozen=True, slots=True)
class _Edit:
    """An edit list that shifts the track: `delay` movie ticks of nothing, then media from `media_time` on."""

    delay: int = 0
    media_time: int = 0


def read_mp4(
    path: str, size: int, read: Callable[[int, int], bytes], *, max_moov_bytes: int = MAX_MOOV_BYTES
) -> SourceFile:
    """Indexes the video track of one MP4 file; only `moov` and box headers are read, never the media.

    A file with `moov` first costs one small read, one with `moov` last two. 100,000 samples take a few
    milliseconds.

    Args:
        path: The file's path relative to the data root; kept in the result and named in every error.
        size: The file's size in bytes.
        read: `read(offset, length)` gives exactly `length` bytes. What it raises passes through.
        max_moov_bytes: Largest `moov` box in bytes that is read.

    Returns:
        Header facts and the sample table, completely validated.

    Raises:
        Mp4FormatError: The boxes are truncated or contradict each other or the file.
        Mp4UnsupportedError: A valid form that is refused by name: fragmented, encrypted, no or several video
            tracks, an edit list with repeats or another rate than 1, media in another file.
    """
    try:
        top = TopLevel(size, read, max_moov_bytes)
        layout = top.find()
        moov = Container(memoryview(layout.moov), "moov")
        if moov.all(b"cmov"):
            raise Mp4UnsupportedError("a compressed 'moov' box is not supported; remux the file")
        source = _read_track(path, size, layout, moov)
        if moov.all(b"mvex") and any(box.kind == b"moof" for box in top.walk()):
            raise Mp4UnsupportedError(
                "fragmented MP4 (samples in 'moof' boxes) is not supported; remux it (ffmpeg -c copy)"
            )
    except Mp4Error as error:
        raise type(error)(f"'{path}': {error}") from error
    return source


def _read_track(path: str, size: int, layout: FileLayout, moov: Container) -> SourceFile:
    movie_timescale, movie_duration = _times(moov.required(b"mvhd"), "mvhd")
    trak = _video_track(moov)
    mdia = trak.child(b"mdia")
    timescale, duration = _times(mdia.required(b"mdhd"), "mdhd")
    if timescale == 0:
        raise Mp4FormatError("box 'mdhd' has a timescale of 0; the file is damaged")
    if duration == 0 and movie_timescale:
        duration = movie_duration * timescale // movie_timescale
    track_id, width, height = _track_header(trak.required(b"tkhd"))
    minf = mdia.child(b"minf")
    stbl = minf.child(b"stbl")
    count = sample_boxes.sample_count(stbl)
    if count == 0:
        if moov.all(b"mvex"):
            raise Mp4UnsupportedError(
                "fragmented MP4 without a sample table is not supported; remux it (ffmpeg -c copy)"
            )
        raise Mp4FormatError("the video track has no samples; record the file again")
    _check_data_reference(minf)
    stsd = stbl.required(b"stsd")
    entries = check_entries(stsd)
    samples, description_index = _sample_table(
        stbl, count, size, len(entries), timescale, _read_edit(trak), movie_timescale
    )
    mdat = layout.mdat_box
    header = Mp4Header(
        ftyp=layout.ftyp or DEFAULT_FTYP,
        moov_offset=layout.moov_box.offset,
        mdat_offset=mdat.offset,
        mdat_payload_offset=mdat.offset + mdat.header,
        mdat_payload_size=mdat.size - mdat.header,
        faststart=layout.moov_box.offset < mdat.offset,
        codec=fourcc(entries[0].kind),
        timescale=timescale,
        duration=duration,
        track_id=track_id,
        width=width,
        height=height,
        stsd_body=bytes(stsd),
    )
    return SourceFile(path, size, header, samples, description_index)


def _video_track(moov: Container) -> Container:
    video = []
    for box in moov.all(b"trak"):
        trak = Container(box.payload, "trak")
        handler = trak.child(b"mdia").required(b"hdlr")
        if bytes(handler[8:12]) == b"vide":
            video.append(trak)
    if not video:
        raise Mp4UnsupportedError("the file has no video track; point the dataset at the right file")
    if len(video) > 1:
        raise Mp4UnsupportedError(f"the file has {len(video)} video tracks; only one per file is supported")
    return video[0]


def _times(payload: memoryview, name: str) -> tuple[int, int]:
    """Reads (timescale, duration) of `mvhd` or `mdhd`; an unknown duration (all ones) reads as 0."""
    (version,) = unpack("B", payload, 0, name)
    if version == 0:
        timescale, duration = unpack("II", payload, 12, name)
        unknown = 0xFFFFFFFF
    elif version == 1:
        timescale, duration = unpack("IQ", payload, 20, name)
        unknown = 0xFFFFFFFFFFFFFFFF
    else:
        raise Mp4UnsupportedError(f"box '{name}' has version {version}; versions 0 and 1 are known")
    return timescale, 0 if duration == unknown else duration


def _track_header(payload: memoryview) -> tuple[int, int, int]:
    """Reads (track id, width, height in pixels) of `tkhd`; the sizes are 16.16 fixed-point numbers."""
    (version,) = unpack("B", payload, 0, "tkhd")
    if version > 1:
        raise Mp4UnsupportedError(f"box 'tkhd' has version {version}; versions 0 and 1 are known")
    (track_id,) = unpack("I", payload, 20 if version else 12, "tkhd")
    width, height = unpack("II", payload, 88 if version else 76, "tkhd")
    return track_id, width >> 16, height >> 16


def _check_data_reference(minf: Container) -> None:
    """Refuses media that lies in another file: a `dref` entry whose "self-contained" flag (1) is not set."""
    dinf = minf.optional(b"dinf")
    if dinf is None:
        return
    dref = Container(dinf, "dinf").optional(b"dref")
    if dref is None:
        return
    for box in Container(dref[8:], "dref").all(b"url "):
        (flags,) = unpack("I", box.payload, 0, "url ")
        if not flags & 1:
            raise Mp4UnsupportedError("the media lies in another file ('dref'); remux it into one file")


def _read_edit(trak: Container) -> _Edit:
    """Reads `edts/elst`: nothing, or one media edit of rate 1, with or without one empty edit before it."""
    edts = trak.optional(b"edts")
    elst = None if edts is None else Container(edts, "edts").optional(b"elst")
    if elst is None:
        return _Edit()
    version, rows = unpack("B3xI", elst, 0, "elst")
    if version > 1:
        raise Mp4UnsupportedError(f"box 'elst' has version {version}; versions 0 and 1 are known")
    width = 20 if version else 12
    table(elst, 8, rows, "u1", width, "elst")
    if rows == 0:
        return _Edit()
    if rows > 2:
        raise Mp4UnsupportedError(f"an edit list with {rows} edits is not supported; re-encode the file")
    edits = [unpack("QqhH" if version else "IihH", elst, 8 + width * row, "elst") for row in range(rows)]
    delay = 0
    if edits[0][1] == -1:
        delay = edits.pop(0)[0]
    if len(edits) != 1 or edits[0][1] == -1:
        raise Mp4UnsupportedError(
            "the edit list repeats, cuts or consists of an empty edit only; supported is one media edit, "
            "with or without one empty edit before it; re-encode the file"
        )
    _, media_time, rate, fraction = edits[0]
    if (rate, fraction) != (1, 0):
        raise Mp4UnsupportedError(
            f"the edit list plays at a rate of {rate + fraction / 65536:g}; only 1 is supported; re-encode "
            "the file"
        )
    if not 0 <= media_time < _MAX_TICKS or delay >= _MAX_TICKS:
        raise Mp4FormatError(f"the edit list starts at {media_time} ticks after {delay}; the file is damaged")
    return _Edit(delay, media_time)


def _sample_table(
    stbl: Container,
    count: int,
    file_size: int,
    num_descriptions: int,
    timescale: int,
    edit: _Edit,
    movie_timescale: int,
) -> tuple[SampleTable, NDArray[np.int32] | None]:
    durations = sample_boxes.read_durations(stbl, count)
    composition = sample_boxes.read_composition_offsets(stbl, count)
    sizes = sample_boxes.read_sizes(stbl, count, file_size)
    offsets, description_index = sample_boxes.read_offsets(stbl, sizes, num_descriptions, file_size)
    ticks = np.cumsum(durations) - durations + composition - edit.media_time
    samples = SampleTable(
        pts_seconds=_seconds(ticks, timescale, edit.delay, movie_timescale),
        durations=durations,
        composition_offsets=composition,
        sizes=sizes,
        offsets=offsets,
        sync_samples=sample_boxes.read_sync_samples(stbl, count),
    )
    fault = samples.find_fault(file_size)
    if fault is not None:
        raise Mp4FormatError(f"{fault}; the file is truncated or damaged")
    return samples, description_index


def _seconds(
    ticks: NDArray[np.int64], timescale: int, delay: int, movie_timescale: int
) -> NDArray[np.float64]:
    """Converts media ticks plus a delay in movie ticks to seconds.

    Everything is added as integers on a common denominator first, so that one division rounds once and equal
    times are equal numbers wherever they come from.
    """
    if delay == 0:
        return ticks / timescale
    if movie_timescale == 0:
        raise Mp4FormatError(
            "box 'mvhd' has a timescale of 0, but an edit list needs it; the file is damaged"
        )
    common = math.lcm(timescale, movie_timescale)
    scale, shift = common // timescale, delay * (common // movie_timescale)
    largest = max(abs(int(ticks.min())), abs(int(ticks.max()))) * scale + shift
    if largest < _MAX_TICKS:
        return (ticks * scale + shift) / common
    return ticks / timescale + delay / movie_timescale
