"""Faults on demand: which requests they hit and what they do to them."""

from __future__ import annotations

import random
import re
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.support.hub.log import Host, Request


@dataclass(frozen=True)
class Status:
    """An error status in place of the answer.

    Args:
        code: HTTP status.
        retry_after: Value of the Retry-After header; None: no header.
        headers: More headers, for example `{"ratelimit": '"resolvers";r=0;t=1'}`.
    """

    code: int
    retry_after: str | int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Drop:
    """The connection ends.

    Args:
        after: Bytes of the body that are still sent; None: not even the head is.
    """

    after: int | None = None


@dataclass(frozen=True)
class ShortBody:
    """A complete answer with fewer bytes than its Content-Range, or the file, has.

    Args:
        size: Length of the body in bytes, and its Content-Length.
    """

    size: int


@dataclass(frozen=True)
class WholeFile:
    """A range is answered with status 200 and the whole file."""


@dataclass(frozen=True)
class WrongContentRange:
    """The right bytes under a Content-Range that says something else.

    Args:
        shift: Bytes by which it is wrong.
    """

    shift: int = 1


@dataclass(frozen=True)
class Stall:
    """The body pauses.

    Args:
        seconds: Length of the pause.
        after: Bytes of the body that are sent before it.
    """

    seconds: float
    after: int = 0


@dataclass(frozen=True)
class SlowFirstByte:
    """The answer begins late, and is right.

    Args:
        seconds: How much later.
    """

    seconds: float


@dataclass(frozen=True)
class ExpiredSignature:
    """The answer that the CDN gives to an expired URL: 403."""


@dataclass(frozen=True)
class ChangedObject:
    """The object has become another one of the same size: other bytes, other hashes in the headers.

    Listings stay: to change them, put another content into the store.
    """


Action = (
    Status
    | Drop
    | ShortBody
    | WholeFile
    | WrongContentRange
    | Stall
    | SlowFirstByte
    | ExpiredSignature
    | ChangedObject
)


@dataclass
class FaultRule:
    """A fault and the requests it hits. All conditions must hold; by default it hits every request.

    The requests that match host, method and path are counted; of these the rule skips the first `skip`, takes
    every `every`-th from there, draws with `probability`, and stops after `first` hits.

    Args:
        action: What happens.
        host: "hub", "cdn", or None for both.
        method: HTTP method; None: all.
        path: Regular expression that is searched in the path (percent-encoded, no query); None: all. The path
            of a signed URL ends with the file's path, so `r"\\.mp4$"` finds both.
        skip: Matching requests to leave alone first.
        every: Hit each n-th of the matching requests.
        first: Number of hits after which the rule is spent; None: no end.
        probability: Share of the requests to hit, in [0, 1].
        seed: Seed of the draws.
    """

    action: Action
    host: Host | None = None
    method: str | None = None
    path: str | None = None
    skip: int = 0
    every: int = 1
    first: int | None = None
    probability: float = 1.0
    seed: int = 0
    hits: int = field(default=0, init=False)
    """How often the rule has fired."""
    _seen: int = field(default=0, init=False, repr=False)
    _draws: random.Random = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._draws = random.Random(self.seed)

    def fires(self, request: Request) -> bool:
        """Count a request and say whether the rule hits it.

        Args:
            request: The request.

        Returns:
            Whether it does.
        """
        if (self.host or request.host) != request.host or (self.method or request.method) != request.method:
            return False
        if self.path is not None and not re.search(self.path, request.path):
            return False
        number = self._seen - self.skip
        self._seen += 1
        if number < 0 or (number + 1) % self.every or (self.first is not None and self.hits >= self.first):
            return False
        if self.probability < 1.0 and self._draws.random() >= self.probability:
            return False
        self.hits += 1
        return True


class Faults:
    """The rules in force. The first one that fires takes the request."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rules: list[FaultRule] = []

    def add(self, rule: FaultRule) -> FaultRule:
        """Put a rule in force, behind the others.

        Args:
            rule: The rule.

        Returns:
            `rule`, whose `hits` can be read.
        """
        with self._lock:
            self._rules.append(rule)
        return rule

    def clear(self) -> None:
        """Lift all rules."""
        with self._lock:
            self._rules.clear()

    def pick(self, request: Request) -> Action | None:
        """Find what happens to a request.

        Args:
            request: The request; the name of the action is written to its `fault`.

        Returns:
            The action, or None.
        """
        with self._lock:
            for rule in self._rules:
                if rule.fires(request):
                    request.fault = type(rule.action).__name__
                    return rule.action
        return None
