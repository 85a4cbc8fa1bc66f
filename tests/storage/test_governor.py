from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from lerobot_streaming.storage.governor import Governor
from lerobot_streaming.storage.retry import Deadline, TransientFault


def refuse(governor: Governor, wait_s: float | None = None) -> None:
    with pytest.raises(TransientFault), governor.slot("hub", Deadline(60)):
        raise TransientFault("429", wait_s=wait_s, throttled=True)


def test_no_more_requests_than_slots_are_in_flight() -> None:
    governor = Governor(3)
    lock = threading.Lock()
    now, most = 0, 0

    def work() -> None:
        nonlocal now, most
        for _ in range(30):
            with governor.slot("hub", Deadline(60)):
                with lock:
                    now += 1
                    most = max(most, now)
                with lock:
                    now -= 1

    with ThreadPoolExecutor(12) as pool:
        for future in [pool.submit(work) for _ in range(12)]:
            future.result()
    assert now == 0
    assert 1 <= most <= 3


def test_a_throttle_halves_the_slots_and_good_rounds_give_them_back() -> None:
    governor = Governor(8)
    refuse(governor)
    assert governor.limit == 4
    for _ in range(4):
        refuse(governor)
    assert governor.limit == 1
    limits = []
    for _ in range(1 + 2 + 3 + 4 + 5 + 6 + 7 + 20):
        with governor.slot("hub", Deadline(60)):
            pass
        limits.append(governor.limit)
    assert limits[:6] == [2, 2, 3, 3, 3, 4]
    assert limits[-1] == 8


def test_requests_that_were_throttled_together_halve_the_slots_once() -> None:
    governor = Governor(8)
    all_in = threading.Barrier(6)

    def throttled_with_others() -> None:
        with governor.slot("hub", Deadline(60)):
            all_in.wait(20)
            raise TransientFault("429", throttled=True)

    def work() -> None:
        with pytest.raises(TransientFault):
            throttled_with_others()

    with ThreadPoolExecutor(6) as pool:
        for future in [pool.submit(work) for _ in range(6)]:
            future.result()
    assert governor.limit == 4


def test_other_faults_leave_the_slots_alone() -> None:
    governor = Governor(8)
    with pytest.raises(TransientFault), governor.slot("hub", Deadline(60)):
        raise TransientFault("short body")
    with pytest.raises(KeyError), governor.slot("hub", Deadline(60)):
        raise KeyError
    assert governor.limit == 8
    for _ in range(20):  # No slot was lost.
        with governor.slot("hub", Deadline(60)):
            pass


def test_a_pause_holds_back_all_requests_to_that_host_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    governor = Governor(8)
    refuse(governor, wait_s=50.0)
    with governor.slot("cdn", Deadline(60)):
        pass
    with (
        pytest.raises(TransientFault, match="hub asked for a pause") as caught,
        governor.slot("hub", Deadline(20)),
    ):
        pytest.fail("it must not be sent")
    assert caught.value.wait_s is not None
    assert 20 < caught.value.wait_s <= 50
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 51)
    with governor.slot("hub", Deadline(60)):
        pass


def test_waiting_for_a_slot_ends_with_the_deadline_or_the_reader() -> None:
    governor = Governor(1)
    stop = threading.Event()
    stop.set()
    with governor.slot("hub", Deadline(60)):
        with pytest.raises(TransientFault, match="time was over"), governor.slot("hub", Deadline(0.01)):
            pass
        with pytest.raises(TransientFault, match="closed"), governor.slot("hub", Deadline(60, stop)):
            pass


def test_slots_are_given_in_the_order_in_which_they_were_asked_for() -> None:
    governor = Governor(1)
    served: list[int] = []

    def work(number: int) -> None:
        with governor.slot("hub", Deadline(60)):
            served.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    with governor.slot("hub", Deadline(60)):
        for number, thread in enumerate(threads, 1):
            thread.start()
            while len(governor._line) < number:
                time.sleep(0.001)
    for thread in threads:
        thread.join(10)
    assert served == list(range(8))


def test_who_gives_up_in_the_line_takes_no_slot_along() -> None:
    governor = Governor(1)
    with governor.slot("hub", Deadline(60)):
        with pytest.raises(TransientFault), governor.slot("hub", Deadline(0.05)):
            raise AssertionError("there was no slot")
        assert not governor._line
    with governor.slot("hub", Deadline(1)):
        pass
