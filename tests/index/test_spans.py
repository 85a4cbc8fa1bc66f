from __future__ import annotations

import io
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lerobot_streaming.index import FrameIndex, SampleTable, codec_extradata, coded_size
from lerobot_streaming.index import spans as spans_module
from tests.index.random_tables import make_source, mapped, source_files
from tests.index.reference_spans import ReferenceFrameIndex
from tests.index.videos import EDITED, LIBAV_FORMS, index, video

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lerobot_streaming.index import SourceFile


def table(pts: list[float], sync: list[int]) -> SampleTable:
    n = len(pts)
    zeros = np.zeros(n, np.int64)
    return SampleTable(np.array(pts, np.float64), zeros, zeros, zeros, zeros, np.array(sync, np.int64))


@st.composite
def tables(draw: st.DrawFn) -> SampleTable:
    n = draw(st.integers(1, 25))
    pts = draw(st.lists(st.integers(-5, 30), min_size=n, max_size=n))
    sync = draw(st.sets(st.integers(0, n - 1)))
    return table([k / 10 for k in pts], sorted(sync))


@given(tables(), st.lists(st.integers(-20, 80), min_size=1))
def test_sample_at_is_argmin_over_presentation_order(samples: SampleTable, times: list[int]) -> None:
    order = np.argsort(samples.pts_seconds[:], kind="stable")
    wanted: NDArray[np.float64] = np.array([time / 20 for time in times], np.float64)
    found = FrameIndex(samples).sample_at(wanted)
    for time, sample in zip(times, found, strict=True):
        distances = np.abs(samples.pts_seconds[order] - time / 20)
        # Halves of 0.1 are not exact in binary: what is equally near up to rounding may go either way.
        best = order[np.argmin(distances)]
        if sample != best:
            assert abs(samples.pts_seconds[sample] - time / 20) == pytest.approx(distances.min(), abs=1e-12)


@given(tables())
def test_ties_go_to_the_earlier_sample(samples: SampleTable) -> None:
    doubled = table([round(10 * k) * 2 for k in samples.pts_seconds[:]], [])
    order = np.argsort(doubled.pts_seconds[:], kind="stable")
    shown = doubled.pts_seconds[order]
    times = np.arange(-20, 80).astype(np.float64)
    expected = [order[np.argmin(np.abs(shown - time))] for time in times]
    assert FrameIndex(doubled).sample_at(times).tolist() == expected


@given(tables())
def test_sync_for_is_the_last_one_not_later_in_either_order(samples: SampleTable) -> None:
    n = samples.num_samples
    found = FrameIndex(samples).sync_for(np.arange(n))
    pts, sync = samples.pts_seconds[:], samples.sync_samples[:].tolist()
    for sample in range(n):
        fit = [s for s in sync if s <= sample and pts[s] <= pts[sample]]
        fallback = sync[0] if sync and sync[0] <= sample else 0
        assert found[sample] == (fit[-1] if fit else fallback)


def test_all_sync_samples_presented_backwards_is_still_right() -> None:
    samples = table([float(-k) for k in range(200)], list(range(200)))
    assert FrameIndex(samples).sync_for(np.arange(200)).tolist() == list(range(200))
    samples = table([-500.0, *[float(-k) for k in range(200)]], list(range(200)))
    assert FrameIndex(samples).sync_for(np.array([200])).tolist() == [0]


def test_decode_span_covers_every_wanted_sample() -> None:
    frames = FrameIndex(index(video("h264 b-frames")).samples)
    assert frames.decode_span(np.array([14, 13])) == (12, 14)
    assert frames.decode_span(np.array([3, 29])) == (0, 29)
    assert frames.decode_span(np.array([24])) == (24, 24)


def decode(data: bytes, first: int, last: int) -> dict[int, np.ndarray[Any, Any]]:
    """Decodes samples first..last without a container; frames by sample number."""
    source = index(data)
    codec, extradata = codec_extradata(source.header.stsd_body)
    context: Any = av.CodecContext.create("libdav1d" if codec == "av1" else codec, "r")
    context.extradata = extradata or None
    context.thread_count = 1
    context.width, context.height = coded_size(source.header.stsd_body)
    frames = {}
    packets: list[Any] = []
    for i in range(first, last + 1):
        start = int(source.samples.offsets[:][i])
        packet = av.Packet(data[start : start + int(source.samples.sizes[:][i])])
        packet.pts = i
        packets.append(packet)
    for packet in [*packets, None]:
        for frame in context.decode(packet):
            frames[frame.pts] = frame.to_ndarray()
    return frames


@pytest.mark.parametrize("name", LIBAV_FORMS)
def test_every_sample_decodes_from_its_sync_sample_to_the_right_pixels(name: str) -> None:
    data = video(name)
    source = index(data)
    frames = FrameIndex(source.samples)
    with av.open(io.BytesIO(data), "r") as container:
        whole = [frame.to_ndarray() for frame in container.decode(video=0)]
    order = np.argsort(source.samples.pts_seconds[:], kind="stable")
    assert len(whole) == source.samples.num_samples
    for place, sample in enumerate(order.tolist()):
        first, last = frames.decode_span(np.array([sample]))
        assert last == sample
        assert (decode(data, first, last)[sample] == whole[place]).all(), (sample, first)


@pytest.mark.parametrize("name", ["h264 open gop", "hevc open gop"])
def test_leading_pictures_start_one_sync_sample_earlier(name: str) -> None:
    samples = index(video(name)).samples
    starts = FrameIndex(samples).sync_for(np.arange(samples.num_samples))
    plain = samples.sync_samples[
        np.searchsorted(samples.sync_samples[:], np.arange(samples.num_samples), "right") - 1
    ]
    assert (starts < plain).any()


