"""Requests, answers and routes of the loopback Hub, apart from sockets."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.support.hub.blobs import Blob

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


@dataclass(frozen=True)
class Incoming:
    """A request that has been read.

    Args:
        method: HTTP method.
        path: Path, percent-encoded.
        query: Query without the question mark.
        headers: Headers, names in lower case.
        body: The body.
    """

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes

    def parameter(self, name: str) -> str | None:
        """Give the first value of a query parameter.

        Args:
            name: Its name.

        Returns:
            The value, or None.
        """
        return parse_qs(self.query).get(name, [None])[0]

    def flag(self, name: str) -> bool:
        """Say whether a query parameter is switched on.

        Args:
            name: Its name.

        Returns:
            Whether it is.
        """
        return (self.parameter(name) or "").lower() in {"1", "true"}

    @property
    def token(self) -> str | None:
        """The bearer token, if there is one."""
        kind, _, value = self.headers.get("authorization", "").partition(" ")
        return value.strip() if kind.lower() == "bearer" else None

    def json(self) -> Any:
        """Parse the body.

        Returns:
            The value; an empty body is an empty object.
        """
        return json.loads(self.body or b"{}")


@dataclass(frozen=True)
class Part:
    """A part of a content as a body.

    Args:
        blob: The content.
        start: First byte.
        stop: Byte behind the last.
    """

    blob: Blob
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass
class Answer:
    """An answer.

    Args:
        status: HTTP status.
        headers: Headers without Content-Length.
        body: Body; a HEAD request gets its length only.
    """

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | Part = b""


class Refused(Exception):  # noqa: N818  # It is an answer that takes a short cut.
    """Ends a handler with an error answer, in the form that the Hub's client reads.

    Args:
        status: HTTP status.
        message: For a person.
        code: Value of X-Error-Code, by which the client tells the errors apart; None: no header.
        headers: More headers.
    """

    def __init__(
        self, status: int, message: str, code: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.answer = as_json({"error": message}, status)
        self.answer.headers |= {"X-Error-Message": message, **(headers or {})}
        if code is not None:
            self.answer.headers["X-Error-Code"] = code


def as_json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Answer:
    """Answer with JSON.

    Args:
        value: What to write.
        status: HTTP status.
        headers: More headers.

    Returns:
        The answer.
    """
    return Answer(
        status,
        {"Content-Type": "application/json; charset=utf-8", **(headers or {})},
        json.dumps(value).encode(),
    )


def as_content(request: Incoming, blob: Blob, headers: Mapping[str, str]) -> Answer:
    """Answer with a content, or the part of it that the Range header asks for.

    Several ranges at once are answered with the whole content, as HTTP allows.

    Args:
        request: The request.
        blob: The content.
        headers: More headers, among them the ETag.

    Returns:
        Status 200 or 206, 304 or 412 where the preconditions say so, or 416.
    """
    common = {"Accept-Ranges": "bytes", "Content-Type": "application/octet-stream", **headers}
    etag = common.get("ETag")
    if request.headers.get("if-match", etag) != etag:
        return Answer(412, common)
    if etag is not None and request.headers.get("if-none-match") == etag:
        return Answer(304, common)
    match = _RANGE.fullmatch(request.headers.get("range", ""))
    if match is None or match[0] == "bytes=-" or request.headers.get("if-range", etag) != etag:
        return Answer(200, common, Part(blob, 0, blob.size))
    if match[1]:
        start, stop = int(match[1]), min(int(match[2]) + 1, blob.size) if match[2] else blob.size
    else:
        start, stop = max(0, blob.size - int(match[2])), blob.size
    if start >= stop:
        return Answer(416, {**common, "Content-Range": f"bytes */{blob.size}"})
    return Answer(
        206, {**common, "Content-Range": f"bytes {start}-{stop - 1}/{blob.size}"}, Part(blob, start, stop)
    )


class Routes:
    """Handlers by method and path. Groups of the path's pattern come to the handler percent-encoded."""

    def __init__(self) -> None:
        self._routes: list[tuple[str, re.Pattern[str], Callable[[Incoming, dict[str, str]], Answer]]] = []

    def add(self, methods: str, pattern: str, handler: Callable[[Incoming, dict[str, str]], Answer]) -> None:
        """Add a route.

        Args:
            methods: HTTP methods, separated by spaces.
            pattern: Regular expression of the whole path, with named groups; `{id}` is owner and name.
            handler: What answers.
        """
        compiled = re.compile(pattern.replace("{id}", r"(?P<id>[^/]+/[^/]+)"))
        self._routes += [(method, compiled, handler) for method in methods.split()]

    def __call__(self, request: Incoming) -> Answer:
        """Answer a request.

        Args:
            request: The request.

        Returns:
            The handler's answer, or that of its refusal; 404 where no route leads.
        """
        for method, pattern, handler in self._routes:
            if method == request.method and (match := pattern.fullmatch(request.path)):
                try:
                    return handler(request, {k: v for k, v in match.groupdict().items() if v is not None})
                except Refused as refused:
                    return refused.answer
        return Refused(404, f"the loopback Hub has no route {request.method} {request.path}").answer
