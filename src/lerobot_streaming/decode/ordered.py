"""A bounded, ordered queue of work: whatever finishes first, results leave in the order of submission."""

from __future__ import annotations

from collections import deque
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from time import perf_counter
from typing import TYPE_CHECKING, Final

from lerobot_streaming.errors import DecodeStallError
from lerobot_streaming.threads import join_all

if TYPE_CHECKING:
    from collections.abc import Callable

STALL_TIMEOUT_S: Final = 120.0
"""Seconds after which one decode that has not returned is an error. Ordinary decodes take milliseconds."""


_PATIENCE_S: Final = 0.05
"""Seconds that a consumer who has to wait gives the threads to finish several items."""


class Activity:
    """What a thread does now, for the stall timeout."""

    __slots__ = ("activity", "busy_since")

    def __init__(self) -> None:
        """Makes one that has not begun."""
        self.activity = ""
        self.busy_since: float | None = None

    def begin(self, activity: str) -> None:
        """Notes what a thread does now, from here on under the stall timeout.

        Args:
            activity: What is being done to which file, for the message.
        """
        self.activity = activity
        self.busy_since = perf_counter()

    def end(self) -> None:
        """Notes that it has returned."""
        self.busy_since = None

    def check(self, timeout_s: float) -> None:
        """Raises when it takes too long.

        Args:
            timeout_s: Seconds that it may take.

        Raises:
            DecodeStallError: It has not returned within them.
        """
        # None before a thread has begun and again once it is done.
        since = self.busy_since
        if since is not None and perf_counter() - since > timeout_s:
            raise DecodeStallError(
                f"{self.activity} has not returned within {timeout_s:g} s. The file is probably damaged "
                "there: check it, or leave the episode out with `episodes=[...]`."
            )


class Slot[Task, Result](Activity):
    """One piece of work between submission and delivery."""

    __slots__ = ("_done", "_task", "error", "result")

    def __init__(self, task: Task) -> None:
        """Makes a slot whose work has not begun."""
        super().__init__()
        self._task: Task | None = task
        self.result: Result | None = None
        self.error: BaseException | None = None
        # Held until the work is done: waiting for a bare lock costs no more than the wait itself.
        self._done = Lock()
        self._done.acquire()

    def take(self) -> Task:
        """Hands the task over: the slot, which may wait long for its delivery, no longer refers to it.

        Returns:
            The task; to be taken once.
        """
        task, self._task = self._task, None
        return task  # type: ignore[return-value]  # Set until it is taken.

    @property
    def taken(self) -> bool:
        """Whether a thread has the task."""
        return self._task is None

    @property
    def done(self) -> bool:
        """Whether the result, or the error, is there."""
        return not self._done.locked()

    def finish(self) -> None:
        """Lets the consumer have the result; called once."""
        self.end()
        self._done.release()

    def wait(self, timeout_s: float) -> bool:
        """Waits for the work to be done; only one thread, and only until it is.

        Args:
            timeout_s: Seconds to wait.

        Returns:
            Whether it is done.
        """
        return self._done.acquire(timeout=timeout_s)

    def look(self, timeout_s: float) -> None:
        """Waits for the work to be done, but leaves the result for a later `wait`.

        Args:
            timeout_s: Seconds to wait.
        """
        if self._done.acquire(timeout=timeout_s):
            self._done.release()


class OrderedPipeline[Task, Result]:
    """Threads that work on tasks and one consumer that takes the results in order.

    Args:
        work: Turns a slot's task into its result, in one of the threads.
        threads: Number of threads.
        name: Prefix of their names.
        idle: What a thread may do while no task waits, noting it in the thread's activity; says whether there
            was something to do. When there was not, the thread asks again after its next task. It must not
            raise.
        stall_timeout_s: Seconds that one begun activity may take.
    """

    def __init__(
        self,
        work: Callable[[Slot[Task, Result]], Result],
        *,
        threads: int,
        name: str,
        idle: Callable[[Activity], bool] = lambda _: False,
        stall_timeout_s: float = STALL_TIMEOUT_S,
    ) -> None:
        """Starts the threads."""
        self._work = work
        self._idle = idle
        self._stall_timeout_s = stall_timeout_s
        self._slots: deque[Slot[Task, Result]] = deque()
        self._waiting: SimpleQueue[Slot[Task, Result] | None] = SimpleQueue()
        self._closed = False
        self._idling = [Activity() for _ in range(threads)]
        self._threads = [
            Thread(target=self._run, args=(idling,), name=f"{name}-{number}", daemon=True)
            for number, idling in enumerate(self._idling)
        ]
        for thread in self._threads:
            thread.start()

    def __len__(self) -> int:
        """Tasks that were submitted and not delivered."""
        return len(self._slots)

    @property
    def num_finished(self) -> int:
        """Results that wait for delivery."""
        return sum(slot.done for slot in list(self._slots))

    def submit(self, task: Task) -> None:
        """Adds a task.

        Args:
            task: What the threads' function gets.
        """
        slot: Slot[Task, Result] = Slot(task)
        self._slots.append(slot)
        self._waiting.put(slot)

    def pop(self) -> Result:
        """Waits for the oldest task.

        Returns:
            Its result.

        Raises:
            DecodeStallError: What the task's thread does has not returned within the stall timeout, or no
                thread has taken the task and what an idle one does has not.
            BaseException: What the task's thread raised.
        """
        slot = self._slots[0]
        if not slot.done:
            # Half of the queue at once: to wake for every single item costs the threads more, in changes of
            # hands of the interpreter's lock, than the items themselves.
            self._slots[len(self._slots) // 2].look(_PATIENCE_S)
        while not slot.wait(min(1.0, self._stall_timeout_s / 4)):
            slot.check(self._stall_timeout_s)
            if not slot.taken:
                self.check_idle()
        self._slots.popleft()
        if slot.error is not None:
            raise slot.error
        return slot.result  # type: ignore[return-value]  # Set together with `done` when there is no error.

    def check_idle(self) -> None:
        """Raises when what an idle thread does takes too long.

        Raises:
            DecodeStallError: It has not returned within the stall timeout.
        """
        for idling in self._idling:
            idling.check(self._stall_timeout_s)

    def close(self) -> None:
        """Stops the threads: work that has not begun is dropped, work under way goes on."""
        self._closed = True
        self._slots.clear()
        for _ in self._threads:
            self._waiting.put(None)

    def join(self, timeout_s: float) -> bool:
        """Waits for the threads to end.

        Args:
            timeout_s: Seconds to wait in all.

        Returns:
            Whether every thread has ended.
        """
        return join_all(self._threads, timeout_s)

    def _run(self, idling: Activity) -> None:
        idle = self._idle
        while True:
            try:
                slot = self._waiting.get_nowait()
            except Empty:
                found = not self._closed and idle(idling)
                idling.end()
                if found:
                    continue
                slot = self._waiting.get()
            if slot is None or self._closed:
                return
            try:
                slot.result = self._work(slot)
            except BaseException as error:  # noqa: BLE001  The consumer raises it, whatever it is.
                slot.error = error
            slot.finish()
            # An idle thread must not keep the last result alive.
            del slot
