"""Threads that are ended together, and threads that nobody waits for."""

from __future__ import annotations

from concurrent.futures import Future, wait
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Thread
from time import perf_counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

_LOOK_UP_S: Final = 0.5


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


def result_of[T](future: Future[T]) -> T:
    """Waits for a result so that Ctrl-C always gets through.

    A signal that arrives just before the main thread begins to wait does not end a wait without time limit.

    Args:
        future: What gives the result.

    Returns:
        The result, or raises what the call raised.
    """
    while True:
        wait([future], timeout=_LOOK_UP_S)
        if future.done():
            return future.result()


class DaemonPool:
    """A few threads that run calls, as `ThreadPoolExecutor` does, but do not keep the process alive.

    That one's threads are waited for when the interpreter ends, and a read of a store that is away may last
    for minutes.

    Args:
        threads: Calls that run at a time; at least 1.
        name: Name of the threads.
    """

    def __init__(self, threads: int, name: str) -> None:
        """Starts the threads."""
        self._calls: SimpleQueue[tuple[Future[object], Callable[[], object]] | None] = SimpleQueue()
        self._threads = [
            Thread(target=self._run, name=f"{name}-{number}", daemon=True) for number in range(threads)
        ]
        self._closed = False
        for thread in self._threads:
            thread.start()

    def submit[T](self, call: Callable[[], T]) -> Future[T]:
        """Runs a call in one of the threads.

        Args:
            call: The call.

        Returns:
            Its result.
        """
        future: Future[T] = Future()
        self._calls.put((future, call))  # type: ignore[arg-type]  # The queue forgets which type it is.
        return future

    def map[S, T](self, call: Callable[[S], T], arguments: Iterable[S]) -> list[T]:
        """Runs a call for each argument; the first error ends it, and what runs then is not waited for.

        Args:
            call: The call.
            arguments: Its arguments.

        Returns:
            The results, in order.
        """
        futures = [self.submit(lambda argument=argument: call(argument)) for argument in arguments]  # type: ignore[misc]
        return [result_of(future) for future in futures]

    def close(self) -> None:
        """Lets the threads end after the calls that they are running; calls that wait are dropped."""
        self._closed = True
        for _ in self._threads:
            self._calls.put(None)

    def _run(self) -> None:
        while True:
            work = self._calls.get()
            if work is None or self._closed:
                return
            future, call = work
            try:
                future.set_result(call())
            except BaseException as error:  # noqa: BLE001  Whoever takes the result raises it.
                future.set_exception(error)
            # An idle thread must not keep the last result alive.
            del work, future, call


@contextmanager
def daemon_pool(threads: int, name: str) -> Iterator[DaemonPool]:
    """Opens a pool and closes it afterwards, whatever happens, without waiting for calls that run.

    Args:
        threads: Calls that run at a time; at least 1.
        name: Name of the threads.

    Yields:
        The pool.
    """
    pool = DaemonPool(threads, name)
    try:
        yield pool
    finally:
        pool.close()