def wanted_times(source: SourceFile, random: np.random.Generator, count: int) -> NDArray[np.float64]:
    """Times at, between and beyond the samples, in runs and scattered."""
    pts = np.sort(source.samples.pts_seconds[:])
    places = random.integers(0, len(pts), count)
    middles = pts[places] / 2 + pts[np.minimum(places + 1, len(pts) - 1)] / 2
    run = pts[0] + np.arange(count) / 30
    ends = pts[-1] + np.arange(count) / 30
    return np.concatenate((pts[places], middles, run, ends, pts[:count], [pts[0] - 1e9, pts[-1] + 1e9]))


def check_look_ups(source: SourceFile, table: SampleTable, times: NDArray[np.float64]) -> None:
    reference, frames = ReferenceFrameIndex(source.samples), FrameIndex(table)
    assert frames.num_samples == source.samples.num_samples
    assert frames.first_pts_seconds == source.samples.pts_seconds[:].min()
    assert frames.last_pts_seconds == source.samples.pts_seconds[:].max()
    samples = reference.sample_at(times)
    assert frames.sample_at(times).tolist() == samples.tolist()
    for k in range(min(len(times), 8)):
        assert frames.sample_at(times[k : k + 1]).tolist() == samples[k : k + 1].tolist()
    assert frames.sync_for(samples).tolist() == reference.sync_for(samples).tolist()
    assert frames.decode_span(samples) == reference.decode_span(samples)


@settings(max_examples=200, deadline=None)
@given(source_files(), st.integers(0, 1 << 30))
def test_look_ups_are_the_same_on_arrays_and_on_columns(source: SourceFile, seed: int) -> None:
    times = wanted_times(source, np.random.default_rng(seed), 20)
    check_look_ups(source, source.samples, times)
    check_look_ups(source, mapped(source).samples, times)


@settings(max_examples=150, deadline=None)
@given(source_files(max_samples=40), st.integers(0, 1 << 30), st.integers(1, 5))
def test_the_computed_part_holds_all_that_is_needed(source: SourceFile, seed: int, stride: int) -> None:
    times = wanted_times(source, np.random.default_rng(seed), 5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spans_module, "_STRIDE", stride)
        table = mapped(source).samples
        for k in range(len(times)):
            check_look_ups(source, table, times[k : k + 2])


@settings(max_examples=100, deadline=None)
@given(source_files(), st.integers(0, 1 << 30))
def test_scattered_times_of_long_columns_are_found_without_computing_them_all(
    source: SourceFile, seed: int
) -> None:
    times = wanted_times(source, np.random.default_rng(seed), 5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spans_module, "_WINDOW", 1)
        patch.setattr(spans_module, "_STRIDE", 4)
        check_look_ups(source, mapped(source).samples, times)


@pytest.mark.parametrize("name", [*LIBAV_FORMS, *EDITED])
def test_look_ups_on_columns_of_real_files(name: str) -> None:
    source = index(EDITED[name]() if name in EDITED else video(name))
    times = wanted_times(source, np.random.default_rng(0), 30)
    check_look_ups(source, mapped(source).samples, times)


@settings(max_examples=100, deadline=None)
@given(source_files(max_samples=200), st.integers(0, 1 << 30), st.integers(1, 12))
def test_spans_of_groups_are_those_of_each_group(source: SourceFile, seed: int, groups: int) -> None:
    random = np.random.default_rng(seed)
    times = random.permutation(wanted_times(source, random, 10))
    starts = np.sort(random.choice(len(times), groups, replace=False))
    for table in (source.samples, mapped(source).samples):
        frames = FrameIndex(table)
        first, last = frames.decode_spans(times, starts)
        assert first.dtype == last.dtype == np.dtype(np.int64)
        bounds = [*starts.tolist(), len(times)]
        expected = [frames.decode_span(frames.sample_at(times[begin:end])) for begin, end in pairwise(bounds)]
        assert list(zip(first.tolist(), last.tolist(), strict=True)) == expected


def test_empty_groups_are_refused_and_no_groups_are_none() -> None:
    frames = FrameIndex(make_source(0, 10).samples)
    first, last = frames.decode_spans(np.empty(0), np.empty(0, np.int64))
    assert (len(first), len(last), len(frames.sample_at(np.empty(0)))) == (0, 0, 0)
    for starts in ([0, 0], [2, 1], [5], [0, 5], [-1, 2]):
        with pytest.raises(ValueError, match="group"):
            frames.decode_spans(np.zeros(5), np.array(starts))


def test_a_time_that_is_no_number_disturbs_no_other() -> None:
    source = make_source(0, 2000)
    times = np.append(source.samples.pts_seconds[:], np.nan)
    for table in (source.samples, mapped(source).samples):
        assert FrameIndex(table).sample_at(times)[:-1].tolist() == list(range(2000))


def test_a_frame_index_on_columns_keeps_little() -> None:
    source = make_source(0, 60_000, composition="b-frames", durations="jitter")
    frames = FrameIndex(mapped(source).samples)
    frames.decode_spans(source.samples.pts_seconds[:], np.arange(0, 60_000, 300))
    kept = [
        value.nbytes
        for part in (frames, frames._shown)
        for value in vars(part).values()
        if isinstance(value, np.ndarray)
    ]
    assert sum(kept) <= 60_000 * 8 / 128 + 8
