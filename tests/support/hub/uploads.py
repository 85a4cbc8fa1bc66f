"""Routes of dataset repositories that write: repositories, branches, tags, uploads and commits."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from tests.support.hub.blobs import Blob
from tests.support.hub.http import Answer, Incoming, Refused, Routes, as_json
from tests.support.hub.state import commit_of
from tests.support.hub.stores import Dataset

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.support.hub.state import State
    from tests.support.hub.stores import Commit


class UploadRoutes:
    """Registers itself on the Hub's routes.

    Args:
        state: What the Hub knows.
        routes: Where to register.
        large_from: Size in bytes from which files of created repositories lie in large file storage.
    """

    def __init__(self, state: State, routes: Routes, large_from: int) -> None:
        self._state, self._large_from = state, large_from
        api = "/api/datasets/{id}"
        routes.add("POST", "/api/repos/create", self._create)
        routes.add("POST", "/api/validate-yaml", lambda *_: as_json({"errors": [], "warnings": []}))
        routes.add("POST", api + "/branch/(?P<name>[^/]+)", self._create_branch)
        routes.add("DELETE", api + "/branch/(?P<name>[^/]+)", self._delete_branch)
        routes.add("POST", api + "/tag/(?P<rev>[^/]+)", self._create_tag)
        routes.add("DELETE", api + "/tag/(?P<name>[^/]+)", self._delete_tag)
        routes.add("POST", api + "/preupload/(?P<rev>[^/]+)", self._preupload)
        routes.add("POST", api + "/commit/(?P<rev>[^/]+)", self._commit)
        routes.add("POST", r"/datasets/{id}\.git/info/lfs/objects/batch", self._lfs_batch)
        routes.add("POST", r"/datasets/{id}\.git/info/lfs/verify", self._lfs_verify)

    def _writable(self, request: Incoming, groups: Mapping[str, str]) -> Dataset:
        dataset = self._state.dataset(request, groups)
        self._state.check_write(dataset, request)
        return dataset

    def _create(self, request: Incoming, groups: dict[str, str]) -> Answer:
        del groups
        user = self._state.user(request)
        if user is None or request.token is None:
            raise Refused(401, "Invalid username or password.")
        wanted = request.json()
        if wanted.get("type") != "dataset":
            raise Refused(400, "the loopback Hub has only dataset repositories")
        repo_id = f"{wanted.get('organization') or user}/{wanted['name']}"
        url = f"{self._state.endpoint}/datasets/{repo_id}"
        if repo_id in self._state.datasets:
            return as_json({"error": "You already created this dataset repo", "url": url}, 409)
        private = bool(wanted.get("private")) or wanted.get("visibility") == "private"
        dataset = Dataset(repo_id, private=private, large_from=self._large_from)
        dataset.add_commit({}, title="initial commit")
        dataset.grant(request.token, write=True)
        self._state.datasets[repo_id] = dataset
        return as_json({"url": url, "name": repo_id, "id": "0" * 24})

    def _create_branch(self, request: Incoming, groups: dict[str, str]) -> Answer:
        dataset = self._writable(request, groups)
        name = unquote(groups["name"])
        if name.startswith("refs/"):
            raise Refused(400, f"Invalid reference for a branch: {name}")
        with dataset.lock:
            if name in dataset.branches:
                raise Refused(409, f"Reference already exists: refs/heads/{name}")
            dataset.branches[name] = commit_of(
                dataset, {"rev": request.json().get("startingPoint", "main")}
            ).id
        return as_json({}, 201)

    def _delete_branch(self, request: Incoming, groups: dict[str, str]) -> Answer:
        dataset = self._writable(request, groups)
        name = unquote(groups["name"])
        if name == "main":
            raise Refused(403, "The default branch cannot be deleted")
        if dataset.branches.pop(name, None) is None:
            raise Refused(404, f"Invalid rev id: {name}", "RevisionNotFound")
        return Answer()

    def _create_tag(self, request: Incoming, groups: dict[str, str]) -> Answer:
        dataset = self._writable(request, groups)
        name = request.json()["tag"]
        with dataset.lock:
            if name in dataset.tags:
                raise Refused(409, f"Tag reference exists already: {name}")
            dataset.tags[name] = commit_of(dataset, groups).id
        return as_json({}, 201)

    def _delete_tag(self, request: Incoming, groups: dict[str, str]) -> Answer:
        dataset = self._writable(request, groups)
        name = unquote(groups["name"])
        if dataset.tags.pop(name, None) is None:
            raise Refused(404, f"Invalid rev id: {name}", "RevisionNotFound")
        return Answer()

    def _preupload(self, request: Incoming, groups: dict[str, str]) -> Answer:
        dataset = self._writable(request, groups)
        commit = commit_of(dataset, groups)
        files = []
        for file in request.json()["files"]:
            path, large = file["path"], dataset.is_large(file["path"], file["size"])
            there = commit.files.get(path)
            files.append(
                {
                    "path": path,
                    "uploadMode": "lfs" if large else "regular",
                    "shouldIgnore": False,
                    "oid": None if there is None else there.sha256 if large else there.git_oid,
                }
            )
        return as_json({"files": files})

    def _lfs_batch(self, request: Incoming, groups: dict[str, str]) -> Answer:
        dataset = self._writable(request, groups)
        verify = f"{self._state.endpoint}/datasets/{dataset.id}.git/info/lfs/verify"
        objects = []
        for wanted in request.json()["objects"]:
            known = {"oid": wanted["oid"], "size": wanted["size"]}
            if self._content(dataset, wanted["oid"]) is None:
                upload = {"href": self._state.sign(f"/uploads/{wanted['oid']}")}
                known["actions"] = {"upload": upload, "verify": {"href": verify}}
            objects.append(known)
        return as_json({"transfer": "basic", "objects": objects})

    def _lfs_verify(self, request: Incoming, groups: dict[str, str]) -> Answer:
        dataset = self._writable(request, groups)
        named = request.json()
        blob = self._content(dataset, named["oid"])
        if blob is None or blob.size != named["size"]:
            raise Refused(404, f"The object {named['oid']} of {named['size']} bytes was not uploaded")
        return Answer()

    def _commit(self, request: Incoming, groups: dict[str, str]) -> Answer:
        dataset = self._writable(request, groups)
        lines = [json.loads(line) for line in request.body.splitlines() if line.strip()]
        header = next(line["value"] for line in lines if line["key"] == "header")
        branch = unquote(groups["rev"])
        with dataset.lock:
            head = commit_of(dataset, groups)
            if branch not in dataset.branches:
                raise Refused(400, f"{branch} is not a branch")
            if header.get("parentCommit", head.id) != head.id:
                raise Refused(412, "A commit has happened since. Please refresh and try again.")
            changes: dict[str, Blob | None] = {}
            for line in lines:
                changes |= self._changes(dataset, head, line["key"], line["value"])
            oid = dataset.add_commit(changes, branch, header["summary"])
        url = f"{self._state.endpoint}/datasets/{dataset.id}/commit/{oid}"
        return as_json({"success": True, "commitOid": oid, "commitUrl": url, "hookOutput": ""})

    def _changes(
        self, dataset: Dataset, head: Commit, key: str, value: Mapping[str, Any]
    ) -> dict[str, Blob | None]:
        """Turn one line of a commit into the files that it changes."""
        path = value.get("path", "")
        if key == "file":
            return {path: Blob.of(base64.b64decode(value["content"]))}
        if key == "lfsFile":
            blob = self._content(dataset, value["oid"])
            if blob is None:
                raise Refused(400, f"The object {value['oid']} of {path} was not uploaded")
            return {path: blob}
        if key in {"deletedFile", "deletedFolder"}:
            folder = path.rstrip("/") + "/"
            gone = [
                file
                for file in head.files
                if file == path or (key == "deletedFolder" and file.startswith(folder))
            ]
            if not gone:
                raise Refused(404, f"A file with this name doesn't exist: {path}", "EntryNotFound")
            return dict.fromkeys(gone)
        return {}

    def _content(self, dataset: Dataset, sha256: str) -> Blob | None:
        """Find a large file that was uploaded or is in the repository's history."""
        blob = self._state.contents.get(sha256)
        if blob is not None and blob.sha256 == sha256:
            return blob
        with dataset.lock:
            commits = list(dataset.commits.values())
        return next(
            (file for commit in commits for file in commit.files.values() if file.sha256 == sha256), None
        )
