"""Routes of the second origin: contents behind signed URLs, and what is uploaded there."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from tests.support.hub.blobs import Blob
from tests.support.hub.http import Answer, Incoming, Refused, Routes, as_content

if TYPE_CHECKING:
    from tests.support.hub.state import State


class CdnRoutes:
    """Registers itself on the CDN's routes.

    Args:
        state: What the Hub knows.
        routes: Where to register.
    """

    def __init__(self, state: State, routes: Routes) -> None:
        self._state = state
        routes.add("GET HEAD", "/(datasets|buckets)/{id}/(?P<name>[0-9a-f]{64})/.+", self._read)
        routes.add("PUT", "/uploads/(?P<sha256>[0-9a-f]{64})", self._write)

    def _read(self, request: Incoming, groups: dict[str, str]) -> Answer:
        self._state.check_signature(request)
        blob = self._state.contents.get(groups["name"])
        if blob is None:
            raise Refused(404, "NoSuchKey")
        return as_content(request, blob, {"ETag": f'"{groups["name"]}"'})

    def _write(self, request: Incoming, groups: dict[str, str]) -> Answer:
        self._state.check_signature(request)
        if hashlib.sha256(request.body).hexdigest() != groups["sha256"]:
            raise Refused(400, "XAmzContentSHA256Mismatch")
        blob = Blob.of(request.body)
        self._state.keep(blob)
        return Answer(200, {"ETag": f'"{blob.sha256}"'})
