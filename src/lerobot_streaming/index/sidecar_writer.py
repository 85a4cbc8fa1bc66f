"""Writes a sidecar in memory that does not grow with the number of its files."""

from __future__ import annotations

import tempfile
from itertools import chain, islice
from typing import IO, TYPE_CHECKING

import numpy as np

from lerobot_streaming.errors import SidecarError
from lerobot_streaming.index.manifest import (
    MANIFEST_END,
    entry_text,
    file_entry,
    manifest_head,
    separated,
    source_text,
)
from lerobot_streaming.index.npy import dump_array, text_header
from lerobot_streaming.index.npz import MAX_MEMBER_BYTES
from lerobot_streaming.index.sidecar import MANIFEST, MEMBERS
from lerobot_streaming.index.zip_writer import ZipWriter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from lerobot_streaming.index.identity import SidecarIdentity
    from lerobot_streaming.index.tables import SourceFile

_IN_MEMORY_BYTES = 1 << 16


def write_sidecar(path: Path, identity: SidecarIdentity, files: Iterable[SourceFile]) -> None:
    """Writes a sidecar. Each file is written and forgotten before the next one is taken.

    What belongs at the end of the archive is collected in files without a name beside it: the temporary
    directory of the system may lie in memory.

    Args:
        path: The file to write; not atomic, so give a temporary name and rename it afterwards.
        identity: What the sidecar belongs to.
        files: The indexed files in ascending order of their paths.

    Raises:
        SidecarError: The paths do not ascend, or the manifest would be too large to be read.
        OSError: The file cannot be written.
    """
    with path.open("wb") as file, _spool(path) as directory, _spool(path) as lines:
        archive = ZipWriter(file, directory)
        last: str | None = None
        for i, source in enumerate(files):
            if last is not None and source.path <= last:
                raise SidecarError(f"'{source.path}' comes after '{last}', but paths must ascend")
            last = source.path
            for member, (column, dtype) in MEMBERS.items():
                array = np.asarray(getattr(source.samples, column), dtype)
                archive.add(f"{i}/{member}.npy", [dump_array(array)])
            for text in (source_text(source.path, source.size), entry_text(file_entry(source))):
                lines.write(f"{text}\n".encode("ascii"))
        size = sum(map(len, _manifest(identity, lines)))
        header = text_header(size)
        if len(header) + size > MAX_MEMBER_BYTES:
            raise SidecarError(
                f"the manifest of '{path}' takes {size} bytes, more than the {MAX_MEMBER_BYTES} that a "
                "sidecar may have: these are too many video files for one sidecar; split the dataset"
            )
        content = (text.encode("ascii") for text in _manifest(identity, lines))
        archive.add(f"{MANIFEST}.npy", chain([header], content))
        archive.finish()


def _spool(path: Path) -> tempfile.SpooledTemporaryFile[bytes]:
    # Where a file must have a name for a moment, it is one that the next install removes.
    return tempfile.SpooledTemporaryFile(
        _IN_MEMORY_BYTES, dir=str(path.parent), prefix=f"{path.name}.", suffix=".tmp"
    )


def _manifest(identity: SidecarIdentity, lines: IO[bytes]) -> Iterator[str]:
    yield from manifest_head(identity, _every_second(lines, 0))
    yield from separated(_every_second(lines, 1))
    yield MANIFEST_END


def _every_second(lines: IO[bytes], first: int) -> Iterator[str]:
    lines.seek(0)
    for line in islice(lines, first, None, 2):
        yield line[:-1].decode("ascii")
