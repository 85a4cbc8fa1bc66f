"""The span look-ups on plain arrays, one step after the other: what `FrameIndex` must give on any columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lerobot_streaming.index import SampleTable


class ReferenceFrameIndex:
    def __init__(self, samples: SampleTable) -> None:
        self.pts = np.asarray(samples.pts_seconds[:])
        self.order = np.argsort(self.pts, kind="stable")
        self.shown = self.pts[self.order]
        self.sync = np.asarray(samples.sync_samples[:])

    def sample_at(self, times: NDArray[np.float64]) -> NDArray[np.int64]:
        shown = self.shown
        right = np.clip(np.searchsorted(shown, times), 1, max(len(shown) - 1, 1))
        right = np.minimum(right, len(shown) - 1)
        left = np.maximum(right - 1, 0)
        nearest = np.where(np.abs(times - shown[left]) <= np.abs(times - shown[right]), left, right)
        found: NDArray[np.int64] = self.order[np.searchsorted(shown, shown[nearest])]
        return found

    def sync_for(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.array([self._sync_of(int(sample)) for sample in samples], np.int64)

    def _sync_of(self, sample: int) -> int:
        before = self.sync[self.sync <= sample]
        if len(before) == 0:
            return 0
        fit = before[self.pts[before] <= self.pts[sample]]
        return int(fit[-1] if len(fit) else before[0])

    def decode_span(self, samples: NDArray[np.int64]) -> tuple[int, int]:
        return int(self.sync_for(samples).min()), int(samples.max())
