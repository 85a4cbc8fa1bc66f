"""The sidecar: an NPZ file with the sample tables of a dataset's MP4 files (schema 3)."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from lerobot_streaming.errors import SidecarError
from lerobot_streaming.index.manifest import FileEntry, file_entry, parse_manifest
from lerobot_streaming.index.npz import NpzArchive
from lerobot_streaming.index.sample_index import SampleIndex
from lerobot_streaming.index.tables import SampleTable, SourceFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from lerobot_streaming.index.identity import SidecarIdentity
    from lerobot_streaming.index.tables import Mp4Header

MANIFEST = "manifest_json"
"""Name of the array that holds the manifest."""

MEMBERS = {
    "sample_pts": ("pts_seconds", "<f8"),
    "sample_durations": ("durations", "<i8"),
    "sample_composition_offsets": ("composition_offsets", "<i8"),
    "sample_sizes": ("sizes", "<i8"),
    "sample_offsets": ("offsets", "<i8"),
    "sync_samples": ("sync_samples", "<i8"),
}
"""Name of an array of a source file -> (field of SampleTable, type), in the order of the archive."""


class Sidecar(SampleIndex):
    """The index of a dataset's MP4 files; each file's table is read when it is first asked for.

    Threads may share it. It pickles as the path of its archive, unless it lives in memory only.
    """

    def __init__(
        self,
        identity: SidecarIdentity,
        entries: list[FileEntry],
        *,
        archive: NpzArchive | None = None,
        sources: Mapping[str, SourceFile] | None = None,
    ) -> None:
        """Use `open_sidecar` or `Sidecar.in_memory`.

        Args:
            identity: What the sidecar belongs to.
            entries: Its files; position `i` owns the arrays `i/...` of the archive.
            archive: Where the tables are read from.
            sources: Tables that are already known; all of them without an archive.
        """
        self.identity = identity
        self._entries = {entry.path: (i, entry) for i, entry in enumerate(entries)}
        self._files = MappingProxyType({entry.path: entry.size for entry in entries})
        self._archive = archive
        self._sources: dict[str, SourceFile] = dict(sources or {})

    @classmethod
    def in_memory(cls, identity: SidecarIdentity, sources: Iterable[SourceFile]) -> Sidecar:
        """Makes an index that is not backed by a file.

        Args:
            identity: What it belongs to.
            sources: The indexed files.

        Returns:
            The index.
        """
        known = {source.path: source for source in sorted(sources, key=lambda source: source.path)}
        return cls(identity, [file_entry(source) for source in known.values()], sources=known)

    @property
    def files(self) -> Mapping[str, int]:
        """Path -> size in bytes of every indexed file, in stored order."""
        return self._files

    @property
    def path(self) -> Path | None:
        """The archive, or None for an index in memory."""
        return None if self._archive is None else self._archive.path

    def header(self, path: str) -> Mp4Header:
        """Gives a file's header facts without reading its table.

        Args:
            path: POSIX path relative to the data root.

        Returns:
            The header facts.

        Raises:
            SidecarError: The file is not indexed.
        """
        return self._entry(path)[1].header

    def source(self, path: str) -> SourceFile:
        """Gives a file's header and sample table; the first time it is read and validated, then kept.

        Args:
            path: POSIX path relative to the data root.

        Returns:
            The indexed file.

        Raises:
            SidecarError: The file is not indexed, or its arrays are damaged.
        """
        source = self._sources.get(path)
        if source is None:
            # Two threads may both read it; both results are equal, and the first one stays.
            source = self._sources.setdefault(path, self.read(path))
        return source

    def read_all(self) -> Iterator[SourceFile]:
        """Reads and validates the table of every file, keeping none of them.

        Yields:
            The indexed files, in stored order.

        Raises:
            SidecarError: An array is missing, damaged, or not inside its file.
        """
        for path in self._entries:
            yield self._sources.get(path) or self.read(path)

    def validate(self) -> None:
        """Reads and checks the arrays of every file, keeping none of them.

        Raises:
            SidecarError: An array is missing, damaged, or not inside its file.
        """
        for _ in self.read_all():
            pass

    def close(self) -> None:
        """Closes the archive; tables that were read stay usable."""
        if self._archive is not None:
            self._archive.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles as the archive's path and what it must hold, or whole when it lives in memory."""
        if self._archive is None:
            return _unpickle_memory, (self.identity, list(self._sources.values()))
        return open_sidecar, (self._archive.path, self.identity, dict(self._files))

    def _entry(self, path: str) -> tuple[int, FileEntry]:
        found = self._entries.get(path)
        if found is None:
            raise SidecarError(
                f"'{path}' is not among the {len(self._entries)} files of {self._where()}; rebuild the "
                "sidecar"
            )
        return found

    def read(self, path: str) -> SourceFile:
        """Reads and validates a file's header and sample table without keeping them.

        Args:
            path: POSIX path relative to the data root.

        Returns:
            The indexed file.

        Raises:
            SidecarError: The file is not indexed, or its arrays are damaged.
        """
        i, entry = self._entry(path)
        archive = self._archive
        if archive is None:
            raise SidecarError(f"'{path}' has no table in {self._where()}")
        arrays: dict[str, Any] = {
            column: archive.array(f"{i}/{member}", dtype) for member, (column, dtype) in MEMBERS.items()
        }
        return checked_source(entry, arrays, self._where())

    def _where(self) -> str:
        return "the index in memory" if self.path is None else f"sidecar '{self.path}'"


