"""Where a dataset is: its metadata, the reader of its payload, and where its sidecar may be published."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from lerobot_streaming.episodes.metadata_files import dataset_data_files, dataset_video_files, episode_files
from lerobot_streaming.errors import (
    DatasetLayoutError,
    FetchError,
    MissingFileError,
    OptionError,
    StreamingError,
)
from lerobot_streaming.index.identity import SidecarIdentity
from lerobot_streaming.index.published import SIDECAR_FOLDER, PublishedSidecars
from lerobot_streaming.storage.folder_copy import check_holds, copy_files, list_folder, listing_digest
from lerobot_streaming.storage.open_reader import open_reader, parse_bucket
from lerobot_streaming.threads import daemon_pool, result_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lerobot_streaming.options import Options
    from lerobot_streaming.storage.base import FileStat, RangeReader
    from lerobot_streaming.storage.hub_store import HubStoreReader

BUCKET_URI: Final = "hf://buckets/"

_USUAL_METADATA: Final = (
    "meta/info.json",
    "meta/stats.json",
    "meta/tasks.parquet",
    "meta/episodes/chunk-000/file-000.parquet",
)
"""Files that every dataset has, and small ones nothing else: where they are is asked beside their listing."""


@dataclass(frozen=True, slots=True)
class DatasetRequest:
    """What the user says of the dataset's place.

    Attributes:
        repo_id: Hub dataset or bucket id, or a label for a local dataset.
        root: Local directory, `hf://buckets/OWNER/BUCKET`, or None.
        data_root: Where the payload lies when not with the metadata: directory or fsspec URL.
        revision: Branch, tag or commit; None for the format's current version.
        repo_type: "dataset" or "bucket".
        token: Hub token, as huggingface_hub takes it.
        storage_options: fsspec options of `data_root`.
        force_cache_sync: Whether cached metadata is downloaded anew.
        depth_output_unit: "m" or "mm"; depth statistics are rescaled to it.
    """

    repo_id: str
    root: str | Path | None
    data_root: str | None
    revision: str | None
    repo_type: str
    token: str | bool | None
    storage_options: Mapping[str, Any] | None
    force_cache_sync: bool
    depth_output_unit: str

    def __repr__(self) -> str:
        """Names the dataset only: tokens and options may be secret."""
        return f"DatasetRequest({self.repo_id!r})"


@dataclass(frozen=True, slots=True)
class DatasetPlace:
    """Where a dataset was found.

    Attributes:
        meta: `lerobot.datasets.LeRobotDatasetMetadata`.
        repo_type: "dataset" or "bucket".
        revision: The commit of a Hub dataset; else what lerobot calls the revision.
        reader: Where payload bytes come from.
        published: Where a sidecar may be published, or None.
    """

    meta: Any
    repo_type: str
    revision: str
    reader: RangeReader
    published: PublishedSidecars | None

    @property
    def is_pinned(self) -> bool:
        """Whether the root itself fixes what the files hold."""
        return self.reader.root.startswith("hf://datasets/")


def find_dataset(request: DatasetRequest, options: Options) -> DatasetPlace:
    """Finds a dataset and loads its metadata. Everything of a Hub dataset comes from one commit.

    Args:
        request: What the user says.
        options: The checked options.

    Returns:
        The place. No payload has been read.

    Raises:
        OptionError: The place is of a form that cannot be streamed from.
        MissingFileError: There is no dataset, or no such revision.
        AccessError: The Hub refuses; the message says what to do.
        DatasetLayoutError: The metadata is damaged.
        FetchError: The store could not be asked.
    """
    root, repo_type = request.root, request.repo_type
    if request.storage_options and "://" not in str(request.data_root):
        raise OptionError(
            f"storage_options are for a data_root with a URL, but data_root is {request.data_root!r}. Leave "
            "them out, or pass the URL of the payload as data_root."
        )
    if root is not None and str(root).startswith(BUCKET_URI):
        if parse_bucket(str(root)) != request.repo_id:
            raise OptionError(
                f"root is '{root}', but repo_id is {request.repo_id!r}; a bucket is one dataset, so both "
                "must name the same bucket."
            )
        root, repo_type = None, "bucket"
    elif root is not None and "://" in str(root):
        raise OptionError(
            f"root is '{root}', but it must be a local directory or {BUCKET_URI}OWNER/BUCKET: metadata is "
            "read with local tools. Copy the dataset's meta/ to a directory, pass that as `root`, and the "
            "URL as `data_root`."
        )
    if repo_type == "bucket":
        if root is not None:
            raise OptionError(
                f"repo_type='bucket' streams from the bucket {request.repo_id!r} itself; leave out "
                f"root={root}."
            )
        return _in_bucket(request, options)
    local = Path(root) if root is not None else _recorded_here(request.repo_id)
    if local is not None:
        meta = load_metadata(request.repo_id, local, request.revision, request.depth_output_unit)
        place = request.data_root if request.data_root is not None else Path(meta.root).absolute()
        return DatasetPlace(meta, repo_type, str(meta.revision), _open(place, request, options), None)
    return _on_hub(request, options)


def _recorded_here(repo_id: str) -> Path | None:
    """A dataset below lerobot's home, where it is recorded; metadata alone may be what a download left."""
    from lerobot.utils.constants import HF_LEROBOT_HOME  # noqa: PLC0415

    place = Path(HF_LEROBOT_HOME) / repo_id
    return place if (place / "meta" / "info.json").is_file() and (place / "data").is_dir() else None


