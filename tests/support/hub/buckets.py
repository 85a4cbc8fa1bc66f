"""Routes of buckets."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from tests.support.hub.http import Answer, Incoming, Refused, Routes, as_json
from tests.support.hub.repositories import paged, redirect_to_cdn, xet_headers
from tests.support.hub.stores import Bucket, BucketObject, timestamp

if TYPE_CHECKING:
    from tests.support.hub.blobs import Blob
    from tests.support.hub.state import State


class BucketRoutes:
    """Registers itself on the Hub's routes.

    Args:
        state: What the Hub knows.
        routes: Where to register.
    """

    def __init__(self, state: State, routes: Routes) -> None:
        self._state = state
        api = "/api/buckets/{id}"
        routes.add("GET", api, self._info)
        routes.add("POST", api, self._create)
        routes.add("GET", api + "/tree(/(?P<prefix>.*))?", self._tree)
        routes.add("POST", api + "/paths-info", self._paths_info)
        routes.add("POST", api + "/batch", self._batch)
        routes.add("GET HEAD", "/buckets/{id}/resolve/(?P<path>.+)", self._resolve)

    def _info(self, request: Incoming, groups: dict[str, str]) -> Answer:
        bucket = self._state.bucket(request, groups)
        with bucket.lock:
            sizes = [found.blob.size for found in bucket.objects.values()]
        return as_json(
            {
                "id": bucket.id,
                "private": bucket.private,
                "createdAt": timestamp(bucket.created_at),
                "size": sum(sizes),
                "totalFiles": len(sizes),
            }
        )

    def _create(self, request: Incoming, groups: dict[str, str]) -> Answer:
        user = self._state.user(request)
        if user is None or request.token is None:
            raise Refused(401, "Invalid username or password.")
        bucket_id = unquote(groups["id"])
        if bucket_id.startswith("me/"):
            bucket_id = f"{user}/{bucket_id.removeprefix('me/')}"
        url = f"{self._state.endpoint}/buckets/{bucket_id}"
        if bucket_id in self._state.buckets:
            return as_json({"error": "You already created this bucket", "url": url}, 409)
        bucket = Bucket(bucket_id, private=bool(request.json().get("private")), xet=True)
        bucket.grant(request.token, write=True)
        self._state.buckets[bucket_id] = bucket
        return as_json({"url": url})

    def _tree(self, request: Incoming, groups: dict[str, str]) -> Answer:
        bucket = self._state.bucket(request, groups)
        prefix = unquote(groups.get("prefix", ""))
        with bucket.lock:
            objects = dict(sorted(bucket.objects.items()))
        if request.flag("recursive"):
            # The Hub compares text: "meta" also finds "metadata.json".
            entries = [_file_entry(path, found) for path, found in objects.items() if path.startswith(prefix)]
        else:
            entries = _level(objects, prefix.strip("/"))
        return paged(request, entries, self._state)

    def _paths_info(self, request: Incoming, groups: dict[str, str]) -> Answer:
        bucket = self._state.bucket(request, groups)
        with bucket.lock:
            paths = [path for path in request.json()["paths"] if path in bucket.objects]
            return as_json([_file_entry(path, bucket.objects[path]) for path in paths])

    def _resolve(self, request: Incoming, groups: dict[str, str]) -> Answer:
        bucket = self._state.bucket(request, groups)
        path = unquote(groups["path"])
        found = bucket.objects.get(path)
        if found is None:
            raise Refused(404, "Entry not found", "EntryNotFound")
        headers = xet_headers(found.blob, f"{self._state.endpoint}/api/buckets/{bucket.id}/xet-read-token")
        name = found.blob.xet_hash
        return redirect_to_cdn(self._state, found.blob, f"/buckets/{bucket.id}", name, path, headers)

    def _batch(self, request: Incoming, groups: dict[str, str]) -> Answer:
        bucket = self._state.bucket(request, groups)
        self._state.check_write(bucket, request)
        operations = [json.loads(line) for line in request.body.splitlines() if line.strip()]
        failed: list[dict[str, str]] = []
        for operation in operations:
            error = self._apply(bucket, operation)
            if error is not None:
                failed.append({"path": operation["path"], "error": error})
        done = len(operations) - len(failed)
        counts = {"success": not failed, "processed": len(operations), "succeeded": done, "failed": failed}
        return as_json(counts, 200 if done or not operations else 422)

    def _apply(self, bucket: Bucket, operation: dict[str, Any]) -> str | None:
        """Apply one operation; give the error if it cannot be."""
        path = operation["path"]
        if operation["type"] == "deleteFile":
            with bucket.lock:
                return None if bucket.objects.pop(path, None) is not None else "File not found"
        blob = self._content(operation["xetHash"])
        if blob is None:
            return f"Xet file {operation['xetHash']} was not uploaded"
        bucket.put(path, blob, datetime.fromtimestamp(operation["mtime"] / 1000, UTC))
        return None

    def _content(self, xet_hash: str) -> Blob | None:
        for bucket in self._state.buckets.values():
            for found in bucket.objects.values():
                if found.blob.xet_hash == xet_hash:
                    return found.blob
        return self._state.contents.get(xet_hash)


def _file_entry(path: str, found: BucketObject) -> dict[str, Any]:
    return {
        "type": "file",
        "path": path,
        "size": found.blob.size,
        "xetHash": found.blob.xet_hash,
        "mtime": timestamp(found.mtime),
        "uploadedAt": timestamp(found.uploaded_at),
    }


def _level(objects: dict[str, BucketObject], folder: str) -> list[dict[str, Any]]:
    """List what lies directly in a folder, or the one file of that name."""
    prefix = f"{folder}/" if folder else ""
    entries: dict[str, dict[str, Any]] = {}
    for path, found in objects.items():
        name, slash, _ = path.removeprefix(prefix).partition("/")
        if path == folder or (path.startswith(prefix) and not slash):
            entries[path] = _file_entry(path, found)
        elif path.startswith(prefix) and prefix + name not in entries:
            uploaded = timestamp(found.uploaded_at)
            entries[prefix + name] = {"type": "directory", "path": prefix + name, "uploadedAt": uploaded}
    return list(entries.values())
