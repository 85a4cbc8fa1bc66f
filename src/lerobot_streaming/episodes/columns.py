"""Parquet columns as the values of map-style items.

LeRobot turns every row into Python numbers and those into tensors, so floats of any width arrive as float32,
integers as int64 and booleans as bool, whatever the declared dtype.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


def _unwrapped(column: pa.ChunkedArray) -> tuple[pa.Array, bool]:
    """A column's innermost values and whether they were nested; raises ValueError where a list is missing."""
    values = column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
    nested = False
    while True:
        if isinstance(values.type, pa.BaseExtensionType):
            values = values.storage
        elif (
            pa.types.is_list(values.type)
            or pa.types.is_large_list(values.type)
            or pa.types.is_fixed_size_list(values.type)
        ):
            nested = True
        else:
            return values, nested
        if isinstance(values, (pa.ListArray, pa.LargeListArray, pa.FixedSizeListArray)):
            if values.null_count:
                raise ValueError("missing list")
            values = values.flatten()


def _item_dtype(declared: str) -> tuple[type[Any], pa.DataType] | None:
    """NumPy and Arrow type of a declared dtype's values in map-style items; None for what is no number."""
    if declared.startswith("float"):
        return np.float32, pa.float64()
    if declared.startswith(("int", "uint")):
        return np.int64, pa.int64()
    return (np.bool_, pa.bool_()) if declared == "bool" else None


def numbers_of(values: pa.Array) -> NDArray[Any]:
    """Gives an Arrow array's values as a NumPy array, without loading pandas where that can be avoided.

    Args:
        values: (n,) of any type.

    Returns:
        What `to_numpy` gives, read-only where it is a view; booleans without missing values as uint8.
    """
    if values.null_count == 0:
        if pa.types.is_boolean(values.type):
            values = values.cast(pa.uint8())
        if pa.types.is_integer(values.type) or pa.types.is_floating(values.type):
            # `to_numpy` imports pandas: half a second before a new worker's first item.
            return np.from_dlpack(values)
    numbers: NDArray[Any] = values.to_numpy(zero_copy_only=False)
    return numbers


def column_array(
    column: pa.ChunkedArray, shape: Sequence[int], declared: str
) -> NDArray[np.float32 | np.int64 | np.bool_] | None:
    """Turns a numeric Parquet column into one array with the dtype of map-style items.

    An array and not a tensor, because items are cut from it one row at a time: small operations of NumPy keep
    the interpreter's lock, and each operation of PyTorch gives it away to another thread.

    Args:
        column: The rows of one feature, plain or nested in lists.
        shape: The feature's declared shape; a plain column is a scalar whatever it says.
        declared: The feature's declared dtype; other numbers in the file are cast to it, as lerobot does.

    Returns:
        Array (n, *shape) of float32, int64 or bool; None when rows are missing, ragged or not numeric.
    """
    try:
        values, nested = _unwrapped(column)
    except ValueError:
        return None
    row_shape = tuple(shape) if nested else ()
    if 0 in row_shape:
        # torch.tensor([]) is float32 whatever the declared dtype, and that is what map-style items hold.
        return np.zeros((len(column), *row_shape), dtype=np.float32)
    kinds = _item_dtype(declared)
    if kinds is None or pa.types.is_null(values.type):
        return None
    dtype, stored = kinds
    if values.null_count or len(values) != len(column) * math.prod(row_shape):
        return None
    with np.errstate(over="ignore"):  # float64 beyond float32 becomes inf, as in torch.tensor(value).
        numbers = numbers_of(values.cast(stored)).astype(dtype)
    array: NDArray[np.float32 | np.int64 | np.bool_] = np.ascontiguousarray(numbers)
    return array.reshape(len(column), *row_shape)


def row_value(value: Any) -> Any:
    """One row's value as map-style items carry it, for columns that are no plain tensor."""
    if value is None or isinstance(value, (str, dict)):
        return value
    return torch.tensor(value)
