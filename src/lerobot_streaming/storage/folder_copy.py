"""Copies a small folder of a store on the Hub to the disk: the metadata of a dataset."""

from __future__ import annotations

import hashlib
import os
import secrets
from typing import TYPE_CHECKING, Final

from lerobot_streaming.errors import MissingFileError
from lerobot_streaming.storage.base import check_path
from lerobot_streaming.threads import daemon_pool

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from lerobot_streaming.storage.base import FileStat
    from lerobot_streaming.storage.hub_store import HubStoreReader

_FILES_AT_A_TIME: Final = 8
_READ_BYTES: Final = 16 << 20


def list_folder(reader: HubStoreReader, folder: str, *, without: str) -> dict[str, FileStat]:
    """Lists the files of a folder that are to be copied.

    Args:
        reader: The store.
        folder: POSIX path relative to its root.
        without: A folder in it that is left out.

    Returns:
        Path relative to the root -> size and fingerprint.

    Raises:
        MissingFileError: There is no such revision.
        AccessError: The Hub refuses.
        FetchError: The Hub could not be asked, or a path leaves the root.
    """
    return {
        check_path(path, reader.root): stat
        for path, stat in reader.list_files(folder).items()
        if not path.startswith(f"{without}/")
    }


def listing_digest(files: Mapping[str, FileStat]) -> str:
    """Names the content of a listing.

    Args:
        files: Path -> size and fingerprint.

    Returns:
        16 hexadecimal digits, others when any file is another.
    """
    lines = "".join(f"{path}\n{stat.size} {stat.fingerprint}\n" for path, stat in sorted(files.items()))
    return hashlib.sha256(lines.encode()).hexdigest()[:16]


def copy_files(
    reader: HubStoreReader, files: Mapping[str, FileStat], target: Path, *, anew: bool = False
) -> None:
    """Copies files to the same places below a directory, unless they are there.

    The directory must be of this content only: a file of the right size counts as copied, because each is
    written under another name and renamed when it is complete. So processes may copy at the same time.

    Args:
        reader: The store.
        files: Path relative to the root -> size and fingerprint.
        target: The directory.
        anew: Whether to copy what is there once more.

    Raises:
        MissingFileError: A file is gone.
        AccessError: The Hub, or the host of the content, refuses.
        FetchError: A file could not be read within the deadline.
        OSError: The directory cannot be written.
    """

    def copy(path: str) -> None:
        place, size = target / path, files[path].size
        if not anew and place.is_file() and place.stat().st_size == size:
            return
        place.parent.mkdir(parents=True, exist_ok=True)
        temporary = place.with_name(f".{place.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
        try:
            with temporary.open("wb") as file:
                for offset in range(0, size, _READ_BYTES):
                    file.write(reader.read(path, offset, min(_READ_BYTES, size - offset)))
            temporary.replace(place)
        finally:
            temporary.unlink(missing_ok=True)

    with daemon_pool(_FILES_AT_A_TIME, "copy") as pool:
        try:
            pool.map(copy, files)
        except BaseException:
            reader.close()  # Ends the waits of the others.
            raise


def check_holds(files: Mapping[str, FileStat], path: str, root: str) -> None:
    """Refuses a store without the file that makes it a dataset.

    Args:
        files: The store's listing.
        path: The file.
        root: The store, for the message.

    Raises:
        MissingFileError: It is not there.
    """
    if path not in files:
        raise MissingFileError(
            f"'{root}' holds no LeRobotDataset: it has no {path}. Check repo_id and revision."
        )
