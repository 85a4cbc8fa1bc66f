"""What the rest of the library needs of an index, however it is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lerobot_streaming.index.tables import Mp4Header, SourceFile


class SampleIndex(Protocol):
    """The index of a dataset's MP4 files. Threads may share it, and it pickles."""

    @property
    def files(self) -> Mapping[str, int]:
        """Path -> size in bytes of every indexed file, in stored order."""
        ...

    def header(self, path: str) -> Mp4Header:
        """Gives a file's header facts without reading its table.

        Args:
            path: POSIX path relative to the data root.

        Returns:
            The header facts.

        Raises:
            SidecarError: The file is not indexed.
        """
        ...

    def source(self, path: str) -> SourceFile:
        """Gives a file's header and sample table; made the first time, then kept.

        Args:
            path: POSIX path relative to the data root.

        Returns:
            The indexed file.

        Raises:
            SidecarError: The file is not indexed, or its table is damaged.
        """
        ...

    def close(self) -> None:
        """Gives up what the index holds open; tables that were handed out stay usable."""
        ...
