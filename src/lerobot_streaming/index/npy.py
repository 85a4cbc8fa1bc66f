"""The NPY form of a sidecar's arrays: plain arrays of 0 or 1 dimensions, read without trust and pickles."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Header of a 0-d or 1-d array, as `numpy.lib.format` writes it.
_HEADER = re.compile(
    rb"\{'descr': '([<>|=][a-zA-Z][0-9]{0,10})', 'fortran_order': (?:True|False), "
    rb"'shape': \((?:([0-9]{1,12}),)?\), ?\}\s*"
)


def dump_array(array: NDArray[Any]) -> memoryview:
    """Gives an array as `numpy.save` writes it.

    Args:
        array: The array; no objects.

    Returns:
        The file's bytes.
    """
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getbuffer()


def text_header(size: int) -> bytes:
    """Gives what `numpy.save` writes before the content of a 0-d array of bytes.

    Args:
        size: Bytes of the content.

    Returns:
        The header; its length is the same for every size.
    """
    buffer = io.BytesIO()
    descr = {"descr": f"|S{size}", "fortran_order": False, "shape": ()}
    np.lib.format.write_array_header_1_0(buffer, descr)  # type: ignore[no-untyped-call]  # It has no types.
    return buffer.getvalue()


def parse_array(data: bytes, dtype: str, *, scalar: bool = False) -> NDArray[np.generic]:
    """Reads an array.

    Args:
        data: The NPY file.
        dtype: Expected NumPy type, such as `<i8`; for text `S`, whatever its length.
        scalar: True: a 0-d array is expected, not a 1-d one.

    Returns:
        The array, read-only.

    Raises:
        ValueError: It is damaged, or of another type or shape; the text is what is wrong.
    """
    if data[:6] != b"\x93NUMPY" or len(data) < 12 or data[6] not in {1, 2}:
        raise ValueError("is not an NPY array")
    start = 10 if data[6] == 1 else 12
    length = int.from_bytes(data[8:start], "little")
    parsed = _HEADER.fullmatch(data[start : start + min(length, 4096)])
    if parsed is None:
        raise ValueError("has an NPY header that is not one of a plain array")
    descr, rows = parsed[1].decode(), parsed[2]
    if (descr[1:2] if dtype == "S" else descr) != dtype or (rows is None) != scalar:
        raise ValueError(f"has type {descr} and shape ({(rows or b'').decode()}), but {dtype} is expected")
    body = memoryview(data)[start + length :]
    count = 1 if rows is None else int(rows)
    descr = f"S{len(body)}" if dtype == "S" else dtype
    if len(body) != count * np.dtype(descr).itemsize or (scalar and not body):
        raise ValueError(f"holds {len(body)} bytes, not those of {count} entries")
    array: NDArray[np.generic] = np.frombuffer(body, descr, count)
    return array.reshape(()) if scalar else array
