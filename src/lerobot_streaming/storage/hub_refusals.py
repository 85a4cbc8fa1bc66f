"""What the Hub's error answers mean, in words that say what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lerobot_streaming.errors import AccessError, FetchError, MissingFileError
from lerobot_streaming.storage.http_session import host_of, hub_utils
from lerobot_streaming.storage.retry import TransientFault, is_transient_status, parse_retry_after

if TYPE_CHECKING:
    import httpx


@dataclass(frozen=True, slots=True)
class HubSubject:
    """What a request is about, for messages.

    Attributes:
        kind: "dataset", "model", "space" or "bucket".
        repo_id: "OWNER/NAME".
        revision: Revision; None for a bucket.
        path: File or folder, or None.
        endpoint: URL of the Hub.
    """

    kind: str
    repo_id: str
    revision: str | None = None
    path: str | None = None
    endpoint: str = ""

    def __str__(self) -> str:
        """Names file, repository and revision."""
        return f"'{self.path}' below '{self.root}'" if self.path else f"'{self.root}'"

    @property
    def root(self) -> str:
        """The store's URL."""
        return f"hf://{self.kind}s/{self.repo_id}" + (f"@{self.revision}" if self.revision else "")


def is_throttle_status(status: int) -> bool:
    """Says whether a status asks for fewer requests.

    Args:
        status: HTTP status.

    Returns:
        True for 429 and 503.
    """
    return status in {429, 503}


def transient_fault(response: httpx.Response) -> TransientFault | None:
    """Makes the fault of an answer that may be better next time.

    Args:
        response: Any response; its body is not read.

    Returns:
        The fault, with the wait that the other side asks for; None when the status is not of that kind.
    """
    status = response.status_code
    if not is_transient_status(status):
        return None
    wait = parse_retry_after(response.headers.get("retry-after"))
    limits = hub_utils().parse_ratelimit_headers(response.headers) if status == 429 else None
    if limits is not None and limits.remaining == 0:
        # Given in whole seconds: a second more is after the reset, whichever way it was rounded.
        wait = max(wait or 0.0, limits.reset_in_seconds + 1.0)
    text = f"{status} {response.reason_phrase} from {host_of(str(response.request.url))}"
    if wait is not None:
        text += f", which asks to wait {wait:.0f} s"
    return TransientFault(text, wait_s=wait, throttled=is_throttle_status(status))


def refusal(response: httpx.Response, subject: HubSubject, *, has_token: bool) -> Exception | None:
    """Makes the error of an answer of the Hub. The body is not read: the headers say which kind it is.

    Args:
        response: Any response.
        subject: What was asked for.
        has_token: Whether the request carried a token.

    Returns:
        `TransientFault` if another attempt makes sense, else the error to raise; None for success and
        redirects.
    """
    status = response.status_code
    if status < 400:
        return None
    fault = transient_fault(response)
    if fault is not None:
        return fault
    code = response.headers.get("x-error-code", "")
    if "disabled" in response.headers.get("x-error-message", ""):
        code = "Disabled"
    if status == 404 and code != "RepoNotFound":
        return MissingFileError(_not_found(code, subject))
    if status in {401, 403} or code in {"RepoNotFound", "GatedRepo", "Disabled"}:
        login = "" if has_token else "no token was sent: run `hf auth login`, set HF_TOKEN or pass token; "
        return AccessError(f"{status} for {subject}: {login}{_advice(code, subject)}")
    return FetchError(
        f"the Hub answered {status} {response.reason_phrase} for {subject}, which no retry mends"
    )


def _not_found(code: str, subject: HubSubject) -> str:
    if code == "EntryNotFound":
        return f"no file {subject} on the Hub; check the name"
    if code == "RevisionNotFound":
        return f"no revision '{subject.revision}' for {subject}; check the branch, tag or commit"
    return f"404 for {subject}: the Hub has nothing there; check id, revision and path"


def _advice(code: str, subject: HubSubject) -> str:
    folder = "" if subject.kind == "model" else f"{subject.kind}s/"
    page = f"{subject.endpoint}/{folder}{subject.repo_id}"
    if code == "GatedRepo":
        return f"it is gated; accept its conditions at {page} with the account of the token"
    if code == "RepoNotFound":
        return (
            f"there is no such {subject.kind}, or it is private and only a token with the right to read sees "
            f"it; check the id, and the token's rights"
        )
    if code == "Disabled":
        return f"the Hub has disabled it; see {page}"
    return f"check that the token is valid and has the right to read {page}"