def _on_hub(request: DatasetRequest, options: Options) -> DatasetPlace:
    from lerobot.utils.constants import HF_LEROBOT_HOME, HF_LEROBOT_HUB_CACHE  # noqa: PLC0415

    from lerobot_streaming.storage.hub_api import resolve_commit  # noqa: PLC0415 - heavy

    if request.repo_id.count("/") != 1:
        raise MissingFileError(
            f"{request.repo_id!r} is no dataset in lerobot's home directory, and no OWNER/NAME on the Hub. "
            "Check repo_id, or pass the dataset's directory as `root`."
        )
    commit = resolve_commit(request.repo_id, _tag(request), token=request.token)
    home = _open_home(f"hf://datasets/{request.repo_id}@{commit}", request, options)
    published = PublishedSidecars(request.repo_id, is_bucket=False, token=request.token)
    # Of the first start's time, most is spent waiting for one answer after the other.
    identity = SidecarIdentity(request.repo_id, commit, home.root)
    if request.data_root is None and not identity.cache_path(Path(HF_LEROBOT_HOME)).exists():
        published = published.look_up_early(identity.file_name())
    # Where lerobot itself keeps the files of a commit, so that both find what either has downloaded.
    repository = Path(HF_LEROBOT_HUB_CACHE) / f"datasets--{request.repo_id.replace('/', '--')}"
    folder = repository / "snapshots" / commit
    if not (folder / "meta" / "info.json").is_file():
        home.locate_ahead(_USUAL_METADATA)
    files = _list_metadata(home)
    _copy_metadata(home, files, folder, request)
    with daemon_pool(1, "payload") as pool:
        asked = pool.submit(partial(_look_up_payload, home, folder)) if request.data_root is None else None
        # This takes much of the machine, and no answer is waited for meanwhile.
        meta = load_metadata(request.repo_id, folder, commit, request.depth_output_unit)
        if asked is not None:
            result_of(asked)
    return _place(request, options, DatasetPlace(meta, "dataset", commit, home, published))


def _look_up_payload(home: HubStoreReader, folder: Path) -> None:
    """Asks for the sizes of all files of a dataset, which the reader remembers."""
    try:
        info = json.loads((folder / "meta" / "info.json").read_text())
        videos = dataset_video_files(folder, info["features"], info.get("video_path"))
        data = dataset_data_files(folder, info["data_path"])
    except (DatasetLayoutError, OSError, ValueError, LookupError, TypeError, AttributeError):
        return  # Whoever loads the metadata says what is wrong with it.
    home.stat_many([*data, *videos])


def _tag(request: DatasetRequest) -> str:
    """The revision to resolve: what lerobot would choose when the user names none, or a format version."""
    import httpx  # noqa: PLC0415 - heavy
    from lerobot.datasets.dataset_metadata import (  # noqa: PLC0415
        CODEBASE_VERSION,
        get_safe_version,
    )
    from lerobot.datasets.utils import is_valid_version  # noqa: PLC0415

    from lerobot_streaming.storage.hub_api import resolve_commit  # noqa: PLC0415 - heavy

    wanted = request.revision or CODEBASE_VERSION
    if not is_valid_version(wanted):
        return wanted
    try:
        return resolve_commit(request.repo_id, wanted, token=request.token)
    except MissingFileError:
        # No such tag: lerobot takes an older compatible one, or says that there is none.
        try:
            return str(get_safe_version(request.repo_id, wanted, token=request.token))
        except httpx.HTTPError as error:
            raise FetchError(
                f"could not ask the Hub which format versions {request.repo_id!r} is tagged with: {error}. "
                "Try again, or pass a revision."
            ) from error
        except RuntimeError as error:
            raise MissingFileError(
                f"{request.repo_id!r} has no tag of a format version such as {CODEBASE_VERSION!r}. Pass the "
                "branch or commit to read as revision (--dataset.revision, --revision), such as 'main'."
            ) from error


