"""From wanted presentation times to the samples that must be fetched and decoded for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lerobot_streaming.index.columns import OrderedColumn, TimeColumn, search_sorted

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lerobot_streaming.index.columns import Column
    from lerobot_streaming.index.tables import SampleTable

_SYNC_STEPS = 4
_STRIDE = 128
"""Of a column that is not an array, every so many-th time is kept, to find the part that is needed."""
_WINDOW = 65536
"""Largest part of such a column, in samples, that is computed for scattered times (512 KiB for a moment)."""


def presentation_order(pts: NDArray[np.float64]) -> NDArray[np.int64] | None:
    """Finds the order in which samples are presented.

    Args:
        pts: float64 (n). Presentation times in decode order, seconds.

    Returns:
        int64 (n), the stable sort; None when the samples are already in order.
    """
    if len(pts) > 1 and not (pts[1:] >= pts[:-1]).all():
        return np.argsort(pts, kind="stable")
    return None


class _ShownTimes:
    """Ascending presentation times, searched without ever holding all of them unless they are an array."""

    def __init__(self, shown: Column[np.float64]) -> None:
        self._shown = shown
        self._array = shown if isinstance(shown, np.ndarray) else None
        self._coarse = shown[np.arange(0, len(shown), _STRIDE, dtype=np.int64)]

    def at(self, place: int) -> float:
        """The time at one place."""
        return float(self._shown[place : place + 1][0])

    def nearest(self, times: NDArray[np.float64]) -> NDArray[np.int64]:
        """The place nearest to each time; of equally near ones the earlier, of equal ones the first."""
        count = len(self._shown)
        start, part = self._window(times)
        window: Column[np.float64] = self._shown if part is None else part
        right = self._search(times) if part is None else np.searchsorted(part, times) + start
        right = np.minimum(np.clip(right, 1, max(count - 1, 1)), count - 1)
        left = np.maximum(right - 1, 0)
        before, after = window[left - start], window[right - start]
        earlier = np.abs(times - before) <= np.abs(times - after)
        nearest = np.asarray(np.where(earlier, left, right), np.int64)
        found = np.where(earlier, before, after)
        previous = window[np.maximum(nearest - 1, start) - start]
        if ((nearest > start) & (previous == found)).any():
            nearest = self._first_of_equals(start, part, found)
        return np.asarray(nearest, np.int64)

    def _window(self, times: NDArray[np.float64]) -> tuple[int, NDArray[np.float64] | None]:
        """The part of the times that holds the places of all given ones, two before and one behind them.

        None when that would be a large part, most of it for nothing.
        """
        if self._array is not None:
            return 0, self._array
        low, high = np.searchsorted(self._coarse, (times.min(), times.max())).tolist()
        start = max((low - 1) * _STRIDE - 2, 0)
        stop = min(high * _STRIDE + 2, len(self._shown))
        if stop - start > max(_WINDOW, 8 * len(times)):
            return 0, None
        return start, self._shown[start:stop]

    def _first_of_equals(
        self, start: int, part: NDArray[np.float64] | None, found: NDArray[np.float64]
    ) -> NDArray[np.int64]:
        """The first place of each found time, which may lie before the part that was looked at."""
        if part is not None:
            places = np.searchsorted(part, found) + start
            if start == 0 or (places > start).all():
                return places
        return self._search(found)

    def _search(self, times: NDArray[np.float64]) -> NDArray[np.int64]:
        """`numpy.searchsorted` from the left, by bisection for all times at once."""
        if self._array is not None:
            return np.searchsorted(self._array, times)
        # Invariant: everything before `low` is below the wanted time, nothing from `high` on is.
        coarse = np.searchsorted(self._coarse, times)
        low = np.maximum((coarse - 1) * _STRIDE + 1, 0)
        high = np.minimum(coarse * _STRIDE, len(self._shown))
        while True:
            active = low < high
            if not active.any():
                return np.asarray(low, np.int64)
            middle = (low + high) // 2
            below = self._shown[np.minimum(middle, len(self._shown) - 1)] < times
            low = np.where(active & below, middle + 1, low)
            high = np.where(active & ~below, middle, high)


class FrameIndex:
    """Look-ups on one file's sample table, by presentation time and by decode dependency.

    On arrays: built in linear time for files whose samples already lie in presentation order, with one sort
    otherwise. On the columns of a mapped index: built in no time, and nothing of the columns' size is kept.
    Immutable afterwards, so threads may share it.
    """

    def __init__(self, samples: SampleTable) -> None:
        """Prepares the look-ups.

        Args:
            samples: A valid sample table with at least one sample.
        """
        pts = samples.pts_seconds
        self._order: Column[np.int64] | None
        shown: Column[np.float64]
        if isinstance(pts, TimeColumn):
            self._order = pts.order
            shown = pts if self._order is None else OrderedColumn(pts, self._order)
        else:
            pts = np.asarray(pts[:])
            self._order = presentation_order(pts)
            shown = pts if self._order is None else pts[self._order[:]]
        self._pts: Column[np.float64] = pts
        self._shown = _ShownTimes(shown)
        self._sync = samples.sync_samples

    @property
    def num_samples(self) -> int:
        """Number of samples."""
        return len(self._pts)

    @property
    def first_pts_seconds(self) -> float:
        """Earliest presentation time in seconds."""
        return self._shown.at(0)

    @property
    def last_pts_seconds(self) -> float:
        """Latest presentation time in seconds: a wanted time far beyond it is beyond the end of the file."""
        return self._shown.at(len(self._pts) - 1)

    def sample_at(self, times: NDArray[np.float64]) -> NDArray[np.int64]:
        """Finds the samples that are presented nearest to given times.

        Args:
            times: float64 (m), seconds on the file's presentation time line. Not a number counts as late.

        Returns:
            int64 (m), decode-order sample numbers. Of two equally near samples the earlier one, as `argmin`
            over the samples in presentation order gives it. How near is near enough is the caller's to check.
        """
        times = np.asarray(times, np.float64)
        if len(times) == 0:
            return np.empty(0, np.int64)
        if np.isnan(times).any():
            times = np.where(np.isnan(times), np.inf, times)
        places = self._shown.nearest(times)
        return places if self._order is None else self._order[places]

    def sync_for(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Finds the sync samples from which decoding must start to get given samples.

        That is the last sync sample which comes no later in decode order and is presented no later either.
        The second condition is for the leading pictures of an open GOP: they follow their sync sample in
        decode order, but refer to the GOP before it, so decoding starts one sync sample earlier.

        Args:
            samples: int64 (m), decode-order sample numbers.

        Returns:
            int64 (m), decode-order numbers of sync samples. Without a suitable one, the first sync sample, or
            sample 0 when the wanted sample comes before it.
        """
        samples = np.asarray(samples, np.int64)
        if len(self._sync) == 0:
            return np.zeros_like(samples)
        place = search_sorted(self._sync, samples, "right") - 1
        # In presentation order the sync sample before a sample is never presented after it.
        if self._order is not None:
            place = self._not_later(place, self._pts[samples])
        return np.where(place < 0, 0, np.minimum(self._sync[np.maximum(place, 0)], samples))

    def _not_later(self, place: NDArray[np.int64], wanted: NDArray[np.float64]) -> NDArray[np.int64]:
        """Steps back from sync samples that are presented later than wanted."""
        for _ in range(_SYNC_STEPS):
            late = (place > 0) & (self._pts[self._sync[np.maximum(place, 0)]] > wanted)
            if not late.any():
                return place
            place = place - late
        # Real files need one step. What is left is a strange file: find each of these in one pass.
        late = (place > 0) & (self._pts[self._sync[np.maximum(place, 0)]] > wanted)
        for k in np.flatnonzero(late):
            fit = np.flatnonzero(self._pts[self._sync[: place[k] + 1]] <= wanted[k])
            place[k] = fit[-1] if len(fit) else 0
        return place

    def decode_span(self, samples: NDArray[np.int64]) -> tuple[int, int]:
        """Finds the one run of samples that decodes to all of the given samples.

        Args:
            samples: int64 (m), decode-order sample numbers, m >= 1.

        Returns:
            (first, last), both inclusive, decode order: from the earliest sync sample that one of them needs
            to the latest of them. Nothing after it is needed: a sample refers to earlier ones in decode order
            only.
        """
        return int(self.sync_for(samples).min()), int(np.max(samples))

    def decode_spans(
        self, times: NDArray[np.float64], starts: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Finds the spans of many groups of presentation times at once, such as all episodes of a file.

        Args:
            times: float64 (m), seconds; the groups one after the other.
            starts: int64 (e), where each group starts in `times`: group i is
                `times[starts[i]:starts[i + 1]]`, the last one reaches to the end.

        Returns:
            (first int64 (e), last int64 (e)), both inclusive: what `decode_span(sample_at(group))` gives.

        Raises:
            ValueError: A group is empty.
        """
        starts = np.asarray(starts, np.int64)
        if len(starts) == 0:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        empty = np.flatnonzero(np.diff(starts, append=len(times)) <= 0)
        if len(empty) or int(starts[0]) < 0:
            raise ValueError(
                f"group {int(empty[0]) if len(empty) else 0} of {len(starts)} holds no times; starts must "
                f"ascend inside the {len(times)} times"
            )
        samples = self.sample_at(times)
        first = np.minimum.reduceat(self.sync_for(samples), starts)
        return first, np.maximum.reduceat(samples, starts)
