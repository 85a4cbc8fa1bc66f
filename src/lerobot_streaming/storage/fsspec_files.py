"""The calls into fsspec: its file systems, made for our threads, and what their answers mean."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

from lerobot_streaming.errors import (
    AccessError,
    FetchError,
    MissingFileError,
    OptionError,
    StreamingError,
)
from lerobot_streaming.storage.fsspec_faults import Fault, asked_wait_s, classify, is_throttle
from lerobot_streaming.storage.retry import TransientFault
from lerobot_streaming.storage.secrets import Scrubber, public_url

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lerobot_streaming.storage.retry import Deadline

_CONTENT_KEYS: Final = (
    *("ETag", "etag", "e_tag", "VersionId", "version_id", "generation"),
    *("md5", "md5Hash", "content_md5", "Content-MD5", "checksum", "crc32c", "Digest"),
)
_TIME_KEYS: Final = (
    *("mtime", "LastModified", "last_modified", "Last-Modified"),
    *("modified", "updated", "modify"),
)


class FsspecFiles:
    """The file system of one URL, called from many threads.

    Asynchronous file systems are shared by all threads and live on fsspec's own event loop. Others get one
    instance per thread, as their clients seldom allow more than one caller at a time.

    Args:
        url: Root with its protocol.
        options: Options of the file system.
        timeout_s: Seconds for one call; only asynchronous file systems can be held to it.
    """

    def __init__(self, url: str, options: Mapping[str, Any], timeout_s: float) -> None:
        """Makes nothing yet."""
        self._url = url
        self._options = options
        self._timeout_s = timeout_s
        self._scrubber = Scrubber(url, options)
        self._lock = threading.Lock()
        self._shared: Any = None
        self._own = threading.local()
        self._is_connected = False

    def call(self, method: str, path: str, what: str, deadline: Deadline, **arguments: int) -> Any:
        """Calls a method of the file system once.

        Args:
            method: Name of the method.
            path: POSIX path below the root.
            what: What is attempted, for messages.
            deadline: Bounds the call.
            **arguments: Further arguments of the method.

        Returns:
            What the method returns.

        Raises:
            MissingFileError: There is no such file.
            AccessError: The store refuses.
            TransientFault: Another attempt may succeed.
            FetchError: Everything else.
        """
        try:
            return self._ask(method, path, deadline, arguments)
        except StreamingError:
            raise
        except Exception as error:  # noqa: BLE001 - each file system has exceptions of its own
            failure = self._translate(error, path, what)
        # Not raised while the other is handled, whose text may hold credentials.
        raise failure

    def missing(self, path: str) -> MissingFileError:
        """Makes the error about a file that is not there."""
        return MissingFileError(
            f"no file '{path}' below '{public_url(self._url)}'; upload it again or fix the data root"
        )

    def _ask(self, method: str, path: str, deadline: Deadline, arguments: dict[str, int]) -> Any:
        from fsspec.asyn import sync  # noqa: PLC0415 - a local dataset needs no fsspec

        filesystem, base = self._filesystem()
        full = f"{base.rstrip('/')}/{path}"
        coroutine = getattr(filesystem, f"_{method}", None) if filesystem.async_impl else None
        if coroutine is None:
            return getattr(filesystem, method)(full, **arguments)

        def ask() -> Any:
            seconds = max(0.1, min(self._timeout_s, deadline.remaining()))
            return sync(filesystem.loop, coroutine, full, timeout=seconds, **arguments)

        # Alone, or each of the first callers makes a client of its own, and one for S3 takes a second.
        with self._lock:
            if not self._is_connected:
                try:
                    return ask()
                finally:
                    self._is_connected = True
        return ask()

    def _filesystem(self) -> tuple[Any, str]:
        found: tuple[Any, str] | None = self._shared or getattr(self._own, "made", None)
        if found is not None:
            return found
        with self._lock:
            if self._shared is None:
                from fsspec.core import url_to_fs  # noqa: PLC0415

                # An instance of our own: fsspec's cached ones hold listings that may be out of date.
                made: tuple[Any, str] = url_to_fs(self._url, skip_instance_cache=True, **self._options)
                if not made[0].async_impl:
                    self._own.made = made
                    return made
                self._shared = made
            shared: tuple[Any, str] = self._shared
            return shared

    def _translate(self, error: Exception, path: str, what: str) -> Exception:
        kind = classify(error)
        text = self._scrubber.clean(f"{type(error).__name__}: {error}")
        if kind is Fault.MISSING:
            return self.missing(path)
        if kind is Fault.REFUSED:
            return AccessError(
                f"{what} was refused: {text}; check the credentials in the environment or in storage_options"
            )
        if kind is Fault.TRANSIENT:
            return TransientFault(text, wait_s=asked_wait_s(error), throttled=is_throttle(error))
        return FetchError(f"{what} failed: {text}")


def fingerprint(info: Mapping[str, Any]) -> str | None:
    """Finds what changes with the content in a file system's description of a file.

    Args:
        info: What `info` returned.

    Returns:
        ETag, version or checksum, else size and time of change, else None.
    """
    for key in _CONTENT_KEYS:
        if info.get(key):
            return f"{key.lower()}:{info[key]}".replace('"', "")
    for key in _TIME_KEYS:
        if info.get(key):
            changed = info[key]
            text = changed.isoformat() if hasattr(changed, "isoformat") else changed
            return f"{info.get('size')}-{text}"
    return None


def check_url(url: str) -> None:
    """Refuses a URL whose file system cannot be made, before anything is read.

    Args:
        url: Root with its protocol.

    Raises:
        OptionError: The protocol is unknown, its package is not installed, or the URL carries a query.
    """
    from fsspec import get_filesystem_class  # noqa: PLC0415

    shown = public_url(url.partition("?")[0].partition("#")[0])
    if "?" in url or "#" in url:
        raise OptionError(
            f"data root '{shown}' has a query or a fragment, but files are found below it by path; give "
            "credentials in storage_options"
        )
    for protocol in (part.partition("://")[0] for part in url.split("::")):
        try:
            get_filesystem_class(protocol)
        except ValueError:
            raise OptionError(
                f"data root '{shown}': fsspec knows no protocol '{protocol}'; use a local directory, "
                "hf://datasets/OWNER/NAME, hf://buckets/OWNER/BUCKET or a protocol that fsspec lists"
            ) from None
        except ImportError as error:
            raise OptionError(
                f"data root '{shown}': the package for protocol '{protocol}' is missing: {error}"
            ) from error
