"""Columns of a sample table: plain arrays, or compact forms that compute their values when asked.

Every form gives exactly the numbers that the dense array would hold. Slices and index arrays cost what they
give back; no form ever keeps a whole column.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_COMPACT_SPAN = 4096
"""Scattered look-ups that lie within so many samples are cheaper as one slice."""


class Column[T: np.generic](Protocol):
    """What a sample table needs of a column; a 1-D NumPy array is one."""

    def __len__(self) -> int:
        """Number of entries."""
        ...

    def __getitem__(self, key: slice | NDArray[np.int64], /) -> NDArray[T]:
        """Gives some entries.

        Args:
            key: A slice, or entry numbers in any order.

        Returns:
            The entries; fresh, or a view that must not be written.
        """
        ...


class ComputedColumn[T: np.generic](ABC):
    """Base of the compact forms: turns keys into ranges and checked entry numbers."""

    def __init__(self, length: int) -> None:
        """Keeps the length.

        Args:
            length: Number of entries.
        """
        self._length = length

    def __len__(self) -> int:
        """Number of entries."""
        return self._length

    def __getitem__(self, key: slice | NDArray[np.int64], /) -> NDArray[T]:
        """Gives some entries, as indexing an array does.

        Args:
            key: A slice, or an array of integers; negative ones count from the end.

        Returns:
            The entries.

        Raises:
            IndexError: An entry is outside the column, or the key does not consist of integers.
        """
        if isinstance(key, slice):
            start, stop, step = key.indices(self._length)
            if step != 1:
                return self._at(np.arange(start, stop, step, dtype=np.int64))
            return self._range(start, max(start, stop))
        return self._at(self._checked(key))

    def __array__(self, dtype: Any = None, *, copy: bool | None = None) -> NDArray[Any]:
        """Gives the whole column, for NumPy.

        Args:
            dtype: Wanted type; None: the column's own.
            copy: As in `numpy.asarray`.

        Returns:
            A fresh array, or a view that must not be written.

        Raises:
            ValueError: `copy` is False, which a computed column cannot promise.
        """
        if copy is False:
            raise ValueError("a computed column has no array of its own to share; allow a copy")
        return np.array(self[:], dtype) if copy else np.asarray(self[:], dtype)

    def _checked(self, key: Any) -> NDArray[np.int64]:
        index = np.asarray(key)
        if index.dtype.kind not in "iu" and index.size:
            raise IndexError(f"a column is indexed by integers, not by {index.dtype}")
        index = index.astype(np.int64, copy=False)
        if index.size:
            low, high = int(index.min()), int(index.max())
            if low < -self._length or high >= self._length:
                raise IndexError(f"entries {low}..{high} are not all inside the {self._length} of the column")
            if low < 0:
                index = np.where(index < 0, index + self._length, index)
        return index

    @abstractmethod
    def _range(self, start: int, stop: int) -> NDArray[T]:
        """Gives the entries from `start` to before `stop`; both are inside the column."""

    @abstractmethod
    def _at(self, index: NDArray[np.int64]) -> NDArray[T]:
        """Gives entries by number; all are inside the column."""


class ConstantColumn(ComputedColumn[np.int64]):
    """One integer, many times."""

    def __init__(self, value: int, length: int) -> None:
        """Keeps the number.

        Args:
            value: The number.
            length: Number of entries.
        """
        super().__init__(length)
        self.value = value

    def _range(self, start: int, stop: int) -> NDArray[np.int64]:
        return np.full(stop - start, self.value, np.int64)

    def _at(self, index: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.full(index.shape, self.value, np.int64)


class DenseColumn[T: np.generic](ComputedColumn[T]):
    """Every entry, stored in a smaller type than it is given in."""

    def __init__(self, stored: NDArray[Any], dtype: type[T]) -> None:
        """Keeps the array.

        Args:
            stored: (n). Integers or float64.
            dtype: Type in which entries are given.
        """
        super().__init__(len(stored))
        self.stored = stored
        self._dtype = np.dtype(dtype)

    def _range(self, start: int, stop: int) -> NDArray[T]:
        return self.stored[start:stop].astype(self._dtype, copy=False)

    def _at(self, index: NDArray[np.int64]) -> NDArray[T]:
        return self.stored[index].astype(self._dtype, copy=False)


class OffsetColumn(ComputedColumn[np.int64]):
    """Byte offsets as running sums of the sizes, from anchors on.

    An anchor is a sample whose offset is stored: one every so often, so that sums stay short, and each sample
    that does not lie directly behind the one before it.
    """

    def __init__(self, sizes: Column[np.int64], positions: NDArray[Any], offsets: NDArray[Any]) -> None:
        """Keeps the anchors.

        Args:
            sizes: Sizes of the samples.
            positions: (a). Integers: sample number of each anchor, ascending, the first is 0.
            offsets: (a). Integers: byte offset of each anchor.
        """
        super().__init__(len(sizes))
        self._sizes = sizes
        self._positions = positions
        self._offsets = offsets

    def _anchor_before(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        return search_sorted(self._positions, samples, "right") - 1

    def _range(self, start: int, stop: int) -> NDArray[np.int64]:
        if start == stop:
            return np.empty(0, np.int64)
        first, last = self._anchor_before(np.array((start, stop - 1))).tolist()
        positions = self._positions[first : last + 1].astype(np.int64)
        origin = int(positions[0])
        sizes = self._sizes[origin:stop]
        before = np.cumsum(sizes) - sizes
        places = positions - origin
        shifts = self._offsets[first : last + 1].astype(np.int64) - before[places]
        offsets: NDArray[np.int64] = before + np.repeat(shifts, np.diff(places, append=len(sizes)))
        return offsets[start - origin :]

    def _at(self, index: NDArray[np.int64]) -> NDArray[np.int64]:
        if index.size == 0:
            return np.empty(index.shape, np.int64)
        low, high = int(index.min()), int(index.max())
        if high - low <= max(_COMPACT_SPAN, 4 * index.size):
            return self._range(low, high + 1)[index - low]
        flat = index.ravel()
        anchors = self._anchor_before(flat)
        origins = self._positions[anchors].astype(np.int64)
        # The samples from each anchor to before the wanted one, one list after the other.
        lengths = flat - origins
        ends = np.cumsum(lengths)
        members = np.arange(int(ends[-1])) + np.repeat(origins - (ends - lengths), lengths)
        sums = np.concatenate((np.zeros(1, np.int64), np.cumsum(self._sizes[members])))
        offsets: NDArray[np.int64] = self._offsets[anchors].astype(np.int64)
        offsets += sums[ends] - sums[ends - lengths]
        return offsets.reshape(index.shape)


class TimeColumn(ComputedColumn[np.float64]):
    """Presentation times whose order is already known, so that nobody has to look for it again."""

    def __init__(self, times: Column[np.float64], order: Column[np.int64] | None) -> None:
        """Joins times and order.

        Args:
            times: float64 (n). Seconds, in decode order.
            order: int64 (n). The stable sort of the times, or None when they never decrease.
        """
        super().__init__(len(times))
        self._times = times
        self.order = order

    def _range(self, start: int, stop: int) -> NDArray[np.float64]:
        return self._times[start:stop]

    def _at(self, index: NDArray[np.int64]) -> NDArray[np.float64]:
        return self._times[index]


class OrderedColumn[T: np.generic](ComputedColumn[T]):
    """Another column in another order."""

    def __init__(self, column: Column[T], order: Column[np.int64]) -> None:
        """Joins column and order.

        Args:
            column: The column.
            order: Entry of `column` that stands at each place.
        """
        super().__init__(len(order))
        self._column = column
        self._order = order

    def _range(self, start: int, stop: int) -> NDArray[T]:
        return self._column[self._order[start:stop]]

    def _at(self, index: NDArray[np.int64]) -> NDArray[T]:
        return self._column[self._order[index]]


def search_sorted(
    column: Column[np.int64] | NDArray[Any], values: NDArray[np.int64], side: Any = "left"
) -> NDArray[np.int64]:
    """Does `numpy.searchsorted` on ascending integers without converting them to the type of the values.

    Args:
        column: Ascending integers.
        values: int64 (m), at least 0.
        side: `left` or `right`.

    Returns:
        int64 (m), places.
    """
    stored = column.stored if isinstance(column, DenseColumn) else column
    if not isinstance(stored, np.ndarray):
        stored = stored[:]
    if stored.dtype.kind in "iu" and stored.dtype != np.int64:
        # NumPy would convert the whole column first.
        limit = int(np.iinfo(stored.dtype).max)
        places = np.searchsorted(stored, np.minimum(values, limit).astype(stored.dtype), side)
        return np.where(values > limit, len(stored), places).astype(np.int64, copy=False)
    return np.asarray(np.searchsorted(stored, values, side), np.int64)
