"""What a sidecar belongs to, and the file name that follows from it."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

SCHEMA_VERSION = 3
CACHE_DIRECTORY = "streaming-sidecars"

_NOT_NAME = re.compile(r"[^A-Za-z0-9_.-]+")
_MAX_REVISION_SLUG = 32


@dataclass(frozen=True)
class SidecarIdentity:
    """Names the data that a sidecar indexes. Two sidecars with equal digests are interchangeable.

    Attributes:
        repo_id: Hub dataset or bucket id, or the label of a local dataset.
        revision: Branch, tag or commit.
        data_root: Stable text of the data's root: an absolute path, or `hf://datasets/OWNER/NAME@COMMIT`.
        source_fingerprints: Path -> content fingerprint; empty when the data root itself pins the content.
    """

    repo_id: str
    revision: str
    data_root: str
    source_fingerprints: Mapping[str, str] = field(default_factory=dict)

    def digest(self) -> str:
        """Gives the first 16 hex digits of the SHA-256 of the identity as canonical JSON."""
        identity: dict[str, object] = {
            "schema_version": SCHEMA_VERSION,
            "repo_id": self.repo_id,
            "revision": self.revision,
            "data_root": self.data_root,
        }
        if self.source_fingerprints:
            identity["source_fingerprints"] = dict(self.source_fingerprints)
        text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def repo_slug(self) -> str:
        """Gives the repository id as a directory name."""
        return _NOT_NAME.sub("--", self.repo_id).strip("-") or "dataset"

    def file_name(self) -> str:
        """Gives the sidecar's file name, such as `mp4-v3-main-0123456789abcdef.npz`."""
        slug = _NOT_NAME.sub("-", self.revision).strip("-")[:_MAX_REVISION_SLUG] or "revision"
        return f"mp4-v{SCHEMA_VERSION}-{slug}-{self.digest()}.npz"

    def cache_path(self, lerobot_home: Path) -> Path:
        """Gives the sidecar's place in the local cache.

        Args:
            lerobot_home: `$HF_LEROBOT_HOME`.

        Returns:
            `LEROBOT_HOME/streaming-sidecars/REPO_SLUG/FILE_NAME`.
        """
        return lerobot_home / CACHE_DIRECTORY / self.repo_slug() / self.file_name()

    def restrict(self, files: Iterable[str]) -> SidecarIdentity:
        """Gives the identity of a part: that of the whole with the fingerprints of the part's files.

        Args:
            files: Paths of the part's files.

        Returns:
            The part's identity.
        """
        prints = self.source_fingerprints
        return replace(self, source_fingerprints={path: prints[path] for path in files if path in prints})
