"""What an exception of an fsspec file system means: gone, refused, for good, or worth another attempt."""

from __future__ import annotations

import errno
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from lerobot_streaming.storage.retry import is_transient_status, parse_retry_after

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class Fault(Enum):
    """Kinds of failure."""

    MISSING = "missing"
    REFUSED = "refused"
    FINAL = "final"
    TRANSIENT = "transient"


_FINAL_ERRNOS: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.ENAMETOOLONG, errno.ENOTSUP})
# File systems bring exceptions of their own, of packages that need not be installed here. What their base
# classes are called is what they have in common.
_TRANSIENT_WORDS: Final = (
    *("timeout", "connect", "disconnect", "incomplete", "payload", "protocolerror", "throttl", "transport"),
    *("streaming", "httpclienterror"),
)
_CREDENTIAL_WORDS: Final = ("credential", "autherror", "authentication")


def classify(error: BaseException) -> Fault:
    """Says what an exception of a file system means.

    Args:
        error: What the file system raised.

    Returns:
        Its kind. What nobody knows counts as final: waiting does not mend a programming error.
    """
    statuses = [status for inner in _chain(error) if (status := _status(inner)) is not None]
    if statuses:
        return _of_status(statuses[0])
    if isinstance(error, (FileNotFoundError, IsADirectoryError, NotADirectoryError)):
        # fsspec's HTTP calls a file missing whenever it could not ask, and says in the cause why.
        unasked = error.__cause__ is not None and classify(error.__cause__) is Fault.TRANSIENT
        return Fault.TRANSIENT if unasked else Fault.MISSING
    names = [base.__name__.lower() for base in type(error).__mro__]
    if isinstance(error, PermissionError) or _any_in(_CREDENTIAL_WORDS, names):
        return Fault.REFUSED
    if isinstance(error, OSError) and error.errno in _FINAL_ERRNOS:
        return Fault.FINAL
    if isinstance(error, (OSError, EOFError)) or _any_in(_TRANSIENT_WORDS, names):
        return Fault.TRANSIENT
    return Fault.FINAL


def is_throttle(error: BaseException) -> bool:
    """Says whether a store asks for fewer requests.

    Args:
        error: What the file system raised.

    Returns:
        True for 429 and 503, and what stands for them.
    """
    return any(_status(inner) in {429, 503} for inner in _chain(error)) or (
        isinstance(error, OSError) and error.errno == errno.EBUSY
    )


def asked_wait_s(error: BaseException) -> float | None:
    """Finds the wait that a store asks for.

    Args:
        error: What the file system raised.

    Returns:
        Seconds, or None.
    """
    for inner in _chain(error):
        headers = getattr(inner, "headers", None) or _metadata(inner).get("HTTPHeaders")
        for name, value in dict(headers or {}).items():
            if str(name).lower() == "retry-after":
                return parse_retry_after(str(value))
    return None


def _of_status(status: int) -> Fault:
    if status in {401, 403}:
        return Fault.REFUSED
    if status == 404:
        return Fault.MISSING
    return Fault.TRANSIENT if is_transient_status(status) else Fault.FINAL


def _any_in(words: Iterable[str], names: Iterable[str]) -> bool:
    return any(word in name for word in words for name in names)


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    inner: BaseException | None = error
    while inner is not None and id(inner) not in seen:
        seen.add(id(inner))
        yield inner
        inner = inner.__cause__ or inner.__context__


def _metadata(error: BaseException) -> dict[str, Any]:
    response = getattr(error, "response", None)
    found = response.get("ResponseMetadata") if isinstance(response, dict) else None
    return found if isinstance(found, dict) else {}


def _status(error: BaseException) -> int | None:
    """The HTTP status that an exception carries: aiohttp, botocore, httpx, requests and gcsfs name it so."""
    response = getattr(error, "response", None)
    for holder, name in (
        (error, "status"),
        (error, "status_code"),
        (response, "status_code"),
        (error, "code"),
    ):
        value = getattr(holder, name, None)
        if isinstance(value, int) and 400 <= value <= 599:
            return value
    value = _metadata(error).get("HTTPStatusCode")
    return value if isinstance(value, int) and 400 <= value <= 599 else None
