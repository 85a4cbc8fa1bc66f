"""The process lock under which a sidecar is built."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from lerobot_streaming.errors import SidecarLockTimeoutError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_MAX_HOLDER_BYTES = 4096


def lock_path(path: Path) -> Path:
    """Gives the lock file beside a sidecar.

    Args:
        path: The sidecar.

    Returns:
        The lock file's path.
    """
    return path.with_name(f"{path.name}.lock")


def _holder_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock.holder")


@contextlib.contextmanager
def sidecar_lock(path: Path, timeout_s: float) -> Iterator[None]:
    """Holds the lock of one sidecar. The operating system frees it when its holder dies.

    Args:
        path: The sidecar; its directory must exist.
        timeout_s: Seconds to wait for another holder.

    Yields:
        Nothing; the lock is held inside the block.

    Raises:
        SidecarLockTimeoutError: Another process held it all the time; the message names the lock file and,
            where known, the holder.
        OSError: The lock file cannot be created.
    """
    lock = FileLock(lock_path(path), timeout=timeout_s)
    try:
        lock.acquire()
    except NotImplementedError as error:
        raise OSError(errno.ENOSYS, f"no file locks in '{path.parent}' ({error})") from error
    except Timeout as error:
        raise SidecarLockTimeoutError(
            f"waited {timeout_s:g} s for the lock '{lock_path(path)}', held by {_describe_holder(path)}; "
            "wait for that process or end it, or raise sidecar_lock_timeout_s"
        ) from error
    holder = _holder_path(path)
    try:
        # Only for the message above: a lock file's own content cannot be written portably while it is locked.
        with contextlib.suppress(OSError):
            holder.write_text(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
        yield
    finally:
        with contextlib.suppress(OSError):
            holder.unlink()
        lock.release()


def _describe_holder(path: Path) -> str:
    try:
        with _holder_path(path).open("rb") as file:
            holder = json.loads(file.read(_MAX_HOLDER_BYTES))
        return f"process {int(holder['pid'])} on host {str(holder['host'])!r}"
    except (OSError, ValueError, TypeError, KeyError):
        return "an unknown process"
