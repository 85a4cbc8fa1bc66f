"""What the loopback Hub holds: dataset repositories with history, and buckets."""

from __future__ import annotations

import hashlib
import re
import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tests.support.hub.blobs import Blob

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_ALWAYS_LARGE = (".mp4", ".parquet", ".npz", ".png", ".jpg", ".safetensors", ".bin")


def timestamp(moment: datetime) -> str:
    """Write a moment as the Hub does.

    Args:
        moment: In UTC.

    Returns:
        ISO 8601 with milliseconds.
    """
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


@dataclass
class Store:
    """What datasets and buckets share: who may do what.

    Args:
        id: "owner/name".
        private: Whether only tokens with a grant see it at all.
        gated: Whether only tokens with a grant read files. Listings of a public gated repository are open.
        xet: Whether the Hub says that its files are in Xet storage.
    """

    id: str
    private: bool = False
    gated: bool = False
    xet: bool = False
    readers: set[str] = field(default_factory=set, repr=False)
    writers: set[str] = field(default_factory=set, repr=False)
    created_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False)

    def grant(self, token: str, *, write: bool = False) -> None:
        """Let a token read, and write if asked.

        Args:
            token: The token.
            write: Whether it may write.
        """
        self.readers.add(token)
        if write:
            self.writers.add(token)


@dataclass(frozen=True)
class Commit:
    """One state of a dataset.

    Args:
        id: 40 hexadecimal digits.
        title: Its message.
        date: When it was made, in UTC.
        parent: The commit before it.
        files: Path to content, all files of this state.
    """

    id: str
    title: str
    date: datetime
    parent: str | None
    files: Mapping[str, Blob]


@dataclass
class Dataset(Store):
    """A dataset repository.

    Args:
        large_from: Size in bytes from which a file lies in large file storage; some suffixes always do.
    """

    large_from: int = 10_000
    branches: dict[str, str] = field(default_factory=dict)
    """Branch to commit id."""
    tags: dict[str, str] = field(default_factory=dict)
    """Tag to commit id."""
    commits: dict[str, Commit] = field(default_factory=dict)

    @property
    def commit(self) -> str:
        """The commit that `main` is at."""
        return self.branches["main"]

    def is_large(self, path: str, size: int) -> bool:
        """Say where a file lies.

        Args:
            path: Its path.
            size: Its size in bytes.

        Returns:
            Whether it is in large file storage. Empty files never are.
        """
        return size > 0 and (size >= self.large_from or path.endswith(_ALWAYS_LARGE))

    def add_commit(
        self,
        files: Mapping[str, bytes | Path | Blob | None],
        branch: str = "main",
        title: str = "Change files",
    ) -> str:
        """Put a commit on top of a branch.

        Args:
            files: Path to the new content; None removes the file. Others stay.
            branch: The branch.
            title: The commit's message.

        Returns:
            The commit's id.

        Raises:
            KeyError: When there is no such branch, or a file to remove is not there.
        """
        with self.lock:
            parent = self.branches[branch] if self.commits else None
            state = dict(self.commits[parent].files) if parent is not None else {}
            for path, content in files.items():
                if content is None:
                    del state[path]
                else:
                    state[path] = content if isinstance(content, Blob) else Blob.of(content)
            digest = hashlib.sha1(
                f"{self.id} {len(self.commits)} {parent} {title}".encode(), usedforsecurity=False
            )
            for path in sorted(state):
                digest.update(f"{path} {state[path].sha256}\n".encode())
            commit = Commit(digest.hexdigest(), title, datetime.now(UTC), parent, state)
            self.commits[commit.id] = commit
            self.branches[branch] = commit.id
            return commit.id

    def tag(self, name: str, revision: str = "main") -> None:
        """Name a commit.

        Args:
            name: The tag.
            revision: Branch, tag or commit.

        Raises:
            KeyError: When there is no such revision.
        """
        with self.lock:
            self.tags[name] = self.resolve(revision).id

    def branch(self, name: str, revision: str = "main") -> None:
        """Begin a branch.

        Args:
            name: The branch.
            revision: Branch, tag or commit that it begins at.

        Raises:
            KeyError: When there is no such revision.
        """
        with self.lock:
            self.branches[name] = self.resolve(revision).id

    def resolve(self, revision: str) -> Commit:
        """Find a commit.

        Args:
            revision: Branch, tag, commit, or the first digits of one, seven at least.

        Returns:
            The commit.

        Raises:
            KeyError: When there is none.
        """
        with self.lock:
            name = self.branches.get(revision) or self.tags.get(revision) or revision
            if name not in self.commits and re.fullmatch(r"[0-9a-f]{7,40}", name):
                name = next((commit for commit in self.commits if commit.startswith(name)), name)
            return self.commits[name]


@dataclass(frozen=True)
class BucketObject:
    """One file of a bucket.

    Args:
        blob: Its content.
        uploaded_at: When it came, in UTC.
        mtime: The time that its uploader gave it, in UTC.
    """

    blob: Blob
    uploaded_at: datetime
    mtime: datetime


@dataclass
class Bucket(Store):
    """A bucket: files without history, each with a content hash."""

    objects: dict[str, BucketObject] = field(default_factory=dict)

    def put(self, path: str, content: bytes | Path | Blob, mtime: datetime | None = None) -> BucketObject:
        """Write or replace a file.

        Args:
            path: Its path.
            content: Its content.
            mtime: Its time in UTC; None: now.

        Returns:
            The file.
        """
        blob = content if isinstance(content, Blob) else Blob.of(content)
        now = datetime.now(UTC)
        with self.lock:
            self.objects[path] = BucketObject(blob, now, mtime or now)
            return self.objects[path]

    def delete(self, path: str) -> None:
        """Remove a file.

        Args:
            path: Its path.

        Raises:
            KeyError: When it is not there.
        """
        with self.lock:
            del self.objects[path]
