"""Chooses the reader for a data root."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from lerobot_streaming.errors import OptionError
from lerobot_streaming.storage.local import LocalReader
from lerobot_streaming.storage.retry import DEFAULT_DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lerobot_streaming.storage.base import RangeReader

_DATASETS = "hf://datasets/"
_BUCKETS = "hf://buckets/"
_FORMS = "hf://datasets/OWNER/NAME, hf://datasets/OWNER/NAME@REVISION or hf://buckets/OWNER/BUCKET"


def open_reader(
    location: str | Path,
    *,
    token: str | bool | None = None,
    endpoint: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    connections: int | None = None,
    subranges: int = 1,
    deadline_s: float = DEFAULT_DEADLINE_S,
    timeout_s: float | None = None,
    on_retry: Callable[[], None] | None = None,
) -> RangeReader:
    """Opens the reader of a data root. Nothing is read, except the commit of a branch or tag.

    Args:
        location: A local directory, `hf://datasets/OWNER/NAME@REVISION` (without revision: `main`; it is
            resolved to a commit once), `hf://buckets/OWNER/BUCKET` or any fsspec URL.
        token: Hub token, as huggingface_hub takes it; for `hf://` only.
        endpoint: URL of the Hub; None takes huggingface_hub's; for `hf://` only.
        storage_options: Options of an fsspec file system.
        connections: Most requests at a time; None takes the reader's default.
        subranges: Concurrent parts of one range of at least 16 MiB; for `hf://` only.
        deadline_s: Seconds for one read or look-up with all of its attempts; > 0.
        timeout_s: Seconds after which one attempt counts as stalled; None takes the reader's default.
        on_retry: Called before each further attempt, from any thread.

    Returns:
        The reader.

    Raises:
        OptionError: The location is of no form that can be read, its package is missing, or a number is out
            of range.
        MissingFileError: A Hub dataset has no such revision.
        AccessError: The Hub refuses the dataset.
        FetchError: The Hub could not be asked for the commit.
    """
    text = str(location)
    if "://" not in text:
        return LocalReader(Path(location))
    if text.startswith("hf:"):
        return _open_hub(
            text,
            token=token,
            endpoint=endpoint,
            connections=connections,
            subranges=subranges,
            deadline_s=deadline_s,
            timeout_s=timeout_s,
            on_retry=on_retry,
        )
    if text.startswith(("file://", "local://")) and not storage_options:
        return LocalReader(text.partition("://")[2])
    from lerobot_streaming.storage.fsspec_reader import (  # noqa: PLC0415 - heavy
        DEFAULT_CONNECTIONS,
        DEFAULT_TIMEOUT_S,
        FsspecReader,
    )

    return FsspecReader(
        text,
        storage_options,
        connections=DEFAULT_CONNECTIONS if connections is None else connections,
        deadline_s=deadline_s,
        timeout_s=DEFAULT_TIMEOUT_S if timeout_s is None else timeout_s,
        on_retry=on_retry,
    )


def _open_hub(
    location: str,
    *,
    token: str | bool | None,
    endpoint: str | None,
    connections: int | None,
    subranges: int,
    deadline_s: float,
    timeout_s: float | None,
    on_retry: Callable[[], None] | None,
) -> RangeReader:
    from lerobot_streaming.storage.hub_api import resolve_commit  # noqa: PLC0415 - heavy
    from lerobot_streaming.storage.hub_store import DEFAULT_CONNECTIONS, HubOptions  # noqa: PLC0415

    options = HubOptions(
        token,
        endpoint,
        DEFAULT_CONNECTIONS if connections is None else connections,
        subranges,
        deadline_s,
        timeout_s,
    )
    if location.startswith(_BUCKETS):
        from lerobot_streaming.storage.bucket import BucketReader  # noqa: PLC0415

        return BucketReader(parse_bucket(location), options, on_retry=on_retry)
    if not location.startswith(_DATASETS):
        raise OptionError(f"data root '{location}' is no dataset and no bucket; write {_FORMS}")
    from lerobot_streaming.storage.hub import HubReader  # noqa: PLC0415

    repo_id, revision = parse_dataset(location)
    commit = resolve_commit(repo_id, revision, token=token, endpoint=endpoint, deadline_s=deadline_s)
    return HubReader(repo_id, commit, options, on_retry=on_retry)


def parse_bucket(location: str) -> str:
    """Takes a bucket's URL apart.

    Args:
        location: `hf://buckets/OWNER/BUCKET`.

    Returns:
        "OWNER/BUCKET".

    Raises:
        OptionError: It names a folder of a bucket, or no bucket.
    """
    parts = location.removeprefix(_BUCKETS).rstrip("/").split("/")
    if len(parts) > 2 and all(parts[:2]):
        raise OptionError(
            f"data root '{location}' is a folder of a bucket, but a dataset must be a whole bucket: write "
            f"{_BUCKETS}{parts[0]}/{parts[1]}, and give each dataset a bucket of its own"
        )
    if not location.startswith(_BUCKETS) or len(parts) != 2 or not all(parts) or "@" in location:
        raise OptionError(f"data root '{location}' names no bucket; write {_BUCKETS}OWNER/BUCKET")
    return "/".join(parts)


def parse_dataset(location: str) -> tuple[str, str | None]:
    """Takes a dataset's URL apart.

    Args:
        location: `hf://datasets/OWNER/NAME` or `hf://datasets/OWNER/NAME@REVISION`; a `/` in the revision
            may be written `%2F`.

    Returns:
        "OWNER/NAME" and the revision, None when there is none.

    Raises:
        OptionError: It names a folder, or no dataset.
    """
    name, at, revision = location.removeprefix(_DATASETS).rstrip("/").partition("@")
    parts = name.split("/")
    if not location.startswith(_DATASETS) or len(parts) != 2 or not all(parts) or (at and not revision):
        raise OptionError(f"data root '{location}' names no dataset repository; write {_FORMS}")
    if "/" in revision and not revision.startswith("refs/"):
        raise OptionError(
            f"data root '{location}' is a folder of a repository, but a dataset must be a whole repository; "
            "write a / in the name of a branch as %2F"
        )
    return "/".join(parts), unquote(revision) if at else None
