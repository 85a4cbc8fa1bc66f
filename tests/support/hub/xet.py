"""Routes of a small Xet storage, which the client uses for buckets, and for datasets that say they are in it.

A content that the Xet client did not upload itself is laid out as if it had: cut into chunks, the chunks
gathered into xorbs, the xorbs behind signed URLs on the CDN. What the Xet client uploads is put together
when its shard arrives, and is an ordinary content from then on.
"""

from __future__ import annotations

import secrets
import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tests.support.hub.blobs import Blob
from tests.support.hub.http import Answer, Incoming, Refused, Routes, as_content, as_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.hub.state import State
    from tests.support.hub.stores import Store

_CHUNK = 64 << 10
_XORB = 512 * _CHUNK
"""Bytes of content in one xorb: well below the 64 MiB that the format allows."""

_TOKEN_LIFE_S = 3600


class XetRoutes:
    """Registers itself on the routes of both origins.

    Args:
        state: What the Hub knows.
        routes: The Hub's routes: they give out access tokens.
        cdn_routes: The CDN's routes: they store.
    """

    def __init__(self, state: State, routes: Routes, cdn_routes: Routes) -> None:
        self._state = state
        self._tokens: dict[str, tuple[float, bool]] = {}
        self._xorbs: dict[str, list[bytes]] = {}
        routes.add("GET", "/api/datasets/{id}/xet-(?P<right>read|write)-token/.+", self._dataset_token)
        routes.add("GET", "/api/buckets/{id}/xet-(?P<right>read|write)-token", self._bucket_token)
        cdn_routes.add("GET", "/xet/v1/reconstructions/(?P<hash>[0-9a-f]{64})", self._reconstruction)
        cdn_routes.add("GET", r"/xorbs/(?P<hash>[0-9a-f]{64})/(?P<number>\d+)", self._read_xorb)
        cdn_routes.add("POST", "/xet/v1/xorbs/[^/]+/(?P<hash>[0-9a-f]{64})", self._write_xorb)
        cdn_routes.add("POST", "/xet/v1/shards", self._write_shard)

    def _dataset_token(self, request: Incoming, groups: dict[str, str]) -> Answer:
        return self._give_token(request, groups["right"], self._state.dataset(request, groups))

    def _bucket_token(self, request: Incoming, groups: dict[str, str]) -> Answer:
        return self._give_token(request, groups["right"], self._state.bucket(request, groups))

    def _give_token(self, request: Incoming, right: str, store: Store) -> Answer:
        if right == "write":
            self._state.check_write(store, request)
        else:
            self._state.check_content(store, request)
        token, expires = f"xet_{secrets.token_hex(16)}", int(time.time()) + _TOKEN_LIFE_S
        self._tokens[token] = (expires, right == "write")
        url = f"{self._state.cdn_endpoint}/xet"
        headers = {
            "X-Xet-Cas-Url": url,
            "X-Xet-Access-Token": token,
            "X-Xet-Token-Expiration": str(expires),
        }
        return as_json({"casUrl": url, "accessToken": token, "exp": expires}, headers=headers)

    def _check(self, request: Incoming, *, write: bool) -> None:
        expires, may_write = self._tokens.get(request.token or "", (0.0, False))
        if time.time() > expires:
            raise Refused(401, "unknown or expired Xet access token")
        if write and not may_write:
            raise Refused(403, "the Xet access token may only read")

    def _find(self, xet_hash: str) -> Blob | None:
        found = self._state.contents.get(xet_hash)
        if found is not None:
            return found
        for bucket in self._state.buckets.values():
            for there in list(bucket.objects.values()):
                if there.blob.xet_hash == xet_hash:
                    return there.blob
        for dataset in self._state.datasets.values():
            for commit in list(dataset.commits.values()):
                for blob in commit.files.values():
                    if blob.xet_hash == xet_hash:
                        return blob
        return None

    def _reconstruction(self, request: Incoming, groups: dict[str, str]) -> Answer:
        self._check(request, write=False)
        blob = self._find(groups["hash"])
        if blob is None:
            raise Refused(404, "no file with this hash")
        self._state.keep(blob)
        start, stop = 0, blob.size
        asked = request.headers.get("range")
        if asked is not None:
            first, last = asked.removeprefix("bytes=").split("-")
            start, stop = int(first), min(int(last) + 1, blob.size) if last else blob.size
            if start >= stop:
                raise Refused(416, "behind the end of the file")
        terms: list[dict[str, Any]] = []
        fetch: dict[str, list[dict[str, Any]]] = {}
        for number in range(start // _XORB, -(-stop // _XORB)):
            base = number * _XORB
            chunks = (max(start, base) - base) // _CHUNK, -(-(min(stop, base + _XORB) - base) // _CHUNK)
            content = base + chunks[0] * _CHUNK, min(base + chunks[1] * _CHUNK, blob.size)
            name = _xorb_name(blob, number)
            span = {"start": chunks[0], "end": chunks[1]}
            terms.append({"hash": name, "unpacked_length": content[1] - content[0], "range": span})
            # A chunk of the content takes its own length and a header of 8 bytes in the xorb.
            offset = chunks[0] * (_CHUNK + 8)
            length = content[1] - content[0] + 8 * (chunks[1] - chunks[0])
            place = {"start": offset, "end": offset + length - 1}
            url = self._state.sign(f"/xorbs/{blob.xet_hash}/{number}")
            fetch[name] = [{"range": span, "url": url, "url_range": place}]
        answer = {"offset_into_first_range": start % _CHUNK, "terms": terms, "fetch_info": fetch}
        return as_json(answer)

    def _read_xorb(self, request: Incoming, groups: dict[str, str]) -> Answer:
        self._state.check_signature(request)
        blob = self._find(groups["hash"])
        if blob is None:
            raise Refused(404, "NoSuchKey")
        base = int(groups["number"]) * _XORB
        packed = bytearray()
        for chunk in blob.pieces(base, min(base + _XORB, blob.size), _CHUNK):
            size = len(chunk).to_bytes(3, "little")
            packed += b"\0" + size + b"\0" + size + chunk
        return as_content(request, Blob.of(bytes(packed)), {})

    def _write_xorb(self, request: Incoming, groups: dict[str, str]) -> Answer:
        self._check(request, write=True)
        inserted = groups["hash"] not in self._xorbs
        self._xorbs[groups["hash"]] = list(_unpack(request.body))
        return as_json({"was_inserted": inserted})

    def _write_shard(self, request: Incoming, groups: dict[str, str]) -> Answer:
        del groups
        self._check(request, write=True)
        for file in _files_of_shard(request.body):
            content = bytearray()
            for segment in file.segments:
                if segment.xorb not in self._xorbs:
                    raise Refused(400, f"the xorb {segment.xorb} was not uploaded")
                content += b"".join(self._xorbs[segment.xorb][segment.start : segment.stop])
            self._state.keep(Blob.of(bytes(content), xet_hash=file.hash))
        return as_json({"result": 1})


def _xorb_name(blob: Blob, number: int) -> str:
    """Name a made-up xorb; the client only compares names."""
    return f"{int(blob.sha256[:48], 16):048x}{number:016x}"


@dataclass(frozen=True)
class _Segment:
    """Chunks `start` to `stop` of a xorb."""

    xorb: str
    start: int
    stop: int


@dataclass(frozen=True)
class _File:
    hash: str
    segments: list[_Segment]


def _unpack(xorb: bytes) -> Iterator[bytes]:
    """Give the chunks of a serialized xorb. Behind them an index may follow, which begins with a name."""
    at = 0
    while at < len(xorb) and not xorb.startswith(b"XETBLOB", at):
        packed_size = int.from_bytes(xorb[at + 1 : at + 4], "little")
        scheme, size = xorb[at + 4], int.from_bytes(xorb[at + 5 : at + 8], "little")
        packed = xorb[at + 8 : at + 8 + packed_size]
        at += 8 + packed_size
        yield packed if scheme == 0 else _decompress(packed, size, scheme)


def _decompress(packed: bytes, size: int, scheme: int) -> bytes:
    data = bytes(pa.decompress(packed, decompressed_size=size, codec="lz4", asbytes=True))
    if scheme == 1:
        return data
    if scheme != 2:
        raise Refused(400, f"unknown compression scheme {scheme}")
    # Scheme 2 puts bytes 0, 4, 8... first, then 1, 5, 9... and so on.
    grouped = bytearray(size)
    at = 0
    for lane in range(4):
        length = len(range(lane, size, 4))
        grouped[lane::4] = data[at : at + length]
        at += length
    return bytes(grouped)


def _files_of_shard(shard: bytes) -> Iterator[_File]:
    """Give the files that a shard describes: records of 48 bytes behind a header of 48."""
    at = 48
    while shard[at : at + 32] != b"\xff" * 32:
        name, flags, count = _name(shard[at : at + 32]), *struct.unpack_from("<II", shard, at + 32)
        at += 48
        segments = []
        for _ in range(count):
            start, stop = struct.unpack_from("<II", shard, at + 40)
            segments.append(_Segment(_name(shard[at : at + 32]), start, stop))
            at += 48
        yield _File(name, segments)
        # Bit 31: a verification record for each segment follows; bit 30: one record with the SHA-256.
        at += 48 * ((count if flags >> 31 else 0) + (flags >> 30 & 1))


def _name(raw: bytes) -> str:
    """Write a hash as Xet does: four little-endian words."""
    return "".join(f"{word:016x}" for word in struct.unpack("<4Q", raw))
