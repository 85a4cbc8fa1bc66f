"""Completes a sidecar in the background of a run that started without one."""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401  Registers what `_stop_running` must come before.
import logging
import os
import threading
import weakref
from typing import TYPE_CHECKING

from lerobot_streaming.errors import (
    BadVideoFilesError,
    FetchError,
    PipelineClosedError,
    SidecarError,
    SidecarLockTimeoutError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_logger = logging.getLogger(__name__)

_JOIN_TIMEOUT_S = 5.0


class Completion:
    """A thread that builds the complete sidecar, and that ends early without harm.

    What it has indexed when the process ends lies in the part store, and the next run goes on from there.
    """

    def __init__(
        self,
        build: Callable[[threading.Event], None],
        end_waits: Callable[[], None] | None = None,
        *,
        delay_s: float = 0.0,
    ) -> None:
        """Starts the thread.

        Args:
            build: Builds and installs the sidecar; raises PipelineClosedError soon after the event it is
                given is set.
            end_waits: Ends what `build` waits for, which may be storage that stays away for long.
            delay_s: Seconds before it begins.
        """
        self._build = build
        self._end_waits = end_waits
        self._delay_s = delay_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lerobot-streaming-complete", daemon=True)
        _running.add(self)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread after the files that it is reading."""
        self._stopped.set()
        if self._end_waits is not None:
            self._end_waits()
        self._thread.join(_JOIN_TIMEOUT_S)

    def join(self, timeout_s: float) -> bool:
        """Waits for the thread to end by itself.

        Args:
            timeout_s: Seconds to wait.

        Returns:
            Whether it has ended.
        """
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        if self._stopped.wait(self._delay_s):
            return
        try:
            self._build(self._stopped)
        except (PipelineClosedError, SidecarLockTimeoutError):
            return  # The process ends, or another process completes the sidecar already.
        except BadVideoFilesError as error:
            _logger.warning("the video index stays incomplete: %s", error)
        except (SidecarError, FetchError, OSError) as error:
            if self._stopped.is_set():
                return  # Its waits were ended, which is what such an error then means.
            _logger.warning("the video index could not be completed, the next run tries again: %s", error)


_running: weakref.WeakSet[Completion] = weakref.WeakSet()


def _stop_running() -> None:
    for completion in list(_running):
        completion.stop()


# The threads of an executor are waited for before `atexit` has its turn. The callbacks run last in, first
# out, so this one must come after the executor's own.
getattr(threading, "_register_atexit", atexit.register)(_stop_running)


# A forked process has none of the threads.
os.register_at_fork(after_in_child=_running.clear)
