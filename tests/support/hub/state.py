"""State that all routes of the loopback Hub share: stores, tokens, contents, signed URLs."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from tests.support.hub.http import Incoming, Refused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.support.hub.blobs import Blob
    from tests.support.hub.stores import Bucket, Commit, Dataset, Store


@dataclass
class State:
    """What the Hub knows.

    Args:
        page_size: Most entries of one page of a listing.
        signed_url_ttl_s: Seconds for which a signed URL is good.
        relative_redirects: Whether small files are answered by a redirect on the Hub's own host.
    """

    page_size: int = 1000
    signed_url_ttl_s: float = 3600.0
    relative_redirects: bool = False
    endpoint: str = ""
    cdn_endpoint: str = ""
    datasets: dict[str, Dataset] = field(default_factory=dict)
    buckets: dict[str, Bucket] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)
    """Token to user name."""
    contents: dict[str, Blob] = field(default_factory=dict)
    """Contents that were uploaded or signed for, by SHA-256 and by Xet hash."""
    lock: threading.RLock = field(default_factory=threading.RLock)
    _key: bytes = field(default_factory=lambda: secrets.token_bytes(32))

    def user(self, request: Incoming) -> str | None:
        """Give the user behind a request.

        Args:
            request: The request.

        Returns:
            The name, or None when the request has no token.

        Raises:
            Refused: 401 for a token that is not known.
        """
        token = request.token
        if token is None and "authorization" not in request.headers:
            return None
        name = self.tokens.get(token or "")
        if name is None:
            raise Refused(401, "Invalid credentials in Authorization header")
        return name

    def dataset(self, request: Incoming, groups: Mapping[str, str]) -> Dataset:
        """Find the dataset of a request that may see it.

        Args:
            request: The request.
            groups: Its `id`.

        Returns:
            The dataset.

        Raises:
            Refused: When there is none, or none for this token.
        """
        found = self.datasets.get(unquote(groups["id"]))
        self._check_seen(found, request, "Repository")
        assert found is not None
        return found

    def bucket(self, request: Incoming, groups: Mapping[str, str]) -> Bucket:
        """Find the bucket of a request that may see it.

        Args:
            request: The request.
            groups: Its `id`.

        Returns:
            The bucket.

        Raises:
            Refused: When there is none, or none for this token.
        """
        found = self.buckets.get(unquote(groups["id"]))
        self._check_seen(found, request, "Bucket")
        assert found is not None
        return found

    def _check_seen(self, store: Store | None, request: Incoming, kind: str) -> None:
        """Who may not see a store does not learn that it exists."""
        user = self.user(request)
        if store is not None and (not store.private or request.token in store.readers | store.writers):
            return
        if user is None:
            raise Refused(401, "Invalid username or password.", "RepoNotFound")
        raise Refused(404, f"{kind} not found", "RepoNotFound")

    def check_content(self, store: Store, request: Incoming) -> None:
        """Let a request that sees a store read its files.

        Args:
            store: The store.
            request: The request.

        Raises:
            Refused: 401 or 403 where the store is gated and the token has no grant.
        """
        if not store.gated or request.token in store.readers | store.writers:
            return
        text = f"Access to dataset {store.id} is restricted"
        if request.token is None:
            raise Refused(401, f"{text}. You must have access to it and be authenticated.", "GatedRepo")
        raise Refused(403, f"{text} and you are not in the authorized list.", "GatedRepo")

    def check_write(self, store: Store, request: Incoming) -> None:
        """Let a request that sees a store change it.

        Args:
            store: The store.
            request: The request.

        Raises:
            Refused: 401 without a token, 403 without the right.
        """
        if request.token is None:
            raise Refused(401, "Invalid username or password.")
        if request.token not in store.writers:
            raise Refused(403, "You don't have the rights to write to this repository. Use a write token.")

    def keep(self, blob: Blob) -> None:
        """Make a content reachable by its SHA-256 and by its Xet hash.

        Args:
            blob: The content.
        """
        with self.lock:
            self.contents.setdefault(blob.sha256, blob)
            self.contents.setdefault(blob.xet_hash, blob)

    def sign(self, path: str) -> str:
        """Make a signed URL on the CDN.

        Args:
            path: Path from the slash on, not encoded.

        Returns:
            The URL, good for `signed_url_ttl_s`.
        """
        expires = f"{time.time() + self.signed_url_ttl_s:.3f}"
        encoded = quote(path)
        return f"{self.cdn_endpoint}{encoded}?Expires={expires}&Signature={self._signature(encoded, expires)}"

    def check_signature(self, request: Incoming) -> None:
        """Let a request to the CDN pass when its URL is signed and not expired.

        Args:
            request: The request.

        Raises:
            Refused: 403.
        """
        expires, signature = request.parameter("Expires") or "", request.parameter("Signature") or ""
        if not hmac.compare_digest(self._signature(request.path, expires), signature):
            raise Refused(403, "SignatureDoesNotMatch")
        if time.time() > float(expires):
            raise Refused(403, "Request has expired")

    def _signature(self, path: str, expires: str) -> str:
        return hmac.new(self._key, f"{path}?{expires}".encode(), hashlib.sha256).hexdigest()


def commit_of(dataset: Dataset, groups: Mapping[str, str]) -> Commit:
    """Find the commit of a request.

    Args:
        dataset: The dataset.
        groups: Its `rev`; without one, `main`.

    Returns:
        The commit.

    Raises:
        Refused: 404.
    """
    revision = unquote(groups.get("rev", "main"))
    try:
        return dataset.resolve(revision)
    except KeyError:
        raise Refused(404, f"Invalid rev id: {revision}", "RevisionNotFound") from None
