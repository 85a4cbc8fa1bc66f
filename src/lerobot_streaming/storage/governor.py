"""How many requests are in flight at a time: fewer when the store says that they are too many."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lerobot_streaming.storage.retry import TransientFault

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lerobot_streaming.storage.retry import Deadline

_LOOK_UP_S = 0.25


class Governor:
    """Lends slots for requests. Thread-safe.

    It starts with all slots. A request that the store calls one too many halves them, at most once for all
    requests that were in flight together, and every full round of good requests gives one back.

    Args:
        limit: Most requests in flight at a time; at least 1.
    """

    def __init__(self, limit: int) -> None:
        """Starts with every slot free."""
        self._most = limit
        self._limit = limit
        self._in_flight = 0
        self._good = 0
        self._cuts = 0
        self._pauses: dict[str, float] = {}
        self._changed = threading.Condition()

    @property
    def limit(self) -> int:
        """Requests that may be in flight now."""
        return self._limit

    @contextmanager
    def slot(self, host: str, deadline: Deadline) -> Iterator[None]:
        """Waits for a slot, and for the end of a pause that the host asked for.

        Args:
            host: Who gets the request.
            deadline: Of the operation; bounds the wait.

        Yields:
            Nothing; the slot is held meanwhile. A `TransientFault` that passes through tells how the store
            fares.

        Raises:
            TransientFault: No slot became free in time, or the host's pause lasts longer than the deadline.
        """
        cuts = self._acquire(host, deadline)
        try:
            yield
        except TransientFault as fault:
            self._release(good=False)
            if fault.throttled:
                self._cut(host, fault.wait_s, cuts)
            raise
        except BaseException:
            self._release(good=False)
            raise
        self._release(good=True)

    def _acquire(self, host: str, deadline: Deadline) -> int:
        while True:
            deadline.check()
            with self._changed:
                pause = self._pauses.get(host, 0.0) - time.monotonic()
                if pause <= 0:
                    if self._in_flight < self._limit:
                        self._in_flight += 1
                        return self._cuts
                    # Short waits: nobody notifies when the reader is closed.
                    self._changed.wait(min(_LOOK_UP_S, max(0.0, deadline.remaining())))
            if pause > 0:
                if pause >= deadline.remaining():
                    raise TransientFault(f"{host} asked for a pause", wait_s=pause)
                deadline.sleep(pause)

    def _release(self, *, good: bool) -> None:
        with self._changed:
            self._in_flight -= 1
            if good and self._limit < self._most:
                self._good += 1
                if self._good >= self._limit:
                    self._good = 0
                    self._limit += 1
            self._changed.notify_all()

    def _cut(self, host: str, wait_s: float | None, cuts: int) -> None:
        with self._changed:
            if wait_s:
                self._pauses[host] = max(self._pauses.get(host, 0.0), time.monotonic() + wait_s)
            if cuts == self._cuts:
                self._cuts += 1
                self._good = 0
                self._limit = max(1, self._limit // 2)
