"""Finds or makes the sidecar of a dataset: local cache, published file, build."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from typing import TYPE_CHECKING

from lerobot_streaming.errors import SidecarError, StreamingError
from lerobot_streaming.index.builder import DEFAULT_WORKERS, build_sidecar, check_and_flush, index_files
from lerobot_streaming.index.lock import sidecar_lock
from lerobot_streaming.index.sidecar import Sidecar, open_sidecar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from lerobot_streaming.index.identity import SidecarIdentity
    from lerobot_streaming.storage.base import RangeReader

_logger = logging.getLogger(__name__)


def resolve_sidecar(
    identity: SidecarIdentity,
    files: Mapping[str, int],
    reader: RangeReader,
    *,
    lerobot_home: Path,
    lock_timeout_s: float,
    workers: int = DEFAULT_WORKERS,
    progress: bool = False,
    use_cache: bool = True,
    fetch_published: Callable[[Path], bool] | None = None,
) -> Sidecar:
    """Opens the sidecar of a dataset, and makes it first where there is none.

    The order is: a valid file in the local cache; else, under a process lock, once more the local cache
    (another process may have been faster), then the published file, then a build. A new file is written under
    a temporary name, validated, flushed and renamed, so a failed or killed build never harms a valid file.

    Args:
        identity: What the sidecar belongs to.
        files: Path -> size in bytes of the files that it must hold.
        reader: Where the files are read from.
        lerobot_home: `$HF_LEROBOT_HOME`.
        lock_timeout_s: Seconds to wait for another process that makes the same sidecar.
        workers: Files parsed at a time.
        progress: True shows a bar while building.
        use_cache: False when nothing tells whether the files have changed: the index is then built in memory
            at every call.
        fetch_published: `fetch_published(temporary_path)` downloads a published sidecar to that path and
            returns True, or returns False when there is none. A file that proves invalid is dropped, and the
            build follows.

    Returns:
        The sidecar. When the cache directory cannot be written, an index in memory, after one logged warning.

    Raises:
        SidecarError: Video files cannot be indexed; the message lists all of them.
        SidecarLockTimeoutError: Another process held the lock for too long.
    """
    if not use_cache:
        return _in_memory(identity, files, reader, workers=workers, progress=progress)
    path = identity.cache_path(lerobot_home)
    found = _open_valid(path, identity, files)
    if found is not None:
        return found

    def make(temporary: Path) -> None:
        if fetch_published is None or not _fetch_valid(fetch_published, temporary, identity, files):
            build_sidecar(temporary, identity, files, reader, workers=workers, progress=progress)

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with sidecar_lock(path, lock_timeout_s):
            found = _open_valid(path, identity, files)
            if found is None:
                _install(path, make)
                found = open_sidecar(path, identity, files)
            return found
    except OSError as error:
        # Some of our own errors are OSErrors too, but they are not about the cache.
        if isinstance(error, StreamingError):
            raise
        _logger.warning(
            "cannot keep the video index in '%s' (%s); it is built in memory at every start. Set "
            "HF_LEROBOT_HOME to a directory that can be written",
            path.parent,
            error,
        )
    return _in_memory(identity, files, reader, workers=workers, progress=progress)


def _open_valid(path: Path, identity: SidecarIdentity, files: Mapping[str, int]) -> Sidecar | None:
    """Opens a cached file; one that is absent or does not fit is as good as none."""
    if not path.exists():
        return None
    try:
        return open_sidecar(path, identity, files)
    except SidecarError as error:
        _logger.info("the cached video index is made anew: %s", error)
        return None


def _install(path: Path, make: Callable[[Path], None]) -> None:
    """Makes a file under a temporary name and renames it. Must be called under the lock."""
    # Whoever holds the lock is the only builder, so every temporary file is a dead one's.
    for stale in path.parent.glob(f".{path.name}.*.tmp"):
        stale.unlink(missing_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        make(temporary)
        temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)  # Makes the new name survive a power failure.
    finally:
        os.close(directory)


def _fetch_valid(
    fetch_published: Callable[[Path], bool],
    temporary: Path,
    identity: SidecarIdentity,
    files: Mapping[str, int],
) -> bool:
    if not fetch_published(temporary):
        return False
    try:
        check_and_flush(temporary, identity, files)
    except SidecarError as error:
        _logger.warning("the published video index does not fit and is not used: %s", error)
        temporary.unlink(missing_ok=True)
        return False
    return True


def _in_memory(
    identity: SidecarIdentity,
    files: Mapping[str, int],
    reader: RangeReader,
    *,
    workers: int,
    progress: bool,
) -> Sidecar:
    return Sidecar.in_memory(identity, index_files(files, reader, workers=workers, progress=progress))
