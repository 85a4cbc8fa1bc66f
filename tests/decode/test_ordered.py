"""Results leave in order; errors, stalls and closing are prompt."""

from __future__ import annotations

import threading
import time

import pytest

from lerobot_streaming.decode.ordered import OrderedPipeline, Slot
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
    assert pipeline.cancelled()
    gate.set()
    assert pipeline.join(1.0)
    assert begun == [0]
