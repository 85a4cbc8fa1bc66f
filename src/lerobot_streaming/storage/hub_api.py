"""What is asked of the Hub itself: commits, listings, and where the bytes of a file are."""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urljoin

from lerobot_streaming.errors import AccessError, FetchError, OptionError
from lerobot_streaming.storage.http_session import HttpSession, host_of, hub_utils, origin_of
from lerobot_streaming.storage.hub_refusals import HubSubject, refusal
from lerobot_streaming.storage.retry import DEFAULT_DEADLINE_S, Retrier, RetryPolicy, TransientFault

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import httpx

    from lerobot_streaming.storage.retry import Deadline

_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_MAX_REDIRECTS: Final = 5
_MAX_LISTING_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Location:
    """Where the bytes of a file are.

    Attributes:
        url: URL of the bytes, signed when another host than the Hub has them.
        size: Size in bytes, None when the Hub did not say.
        identity: What the Hub calls the content, a hash or an ETag; None when it did not say.
    """

    url: str
    size: int | None
    identity: str | None

    def __repr__(self) -> str:
        """Leaves the signature out."""
        return f"Location({host_of(self.url)}, size={self.size}, identity={self.identity})"


class HubApi:
    """Single requests to the Hub. The token goes to the Hub's own origin, whatever redirects say.

    Args:
        session: The HTTP client.
        endpoint: URL of the Hub; None takes huggingface_hub's, from `HF_ENDPOINT`.
        token: As huggingface_hub takes it: a token, True for the one that this machine has, False for none,
            None for the machine's if there is one.
    """

    def __init__(self, session: HttpSession, endpoint: str | None, token: str | bool | None) -> None:  # noqa: FBT001 - as the Hub's client takes it
        """Asks nothing yet."""
        from huggingface_hub import constants  # noqa: PLC0415

        if isinstance(token, str) and not (token.isascii() and token.isprintable() and token.strip()):
            raise OptionError("token is empty, or has characters that no token has; copy it again.")
        self._session = session
        self.endpoint = (endpoint or constants.ENDPOINT).rstrip("/")
        self._token = token

    def headers_for(self, url: str) -> dict[str, str]:
        """Makes the headers of a request.

        Args:
            url: Where it goes.

        Returns:
            Headers, with the token if the URL is on the Hub's own origin.

        Raises:
            AccessError: `token=True`, and this machine has none.
        """
        from huggingface_hub.errors import LocalTokenNotFoundError  # noqa: PLC0415

        own = origin_of(url) == origin_of(self.endpoint)
        try:
            headers: dict[str, str] = hub_utils().build_hf_headers(
                token=self._token if own else False,
                library_name="lerobot_streaming",
                library_version=_version(),
            )
        except LocalTokenNotFoundError:
            raise AccessError(
                "token=True asks for the token of this machine, but there is none; run `hf auth login`, set "
                "HF_TOKEN or pass the token"
            ) from None
        # Compressed, neither sizes nor ranges would be the file's.
        return headers | {"accept-encoding": "identity"}

    def locate(self, url: str, subject: HubSubject, deadline: Deadline) -> Location:
        """Asks where the bytes of a file are.

        Args:
            url: URL of the file on the Hub.
            subject: What it is, for messages.
            deadline: Bounds the request.

        Returns:
            The place. A redirect within the Hub is followed; one to another host is the place.

        Raises:
            MissingFileError: There is no such file or revision.
            AccessError: The Hub refuses.
            TransientFault: The Hub could not be asked now.
            FetchError: Every other answer.
        """
        size: int | None = None
        identity: str | None = None
        for _ in range(_MAX_REDIRECTS):
            with self._request("HEAD", url, subject, deadline) as response:
                headers = response.headers
                linked = _int(headers.get("x-linked-size"))
                size = size if linked is None else linked
                identity = identity or plain_etag(headers.get("x-xet-hash") or headers.get("x-linked-etag"))
                response.read()  # It has no body, and the connection stays usable.
                if not response.has_redirect_location:
                    length = _int(headers.get("content-length"))
                    return Location(
                        url,
                        length if size is None else size,
                        identity or plain_etag(headers.get("etag")),
                    )
                url = urljoin(url, headers["location"])
            if origin_of(url) != origin_of(self.endpoint):
                return Location(url, size, identity)
        raise FetchError(f"{subject}: the Hub redirected more than {_MAX_REDIRECTS} times")

    def get_json(
        self, url: str, subject: HubSubject, deadline: Deadline, body: Mapping[str, Any] | None = None
    ) -> tuple[Any, str | None]:
        """Asks for JSON once.

        Args:
            url: URL on the Hub.
            subject: What is asked for, for messages.
            deadline: Bounds the request.
            body: What to POST; None sends a GET.

        Returns:
            The decoded answer, and the URL of the next page or None.

        Raises:
            MissingFileError: There is no such thing.
            AccessError: The Hub refuses.
            TransientFault: The Hub could not be asked now, or the answer is no JSON.
            FetchError: Every other answer, or the next page is on another host.
        """
        data = bytearray()
        with self._request("GET" if body is None else "POST", url, subject, deadline, body) as response:
            for chunk in response.iter_bytes():
                deadline.check()
                data += chunk
                if len(data) > _MAX_LISTING_BYTES:
                    raise FetchError(f"{subject}: the Hub's answer is larger than {_MAX_LISTING_BYTES} bytes")
            following = response.links.get("next", {}).get("url")
        try:
            answer = json.loads(data)
        except ValueError:
            raise TransientFault(f"{host_of(url)} answered with something that is no JSON") from None
        if following is not None:
            # A mirror passes on the links of the Hub that it mirrors.
            following = hub_utils().fix_hf_endpoint_in_url(urljoin(url, following), self.endpoint)
            if origin_of(following) != origin_of(self.endpoint):
                raise FetchError(f"{subject}: the next page is on another host, {host_of(following)}")
        return answer, following

    def pages(
        self, url: str, subject: HubSubject, retrier: Retrier, what: str
    ) -> Iterator[list[dict[str, Any]]]:
        """Reads a listing page by page.

        Args:
            url: URL of the first page.
            subject: What is listed, for messages.
            retrier: Runs each request.
            what: What is attempted, for messages.

        Yields:
            The entries of each page.

        Raises:
            MissingFileError: There is no such folder or revision.
            AccessError: The Hub refuses.
            FetchError: The Hub could not be asked.
        """
        following: str | None = url
        while following is not None:
            page = following
            entries, following = retrier.run(
                lambda deadline, page=page: self.get_json(page, subject, deadline),  # type: ignore[misc]
                what,
            )
            yield entries

    @contextmanager
    def _request(
        self,
        method: str,
        url: str,
        subject: HubSubject,
        deadline: Deadline,
        body: Mapping[str, Any] | None = None,
    ) -> Iterator[httpx.Response]:
        headers = self.headers_for(url)
        with self._session.stream(method, url, headers, deadline, body) as response:
            error = refusal(response, subject, has_token="authorization" in headers)
            if error is not None:
                raise error
            yield response


