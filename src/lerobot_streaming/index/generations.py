"""Names of mapped index files, how readers keep them, and how those that nobody uses are removed.

The name holds a hash of the sidecar's content, so a replaced sidecar gets a new file beside the old one: a
new generation. Readers hold a shared `flock` while a file is open; a file is removed only under an exclusive
one.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import secrets
import struct
import time
from typing import TYPE_CHECKING

from lerobot_streaming.errors import SidecarError
from lerobot_streaming.index.identity import CACHE_DIRECTORY
from lerobot_streaming.index.mapped_layout import VERSION

if TYPE_CHECKING:
    from pathlib import Path

INDEX_DIRECTORY = "streaming-indexes"
SUFFIX = ".idx"

_TEMPORARY = re.compile(r"\.(?P<stem>.+)-[0-9a-f]{16}\.idx\.[0-9a-f]+-[0-9a-f]+\.tmp")
_NAME = re.compile(r"(?P<stem>.+)-[0-9a-f]{16}\.idx")

# ZIP end records: PKWARE's APPNOTE, sections 4.3.14 to 4.3.16.
_END = b"PK\x05\x06"
_END_BYTES = 22
_MAX_COMMENT_BYTES = 65535
_LOCATOR64 = b"PK\x06\x07"
_LOCATOR64_BYTES = 20
_END64 = b"PK\x06\x06"
_END64_BYTES = 56
_CHUNK_BYTES = 1 << 20

_LOCK_TRIES = 50
_LOCK_WAIT_S = 0.01


def content_key(sidecar: Path) -> str:
    """Hashes what tells one sidecar's content from another's, without reading its members.

    That is the directory at the end of the archive, which holds every member's CRC-32 and sizes, and the
    file's size. The format version of mapped files is mixed in: each version has files of its own.

    Args:
        sidecar: The NPZ file.

    Returns:
        16 hex digits.

    Raises:
        SidecarError: It cannot be read or is not a ZIP archive.
    """
    try:
        with sidecar.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            tail_start = max(size - _END_BYTES - _MAX_COMMENT_BYTES - _LOCATOR64_BYTES - _END64_BYTES, 0)
            file.seek(tail_start)
            tail = file.read(size - tail_start)
            start = tail_start + _directory_start(tail, tail_start, sidecar)
            key = hashlib.blake2b(struct.pack("<QQ", VERSION, size), digest_size=8)
            file.seek(start)
            while chunk := file.read(_CHUNK_BYTES):
                key.update(chunk)
            return key.hexdigest()
    except OSError as error:
        raise SidecarError(f"cannot open sidecar '{sidecar}': {error}") from error


def _directory_start(tail: bytes, tail_start: int, sidecar: Path) -> int:
    """Where the archive's directory starts, relative to `tail`."""
    end = tail.rfind(_END, 0, max(len(tail) - _END_BYTES + len(_END), 0))
    if end >= 0:
        (length,) = struct.unpack_from("<I", tail, end + 12)
        locator = end - _LOCATOR64_BYTES
        record = locator - _END64_BYTES
        if record >= 0 and tail.startswith(_LOCATOR64, locator) and tail.startswith(_END64, record):
            (length,) = struct.unpack_from("<Q", tail, record + 40)
            end = record
        if length <= tail_start + end:
            return int(end - length)
    raise SidecarError(f"sidecar '{sidecar}' is not an NPZ archive; delete it, it will be built again")


def index_path(sidecar: Path, lerobot_home: Path, key: str) -> Path:
    """Gives the place of a sidecar's mapped index.

    Args:
        sidecar: The NPZ file, `.../REPO_SLUG/STEM.npz`.
        lerobot_home: `$HF_LEROBOT_HOME`.
        key: The sidecar's content key.

    Returns:
        `LEROBOT_HOME/streaming-indexes/REPO_SLUG/STEM-KEY.idx`.
    """
    return lerobot_home / INDEX_DIRECTORY / sidecar.parent.name / f"{sidecar.stem}-{key}{SUFFIX}"


def open_shared(path: Path) -> int | None:
    """Opens an index file for reading and marks it as used, where the file system can do that.

    The mark lasts until the descriptor and all its duplicates are closed, in forked children too.

    Args:
        path: The index file.

    Returns:
        A file descriptor, or None when there is no such file (any more).

    Raises:
        OSError: It cannot be opened.
    """
    for _ in range(_LOCK_TRIES):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in {errno.EWOULDBLOCK, errno.EACCES}:
                return fd  # No locks here: then nobody removes files either.
            os.close(fd)
            time.sleep(_LOCK_WAIT_S)  # Somebody is about to remove it.
            continue
        # Whoever removed it did so before we had the lock; a name without a file is of no use to others.
        if os.fstat(fd).st_nlink:
            return fd
        os.close(fd)
    return None


def remove_unused(installed: Path, lerobot_home: Path) -> None:
    """Removes index files beside a new one that nobody can want any more and nobody has open.

    These are older generations of the same sidecar name, and indexes whose sidecar is no longer in the cache.
    What cannot be locked or removed stays.

    Args:
        installed: The new file.
        lerobot_home: `$HF_LEROBOT_HOME`.
    """
    found = _NAME.fullmatch(installed.name)
    own_stem = found["stem"] if found else ""
    sidecars = lerobot_home / CACHE_DIRECTORY / installed.parent.name
    with contextlib.suppress(OSError):
        for path in sorted(installed.parent.glob(f"*{SUFFIX}")):
            name = _NAME.fullmatch(path.name)
            if name is None or path.name == installed.name:
                continue
            if name["stem"] == own_stem or not (sidecars / f"{name['stem']}.npz").exists():
                _remove_if_unused(path)


def remove_stale_temporaries(directory: Path, stem: str) -> None:
    """Removes what dead builders left. Must be called under the lock of the stem.

    Args:
        directory: Where the index files are.
        stem: The sidecar's name without its suffix.
    """
    for path in directory.glob(".*.tmp"):
        name = _TEMPORARY.fullmatch(path.name)
        # Whoever holds the lock is the only builder of this stem, so these are dead ones'.
        if name is not None and name["stem"] == stem:
            path.unlink(missing_ok=True)


def temporary_path(path: Path) -> Path:
    """Gives a name under which an index file can be written before it is installed.

    Args:
        path: Where it will be installed.

    Returns:
        A new name in the same directory.
    """
    return path.with_name(f".{path.name}.{os.getpid():x}-{secrets.token_hex(4)}.tmp")


def _remove_if_unused(path: Path) -> None:
    with contextlib.suppress(OSError):
        # Some network file systems give an exclusive lock on files open for writing only.
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(fd), path.stat()):
                path.unlink()
        finally:
            os.close(fd)
