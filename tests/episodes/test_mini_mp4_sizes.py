from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lerobot_streaming.episodes import mini_mp4_sizes as sizes_module
from lerobot_streaming.episodes.mini_mp4 import plan_mini_mp4
from lerobot_streaming.episodes.mini_mp4_sizes import mini_mp4_sizes
from lerobot_streaming.errors import Mp4FormatError
from tests.index.random_tables import COMPOSITIONS, OFFSETS, SYNCS, make_source, mapped, source_files
from tests.index.videos import EDITED, LIBAV_FORMS, index, video

if TYPE_CHECKING:
    from lerobot_streaming.index import SourceFile

ORDINARY = ("contiguous", "gaps", "chunks")


def planned(source: SourceFile, firsts: list[int], lasts: list[int]) -> list[int] | str:
    """Sizes from one plan after the other, or the error that stops them."""
    pairs = zip(firsts, lasts, strict=True)
    try:
        return [plan_mini_mp4(source, first, last).size_bytes for first, last in pairs]
    except (Mp4FormatError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


def at_once(source: SourceFile, firsts: list[int], lasts: list[int]) -> list[int] | str:
    try:
        sizes = mini_mp4_sizes(source, np.array(firsts, np.int64), np.array(lasts, np.int64))
    except (Mp4FormatError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    assert sizes.dtype == np.int64
    return [int(size) for size in sizes]


@st.composite
def spans(draw: st.DrawFn, count: int) -> tuple[list[int], list[int]]:
    pairs = draw(st.lists(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=12))
    return [min(pair) for pair in pairs], [max(pair) for pair in pairs]


@settings(max_examples=200, deadline=None)
@given(source_files(max_samples=200), st.data())
def test_sizes_are_those_of_the_plans(source: SourceFile, data: st.DataObject) -> None:
    firsts, lasts = data.draw(spans(source.samples.num_samples))
    expected = planned(source, firsts, lasts)
    assert at_once(source, firsts, lasts) == expected
    assert at_once(mapped(source), firsts, lasts) == expected


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 1 << 30),
    st.integers(1, 200),
    st.sampled_from(["constant", "other last", "jitter", "leap", "any", "zero"]),
    st.sampled_from(COMPOSITIONS),
    st.sampled_from(["constant", "small", "medium", "zero"]),
    st.sampled_from(ORDINARY),
    st.sampled_from(SYNCS),
    st.data(),
)
def test_ordinary_files_are_not_planned_at_all(
    seed: int,
    n: int,
    durations: str,
    composition: str,
    sizes: str,
    offsets: str,
    sync: str,
    data: st.DataObject,
) -> None:
    source = make_source(
        seed, n, durations=durations, composition=composition, sizes=sizes, offsets=offsets, sync=sync
    )
    firsts, lasts = data.draw(spans(n))
    expected = planned(source, firsts, lasts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sizes_module, "plan_mini_mp4", None)
        assert at_once(source, firsts, lasts) == expected


@pytest.mark.parametrize("name", [*LIBAV_FORMS, *EDITED])
def test_sizes_of_real_files(name: str) -> None:
    source = index(EDITED[name]() if name in EDITED else video(name))
    n = source.samples.num_samples
    pairs = [(first, last) for first in range(0, n, 3) for last in range(first, n, 2)]
    firsts, lasts = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    assert at_once(mapped(source), firsts, lasts) == planned(source, firsts, lasts)


