from __future__ import annotations

import dataclasses
import io
from typing import TYPE_CHECKING, Any

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lerobot_streaming.episodes.mini_mp4 import MiniMp4Plan, fetch_mini_mp4, plan_mini_mp4
from lerobot_streaming.errors import FetchError, Mp4FormatError
from lerobot_streaming.index import FrameIndex, SourceFile
from lerobot_streaming.storage.base import FileStat, RangeReader
from tests.index.videos import EDITED, LIBAV_FORMS, index, video

if TYPE_CHECKING:
    from numpy.typing import NDArray

FORMS = (*LIBAV_FORMS, *EDITED)


def get(name: str) -> bytes:
    return EDITED[name]() if name in EDITED else video(name)


class Memory(RangeReader):
    """Reads from bytes and notes each request."""

    def __init__(self, data: bytes) -> None:
        self.data, self.requests = data, list[tuple[int, int]]()

    @property
    def root(self) -> str:
        return "memory"

    def stat(self, path: str) -> FileStat:
        del path
        return FileStat(len(self.data), None)

    def read_into(self, path: str, offset: int, view: memoryview) -> None:
        self.requests.append((offset, len(view)))
        if offset + len(view) > len(self.data):
            raise FetchError(path)
        view[:] = self.data[offset : offset + len(view)]

    def close(self) -> None:
        pass


def fetch(data: bytes, plan: MiniMp4Plan) -> bytes:
    return bytes(fetch_mini_mp4(plan, Memory(data), "video.mp4"))


def check(data: bytes, source: SourceFile, first: int, last: int) -> bytes:
    """Checks everything that must hold of any span, and gives the mini-MP4."""
    plan = plan_mini_mp4(source, first, last)
    header = plan.header()
    assert len(header) == plan.header_bytes
    assert plan.header() == header
    mini = fetch(data, plan)
    assert len(mini) == plan.size_bytes
    assert mini == header + b"".join(data[offset : offset + length] for offset, length in plan.payload_runs)
    samples = source.samples
    for k, i in enumerate(range(first, last + 1)):
        there, size = int(plan.sample_offsets[k]), int(plan.sizes[k])
        here = int(samples.offsets[:][i])
        assert mini[there : there + size] == data[here : here + size]
    again = index(mini).samples
    assert (again.offsets[:] == plan.sample_offsets).all()
    assert (again.sizes[:] == samples.sizes[first : last + 1]).all()
    assert (again.durations[:] == samples.durations[first : last + 1]).all()
    wanted = samples.pts_seconds[first : last + 1]
    np.testing.assert_allclose(again.pts_seconds[:], wanted - wanted[0], atol=1e-9)
    assert again.pts_seconds[:][0] == 0
    sync = [s - first for s in samples.sync_samples[:].tolist() if first <= s <= last]
    assert again.sync_samples[:].tolist() == sync
    return mini


