"""Shared memory that carries batches from a worker to the training process, used again and again.

A worker owns a few segments and keeps them mapped, so their pages stay. A batch is written into one; the
receiver maps the same segment for as long as it uses the batch, and then sets the segment's mark, which the
worker looks at before it writes the next batch there. Neither waits for the other: while all segments are in
use, one more is made, up to a limit.
"""

from __future__ import annotations

import mmap
import os
import sys
from functools import partial
from typing import Final

from lerobot_streaming.memory.leases import lend

HEADER_BYTES: Final = 64
"""The mark, and what keeps the payload aligned for every dtype."""

MAX_SEGMENTS: Final = 32
"""Most segments of one worker. A consumer that keeps more batches than that gets the further ones the
ordinary way."""

_MAX_IDLE: Final = 8
"""Idle segments kept; more of them were needed only for a while."""

_WASTE: Final = 4
"""A segment serves batches down to a quarter of its size."""

_IDLE, _SENT, _RETIRED = 0, 1, 2
"""The mark: free for the worker; with the receiver; never to be used again."""

SUPPORTED: Final = sys.platform == "linux" and hasattr(os, "memfd_create")
"""Whether there is anonymous shared memory that is passed on as a file descriptor; a Python that was built
for an older libc has none."""


class Segment:
    """One piece of shared memory, as its worker sees it.

    Args:
        size: Bytes of payload.
    """

    def __init__(self, size: int) -> None:
        """Makes the segment; its pages come when they are first written."""
        self.size = size
        self.fd = os.memfd_create("lerobot-streaming-batch", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self.fd, HEADER_BYTES + size)
            self._map = mmap.mmap(self.fd, HEADER_BYTES + size)
        except BaseException:
            os.close(self.fd)
            raise
        self._lent = False
        self._retired = False

    @property
    def is_idle(self) -> bool:
        """Whether neither this process nor a receiver uses it."""
        return not self._lent and not self._retired and self._map[0] == _IDLE

    @property
    def is_retired(self) -> bool:
        """Whether it was taken out of use, here or by a receiver."""
        return not self._lent and (self._retired or self._map[0] == _RETIRED)

    def lend(self) -> memoryview:
        """Lends the whole segment, header included, to tensors of this process.

        Returns:
            A view; while anything refers to it the segment is not idle.
        """
        self._lent = True
        return lend(memoryview(self._map), self._end)

    def send(self) -> None:
        """Marks the segment as the receiver's, until the receiver has done with it."""
        self._map[0] = _SENT

    def retire_lent(self) -> None:
        """Takes the segment out of use for good if tensors of this process are over it."""
        self._retired |= self._lent

    def close(self) -> None:
        """Gives the file descriptor back; the memory goes when nothing maps it any more."""
        os.close(self.fd)

    def _end(self) -> None:
        self._lent = False


class SegmentPool:
    """The segments of one worker. Only the thread that collates calls it."""

    def __init__(self) -> None:
        """Starts with none."""
        self._segments: list[Segment] = []

    def __len__(self) -> int:
        """Segments that exist."""
        return len(self._segments)

    def take(self, size: int) -> Segment | None:
        """Finds or makes a segment that nothing uses.

        Args:
            size: Bytes of payload.

        Returns:
            The segment; None when there are too many, or the system gives no more.
        """
        idle = [segment for segment in self._segments if segment.is_idle]
        fitting = [segment for segment in idle if size <= segment.size <= _WASTE * size]
        chosen = min(fitting, key=lambda segment: segment.size, default=None)
        spare = [segment for segment in idle if segment is not chosen]
        useless = [segment for segment in spare if segment not in fitting] if chosen is None else []
        self._drop([*useless, *spare[_MAX_IDLE:], *(one for one in self._segments if one.is_retired)])
        if chosen is None and len(self._segments) < MAX_SEGMENTS:
            try:
                chosen = Segment(size)
            except OSError:
                return None
            self._segments.append(chosen)
        return chosen

    def retire_lent(self) -> None:
        """Takes out of use what tensors of this process are over: a forked process may keep them."""
        for segment in self._segments:
            segment.retire_lent()

    def forget(self) -> None:
        """Leaves the segments to the process that made them; for a forked one."""
        self._segments.clear()

    def _drop(self, segments: list[Segment]) -> None:
        for segment in segments:
            if segment in self._segments:
                self._segments.remove(segment)
                segment.close()


class _Received:
    """One segment as the receiver sees it, for the time of one batch."""

    def __init__(self, mapped: mmap.mmap) -> None:
        self._map = mapped
        self._retired = False
        _received[id(self)] = self

    def end(self) -> None:
        """Hands the segment back to its worker."""
        _received.pop(id(self), None)
        if not self._retired:
            self._map[0] = _IDLE

    def retire(self) -> None:
        """Takes the segment out of use for good."""
        self._retired = True
        self._map[0] = _RETIRED


_received: dict[int, _Received] = {}
"""Dictionary operations are atomic: batches come and go in other threads while this one forks."""


def _retire_received() -> None:
    """A forked process keeps the batches that its parent has: nothing may be written over them."""
    for one in list(_received.values()):
        one.retire()


if SUPPORTED:
    os.register_at_fork(before=_retire_received)


def receive(fd: int, size: int) -> memoryview:
    """Maps a segment that a worker has sent.

    Args:
        fd: Its file descriptor; closed here.
        size: Bytes of payload.

    Returns:
        A writable view of the whole segment, header included. When nothing refers to it any more, the worker
        may write the next batch there.
    """
    try:
        mapped = mmap.mmap(fd, HEADER_BYTES + size)
    finally:
        os.close(fd)
    return lend(memoryview(mapped), partial(_Received.end, _Received(mapped)))
