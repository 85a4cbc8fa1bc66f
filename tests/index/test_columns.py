from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lerobot_streaming.index import SampleTable
from lerobot_streaming.index.columns import (
    ConstantColumn,
    DenseColumn,
    OffsetColumn,
    TimeColumn,
    search_sorted,
)
from lerobot_streaming.index.time_columns import DurationColumn, SecondsColumn, TickColumn
from tests.index.random_tables import assert_equal, encoded, make_source, mapped, source_files
from tests.index.videos import EDITED, LIBAV_FORMS, index, video

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lerobot_streaming.index import SourceFile


@settings(max_examples=300, deadline=None)
@given(source_files())
def test_derived_tables_equal_the_stored_ones(source: SourceFile) -> None:
    assert_equal(mapped(source), source)


@settings(max_examples=150, deadline=None)
@given(source_files(), st.data())
def test_columns_answer_keys_as_arrays_do(source: SourceFile, data: st.DataObject) -> None:
    columns = mapped(source).samples
    bound = st.none() | st.integers(-800, 800)
    for name in SampleTable.__slots__:
        array, column = getattr(source.samples, name), getattr(columns, name)
        n = len(array)
        assert len(column) == n
        key = slice(data.draw(bound), data.draw(bound), data.draw(st.sampled_from([None, 1, 2, -1, -3])))
        _same(column[key], array[key])
        if n:
            numbers = data.draw(st.lists(st.integers(-n, n - 1), max_size=9))
            _same(column[np.array(numbers, np.int64)], array[np.array(numbers, np.int64)])
            _same(column[np.array(numbers, np.int16)], array[np.array(numbers, np.int64)])
        for outside in (n, -n - 1):
            with pytest.raises(IndexError):
                column[np.array([outside])]


def _same(found: NDArray[Any], wanted: NDArray[Any]) -> None:
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    assert found.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("name", [*LIBAV_FORMS, *EDITED])
def test_tables_of_real_files_are_derived(name: str) -> None:
    source = index(EDITED[name]() if name in EDITED else video(name))
    found = mapped(source)
    assert_equal(found, source)
    # Every form that read_mp4 accepts has times that follow from its ticks.
    assert isinstance(found.samples.pts_seconds, TimeColumn)
    assert isinstance(found.samples.pts_seconds._times, SecondsColumn)


@pytest.mark.parametrize("times", ["edit in ticks", "edit in movie ticks", "edit in seconds"])
@pytest.mark.parametrize("durations", ["constant", "other last", "jitter", "bursts", "leap"])
@pytest.mark.parametrize("composition", ["zero", "b-frames"])
def test_the_usual_ways_to_write_times_are_recognised(times: str, durations: str, composition: str) -> None:
    missed = 0
    for seed in range(30):
        source = make_source(seed, 400, durations=durations, composition=composition, times=times)
        found = mapped(source)
        assert_equal(found, source)
        pts = found.samples.pts_seconds
        assert isinstance(pts, TimeColumn)
        missed += isinstance(pts._times, DenseColumn)
    # How a shift in seconds was rounded cannot always be told; then the times are stored.
    assert missed <= (10 if times == "edit in seconds" else 0)


def test_the_forms_are_those_that_are_meant() -> None:
    samples = mapped(make_source(1, 10_000, sizes="medium", sync="every")).samples
    assert isinstance(samples.durations, DurationColumn)
    assert samples.durations.constant is not None
    assert isinstance(samples.composition_offsets, ConstantColumn)
    assert isinstance(samples.sizes, DenseColumn)
    assert samples.sizes.stored.dtype == np.uint16
    assert isinstance(samples.offsets, OffsetColumn)
    assert isinstance(samples.sync_samples, DenseColumn)
    assert samples.sync_samples.stored.dtype == np.uint16
    other = mapped(make_source(1, 700, durations="other last")).samples.durations
    assert isinstance(other, DurationColumn)
    assert other.constant is None
    assert other.ticks.residual is None
    jitter = mapped(make_source(1, 200, durations="jitter")).samples.durations
    assert isinstance(jitter, DurationColumn)
    assert jitter.ticks.residual is not None
    assert jitter.ticks.residual.itemsize == 1
    bursts = mapped(make_source(1, 700, durations="bursts")).samples.durations
    assert isinstance(bursts, DurationColumn)
    assert bursts.ticks.residual is not None
    assert bursts.ticks.residual.itemsize == 1
    assert isinstance(mapped(make_source(1, 200, sizes="constant")).samples.sizes, ConstantColumn)
    assert isinstance(mapped(make_source(1, 200, offsets="shuffled")).samples.offsets, DenseColumn)
    assert isinstance(mapped(make_source(1, 200, durations="huge")).samples.durations, DenseColumn)


