"""The order in which the fetch threads work, and results that several of them make together."""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial
from threading import Thread
from time import monotonic, sleep
from typing import Any

import pytest

from lerobot_streaming.episodes.fetch_queue import FetchQueue, PartedWork


def _queue(done: list[tuple[int, int]], positions: list[int], parts: int = 1) -> FetchQueue:
    queue = FetchQueue()
    for position in positions:
        queue.put(position, [partial(done.append, (position, part)) for part in range(parts)])
    return queue


def _drain(queue: FetchQueue, count: int) -> None:
    for _ in range(count):
        part = queue.take()
        assert part is not None
        part()


def test_episodes_leave_in_the_order_of_their_first_draws_and_the_others_as_admitted() -> None:
    done: list[tuple[int, int]] = []
    queue = _queue(done, [5, 6, 7, 8])
    for position in (8, 6, 8, 6):
        queue.expect(position)
    _drain(queue, 4)
    assert [position for position, _ in done] == [8, 6, 5, 7]


def test_all_parts_of_an_episode_leave_before_the_next_episode() -> None:
    done: list[tuple[int, int]] = []
    queue = _queue(done, [1, 2], parts=2)
    queue.expect(2)
    _drain(queue, 4)
    assert done == [(2, 0), (2, 1), (1, 0), (1, 1)]


def test_a_forgotten_episode_is_wanted_by_nobody() -> None:
    done: list[tuple[int, int]] = []
    queue = FetchQueue()
    queue.expect(2)
    queue.forget(2)
    for position in (1, 2):
        queue.put(position, [partial(done.append, (position, 0))])
    _drain(queue, 2)
    assert done == [(1, 0), (2, 0)]


def _nothing() -> None:
    pass


class Takers:
    """Threads that take one part each and wait for it if need be."""

    def __init__(self, queue: FetchQueue, count: int) -> None:
        self._taken: list[Any] = []
        for _ in range(count):
            Thread(target=lambda: self._taken.append(queue.take()), daemon=True).start()

    def are_served(self, count: int) -> bool:
        """Whether so many get a part, and no more."""
        deadline = monotonic() + 20
        while len(self._taken) < count and monotonic() < deadline:
            sleep(0.005)
        sleep(0.1)
        return len(self._taken) == count


def test_what_the_first_draws_do_not_want_waits_until_all_may_go_on() -> None:
    queue = FetchQueue(first=2, patience_s=60)
    takers = Takers(queue, 4)
    for position in (1, 2, 3, 4):
        queue.put(position, [_nothing])
    for position in (4, 4, 3):
        queue.expect(position)
    assert takers.are_served(1)
    queue.go_on()
    assert takers.are_served(4)


def test_nothing_waits_for_longer_than_the_queue_has_patience() -> None:
    queue = FetchQueue(first=2, patience_s=0.3)
    takers = Takers(queue, 1)
    queue.put(1, [_nothing])
    assert takers.are_served(1)


def test_an_episode_that_somebody_waits_for_does_not_wait_for_the_first_draws() -> None:
    queue = FetchQueue(first=2, patience_s=60)
    takers = Takers(queue, 2)
    queue.put(1, [_nothing])
    queue.put(2, [_nothing])
    assert takers.are_served(0)
    queue.hurry(2)
    assert takers.are_served(1)
    # Wanted by one of the first draws once, gone, and back again.
    queue.expect(3)
    queue.forget(3)
    queue.put(3, [_nothing])
    assert takers.are_served(1)
    queue.hurry(3)
    assert takers.are_served(2)


def test_episodes_that_somebody_waits_for_leave_in_the_order_of_the_draws() -> None:
    done: list[tuple[int, int]] = []
    queue = FetchQueue(first=1, patience_s=60)
    for position in (1, 2, 3, 4):
        queue.put(position, [partial(done.append, (position, 0))])
    queue.expect(2)
    for position in (4, 2, 3, 1):
        queue.hurry(position)
    _drain(queue, 4)
    assert [position for position, _ in done] == [2, 4, 3, 1]


def test_an_early_end_holds_nothing_back() -> None:
    queue = FetchQueue(first=2, patience_s=60)
    takers = Takers(queue, 2)
    queue.put(1, [_nothing, _nothing])
    assert takers.are_served(0)
    queue.close()
    assert takers.are_served(2)


def test_closing_leaves_no_part_behind_and_sends_threads_home() -> None:
    done: list[tuple[int, int]] = []
    queue = _queue(done, [1])
    queue.close()

    def run() -> None:
        while (part := queue.take()) is not None:
            part()

    threads = [Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
        thread.join(10)
        assert not thread.is_alive()
    # A part that never ran would leave those waiting who wait for the others of its episode.
    assert {position for position, _ in done} == {1}
    assert queue.take() is None


def test_the_last_part_to_end_makes_the_result_in_the_order_of_the_parts() -> None:
    result: Future[str] = Future()
    work = PartedWork(result, [lambda: "a", lambda: "b", lambda: "c"], "".join)
    for part in reversed(work.parts):
        assert not result.done()
        part()
    assert result.result(0) == "abc"


def test_the_first_failure_is_the_result_and_later_parts_are_left_out() -> None:
    result: Future[str] = Future()
    ran: list[str] = []

    def fail() -> str:
        raise OSError("gone")

    first, second = PartedWork(result, [fail, partial(ran.append, "b")], str).parts
    first()
    second()
    with pytest.raises(OSError, match="gone"):
        result.result(0)
    assert not ran


def test_a_failure_of_putting_together_is_the_result() -> None:
    result: Future[str] = Future()

    def finish(_found: list[Any]) -> str:
        raise ValueError("does not fit")

    PartedWork(result, [lambda: 1], finish).parts[0]()
    with pytest.raises(ValueError, match="does not fit"):
        result.result(0)


def test_a_cancelled_result_costs_nothing() -> None:
    result: Future[str] = Future()
    ran: list[str] = []
    parts = PartedWork(result, [partial(ran.append, "a"), partial(ran.append, "b")], str).parts
    result.cancel()
    for part in parts:
        part()
    assert not ran
