"""The one place where storage is asked again: what is worth another attempt, when, and for how long."""

from __future__ import annotations

import logging
import math
import random
import threading
import time
import weakref
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Final

from lerobot_streaming.errors import FetchError, OptionError

if TYPE_CHECKING:
    from collections.abc import Callable

_logger = logging.getLogger(__name__)

DEFAULT_DEADLINE_S: Final = 600.0
"""Longer than the five minutes after which the Hub's rate limits start anew."""

_TRANSIENT_STATUSES: Final = frozenset({408, 425, 429})
_SPEAK_UP_S: Final = 15.0
_random = random.SystemRandom()  # The process's own random state belongs to the training run.


def is_transient_status(status: int) -> bool:
    """Says whether an HTTP status may go away by itself.

    Args:
        status: HTTP status code.

    Returns:
        True for 408, 425, 429 and every 5xx.
    """
    return status in _TRANSIENT_STATUSES or 500 <= status <= 599


def parse_retry_after(value: str | None) -> float | None:
    """Reads a `Retry-After` header.

    Args:
        value: Seconds or an HTTP date; None when there is no such header.

    Returns:
        Seconds to wait, >= 0, or None when the header says nothing usable.
    """
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            then = parsedate_to_datetime(value)
        except ValueError:
            return None
        if then.tzinfo is None:
            then = then.replace(tzinfo=UTC)
        seconds = (then - datetime.now(UTC)).total_seconds()
    return max(0.0, seconds) if math.isfinite(seconds) else None


class TransientFault(Exception):  # noqa: N818 - it never reaches a caller, `Retrier` turns it into an error
    """One attempt failed in a way that another attempt may mend.

    Args:
        cause: What happened, free of secrets.
        wait_s: Seconds that the store asks to wait; None leaves the wait to the backoff.
        throttled: Whether the store says that it gets too many requests.
    """

    def __init__(self, cause: str, *, wait_s: float | None = None, throttled: bool = False) -> None:
        """Keeps the facts."""
        super().__init__(cause)
        self.wait_s = wait_s
        self.throttled = throttled


class OutOfTime(TransientFault):
    """An attempt ended because its operation has to, not because of what the store did."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long and how often an operation is tried.

    Attributes:
        deadline_s: Seconds for one operation with all of its attempts and waits; > 0.
        first_wait_s: Seconds of the first backoff; each further one doubles.
        max_wait_s: Longest backoff in seconds.
        min_bytes_per_s: Bytes per second that a healthy but slow transfer must reach: the deadline of a large
            range is later by its size divided by this.
    """

    deadline_s: float = DEFAULT_DEADLINE_S
    first_wait_s: float = 0.5
    max_wait_s: float = 30.0
    min_bytes_per_s: float = float(1 << 20)

    def __post_init__(self) -> None:
        """Checks the deadline, which callers choose.

        Raises:
            OptionError: The deadline is not a positive number.
        """
        if not self.deadline_s > 0:
            raise OptionError(f"deadline_s must be > 0 seconds, got {self.deadline_s}.")


class Deadline:
    """The time that is left for one operation, and the way to end it early.

    Args:
        seconds: Seconds from now.
        stop: Set by whoever wants the operation to end; None makes one.
    """

    def __init__(self, seconds: float, stop: threading.Event | None = None) -> None:
        """Starts the clock."""
        self.seconds = seconds
        self._stop = threading.Event() if stop is None else stop
        self._start = time.monotonic()

    @property
    def stopped(self) -> bool:
        """Whether somebody wants the operation to end."""
        return self._stop.is_set()

    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    def remaining(self) -> float:
        """Seconds left; negative when the time is over."""
        return self.seconds - self.elapsed()

    def check(self) -> None:
        """Ends an attempt whose time is over.

        Raises:
            OutOfTime: There is no time left, or somebody wants the operation to end.
        """
        if self.stopped:
            raise OutOfTime("the reader was closed")
        if self.remaining() <= 0:
            raise OutOfTime("the time was over while the store was still answering")

    def sleep(self, seconds: float) -> None:
        """Waits, but not longer than somebody wants the operation to last.

        Args:
            seconds: Seconds to wait; the caller has compared them with what is left.
        """
        self._stop.wait(seconds)


