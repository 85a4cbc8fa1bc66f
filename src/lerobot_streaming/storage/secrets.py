"""Keeps credentials out of messages: URLs without them, and text in which they are blacked out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import quote, quote_plus, unquote

_MASK: Final = "***"
_MIN_SECRET: Final = 4
_USER_INFO: Final = re.compile(r"(?<=//)[^/\s]*@")
_QUERY: Final = re.compile(r"""(https?://[^\s?'"<>]+)\?[^\s'"<>)]*""")
# They say where the store is, which a message should tell.
_PLAIN_OPTIONS: Final = frozenset({"endpoint_url", "host", "port", "protocol", "region_name", "user_agent"})


def public_url(url: str) -> str:
    """Removes user names and passwords from a URL.

    Args:
        url: A URL, chained or not.

    Returns:
        The URL without user information and without trailing slashes.
    """
    text = _USER_INFO.sub("", url)
    head, scheme, rest = text.partition("://")
    return head + scheme + rest.rstrip("/")


def hide_queries(text: str) -> str:
    """Removes the query of every HTTP URL in a text: signatures live there.

    Args:
        text: Any text.

    Returns:
        The text with `?...` in place of the queries.
    """
    return _QUERY.sub(r"\1?...", text)


class Scrubber:
    """Blacks known secrets out of texts.

    Args:
        url: A URL whose user information is secret.
        options: Options of a store; every text in them counts as secret, except where the store is.
        secrets: Further secrets.
    """

    def __init__(
        self, url: str = "", options: Mapping[str, object] | None = None, secrets: Iterable[str | None] = ()
    ) -> None:
        """Collects the secrets and the ways in which URLs spell them."""
        found = {secret for secret in secrets if secret}
        for part in _USER_INFO.findall(url):
            found |= {part.removesuffix("@"), *part.removesuffix("@").split(":", 1)[1:]}
        found |= set(_texts(options or {}))
        spelled = {spell(secret) for secret in found for spell in (str, quote, quote_plus, unquote)}
        spelled = {text for text in spelled if len(text) >= _MIN_SECRET}
        self._pattern = re.compile(
            "|".join(re.escape(text) for text in sorted(spelled, key=len, reverse=True))
        )

    def clean(self, text: object) -> str:
        """Makes a text fit for a message.

        Args:
            text: An exception or a text.

        Returns:
            Its text on one line, without secrets, user information and queries.
        """
        shown = str(text)
        # First, while the secrets are still spelled as they are known.
        shown = self._pattern.sub(_MASK, shown) if self._pattern.pattern else shown
        return " ".join(_USER_INFO.sub("", hide_queries(shown)).split())


def _texts(value: object, name: str = "") -> Iterable[str]:
    if isinstance(value, str):
        plain = name in _PLAIN_OPTIONS and not re.search(r"[@?]", value)
        yield from () if plain else (value,)
    elif isinstance(value, bytes):
        yield value.decode("utf-8", "replace")
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(inner, str(key))
    elif isinstance(value, (list, tuple, set)):
        for inner in value:
            yield from _texts(inner, name)
