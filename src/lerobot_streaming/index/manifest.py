"""The JSON manifest of a sidecar, schema 3."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lerobot_streaming.errors import SidecarError
from lerobot_streaming.index.identity import SCHEMA_VERSION, SidecarIdentity
from lerobot_streaming.index.tables import MAX_SAMPLES, Mp4Header

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from lerobot_streaming.index.tables import SourceFile

MANIFEST_END = "]}"
"""What stands behind the items of the manifest's `files`."""

_MAX_INTEGER = (1 << 63) - 1

_INTEGERS = (
    "moov_offset",
    "mdat_offset",
    "mdat_payload_offset",
    "mdat_payload_size",
    "timescale",
    "duration",
    "track_id",
    "width",
    "height",
)


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One source file in the manifest.

    Attributes:
        path: POSIX path relative to the data root.
        size: Bytes.
        header: File-level facts.
        description_runs: (samples, 1-based sample entry) runs in decode order; empty when all samples use the
            first entry. Stored under a key of our own, `sample_description_runs`: readers ignore unknown
            keys, and the schema has no other place for it.
    """

    path: str
    size: int
    header: Mp4Header
    description_runs: tuple[tuple[int, int], ...] = ()

    def description_index(self) -> NDArray[np.int32] | None:
        """Expands the runs.

        Returns:
            int32 (n), 1-based sample entry of each sample, or None when all use the first.
        """
        if not self.description_runs:
            return None
        runs = np.array(self.description_runs, np.int64)
        return np.repeat(runs[:, 1], runs[:, 0]).astype(np.int32)


def file_entry(source: SourceFile) -> FileEntry:
    """Takes from an indexed file what the manifest keeps.

    Args:
        source: The indexed file.

    Returns:
        Its manifest entry.
    """
    runs: tuple[tuple[int, int], ...] = ()
    if source.description_index is not None:
        index = source.description_index
        starts = np.flatnonzero(np.diff(index, prepend=index[0] - 1))
        lengths = np.diff(starts, append=len(index))
        runs = tuple((int(n), int(index[k])) for n, k in zip(lengths, starts, strict=True))
    return FileEntry(source.path, source.size, source.header, runs)


def source_text(path: str, size: int) -> str:
    """Gives a file's item in the manifest's `source_files`.

    Args:
        path: POSIX path relative to the data root.
        size: Bytes.

    Returns:
        One line of ASCII JSON.
    """
    return json.dumps({"path": path, "size": size})


def entry_text(entry: FileEntry) -> str:
    """Gives a file's item in the manifest's `files`.

    Args:
        entry: The entry.

    Returns:
        One line of ASCII JSON.
    """
    header = entry.header
    mp4 = {
        "file_path": entry.path,
        "file_size": entry.size,
        "ftyp": header.ftyp.hex(),
        **{name: getattr(header, name) for name in _INTEGERS},
        "faststart": header.faststart,
        "codec": header.codec,
        "stsd_body": header.stsd_body.hex(),
    }
    if entry.description_runs:
        mp4["sample_description_runs"] = [list(run) for run in entry.description_runs]
    return json.dumps({"file_path": entry.path, "file_size": entry.size, "mp4": mp4})


def manifest_head(identity: SidecarIdentity, sources: Iterable[str]) -> Iterator[str]:
    """Writes the manifest up to its `files`, piece by piece; it is their items that make it long.

    Args:
        identity: What the sidecar belongs to.
        sources: `source_text` of its files, sorted by path.

    Yields:
        The pieces of one line of ASCII JSON, the first of which ends where the items of `source_files`
        begin; equal input gives equal text.
    """
    prints = identity.source_fingerprints
    yield (
        f'{{"version": {SCHEMA_VERSION}, "sidecar": {{"schema_version": {SCHEMA_VERSION}, '
        f'"repo_id": {json.dumps(identity.repo_id)}, "revision": {json.dumps(identity.revision)}, '
        f'"data_root": {json.dumps(identity.data_root)}, "source_files": ['
    )
    yield from separated(sources)
    yield '], "source_fingerprints": {'
    yield from separated(f"{json.dumps(path)}: {json.dumps(prints[path])}" for path in sorted(prints))
    yield '}}, "files": ['


def separated(items: Iterable[str]) -> Iterator[str]:
    """Puts what JSON has between the items of a list.

    Args:
        items: The items' texts.

    Yields:
        The same texts, each after the first with the separator in front.
    """
    for i, item in enumerate(items):
        yield f", {item}" if i else item


def parse_manifest(data: bytes) -> tuple[SidecarIdentity, list[FileEntry]]:
    """Reads a manifest; keys that the schema does not know are ignored.

    Args:
        data: UTF-8 JSON.

    Returns:
        (identity, files in stored order: file `i` owns the arrays `i/...`).

    Raises:
        SidecarError: A value is missing, of another type, or contradicts another.
    """
    try:
        manifest = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise SidecarError(f"the manifest is not JSON ({error})") from error
    top = _typed(manifest, dict, "manifest")
    sidecar = _get(top, "sidecar", dict)
    for where, version in (
        ("version", _get(top, "version", int)),
        ("schema_version", _get(sidecar, "schema_version", int)),
    ):
        if version != SCHEMA_VERSION:
            raise SidecarError(f"{where} is {version}, but this library reads and writes {SCHEMA_VERSION}")
    prints = _get(sidecar, "source_fingerprints", dict) if "source_fingerprints" in sidecar else {}
    identity = SidecarIdentity(
        repo_id=_get(sidecar, "repo_id", str),
        revision=_get(sidecar, "revision", str),
        data_root=_get(sidecar, "data_root", str),
        source_fingerprints={
            path: _typed(text, str, f"fingerprint of {path}") for path, text in prints.items()
        },
    )
    entries = [parse_entry(_typed(item, dict, "files")) for item in _get(top, "files", list)]
    sizes = {entry.path: entry.size for entry in entries}
    if len(sizes) != len(entries):
        raise SidecarError("a file is listed twice")
    listed = [_typed(item, dict, "source_files") for item in _get(sidecar, "source_files", list)]
    if {_get(item, "path", str): _get(item, "size", int) for item in listed} != sizes:
        raise SidecarError("'source_files' and 'files' do not list the same files and sizes")
    return identity, entries


def parse_entry(item: dict[str, Any]) -> FileEntry:
    """Reads an item of the manifest's `files`; keys that the schema does not know are ignored.

    Args:
        item: The parsed JSON.

    Returns:
        The entry.

    Raises:
        SidecarError: A value is missing, of another type, or out of its range.
    """
    path, size = _get(item, "file_path", str), _get(item, "file_size", int)
    mp4 = _get(item, "mp4", dict)
    numbers = {name: _whole(mp4, name) for name in _INTEGERS}
    if (
        not all(0 <= number <= _MAX_INTEGER for number in (size, *numbers.values()))
        or not numbers["timescale"]
    ):
        raise SidecarError(f"'{path}' has a number outside 0..{_MAX_INTEGER}, or a timescale of 0")
    header = Mp4Header(
        ftyp=_hex(mp4, "ftyp"),
        faststart=_get(mp4, "faststart", bool),
        codec=_get(mp4, "codec", str),
        stsd_body=_hex(mp4, "stsd_body"),
        **numbers,
    )
    runs: list[tuple[int, int]] = []
    for run in _get(mp4, "sample_description_runs", list) if "sample_description_runs" in mp4 else []:
        pair = _typed(run, list, "sample_description_runs")
        if len(pair) != 2 or not all(type(k) is int and 1 <= k <= MAX_SAMPLES for k in pair):
            raise SidecarError(f"'{path}' has a damaged 'sample_description_runs'")
        runs.append((pair[0], pair[1]))
    if sum(count for count, _ in runs) > MAX_SAMPLES:
        raise SidecarError(f"'{path}' has a damaged 'sample_description_runs'")
    return FileEntry(path, size, header, tuple(runs))


def _typed[T](value: object, kind: type[T], name: str) -> T:
    # bool is an int to Python, but not to JSON.
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise SidecarError(f"'{name}' is a {type(value).__name__}, but must be a {kind.__name__}")
    return value


def _get[T](source: dict[str, Any], name: str, kind: type[T]) -> T:
    if name not in source:
        raise SidecarError(f"'{name}' is missing")
    return _typed(source[name], kind, name)


def _whole(source: dict[str, Any], name: str) -> int:
    """Takes 64.0 for 64: some writers keep the 16.16 fixed-point width and height as fractions."""
    value = source.get(name)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return _get(source, name, int)


def _hex(source: dict[str, Any], name: str) -> bytes:
    try:
        return bytes.fromhex(_get(source, name, str))
    except ValueError as error:
        if isinstance(error, SidecarError):
            raise
        raise SidecarError(f"'{name}' is not hexadecimal") from error
