"""One number for each pass of a rank, agreed upon by the DataLoader workers that make it together."""

from __future__ import annotations

import fcntl
import os
import tempfile
import weakref
from contextlib import contextmanager
from multiprocessing.reduction import DupFd, ForkingPickler
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

import torch

from lerobot_streaming.options import MAX_WORKERS

if TYPE_CHECKING:
    from collections.abc import Iterator

type Token = tuple[int, int]
"""What the workers of one iterator have in common: the iterator's seed, and the passes of the process."""

_LATEST, _RESETS, _NUM_WORKERS, _LAST_NUM_WORKERS, _HEAD = range(5)
_SEED, _COUNT, _NUMBER, _JOINED = range(4)
_BITS: Final = 32
_KEPT: Final = 8
"""Iterators that may be starting at the same time."""


class PassNumbers:
    """Numbers the passes of a rank: all workers of an iterator get the same number.

    Worker processes start in any order, and one may be ended before it has begun. So no worker counts for
    itself: the first one of an iterator takes the next number, and the others find it in shared memory.
    """

    def __init__(self) -> None:
        """Has numbered nothing."""
        self._table = torch.zeros(_HEAD + _KEPT * _RECORD, dtype=torch.int64)
        share(self._table)
        self._lock = ProcessLock()

    def own(self) -> PassNumbers:
        """Copy what is known into memory of its own.

        Returns:
            Numbers that no other process knows of.
        """
        other = PassNumbers()
        other._table.copy_(self._table)
        return other

    @property
    def is_shared(self) -> bool:
        """Whether the memory is still the one that other processes know."""
        return bool(self._table.is_shared())  # type: ignore[no-untyped-call]  # torch gives it no types.

    @property
    def latest(self) -> int:
        """Number of the latest pass, from 1 on; 0 before the first one."""
        return int(self._table[_LATEST])

    @property
    def resets(self) -> int:
        """How often numbering has begun anew."""
        return int(self._table[_RESETS])

    @property
    def num_workers(self) -> int:
        """DataLoader workers of the latest pass; 0 before the first one."""
        return int(self._table[_NUM_WORKERS])

    @property
    def last_num_workers(self) -> int:
        """DataLoader workers of the latest pass, whether numbering has begun anew since or not."""
        return int(self._table[_LAST_NUM_WORKERS])

    def reset(self) -> None:
        """Begin anew: the next pass is number 1."""
        with self._lock.held():
            resets, last = self.resets, self.last_num_workers
            self._table.zero_()
            self._table[_RESETS] = resets + 1
            self._table[_LAST_NUM_WORKERS] = last

    def claim(self, worker: int, num_workers: int, token: Token | None) -> int:
        """Number the pass that a process is about to make.

        Args:
            worker: Worker number.
            num_workers: Workers of the rank.
            token: What all workers of this iterator have in common; None for a process without workers.

        Returns:
            The number, from 1 on.
        """
        with self._lock.held():
            record = None if token is None else self._record(token, worker)
            if record is None:
                self._table[_LATEST] += 1
                record = self._records()[self.latest % _KEPT]
                record.zero_()
                record[_NUMBER] = self.latest
                if token is not None:
                    record[_SEED], record[_COUNT] = token
            record[_JOINED + worker // _BITS] |= 1 << worker % _BITS
            self._note_workers(num_workers)
            return int(record[_NUMBER])

    def coming(self, worker: int, token: Token | None) -> int:
        """Say which number `claim` would give.

        Args:
            worker: Worker number.
            token: As for `claim`.

        Returns:
            The number.
        """
        with self._lock.held():
            record = None if token is None else self._record(token, worker)
            return self.latest + 1 if record is None else int(record[_NUMBER])

    def give_back(self, worker: int, number: int) -> None:
        """Take a claim back, because the pass could not begin; the number is free when nobody else has it.

        Args:
            worker: Worker number.
            number: What `claim` gave.
        """
        with self._lock.held():
            record = self._records()[number % _KEPT]
            if int(record[_NUMBER]) != number:
                return
            record[_JOINED + worker // _BITS] &= ~(1 << worker % _BITS)
            if number == self.latest and not bool(record[_JOINED:].any()):
                record.zero_()
                self._table[_LATEST] -= 1

    def raise_to(self, number: int, num_workers: int) -> None:
        """Note a pass whose number was chosen by a state.

        Args:
            number: Its number; a later one that is known already stays the latest.
            num_workers: Workers of the rank.
        """
        with self._lock.held():
            self._table[_LATEST] = max(self.latest, number)
            self._note_workers(num_workers)

    def _note_workers(self, num_workers: int) -> None:
        self._table[_NUM_WORKERS] = num_workers
        self._table[_LAST_NUM_WORKERS] = num_workers

    def _records(self) -> torch.Tensor:
        return self._table[_HEAD:].view(_KEPT, _RECORD)

    def _record(self, token: Token, worker: int) -> torch.Tensor | None:
        records = self._records()
        for index in range(_KEPT):
            record = records[index]
            # Seeded loops give every iterator the same seed: who has joined already begins another one.
            joined = int(record[_JOINED + worker // _BITS]) >> worker % _BITS & 1
            if int(record[_NUMBER]) and (int(record[_SEED]), int(record[_COUNT])) == token and not joined:
                return record
        return None


_RECORD: Final = _JOINED + -(-MAX_WORKERS // _BITS)


def share(table: torch.Tensor) -> bool:
    """Move a tensor to shared memory.

    Args:
        table: The tensor.

    Returns:
        Whether it was not there before.
    """
    if table.is_shared():  # type: ignore[no-untyped-call]  # torch gives it no types.
        return False
    table.share_memory_()  # type: ignore[no-untyped-call]  # torch gives it no types.
    return True


class ProcessLock:
    """Excludes the threads and processes that it was handed to, and is free again when its holder dies.

    Workers are killed at any time, so a semaphore will not do. Copies by plain pickling are new locks.
    """

    def __init__(self, fd: int | None = None) -> None:
        """Makes a nameless file to lock, or takes over the descriptor of one."""
        if fd is None:
            with tempfile.TemporaryFile() as file:
                fd = os.dup(file.fileno())
        self.fd = fd
        self._threads = os.getpid(), Lock()
        weakref.finalize(self, os.close, fd)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold it.

        Yields:
            Nothing.
        """
        if self._threads[0] != os.getpid():
            # A thread of the forking process may have held it at that moment.
            self._threads = os.getpid(), Lock()
        with self._threads[1]:
            fcntl.lockf(self.fd, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.lockf(self.fd, fcntl.LOCK_UN)

    def __reduce__(self) -> tuple[Any, ...]:
        """Make another lock."""
        return ProcessLock, ()


def _received(handle: Any) -> ProcessLock:
    return ProcessLock(handle.detach())


def _hand_over(lock: ProcessLock) -> tuple[Any, ...]:
    return _received, (DupFd(lock.fd),)


ForkingPickler.register(ProcessLock, _hand_over)
