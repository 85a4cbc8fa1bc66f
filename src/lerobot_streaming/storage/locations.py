"""Where files are, asked once and shared by all threads, and whether they are still the same files."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lerobot_streaming.errors import ChangedFileError, FetchError, StreamingError
from lerobot_streaming.storage.http_session import host_of
from lerobot_streaming.storage.retry import TransientFault

if TYPE_CHECKING:
    from collections.abc import Callable

    from lerobot_streaming.storage.hub_api import Location
    from lerobot_streaming.storage.retry import Deadline

_LOOK_UP_S = 0.25


@dataclass(slots=True)
class _Flight:
    """One question that is on its way, and who waits for its answer."""

    done: threading.Event = field(default_factory=threading.Event)
    found: Location | None = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Pin:
    """What a file was when it was first seen.

    Attributes:
        size: Size in bytes; None when unknown.
        identity: Hash or ETag; None when unknown.
    """

    size: int | None
    identity: str | None


class Locations:
    """A table of locations that only one thread fills at a time. Thread-safe.

    Args:
        locate: Asks for one file's location, once.
        root: Root of the files, for messages.
    """

    def __init__(self, locate: Callable[[str, Deadline], Location], root: str) -> None:
        """Knows nothing yet."""
        self._locate = locate
        self._root = root
        self._lock = threading.Lock()
        self._known: dict[str, Location] = {}
        self._flights: dict[str, _Flight] = {}
        self._pins: dict[str, Pin] = {}
        self._etags: dict[tuple[str, str], str] = {}

    def pin(self, path: str, size: int, identity: str | None) -> None:
        """Remembers what a listing says of a file, unless something is known already.

        Args:
            path: POSIX path below the root.
            size: Size in bytes.
            identity: Content hash, in the spelling of the Hub's answers for files; None when it has none.
        """
        with self._lock:
            self._pins.setdefault(path, Pin(size, identity))

    def pins(self) -> dict[str, Pin]:
        """Says what all files were when they were first seen.

        Returns:
            Path -> pin.
        """
        with self._lock:
            return dict(self._pins)

    def take_over(self, other: Locations) -> None:
        """Learns what another table knows; for a forked child, in which the other's lock is of no use.

        Args:
            other: A table of the same files.
        """
        self._known = dict(other._known)
        self._pins = dict(other._pins)
        self._etags = dict(other._etags)

    def pinned(self, path: str) -> Pin | None:
        """Says what a file was when it was first seen.

        Args:
            path: POSIX path below the root.

        Returns:
            Its pin, or None.
        """
        with self._lock:
            return self._pins.get(path)

    def get(self, path: str, deadline: Deadline, stale: Location | None = None) -> Location:
        """Finds a file, asking only if no other thread has, or does.

        Args:
            path: POSIX path below the root.
            deadline: Bounds the question and the wait for another thread's.
            stale: A location that does not serve any more; another one is asked for unless it is here.

        Returns:
            The location, with a size.

        Raises:
            ChangedFileError: The file is not the one that it was.
            MissingFileError: There is no such file.
            AccessError: The Hub refuses.
            TransientFault: The Hub could not be asked now.
            FetchError: Every other answer.
        """
        with self._lock:
            known = self._known.get(path)
            if known is not None and known is not stale:
                return known
            flight = self._flights.get(path)
            leads = flight is None
            if flight is None:
                flight = self._flights[path] = _Flight()
        if leads:
            return self._lead(path, flight, deadline)
        return self._follow(flight, deadline)

    def check_etag(self, path: str, location: Location, etag: str | None) -> bool:
        """Compares the ETag that a content host gives with the first one of the same host.

        Args:
            path: POSIX path below the root.
            location: Where the answer came from.
            etag: What it said; None when it said nothing.

        Returns:
            Whether it is the same, or the first.
        """
        if etag is None:
            return True
        with self._lock:
            return self._etags.setdefault((path, host_of(location.url)), etag) == etag

    def _lead(self, path: str, flight: _Flight, deadline: Deadline) -> Location:
        try:
            found = self._check(path, self._locate(path, deadline))
            with self._lock:
                self._known[path] = found
            flight.found = found
        except BaseException as error:
            flight.error = error
            raise
        finally:
            with self._lock:
                del self._flights[path]
            flight.done.set()
        return found

    def _follow(self, flight: _Flight, deadline: Deadline) -> Location:
        while not flight.done.wait(_LOOK_UP_S):
            deadline.check()
        if flight.found is not None:
            return flight.found
        error = flight.error
        # A copy for each thread: raising one object in several would mix up their tracebacks.
        if isinstance(error, TransientFault):
            raise TransientFault(str(error), wait_s=error.wait_s, throttled=error.throttled) from error
        if isinstance(error, StreamingError):
            raise type(error)(*error.args) from error
        raise TransientFault("the thread that asked for the file was interrupted") from error

    def _check(self, path: str, found: Location) -> Location:
        with self._lock:
            first = self._pins.setdefault(path, Pin(found.size, found.identity))
            size = first.size if found.size is None else found.size
            if size is None:
                raise FetchError(
                    f"the Hub does not say how large '{path}' below '{self._root}' is, so no range can be "
                    "checked"
                )
            same = (first.size in {None, size}) and (
                first.identity is None or found.identity in {None, first.identity}
            )
            if not same:
                raise ChangedFileError(
                    f"'{path}' below '{self._root}' changed while the run was reading it: first {first}, now "
                    f"{found}; start again, on data that nobody writes to"
                )
            # A listing may know the size only, or the hash under another name.
            self._pins[path] = Pin(size, first.identity or found.identity)
            return type(found)(found.url, size, found.identity)
