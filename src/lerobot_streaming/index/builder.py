"""Builds sidecars: many MP4 files are parsed at once, their tables written in order, memory bounded."""

from __future__ import annotations

import os
import threading
from collections import deque
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

from tqdm import tqdm

from lerobot_streaming.errors import (
    BadVideoFilesError,
    FetchError,
    MissingFileError,
    Mp4Error,
    PipelineClosedError,
)
from lerobot_streaming.index.mp4 import MAX_MOOV_BYTES, read_mp4
from lerobot_streaming.index.sidecar import open_sidecar
from lerobot_streaming.index.sidecar_walk import is_as_written
from lerobot_streaming.index.sidecar_writer import write_sidecar
from lerobot_streaming.threads import daemon_pool, result_of

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from concurrent.futures import Future
    from pathlib import Path

    from lerobot_streaming.index.identity import SidecarIdentity
    from lerobot_streaming.index.parts import PartStore
    from lerobot_streaming.index.tables import SourceFile
    from lerobot_streaming.storage.base import RangeReader

DEFAULT_WORKERS = 8


def index_files(
    files: Mapping[str, int],
    reader: RangeReader,
    *,
    workers: int = DEFAULT_WORKERS,
    progress: bool = False,
    max_moov_bytes: int = MAX_MOOV_BYTES,
    parts: PartStore | None = None,
    stopped: threading.Event | None = None,
) -> Generator[SourceFile, None, None]:
    """Parses MP4 files with a bounded pool of threads.

    Args:
        files: Path -> size in bytes; -1 for a file that the store does not have.
        reader: Where they are read from; only `moov` boxes are read.
        workers: Files parsed, and results held, at a time; at least 1.
        progress: True shows a bar with files, bytes read and the time left.
        max_moov_bytes: Largest `moov` box in bytes that is read.
        parts: Tables that are known already are taken from here, and new ones are left here.
        stopped: Once set, no further file is begun.

    Yields:
        The indexed files in ascending order of their paths, up to the first bad one.

    Raises:
        BadVideoFilesError: Files are missing, unreadable, damaged or unsupported. It is raised after all of
            them have been tried, and lists every one with its reason.
        PipelineClosedError: `stopped` was set.
        ValueError: `workers` is below 1.
    """
    if workers < 1:
        raise ValueError(f"workers is {workers}, but at least 1 thread must parse")
    parser = FileParser(reader, max_moov_bytes=max_moov_bytes, parts=parts)
    bad: dict[str, str] = {}
    pending: deque[tuple[str, Future[SourceFile]]] = deque()
    queue = iter(sorted(files))  # Not of the items: each of those would take as much as its name.
    bar = tqdm(total=len(files), desc="indexing videos", unit="file", disable=not progress)
    # After an interrupt nobody waits for reads that may hang on the network.
    with bar, daemon_pool(workers, "mp4-index") as pool:
        while True:
            if stopped is not None and stopped.is_set():
                raise PipelineClosedError("Indexing was stopped before all video files were read.")
            while len(pending) < workers and (path := next(queue, None)) is not None:
                pending.append((path, pool.submit(partial(parser.parse, path, files[path]))))
            if not pending:
                break
            path, future = pending.popleft()
            try:
                source = result_of(future)
            except (Mp4Error, MissingFileError, FetchError) as error:
                bad[path] = f"{path}: {error}"
            else:
                if not bad:
                    yield source
                del source
            del future
            bar.set_postfix_str(f"{parser.bytes_read / 2**20:.1f} MiB read", refresh=False)
            bar.update()
    if bad:
        raise BadVideoFilesError(
            f"{len(bad)} of {len(files)} video files below '{reader.root}' cannot be indexed; restore them "
            "or leave their episodes out:\n  " + "\n  ".join(bad.values()),
            tuple(bad),
        )


