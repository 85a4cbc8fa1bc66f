"""Reads a sidecar from front to back in memory that does not grow with the number of its files.

It knows the sidecars of `write_sidecar` only, and those byte for byte; `open_sidecar` reads all others.
"""

from __future__ import annotations

import json
from typing import IO, TYPE_CHECKING, Any

from lerobot_streaming.index.manifest import MANIFEST_END, entry_text, manifest_head, parse_entry, source_text
from lerobot_streaming.index.npy import parse_array, text_header
from lerobot_streaming.index.npz import MAX_MEMBER_BYTES
from lerobot_streaming.index.sidecar import MANIFEST, MEMBERS, checked_source
from lerobot_streaming.index.zip_reader import read_directory, read_member

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from lerobot_streaming.index.identity import SidecarIdentity
    from lerobot_streaming.index.tables import SourceFile
    from lerobot_streaming.index.zip_records import Member

_DECODER = json.JSONDecoder()


def is_as_written(path: Path, identity: SidecarIdentity, files: Mapping[str, int]) -> bool:
    """Whether a file is what `write_sidecar` writes, to the last byte, and all of its tables are valid.

    Args:
        path: The file; nobody may be writing it.
        identity: What it must belong to.
        files: Path -> size in bytes of the files that it must hold, no more and no fewer.

    Returns:
        False: it is damaged, or of other data, or another program has written it.

    Raises:
        OSError: It cannot be read.
    """
    try:
        for _ in walk_sidecar(path, identity, files):
            pass
    except ValueError:
        return False
    return True


def walk_sidecar(path: Path, identity: SidecarIdentity, files: Mapping[str, int]) -> Iterator[SourceFile]:
    """Reads and checks a sidecar of `write_sidecar`, one file at a time.

    Args:
        path: The sidecar; nobody may be writing it.
        identity: What it must belong to.
        files: Path -> size in bytes of the files that it must hold, no more and no fewer.

    Yields:
        The indexed files in ascending order of their paths.

    Raises:
        ValueError: There is a byte that `write_sidecar` would not write; some files may have been yielded.
        OSError: It cannot be read.
    """
    # Each keeps its own place: the manifest at the end of the archive is read beside the tables.
    with path.open("rb") as directory, path.open("rb") as tables, path.open("rb") as manifest:
        last = _last_member(directory)
        members = read_directory(directory)
        text = _Text(manifest, last)
        order = sorted(files)
        for piece in manifest_head(identity, (source_text(name, files[name]) for name in order)):
            text.expect(piece)
        for i, name in enumerate(order):
            if i:
                text.expect(", ")
            entry = parse_entry(text.peek_object())
            if (entry.path, entry.size) != (name, files[name]):
                raise ValueError(f"the entry of '{entry.path}' is where that of '{name}' belongs")
            text.expect(entry_text(entry))
            arrays = {
                column: parse_array(_read_table(tables, next(members, None), f"{i}/{member}.npy"), dtype)
                for member, (column, dtype) in MEMBERS.items()
            }
            yield checked_source(entry, arrays, f"sidecar '{path}'")
            del arrays
        text.expect(MANIFEST_END)
        text.expect_end()
        if list(members) != [last]:
            raise ValueError("there are members that do not belong to it")


def listed_files(path: Path, identity: SidecarIdentity) -> Iterator[tuple[str, int]]:
    """Reads which files a sidecar of `write_sidecar` holds.

    Args:
        path: The sidecar; nobody may be writing it.
        identity: What it must belong to; fingerprints are not looked at.

    Yields:
        (path, size in bytes) of its files, as it lists them.

    Raises:
        ValueError: There is a byte that `write_sidecar` would not write.
        OSError: It cannot be read.
    """
    with path.open("rb") as manifest:
        text = _Text(manifest, _last_member(manifest))
        text.expect(next(manifest_head(identity, ())))
        separator = ""
        while not text.starts_with("]"):
            text.expect(separator)
            item = text.peek_object()
            text.expect(source_text(item["path"], item["size"]))
            yield item["path"], item["size"]
            separator = ", "


def _last_member(file: IO[bytes]) -> Member:
    last = None
    for member in read_directory(file):
        last = member
    if last is None or last.name != f"{MANIFEST}.npy".encode() or last.size > MAX_MEMBER_BYTES:
        raise ValueError("its last member is no manifest")
    return last


def _read_table(file: IO[bytes], member: Member | None, name: str) -> bytes:
    if member is None or member.name != name.encode() or member.size > MAX_MEMBER_BYTES:
        raise ValueError(f"member '{name}' is not where it belongs")
    return b"".join(read_member(file, member))


class _Text:
    """The text of a manifest, read from front to back; a `ValueError` says what is wrong with it."""

    def __init__(self, file: IO[bytes], member: Member) -> None:
        self._chunks = read_member(file, member)
        self._read = bytearray()
        self._expect(text_header(max(0, member.size - len(text_header(0)))))

    def starts_with(self, wanted: str) -> bool:
        return self._starts_with(wanted.encode("ascii"))

    def expect(self, wanted: str) -> None:
        """Goes on behind a text that must come next."""
        self._expect(wanted.encode("ascii"))

    def expect_end(self) -> None:
        if self._read or next(self._chunks, b""):
            raise ValueError("the manifest goes on behind its end")

    def peek_object(self) -> dict[str, Any]:
        """Parses the JSON object that must come next, and stays in front of it."""
        while self._starts_with(b"{"):
            try:
                found: dict[str, Any] = _DECODER.raw_decode(self._read.decode("ascii"))[0]
            except (ValueError, RecursionError):
                # The object may go on; parsing it again for every piece would take too long.
                if not self._fill(2 * len(self._read)):
                    break
            else:
                return found
        raise ValueError("there is no JSON object where the manifest must have one")

    def _expect(self, wanted: bytes) -> None:
        if not self._starts_with(wanted):
            raise ValueError(f"the manifest does not go on with {wanted[:100]!r}")
        del self._read[: len(wanted)]

    def _starts_with(self, wanted: bytes) -> bool:
        self._fill(len(wanted))
        return self._read.startswith(wanted)

    def _fill(self, size: int) -> bool:
        """Reads on until `size` bytes are there or the text ends; tells whether it has read anything."""
        before = len(self._read)
        while len(self._read) < size and (chunk := next(self._chunks, None)) is not None:
            self._read += chunk
        return len(self._read) > before
