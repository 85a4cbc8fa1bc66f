"""Gives free pages of the C heap back to the system."""

from __future__ import annotations

import ctypes
from functools import cache
from time import monotonic
from typing import TYPE_CHECKING, Final

from torch.utils.data import get_worker_info

if TYPE_CHECKING:
    from collections.abc import Callable

_INTERVAL_S: Final = 5.0


class HeapTrimmer:
    """Trims the C heap of a worker now and then.

    glibc keeps what is freed between blocks that stay. A worker frees blocks of about a megabyte, converted
    frames, all the time among decoded frames that stay, and the room left in between fits neither: with
    frames of 640x480 and the default cache it came to 290 MiB per worker. A trim takes 5 to 20 ms. Where the
    C library has no `malloc_trim`, nothing is done.
    """

    def __init__(self) -> None:
        """Looks the function up; the first trim comes after some seconds."""
        self._trim = _find_trim()
        self._next = monotonic() + _INTERVAL_S

    def tick(self) -> None:
        """Trims if the last time is some seconds ago. Cheap enough to call for each sample."""
        now = monotonic()
        if self._trim is not None and now >= self._next:
            self._trim(0)
            self._next = now + _INTERVAL_S


def trim_in_worker() -> None:
    """Ticks the trimmer of a DataLoader worker; the heap of a training process is its own business."""
    if get_worker_info() is not None:
        _worker_heap().tick()


@cache
def _worker_heap() -> HeapTrimmer:
    return HeapTrimmer()


def _find_trim() -> Callable[[int], int] | None:
    try:
        function = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
    function.argtypes, function.restype = [ctypes.c_size_t], ctypes.c_int
    trim: Callable[[int], int] = function
    return trim
