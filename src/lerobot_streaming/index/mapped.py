"""The mapped index: a sidecar's tables as one read-only file that all processes of a node share."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import mmap
import os
import zlib
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from lerobot_streaming.errors import SidecarError, StreamingError
from lerobot_streaming.index import generations
from lerobot_streaming.index import mapped_layout as layout
from lerobot_streaming.index.derive import write_index
from lerobot_streaming.index.identity import SidecarIdentity
from lerobot_streaming.index.lock import sidecar_lock
from lerobot_streaming.index.mapped_columns import read_samples
from lerobot_streaming.index.sample_index import SampleIndex
from lerobot_streaming.index.sidecar import open_sidecar
from lerobot_streaming.index.tables import Mp4Header, SourceFile

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

_logger = logging.getLogger(__name__)

_TRIES = 3
"""Derivations of a sidecar that is being replaced all the time."""


@dataclass(frozen=True, slots=True)
class _Origin:
    """From what an index was derived, and where it is: all that is pickled."""

    sidecar: Path
    lerobot_home: Path
    lock_timeout_s: float
    key: str

    @property
    def path(self) -> Path:
        return generations.index_path(self.sidecar, self.lerobot_home, self.key)


@dataclass(frozen=True, slots=True, eq=False)
class _Content:
    """The mapped bytes, and views of them: header (one HEADER) and records (RECORD (files))."""

    view: memoryview
    header: Any
    records: NDArray[Any]

    def text(self, text: tuple[int, int]) -> bytes:
        place, size = text
        return bytes(self.view[place : place + size])

    def make_header(self, record: Mapping[str, Any]) -> Mp4Header:
        return Mp4Header(
            ftyp=self.text(record["ftyp"]),
            faststart=bool(record["faststart"]),
            codec=self.text(record["codec"]).decode("utf-8", "surrogatepass"),
            stsd_body=self.text(record["stsd_body"]),
            **{name: record[name] for name in layout.HEADER_NUMBERS},
        )


class MappedIndex(SampleIndex):
    """A sidecar's tables, mapped from a file. A table is made when it is first asked for, then kept.

    Threads and forked children may share it. It pickles as a path; the process that unpickles it maps the
    same file. Columns are computed when they are asked for: what is kept per table does not grow with its
    samples.
    """

    def __init__(self, mapping: mmap.mmap, origin: _Origin) -> None:
        """Use `open_mapped`.

        Args:
            mapping: The mapped file.
            origin: What it was derived from.

        Raises:
            SidecarError: The file is damaged.
        """
        self._origin = origin
        view = memoryview(mapping)
        self._content: _Content | None = _Content(view, *layout.read_directory(view))
        self._sources: dict[str, SourceFile] = {}

    @property
    def path(self) -> Path:
        """The mapped file."""
        return self._origin.path

    @property
    def num_samples(self) -> int:
        """Samples of all files."""
        return int(self._open().header["num_samples"])

    @cached_property
    def identity(self) -> SidecarIdentity:
        """What the index belongs to."""
        content = self._open()
        return SidecarIdentity(**json.loads(content.text(content.header["identity"].item())))

    @cached_property
    def files(self) -> Mapping[str, int]:
        """Path -> size in bytes of every indexed file, in stored order."""
        sizes = self._open().records["size"].tolist()
        return MappingProxyType(dict(zip(self._numbers, sizes, strict=True)))

    @cached_property
    def _numbers(self) -> dict[str, int]:
        """Path -> number of its record."""
        content = self._open()
        paths = content.records["path"]
        texts = zip(paths["place"].tolist(), paths["size"].tolist(), strict=True)
        return {
            str(content.view[place : place + size], "utf-8", "surrogatepass"): i
            for i, (place, size) in enumerate(texts)
        }

    def header(self, path: str) -> Mp4Header:
        """Gives a file's header facts without reading its table.

        Args:
            path: POSIX path relative to the data root.

        Returns:
            The header facts.

        Raises:
            SidecarError: The file is not indexed, or the index is closed.
        """
        content = self._open()
        return content.make_header(layout.fields_of(content.records[self._number(path)]))

    def source(self, path: str) -> SourceFile:
        """Gives a file's header and sample table; made and checked the first time, then kept.

        Args:
            path: POSIX path relative to the data root.

        Returns:
            The indexed file.

        Raises:
            SidecarError: The file is not indexed, its columns are damaged, or the index is closed.
        """
        source = self._sources.get(path)
        if source is None:
            # Two threads may both make it; both results are equal, and the first one stays.
            source = self._sources.setdefault(path, self._load(path))
        return source

    def close(self) -> None:
        """Gives the mapping up; tables that were handed out stay usable, and keep it alive until they go."""
        self._content = None
        self._sources = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles as where the file and its sidecar are; nothing of the content."""
        return _reopen, (self._origin,)

    def _open(self) -> _Content:
        content = self._content
        if content is None:
            raise SidecarError(f"the video index '{self.path}' is closed; open the dataset again")
        return content

    def _number(self, path: str) -> int:
        number = self._numbers.get(path)
        if number is None:
            raise SidecarError(
                f"'{path}' is not among the {len(self._numbers)} files of the video index '{self.path}'; "
                "rebuild the sidecar"
            )
        return number

    def _load(self, path: str) -> SourceFile:
        content = self._open()
        record = layout.fields_of(content.records[self._number(path)])
        place = record["data_place"]
        data = content.view[place : place + record["data_size"]]
        if zlib.crc32(data) != record["data_checksum"]:
            # The next start derives it anew.
            with contextlib.suppress(OSError):
                self.path.unlink()
            raise SidecarError(
                f"the index of '{path}' in '{self.path}' is damaged: its checksum differs. It has been "
                "removed and will be made anew at the next start; check the disk if this happens again"
            )
        samples, description_index = read_samples(record, np.frombuffer(data, np.uint8))
        return SourceFile(path, record["size"], content.make_header(record), samples, description_index)


