"""Finds or makes the index of a dataset: local cache, published file, build at once or bit by bit."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from lerobot_streaming.errors import (
    BadVideoFilesError,
    SidecarError,
    SidecarLockTimeoutError,
    StreamingError,
)
from lerobot_streaming.index.builder import DEFAULT_WORKERS, build_sidecar, check_and_flush
from lerobot_streaming.index.cached import CachePlace
from lerobot_streaming.index.completion import Completion
from lerobot_streaming.index.lock import sidecar_lock
from lerobot_streaming.index.mp4 import MAX_MOOV_BYTES
from lerobot_streaming.index.partial import PartialIndex
from lerobot_streaming.index.parts import PartStore

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from lerobot_streaming.index.identity import SidecarIdentity
    from lerobot_streaming.index.published import PublishedSidecars
    from lerobot_streaming.index.sample_index import SampleIndex
    from lerobot_streaming.storage.base import RangeReader

_logger = logging.getLogger(__name__)

LAZY_ABOVE = 32
"""Video files up to which an index is made before the first sample. A local file takes milliseconds and one
on the Hub some tenths of a second, eight at a time, so this is not felt; and whoever has few files gets every
bad one listed at the start."""

_HEAD_START_S: Final = 10.0
"""Before a remote store is asked for the files that nobody waits for: its answers, and this machine's time
for them, belong to the first batch."""


_LAZY_LOCK_TIMEOUT_S: Final = 30.0
"""Seconds that a dataset of many files waits for a process that may be downloading its published sidecar."""


@dataclass(frozen=True, slots=True)
class IndexRequest:
    """What an index is wanted for.

    Attributes:
        identity: What the complete sidecar belongs to.
        files: Path -> size in bytes of all video files of the dataset that exist.
        reader: Where they are read from.
        lerobot_home: `$HF_LEROBOT_HOME`.
        lock_timeout_s: Seconds to wait for another process that makes the same sidecar.
        needed: The files that the selected episodes need; a size of -1 is a file that does not exist. None:
            all files.
        workers: Files parsed at a time.
        progress: True shows a bar while building.
        use_cache: False when nothing tells whether the files have changed: then nothing is kept, and each
            file is indexed when it is first needed.
        lazy_above: Number of files up to which everything is indexed at once.
        all_at_once: False when nobody waits for files that are not needed, however few they are.
        published: Where the sidecar may be published, or None.
        place: The complete sidecar's place in the cache.
    """

    identity: SidecarIdentity
    files: Mapping[str, int]
    reader: RangeReader
    lerobot_home: Path
    lock_timeout_s: float
    needed: Mapping[str, int] | None = None
    workers: int = DEFAULT_WORKERS
    progress: bool = False
    use_cache: bool = True
    lazy_above: int = LAZY_ABOVE
    all_at_once: bool = True
    published: PublishedSidecars | None = None
    place: CachePlace = field(init=False)

    def __post_init__(self) -> None:
        """Finds the complete sidecar's place in the cache."""
        object.__setattr__(self, "place", CachePlace(self.identity, self.lerobot_home, self.lock_timeout_s))

    @property
    def path(self) -> Path:
        """The complete sidecar's path."""
        return self.place.path

    @property
    def wanted(self) -> Mapping[str, int]:
        """The needed files, or all."""
        return self.files if self.needed is None else self.needed


def resolve_index(request: IndexRequest) -> SampleIndex:
    """Opens the index of a dataset, and makes it first, as far as it is needed, where there is none.

    The order is: a valid file in the local cache; else, under a process lock, once more the local cache
    (another process may have been faster), then the published file, then, for a dataset of few files, a
    build. A new file is written under a temporary name, validated, flushed and renamed, so a failed or killed
    build never harms a valid file. A dataset of many files does not wait for a complete build: its files are
    indexed when they are first needed (`complete_later` makes the sidecar meanwhile).

    Args:
        request: What is wanted.

    Returns:
        The index.

    Raises:
        BadVideoFilesError: Needed video files cannot be indexed; the message lists all of them.
        SidecarLockTimeoutError: Another process held the lock for too long.
    """
    if any(size < 0 for size in request.wanted.values()):
        # Lists the missing files together with whatever is wrong with the others.
        files = {**request.files, **request.wanted}
        PartialIndex(request.identity, files, request.reader, parts=None).load(request.wanted)
    parts = None
    if request.use_cache:
        try:
            found = _from_cache(request)
            if found is not None:
                return found
            parts = PartStore(request.path, request.identity)
            parts.create()
        except OSError as error:
            # Some of our own errors are OSErrors too, but they are not about the cache.
            if isinstance(error, StreamingError):
                raise
            parts = None
            _logger.warning(
                "cannot keep the video index in '%s' (%s); it is built in memory at every start. Set "
                "HF_LEROBOT_HOME to a directory that can be written",
                request.path.parent,
                error,
            )
    index = PartialIndex(
        request.identity,
        request.files,
        request.reader,
        parts=parts,
        complete=None if parts is None else request.place,
        threads=request.workers,
    )
    if len(request.wanted) <= request.lazy_above:
        index.load(request.wanted)
    return index


