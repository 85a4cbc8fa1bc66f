"""What the loopback Hub was asked and what it answered."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Literal

Host = Literal["hub", "cdn"]
"""The Hub's own origin, or the one that signed URLs lead to."""


@dataclass
class Request:
    """One request. `status` and `bytes_sent` are written before the bytes they describe leave the server.

    Args:
        host: The origin that got it.
        method: HTTP method.
        path: Path as it was sent, percent-encoded, without the query.
        query: Query as it was sent, without the question mark.
        headers: Its headers, names in lower case.
        connection: Number of the TCP connection, counted over both origins from 1.
        time: Arrival, in seconds of `time.monotonic`.
        status: Status of the answer; 0 while there is none, and for a connection dropped before one.
        bytes_sent: Bytes of the answer's body.
        fault: Name of the fault that was applied to it, if any.
    """

    host: Host
    method: str
    path: str
    query: str
    headers: dict[str, str]
    connection: int
    time: float = field(default_factory=time.monotonic)
    status: int = 0
    bytes_sent: int = 0
    fault: str | None = None

    @property
    def authorization(self) -> str | None:
        """The Authorization header, if there was one."""
        return self.headers.get("authorization")

    @property
    def range(self) -> str | None:
        """The Range header, if there was one."""
        return self.headers.get("range")


class RequestLog:
    """All requests in order of arrival, over both origins."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: list[Request] = []

    def add(self, request: Request) -> None:
        """Take a request in.

        Args:
            request: It; the server goes on writing to it.
        """
        with self._lock:
            self._requests.append(request)

    def snapshot(self) -> list[Request]:
        """Give all requests so far.

        Returns:
            A list of its own; the requests are the log's.
        """
        with self._lock:
            return list(self._requests)

    def clear(self) -> None:
        """Forget all requests."""
        with self._lock:
            self._requests.clear()