def open_sidecar(
    path: Path, identity: SidecarIdentity | None = None, files: Mapping[str, int] | None = None
) -> Sidecar:
    """Opens a sidecar and checks its manifest; arrays are checked when they are first used.

    Args:
        path: The NPZ file.
        identity: What it must belong to: repository, data root and fingerprints are compared. The revision is
            not, since a branch and a commit may name the same pinned data root. None: anything is accepted.
        files: Path -> size of the files that it must hold, no more and no fewer. None: anything is accepted.

    Returns:
        The open sidecar.

    Raises:
        SidecarError: It is damaged, or belongs to other data.
    """
    archive = NpzArchive(Path(path))
    try:
        manifest = archive.array(MANIFEST, "S", scalar=True).tobytes().rstrip(b"\0")
        found, entries = parse_manifest(manifest)
        check_fit(found, {entry.path: entry.size for entry in entries}, identity, files)
    except SidecarError as error:
        archive.close()
        raise SidecarError(f"sidecar '{path}' cannot be used: {error}") from error
    return Sidecar(found, entries, archive=archive)


def check_fit(
    found: SidecarIdentity,
    sizes: Mapping[str, int],
    identity: SidecarIdentity | None,
    files: Mapping[str, int] | None,
) -> None:
    """Compares what a sidecar says of itself with what it must belong to.

    Args:
        found: What it says it belongs to.
        sizes: Path -> size in bytes of its files.
        identity: As in `open_sidecar`.
        files: As in `open_sidecar`.

    Raises:
        SidecarError: It belongs to other data.
    """
    if identity is not None:
        for name in ("repo_id", "data_root"):
            theirs, ours = getattr(found, name), getattr(identity, name)
            if theirs != ours:
                raise SidecarError(f"it has another {name} ({theirs!r}, not {ours!r})")
        prints, wanted = found.source_fingerprints, identity.source_fingerprints
        for path in sorted(prints.keys() | wanted.keys()):
            if prints.get(path) != wanted.get(path):
                raise SidecarError(
                    f"'{path}' has changed: its fingerprint is {wanted.get(path)!r}, not {prints.get(path)!r}"
                )
    if files is not None:
        for path, size in files.items():
            if sizes.get(path) != size:
                raise SidecarError(f"it holds '{path}' with {sizes.get(path)} bytes, but the file has {size}")
        extra = sizes.keys() - files.keys()
        if extra:
            raise SidecarError(
                f"it holds {len(extra)} files that do not belong to it, such as '{min(extra)}'"
            )


def checked_source(entry: FileEntry, arrays: Mapping[str, NDArray[Any]], where: str) -> SourceFile:
    """Joins what a sidecar holds of a file, and checks it.

    Args:
        entry: The file's entry in the manifest.
        arrays: Field of SampleTable -> array.
        where: What holds them, for messages.

    Returns:
        The indexed file.

    Raises:
        SidecarError: An array does not fit the others, or not the file.
    """
    samples = SampleTable(**arrays)
    fault = samples.find_fault(entry.size)
    index = entry.description_index()
    if fault is None and index is not None and len(index) != samples.num_samples:
        fault = f"sample_description_runs cover {len(index)} of {samples.num_samples} samples"
    if fault is not None:
        raise SidecarError(
            f"the index of '{entry.path}' in {where} is damaged: {fault}; delete the file, it will be "
            "built again"
        )
    return SourceFile(entry.path, entry.size, entry.header, samples, index)


def _unpickle_memory(identity: SidecarIdentity, sources: list[SourceFile]) -> Sidecar:
    return Sidecar.in_memory(identity, sources)
