"""Opens a dataset: metadata, layout, index, exact sizes. What can be found wrong early is found here."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lerobot_streaming.episodes.catalog import VideoCatalog
from lerobot_streaming.episodes.feature_selection import video_features
from lerobot_streaming.episodes.layout import check_episode_selection, load_layout
from lerobot_streaming.episodes.metadata_files import dataset_video_files
from lerobot_streaming.episodes.rows import RowReader
from lerobot_streaming.episodes.videos import episode_size_bounds
from lerobot_streaming.errors import (
    ByteBudgetError,
    FetchError,
    MissingFileError,
    OptionError,
    SidecarError,
    StreamingError,
)
from lerobot_streaming.index.identity import SidecarIdentity
from lerobot_streaming.index.resolve import LAZY_ABOVE, IndexRequest, complete_later, resolve_index
from lerobot_streaming.lerobot_values import decode_language
from lerobot_streaming.options import GIB
from lerobot_streaming.plan import EpisodeSizes
from lerobot_streaming.threads import daemon_pool, result_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from lerobot_streaming.episodes.layout import DatasetLayout
    from lerobot_streaming.index.completion import Completion
    from lerobot_streaming.index.sample_index import SampleIndex
    from lerobot_streaming.items import ItemSpec
    from lerobot_streaming.options import Options
    from lerobot_streaming.places import DatasetPlace
    from lerobot_streaming.storage.base import RangeReader


@dataclass(frozen=True, slots=True)
class OpenDataset:
    """Everything a worker needs of a dataset. Picklable; tables of the index stay in its file.

    Attributes:
        layout: The selected episodes.
        reader: Where payload bytes come from.
        rows: Reader of rows that has read the footers of the Parquet files, where they are few.
        index: Sample tables of the video files; None for a dataset without videos.
        catalog: Spans and sizes of their mini-MP4s, by way of the index; None for a dataset without videos.
        size_bounds: Bytes per position that its mini-MP4s do not exceed, int64 (n,).
        items: What items hold.
        pixel_formats: Camera to its pixel format as `meta/info.json` tells it, or None.
        cameras: Video features that were selected; None: all of the dataset.
    """

    layout: DatasetLayout
    reader: RangeReader
    rows: RowReader
    index: SampleIndex | None
    catalog: VideoCatalog | None
    size_bounds: NDArray[np.int64]
    items: ItemSpec
    pixel_formats: Mapping[str, str | None]
    cameras: tuple[str, ...] | None = None

    @property
    def sizes(self) -> EpisodeSizes:
        """Sizes of the episodes' mini-MP4s, for the plan."""
        return _sizes(self.catalog, self.size_bounds)


def _sizes(catalog: VideoCatalog | None, bounds: NDArray[np.int64]) -> EpisodeSizes:
    if catalog is None:
        return EpisodeSizes(_nothing)
    return EpisodeSizes(catalog.size, bound=partial(_bound, bounds), load=catalog.load)


def _bound(bounds: NDArray[np.int64], position: int) -> int:
    return int(bounds[position])


def _nothing(_position: int) -> int:
    return 0


def open_dataset(
    place: DatasetPlace,
    *,
    repo_id: str,
    episodes: Sequence[int] | None,
    features: Mapping[str, Mapping[str, Any]],
    items: ItemSpec,
    options: Options,
) -> tuple[OpenDataset, Completion | None]:
    """Opens the payload of a dataset.

    Args:
        place: Where the dataset was found.
        repo_id: Hub id or label of the dataset.
        episodes: The user's selection, or None.
        features: The selected features.
        items: What items hold.
        options: The checked options.

    Returns:
        The open dataset, and the thread that completes its index, if there is one.

    Raises:
        OptionError: The selection is wrong.
        MissingFileError: A data or video file is missing.
        DatasetLayoutError: Metadata and files contradict each other.
        SidecarError: Video files cannot be indexed.
        ByteBudgetError: An episode is larger than the budget of the rank.
    """
    reader = place.reader
    layout = _layout(place.meta, features, episodes)
    index, catalog, completion = None, None, None
    size_bounds: NDArray[np.int64] = np.zeros(layout.num_episodes, dtype=np.int64)
    # A store far away is asked for the rows' footers while the index is found.
    with daemon_pool(1, "rows") as pool:
        checked = pool.submit(partial(_check_rows, layout, reader))
        try:
            found = _find_index(layout, place, repo_id, options) if layout.cameras else None
        finally:
            rows = result_of(checked)  # What is wrong with the rows is said first.
    if found is not None:
        index, request = found
        completion = complete_later(index, request)
        size_bounds = episode_size_bounds(layout, index.files)
        catalog = VideoCatalog(layout, index, options.tolerance_s)
        catalog.check()
        _check_budget(layout, catalog, size_bounds, options)
    formats = {key: (layout.features[key].get("info") or {}).get("video.pix_fmt") for key in layout.cameras}
    cameras = video_features(features)
    some = None if cameras == video_features(place.meta.features) else cameras
    opened = OpenDataset(layout, reader, rows, index, catalog, size_bounds, items, formats, some)
    return opened, completion


def _find_index(
    layout: DatasetLayout, place: DatasetPlace, repo_id: str, options: Options
) -> tuple[SampleIndex, IndexRequest]:
    request = _index_request(layout, place, repo_id, options)
    try:
        return resolve_index(request), request
    except SidecarError as error:
        if all(size >= 0 for size in request.wanted.values()):
            raise
        # The list names the missing files and whatever else is wrong with the others.
        raise MissingFileError(str(error)) from error


