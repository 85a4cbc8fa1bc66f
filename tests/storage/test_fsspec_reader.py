"""fsspec stores that misbehave, and what they may show."""

from __future__ import annotations

import asyncio
import errno
import http.server
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ClassVar

import fsspec
import pytest
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import register_implementation

from lerobot_streaming.errors import (
    AccessError,
    ChangedFileError,
    FetchError,
    MissingFileError,
    OptionError,
)
from lerobot_streaming.storage.fsspec_reader import FsspecReader
from tests.storage.s3 import KEY, SECRET, S3Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CONTENT = bytes(range(256)) * 40


class _Faulty:
    """Answers that a test puts in the way of the real ones."""

    faults: ClassVar[list[object]] = []
    stamp: ClassVar[object] = "first"

    @classmethod
    def next(cls, data: bytes) -> bytes:
        fault = cls.faults.pop(0) if cls.faults else None
        if isinstance(fault, BaseException):
            raise fault
        return data[:fault] if isinstance(fault, int) else data


class FaultySync(MemoryFileSystem):  # type: ignore[misc]
    """A store whose client allows one caller at a time."""

    protocol = "faultysync"
    cachable = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.thread = threading.get_ident()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.removeprefix("faultysync://").strip("/")

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        assert threading.get_ident() == self.thread
        del options
        return {"name": path, "size": len(CONTENT), "type": "file", "etag": _Faulty.stamp}

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        assert threading.get_ident() == self.thread
        del path, options
        return _Faulty.next(CONTENT[start:end])


class FaultyAsync(AsyncFileSystem):  # type: ignore[misc]
    """A store on fsspec's event loop."""

    protocol = "faultyasync"

    async def _info(self, path: str, **options: Any) -> dict[str, Any]:
        del options
        return {"name": path, "size": len(CONTENT), "type": "file", "etag": _Faulty.stamp}

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        del path
        return _Faulty.next(CONTENT[start:end])


register_implementation("faultysync", FaultySync)
register_implementation("faultyasync", FaultyAsync)
PROTOCOLS = pytest.mark.parametrize("protocol", ["faultysync", "faultyasync"])


@pytest.fixture(autouse=True)
def no_faults() -> Iterator[None]:
    yield
    _Faulty.faults.clear()
    _Faulty.stamp = "first"


def make(protocol: str, **options: Any) -> FsspecReader:
    return FsspecReader(f"{protocol}://root", {}, **options)


@PROTOCOLS
def test_short_answers_and_lost_connections_are_tried_again(protocol: str) -> None:
    retries: list[int] = []
    reader = make(protocol, on_retry=lambda: retries.append(1))
    _Faulty.faults += [10, ConnectionResetError("peer"), OSError(errno.EIO, "io"), TimeoutError(), 0]
    reader._retrier.policy = type(reader._retrier.policy)(30.0, first_wait_s=0.01)
    assert reader.read("x", 7, 100) == CONTENT[7:107]
    assert len(retries) == 5


@PROTOCOLS
@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (FileNotFoundError("x"), MissingFileError),
        (PermissionError("no"), AccessError),
        (NotImplementedError("ranges"), FetchError),
        (ValueError("Cannot seek streaming HTTP file"), FetchError),
        (OSError(errno.EINVAL, "invalid range"), FetchError),
    ],
)
def test_what_is_final_is_raised_at_once(protocol: str, fault: Exception, error: type[Exception]) -> None:
    retries: list[int] = []
    reader = make(protocol, on_retry=lambda: retries.append(1))
    _Faulty.faults.append(fault)
    with pytest.raises(error, match="'x' below"):
        reader.read("x", 7, 100)
    assert not retries


def test_a_client_for_one_caller_gets_one_thread_only() -> None:
    # The store itself asserts it.
    reader = make("faultysync")
    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(lambda start: reader.read("x", start, 100), range(0, 4000, 100)))
    assert b"".join(parts) == CONTENT[:4000]


def test_an_answer_that_hangs_is_given_up() -> None:
    class Hanging(FaultyAsync):
        protocol = "hanging"

        async def _cat_file(
            self, path: str, start: int | None = None, end: int | None = None, **_: Any
        ) -> bytes:
            del path, start, end
            await asyncio.sleep(3600)
            return b""

    register_implementation("hanging", Hanging, clobber=True)
    reader = FsspecReader("hanging://root", timeout_s=0.2, deadline_s=0.5)
    with pytest.raises(FetchError, match="FSTimeoutError"):
        reader.read("x", 0, 1)


