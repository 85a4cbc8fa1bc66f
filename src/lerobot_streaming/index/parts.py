"""Tables of single files, kept beside a sidecar that is not complete yet.

Whoever indexes a file before the complete sidecar exists leaves its table here, so that neither another
process nor the next run reads that file's `moov` again. A part is a sidecar with one file. Its directory
carries the name of the sidecar, and with it the identity of the data.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
from typing import TYPE_CHECKING

from filelock import FileLock

from lerobot_streaming.errors import SidecarError
from lerobot_streaming.index.sidecar import open_sidecar
from lerobot_streaming.index.sidecar_writer import write_sidecar

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lerobot_streaming.index.identity import SidecarIdentity
    from lerobot_streaming.index.tables import SourceFile


class PartStore:
    """The parts of one sidecar. Threads and processes may use it at once."""

    def __init__(self, sidecar_path: Path, identity: SidecarIdentity) -> None:
        """Touches nothing yet.

        Args:
            sidecar_path: The complete sidecar's place in the cache.
            identity: What it belongs to.
        """
        self._directory = sidecar_path.with_name(f".{sidecar_path.name}.parts")
        self._identity = identity

    def create(self) -> None:
        """Makes the directory.

        Raises:
            OSError: It cannot be made.
        """
        self._directory.mkdir(parents=True, exist_ok=True)

    def exists(self) -> bool:
        """Whether there may be parts."""
        return self._directory.is_dir()

    def remove(self) -> None:
        """Removes all parts, once the complete sidecar is installed."""
        shutil.rmtree(self._directory, ignore_errors=True)

    def belongs(self, path: str, fingerprint: str | None) -> bool:
        """Whether a file still is the one that the sidecar's identity names.

        Args:
            path: The file's path relative to the data root.
            fingerprint: What storage says of it now.

        Returns:
            False when it was replaced meanwhile: its table must not be kept under the old identity.
        """
        return self._identity.source_fingerprints.get(path, fingerprint) == fingerprint

    def read(self, path: str, size: int) -> SourceFile | None:
        """Opens the part of one file.

        Args:
            path: The file's path relative to the data root.
            size: Its size in bytes.

        Returns:
            The indexed file, completely validated, or None when there is no usable part.
        """
        place = self._place(path)
        if not place.exists():
            return None
        try:
            sidecar = open_sidecar(place, self._identity.restrict([path]), {path: size})
        except SidecarError:
            return None
        try:
            return sidecar.read(path)
        except SidecarError:
            return None
        finally:
            sidecar.close()

    def write(self, source: SourceFile) -> None:
        """Keeps the table of one file; a directory that is gone or cannot be written is no error.

        Args:
            source: The indexed file.
        """
        place = self._place(source.path)
        temporary = place.with_name(f"{place.stem}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
        # Not flushed: a part that a power failure damages fails its checksum and is made anew.
        with contextlib.suppress(OSError):
            try:
                write_sidecar(temporary, self._identity.restrict([source.path]), [source])
                temporary.replace(place)
            finally:
                temporary.unlink(missing_ok=True)

    @contextlib.contextmanager
    def lock(self, path: str) -> Iterator[None]:
        """Holds the lock of one file, so that no two processes read the same `moov`.

        Args:
            path: The file's path relative to the data root.

        Yields:
            Nothing. Where the lock file cannot be made there is no lock, and a file may be read twice.
        """
        lock = FileLock(self._place(path).with_suffix(".lock"))
        if not self.exists():  # A file lock would make the directory anew.
            yield
            return
        try:
            lock.acquire()
        except (OSError, NotImplementedError):  # A file system without locks says the latter.
            yield
            return
        try:
            yield
        finally:
            lock.release()

    def _place(self, path: str) -> Path:
        return self._directory / f"{hashlib.sha256(path.encode()).hexdigest()[:32]}.npz"
