"""How many requests are in flight at a time: fewer when the store says that they are too many."""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lerobot_streaming.storage.retry import TransientFault

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lerobot_streaming.storage.retry import Deadline

_LOOK_UP_S = 0.25


class Governor:
    """Lends slots for requests, first come, first served. Thread-safe.

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
        self._lock = threading.Lock()
        # Each waits for itself: were all woken by every request that ends, most of them for nothing, a
        # process of many threads would be busy with that.
        self._line: deque[threading.Event] = deque()

    @property
    def limit(self) -> int:
        """Requests that may be in flight now."""
        return self._limit

    def set_limit(self, limit: int) -> None:
        """Changes the most requests in flight at a time.

        Args:
            limit: At least 1.
        """
        with self._lock:
            self._most = self._limit = limit
            self._hand_out()

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
            turn = None
            with self._lock:
                pause = self._pause(host)
                if pause <= 0:
                    if self._in_flight < self._limit:
                        self._in_flight += 1
                        return self._cuts
                    turn = threading.Event()
                    self._line.append(turn)
            if turn is not None:
                self._wait(turn, deadline)
                with self._lock:
                    pause = self._pause(host)
                    if pause <= 0:
                        return self._cuts
                    self._give_back()  # The host asked for a pause meanwhile.
            if pause >= deadline.remaining():
                raise TransientFault(f"{host} asked for a pause", wait_s=pause)
            deadline.sleep(pause)

    def _pause(self, host: str) -> float:
        return self._pauses.get(host, 0.0) - time.monotonic()

    def _wait(self, turn: threading.Event, deadline: Deadline) -> None:
        try:
            # Short waits: nobody sets it when the reader is closed.
            while not turn.wait(min(_LOOK_UP_S, max(0.0, deadline.remaining()))):
                deadline.check()
        except BaseException:
            with self._lock:
                if turn.is_set():
                    self._give_back()
                else:
                    self._line.remove(turn)
            raise

    def _give_back(self) -> None:
        self._in_flight -= 1
        self._hand_out()

    def _hand_out(self) -> None:
        while self._line and self._in_flight < self._limit:
            self._in_flight += 1
            self._line.popleft().set()

    def _release(self, *, good: bool) -> None:
        with self._lock:
            if good and self._limit < self._most:
                self._good += 1
                if self._good >= self._limit:
                    self._good = 0
                    self._limit += 1
            self._give_back()

    def _cut(self, host: str, wait_s: float | None, cuts: int) -> None:
        with self._lock:
            if wait_s:
                self._pauses[host] = max(self._pauses.get(host, 0.0), time.monotonic() + wait_s)
            if cuts == self._cuts:
                self._cuts += 1
                self._good = 0
                self._limit = max(1, self._limit // 2)