def _in_bucket(request: DatasetRequest, options: Options) -> DatasetPlace:
    from lerobot.utils.constants import HF_LEROBOT_HUB_CACHE  # noqa: PLC0415

    home = _open_home(f"{BUCKET_URI}{request.repo_id}", request, options)
    files = _list_metadata(home)
    # A bucket has no commits, and whoever reads the metadata later must find what was read first: the
    # content names the directory.
    bucket = Path(HF_LEROBOT_HUB_CACHE) / f"buckets--{request.repo_id.replace('/', '--')}"
    folder = bucket / "snapshots" / listing_digest(files)
    _copy_metadata(home, files, folder, request)
    meta = load_metadata(
        request.repo_id, folder, request.revision, request.depth_output_unit, repo_type="bucket"
    )
    published = PublishedSidecars(request.repo_id, is_bucket=True, token=request.token)
    return _place(request, options, DatasetPlace(meta, "bucket", str(meta.revision), home, published))


def _open_home(location: str, request: DatasetRequest, options: Options) -> HubStoreReader:
    """The store that a dataset on the Hub is named after, which has its metadata."""
    return cast("HubStoreReader", _open(location, request, options))


def _list_metadata(home: HubStoreReader) -> dict[str, FileStat]:
    """Lists the metadata. Sidecars that are published beside it are left out: they may be large."""
    files = list_folder(home, "meta", without=SIDECAR_FOLDER)
    check_holds(files, "meta/info.json", home.root)
    return files


def _copy_metadata(
    home: HubStoreReader, files: Mapping[str, FileStat], folder: Path, request: DatasetRequest
) -> None:
    try:
        copy_files(home, files, folder, anew=request.force_cache_sync)
    except OSError as error:
        if isinstance(error, StreamingError):
            raise
        raise FetchError(
            f"cannot keep the metadata of {request.repo_id!r} in '{folder}': {error}. Set HF_LEROBOT_HOME to "
            "a directory that can be written"
        ) from error


def _place(request: DatasetRequest, options: Options, home: DatasetPlace) -> DatasetPlace:
    """The place of a dataset on the Hub, whose payload may lie elsewhere."""
    if request.data_root is None:
        return home
    return replace(home, reader=_open(request.data_root, request, options), published=None)


def _open(place: str | Path, request: DatasetRequest, options: Options) -> RangeReader:
    return open_reader(
        place,
        token=request.token,
        storage_options=request.storage_options,
        connections=options.connections,
        subranges=options.native_http_subranges,
    )


def load_metadata(
    repo_id: str,
    root: Path,
    revision: str | None,
    depth_output_unit: str,
    *,
    repo_type: str = "dataset",
) -> Any:
    """Loads lerobot's own metadata object from a local directory.

    Args:
        repo_id: Hub id or label of the dataset.
        root: Local directory that holds `meta/`.
        revision: Revision that the dataset is opened as.
        depth_output_unit: "m" or "mm"; depth statistics are rescaled to it.
        repo_type: What the directory is a copy of.

    Returns:
        `lerobot.datasets.LeRobotDatasetMetadata`.

    Raises:
        BackwardCompatibilityError: The dataset has format v2.1; lerobot's message names its converter.
        MissingFileError: A metadata file is missing.
        DatasetLayoutError: `meta/info.json` declares no episode.
    """
    from lerobot.datasets.dataset_metadata import LeRobotDatasetMetadata  # noqa: PLC0415

    _check_metadata_files(root)
    meta = LeRobotDatasetMetadata(repo_id, root, revision, repo_type=repo_type)
    meta.rescale_depth_stats(depth_output_unit)
    return meta


def _check_metadata_files(root: Path) -> None:
    """Finds missing files before lerobot does, which would turn to the network for them."""
    path = root / "meta" / "info.json"
    if not path.is_file():
        raise MissingFileError(f"{root} holds no LeRobotDataset: {path} does not exist. Check `root`.")
    try:
        info = json.loads(path.read_text())
    except ValueError as error:
        raise DatasetLayoutError(
            f"{path} is no JSON: {error}. Restore it from the source of the dataset."
        ) from error
    if not str(info.get("codebase_version", "")).startswith("v3"):
        return  # lerobot names the version and the converter.
    if info.get("total_tasks", 0) > 0 and not (root / "meta" / "tasks.parquet").is_file():
        raise MissingFileError(
            f"{root / 'meta' / 'tasks.parquet'} does not exist, but meta/info.json says total_tasks="
            f"{info['total_tasks']}. Restore it from the source of the dataset."
        )
    episode_files(root)
