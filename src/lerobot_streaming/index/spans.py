"""From wanted presentation times to the samples that must be fetched and decoded for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lerobot_streaming.index.tables import SampleTable

_SYNC_STEPS = 4


class FrameIndex:
    """Look-ups on one file's sample table, by presentation time and by decode dependency.

    Built once per file in linear time for files whose samples already lie in presentation order, with one
    sort otherwise. Immutable afterwards, so threads may share it.
    """

    def __init__(self, samples: SampleTable) -> None:
        """Prepares the look-ups.

        Args:
            samples: A valid sample table with at least one sample.
        """
        pts = samples.pts_seconds
        self._pts = pts
        self._order: NDArray[np.int64] | None = None
        self._sorted = pts
        if len(pts) > 1 and not (pts[1:] >= pts[:-1]).all():
            self._order = np.argsort(pts, kind="stable")
            self._sorted = pts[self._order]
        self._sync = samples.sync_samples
        self._sync_pts = pts[self._sync]

    @property
    def num_samples(self) -> int:
        """Number of samples."""
        return len(self._pts)

    @property
    def first_pts_seconds(self) -> float:
        """Earliest presentation time in seconds."""
        return float(self._sorted[0])

    @property
    def last_pts_seconds(self) -> float:
        """Latest presentation time in seconds: a wanted time far beyond it is beyond the end of the file."""
        return float(self._sorted[-1])

    def sample_at(self, times: NDArray[np.float64]) -> NDArray[np.int64]:
        """Finds the samples that are presented nearest to given times.

        Args:
            times: float64 (m), seconds on the file's presentation time line; finite.

        Returns:
            int64 (m), decode-order sample numbers. Of two equally near samples the earlier one, as `argmin`
            over the samples in presentation order gives it. How near is near enough is the caller's to check.
        """
        times = np.asarray(times, np.float64)
        shown = self._sorted
        right = np.clip(np.searchsorted(shown, times), 1, max(len(shown) - 1, 1))
        right = np.minimum(right, len(shown) - 1)
        left = np.maximum(right - 1, 0)
        nearest = np.where(np.abs(times - shown[left]) <= np.abs(times - shown[right]), left, right)
        # Of samples with the same time the first.
        nearest = np.searchsorted(shown, shown[nearest])
        result = nearest if self._order is None else self._order[nearest]
        return np.asarray(result, np.int64)

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
        wanted = self._pts[samples]
        place = np.searchsorted(self._sync, samples, side="right") - 1
        for _ in range(_SYNC_STEPS):
            late = (place > 0) & (self._sync_pts[place] > wanted)
            if not late.any():
                break
            place = place - late
        else:
            # Real files need one step. What is left is a strange file: find each of these in one pass.
            for k in np.flatnonzero((place > 0) & (self._sync_pts[place] > wanted)):
                fit = np.flatnonzero(self._sync_pts[: place[k] + 1] <= wanted[k])
                place[k] = fit[-1] if len(fit) else 0
        return np.where(place < 0, 0, np.minimum(self._sync[place], samples))

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
