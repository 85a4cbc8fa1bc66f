"""Byte ranges of the files of a bucket on the Hub."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from lerobot_streaming.errors import MissingFileError
from lerobot_streaming.storage.base import FileStat, check_path
from lerobot_streaming.storage.hub_refusals import HubSubject
from lerobot_streaming.storage.hub_store import HubOptions, HubStoreReader

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lerobot_streaming.storage.locations import Pin


class BucketReader(HubStoreReader):
    """Reads byte ranges of one bucket.

    A bucket has no commits. The content hash that the first listing or look-up of a file gives is its
    fingerprint, and a file that has another one later is an error.
    """

    def __init__(
        self,
        bucket_id: str,
        options: HubOptions | None = None,
        *,
        on_retry: Callable[[], None] | None = None,
    ) -> None:
        """Binds the reader; nothing is asked yet.

        Args:
            bucket_id: "OWNER/BUCKET".
            options: How it is read.
            on_retry: Called before each further attempt.
        """
        super().__init__(bucket_id, options or HubOptions(), on_retry)

    @property
    def root(self) -> str:
        """`hf://buckets/OWNER/BUCKET`."""
        return f"hf://buckets/{self._repo_id}"

    def stat(self, path: str) -> FileStat:
        """Looks one file up as it is now.

        Args:
            path: POSIX path relative to the root.

        Returns:
            Size in bytes, and the content hash as fingerprint.

        Raises:
            MissingFileError: There is no such file.
            AccessError: The Hub refuses.
            FetchError: The Hub could not be asked.
        """
        found = self.stat_many([check_path(path, self.root)])[path]
        if found.size < 0:
            raise MissingFileError(
                f"no file '{path}' below '{self.root}'; upload it again or fix the data root"
            )
        return found

    def __getstate__(self) -> dict[str, Any]:
        """Pickles the hashes too, so that a worker notices a file that was replaced before it started."""
        return super().__getstate__() | {"pins": self._locations.pins()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Rebuilds a reader without connections."""
        pins: dict[str, Pin] = state.pop("pins")
        super().__setstate__(state)
        for path, pin in pins.items():
            if pin.size is not None:
                self._locations.pin(path, pin.size, pin.identity)

    def _subject(self, path: str | None) -> HubSubject:
        return HubSubject("bucket", self._repo_id, None, path, self._api.endpoint)

    def _file_url(self, path: str) -> str:
        return f"{self._api.endpoint}/buckets/{self._repo_id}/resolve/{quote(path)}"

    def _api_url(self, call: str) -> str:
        return f"{self._api.endpoint}/api/buckets/{self._repo_id}/{call}"

    def _stat_of(self, entry: Mapping[str, Any]) -> FileStat:
        return FileStat(int(entry["size"]), entry.get("xetHash"))