class Retrier:
    """Runs operations until they succeed, fail for good or run out of time. Thread-safe.

    Args:
        policy: How long and how often.
        on_retry: Called before each further attempt, to count it.
    """

    def __init__(self, policy: RetryPolicy, on_retry: Callable[[], None] | None = None) -> None:
        """Starts without operations."""
        self.policy = policy
        self.on_retry = on_retry
        self._lock = threading.Lock()
        self._stops: weakref.WeakSet[threading.Event] = weakref.WeakSet()

    def new_stop(self) -> threading.Event:
        """Makes the event that ends an operation; `close` sets it too.

        Returns:
            An event for `run`, which several calls that belong together may share.
        """
        stop = threading.Event()
        with self._lock:
            self._stops.add(stop)
        return stop

    def run[T](
        self,
        attempt: Callable[[Deadline], T],
        what: str,
        *,
        num_bytes: int = 0,
        stop: threading.Event | None = None,
    ) -> T:
        """Attempts something until it succeeds.

        Args:
            attempt: Does it once; gets the deadline, so that no time-out of its own goes beyond it. Raises
                `TransientFault` when another attempt makes sense; everything else it raises is final.
            what: What is attempted, for messages: store, path and range.
            num_bytes: Bytes that are moved, which the deadline allows for.
            stop: What `new_stop` made; None makes one.

        Returns:
            What `attempt` returned.

        Raises:
            FetchError: Time was over, or the reader was closed meanwhile.
        """
        stop = self.new_stop() if stop is None else stop
        deadline = Deadline(self.policy.deadline_s + num_bytes / self.policy.min_bytes_per_s, stop)
        attempts, spoke = 0, False
        last: TransientFault | None = None
        while True:
            attempts += 1
            try:
                return attempt(deadline)
            except TransientFault as fault:
                # What the store did before says more than that the time was over in the end.
                last = last if last is not None and isinstance(fault, OutOfTime) else fault
                wait = self._wait_before(attempts, fault, deadline)
                if wait is None:
                    raise FetchError(_give_up(what, attempts, last, deadline)) from last
                if not spoke and deadline.elapsed() + wait > _SPEAK_UP_S:
                    spoke = True
                    _logger.warning(
                        "%s: %s. Attempt %d of %.0f s so far failed; trying for up to %.0f s.",
                        what,
                        fault,
                        attempts,
                        deadline.elapsed(),
                        deadline.seconds,
                    )
            if self.on_retry is not None:
                self.on_retry()
            deadline.sleep(wait)

    def close(self) -> None:
        """Ends the waits of all running operations; later ones run as before."""
        with self._lock:
            stops = list(self._stops)
        for stop in stops:
            stop.set()

    def _wait_before(self, attempts: int, fault: TransientFault, deadline: Deadline) -> float | None:
        """Seconds before the next attempt, None when there is no time for one."""
        remaining = deadline.remaining()
        if deadline.stopped or remaining <= 0:
            return None
        policy = self.policy
        # Scattered, so that threads and ranks that failed together do not come back together.
        backoff = min(policy.max_wait_s, policy.first_wait_s * 2.0 ** min(attempts - 1, 30))
        backoff *= _random.uniform(0.5, 1.0)
        if fault.wait_s is not None:
            wait = fault.wait_s + (min(backoff, policy.first_wait_s) if fault.throttled else 0.0)
            return wait if wait < remaining else None
        # The last attempts come closer together, so that a store that is back just in time is not missed.
        wait = min(backoff, remaining / 2)
        return wait if remaining > policy.first_wait_s / 10 else None


def _give_up(what: str, attempts: int, fault: TransientFault, deadline: Deadline) -> str:
    tries = f"{attempts} attempt{'' if attempts == 1 else 's'} in {deadline.elapsed():.1f} s"
    if deadline.stopped:
        return f"{what} was given up after {tries}, because the reader was closed; last fault: {fault}"
    advice = "check the network and the store, or allow more time"
    if fault.wait_s:
        advice = f"the store asks to wait {fault.wait_s:.0f} s, come back later"
    return f"{what} failed: {tries} (limit {deadline.seconds:.1f} s), last fault: {fault}; {advice}"
