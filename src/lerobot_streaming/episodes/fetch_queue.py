"""What the fetch threads do next: the episodes of the next draws first, each in parts side by side."""

from __future__ import annotations

import math
from collections import deque
from functools import partial
from threading import Condition, Lock
from time import monotonic
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future


class FetchQueue:
    """Parts of episodes that wait for a thread. Thread-safe.

    Admission fills a whole pool at once, but the first draws want only some of its episodes: those leave the
    queue in the order of their first draws, before all that no known draw wants.

    Args:
        first: Draws at the start that have the machine to themselves: what only later ones want, and nobody
            waits for, stays in the queue until `go_on`.
        patience_s: Seconds after which it does not stay any longer.
    """

    def __init__(self, first: int = 0, patience_s: float = 5.0) -> None:
        """Makes an empty queue."""
        self._limit: float = first or math.inf
        self._until = monotonic() + patience_s
        self._num_hurried = 0
        self._changed = Condition()
        self._parts: dict[int, deque[Callable[[], None]]] = {}
        self._ranks: dict[int, float] = {}
        self._num_expected = 0
        self._closed = False

    def expect(self, position: int) -> None:
        """Notes that a coming draw wants an episode; calls come in the order of the draws.

        Args:
            position: Position of the episode, queued already or not.
        """
        with self._changed:
            if position not in self._ranks:
                self._ranks[position] = self._num_expected
                if position in self._parts and self._num_expected < self._limit < math.inf:
                    self._changed.notify_all()
            self._num_expected += 1

    def hurry(self, position: int) -> None:
        """Notes that somebody waits for an episode: it follows those that the first draws want.

        Args:
            position: Position of the episode, queued or not. Calls come in the order of the draws.
        """
        with self._changed:
            if self._limit < math.inf and self._rank(position) >= self._limit:
                self._num_hurried += 1
                # Each behind the one before, all below the limit.
                self._ranks[position] = self._limit - 1 / (1 + self._num_hurried)
                self._changed.notify_all()

    def go_on(self) -> None:
        """Lets all the rest follow the first draws."""
        with self._changed:
            self._limit = math.inf
            self._changed.notify_all()

    def put(self, position: int, parts: Sequence[Callable[[], None]]) -> None:
        """Queues an episode that is not in the queue.

        Args:
            position: Position of the episode.
            parts: What is to be done, in this order, by any threads; at least one.
        """
        with self._changed:
            self._parts[position] = deque(parts)
            self._changed.notify(len(parts))

    def forget(self, position: int) -> None:
        """Forgets which draw wanted an episode first: it is gone, and its next draw is another one.

        Args:
            position: Position of the episode.
        """
        with self._changed:
            self._ranks.pop(position, None)

    def take(self) -> Callable[[], None] | None:
        """Waits for a part.

        Returns:
            The next part; None once the queue is closed and empty.
        """
        with self._changed:
            while (position := self._next()) is None:
                if self._closed and not self._parts:
                    return None
                self._changed.wait(self._patience_s())
            parts = self._parts[position]
            part = parts.popleft()
            if not parts:
                del self._parts[position]
            return part

    def _next(self) -> int | None:
        """The episode that is wanted first: of equals the one that was admitted first."""
        position = min(self._parts, key=self._rank, default=None)
        if self._limit < math.inf and monotonic() >= self._until:
            self._limit = math.inf
        if position is None or self._closed or self._limit == math.inf:
            return position
        return position if self._rank(position) < self._limit else None

    def _patience_s(self) -> float | None:
        return None if self._limit == math.inf else max(0.0, self._until - monotonic())

    def _rank(self, position: int) -> float:
        return self._ranks.get(position, math.inf)

    def close(self) -> None:
        """Sends every thread home once the queue is empty.

        What is queued is not dropped: some parts of an episode may have begun, and whoever waits for it waits
        for all of them. The parts have to see by themselves that there is nothing to do any more.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class PartedWork[T]:
    """One result that several threads work on. The last one to end puts it together.

    Args:
        result: Gets the result, or what the first part to fail raised; later parts are then left out. When it
            was cancelled before a part began, nothing is done.
        parts: What is to be done, in any order and at the same time.
        finish: Makes the result of what the parts returned, in their order.
    """

    def __init__(
        self, result: Future[T], parts: Sequence[Callable[[], Any]], finish: Callable[[list[Any]], T]
    ) -> None:
        """Does nothing yet."""
        self._result = result
        self._parts = parts
        self._finish = finish
        self._lock = Lock()
        self._wanted: bool | None = None  # None: no part has begun.
        self._found: list[Any] = [None] * len(parts)
        self._num_left = len(parts)

    @property
    def parts(self) -> list[Callable[[], None]]:
        """What the threads run, each once."""
        return [partial(self._run, number) for number in range(len(self._parts))]

    def _run(self, number: int) -> None:
        with self._lock:
            if self._wanted is None:
                self._wanted = self._result.set_running_or_notify_cancel()
            if not self._wanted:
                return
        try:
            found = self._parts[number]()
            with self._lock:
                self._found[number] = found
                self._num_left -= 1
                is_last = not self._num_left
            if is_last:
                self._result.set_result(self._finish(self._found))
        except BaseException as error:  # noqa: BLE001  Whoever waits for the result raises it, whatever it is.
            with self._lock:
                is_first, self._wanted = self._wanted, False
            if is_first:
                self._result.set_exception(error)
