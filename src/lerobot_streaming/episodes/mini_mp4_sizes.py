"""Exact sizes of many mini-MP4s of one file at once, without planning each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lerobot_streaming.episodes.mini_mp4 import plan_mini_mp4
from lerobot_streaming.index.columns import search_sorted
from lerobot_streaming.index.moov_writer import (
    MAX_SAMPLE_VALUES,
    WIDE_EDIT,
    WIDE_OFFSETS,
    WIDE_TIMES,
    fits_boxes,
    header_bytes,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lerobot_streaming.index.tables import SourceFile


def mini_mp4_sizes(
    source: SourceFile, firsts: NDArray[np.int64], lasts: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Computes `plan_mini_mp4(source, first, last).size_bytes` for many spans.

    A few passes over the part of the file that the spans cover, whatever their number. Files of several
    sample entries, and spans whose samples overlap or do not ascend in the file, are planned one by one.

    Args:
        source: The indexed file.
        firsts: int64 (e). First sample of each span, decode order, inclusive.
        lasts: int64 (e). Last sample of each span, decode order, inclusive.

    Returns:
        int64 (e), bytes.

    Raises:
        ValueError: A span is empty or outside the file's samples.
        Mp4FormatError: A number of the source does not fit an MP4 box.
    """
    firsts, lasts = np.asarray(firsts, np.int64), np.asarray(lasts, np.int64)
    if len(firsts) == 0:
        return np.empty(0, np.int64)
    inside = ((firsts >= 0) & (firsts <= lasts) & (lasts < source.samples.num_samples)).all()
    if not inside or source.description_index is not None or not fits_boxes(source.header):
        return _one_by_one(source, firsts, lasts)
    start, stop = int(firsts.min()), int(lasts.max()) + 1
    spans = _Spans(firsts - start, lasts - start)
    part = slice(start, stop)
    sizes, durations = source.samples.sizes[part], source.samples.durations[part]
    composition, offsets = source.samples.composition_offsets[part], source.samples.offsets[part]
    if not _fit(sizes, durations, composition):
        return _one_by_one(source, firsts, lasts)

    payload = spans.sums(sizes)
    # Decode time of each sample, and the bounds of what is presented, from the part's first sample on.
    ticks = np.cumsum(durations) - durations
    shown = ticks + composition
    begin = ticks[spans.firsts]
    # A presentation cannot start before the media does: such a one is moved as a whole.
    lowest = np.minimum(spans.least(shown) - begin, 0)
    media_time = composition[spans.firsts] - lowest
    presented = np.maximum(spans.most(shown + durations) - begin - composition[spans.firsts], 1)
    duration = spans.sums(durations)
    composition_runs = spans.runs(composition)
    # After the move all offsets may be 0; then there is no table of them.
    composition_runs[(composition_runs == 1) & (media_time == 0)] = 0
    sync = source.samples.sync_samples
    counts = search_sorted(sync, lasts + 1) - search_sorted(sync, firsts)
    one = np.ones_like(firsts)
    result: NDArray[np.int64] = payload + header_bytes(
        source.header,
        samples=lasts - firsts + 1,
        time_runs=spans.runs(durations),
        composition_runs=composition_runs,
        sync_samples=counts,
        # Samples that ascend without overlap are stored one behind the other: a single chunk.
        chunk_rows=one,
        chunks=one,
        has_edit=(media_time != 0).astype(np.int64),
        wide_edit=(np.maximum(presented, media_time) >= WIDE_EDIT).astype(np.int64),
        wide_times=(np.maximum(duration, presented) >= WIDE_TIMES).astype(np.int64),
        wide_offsets=(payload >= WIDE_OFFSETS).astype(np.int64),
    )
    strange = spans.changes(offsets[1:] < offsets[:-1] + sizes[:-1]) > 0
    if strange.any():
        result[strange] = _one_by_one(source, firsts[strange], lasts[strange])
    return result


class _Spans:
    """Reductions over many runs of samples, first and last inclusive."""

    def __init__(self, firsts: NDArray[np.int64], lasts: NDArray[np.int64]) -> None:
        self.firsts = firsts
        self.lasts = lasts
        # For reduceat, which reduces from each place to before the next one: sorted, so that the parts
        # between the spans, which are reduced for nothing, are short.
        self._order = np.argsort(firsts, kind="stable")
        self._bounds = np.stack((firsts, lasts + 1), axis=1)[self._order].reshape(-1)

    def sums(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """The sum over each span."""
        upto = np.cumsum(values)
        total: NDArray[np.int64] = upto[self.lasts] - upto[self.firsts] + values[self.firsts]
        return total

    def changes(self, changed: NDArray[np.bool_]) -> NDArray[np.int64]:
        """How often, in each span, sample k + 1 is marked in `changed[k]`."""
        before: NDArray[np.int64] = np.zeros(len(changed) + 1, np.int64)
        np.cumsum(changed, out=before[1:])
        count: NDArray[np.int64] = before[self.lasts] - before[self.firsts]
        return count

    def runs(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Runs of equal values in each span."""
        return self.changes(values[1:] != values[:-1]) + 1

    def least(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """The smallest value of each span."""
        return self._reduce(np.minimum, values)

    def most(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """The largest value of each span."""
        return self._reduce(np.maximum, values)

    def _reduce(self, function: np.ufunc, values: NDArray[np.int64]) -> NDArray[np.int64]:
        # One more entry, because a span may end behind the last one.
        reduced = function.reduceat(np.append(values, 0), self._bounds)[::2]
        result = np.empty_like(self.firsts)
        result[self._order] = reduced
        return result


def _fit(sizes: NDArray[np.int64], durations: NDArray[np.int64], composition: NDArray[np.int64]) -> bool:
    """Tells whether all numbers fit the boxes; then no sum of them overflows either."""
    columns = {"size": sizes, "duration": durations, "composition offset": np.abs(composition)}
    return all(
        int(values.min()) >= 0 and int(values.max()) <= MAX_SAMPLE_VALUES[name]
        for name, values in columns.items()
    )


def _one_by_one(source: SourceFile, firsts: NDArray[np.int64], lasts: NDArray[np.int64]) -> NDArray[np.int64]:
    pairs = zip(firsts.tolist(), lasts.tolist(), strict=True)
    return np.array([plan_mini_mp4(source, first, last).size_bytes for first, last in pairs], np.int64)