def sizes_with_cameras(
    place: DatasetPlace,
    repo_id: str,
    episodes: Sequence[int] | None,
    options: Options,
    cameras: tuple[str, ...] | None,
) -> EpisodeSizes:
    """Finds the sizes that episodes have with other cameras than those that are streamed.

    Args:
        place: Where the dataset was found.
        repo_id: Hub id or label of the dataset.
        episodes: The user's selection, or None.
        options: The checked options.
        cameras: Video features; None: all of the dataset.

    Returns:
        The sizes, by positions in the selection. They are asked for only where bounds do not suffice.

    Raises:
        OptionError: The dataset has no such cameras, or their files are missing or cannot be indexed.
    """
    known = video_features(place.meta.features)
    wanted = known if cameras is None else cameras
    try:
        if not set(wanted) <= set(known):
            raise OptionError(f"the dataset has the cameras {list(known)}")
        layout = _layout(place.meta, {key: place.meta.features[key] for key in wanted}, episodes)
        if not layout.cameras:
            return EpisodeSizes(_nothing)
        index = resolve_index(_index_request(layout, place, repo_id, options))
        catalog = VideoCatalog(layout, index, options.tolerance_s)
        return _sizes(catalog, episode_size_bounds(layout, index.files))
    except StreamingError as error:
        raise OptionError(
            f"The state was taken with other cameras ({list(wanted)}), the sizes of whose videos shaped its "
            "order, and they cannot be told. Open the dataset with the `features` of the state, restore the "
            f"videos, or begin anew. The reason: {error}"
        ) from error


def _layout(
    meta: Any, features: Mapping[str, Mapping[str, Any]], episodes: Sequence[int] | None
) -> DatasetLayout:
    return load_layout(
        Path(meta.root),
        features={key: dict(feature) for key, feature in features.items()},
        fps=meta.fps,
        total_episodes=meta.total_episodes,
        total_frames=meta.total_frames,
        data_template=meta.data_path,
        video_template=meta.video_path,
        episodes=check_episode_selection(episodes, meta.total_episodes),
    )


def _check_rows(layout: DatasetLayout, reader: RangeReader) -> RowReader:
    """Finds missing Parquet files, and files that do not belong to the metadata while they are few."""
    stats = reader.stat_many(layout.data_files)
    missing = [path for path, stat in stats.items() if stat.size < 0]
    if missing:
        raise MissingFileError(
            f"{len(missing)} of {len(layout.data_files)} data files do not exist below {reader.root}, such "
            f"as '{missing[0]}'. Restore them from the source of the dataset, or leave their episodes out."
        )
    reader.check_ranges(layout.data_files[0])
    rows = RowReader(layout, reader, decode_language)
    if len(layout.data_files) <= LAZY_ABOVE:
        rows.check(range(layout.num_episodes))
    return rows


def _index_request(
    layout: DatasetLayout, place: DatasetPlace, repo_id: str, options: Options
) -> IndexRequest:
    """Collects what the index must hold: all video files that exist, of selected episodes or not."""
    from lerobot.utils.constants import HF_LEROBOT_HOME  # noqa: PLC0415

    reader, features = place.reader, place.meta.features
    paths = dataset_video_files(Path(place.meta.root), features, place.meta.video_path)
    needed = {path for table in layout.cameras.values() for path in table.files}
    try:
        # Of all cameras: the complete index is one and the same, whatever is selected.
        stats = reader.stat_many(paths)
    except FetchError:
        if needed.issuperset(paths) or "://" in reader.root:
            raise
        stats = reader.stat_many(sorted(needed))  # It may be a file that nobody wants.
    there = {path: stat for path, stat in stats.items() if stat.size >= 0}
    prints = {path: stat.fingerprint for path, stat in there.items() if stat.fingerprint is not None}
    return IndexRequest(
        identity=SidecarIdentity(repo_id, place.revision, reader.root, prints),
        files={path: stat.size for path, stat in there.items()},
        reader=reader,
        lerobot_home=Path(HF_LEROBOT_HOME),
        lock_timeout_s=options.sidecar_lock_timeout_s,
        needed={path: stats[path].size for path in sorted(needed)},
        # The commit pins a Hub dataset; of other files something must tell whether they have changed.
        use_cache=place.is_pinned or len(prints) == len(there),
        published=place.published,
        lazy_above=LAZY_ABOVE,
        all_at_once=len(layout.cameras) == len(video_features(features)),
    )


def _check_budget(
    layout: DatasetLayout, catalog: VideoCatalog, size_bounds: NDArray[np.int64], options: Options
) -> None:
    """Refuses an episode that is larger than the whole budget; those that cannot be are not looked at."""
    doubtful = np.flatnonzero(size_bounds > options.byte_budget_bytes)
    if not len(doubtful):
        return
    sizes = catalog.sizes(doubtful.tolist())
    largest = int(np.argmax(sizes))
    if sizes[largest] > options.byte_budget_bytes:
        raise ByteBudgetError(
            f"Episode {layout.episode_index[doubtful[largest]]} holds {sizes[largest] / GIB:.6f} GiB of "
            f"video, more than the whole byte budget of {options.byte_budget_gb:g} GiB. Raise byte_budget_gb "
            "(--dataset.streaming_byte_budget_gb), or leave the episode out with `episodes=[...]`."
        )
