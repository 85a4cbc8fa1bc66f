"""Opens a dataset: metadata, layout, index, exact sizes. What can be found wrong early is found here."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lerobot_streaming.episodes.layout import check_episode_selection, episode_files, load_layout
from lerobot_streaming.episodes.rows import RowReader
from lerobot_streaming.episodes.videos import VideoCatalog
from lerobot_streaming.errors import (
    ByteBudgetError,
    DatasetLayoutError,
    MissingFileError,
    OptionError,
    SidecarError,
)
from lerobot_streaming.index.builder import stat_files
from lerobot_streaming.index.identity import SidecarIdentity
from lerobot_streaming.index.resolve import resolve_sidecar
from lerobot_streaming.items import ItemSpec, check_deltas
from lerobot_streaming.lerobot_values import DepthCodec, decode_language
from lerobot_streaming.options import GIB
from lerobot_streaming.storage.local import LocalReader

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from lerobot_streaming.episodes.layout import DatasetLayout
    from lerobot_streaming.index.sidecar import Sidecar
    from lerobot_streaming.options import Options
    from lerobot_streaming.storage.base import RangeReader

DEPTH_UNITS = ("m", "mm")


@dataclass(frozen=True, slots=True)
class OpenDataset:
    """Everything a worker needs of a dataset. Picklable; tables of the index stay in its file.

    Attributes:
        layout: The selected episodes.
        reader: Where payload bytes come from.
        sidecar: Sample tables of the video files; None for a dataset without videos.
        size_bytes: Exact mini-MP4 bytes per position, int64 (n,).
        items: What items hold.
        pixel_formats: Camera to its pixel format as `meta/info.json` tells it, or None.
    """

    layout: DatasetLayout
    reader: RangeReader
    sidecar: Sidecar | None
    size_bytes: NDArray[np.int64]
    items: ItemSpec
    pixel_formats: Mapping[str, str | None]

    def size_of(self, position: int) -> int:
        """Tells the exact mini-MP4 bytes of an episode.

        Args:
            position: Its position in the selection.

        Returns:
            The sum over its cameras.
        """
        return int(self.size_bytes[position])


def local_root(repo_id: str, root: str | Path | None, data_root: str | None, repo_type: str) -> Path:
    """Finds the local directory of a dataset, and refuses what this version cannot stream from.

    Args:
        repo_id: Hub id or label of the dataset.
        root: Local directory, or None for `$HF_LEROBOT_HOME/<repo_id>`.
        data_root: Where the payload lies when not below the root.
        repo_type: "dataset" or "bucket".

    Returns:
        Directory that holds `meta/`.

    Raises:
        OptionError: The dataset would have to be read from the Hub, a bucket or another store.
        MissingFileError: There is no dataset in the directory.
    """
    remote = next(
        (str(place) for place in (root, data_root) if place is not None and "://" in str(place)), None
    )
    if repo_type == "bucket" or remote is not None:
        raise OptionError(
            f"{remote or repo_id!r} is a remote store (repo_type={repo_type!r}): this version streams from "
            "local directories only. Download the dataset and pass its directory as `root`."
        )
    if root is not None:
        place = Path(root)
        if not (place / "meta" / "info.json").is_file():
            raise MissingFileError(
                f"{place} holds no LeRobotDataset: {place / 'meta' / 'info.json'} does not exist. Check "
                f"`root`."
            )
        return place
    from lerobot.utils.constants import HF_LEROBOT_HOME  # noqa: PLC0415

    place = Path(HF_LEROBOT_HOME) / repo_id
    if not (place / "meta" / "info.json").is_file():
        raise OptionError(
            f"{repo_id!r} is not in {HF_LEROBOT_HOME}, and this version does not stream from the Hub yet. "
            "Download the dataset and pass its directory as `root`."
        )
    return place


def load_metadata(repo_id: str, root: Path, revision: str | None, depth_output_unit: str) -> Any:
    """Loads lerobot's own metadata object.

    Args:
        repo_id: Hub id or label of the dataset.
        root: Local directory that holds `meta/`.
        revision: Revision that the dataset is opened as.
        depth_output_unit: "m" or "mm"; depth statistics are rescaled to it.

    Returns:
        `lerobot.datasets.LeRobotDatasetMetadata`.

    Raises:
        BackwardCompatibilityError: The dataset has format v2.1; lerobot's message names its converter.
        MissingFileError: A metadata file is missing.
        DatasetLayoutError: `meta/info.json` declares no episode.
    """
    from lerobot.datasets.dataset_metadata import LeRobotDatasetMetadata  # noqa: PLC0415

    _check_metadata_files(root)
    meta = LeRobotDatasetMetadata(repo_id, root, revision)
    meta.rescale_depth_stats(depth_output_unit)
    return meta


def _check_metadata_files(root: Path) -> None:
    """Finds missing files before lerobot does, which would turn to the network for them."""
    path = root / "meta" / "info.json"
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


def delta_indices(
    delta_timestamps: Mapping[str, Sequence[float]] | None, meta: Any, tolerance_s: float
) -> dict[str, list[int]]:
    """Turns windows in seconds into frame offsets, checked with lerobot's own function.

    Args:
        delta_timestamps: Feature name to seconds around the anchor, or None.
        meta: The dataset's metadata.
        tolerance_s: Seconds that an offset may lie off the frame grid.

    Returns:
        Feature name to frame offsets.

    Raises:
        ValueError: An offset is off the frame grid (raised by lerobot).
        OptionError: A window that no item can have.
    """
    if not delta_timestamps:
        return {}
    from lerobot.datasets.feature_utils import check_delta_timestamps, get_delta_indices  # noqa: PLC0415

    check_deltas(delta_timestamps, meta.features)
    check_delta_timestamps(delta_timestamps, meta.fps, tolerance_s)
    return dict(get_delta_indices(delta_timestamps, meta.fps))


def item_spec(
    meta: Any, indices: Mapping[str, Sequence[int]], *, return_uint8: bool, depth_output_unit: str
) -> ItemSpec:
    """Collects what items hold from lerobot's metadata.

    Args:
        meta: The dataset's metadata.
        indices: Frame offsets per feature.
        return_uint8: Whether RGB video frames stay uint8.
        depth_output_unit: "m" or "mm".

    Returns:
        The specification.
    """
    depth_keys = set(meta.depth_keys)
    codecs = {}
    if depth_keys & set(meta.video_keys):
        from lerobot.configs import DepthEncoderConfig  # noqa: PLC0415

        for key in depth_keys & set(meta.video_keys):
            encoder = DepthEncoderConfig.from_video_info(meta.features[key].get("info"))
            codecs[key] = DepthCodec(
                encoder.depth_min, encoder.depth_max, encoder.shift, encoder.use_log, depth_output_unit
            )
    to_mm = {}
    for key in depth_keys & set(meta.image_keys):
        stored = (meta.features[key].get("info") or {}).get("depth_unit")
        if stored is not None and stored != depth_output_unit:
            to_mm[key] = stored == "m"
    return ItemSpec(
        delta_indices=indices,
        tasks=[] if meta.tasks is None else [str(task) for task in meta.tasks.index],
        return_uint8=return_uint8,
        rgb_keys=[key for key in meta.camera_keys if key not in depth_keys],
        depth_videos=codecs,
        image_keys=frozenset(meta.image_keys),
        depth_images_to_mm=to_mm,
    )


def open_dataset(
    meta: Any,
    *,
    repo_id: str,
    revision: str,
    data_root: str | None,
    episodes: Sequence[int] | None,
    items: ItemSpec,
    options: Options,
) -> OpenDataset:
    """Opens the payload of a dataset in a local directory.

    Args:
        meta: The dataset's metadata.
        repo_id: Hub id or label of the dataset.
        revision: Revision that it is opened as.
        data_root: Directory of the payload when not the metadata's.
        episodes: The user's selection, or None.
        items: What items hold.
        options: The checked options.

    Returns:
        The open dataset.

    Raises:
        OptionError: The selection is wrong.
        MissingFileError: A data or video file is missing.
        DatasetLayoutError: Metadata and files contradict each other.
        SidecarError: Video files cannot be indexed.
        ByteBudgetError: An episode is larger than the budget of the rank.
    """
    from lerobot.utils.constants import HF_LEROBOT_HOME  # noqa: PLC0415

    layout = load_layout(
        Path(meta.root),
        features={key: dict(feature) for key, feature in meta.features.items()},
        fps=meta.fps,
        total_episodes=meta.total_episodes,
        total_frames=meta.total_frames,
        data_template=meta.data_path,
        video_template=meta.video_path,
        episodes=check_episode_selection(episodes, meta.total_episodes),
    )
    reader = LocalReader(Path(data_root if data_root is not None else meta.root).absolute())
    RowReader(layout, reader, decode_language).check(range(layout.num_episodes))
    sidecar = None
    size_bytes: NDArray[np.int64] = np.zeros(layout.num_episodes, dtype=np.int64)
    if layout.cameras:
        stats = stat_files([path for table in layout.cameras.values() for path in table.files], reader)
        prints = {path: stat.fingerprint for path, stat in stats.items() if stat.fingerprint is not None}
        try:
            sidecar = resolve_sidecar(
                SidecarIdentity(repo_id, revision, reader.root, prints),
                {path: stat.size for path, stat in stats.items()},
                reader,
                lerobot_home=Path(HF_LEROBOT_HOME),
                lock_timeout_s=options.sidecar_lock_timeout_s,
                use_cache=len(prints) == len(stats),
            )
        except SidecarError as error:
            if all(stat.size >= 0 for stat in stats.values()):
                raise
            # The list names the missing files and whatever else is wrong with the others.
            raise MissingFileError(str(error)) from error
        catalog = VideoCatalog(layout, sidecar, options.tolerance_s)
        size_bytes = catalog.sizes(range(layout.num_episodes))
    _check_budget(layout, size_bytes, options)
    formats = {key: (layout.features[key].get("info") or {}).get("video.pix_fmt") for key in layout.cameras}
    return OpenDataset(layout, reader, sidecar, size_bytes, items, formats)


def _check_budget(layout: DatasetLayout, size_bytes: NDArray[np.int64], options: Options) -> None:
    position = int(np.argmax(size_bytes))
    if size_bytes[position] > options.byte_budget_bytes:
        raise ByteBudgetError(
            f"Episode {layout.episode_index[position]} holds {size_bytes[position] / GIB:.6f} GiB of video, "
            f"more than the whole byte budget of {options.byte_budget_gb:g} GiB. Raise byte_budget_gb "
            "(--dataset.streaming_byte_budget_gb), or leave the episode out with `episodes=[...]`."
        )
