"""MP4 files for the tests: made by libav's muxer, and edited box by box."""

from __future__ import annotations

import dataclasses
import functools
import struct
import tempfile
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import av
import numpy as np

from lerobot_streaming.index import SampleTable, SourceFile, read_mp4
from lerobot_streaming.index.moov_writer import span_tables
from tests.support.scheduling import leave_realtime

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WIDTH, HEIGHT = 64, 48
X264 = "scenecut=0:threads=1"
_CONTAINERS = {b"moov", b"trak", b"mdia", b"minf", b"stbl", b"edts", b"dinf"}


def index(data: bytes, name: str = "video.mp4") -> SourceFile:
    return read_mp4(name, len(data), lambda offset, length: data[offset : offset + length])


def _frame(i: int, pix_fmt: str) -> av.VideoFrame:
    if pix_fmt == "gray12le":
        plane = np.full((HEIGHT, WIDTH), 64 + 40 * i, np.uint16)
        frame: av.VideoFrame = av.VideoFrame(WIDTH, HEIGHT, "gray12le")
        frame.planes[0].update(plane.tobytes())
        return frame
    pixels = np.random.default_rng(i).integers(0, 255, (HEIGHT // 8, WIDTH // 8, 3), dtype=np.uint8)
    pixels = pixels.repeat(8, 0).repeat(8, 1)
    return av.VideoFrame.from_ndarray(pixels, format="rgb24").reformat(format=pix_fmt)


def encode(
    codec: str = "libx264",
    *,
    frames: int = 30,
    options: dict[str, str] | None = None,
    muxer: dict[str, str] | None = None,
    pix_fmt: str = "yuv420p",
    rate: Fraction | int = 30,
    ticks: Sequence[int] | None = None,
    tag: str | None = None,
    audio: bool = False,
    video_tracks: int = 1,
) -> bytes:
    """Encodes a small video.

    `ticks` gives presentation times in milliseconds, for variable frame durations; `audio` puts an audio
    track first.
    """
    # A real file: the muxer opens it a second time to move `moov` to the front.
    with tempfile.NamedTemporaryFile(suffix=".mp4") as file:
        with av.open(file.name, "w", format="mp4", options=muxer or {}) as container:
            sound: Any = container.add_stream("aac", rate=16000, layout="mono") if audio else None
            streams: list[Any] = []
            for _ in range(video_tracks):
                stream: Any = container.add_stream(codec, rate=rate, options=options or {})
                stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, pix_fmt
                stream.codec_context.thread_count = 1
                if tag is not None:
                    stream.codec_context.codec_tag = tag
                if ticks is not None:
                    stream.codec_context.time_base = Fraction(1, 1000)
                streams.append(stream)
            for i in range(frames):
                for stream in streams:
                    frame = _frame(i, pix_fmt)
                    frame.pts = i if ticks is None else ticks[i]
                    frame.time_base = 1 / Fraction(rate) if ticks is None else Fraction(1, 1000)
                    container.mux(stream.encode(frame))
                if sound is not None:
                    silence = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
                    silence.sample_rate, silence.pts = 16000, 1024 * i
                    container.mux(sound.encode(silence))
            for stream in streams:
                container.mux(stream.encode())
            if sound is not None:
                container.mux(sound.encode())
        leave_realtime()
        return Path(file.name).read_bytes()


class Box:
    """A box that tests may edit; its bytes are written anew."""

    def __init__(self, kind: bytes, payload: bytes = b"", children: list[Box] | None = None) -> None:
        self.kind, self.payload, self.children = kind, payload, children

    def __bytes__(self) -> bytes:
        body = self.payload if self.children is None else b"".join(map(bytes, self.children))
        return struct.pack(">I4s", 8 + len(body), self.kind) + body

    def get(self, *path: bytes) -> Box:
        box = self
        for kind in path:
            box = next(child for child in box.children or [] if child.kind == kind)
        return box

    def replace(self, kind: bytes, *new: Box) -> None:
        assert self.children is not None
        place = next(i for i, child in enumerate(self.children) if child.kind == kind)
        self.children[place : place + 1] = new


def parse_boxes(data: bytes) -> list[Box]:
    boxes, position = [], 0
    while position < len(data):
        size, kind = struct.unpack_from(">I4s", data, position)
        payload = data[position + 8 : position + size]
        boxes.append(Box(kind, children=parse_boxes(payload)) if kind in _CONTAINERS else Box(kind, payload))
        position += size
    return boxes


def edit(
    data: bytes, change: Callable[[Box], None], *, before_mdat: bytes = b"", wide: bool = False
) -> bytes:
    """Edits `moov` of a file that has it at the end, optionally with bytes or a 64-bit size before the
    media."""
    boxes = parse_boxes(data)
    assert [box.kind for box in boxes][-1] == b"moov"
    moov, mdat = boxes[-1], next(box for box in boxes if box.kind == b"mdat")
    head = b"".join(bytes(box) for box in boxes[:-1] if box.kind != b"mdat") + before_mdat
    start = head + (
        struct.pack(">I4sQ", 1, b"mdat", len(mdat.payload) + 16)
        if wide
        else struct.pack(">I4s", len(mdat.payload) + 8, b"mdat")
    )
    shift = len(start) - (data.index(b"mdat") + 4)
    for trak in [box for box in moov.children or [] if box.kind == b"trak"]:
        stco = trak.get(b"mdia", b"minf", b"stbl", b"stco")
        table = np.frombuffer(stco.payload, ">u4", offset=8).astype(np.int64) + shift
        stco.payload = stco.payload[:8] + table.astype(">u4").tobytes()
    change(moov)
    return start + mdat.payload + bytes(moov)


def stbl_of(moov: Box) -> Box:
    for trak in [box for box in moov.children or [] if box.kind == b"trak"]:
        if trak.get(b"mdia", b"hdlr").payload[8:12] == b"vide":
            return trak.get(b"mdia", b"minf", b"stbl")
    raise AssertionError


def counted(values: Sequence[int], dtype: str) -> bytes:
    return struct.pack(">II", 0, len(values)) + np.array(values, np.int64).astype(dtype).tobytes()


def numbers(payload: bytes, dtype: str = ">u4", offset: int = 8) -> list[int]:
    return [int(k) for k in np.frombuffer(payload, dtype, offset=offset)]


BF3 = {"bf": "3", "g": "12", "x264-params": X264}

_LIBAV: dict[str, dict[str, Any]] = {
    "h264 b-frames": {"options": BF3},
    "h264 faststart": {"options": BF3, "muxer": {"movflags": "faststart"}},
    "h264 open gop": {"options": {"bf": "3", "g": "10", "x264-params": f"open-gop=1:{X264}"}, "frames": 40},
    "h264 negative cts": {"options": BF3, "muxer": {"movflags": "negative_cts_offsets"}},
    "h264 no edit list": {"options": BF3, "muxer": {"use_editlist": "0"}},
    "h264 all-intra": {"options": {"g": "1", "x264-params": X264}},
    "h264 yuv444p": {"pix_fmt": "yuv444p", "options": BF3},
    "h264 audio first": {"options": BF3, "audio": True},
    "h264 timescale 90000": {"options": BF3, "muxer": {"video_track_timescale": "90000"}},
    "h264 29.97": {"options": BF3, "rate": Fraction(30000, 1001)},
    "h264 59.94": {"options": BF3, "rate": Fraction(60000, 1001)},
    "h264 variable": {
        "options": BF3,
        "frames": 24,
        "ticks": [40 * i + 7 * (i % 3) + (200 if i > 11 else 0) for i in range(24)],
    },
    "hevc hvc1": {"codec": "libx265", "tag": "hvc1", "options": {"x265-params": "log-level=none:pools=1"}},
    "hevc hev1": {"codec": "libx265", "tag": "hev1", "options": {"x265-params": "log-level=none:pools=1"}},
    "hevc open gop": {
        "codec": "libx265",
        "options": {"x265-params": "log-level=none:pools=1:keyint=10:min-keyint=10:open-gop=1:bframes=3"},
        "frames": 40,
    },
    "hevc gray12le": {
        "codec": "libx265",
        "pix_fmt": "gray12le",
        "options": {"x265-params": "log-level=none:pools=1"},
    },
    "av1": {
        "codec": "libsvtav1",
        "options": {"g": "2", "preset": "12", "svtav1-params": "lp=1"},
        "frames": 8,
    },
    "vp9": {"codec": "libvpx-vp9", "options": {"g": "8", "deadline": "realtime"}},
    "mpeg4": {"codec": "mpeg4", "options": {"g": "8", "bf": "2"}},
}
LIBAV_FORMS = (*_LIBAV, "ffv1")


@functools.cache
def video(name: str) -> bytes:
    """Gives one of `LIBAV_FORMS`."""
    if name == "ffv1":
        return _ffv1()
    return encode(**_LIBAV[name])


def _ffv1() -> bytes:
    """Puts FFV1 packets into an MP4 by hand: libav's demuxer reads that, but its muxer does not write it."""
    context: Any = av.CodecContext.create("ffv1", "w")
    context.width, context.height, context.pix_fmt = WIDTH, HEIGHT, "yuv420p"
    context.time_base, context.thread_count = Fraction(1, 30), 1
    context.options = {"level": "3"}  # Older levels have no extradata.
    packets: list[Any] = []
    for i in range(18):
        frame = _frame(i, "yuv420p")
        frame.pts = i
        packets += context.encode(frame)
    packets += context.encode(None)
    sync = np.array([i for i, packet in enumerate(packets) if packet.is_keyframe])
    packets = [bytes(packet) for packet in packets]
    plain_header = index(plain()).header
    entry = Box(b"FFV1", plain_header.stsd_body[16 : 16 + 78] + bytes(Box(b"glbl", context.extradata)))
    sizes = np.array([len(packet) for packet in packets])
    places = np.cumsum(sizes) - sizes
    zeros = np.zeros(len(packets), np.int64)
    table = SampleTable(zeros / 1, zeros + 512, zeros, sizes, places, sync)
    stsd = struct.pack(">II", 0, 1) + bytes(entry)
    source = SourceFile("", 0, dataclasses.replace(plain_header, codec="FFV1", stsd_body=stsd), table)
    payload = b"".join(packets)
    return span_tables(source, 0, len(packets) - 1, places, len(payload)).build() + payload


def plain() -> bytes:
    return video("h264 b-frames")


def _co64(moov: Box) -> None:
    stbl = stbl_of(moov)
    stbl.replace(b"stco", Box(b"co64", counted(numbers(stbl.get(b"stco").payload), ">u8")))


def _stz2(bits: int) -> Callable[[Box], None]:
    def change(moov: Box) -> None:
        stbl = stbl_of(moov)
        sizes = numbers(stbl.get(b"stsz").payload, offset=12)
        if bits == 4:  # The sizes change, so the bytes differ: only the table is compared.
            sizes = [size % 15 + 1 for size in sizes]
            pairs = [*sizes, 0][: (len(sizes) + 1) // 2 * 2]
            body = bytes(a << 4 | b for a, b in zip(pairs[::2], pairs[1::2], strict=True))
        else:
            body = np.minimum(sizes, 2**bits - 1).astype(f">u{bits // 8}").tobytes()
        stbl.replace(b"stsz", Box(b"stz2", struct.pack(">III", 0, bits, len(sizes)) + body))

    return change


def _uniform(moov: Box) -> None:
    stbl = stbl_of(moov)
    sizes = numbers(stbl.get(b"stsz").payload, offset=12)
    stbl.replace(b"stsz", Box(b"stsz", struct.pack(">III", 0, min(sizes), len(sizes))))


def _version1(moov: Box) -> None:
    mvhd = moov.get(b"mvhd")
    created, modified, scale, duration = struct.unpack_from(">IIII", mvhd.payload, 4)
    mvhd.payload = struct.pack(">IQQIQ", 1 << 24, created, modified, scale, duration) + mvhd.payload[20:]
    mdhd = moov.get(b"trak", b"mdia", b"mdhd")
    created, modified, scale, duration = struct.unpack_from(">IIII", mdhd.payload, 4)
    mdhd.payload = struct.pack(">IQQIQ", 1 << 24, created, modified, scale, duration) + mdhd.payload[20:]
    tkhd = moov.get(b"trak", b"tkhd")
    created, modified, track, _, duration = struct.unpack_from(">IIIII", tkhd.payload, 4)
    tkhd.payload = (
        struct.pack(">IQQIIQ", 1 << 24 | 3, created, modified, track, 0, duration) + tkhd.payload[24:]
    )
    elst = moov.get(b"trak", b"edts", b"elst")
    length, start, rate = struct.unpack_from(">IiI", elst.payload, 8)
    elst.payload = struct.pack(">IIQqI", 1 << 24, 1, length, start, rate)


def edits(*rows: tuple[int, int, int]) -> Callable[[Box], None]:
    """Sets the edit list: (duration, media time, rate as 16.16)."""

    def change(moov: Box) -> None:
        body = b"".join(struct.pack(">IiI", *row) for row in rows)
        moov.get(b"trak", b"edts", b"elst").payload = struct.pack(">II", 0, len(rows)) + body

    return change


def _two_entries(moov: Box) -> None:
    stbl = stbl_of(moov)
    body = stbl.get(b"stsd").payload
    stbl.get(b"stsd").payload = struct.pack(">II", 0, 2) + body[8:] + body[8:]
    sizes = numbers(stbl.get(b"stsz").payload, offset=12)
    (start,) = numbers(stbl.get(b"stco").payload)
    stbl.get(b"stco").payload = counted([start, start + sum(sizes[:12])], ">u4")
    rows = [1, 12, 1, 2, len(sizes) - 12, 2]
    stbl.get(b"stsc").payload = struct.pack(">II", 0, 2) + np.array(rows).astype(">u4").tobytes()


def _no_stss(moov: Box) -> None:
    stbl_of(moov).replace(b"stss")


def _many_chunks(moov: Box) -> None:
    stbl = stbl_of(moov)
    sizes = numbers(stbl.get(b"stsz").payload, offset=12)
    (start,) = numbers(stbl.get(b"stco").payload)
    bounds = [*range(0, 15, 3), *range(15, len(sizes), 5)]
    stbl.get(b"stco").payload = counted([start + sum(sizes[:k]) for k in bounds], ">u4")
    rows = [1, 3, 1, 6, 5, 1]
    stbl.get(b"stsc").payload = struct.pack(">II", 0, 2) + np.array(rows).astype(">u4").tobytes()


def _nothing(moov: Box) -> None:
    del moov


EDITED: dict[str, Callable[[], bytes]] = {
    "co64": lambda: edit(plain(), _co64),
    "stz2 16": lambda: edit(plain(), _stz2(16)),
    "stz2 8": lambda: edit(plain(), _stz2(8)),
    "stz2 4": lambda: edit(plain(), _stz2(4)),
    "uniform stsz": lambda: edit(plain(), _uniform),
    "64-bit mdat": lambda: edit(plain(), _nothing, wide=True),
    "free boxes": lambda: edit(plain(), _nothing, before_mdat=bytes(Box(b"free", bytes(40))) * 3),
    "version 1 headers": lambda: edit(plain(), _version1),
    "empty edit": lambda: edit(plain(), edits((500, -1, 1 << 16), (1000, 1024, 1 << 16))),
    "no stss": lambda: edit(plain(), _no_stss),
    "two sample entries": lambda: edit(plain(), _two_entries),
    "many chunks": lambda: edit(plain(), _many_chunks),
}
