"""What the rest of the library needs of an index, however it is kept."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lerobot_streaming.index.tables import Mp4Header, SourceFile


@runtime_checkable
class SampleIndex(Protocol):
    """The sample tables of a dataset's MP4 files. Thread-safe and picklable."""

    @property
    @abstractmethod
    def files(self) -> Mapping[str, int]:
        """Path -> size in bytes of every indexed file."""
        ...

    @abstractmethod
    def header(self, path: str) -> Mp4Header:
        """Gives a file's header facts.

        Args:
            path: POSIX path relative to the data root.

        Returns:
            The header facts.

        Raises:
            SidecarError: The file is not indexed.
        """
        ...

    @abstractmethod
    def source(self, path: str) -> SourceFile:
        """Gives a file's header and sample table.

        Args:
            path: POSIX path relative to the data root.

        Returns:
            The indexed file.

        Raises:
            SidecarError: The file is not indexed, or its arrays are damaged.
        """
        ...

    def knows(self, path: str) -> bool:  # noqa: ARG002
        """Whether `source` answers without reading from the dataset's own storage.

        Args:
            path: POSIX path relative to the data root.

        Returns:
            True for an index that is complete.
        """
        return True

    def load(self, paths: Iterable[str]) -> None:  # noqa: ARG002
        """Makes sure that files are indexed; an index that is complete has nothing to do.

        Args:
            paths: POSIX paths relative to the data root.

        Raises:
            BadVideoFilesError: Files cannot be indexed; the message lists all of them.
        """
        return

    def load_ahead(self, paths: Iterable[str]) -> None:  # noqa: ARG002
        """Says in which order files will be needed; an index that is complete has nothing to do.

        Args:
            paths: POSIX paths relative to the data root.
        """
        return

    @abstractmethod
    def close(self) -> None:
        """Gives files back; what was read stays usable."""
        ...
