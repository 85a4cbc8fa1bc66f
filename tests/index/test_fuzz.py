"""Damaged MP4 files: only our errors, quickly, with bounded memory."""

from __future__ import annotations

import re
import subprocess
import sys
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lerobot_streaming.errors import Mp4Error
from lerobot_streaming.index import codec_extradata
from tests.index.videos import EDITED, index, video

NAMES = ("h264 b-frames", "h264 faststart", "h264 audio first", "mpeg4", "hevc hvc1")
BASES = tuple(video(name) for name in NAMES) + tuple(
    EDITED[name]() for name in ("co64", "stz2 4", "stz2 16", "version 1 headers", "two sample entries")
)
INTERESTING = (
    b"\xff\xff\xff\xff",
    b"\0\0\0\0",
    b"\x7f\xff\xff\xff",
    b"\x80\0\0\0",
    b"\0\0\0\1",
    b"\0\0\0\x08",
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    data = bytearray(draw(st.sampled_from(BASES)))
    moov = data.index(b"moov") - 4
    # What matters lies in the file's head and in `moov`.
    place = st.integers(moov, min(moov + 1500, len(data) - 1)) | st.integers(0, min(60, len(data) - 1))
    for _ in range(draw(st.integers(1, 4))):
        if not data:
            break  # Everything was cut away.
        at = min(draw(place), len(data) - 1)
        kind = draw(st.integers(0, 4))
        if kind == 0:
            data[at] = draw(st.integers(0, 255))
        elif kind == 1:
            at -= at % 4
            data[at : at + 4] = draw(st.sampled_from(INTERESTING))
        elif kind == 2:
            del data[at : at + draw(st.integers(1, 40))]
        elif kind == 3:
            data[at:at] = draw(st.binary(min_size=1, max_size=12))
        else:
            del data[max(at, 1) :]
    return bytes(data)


def check(data: bytes) -> None:
    try:
        source = index(data)
        codec_extradata(source.header.stsd_body)
    except Mp4Error as error:
        assert len(str(error)) < 2000  # noqa: PT017 - any error of ours is right
    else:
        assert source.samples.find_fault(len(data)) is None


@settings(max_examples=2000, deadline=None, suppress_health_check=list(HealthCheck))
@given(damaged())
def test_damaged_files_raise_only_our_errors(data: bytes) -> None:
    check(data)


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=300))
def test_random_bytes_raise_only_our_errors(data: bytes) -> None:
    check(data)
    check(b"\0\0\0\x10ftypisom\0\0\0\0" + data)
    check(b"\0\0\0\x08mdat" + (len(data) + 8).to_bytes(4, "big") + b"moov" + data)


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=120), st.sampled_from([b"avc1", b"mp4v", b"av01", b"vp09", b"FFV1", b"zzzz"]))
def test_random_sample_entries_raise_only_our_errors(data: bytes, kind: bytes) -> None:
    for body in (data, bytes(78) + data, bytes(78) + (8 + len(data)).to_bytes(4, "big") + b"esds" + data):
        entry = (8 + len(body)).to_bytes(4, "big") + kind + body
        try:
            codec_extradata(b"\0\0\0\0\0\0\0\1" + entry)
        except Mp4Error:
            continue


@pytest.mark.slow
def test_two_hundred_thousand_mutations_raise_only_our_errors() -> None:
    program = [sys.executable, "-m", "tests.index.fuzz_moov", "--mutations", "200000", "--seed", "1"]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    report = done.stdout.splitlines()[-1]
    print(report)
    facts = re.search(r"^200000 files .* 'read': (\d+), .* peak memory (\d+) MiB$", report)
    assert facts is not None, report
    assert int(facts[1]) > 10_000, "the mutations are too wild to test anything but the first check"
    assert int(facts[2]) < 400


def test_a_small_file_cannot_ask_for_much_memory() -> None:
    base = BASES[0]
    moov = base.index(b"moov") - 4
    tracemalloc.start()
    try:
        for at in range(moov, len(base) - 4, 4):
            for value in INTERESTING[:3]:
                check(base[:at] + value + base[at + 4 :])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 * 2**20


def test_many_tiny_boxes_are_refused_quickly() -> None:
    check(b"\0\0\0\x08free" * 200_000)
    moov = (8 + 8 * 200_000).to_bytes(4, "big") + b"moov" + b"\0\0\0\x08free" * 200_000
    check(b"\0\0\0\x08mdat" + moov)
