"""Sidecars that the owners of a dataset have published with it."""

from __future__ import annotations

import logging
import zipfile
import zlib
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from threading import Thread
from typing import TYPE_CHECKING, Final

from lerobot_streaming.errors import FetchError, MissingFileError
from lerobot_streaming.index.manifest import parse_manifest
from lerobot_streaming.index.npz import ZIP_ERRORS
from lerobot_streaming.index.sidecar import check_fit
from lerobot_streaming.storage.range_file import RangeFile

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from lerobot_streaming.index.identity import SidecarIdentity
    from lerobot_streaming.storage.hub_store import HubStoreReader

    type _Listing = tuple[HubStoreReader, Mapping[str, int], Mapping[str, bytes]]

_logger = logging.getLogger(__name__)

SIDECAR_BRANCH: Final = "lerobot-sidecars"
SIDECAR_FOLDER: Final = "meta/mp4-sidecars"

_MAX_CANDIDATES: Final = 16
_MAX_MANIFEST_BYTES: Final = 1 << 30
_READ_BYTES: Final = 16 << 20
_MAX_EARLY_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class PublishedSidecars:
    """Where the sidecars of one dataset or bucket are published.

    Attributes:
        repo_id: "OWNER/NAME".
        is_bucket: True for a bucket, False for a dataset, whose sidecars lie on a branch of their own.
        token: Hub token.
        early: The answer to what is published, once `look_up_early` has asked.
    """

    repo_id: str
    is_bucket: bool
    token: str | bool | None = field(default=None, repr=False)
    early: Future[_Listing | None] | None = field(default=None, repr=False, compare=False)

    def look_up_early(self, name: str) -> PublishedSidecars:
        """Asks in a thread what is published, so that `fetch` need not wait for the answer.

        Args:
            name: File name of the sidecar that will be fetched; one that is not large is read as well.

        Returns:
            The same place, with the question on its way.
        """
        future: Future[_Listing | None] = Future()

        def ask() -> None:
            try:
                future.set_result(self._look_up(name))
            except BaseException as error:  # noqa: BLE001  `fetch` raises it, whatever it is.
                future.set_exception(error)

        Thread(target=ask, name="lerobot-streaming-published", daemon=True).start()
        return replace(self, early=future)

    def fetch(self, identity: SidecarIdentity, files: Mapping[str, int], target: Path) -> bool:
        """Downloads the sidecar of a dataset, if it is published.

        Args:
            identity: What it must belong to.
            files: Path -> size in bytes of the files that it must hold.
            target: Where to write it.

        Returns:
            Whether there is one. Where it cannot be asked for there is none, after one logged warning: the
            index can be made without it.

        Raises:
            OSError: It cannot be written.
        """
        found = None
        try:
            found = self._look_up() if self.early is None else self.early.result()
            path = None if found is None else _find(found[0], found[1], identity, files)
            if found is None or path is None:
                return False
            _download(found[0], path, target, found[2].get(path))
        except (FetchError, MissingFileError) as error:
            _logger.warning("the published video index could not be read and is not used: %s", error)
            return False
        finally:
            if found is not None:
                found[0].close()
        return True

    def _look_up(self, name: str | None = None) -> _Listing | None:
        """Gives the store of the sidecars, its files with their sizes, and the content of one of them.

        None when there never were any.
        """
        reader = self._reader()
        if reader is None:
            return None
        there = reader.list_files(SIDECAR_FOLDER)
        sizes = {path: stat.size for path, stat in there.items() if path.endswith(".npz")}
        path = f"{SIDECAR_FOLDER}/{name}"
        is_small = sizes.get(path, _MAX_EARLY_BYTES + 1) <= _MAX_EARLY_BYTES
        return reader, sizes, {path: reader.read(path, 0, sizes[path])} if is_small else {}

    def _reader(self) -> HubStoreReader | None:
        from lerobot_streaming.storage.bucket import BucketReader  # noqa: PLC0415 - heavy
        from lerobot_streaming.storage.hub import HubReader  # noqa: PLC0415 - heavy
        from lerobot_streaming.storage.hub_api import resolve_commit  # noqa: PLC0415 - heavy
        from lerobot_streaming.storage.hub_store import HubOptions  # noqa: PLC0415 - heavy

        options = HubOptions(self.token)
        if self.is_bucket:
            return BucketReader(self.repo_id, options)
        try:
            commit = resolve_commit(self.repo_id, SIDECAR_BRANCH, token=self.token)
        except MissingFileError:
            return None  # Nothing has ever been published.
        return HubReader(self.repo_id, commit, options)


def _find(
    reader: HubStoreReader, there: Mapping[str, int], identity: SidecarIdentity, files: Mapping[str, int]
) -> str | None:
    """The path of the sidecar: that of the computed name, else one whose manifest fits."""
    computed = f"{SIDECAR_FOLDER}/{identity.file_name()}"
    if computed in there:
        return computed
    for path in sorted(there)[:_MAX_CANDIDATES]:
        try:
            with zipfile.ZipFile(RangeFile(reader, path, there[path])) as archive:
                info = archive.getinfo("manifest_json.npy")
                if info.file_size > _MAX_MANIFEST_BYTES:
                    continue
                content = archive.read(info)
            # The text lies behind the array's header; braces occur nowhere before it but in that header.
            found, entries = parse_manifest(content[content.index(b"\n") + 1 :].rstrip(b"\0"))
            check_fit(found, {entry.path: entry.size for entry in entries}, identity, files)
        except (*ZIP_ERRORS, zlib.error) as error:
            _logger.info("published video index '%s' is of other data: %s", path, error)
            continue
        return path
    return None


def _download(reader: HubStoreReader, path: str, target: Path, content: bytes | None) -> None:
    if content is not None:
        target.write_bytes(content)
        return
    size = reader.stat(path).size
    with target.open("wb") as file:
        for offset in range(0, size, _READ_BYTES):
            file.write(reader.read(path, offset, min(_READ_BYTES, size - offset)))