def plain_etag(value: str | None) -> str | None:
    """Takes the decoration off an ETag.

    Args:
        value: Header, or None.

    Returns:
        The ETag without quotes and without the mark of weak ones, or None.
    """
    if not value:
        return None
    return value.strip().removeprefix("W/").strip('"') or None


def resolve_commit(
    repo_id: str,
    revision: str | None,
    *,
    token: str | bool | None = None,
    endpoint: str | None = None,
    repo_type: str = "dataset",
    deadline_s: float = DEFAULT_DEADLINE_S,
) -> str:
    """Asks the Hub which commit a branch or tag is at.

    Args:
        repo_id: "OWNER/NAME".
        revision: Branch, tag or commit; None means `main`. A whole commit is not asked for.
        token: As huggingface_hub takes it.
        endpoint: URL of the Hub; None takes huggingface_hub's.
        repo_type: "dataset", "model" or "space".
        deadline_s: Seconds to try; > 0.

    Returns:
        40 hexadecimal digits.

    Raises:
        OptionError: `repo_type` has no commits.
        MissingFileError: There is no such revision.
        AccessError: There is no such repository for this token, or HF_HUB_OFFLINE is set.
        FetchError: The Hub could not be asked.
    """
    if repo_type not in {"dataset", "model", "space"}:
        raise OptionError(f"repo_type '{repo_type}' has no commits; pass 'dataset', 'model' or 'space'.")
    revision = revision or "main"
    if _COMMIT.fullmatch(revision):
        return revision
    session = HttpSession()
    api = HubApi(session, endpoint, token)
    subject = HubSubject(repo_type, repo_id, revision, endpoint=api.endpoint)
    url = f"{api.endpoint}/api/{repo_type}s/{repo_id}/revision/{quote(revision, safe='')}"
    try:
        found, _ = Retrier(RetryPolicy(deadline_s)).run(
            lambda deadline: api.get_json(url, subject, deadline), f"asking for the commit of {subject}"
        )
    finally:
        session.close()
    commit = found.get("sha") if isinstance(found, dict) else None
    if not (isinstance(commit, str) and _COMMIT.fullmatch(commit)):
        raise FetchError(f"asking for the commit of {subject}: the Hub's answer names none")
    return commit


@cache
def _version() -> str:
    try:
        return metadata.version("lerobot_env_streaming")
    except metadata.PackageNotFoundError:
        return "unknown"  # Run from its sources, without being installed.


def _int(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None
