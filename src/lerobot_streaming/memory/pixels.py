"""Private memory for the pixels of items, used again once an item is gone.

An item's pixels live from its decode until they are copied into a batch. The allocator of libc hands blocks
of that size back to the kernel each time, and the next item pays for fresh, zeroed pages: 0.6 ms of 0.8 ms
per 640x480 frame on the machine of the benchmarks.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from functools import partial
from typing import Any, Final

import numpy as np
import torch

from lerobot_streaming.memory.leases import lend

KEPT_BYTES: Final = 256 * 1024**2
"""Most bytes kept for use again; more are only in use while more items are alive at a time."""

_SMALLEST: Final = 32 * 1024
"""Smaller blocks are served from libc's own memory without fresh pages."""


class PixelMemory:
    """Gives uninitialised tensors over memory that is used again. Thread-safe.

    Args:
        kept_bytes: Most bytes kept while no tensor uses them.
    """

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        """Starts with nothing."""
        self._kept_bytes = kept_bytes
        self._idle: defaultdict[int, deque[np.ndarray[tuple[int], np.dtype[np.uint8]]]] = defaultdict(deque)
        self._sizes: dict[tuple[tuple[int, ...], type], int] = {}

    @property
    def num_idle_bytes(self) -> int:
        """Bytes that wait to be used again."""
        return sum(size * len(blocks) for size, blocks in list(self._idle.items()))

    def empty(self, shape: tuple[int, ...], dtype: type[np.uint8 | np.float32] = np.uint8) -> torch.Tensor:
        """Makes a tensor whose values are not set.

        Args:
            shape: Its shape.
            dtype: Its NumPy dtype.

        Returns:
            A contiguous tensor that shares its memory with no other living one.
        """
        size = self._sizes.get((shape, dtype))
        if size is None:
            size = self._sizes[shape, dtype] = math.prod(shape) * np.dtype(dtype).itemsize
        if size < _SMALLEST:
            return torch.from_numpy(np.empty(shape, dtype))
        idle = self._idle[size]
        try:
            block = idle.pop()
        except IndexError:
            block = np.empty(size, dtype=np.uint8)
        array: np.ndarray[Any, Any] = np.ndarray(shape, dtype, buffer=block)
        # NumPy keeps the interpreter's lock; every operation of PyTorch would give it away.
        return torch.from_numpy(lend(array, partial(self._take_back, block)))

    def _take_back(self, block: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> None:
        if self.num_idle_bytes + block.size <= self._kept_bytes:
            self._idle[block.size].append(block)
