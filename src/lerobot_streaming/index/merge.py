"""Joins parts of a sidecar that were built apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lerobot_streaming.errors import SidecarError
from lerobot_streaming.index.builder import check_and_flush
from lerobot_streaming.index.sidecar import Sidecar, open_sidecar
from lerobot_streaming.index.sidecar_writer import write_sidecar

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from lerobot_streaming.index.identity import SidecarIdentity
    from lerobot_streaming.index.tables import SourceFile


def merge_sidecars(
    path: Path, identity: SidecarIdentity, files: Mapping[str, int], parts: Sequence[Path]
) -> bool:
    """Writes the sidecar that one build of all files would write, from parts; one file is held at a time.

    Args:
        path: The file to write; not atomic, so give a temporary name and rename it afterwards.
        identity: What the whole belongs to.
        files: Path -> size in bytes of all of its files.
        parts: Sidecars of disjoint sets of these files.

    Returns:
        True: the file is written, validated and flushed.

    Raises:
        SidecarError: A part is damaged or belongs to other data, or the parts do not make the whole.
        OSError: The file cannot be written.
    """
    owners: dict[str, Path] = {}
    for part in parts:
        sidecar = open_sidecar(part)
        try:
            _check_part(part, sidecar, identity, files)
            for name in sidecar.files:
                if name in owners:
                    raise SidecarError(f"'{name}' is in two parts, '{owners[name]}' and '{part}'")
                owners[name] = part
        finally:
            sidecar.close()
    missing = sorted(files.keys() - owners.keys())
    if missing:
        raise SidecarError(
            f"{len(missing)} of {len(files)} video files are in none of the {len(parts)} parts, such as "
            f"'{missing[0]}'; build the missing parts, or name all of them"
        )
    write_sidecar(path, identity, _read_in_order(sorted(files), owners))
    check_and_flush(path, identity, files)
    return True


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


def _read_in_order(paths: Sequence[str], owners: Mapping[str, Path]) -> Iterator[SourceFile]:
    opened: tuple[Path, Sidecar] | None = None
    try:
        for path in paths:
            if opened is None or opened[0] != owners[path]:
                if opened is not None:
                    opened[1].close()
                opened = owners[path], open_sidecar(owners[path])
            yield opened[1].read(path)
    finally:
        if opened is not None:
            opened[1].close()
