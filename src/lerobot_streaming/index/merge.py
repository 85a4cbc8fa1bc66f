"""Joins parts of a sidecar that were built apart."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from contextlib import closing
from typing import TYPE_CHECKING

from lerobot_streaming.errors import SidecarError
from lerobot_streaming.index.builder import check_and_flush
from lerobot_streaming.index.sidecar import Sidecar, open_sidecar
from lerobot_streaming.index.sidecar_walk import is_as_written, listed_files, walk_sidecar
from lerobot_streaming.index.sidecar_writer import write_sidecar

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence
    from pathlib import Path

    from lerobot_streaming.index.identity import SidecarIdentity
    from lerobot_streaming.index.tables import SourceFile

_NOBODY = -1


def merge_sidecars(
    path: Path, identity: SidecarIdentity, files: Mapping[str, int], parts: Sequence[Path]
) -> bool:
    """Writes the sidecar that one build of all files would write, from parts.

    One file of each part that is being read is held at a time, and a part is open from its first file to its
    last: parts whose files follow each other, as those of `--num-shards`, are read one after another. Parts
    that another program wrote are read with `open_sidecar`, which takes memory for each of their files.

    Args:
        path: The file to write; not atomic, so give a temporary name and rename it afterwards.
        identity: What the whole belongs to.
        files: Path -> size in bytes of all of its files.
        parts: Sidecars of disjoint sets of these files.

    Returns:
        True: the file is written, validated and flushed.

    Raises:
        SidecarError: A part is damaged or belongs to other data, or the parts do not make the whole.
        OSError: The file cannot be written, or a part cannot be read.
    """
    known = _Parts(identity, files, parts)
    with closing(known.read()) as sources:
        write_sidecar(path, identity, sources)
    check_and_flush(path, identity, files)
    return True


class _Parts:
    """Which part holds which file: one number for each file, so that memory hardly grows with them."""

    def __init__(self, identity: SidecarIdentity, files: Mapping[str, int], parts: Sequence[Path]) -> None:
        self._identity = identity
        self._files = files
        self._parts = parts
        self._order = sorted(files)
        self._owners = array("l", [_NOBODY]) * len(self._order)
        self._foreign: set[int] = set()
        for number, part in enumerate(parts):
            self._add(number, part)
        missing = self._owners.count(_NOBODY)
        if missing:
            raise SidecarError(
                f"{missing} of {len(files)} video files are in none of the {len(parts)} parts, such as "
                f"'{self._order[self._owners.index(_NOBODY)]}'; build the missing parts, or name all of them"
            )

    def read(self) -> Generator[SourceFile, None, None]:
        """Yields all files in ascending order of their paths."""
        readers: dict[int, Generator[SourceFile, None, None]] = {}
        left = [self._owners.count(number) for number in range(len(self._parts))]
        try:
            for number in self._owners:
                if number not in readers:
                    readers[number] = self._read_part(number)
                yield next(readers[number])
                left[number] -= 1
                if not left[number]:
                    readers.pop(number).close()
        finally:
            for reader in readers.values():
                reader.close()

    def _add(self, number: int, part: Path) -> None:
        names = _names_as_written(part, self._identity, self._files)
        if names is None:
            self._foreign.add(number)
            names = _names_of_others(part, self._identity, self._files)
        for name in names:
            place = bisect_left(self._order, name)
            owner = self._owners[place]
            if owner != _NOBODY:
                raise SidecarError(f"'{name}' is in two parts, '{self._parts[owner]}' and '{part}'")
            self._owners[place] = number

    def _read_part(self, number: int) -> Generator[SourceFile, None, None]:
        part = self._parts[number]
        names = [name for name, owner in zip(self._order, self._owners, strict=True) if owner == number]
        if number in self._foreign:
            return _read_others(part, names)
        files = {name: self._files[name] for name in names}
        return _read_as_written(part, self._identity.restrict(names), files)


def _names_as_written(part: Path, identity: SidecarIdentity, files: Mapping[str, int]) -> list[str] | None:
    """Gives the files of a valid part of the same data that `write_sidecar` wrote; None for all others."""
    try:
        listed = dict(listed_files(part, identity))
        fits = all(files.get(name) == size for name, size in listed.items())
        return list(listed) if fits and is_as_written(part, identity.restrict(listed), listed) else None
    except (ValueError, OSError):
        return None


def _names_of_others(part: Path, identity: SidecarIdentity, files: Mapping[str, int]) -> list[str]:
    sidecar = open_sidecar(part)
    try:
        _check_part(part, sidecar, identity, files)
        return list(sidecar.files)
    finally:
        sidecar.close()


def _check_part(part: Path, sidecar: Sidecar, identity: SidecarIdentity, files: Mapping[str, int]) -> None:
    found = sidecar.identity
    for field in ("repo_id", "revision", "data_root"):
        theirs, ours = getattr(found, field), getattr(identity, field)
        if theirs != ours:
            raise SidecarError(f"part '{part}' has another {field} ({theirs!r}, not {ours!r})")
    for name, size in sidecar.files.items():
        if files.get(name) != size:
            raise SidecarError(
                f"part '{part}' holds '{name}' with {size} bytes, but the dataset has "
                f"{files.get(name, 'no such file')}; build the part again"
            )
        theirs, ours = (prints.source_fingerprints.get(name) for prints in (found, identity))
        if theirs != ours:
            raise SidecarError(
                f"part '{part}' holds '{name}' as it was before it changed (fingerprint {theirs!r}, now "
                f"{ours!r}); build the part again"
            )


def _read_as_written(
    part: Path, identity: SidecarIdentity, files: Mapping[str, int]
) -> Generator[SourceFile, None, None]:
    try:
        yield from walk_sidecar(part, identity, files)
    except ValueError as error:
        raise SidecarError(
            f"part '{part}' is no longer what it was when the merge began ({error}); merge again when nobody "
            "writes it"
        ) from error


def _read_others(part: Path, names: Sequence[str]) -> Generator[SourceFile, None, None]:
    sidecar = open_sidecar(part)
    try:
        for name in names:
            yield sidecar.read(name)
    finally:
        sidecar.close()
