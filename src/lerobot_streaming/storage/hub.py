"""Byte ranges of the files of a dataset on the Hub, at one commit."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from lerobot_streaming.errors import OptionError
from lerobot_streaming.storage.base import FileStat, check_path
from lerobot_streaming.storage.hub_refusals import HubSubject
from lerobot_streaming.storage.hub_store import HubOptions, HubStoreReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_COMMIT: Final = re.compile(r"[0-9a-f]{40}")


class HubReader(HubStoreReader):
    """Reads byte ranges of one dataset repository at one commit.

    Each file is resolved once to its signed URL, which all threads share. The commit pins the content, so
    files have no fingerprints.
    """

    def __init__(
        self,
        repo_id: str,
        commit: str,
        options: HubOptions | None = None,
        *,
        on_retry: Callable[[], None] | None = None,
    ) -> None:
        """Binds the reader; nothing is asked yet.

        Args:
            repo_id: "OWNER/NAME".
            commit: 40 hexadecimal digits, such as `resolve_commit` gives.
            options: How it is read.
            on_retry: Called before each further attempt.

        Raises:
            OptionError: `commit` is no commit.
        """
        if not _COMMIT.fullmatch(commit):
            raise OptionError(
                f"'{commit}' is no commit of dataset '{repo_id}'; resolve branches and tags first."
            )
        self._commit = commit
        super().__init__(repo_id, options or HubOptions(), on_retry)

    @property
    def root(self) -> str:
        """`hf://datasets/OWNER/NAME@COMMIT`."""
        return f"hf://datasets/{self._repo_id}@{self._commit}"

    def stat(self, path: str) -> FileStat:
        """Looks one file up; what `stat_many` has found is not asked for again.

        Args:
            path: POSIX path relative to the root.

        Returns:
            Size in bytes, without fingerprint.

        Raises:
            MissingFileError: There is no such file.
            AccessError: The Hub refuses.
            FetchError: The Hub could not be asked.
        """
        return FileStat(self._size(check_path(path, self.root)), None)

    def stat_many(self, paths: Iterable[str], *, look_ups: int = 1) -> dict[str, FileStat]:
        """Looks many files up; what was found before is not asked for again, because a commit is for ever."""
        wanted = list(dict.fromkeys(paths))
        pins = {path: self._locations.pinned(path) for path in wanted}
        known = {path: FileStat(pin.size, None) for path, pin in pins.items() if pin and pin.size is not None}
        found = super().stat_many([path for path in wanted if path not in known], look_ups=look_ups)
        return {path: known.get(path) or found[path] for path in wanted}

    def _subject(self, path: str | None) -> HubSubject:
        return HubSubject("dataset", self._repo_id, self._commit, path, self._api.endpoint)

    def _file_url(self, path: str) -> str:
        return f"{self._api.endpoint}/datasets/{self._repo_id}/resolve/{self._commit}/{quote(path)}"

    def _api_url(self, call: str) -> str:
        return f"{self._api.endpoint}/api/datasets/{self._repo_id}/{call}/{self._commit}"

    def _stat_of(self, entry: Mapping[str, Any]) -> FileStat:
        return FileStat(int(entry["size"]), None)