def open_mapped(sidecar_path: Path, lerobot_home: Path, *, lock_timeout_s: float) -> MappedIndex:
    """Opens the mapped index of a sidecar, and derives it first where there is none or it is damaged.

    Deriving reads and validates the sidecar completely, one source file at a time, and installs the result
    with one rename. Older generations that nobody has open are removed afterwards.

    Args:
        sidecar_path: The NPZ file.
        lerobot_home: `$HF_LEROBOT_HOME`; the file lies below its `streaming-indexes`.
        lock_timeout_s: Seconds to wait for another process that derives the same index.

    Returns:
        The open index.

    Raises:
        SidecarError: The sidecar is missing or damaged.
        SidecarLockTimeoutError: Another process held the lock for too long. It is an OSError as well.
        OSError: The index cannot be written or mapped, for instance because the directory is read-only; the
            sidecar itself still serves.
    """
    # Another working directory may be current where it is unpickled.
    sidecar_path, lerobot_home = sidecar_path.absolute(), lerobot_home.absolute()
    key = generations.content_key(sidecar_path)
    origin = _Origin(sidecar_path, lerobot_home, lock_timeout_s, key)
    found = _open_existing(origin)
    if found is not None:
        return found
    origin.path.parent.mkdir(parents=True, exist_ok=True)
    lock = origin.path.with_name(f"{sidecar_path.stem}{generations.SUFFIX}")
    try:
        # One lock for all generations: only its holder writes and removes files of this name.
        with sidecar_lock(lock, lock_timeout_s):
            for _ in range(_TRIES):
                origin = _Origin(
                    sidecar_path, lerobot_home, lock_timeout_s, generations.content_key(sidecar_path)
                )
                found = _open_existing(origin) or _derive(origin)
                if found is not None:
                    return found
    except NotImplementedError as error:
        raise OSError(errno.ENOSYS, f"no file locks in '{origin.path.parent}' ({error})") from error
    raise SidecarError(
        f"sidecar '{sidecar_path}' was replaced {_TRIES} times while its index was derived; end the "
        "processes that write it"
    )


def _open_existing(origin: _Origin) -> MappedIndex | None:
    """Opens the index file; one that is absent or damaged is as good as none."""
    try:
        return _open_file(origin, origin.path)
    except SidecarError as error:
        _logger.info("the video index '%s' is derived anew: %s", origin.path, error)
        return None


def _open_file(origin: _Origin, path: Path) -> MappedIndex | None:
    fd = generations.open_shared(path)
    if fd is None:
        return None
    try:
        if not os.fstat(fd).st_size:
            raise SidecarError("it is empty")
        # The mapping keeps a duplicate of the descriptor, and with it the mark that the file is in use.
        mapping = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
    finally:
        os.close(fd)
    return MappedIndex(mapping, origin)


def _derive(origin: _Origin) -> MappedIndex | None:
    """Derives and installs an index; None when the sidecar was replaced meanwhile. Must hold the lock."""
    path = origin.path
    generations.remove_stale_temporaries(path.parent, origin.sidecar.stem)
    temporary = generations.temporary_path(path)
    sidecar = open_sidecar(origin.sidecar)
    try:
        if generations.content_key(origin.sidecar) != origin.key:
            return None
        write_index(temporary, sidecar)
        # Opened before it gets its name: from its first moment on it is in use.
        index = _open_file(origin, temporary)
        temporary.replace(path)
    finally:
        sidecar.close()
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)  # Makes the new name survive a power failure.
    finally:
        os.close(directory)
    generations.remove_unused(path, origin.lerobot_home)
    return index


def _reopen(origin: _Origin) -> MappedIndex:
    """Unpickles: maps the same file, or derives it again from the same sidecar."""
    try:
        found = _open_existing(origin)
        if found is not None:
            return found
        if generations.content_key(origin.sidecar) == origin.key:
            found = open_mapped(origin.sidecar, origin.lerobot_home, lock_timeout_s=origin.lock_timeout_s)
            if found.path == origin.path:
                return found
    except OSError as error:
        if isinstance(error, StreamingError):
            raise
        raise SidecarError(
            f"the video index '{origin.path}' is gone and cannot be derived again ({error}); open the "
            "dataset again"
        ) from error
    raise SidecarError(
        f"the video index '{origin.path}' is gone, and its sidecar '{origin.sidecar}' has another content by "
        "now; open the dataset again"
    )
