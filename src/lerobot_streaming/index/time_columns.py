"""Columns of times: durations and presentation times that follow from a rate and what differs from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lerobot_streaming.index.columns import ComputedColumn, ConstantColumn

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lerobot_streaming.index.columns import Column


class TickColumn(ComputedColumn[np.int64]):
    """Decode times in media ticks: a constant rate, plus what each sample differs from it."""

    def __init__(self, slope: int, residual: NDArray[Any] | None, length: int) -> None:
        """Keeps the rate.

        Args:
            slope: Ticks from one sample to the next.
            residual: (n). Integers that are added, or None when the rate is constant.
            length: Number of samples, n.
        """
        super().__init__(length)
        self.slope = slope
        self.residual = residual

    def _range(self, start: int, stop: int) -> NDArray[np.int64]:
        ticks = np.arange(start, stop, dtype=np.int64) * self.slope
        return ticks if self.residual is None else ticks + self.residual[start:stop]

    def _at(self, index: NDArray[np.int64]) -> NDArray[np.int64]:
        ticks = index * self.slope
        return ticks if self.residual is None else ticks + self.residual[index]


class DurationColumn(ComputedColumn[np.int64]):
    """Durations as the distances of decode times; the last one is kept apart."""

    def __init__(self, ticks: TickColumn, last: int) -> None:
        """Keeps the decode times.

        Args:
            ticks: Decode times.
            last: Duration of the last sample, which no distance tells.
        """
        super().__init__(len(ticks))
        self.ticks = ticks
        self.last = last

    @property
    def constant(self) -> int | None:
        """The duration that all samples have, or None when they differ."""
        same = self.ticks.residual is None and (self.ticks.slope == self.last or self._length == 1)
        return self.last if same else None

    def _range(self, start: int, stop: int) -> NDArray[np.int64]:
        if self.ticks.residual is None:
            durations = np.full(stop - start, self.ticks.slope, np.int64)
        else:
            durations = np.empty(stop - start, np.int64)
            distances = np.diff(self.ticks[start : min(stop + 1, self._length)])
            durations[: len(distances)] = distances[: stop - start]
        if start < stop == self._length:
            durations[-1] = self.last
        return durations

    def _at(self, index: NDArray[np.int64]) -> NDArray[np.int64]:
        if self.ticks.residual is None:
            durations = np.full(index.shape, self.ticks.slope, np.int64)
        else:
            durations = self.ticks[np.minimum(index + 1, self._length - 1)] - self.ticks[index]
        return np.where(index == self._length - 1, self.last, durations)


class SecondsColumn(ComputedColumn[np.float64]):
    """Presentation times from ticks: `((ticks + composition) * scale + shift) / divisor + edit`.

    Whole numbers are added first and divided once, so the result is the float64 that a writer got who did the
    same; `edit` is for writers who add the edit list's seconds afterwards.
    """

    def __init__(
        self,
        ticks: TickColumn,
        composition: Column[np.int64],
        *,
        scale: int,
        shift: int,
        divisor: int,
        edit: float,
    ) -> None:
        """Keeps the parts.

        Args:
            ticks: Decode times.
            composition: Composition offsets in ticks.
            scale: Factor of the ticks.
            shift: Added to the scaled ticks.
            divisor: Scaled ticks per second, above 0.
            edit: Seconds that are added at the end.
        """
        super().__init__(len(ticks))
        self._ticks = ticks
        self._composition = None if isinstance(composition, ConstantColumn) else composition
        self._scale = scale
        self._shift = shift + (composition.value * scale if isinstance(composition, ConstantColumn) else 0)
        self._divisor = divisor
        self._edit = edit

    def _range(self, start: int, stop: int) -> NDArray[np.float64]:
        ticks = self._ticks[start:stop]
        return self._seconds(
            ticks if self._composition is None else ticks + self._composition[start:stop],
        )

    def _at(self, index: NDArray[np.int64]) -> NDArray[np.float64]:
        ticks = self._ticks[index]
        return self._seconds(ticks if self._composition is None else ticks + self._composition[index])

    def _seconds(self, ticks: NDArray[np.int64]) -> NDArray[np.float64]:
        seconds: NDArray[np.float64] = (ticks * self._scale + self._shift) / self._divisor
        return seconds + self._edit if self._edit else seconds