def build_sidecar(
    path: Path,
    identity: SidecarIdentity,
    files: Mapping[str, int],
    reader: RangeReader,
    *,
    workers: int = DEFAULT_WORKERS,
    progress: bool = False,
    max_moov_bytes: int = MAX_MOOV_BYTES,
    parts: PartStore | None = None,
    stopped: threading.Event | None = None,
) -> None:
    """Builds a sidecar file, validates it and flushes it to the disk.

    Args:
        path: The file to write; not atomic, so give a temporary name and rename it afterwards.
        identity: What the sidecar belongs to.
        files: Path -> size in bytes.
        reader: Where the files are read from.
        workers: Files parsed at a time.
        progress: True shows a bar.
        max_moov_bytes: Largest `moov` box in bytes that is read.
        parts: As in `index_files`.
        stopped: As in `index_files`.

    Raises:
        BadVideoFilesError: As in `index_files`.
        PipelineClosedError: `stopped` was set.
        OSError: The file cannot be written.
    """
    sources = index_files(
        files,
        reader,
        workers=workers,
        progress=progress,
        max_moov_bytes=max_moov_bytes,
        parts=parts,
        stopped=stopped,
    )
    with closing(sources):
        write_sidecar(path, identity, sources)
    check_and_flush(path, identity, files)


def check_and_flush(path: Path, identity: SidecarIdentity, files: Mapping[str, int]) -> None:
    """Validates a new sidecar completely and flushes it to the disk, so that it may be installed.

    Args:
        path: The new file.
        identity: What it must belong to.
        files: Path -> size of the files that it must hold.

    Raises:
        SidecarError: It is damaged or belongs to other data.
        OSError: It cannot be flushed.
    """
    if not is_as_written(path, identity, files):
        # Another program's sidecar may be valid all the same, and a damaged one needs a reason.
        sidecar = open_sidecar(path, identity, files)
        try:
            sidecar.validate()
        finally:
            sidecar.close()
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class FileParser:
    """Parses single files, from parts where they are known, and counts the bytes that it reads."""

    def __init__(
        self, reader: RangeReader, *, max_moov_bytes: int = MAX_MOOV_BYTES, parts: PartStore | None = None
    ) -> None:
        """Reads nothing yet.

        Args:
            reader: Where the files are read from.
            max_moov_bytes: Largest `moov` box in bytes that is read.
            parts: Tables that are known already are taken from here, and new ones are left here.
        """
        self._reader = reader
        self._max_moov_bytes = max_moov_bytes
        self._parts = parts
        self._lock = threading.Lock()
        self._total = 0

    @property
    def bytes_read(self) -> int:
        """Bytes read from the video files so far."""
        return self._total

    def parse(self, path: str, size: int) -> SourceFile:
        """Gives the table of one file.

        Args:
            path: The file's path relative to the reader's root.
            size: Its size in bytes; -1 when the store does not have it.

        Returns:
            The indexed file.

        Raises:
            Mp4Error: It is damaged or of an unsupported form.
            MissingFileError: It does not exist.
            FetchError: It could not be read.
        """
        if size < 0:
            size = self._reader.stat(path).size  # Raises the reader's own error for a missing file.
        parts = self._parts
        if parts is None:
            return self._read(path, size)
        found = parts.read(path, size)
        if found is not None:
            return found
        with parts.lock(path):
            found = parts.read(path, size)  # Another process may have been faster.
            if found is None:
                found = self._read(path, size)
                # Looking up again is free for local files only; those are also the ones that are rewritten.
                if "://" in self._reader.root or parts.belongs(path, self._reader.stat(path).fingerprint):
                    parts.write(found)
            return found

    def _read(self, path: str, size: int) -> SourceFile:
        def read(offset: int, length: int) -> bytes:
            data = self._reader.read(path, offset, length)
            with self._lock:
                self._total += length
            return data

        return read_mp4(path, size, read, max_moov_bytes=self._max_moov_bytes)