@pytest.mark.parametrize("offsets", sorted(set(OFFSETS) - set(ORDINARY)))
def test_only_the_spans_that_are_strange_are_planned(offsets: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_source(7, 40, offsets=offsets)
    strange = source.samples.offsets[:].copy()
    strange[20:] = make_source(7, 40).samples.offsets[20:] + (1 << 36)
    table = dataclasses.replace(source.samples, offsets=strange)
    source = dataclasses.replace(source, samples=table)
    wanted = planned(source, [0, 22, 30], [19, 29, 39])
    calls: list[Any] = []

    def noting(source: SourceFile, first: int, last: int) -> Any:
        calls.append(first)
        return plan_mini_mp4(source, first, last)

    monkeypatch.setattr(sizes_module, "plan_mini_mp4", noting)
    assert at_once(source, [0, 22, 30], [19, 29, 39]) == wanted
    assert calls == [0]


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("durations", 1 << 32),
        ("sizes", 1 << 32),
        ("composition_offsets", 1 << 30),
        ("composition_offsets", -(1 << 63)),
    ],
)
def test_numbers_that_no_box_can_hold_are_refused_as_by_the_plan(column: str, values: int) -> None:
    source = make_source(1, 30)
    numbers = getattr(source.samples, column)[:].copy()
    numbers[20] = values
    table = dataclasses.replace(source.samples, **{column: numbers})
    source = dataclasses.replace(source, samples=table)
    # Only the spans themselves matter, not what lies between them.
    assert isinstance(planned(source, [0, 22], [18, 29]), list)
    assert at_once(source, [0, 22], [18, 29]) == planned(source, [0, 22], [18, 29])
    error = planned(source, [0, 15], [18, 29])
    assert isinstance(error, str)
    assert error.startswith("Mp4FormatError")
    assert at_once(source, [0, 15], [18, 29]) == error


def test_a_header_that_no_box_can_hold_is_refused_as_by_the_plan() -> None:
    source = make_source(1, 30)
    source = dataclasses.replace(source, header=dataclasses.replace(source.header, width=1 << 16))
    error = planned(source, [0], [9])
    assert isinstance(error, str)
    assert at_once(source, [0], [9]) == error


@pytest.mark.parametrize(("first", "last"), [(-1, 2), (3, 2), (0, 30)])
def test_spans_outside_the_file_are_refused(first: int, last: int) -> None:
    source = make_source(1, 30)
    with pytest.raises(ValueError, match=r"a\.mp4"):
        mini_mp4_sizes(source, np.array([0, first]), np.array([9, last]))


@pytest.mark.parametrize("ticks", [1 << 27, 1 << 28, 1 << 31, (1 << 32) - 1])
def test_wide_times_and_edits(ticks: int) -> None:
    source = make_source(1, 40, composition="b-frames")
    for composition in (source.samples.composition_offsets[:], np.full(40, 1 << 29)):
        table = dataclasses.replace(
            source.samples, durations=np.full(40, ticks), composition_offsets=composition
        )
        changed = dataclasses.replace(source, samples=table)
        firsts, lasts = [0, 0, 0, 5, 39], [0, 3, 39, 20, 39]
        assert at_once(changed, firsts, lasts) == planned(changed, firsts, lasts)


@pytest.mark.parametrize("boundary", [1 << 31, (1 << 32) - 1])
@pytest.mark.parametrize("composition", [(0, 0), (0, 700), (700, 0), (0, -700), (-700, 0), (-700, 700)])
def test_numbers_at_the_limits_of_32_bits(boundary: int, composition: tuple[int, int]) -> None:
    source = make_source(1, 8)
    shifts = np.array([composition[0], *[composition[1]] * 7])
    for total in {boundary + near + shift for near in (-1, 0, 1) for shift in (-1400, -700, 0, 700, 1400)}:
        durations = np.full(8, total // 8)
        durations[0] += total % 8
        table = dataclasses.replace(source.samples, durations=durations, composition_offsets=shifts)
        changed = dataclasses.replace(source, samples=table)
        assert at_once(changed, [0, 0], [7, 6]) == planned(changed, [0, 0], [7, 6])


def test_payloads_over_4_gib() -> None:
    source = make_source(1, 60)
    sizes = np.full(60, 200_000_000)
    table = dataclasses.replace(source.samples, sizes=sizes, offsets=np.cumsum(sizes) - sizes)
    source = dataclasses.replace(source, samples=table)
    firsts, lasts = [0] * 60, list(range(60))
    assert at_once(source, firsts, lasts) == planned(source, firsts, lasts)


def test_no_spans() -> None:
    assert at_once(make_source(1, 30), [], []) == []