def complete_later(index: SampleIndex, request: IndexRequest) -> Completion | None:
    """Lets a thread of this process complete the sidecar of an index that was opened without one.

    Args:
        index: What `resolve_index` gave.
        request: What it was given.

    Returns:
        The thread's handle; None when there is nothing to complete.
    """
    parts = PartStore(request.path, request.identity)
    if not (request.use_cache and isinstance(index, PartialIndex) and parts.exists()):
        return None

    def build(stopped: threading.Event) -> None:
        whole = request.path.with_name(f".{request.path.name}.complete")
        # Whoever holds this lock does the same already. It is not the sidecar's own: nobody who opens the
        # dataset has to wait until all of its files are indexed.
        with sidecar_lock(whole, 0):
            if request.place.open(request.files) is not None:
                return
            try:
                _build(request, parts, whole, stopped=stopped)
                with sidecar_lock(request.path, request.lock_timeout_s):
                    whole.replace(request.path)
            finally:
                whole.unlink(missing_ok=True)
            parts.remove()

    delay_s = _HEAD_START_S if "://" in request.reader.root else 0.0
    return Completion(build, request.reader.close, delay_s=delay_s)


def _build(
    request: IndexRequest,
    parts: PartStore | None,
    target: Path,
    *,
    max_moov_bytes: int = MAX_MOOV_BYTES,
    stopped: threading.Event | None = None,
) -> bool:
    build_sidecar(
        target,
        request.identity,
        request.files,
        request.reader,
        workers=request.workers,
        progress=request.progress,
        max_moov_bytes=max_moov_bytes,
        parts=parts,
        stopped=stopped,
    )
    return True


def make_sidecar(
    request: IndexRequest,
    *,
    output: Path | None = None,
    max_moov_bytes: int = MAX_MOOV_BYTES,
) -> Path:
    """Builds and installs the complete sidecar. The caller holds its lock.

    Args:
        request: What is wanted.
        output: Where to install it when not in the cache.
        max_moov_bytes: Largest `moov` box in bytes that is read.

    Returns:
        Where it lies.

    Raises:
        BadVideoFilesError: Video files cannot be indexed; nothing is installed.
        OSError: The file cannot be written.
    """
    parts = PartStore(request.path, request.identity)
    known = parts if parts.exists() else None
    path = request.path if output is None else output
    install(path, lambda place: _build(request, known, place, max_moov_bytes=max_moov_bytes))
    if output is None:
        parts.remove()
    return path


def install(path: Path, make: Callable[[Path], bool]) -> bool:
    """Makes a file under a temporary name and renames it. Must be called under the file's lock.

    Args:
        path: The file's place.
        make: Writes and flushes the file at the path that it is given; False says that there is none.

    Returns:
        Whether there is a new file.

    Raises:
        OSError: The file cannot be written or renamed.
    """
    # Whoever holds the lock is the only builder, so every temporary file is a dead one's.
    for stale in path.parent.glob(f".{path.name}.*.tmp"):
        stale.unlink(missing_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        if not make(temporary):
            return False
        temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)  # Makes the new name survive a power failure.
    finally:
        os.close(directory)
    return True


def _from_cache(request: IndexRequest) -> SampleIndex | None:
    """Opens the cached sidecar, after installing the published one or building a small one."""
    found = request.place.open(request.files)
    published = request.published
    small = request.all_at_once and len(request.files) <= request.lazy_above
    if found is not None:
        PartStore(request.path, request.identity).remove()  # What a process may have left too late.
        return found
    request.path.parent.mkdir(parents=True, exist_ok=True)
    if not small and published is None:
        return None
    try:
        return _make_under_lock(request, small=small)
    except SidecarLockTimeoutError:
        if small:
            raise
        return None  # Files are indexed as they are needed, whatever takes the other process so long.


def _make_under_lock(request: IndexRequest, *, small: bool) -> SampleIndex | None:
    published = request.published
    timeout_s = request.lock_timeout_s if small else min(request.lock_timeout_s, _LAZY_LOCK_TIMEOUT_S)
    with sidecar_lock(request.path, timeout_s):
        found = request.place.open(request.files)
        if found is not None:
            return found
        if published is not None and install(
            request.path, lambda place: _fetch_valid(published, place, request)
        ):
            return request.place.open(request.files)
        if not small:
            return None
        try:
            make_sidecar(request)
        except BadVideoFilesError as error:
            if set(error.paths) & request.wanted.keys():
                raise
            _logger.warning("no selected episode needs them, but the video index stays incomplete: %s", error)
            return None
        return request.place.open(request.files)


def _fetch_valid(published: PublishedSidecars, temporary: Path, request: IndexRequest) -> bool:
    if not published.fetch(request.identity, request.files, temporary):
        return False
    try:
        check_and_flush(temporary, request.identity, request.files)
    except SidecarError as error:
        _logger.warning("the published video index does not fit and is not used: %s", error)
        return False
    return True
