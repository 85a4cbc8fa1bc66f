"""Routes of dataset repositories that read: information, listings, references and files."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, unquote

from tests.support.hub.http import Answer, Incoming, Refused, Routes, as_content, as_json
from tests.support.hub.state import commit_of
from tests.support.hub.stores import timestamp

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.support.hub.blobs import Blob
    from tests.support.hub.state import State
    from tests.support.hub.stores import Commit, Dataset


class RepositoryRoutes:
    """Registers itself on the Hub's routes.

    Args:
        state: What the Hub knows.
        routes: Where to register.
    """

    def __init__(self, state: State, routes: Routes) -> None:
        self._state = state
        api = "/api/datasets/{id}"
        routes.add("GET", "/api/whoami-v2", self._whoami)
        routes.add("GET", "/api/agent-harnesses", lambda *_: as_json({}))
        routes.add("GET", api + "(/revision/(?P<rev>[^/]+))?", self._info)
        routes.add("GET", api + "/refs", self._refs)
        routes.add("GET", api + "/commits/(?P<rev>[^/]+)", self._commits)
        routes.add("GET", api + "/auth-check(?P<write>/write)?", self._auth_check)
        routes.add("GET", api + "/tree/(?P<rev>[^/]+)(/(?P<path>.*))?", self._tree)
        routes.add("POST", api + "/paths-info/(?P<rev>[^/]+)", self._paths_info)
        routes.add("GET HEAD", "/datasets/{id}/resolve/(?P<rev>[^/]+)/(?P<path>.+)", self._resolve)
        routes.add(
            "GET HEAD", "/api/resolve-cache/datasets/{id}/(?P<rev>[^/]+)/(?P<path>.+)", self._resolve_cache
        )

    def _whoami(self, request: Incoming, groups: dict[str, str]) -> Answer:
        del groups
        user = self._state.user(request)
        if user is None:
            raise Refused(401, "Invalid username or password.")
        role = "write" if any(request.token in d.writers for d in self._state.datasets.values()) else "read"
        return as_json(
            {
                "type": "user",
                "id": "0" * 24,
                "name": user,
                "fullname": user,
                "orgs": [],
                "auth": {"type": "access_token", "accessToken": {"displayName": "token", "role": role}},
            }
        )

    def _info(self, request: Incoming, groups: dict[str, str]) -> Answer:
        dataset = self._state.dataset(request, groups)
        commit = commit_of(dataset, groups)
        siblings: list[dict[str, Any]] = []
        for path, blob in sorted(commit.files.items()):
            sibling: dict[str, Any] = {"rfilename": path}
            if request.flag("blobs"):
                entry = _file_entry(dataset, path, blob)
                sibling |= {"size": blob.size, "blobId": entry["oid"]}
                if "lfs" in entry:
                    sibling["lfs"] = {"sha256": blob.sha256, **entry["lfs"]}
            siblings.append(sibling)
        return as_json(
            {
                "_id": "0" * 24,
                "id": dataset.id,
                "author": dataset.id.split("/")[0],
                "sha": commit.id,
                "lastModified": timestamp(commit.date),
                "createdAt": timestamp(dataset.created_at),
                "private": dataset.private,
                "gated": "auto" if dataset.gated else False,
                "disabled": False,
                "downloads": 0,
                "likes": 0,
                "tags": [],
                "siblings": siblings,
            }
        )

    def _refs(self, request: Incoming, groups: dict[str, str]) -> Answer:
        dataset = self._state.dataset(request, groups)
        with dataset.lock:
            listed = {
                "branches": [
                    {"name": name, "ref": f"refs/heads/{name}", "targetCommit": commit}
                    for name, commit in dataset.branches.items()
                ],
                "tags": [
                    {"name": name, "ref": f"refs/tags/{name}", "targetCommit": commit}
                    for name, commit in dataset.tags.items()
                ],
            }
        return as_json({**listed, "converts": [], "pullRequests": []})

    def _commits(self, request: Incoming, groups: dict[str, str]) -> Answer:
        dataset = self._state.dataset(request, groups)
        commit: Commit | None = commit_of(dataset, groups)
        history = []
        while commit is not None:
            history.append(
                {
                    "id": commit.id,
                    "title": commit.title,
                    "message": "",
                    "date": timestamp(commit.date),
                    "authors": [{"user": dataset.id.split("/")[0]}],
                }
            )
            commit = dataset.commits[commit.parent] if commit.parent is not None else None
        return as_json(history)

    def _auth_check(self, request: Incoming, groups: dict[str, str]) -> Answer:
        dataset = self._state.dataset(request, groups)
        self._state.check_content(dataset, request)
        if "write" in groups:
            self._state.check_write(dataset, request)
        return Answer()

    def _tree(self, request: Incoming, groups: dict[str, str]) -> Answer:
        dataset = self._state.dataset(request, groups)
        commit = commit_of(dataset, groups)
        folder = unquote(groups.get("path", "")).strip("/")
        entries = _entries_below(dataset, commit, folder, recursive=request.flag("recursive"))
        if folder and not entries:
            raise Refused(404, f"{folder} does not exist on {unquote(groups['rev'])!r}", "EntryNotFound")
        return paged(request, entries, self._state)

    def _paths_info(self, request: Incoming, groups: dict[str, str]) -> Answer:
        dataset = self._state.dataset(request, groups)
        commit = commit_of(dataset, groups)
        if request.headers.get("content-type", "").startswith("application/json"):
            paths = request.json()["paths"]
        else:
            paths = parse_qs(request.body.decode())["paths"]
        entries = []
        for path in paths:
            name = path.strip("/")
            if name in commit.files:
                entries.append(_file_entry(dataset, name, commit.files[name]))
            elif any(file.startswith(f"{name}/") for file in commit.files):
                entries.append(_folder_entry(commit, name))
        return as_json(entries)

    def _resolve(self, request: Incoming, groups: dict[str, str]) -> Answer:
        dataset = self._state.dataset(request, groups)
        commit = commit_of(dataset, groups)
        self._state.check_content(dataset, request)
        path, blob = _file(commit, groups)
        headers = {"X-Repo-Commit": commit.id}
        if dataset.is_large(path, blob.size):
            if dataset.xet:
                route = f"{self._state.endpoint}/api/datasets/{dataset.id}/xet-read-token/{commit.id}"
                headers |= xet_headers(blob, route)
            return redirect_to_cdn(self._state, blob, f"/datasets/{dataset.id}", blob.sha256, path, headers)
        if self._state.relative_redirects:
            target = f"/api/resolve-cache/datasets/{dataset.id}/{commit.id}/{quote(path, safe='')}"
            headers |= {
                "Location": target,
                "X-Linked-Size": str(blob.size),
                "X-Linked-ETag": f'"{blob.git_oid}"',
            }
            return Answer(307, headers, b"Temporary Redirect")
        return as_content(request, blob, {**headers, "ETag": f'"{blob.git_oid}"'})

    def _resolve_cache(self, request: Incoming, groups: dict[str, str]) -> Answer:
        dataset = self._state.dataset(request, groups)
        commit = commit_of(dataset, groups)
        self._state.check_content(dataset, request)
        _, blob = _file(commit, groups)
        return as_content(request, blob, {"X-Repo-Commit": commit.id, "ETag": f'"{blob.git_oid}"'})


def xet_headers(blob: Blob, refresh_route: str) -> dict[str, str]:
    """Say where a content lies in Xet storage.

    Args:
        blob: The content.
        refresh_route: URL that gives out access tokens to that storage.

    Returns:
        Headers of the answer.
    """
    return {
        "X-Xet-Hash": blob.xet_hash,
        "Link": f'<{refresh_route}>; rel="xet-auth"',
        "Access-Control-Expose-Headers": "X-Xet-Hash, Link",
    }


def redirect_to_cdn(
    state: State, blob: Blob, folder: str, name: str, path: str, headers: Mapping[str, str]
) -> Answer:
    """Send a client to the CDN.

    Args:
        state: What the Hub knows.
        blob: The content.
        folder: Path of the store on the CDN.
        name: The hash by which the store names the content, which becomes its ETag.
        path: Path of the file in the store.
        headers: More headers.

    Returns:
        Status 302, the content's size and ETag in the headers that the client reads instead of following.
    """
    state.keep(blob)
    linked = {"X-Linked-Size": str(blob.size), "X-Linked-ETag": f'"{name}"', "Accept-Ranges": "bytes"}
    target = {"Location": state.sign(f"{folder}/{name}/{path}"), "Content-Type": "text/plain"}
    return Answer(302, {**headers, **linked, **target}, b"Found")


def paged(request: Incoming, entries: list[dict[str, Any]], state: State) -> Answer:
    """Answer with one page of a listing.

    Args:
        request: The request, with `cursor` and `limit`.
        entries: All entries.
        state: What the Hub knows.

    Returns:
        The page, with a Link header to the next one if there is one.
    """
    start = int(request.parameter("cursor") or 0)
    stop = start + min(int(request.parameter("limit") or state.page_size), state.page_size)
    headers = {}
    if stop < len(entries):
        kept = [part for part in request.query.split("&") if part and not part.startswith("cursor=")]
        query = "&".join([*kept, f"cursor={stop}"])
        headers["Link"] = f'<{state.endpoint}{request.path}?{query}>; rel="next"'
    return as_json(entries[start:stop], headers=headers)


def _file(commit: Commit, groups: Mapping[str, str]) -> tuple[str, Blob]:
    path = unquote(groups["path"])
    if path not in commit.files:
        raise Refused(404, "Entry not found", "EntryNotFound", {"X-Repo-Commit": commit.id})
    return path, commit.files[path]


def _file_entry(dataset: Dataset, path: str, blob: Blob) -> dict[str, Any]:
    if not dataset.is_large(path, blob.size):
        return {"type": "file", "oid": blob.git_oid, "size": blob.size, "path": path}
    lfs = {"oid": blob.sha256, "size": blob.size, "pointerSize": len(blob.pointer)}
    entry = {"type": "file", "oid": blob.pointer_oid, "size": blob.size, "path": path, "lfs": lfs}
    return {**entry, "xetHash": blob.xet_hash} if dataset.xet else entry


def _folder_entry(commit: Commit, path: str) -> dict[str, Any]:
    digest = hashlib.sha1(usedforsecurity=False)
    for name, blob in sorted(commit.files.items()):
        if name.startswith(f"{path}/"):
            digest.update(f"{name} {blob.sha256}\n".encode())
    return {"type": "directory", "oid": digest.hexdigest(), "size": 0, "path": path}


def _entries_below(dataset: Dataset, commit: Commit, folder: str, *, recursive: bool) -> list[dict[str, Any]]:
    """List a folder as the Hub does: folders before what is in them, each level sorted by name."""
    prefix = f"{folder}/" if folder else ""
    entries: dict[str, dict[str, Any]] = {}
    for path, blob in sorted(commit.files.items()):
        if not path.startswith(prefix):
            continue
        parts = path.removeprefix(prefix).split("/")
        for depth in range(1, len(parts) if recursive else min(2, len(parts))):
            parent = prefix + "/".join(parts[:depth])
            if parent not in entries:
                entries[parent] = _folder_entry(commit, parent)
        if recursive or len(parts) == 1:
            entries[path] = _file_entry(dataset, path, blob)
    return list(entries.values())
