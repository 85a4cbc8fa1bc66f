"""What the exceptions of the packages behind fsspec mean."""

from __future__ import annotations

import errno
from typing import Any

import aiohttp
import botocore.exceptions  # type: ignore[import-untyped]
import pytest

from lerobot_streaming.storage.fsspec_faults import Fault, asked_wait_s, classify, is_throttle
from lerobot_streaming.storage.fsspec_files import fingerprint


def _client_error(status: int, code: str, headers: dict[str, str] | None = None) -> Exception:
    metadata = {"HTTPStatusCode": status, "HTTPHeaders": headers or {}}
    response = {"Error": {"Code": code, "Message": "m"}, "ResponseMetadata": metadata}
    return botocore.exceptions.ClientError(response, "GetObject")  # type: ignore[no-any-return]


def _answer(status: int) -> Exception:
    info: Any = None
    return aiohttp.ClientResponseError(info, (), status=status, headers={"Retry-After": "7"})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (_client_error(503, "SlowDown"), Fault.TRANSIENT),
        (_client_error(403, "AccessDenied"), Fault.REFUSED),
        (_client_error(404, "NoSuchKey"), Fault.MISSING),
        (_client_error(400, "Bad"), Fault.FINAL),
        (botocore.exceptions.EndpointConnectionError(endpoint_url="http://x"), Fault.TRANSIENT),
        (botocore.exceptions.ReadTimeoutError(endpoint_url="http://x"), Fault.TRANSIENT),
        (botocore.exceptions.IncompleteReadError(actual_bytes=1, expected_bytes=2), Fault.TRANSIENT),
        (botocore.exceptions.NoCredentialsError(), Fault.REFUSED),
        (botocore.exceptions.ParamValidationError(report="bad"), Fault.FINAL),
        (_answer(429), Fault.TRANSIENT),
        (_answer(401), Fault.REFUSED),
        (_answer(410), Fault.FINAL),
        (aiohttp.ClientPayloadError("cut"), Fault.TRANSIENT),
        (aiohttp.ServerDisconnectedError(), Fault.TRANSIENT),
        (EOFError(), Fault.TRANSIENT),
        (OSError(errno.EBUSY, "SlowDown"), Fault.TRANSIENT),
        (OSError(errno.EINVAL, "InvalidRange"), Fault.FINAL),
        (KeyError("x"), Fault.FINAL),
        (TypeError("x"), Fault.FINAL),
    ],
    ids=repr,
)
def test_what_exceptions_mean(error: Exception, kind: Fault) -> None:
    assert classify(error) is kind


def test_a_file_that_could_not_be_asked_for_is_not_missing() -> None:
    error = FileNotFoundError("http://x")
    assert classify(error) is Fault.MISSING
    error.__cause__ = aiohttp.ServerDisconnectedError()
    assert classify(error) is Fault.TRANSIENT
    error.__cause__ = _answer(404)
    assert classify(error) is Fault.MISSING


def test_the_wait_a_store_asks_for_is_found() -> None:
    assert asked_wait_s(_client_error(503, "SlowDown", {"retry-after": "3"})) == 3.0
    assert asked_wait_s(_answer(429)) == 7.0
    assert asked_wait_s(OSError()) is None
    assert is_throttle(_client_error(503, "SlowDown"))
    assert is_throttle(OSError(errno.EBUSY, "SlowDown"))
    assert not is_throttle(_answer(500))


def test_fingerprints_take_the_content_before_the_time() -> None:
    assert fingerprint({"size": 3, "ETag": '"abc"', "LastModified": "today"}) == "etag:abc"
    assert fingerprint({"size": 3, "ETag": "", "md5Hash": "m"}) == "md5hash:m"
    assert fingerprint({"size": 3, "mtime": 12.5}) == "3-12.5"
    assert fingerprint({"size": 3, "name": "x"}) is None
