"""Results leave in order; errors, stalls and closing are prompt."""

from __future__ import annotations

import threading
import time

import pytest

from lerobot_streaming.decode.ordered import Activity, OrderedPipeline, Slot
from lerobot_streaming.errors import DecodeStallError


def test_results_leave_in_the_order_of_submission_whatever_finishes_first() -> None:
    def work(slot: Slot[int, int]) -> int:
        task = slot.take()
        time.sleep(0.02 if task % 3 == 0 else 0)
        return task * 10

    pipeline = OrderedPipeline(work, threads=4, name="test")
    for task in range(12):
        pipeline.submit(task)
    assert [pipeline.pop() for _ in range(12)] == [task * 10 for task in range(12)]
    assert len(pipeline) == 0
    pipeline.close()
    assert pipeline.join(1.0)


def test_an_error_reaches_the_consumer_in_its_turn_and_whole() -> None:
    def work(slot: Slot[int, int]) -> int:
        task = slot.take()
        if task == 1:
            raise ValueError("outer") from KeyError("inner")
        return task

    pipeline = OrderedPipeline(work, threads=2, name="test")
    for task in range(3):
        pipeline.submit(task)
    assert pipeline.pop() == 0
    with pytest.raises(ValueError, match="outer") as caught:
        pipeline.pop()
    assert isinstance(caught.value.__cause__, KeyError)
    assert pipeline.pop() == 2
    pipeline.close()
    assert pipeline.join(1.0)


def test_work_that_does_not_return_becomes_an_error_that_names_it() -> None:
    stop = threading.Event()

    def work(slot: Slot[int, int]) -> int:
        task = slot.take()
        slot.begin("Decoding frame 7 of episode 3 from file x.mp4")
        stop.wait()
        return task

    pipeline = OrderedPipeline(work, threads=1, name="test", stall_timeout_s=0.2)
    pipeline.submit(0)
    with pytest.raises(DecodeStallError, match=r"frame 7 of episode 3 from file x.mp4 has not returned"):
        pipeline.pop()
    pipeline.close()
    stop.set()
    assert pipeline.join(1.0)


def test_waiting_for_an_episode_is_no_stall() -> None:
    def work(slot: Slot[int, int]) -> int:
        task = slot.take()
        time.sleep(0.5)
        slot.begin("Decoding")
        return task

    pipeline = OrderedPipeline(work, threads=1, name="test", stall_timeout_s=0.2)
    pipeline.submit(5)
    assert pipeline.pop() == 5
    pipeline.close()


def test_closing_drops_waiting_work_and_ends_the_threads() -> None:
    begun: list[int] = []
    gate = threading.Event()

    def work(slot: Slot[int, int]) -> int:
        task = slot.take()
        begun.append(task)
        gate.wait(5)
        return task

    pipeline = OrderedPipeline(work, threads=1, name="test")
    for task in range(5):
        pipeline.submit(task)
    while not begun:
        time.sleep(0.001)
    pipeline.close()
    gate.set()
    assert pipeline.join(1.0)
    assert begun == [0]


def _take(slot: Slot[int, int]) -> int:
    return slot.take()


def test_idle_threads_go_on_until_there_is_nothing_to_do_and_ask_again_after_a_task() -> None:
    left = 3
    asked = threading.Semaphore(0)

    def idle(activity: Activity) -> bool:
        nonlocal left
        activity.begin("Something")
        left -= 1
        if left < 0:
            asked.release()
            return False
        return True

    pipeline = OrderedPipeline(_take, threads=1, name="test", idle=idle)
    assert asked.acquire(timeout=10)
    for round_ in range(3):
        assert left == -1
        left = 2
        pipeline.submit(round_)
        assert pipeline.pop() == round_
        assert asked.acquire(timeout=10)
    pipeline.close()
    assert pipeline.join(5.0)


def test_a_task_does_not_wait_until_an_idle_thread_has_nothing_to_do() -> None:
    pipeline = OrderedPipeline(_take, threads=1, name="test", idle=lambda _: True)
    for task in range(20):
        pipeline.submit(task)
    assert [pipeline.pop() for _ in range(20)] == list(range(20))
    pipeline.close()
    assert pipeline.join(5.0)


def test_closing_ends_an_idle_thread_after_what_it_does() -> None:
    begun, gate = threading.Event(), threading.Event()

    def idle(_: Activity) -> bool:
        begun.set()
        gate.wait(10)
        return True

    pipeline = OrderedPipeline(_take, threads=2, name="test", idle=idle)
    assert begun.wait(10)
    pipeline.close()
    assert not pipeline.join(0.05)
    gate.set()
    assert pipeline.join(5.0)


def test_what_no_thread_takes_because_all_are_stuck_becomes_an_error_that_names_what_they_do() -> None:
    stop = threading.Event()

    def idle(activity: Activity) -> bool:
        activity.begin("Decoding frame 9 of episode 4 from file y.mp4")
        return stop.wait(30) and False

    pipeline = OrderedPipeline(_take, threads=1, name="test", idle=idle, stall_timeout_s=0.2)
    pipeline.submit(0)
    with pytest.raises(DecodeStallError, match=r"frame 9 of episode 4 from file y.mp4 has not returned"):
        pipeline.pop()
    with pytest.raises(DecodeStallError, match=r"frame 9 of episode 4"):
        pipeline.check_idle()
    stop.set()
    assert pipeline.pop() == 0
    pipeline.check_idle()
    pipeline.close()
    assert pipeline.join(5.0)


def test_a_stuck_idle_thread_is_no_error_while_another_one_works() -> None:
    stop, stuck = threading.Event(), threading.Event()

    def idle(activity: Activity) -> bool:
        if stuck.is_set():
            return False
        stuck.set()
        activity.begin("Decoding")
        return stop.wait(30) and False

    def work(slot: Slot[int, int]) -> int:
        task = slot.take()
        time.sleep(0.5)  # Longer than the timeout, as a fetch from far away.
        return task

    pipeline = OrderedPipeline(work, threads=2, name="test", idle=idle, stall_timeout_s=0.2)
    assert stuck.wait(10)
    pipeline.submit(1)
    assert pipeline.pop() == 1
    stop.set()
    pipeline.close()
    assert pipeline.join(5.0)
