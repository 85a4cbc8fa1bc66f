"""Opens the complete sidecar of the local cache."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lerobot_streaming.errors import SidecarError, SidecarLockTimeoutError, StreamingError
from lerobot_streaming.index.mapped import open_mapped
from lerobot_streaming.index.sidecar import check_fit, open_sidecar

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from lerobot_streaming.index.identity import SidecarIdentity
    from lerobot_streaming.index.sample_index import SampleIndex

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CachePlace:
    """Where the complete sidecar of a dataset lies, or will lie.

    Attributes:
        identity: What it belongs to.
        lerobot_home: `$HF_LEROBOT_HOME`.
        lock_timeout_s: Seconds to wait for another process that makes the same file.
        path: The sidecar's path.
    """

    identity: SidecarIdentity
    lerobot_home: Path
    lock_timeout_s: float
    path: Path = field(init=False)

    def __post_init__(self) -> None:
        """Finds the path once: it hashes the fingerprints of all files."""
        object.__setattr__(self, "path", self.identity.cache_path(self.lerobot_home))

    def open(self, files: Mapping[str, int]) -> SampleIndex | None:
        """Opens the sidecar, if it is there and valid.

        Args:
            files: Path -> size in bytes of the files that it must hold.

        Returns:
            The index. A file that is absent or does not fit is as good as none.
        """
        if not self.path.exists():
            return None
        try:
            return self._open(files)
        except SidecarError as error:
            if isinstance(error, SidecarLockTimeoutError):
                raise
            _logger.info("the cached video index is made anew: %s", error)
            return None

    def _open(self, files: Mapping[str, int]) -> SampleIndex:
        try:
            index = open_mapped(self.path, self.lerobot_home, lock_timeout_s=self.lock_timeout_s)
        except OSError as error:
            if isinstance(error, StreamingError):
                raise
            # Where nothing can be mapped, the sidecar itself serves: each process reads its tables from it.
            _logger.info("the video index is read from the sidecar itself: %s", error)
            return open_sidecar(self.path, self.identity, files)
        try:
            check_fit(index.identity, index.files, self.identity, files)
        except SidecarError:
            index.close()
            raise
        return index
