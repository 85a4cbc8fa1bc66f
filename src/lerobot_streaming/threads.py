"""Ending threads together."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from threading import Thread


def join_all(threads: Sequence[Thread], timeout_s: float) -> bool:
    """Waits for threads to end.

    Args:
        threads: The threads.
        timeout_s: Seconds to wait in all.

    Returns:
        Whether every thread has ended.
    """
    deadline = perf_counter() + timeout_s
    for thread in threads:
        thread.join(max(0.0, deadline - perf_counter()))
    return not any(thread.is_alive() for thread in threads)
