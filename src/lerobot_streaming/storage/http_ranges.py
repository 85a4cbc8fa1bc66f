"""Byte ranges over HTTPS: each answer is checked before a byte of it counts."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Final
from urllib.parse import urljoin

from lerobot_streaming.errors import AccessError, ChangedFileError
from lerobot_streaming.storage.http_session import HttpSession, host_of, origin_of
from lerobot_streaming.storage.hub_api import plain_etag
from lerobot_streaming.storage.hub_refusals import HubSubject, refusal, transient_fault
from lerobot_streaming.storage.retry import TransientFault

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx

    from lerobot_streaming.storage.governor import Governor
    from lerobot_streaming.storage.hub_api import HubApi, Location
    from lerobot_streaming.storage.locations import Locations
    from lerobot_streaming.storage.retry import Deadline

_CONTENT_RANGE: Final = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)", re.IGNORECASE)
_MAX_REDIRECTS: Final = 5
_MAX_REFUSALS: Final = 3
# What content hosts say to a signature that is too old, and to an object that is not there any more.
_STALE_STATUSES: Final = frozenset({400, 401, 403, 404, 410})


class RangeReads:
    """What all reads of one reader share.

    Args:
        session: The HTTP client.
        api: The Hub.
        governor: Lends slots for requests.
        locations: Where files are.
        subject: Names a file, for messages.
    """

    def __init__(
        self,
        session: HttpSession,
        api: HubApi,
        governor: Governor,
        locations: Locations,
        subject: Callable[[str], HubSubject],
    ) -> None:
        """Reads nothing yet."""
        self.session = session
        self.api = api
        self.governor = governor
        self.locations = locations
        self.subject = subject


class RangeRead:
    """One range on its way into a buffer. What has come stays when an attempt fails later.

    Args:
        reads: What all reads share.
        path: POSIX path below the root.
        offset: First byte in the file.
        view: Buffer of bytes; it is filled from its start.
    """

    def __init__(self, reads: RangeReads, path: str, offset: int, view: memoryview) -> None:
        """Reads nothing yet."""
        self._reads = reads
        self._path = path
        self._offset = offset
        self._view = view
        self._got = 0
        self._stale: Location | None = None
        self._refusals = 0
        self._mismatches = 0

    def attempt(self, deadline: Deadline) -> None:
        """Reads what is missing, in one request.

        Args:
            deadline: Bounds the request.

        Raises:
            TransientFault: Another attempt makes sense.
            ChangedFileError: The file is not the one that it was.
            MissingFileError: There is no such file.
            AccessError: The Hub, or the host of the content, refuses.
        """
        reads = self._reads
        location = reads.locations.get(self._path, deadline, self._stale)
        self._stale = None
        with reads.governor.slot(host_of(location.url), deadline):
            self._follow(location, deadline)

    def _follow(self, location: Location, deadline: Deadline) -> None:
        """Sends the request, following redirects by hand, so that no token goes along to another host."""
        first = self._offset + self._got
        last = self._offset + self._view.nbytes - 1
        url = location.url
        for _ in range(_MAX_REDIRECTS):
            headers = {**self._reads.api.headers_for(url), "range": f"bytes={first}-{last}"}
            with self._reads.session.stream("GET", url, headers, deadline) as response:
                if not response.has_redirect_location:
                    self._check_status(response, location, url, has_token="authorization" in headers)
                    self._check_range(response, location, first, last)
                    self._receive(response, last - first + 1, deadline)
                    return
                url = urljoin(url, response.headers["location"])
        raise TransientFault(f"{host_of(location.url)} redirected more than {_MAX_REDIRECTS} times")

    def _check_status(
        self, response: httpx.Response, location: Location, url: str, *, has_token: bool
    ) -> None:
        status = response.status_code
        if status < 400:
            return
        fault = transient_fault(response)
        if fault is not None:
            raise fault
        subject = self._reads.subject(self._path)
        if origin_of(url) == origin_of(self._reads.api.endpoint):
            error = refusal(response, subject, has_token=has_token)
            if error is not None:
                raise error
        text = f"{status} {response.reason_phrase} from {host_of(url)}"
        if status not in _STALE_STATUSES and status != 416:
            raise AccessError(f"{text} for {subject}, which no retry mends")
        self._refusals += 1
        if self._refusals >= _MAX_REFUSALS:
            raise AccessError(
                f"{text} for {subject}, even with a location that the Hub has just given; check the clock of "
                "this machine and the proxies on the way"
            )
        self._stale = location
        # The first time it is most likely an old signature, which a new one mends at once.
        raise TransientFault(text, wait_s=0.0 if self._refusals == 1 else None)

    def _check_range(self, response: httpx.Response, location: Location, first: int, last: int) -> None:
        status, headers = response.status_code, response.headers
        host = host_of(str(response.request.url))
        size, length = location.size, last - first + 1
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise TransientFault(f"{host} encoded the bytes as '{headers['content-encoding']}'")
        if not self._reads.locations.check_etag(self._path, location, plain_etag(headers.get("etag"))):
            self._mismatch(location, f"{host} has another object now, with ETag {headers.get('etag')}")
        if status == 200 and length == size:
            pass  # All was asked for, and all is what comes.
        elif status != 206:
            raise TransientFault(
                f"{host} answered {status} with the whole file instead of 206 with the range"
            )
        else:
            found = _CONTENT_RANGE.fullmatch(headers.get("content-range", ""))
            if found is None or (int(found[1]), int(found[2])) != (first, last):
                raise TransientFault(
                    f"{host} answered a request for bytes {first}-{last} with Content-Range "
                    f"'{headers.get('content-range')}'"
                )
            if found[3] != "*" and int(found[3]) != size:
                self._mismatch(location, f"{host} says that the file has {found[3]} bytes, not {size}")
        promised = headers.get("content-length")
        if promised is not None and promised != str(length):
            raise TransientFault(f"{host} announced {promised} bytes for a range of {length}")

    def _mismatch(self, location: Location, text: str) -> None:
        """Asks the Hub before it believes a content host that speaks of another object."""
        self._mismatches += 1
        if self._mismatches >= _MAX_REFUSALS:
            raise ChangedFileError(
                f"{self._reads.subject(self._path)} changed while the run was reading it: {text}; start again"
            )
        self._stale = location
        raise TransientFault(text)

    def _receive(self, response: httpx.Response, length: int, deadline: Deadline) -> None:
        start = self._got
        for chunk in response.iter_raw():
            deadline.check()
            end = self._got + len(chunk)
            if end - start > length:
                self._got = start
                raise TransientFault(f"more than the {length} bytes of the range came")
            self._view[self._got : end] = chunk
            self._got = end
        if self._got - start < length:
            raise TransientFault(f"short body, {self._got - start} of {length} bytes came")


def split_range(view: memoryview, parts: int) -> list[tuple[int, memoryview]]:
    """Cuts a buffer into parts of about the same size.

    Args:
        view: Buffer of bytes.
        parts: How many; at least 1.

    Returns:
        For each part its distance from the start of the buffer in bytes, and itself.
    """
    step = -(-view.nbytes // parts)
    return [(start, view[start : start + step]) for start in range(0, view.nbytes, step)]


def run_together(jobs: list[Callable[[], None]], stop: threading.Event) -> None:
    """Runs jobs at the same time, the first one in this thread.

    Args:
        jobs: At least one.
        stop: Set when one fails, so that the others end early.

    Raises:
        BaseException: What the first job to fail raised.
    """
    errors: list[BaseException] = []

    def work(job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:  # noqa: BLE001 - raised below, in the thread that asked
            errors.append(error)
            stop.set()

    threads = [threading.Thread(target=work, args=(job,), name="subrange") for job in jobs[1:]]
    for thread in threads:
        thread.start()
    work(jobs[0])
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
