"""The HTTP client: huggingface_hub's own, asked once per attempt, with faults sorted and secrets kept."""

from __future__ import annotations

import logging
import ssl
import threading
import weakref
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from lerobot_streaming.errors import AccessError, FetchError
from lerobot_streaming.storage.forking import bury
from lerobot_streaming.storage.retry import TransientFault
from lerobot_streaming.storage.secrets import hide_queries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import httpx

    from lerobot_streaming.storage.retry import Deadline

_PORTS: Final = {"http": 80, "https": 443}
_CONNECT_S: Final = 10.0


class HttpSession:
    """Sends single requests. Thread-safe.

    The client comes from huggingface_hub, with whatever factory the user gave it for proxies or certificates.
    It is one of our own, because huggingface_hub closes the one that it shares whenever any thread of the
    process fails to connect, and because a forked child must not close what its parent's threads may hold.

    Args:
        timeout_s: Seconds without a byte after which an answer counts as stalled; None takes what
            huggingface_hub takes, `HF_HUB_DOWNLOAD_TIMEOUT`.
    """

    def __init__(self, timeout_s: float | None = None) -> None:
        """Connects nothing yet."""
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._client: httpx.Client | None = None
        self._finalizer: weakref.finalize[[], HttpSession] | None = None

    @contextmanager
    def stream(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        deadline: Deadline,
        body: Mapping[str, Any] | None = None,
    ) -> Iterator[httpx.Response]:
        """Sends one request, without following redirects.

        Args:
            method: HTTP method.
            url: Where to.
            headers: All headers, also the token's.
            deadline: Bounds each wait for the other side.
            body: What is sent as JSON; None: nothing.

        Yields:
            The response; its body has not been read.

        Raises:
            TransientFault: The connection failed, stalled or ended early, also while the body is read.
            FetchError: The request cannot be sent at all.
        """
        import httpx  # noqa: PLC0415 - a local dataset needs no HTTP
        from huggingface_hub import constants  # noqa: PLC0415

        host = host_of(url)
        if constants.is_offline_mode():
            raise AccessError(
                f"cannot ask {host}, because HF_HUB_OFFLINE is set; unset it, or download the dataset and "
                "pass its directory as root"
            )
        seconds = self._timeout_s or float(constants.HF_HUB_DOWNLOAD_TIMEOUT)
        seconds = max(0.05, min(seconds, deadline.remaining()))
        timeout = httpx.Timeout(seconds, connect=min(seconds, _CONNECT_S))
        client = self._get_client()
        try:
            with (
                _quiet_log(),
                client.stream(
                    method, url, headers=dict(headers), json=body, timeout=timeout, follow_redirects=False
                ) as response,
            ):
                yield response
                return
        except httpx.TimeoutException as error:
            raise TransientFault(f"{host} did not answer within {seconds:.1f} s") from error
        except (httpx.NetworkError, httpx.RemoteProtocolError, httpx.ProxyError) as error:
            if _is_bad_certificate(error):
                raise FetchError(
                    f"the certificate of {host} is not trusted: {error}; set SSL_CERT_FILE to the authority's"
                ) from error
            raise TransientFault(f"{type(error).__name__} from {host}: {hide_queries(str(error))}") from error
        except RuntimeError as error:
            if not client.is_closed:
                raise
            raise TransientFault("the connections were closed meanwhile") from error
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            # Not chained: what cannot be sent may be the token, and the exception quotes it.
            kind = type(error).__name__
        raise FetchError(
            f"no request can be sent to {host} ({kind}); check the token for line breaks, and HF_ENDPOINT"
        )

    def close(self) -> None:
        """Closes the connections; a later request opens new ones."""
        with self._lock:
            self._client = None
            close, self._finalizer = self._finalizer, None
        if close is not None:
            close()

    def renew_after_fork(self) -> None:
        """Leaves, in a forked child, the parent's connections alone."""
        bury(self._client)
        if self._finalizer is not None:
            self._finalizer.detach()
        self._lock = threading.Lock()
        self._client = self._finalizer = None

    def _get_client(self) -> httpx.Client:
        with self._lock:
            if self._client is None:
                self._client = _new_client()
                self._finalizer = weakref.finalize(self, self._client.close)
            return self._client


def hub_utils() -> Any:
    """Imports huggingface_hub's helpers, whose types its lazy loading hides.

    Returns:
        The module `huggingface_hub.utils`.
    """
    return import_module("huggingface_hub.utils")


def host_of(url: str) -> str:
    """Names the host of a URL.

    Args:
        url: Absolute URL.

    Returns:
        Host and, if the URL has one, port.
    """
    parts = urlsplit(url)
    return f"{parts.hostname}:{parts.port}" if parts.port else f"{parts.hostname}"


def origin_of(url: str) -> tuple[str, str, int | None]:
    """Says whose a URL is: credentials of one origin are nobody else's business.

    Args:
        url: Absolute URL.

    Returns:
        Scheme, host and port.
    """
    parts = urlsplit(url)
    scheme = parts.scheme.lower()
    return scheme, (parts.hostname or "").lower(), parts.port or _PORTS.get(scheme)


def _new_client() -> httpx.Client:
    module = import_module("huggingface_hub.utils._http")
    factory: Callable[[], httpx.Client] | None = getattr(module, "_GLOBAL_CLIENT_FACTORY", None)
    if factory is None:
        import httpx  # noqa: PLC0415

        return httpx.Client()
    return factory()


def _is_bad_certificate(error: BaseException) -> bool:
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, ssl.SSLCertVerificationError):
            return True
        inner = inner.__cause__ or inner.__context__
    return False


_sending = threading.local()


@contextmanager
def _quiet_log() -> Iterator[None]:
    _sending.ours = True
    try:
        yield
    finally:
        _sending.ours = False


class _HideSignatures(logging.Filter):
    """Takes the queries, which are good for reading the file, out of what the HTTP client logs for us."""

    def filter(self, record: logging.LogRecord) -> bool:
        if getattr(_sending, "ours", False):
            record.msg, record.args = hide_queries(record.getMessage()), ()
        return True


for _name in ("httpx", "httpcore.http11", "httpcore.http2", "huggingface_hub.utils._http"):
    logging.getLogger(_name).addFilter(_HideSignatures())
