"""Waits, deadlines and what ends them; the clock is the test's own."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lerobot_streaming.errors import FetchError, OptionError
from lerobot_streaming.storage import retry
from lerobot_streaming.storage.retry import (
    Deadline,
    OutOfTime,
    Retrier,
    RetryPolicy,
    TransientFault,
    is_transient_status,
    parse_retry_after,
)


class Clock:
    """Stands still but for waits, which it lists."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.waits: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(retry, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(Deadline, "sleep", lambda _, seconds: clock.sleep(seconds))
    return clock


def fails(times: int, **fault: object) -> tuple[list[float], object]:
    calls: list[float] = []

    def attempt(deadline: Deadline) -> str:
        calls.append(deadline.remaining())
        if len(calls) <= times:
            raise TransientFault("503 from cdn", **fault)  # type: ignore[arg-type]
        return "done"

    return calls, attempt


def test_backoff_doubles_scatters_and_is_counted(clock: Clock) -> None:
    counted: list[int] = []
    calls, attempt = fails(6)
    retrier = Retrier(RetryPolicy(600, first_wait_s=1, max_wait_s=8), lambda: counted.append(1))
    assert retrier.run(attempt, "reading x") == "done"  # type: ignore[arg-type]
    assert len(calls) == 7
    assert len(counted) == 6
    for wait, most in zip(clock.waits, [1, 2, 4, 8, 8, 8], strict=True):
        assert most / 2 <= wait <= most


def test_the_wait_that_the_store_asks_for_is_honoured(clock: Clock) -> None:
    _, attempt = fails(2, wait_s=42.0)
    assert Retrier(RetryPolicy(600)).run(attempt, "reading x") == "done"  # type: ignore[arg-type]
    assert clock.waits == [42.0, 42.0]
    clock.waits.clear()
    _, attempt = fails(1, wait_s=42.0, throttled=True)
    Retrier(RetryPolicy(600, first_wait_s=0.5)).run(attempt, "reading x")  # type: ignore[arg-type]
    # Scattered, or all threads that were throttled together come back together.
    assert 42.0 < clock.waits[0] <= 42.5


def test_a_wait_that_ends_after_the_deadline_is_not_begun(clock: Clock) -> None:
    calls, attempt = fails(9, wait_s=300.0)
    with pytest.raises(FetchError, match="asks to wait 300 s"):
        Retrier(RetryPolicy(200)).run(attempt, "reading x")  # type: ignore[arg-type]
    assert clock.waits == []
    assert len(calls) == 1


@given(st.floats(0.01, 2000), st.floats(0.01, 10), st.floats(0, 5), st.lists(st.floats(0, 100) | st.none()))
def test_no_wait_goes_beyond_the_deadline(
    deadline_s: float, first_wait_s: float, work_s: float, asked: list[float | None]
) -> None:
    clock = Clock()
    start = clock.now
    answers = iter(asked)
    attempts = 0

    def attempt(deadline: Deadline) -> None:
        nonlocal attempts
        attempts += 1
        clock.now += min(work_s, max(0.0, deadline.remaining()))
        raise TransientFault("503 from cdn", wait_s=next(answers, None))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retry, "time", SimpleNamespace(monotonic=lambda: clock.now))
        patch.setattr(Deadline, "sleep", lambda _, seconds: clock.sleep(seconds))
        with pytest.raises(FetchError) as caught:
            Retrier(RetryPolicy(deadline_s, first_wait_s=first_wait_s)).run(attempt, "reading x of hf://y")
    assert clock.now <= start + deadline_s + 1e-6
    assert f"{attempts} attempt" in str(caught.value)


def test_the_error_names_what_how_often_how_long_and_the_last_cause(clock: Clock) -> None:
    del clock
    calls, attempt = fails(1000)
    with pytest.raises(FetchError) as caught:
        Retrier(RetryPolicy(60)).run(attempt, "reading 'v.mp4' below 'hf://x', bytes 1 to 9")  # type: ignore[arg-type]
    text = str(caught.value)
    assert "reading 'v.mp4' below 'hf://x', bytes 1 to 9 failed" in text
    assert f"{len(calls)} attempts in " in text
    assert "limit 60.0 s" in text
    assert "last fault: 503 from cdn" in text
    assert isinstance(caught.value.__cause__, TransientFault)


def test_a_large_range_has_more_time(clock: Clock) -> None:
    del clock
    calls, attempt = fails(0)
    policy = RetryPolicy(10, min_bytes_per_s=1000)
    Retrier(policy).run(attempt, "reading x", num_bytes=5000)  # type: ignore[arg-type]
    assert calls == [15.0]


def test_what_is_final_is_raised_at_once(clock: Clock) -> None:
    def attempt(deadline: Deadline) -> None:
        del deadline
        raise ValueError("no such thing")

    with pytest.raises(ValueError, match="no such thing"):
        Retrier(RetryPolicy(60)).run(attempt, "reading x")
    assert clock.waits == []


def test_close_ends_waits_and_later_operations_run() -> None:
    waiting = threading.Event()
    retrier = Retrier(RetryPolicy(3600, first_wait_s=1000, max_wait_s=1000), waiting.set)
    errors: list[BaseException] = []

    def work() -> None:
        try:
            retrier.run(fails(5)[1], "reading x")  # type: ignore[arg-type]
        except FetchError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert waiting.wait(20)
    retrier.close()
    thread.join(20)
    assert not thread.is_alive()
    assert "the reader was closed" in str(errors[0])
    assert retrier.run(lambda _: 3, "reading x") == 3


@pytest.mark.parametrize(
    ("value", "wait"),
    [
        *(("120", 120.0), (" 1 ", 1.0), ("0", 0.0), ("-5", 0.0), (None, None), ("", None), ("soon", None)),
        *(("nan", None), ("inf", None), ("1e400", None), ("Wed, 99 Foo 2015 07:28:00 GMT", None)),
    ],
)
def test_retry_after_in_seconds(value: str | None, wait: float | None) -> None:
    assert parse_retry_after(value) == wait


def test_retry_after_as_a_date() -> None:
    then = datetime.now(UTC) + timedelta(seconds=100)
    wait = parse_retry_after(format_datetime(then, usegmt=True))
    assert wait is not None
    assert 0 < wait <= 100
    assert parse_retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0


@settings(max_examples=50)
@given(st.text())
def test_no_header_makes_it_fail(value: str) -> None:
    wait = parse_retry_after(value)
    assert wait is None or wait >= 0


def test_which_statuses_go_away() -> None:
    assert [status for status in range(200, 600) if is_transient_status(status)] == [
        408,
        425,
        429,
        *range(500, 600),
    ]


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_a_deadline_must_be_positive(seconds: float) -> None:
    with pytest.raises(OptionError, match="deadline_s"):
        RetryPolicy(seconds)


def test_the_error_names_what_the_store_did_and_not_that_time_was_over(clock: Clock) -> None:
    faults = iter([TransientFault("503 from cdn"), OutOfTime("the time was over")])

    def attempt(deadline: Deadline) -> None:
        fault = next(faults)
        if isinstance(fault, OutOfTime):
            clock.now += deadline.seconds
        raise fault

    with pytest.raises(FetchError, match=r"2 attempts.*last fault: 503 from cdn"):
        Retrier(RetryPolicy(60)).run(attempt, "reading x")
