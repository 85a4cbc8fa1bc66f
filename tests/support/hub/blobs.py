"""Contents that the loopback Hub serves: bytes in memory or in a file, with every name they go by."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_READ_SIZE = 1 << 20


@dataclass(frozen=True)
class Blob:
    """One content. A file behind it must not change as long as the Hub lives.

    Args:
        source: The bytes, or the file that holds them.
        size: Length in bytes.
        sha256: Name in large file storage, hexadecimal.
        git_oid: Name as a git blob, hexadecimal SHA-1.
        xet_hash: Name in Xet storage, 64 hexadecimal digits. One that the Xet client has not given itself is
            made up from `sha256`: the client takes it as it is.
    """

    source: bytes | Path
    size: int
    sha256: str
    git_oid: str
    xet_hash: str

    @classmethod
    def of(cls, source: bytes | Path, xet_hash: str | None = None) -> Blob:
        """Hash a content.

        Args:
            source: The bytes, or the file that holds them.
            xet_hash: Its name in Xet storage where that is known.

        Returns:
            The content.
        """
        size = source.stat().st_size if isinstance(source, Path) else len(source)
        sha256 = hashlib.sha256()
        git = hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)
        for piece in _pieces(source, 0, size, _READ_SIZE):
            sha256.update(piece)
            git.update(piece)
        name = sha256.hexdigest()
        made_up = hashlib.sha256(f"xet {name}".encode()).hexdigest()
        return cls(source, size, name, git.hexdigest(), xet_hash or made_up)

    def read(self, start: int = 0, stop: int | None = None) -> bytes:
        """Read a part.

        Args:
            start: First byte.
            stop: Byte behind the last; None: the end.

        Returns:
            The bytes.
        """
        return b"".join(self.pieces(start, self.size if stop is None else stop, _READ_SIZE))

    def pieces(self, start: int, stop: int, size: int) -> Iterator[bytes]:
        """Read a part piece by piece.

        Args:
            start: First byte.
            stop: Byte behind the last.
            size: Largest piece in bytes.

        Yields:
            The pieces in order.

        Raises:
            EOFError: When the file behind the content has become shorter.
        """
        return _pieces(self.source, start, stop, size)

    @property
    def pointer(self) -> bytes:
        """The text that git stores in place of this content when it is in large file storage."""
        text = f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {self.size}\n"
        return text.encode()

    @property
    def pointer_oid(self) -> str:
        """Name of :attr:`pointer` as a git blob."""
        text = self.pointer
        return hashlib.sha1(f"blob {len(text)}\0".encode() + text, usedforsecurity=False).hexdigest()


def _pieces(source: bytes | Path, start: int, stop: int, size: int) -> Iterator[bytes]:
    if isinstance(source, bytes):
        for at in range(start, stop, size):
            yield source[at : min(at + size, stop)]
        return
    with source.open("rb", buffering=0) as file:
        file.seek(start)
        at = start
        while at < stop:
            piece = file.read(min(size, stop - at))
            if not piece:
                raise EOFError(f"{source} ends at byte {at}; it had {stop} bytes when the Hub took it")
            at += len(piece)
            yield piece


def read_directory(directory: Path) -> dict[str, Blob]:
    """Take all files below a directory.

    Args:
        directory: Where they lie.

    Returns:
        Path with forward slashes, relative to `directory`, to content.
    """
    return {
        path.relative_to(directory).as_posix(): Blob.of(path)
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }
