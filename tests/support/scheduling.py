"""Undoes what libsvtav1 does to the process that encodes with it."""

from __future__ import annotations

import os


def leave_realtime() -> None:
    """Give up real-time scheduling, which libsvtav1 turns on in a process of root that encodes AV1.

    Threads and processes started later inherit it: they keep everything else off the machine's cores, and
    each other too, since a first-in-first-out thread is not preempted by its equals.
    """
    if os.sched_getscheduler(0) != os.SCHED_OTHER:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
