"""Sockets of the loopback Hub: reads requests and writes answers, under the faults and over the link."""

from __future__ import annotations

import hashlib
import itertools
import socket
import sys
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any

from tests.support.hub import faults
from tests.support.hub.blobs import Blob
from tests.support.hub.http import Answer, Incoming, Part, Refused
from tests.support.hub.link import Link
from tests.support.hub.log import Request, RequestLog

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.hub.log import Host


_ERRANDS = {"/api/agent-harnesses"}
"""What every client process asks once, whatever it was started for: neither logged nor counted for faults."""


class Wire:
    """What both origins share.

    Args:
        log: Where requests are noted.
        rules: Faults in force.
    """

    def __init__(self, log: RequestLog, rules: faults.Faults) -> None:
        self.log = log
        self.rules = rules
        self.link = Link()
        self.errors: list[Exception] = []
        """Errors of the server itself: none is expected."""
        self.stopping = threading.Event()
        """Ends the pauses of faults."""
        self._connections = itertools.count(1)

    def number_connection(self) -> int:
        """Number a new connection.

        Returns:
            Its number, from 1.
        """
        return next(self._connections)


class Origin:
    """One origin, on an address that stays its own while it does not serve.

    Args:
        wire: What both origins share.
        host: Which of the two it is.
        address: IP address to listen on.
        name: Host name for its URL.
        answer: Gives the answers.
    """

    def __init__(
        self, wire: Wire, host: Host, address: str, name: str, answer: Callable[[Incoming], Answer]
    ) -> None:
        self._wire, self._host, self._answer = wire, host, answer
        # Bound but not listening: connections are refused, and nobody else gets the port meanwhile.
        self._holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._holder.bind((address, 0))
        self._address: tuple[str, int] = self._holder.getsockname()
        self.url = f"http://{name}:{self._address[1]}"
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Accept connections."""
        if self._server is not None:
            return
        self._server = _Server(self._address, self._wire, self._host, self._answer)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, name=f"loopback-{self._host}"
        )
        self._thread.start()

    def stop(self) -> None:
        """Refuse connections, and end all that are open."""
        if self._server is None or self._thread is None:
            return
        self._server.shutdown()
        self._thread.join()
        # A forked child holds the listening socket, too: closing ours would leave connections to it waiting.
        self._server.socket.shutdown(socket.SHUT_RDWR)
        self._server.server_close()
        self._server.end_connections()
        self._server = self._thread = None

    def close(self) -> None:
        """Stop, and give the port back."""
        self.stop()
        self._holder.close()


class _Server(ThreadingMixIn, TCPServer):
    # Not http.server's own class, which asks the name service about its address.
    daemon_threads = True
    allow_reuse_address = True
    block_on_close = False
    allow_reuse_port = True
    request_queue_size = 512

    def __init__(
        self, address: tuple[str, int], wire: Wire, host: Host, answer: Callable[[Incoming], Answer]
    ) -> None:
        self.wire, self.host, self.answer = wire, host, answer
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        super().__init__(address, _Connection)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def end_connections(self) -> None:
        with self._lock:
            for connection in self._open:
                _cut(connection)

    def handle_error(self, *args: Any) -> None:
        del args
        error = sys.exception()
        if isinstance(error, Exception) and not isinstance(error, OSError):
            self.wire.errors.append(error)


class _Dropped(Exception):  # noqa: N818  # Not an error: a fault was asked for.
    pass


class _Connection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def setup(self) -> None:
        super().setup()
        self._wire = self.server.wire
        self._number = self._wire.number_connection()
        self._is_new = True
        self._line = self._wire.link.connection()

    def _serve(self) -> None:
        path, _, query = self.path.partition("?")
        headers = {name.lower(): value for name, value in self.headers.items()}
        record = Request(self.server.host, self.command, path, query, headers, self._number)
        counts = path not in _ERRANDS
        if counts:
            self._wire.log.add(record)
        incoming = Incoming(self.command, path, query, headers, self._read_body(headers))
        action = self._wire.rules.pick(record) if counts else None
        self._wire.link.answer(new_connection=self._is_new)
        self._is_new = False
        try:
            self._send(record, self._faulty(incoming, action), action)
        except _Dropped:
            self.close_connection = True
            _cut(self.connection)

    # The names by which the base class finds a method's handler.
    do_GET = do_HEAD = _serve  # noqa: N815
    do_POST = do_PUT = do_DELETE = _serve  # noqa: N815

    def _read_body(self, headers: dict[str, str]) -> bytes:
        if headers.get("transfer-encoding", "").lower() != "chunked":
            return self.rfile.read(int(headers.get("content-length", 0)))
        body = bytearray()
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return bytes(body)

    def _faulty(self, incoming: Incoming, action: faults.Action | None) -> Answer:
        """Answer under the faults that change what is answered."""
        match action:
            case faults.Drop(None):
                raise _Dropped
            case faults.Status(code, retry_after, headers):
                answer = Refused(code, f"fault: status {code}", headers=headers).answer
                if retry_after is not None:
                    answer.headers["Retry-After"] = str(retry_after)
                return answer
            case faults.ExpiredSignature():
                return Refused(403, "Request has expired").answer
            case faults.SlowFirstByte(seconds):
                self._wire.stopping.wait(seconds)
            case faults.WholeFile():
                kept = {name: value for name, value in incoming.headers.items() if name != "range"}
                incoming = replace(incoming, headers=kept)
        try:
            answer = self.server.answer(incoming)
        except Exception as error:  # noqa: BLE001  # It is kept, and raised when the Hub is closed.
            self._wire.errors.append(error)
            return Refused(500, f"the loopback Hub failed: {error!r}").answer
        match action:
            case faults.ChangedObject():
                return _changed(answer)
            case faults.WrongContentRange(shift) if "Content-Range" in answer.headers:
                return _shifted(answer, shift)
            case faults.ShortBody(size):
                body = answer.body
                short = (
                    replace(body, stop=min(body.stop, body.start + size))
                    if isinstance(body, Part)
                    else body[:size]
                )
                return replace(answer, body=short)
        return answer

    def _send(self, record: Request, answer: Answer, action: faults.Action | None) -> None:
        record.status = answer.status
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if answer.status != 304:
            self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command == "HEAD" or answer.status == 304:
            return
        body = answer.body
        part = body if isinstance(body, Part) else Part(Blob(body, len(body), "", "", ""), 0, len(body))
        match action:
            case faults.Drop(int() as after):
                self._send_body(record, replace(part, stop=min(part.stop, part.start + after)))
                raise _Dropped
            case faults.Stall(seconds, after):
                middle = min(part.stop, part.start + after)
                self._send_body(record, replace(part, stop=middle))
                self._wire.stopping.wait(seconds)
                self._send_body(record, replace(part, start=middle))
            case _:
                self._send_body(record, part)

    def _send_body(self, record: Request, part: Part) -> None:
        link = self._wire.link
        for piece in part.blob.pieces(part.start, part.stop, link.piece_size):
            link.carry(len(piece), self._line)
            record.bytes_sent += len(piece)
            self.wfile.write(piece)

    def version_string(self) -> str:
        return "loopback-hub"

    def log_message(self, *args: Any) -> None:
        """The log is :attr:`Wire.log`."""


def _cut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return


def _shifted(answer: Answer, shift: int) -> Answer:
    span, _, size = answer.headers["Content-Range"].removeprefix("bytes ").partition("/")
    start, stop = (int(number) + shift for number in span.split("-"))
    return replace(answer, headers={**answer.headers, "Content-Range": f"bytes {start}-{stop}/{size}"})


def _changed(answer: Answer) -> Answer:
    """Invert the bytes, and give the headers that name a content other names."""
    headers = dict(answer.headers)
    for name in ("ETag", "X-Linked-ETag", "X-Xet-Hash"):
        if name in headers:
            other = hashlib.sha256(headers[name].encode()).hexdigest()
            headers[name] = other if name == "X-Xet-Hash" else f'"{other}"'
    body = answer.body
    if isinstance(body, Part):
        body = body.blob.read(body.start, body.stop).translate(bytes(255 - value for value in range(256)))
    return replace(answer, headers=headers, body=body)