@PROTOCOLS
def test_a_store_that_sends_more_than_the_range_is_refused(protocol: str) -> None:
    reader = make(protocol)
    reader.check_ranges("x")
    original = _Faulty.next
    try:
        _Faulty.next = classmethod(lambda cls, data: CONTENT)  # type: ignore[assignment, method-assign]  # noqa: ARG005
        for call in (lambda: reader.check_ranges("x"), lambda: reader.read("x", 0, 10)):
            with pytest.raises(FetchError, match="does not serve byte ranges"):
                call()
    finally:
        _Faulty.next = original  # type: ignore[method-assign]


@PROTOCOLS
def test_a_replaced_file_is_noticed_when_it_is_looked_up_again(protocol: str) -> None:
    reader = make(protocol, recheck_s=0.0)
    assert reader.read("x", 0, 3) == CONTENT[:3]
    _Faulty.stamp = "second"
    with pytest.raises(ChangedFileError, match=r"changed while the run was reading it.*first.*second"):
        reader.read("x", 0, 3)
    patient = make(protocol)
    patient.stat("x")
    _Faulty.stamp = "third"
    assert patient.read("x", 0, 3) == CONTENT[:3]


class _WholeFiles(http.server.SimpleHTTPRequestHandler):
    """Python's own file server, which knows no ranges."""

    def log_message(self, *args: object) -> None:
        del args


def test_an_http_server_without_ranges_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(CONTENT)
    handler = type("Handler", (_WholeFiles,), {})
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), lambda *args: handler(*args, directory=str(tmp_path))
    )
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        reader = FsspecReader(f"http://127.0.0.1:{server.server_address[1]}")
        assert reader.stat("x").size == len(CONTENT)
        with pytest.raises(FetchError, match="does not serve byte ranges"):
            reader.check_ranges("x")
        with pytest.raises(MissingFileError):
            reader.stat("y")
        reader.close()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_s3_faults_and_that_no_credential_is_ever_shown() -> None:
    with S3Server() as server:
        server.put("bucket", "", {"x": CONTENT})
        wrong = {**server.options, "client_kwargs": {"endpoint_url": "http://127.0.0.1:9"}}
        reader = FsspecReader("s3://bucket", server.options)
        first = reader.stat("x")
        server.put("bucket", "", {"x": CONTENT[::-1]})
        assert reader.stat("x").fingerprint != first.fingerprint
        calls: list[Callable[[], object]] = [
            lambda: reader.stat("nothing"),
            lambda: FsspecReader("s3://nobucket", server.options).read("x", 0, 1),
            lambda: FsspecReader("s3://bucket", wrong, deadline_s=0.5).read("x", 0, 1),
            lambda: FsspecReader("s3://bucket", server.options | {"retries": "x" + SECRET}).read("x", 0, 1),
        ]
        for call in calls:
            with pytest.raises((FetchError, MissingFileError)) as caught:
                call()
            shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
            assert SECRET not in shown
            assert KEY not in shown
        assert SECRET not in repr(reader) + reader.root + str(vars(reader)["_files"])
        reader.close()


@pytest.mark.parametrize(
    "url",
    ["ftp://me:passpass@127.0.0.1:9/x", "simplecache::http://me:passpass@127.0.0.1:9/x"],
)
def test_a_password_in_the_url_is_never_shown(url: str) -> None:
    reader = FsspecReader(url, {}, deadline_s=0.5)
    with pytest.raises(FetchError) as caught:
        reader.read("file", 0, 1)
    for shown in ("".join(traceback.format_exception(caught.value)), repr(reader), reader.root):
        assert "passpass" not in shown
        assert "me:" not in shown


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("nosuch://x", "no protocol 'nosuch'"),
        ("https://host/x?sig=SECRETSECRET", "credentials in storage_options"),
        ("s3://bucket/x#y", "query or a fragment"),
        ("oci://bucket/x", "package for protocol 'oci' is missing: .*ocifs"),
    ],
)
def test_urls_that_cannot_work_are_refused_at_once(url: str, text: str) -> None:
    with pytest.raises(OptionError, match=text) as caught:
        FsspecReader(url)
    assert "SECRETSECRET" not in str(caught.value)
    with pytest.raises(OptionError, match="connections must be at least 1"):
        FsspecReader("memory://x", connections=0)


def test_fsspecs_own_instances_are_left_alone() -> None:
    before = fsspec.filesystem("faultyasync")
    reader = make("faultyasync")
    reader.read("x", 0, 1)
    assert fsspec.filesystem("faultyasync") is before
    assert reader._files._shared[0] is not before