@pytest.mark.parametrize("name", FORMS)
def test_size_bytes_and_tables_are_exact(name: str) -> None:
    data = get(name)
    source = index(data)
    n = source.samples.num_samples
    for first, last in ((0, n - 1), (0, 0), (n - 1, n - 1), (2, n // 2), (n // 3, n - 2)):
        check(data, source, first, last)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(FORMS), st.integers(0, 39), st.integers(0, 39))
def test_any_span_is_exact(name: str, one: int, other: int) -> None:
    source = index(get(name))
    last = source.samples.num_samples - 1
    first, last = sorted((min(one, last), min(other, last)))
    check(get(name), source, first, last)


def shown(data: bytes) -> list[NDArray[Any]]:
    frames: list[NDArray[Any]] = []
    with av.open(io.BytesIO(data), "r") as container:
        frames.extend(frame.to_ndarray() for frame in container.decode(video=0))
    return frames


@pytest.mark.parametrize("name", LIBAV_FORMS)
def test_a_player_shows_the_same_frames(name: str) -> None:
    data = video(name)
    source = index(data)
    pts = source.samples.pts_seconds[:]
    order = np.argsort(pts, kind="stable")
    whole = shown(data)
    half = source.samples.num_samples // 2
    wanted = order[half : half + 6]
    first, last = FrameIndex(source.samples).decode_span(wanted)
    mini = check(data, source, first, last)
    # What is presented before the first sample are leading pictures, which nothing can decode: they are
    # hidden.
    expected = [whole[k] for k, i in enumerate(order.tolist()) if first <= i <= last and pts[i] >= pts[first]]
    found = shown(mini)
    assert len(found) == len(expected) >= 4
    assert all((a == b).all() for a, b in zip(found, expected, strict=True))


def test_bytes_of_other_tracks_are_left_out() -> None:
    data = video("h264 audio first")
    source = index(data)
    plan = plan_mini_mp4(source, 0, source.samples.num_samples - 1)
    assert len(plan.payload_runs) > 5
    assert plan.size_bytes - plan.header_bytes == source.samples.sizes[:].sum()
    with av.open(io.BytesIO(fetch(data, plan)), "r") as container:
        assert [stream.type for stream in container.streams] == ["video"]


def test_close_runs_are_one_request_and_far_ones_are_not() -> None:
    source = index(video("h264 all-intra"))
    sizes = np.array([100, 100, 100, 100])
    offsets = np.array([0, 100, 1000, 9000])
    samples = dataclasses.replace(
        source.samples,
        pts_seconds=source.samples.pts_seconds[:4],
        durations=source.samples.durations[:4],
        composition_offsets=source.samples.composition_offsets[:4],
        sizes=sizes,
        offsets=offsets,
        sync_samples=np.arange(4),
    )
    source = dataclasses.replace(source, size=10_000, samples=samples)
    plan = plan_mini_mp4(source, 0, 3)
    assert plan.payload_runs == ((0, 200), (1000, 100), (9000, 100))
    data = np.random.default_rng(0).bytes(10_000)
    reader = Memory(data)
    mini = fetch_mini_mp4(plan, reader, "video.mp4")
    assert reader.requests == [(0, 1100), (9000, 100)]
    assert mini[plan.header_bytes :] == data[:200] + data[1000:1100] + data[9000:9100]


def test_samples_out_of_file_order_or_sharing_bytes() -> None:
    source = index(video("h264 all-intra"))
    n = 6
    samples = dataclasses.replace(
        source.samples,
        pts_seconds=source.samples.pts_seconds[:n],
        durations=source.samples.durations[:n],
        composition_offsets=source.samples.composition_offsets[:n],
        sizes=np.array([50, 60, 50, 10, 0, 70]),
        offsets=np.array([500, 100, 500, 520, 130, 200]),
        sync_samples=np.arange(n),
    )
    source = dataclasses.replace(source, size=1000, samples=samples)
    data = np.random.default_rng(0).bytes(1000)
    check(data, source, 0, n - 1)
    assert plan_mini_mp4(source, 0, n - 1).payload_runs == ((100, 60), (200, 70), (500, 50))


def test_sample_entries_are_kept() -> None:
    data = EDITED["two sample entries"]()
    plan = plan_mini_mp4(index(data), 6, 20)
    found = index(fetch(data, plan)).description_index
    assert found is not None
    assert found.tolist() == [1] * 6 + [2] * 9


@pytest.mark.parametrize(("first", "last"), [(-1, 2), (3, 2), (0, 30)])
def test_spans_outside_the_file_are_refused(first: int, last: int) -> None:
    with pytest.raises(ValueError, match=r"video\.mp4"):
        plan_mini_mp4(index(video("h264 b-frames")), first, last)


def test_numbers_that_no_box_can_hold_are_refused() -> None:
    source = index(video("h264 b-frames"))
    huge = dataclasses.replace(source.samples, durations=source.samples.durations[:] + (1 << 40))
    with pytest.raises(Mp4FormatError, match="duration"):
        plan_mini_mp4(dataclasses.replace(source, samples=huge), 0, 5)


@pytest.mark.parametrize("ticks", [1 << 27, 1 << 31])
def test_long_durations_use_64_bit_fields(ticks: int) -> None:
    source = index(video("h264 b-frames"))
    durations = np.full(30, min(ticks, (1 << 31) - 1))
    composition = np.full(30, 1 << 28)
    samples = dataclasses.replace(source.samples, durations=durations, composition_offsets=composition)
    plan = plan_mini_mp4(dataclasses.replace(source, samples=samples), 0, 29)
    assert len(plan.header()) == plan.header_bytes
    again = index(fetch(video("h264 b-frames"), plan)).samples
    assert (again.durations == durations).all()


def test_a_payload_over_4_gib_uses_64_bit_offsets() -> None:
    source = index(video("h264 all-intra"))
    n = source.samples.num_samples
    sizes = np.full(n, 200_000_000)
    samples = dataclasses.replace(source.samples, sizes=sizes, offsets=np.arange(n) * 200_000_000)
    plan = plan_mini_mp4(dataclasses.replace(source, samples=samples), 0, n - 1)
    header = plan.header()
    assert len(header) == plan.header_bytes
    assert b"co64" in header
    assert header[-16:-8] == b"\0\0\0\1mdat"
    assert int.from_bytes(header[-8:], "big") == 16 + n * 200_000_000