def test_an_ordinary_file_of_10000_samples_takes_less_than_8_bytes_a_frame() -> None:
    # As lerobot's default encoder makes them: a constant rate, a sync sample every other frame.
    n = 10_000
    for sizes, most in (("medium", 3.2), ("large", 8.0)):
        source = make_source(3, n, sizes=sizes, sync="none")
        sizes_4 = np.minimum(source.samples.sizes[:], 300_000)  # Larger than 16 bits, as at high resolution.
        table = SampleTable(
            source.samples.pts_seconds,
            source.samples.durations,
            source.samples.composition_offsets,
            sizes_4,
            np.cumsum(sizes_4) - sizes_4 + 48,
            np.arange(0, n, 2),
        )
        source = type(source)("a", source.size, source.header, table)
        assert_equal(mapped(source), source)
        record, data = encoded(source)
        assert len(data) / n < most
        assert (len(data) + record.nbytes) / n < 8


def test_a_whole_column_can_be_an_array() -> None:
    column = mapped(make_source(1, 50)).samples.sizes
    assert np.asarray(column).dtype == np.int64
    assert np.asarray(column, np.int32).tolist() == column[:].tolist()
    assert np.array(column, copy=True).flags.writeable
    with pytest.raises(ValueError, match="copy"):
        np.asarray(column, copy=False)
    with pytest.raises(IndexError, match="integers"):
        column[np.array([0.5])]


def test_scattered_offsets_of_a_long_file_need_no_long_sums() -> None:
    source = make_source(5, 60_000, offsets="contiguous")
    column, array = mapped(source).samples.offsets, source.samples.offsets
    assert isinstance(column, OffsetColumn)
    touched: list[int] = []

    class Noting(TickColumn):
        def _at(self, index: NDArray[np.int64]) -> NDArray[np.int64]:
            touched.append(index.size)
            return source.samples.sizes[index]

    numbers = np.random.default_rng(0).permutation(60_000)[:40]
    noting = OffsetColumn(Noting(0, None, 60_000), column._positions, column._offsets)
    assert (noting[numbers] == array[numbers]).all()
    assert sum(touched) < 40 * 128
    _same(column[numbers.reshape(8, 5)], array[:][numbers.reshape(8, 5)])


@given(st.lists(st.integers(0, 70_000), max_size=30), st.lists(st.integers(0, 70_000)), st.booleans())
def test_search_sorted_is_numpys(stored: list[int], values: list[int], right: bool) -> None:
    stored.sort()
    needles = np.array([*values, 65_535, 65_536, 255, 256], np.int64)
    side: Any = "right" if right else "left"
    for dtype in (np.int64, np.uint32, np.uint16, np.uint8):
        array = np.array([k for k in stored if k <= np.iinfo(dtype).max], dtype)
        wanted = np.searchsorted(array.astype(np.int64), needles, side)
        for column in (array, DenseColumn(array, np.int64), TickColumn(0, array, len(array))):
            assert search_sorted(column, needles, side).tolist() == wanted.tolist()


def test_looking_up_a_few_entries_keeps_nothing_of_the_columns_size() -> None:
    samples = mapped(make_source(1, 50_000, composition="b-frames", offsets="gaps")).samples
    before = {name: _own_bytes(getattr(samples, name)) for name in SampleTable.__slots__}
    for name in SampleTable.__slots__:
        getattr(samples, name)[:]
    assert {name: _own_bytes(getattr(samples, name)) for name in SampleTable.__slots__} == before
    assert max(before.values()) == 0


def _own_bytes(column: Any, depth: int = 0) -> int:
    """Bytes of arrays below a column that are not views of the stored data."""
    if isinstance(column, np.ndarray):
        return column.nbytes if column.flags.owndata else 0
    if depth > 4 or not hasattr(column, "__dict__"):
        return 0
    return sum(_own_bytes(value, depth + 1) for value in vars(column).values())
