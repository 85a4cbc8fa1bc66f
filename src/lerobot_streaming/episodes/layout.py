"""Where every selected episode lies: its rows, its Parquet file and its place in each camera's video files.

The facts come from `meta/info.json` and `meta/episodes/` of the LeRobotDataset v3 format. Only the needed
columns are read (the statistics of each episode, most of the table, are not), and only compact arrays are
kept, so that a worker's copy stays small.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lerobot_streaming.episodes.metadata_files import distinct_paths, read_episode_table
from lerobot_streaming.errors import DatasetLayoutError, OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class CameraTable:
    """One camera's place in its video files, per selected episode.

    Attributes:
        files: Distinct video file paths, POSIX, relative to the dataset root.
        file_of: Number in `files` per episode position, int64 (n,).
        from_seconds: Time in that file at which the episode begins, float64 (n,).
        to_seconds: Time in that file at which the episode ends, float64 (n,).
    """

    files: tuple[str, ...]
    file_of: NDArray[np.int64]
    from_seconds: NDArray[np.float64]
    to_seconds: NDArray[np.float64]

    def path(self, position: int) -> str:
        """The video file of the episode at a position."""
        return self.files[int(self.file_of[position])]


@dataclass(frozen=True, slots=True)
class DatasetLayout:
    """The selected episodes of a dataset; a *position* is a place in the selection.

    Attributes:
        fps: Frames per second of the dataset.
        features: Feature name to its description in `meta/info.json` (`dtype`, `shape`, `info`, ...).
        episode_index: The dataset's episode number per position, int64 (n,).
        lengths: Frames per episode, int64 (n,).
        first_index: Global index of the episode's first frame, int64 (n,).
        data_files: Distinct Parquet paths, POSIX, relative to the dataset root.
        data_file_of: Number in `data_files` per position, int64 (n,).
        cameras: One table per video feature, in the order of `features`.
    """

    fps: float
    features: Mapping[str, Mapping[str, Any]]
    episode_index: NDArray[np.int64]
    lengths: NDArray[np.int64]
    first_index: NDArray[np.int64]
    data_files: tuple[str, ...]
    data_file_of: NDArray[np.int64]
    cameras: Mapping[str, CameraTable]

    @property
    def num_episodes(self) -> int:
        """Number of selected episodes."""
        return len(self.lengths)

    @property
    def num_frames(self) -> int:
        """Number of frames of the selected episodes."""
        return int(self.lengths.sum())

    def frame_size(self, camera: str) -> tuple[int, int]:
        """Height and width in pixels of a camera's frames, from its feature in `meta/info.json`."""
        feature = self.features[camera]
        shape, names = list(feature["shape"]), feature.get("names") or []
        if "height" in names and "width" in names:
            return int(shape[names.index("height")]), int(shape[names.index("width")])
        return int(shape[0]), int(shape[1])

    def data_path(self, position: int) -> str:
        """The Parquet file of the episode at a position."""
        return self.data_files[int(self.data_file_of[position])]


def _check_ranges(
    lengths: NDArray[np.int64], start: NDArray[np.int64], stop: NDArray[np.int64], total_frames: int
) -> None:
    """Refuses empty, overlapping or gapped episodes, naming the first bad one."""
    for bad, problem in (
        (lengths <= 0, "has length {length}, but an episode must have at least one frame"),
        (stop <= start, "has dataset_to_index {stop} <= dataset_from_index {start}"),
        (stop - start != lengths, "has length {length}, but spans the frame indices {start} to {stop}"),
    ):
        if bad.any():
            episode = int(np.argmax(bad))
            detail = problem.format(length=lengths[episode], start=start[episode], stop=stop[episode])
            raise DatasetLayoutError(f"Episode {episode} {detail} (exclusive end). Repair meta/episodes.")
    expected = np.concatenate(([0], stop[:-1]))
    if (start != expected).any():
        episode = int(np.argmax(start != expected))
        kind = "overlaps the episode before it" if start[episode] < expected[episode] else "leaves a gap"
        raise DatasetLayoutError(
            f"Episode {episode} {kind}: it begins at frame index {start[episode]}, but {expected[episode]} "
            "is the first index after the episode before it. Repair meta/episodes."
        )
    if int(stop[-1]) != total_frames:
        raise DatasetLayoutError(
            f"meta/info.json says total_frames={total_frames}, but the last episode ends at frame index "
            f"{stop[-1]}. Repair meta/info.json or meta/episodes."
        )


def check_episode_selection(episodes: Sequence[int] | None, total_episodes: int) -> list[int] | None:
    """Checks a selection of episodes.

    Args:
        episodes: Episode numbers in the wanted order, or None for all.
        total_episodes: Episodes that the dataset has.

    Returns:
        The selection as plain integers, or None.

    Raises:
        OptionError: The selection is empty, repeats an episode, or names one that does not exist.
    """
    if episodes is None:
        return None
    try:
        chosen = [int(episode) for episode in episodes]
        exact = all(number == episode for number, episode in zip(chosen, episodes, strict=True))
    except (TypeError, ValueError):
        exact = False
        chosen = []
    if not exact:
        raise OptionError(f"episodes must be a list of episode numbers, got {episodes!r}.")
    if not chosen:
        raise OptionError("episodes is an empty list: name at least one episode, or pass None for all.")
    negative = sorted({episode for episode in chosen if episode < 0})
    if negative:
        raise OptionError(f"episodes must not be negative, got {negative}.")
    duplicates = sorted(episode for episode, count in Counter(chosen).items() if count > 1)
    if duplicates:
        raise OptionError(f"episodes contains duplicates: {duplicates}. Name each episode once.")
    beyond = sorted(episode for episode in chosen if episode >= total_episodes)
    if beyond:
        raise OptionError(
            f"episodes names {beyond}, but the dataset has {total_episodes} episodes: 0 to "
            f"{total_episodes - 1}."
        )
    return chosen


def load_layout(
    root: Path,
    *,
    features: Mapping[str, Mapping[str, Any]],
    fps: float,
    total_episodes: int,
    total_frames: int,
    data_template: str,
    video_template: str | None,
    episodes: Sequence[int] | None,
) -> DatasetLayout:
    """Reads the layout of the selected episodes from a local copy of the metadata.

    Args:
        root: Directory that holds `meta/`.
        features: The features of `meta/info.json`.
        fps: Frames per second of the dataset.
        total_episodes: Episodes of the dataset, from `meta/info.json`.
        total_frames: Frames of the dataset, from `meta/info.json`.
        data_template: `data_path` of `meta/info.json`.
        video_template: `video_path` of `meta/info.json`, or None for a dataset without videos.
        episodes: Checked selection in the wanted order, or None for all.

    Returns:
        The layout, in the order of the selection.

    Raises:
        MissingFileError: There is no episode metadata.
        DatasetLayoutError: The metadata contradicts itself; the message names the episode.
    """
    video_keys = [key for key, feature in features.items() if feature["dtype"] == "video"]
    if video_keys and video_template is None:
        raise DatasetLayoutError(
            f"meta/info.json declares the video features {video_keys}, but no video_path. Repair "
            f"meta/info.json."
        )
    columns = ["episode_index", "length", "dataset_from_index", "dataset_to_index"]
    columns += ["data/chunk_index", "data/file_index"]
    for key in video_keys:
        columns += [f"videos/{key}/{name}" for name in ("chunk_index", "file_index")]
        columns += [f"videos/{key}/{name}" for name in ("from_timestamp", "to_timestamp")]
    table = read_episode_table(root, columns)

    def column(name: str, dtype: type[Any]) -> NDArray[Any]:
        values = table.column(name)
        if values.null_count:
            raise DatasetLayoutError(f"meta/episodes has {values.null_count} empty value(s) in {name!r}.")
        numbers: NDArray[Any] = values.to_numpy().astype(dtype)
        return numbers

    numbers = column("episode_index", np.int64)
    if len(numbers) != total_episodes or total_episodes == 0:
        raise DatasetLayoutError(
            f"meta/info.json says total_episodes={total_episodes}, but meta/episodes has {len(numbers)} "
            "rows. A dataset needs at least one episode, and one row for each."
        )
    if (numbers != np.arange(total_episodes)).any():
        row = int(np.argmax(numbers != np.arange(total_episodes)))
        raise DatasetLayoutError(
            f"Row {row} of meta/episodes carries episode_index {numbers[row]}; rows must be numbered 0, 1, "
            "2, ..."
        )
    lengths = column("length", np.int64)
    start = column("dataset_from_index", np.int64)
    _check_ranges(lengths, start, column("dataset_to_index", np.int64), total_frames)

    chosen = np.arange(total_episodes) if episodes is None else np.asarray(episodes, dtype=np.int64)
    data_files, data_file_of = distinct_paths(
        data_template,
        None,
        column("data/chunk_index", np.int64)[chosen],
        column("data/file_index", np.int64)[chosen],
    )
    cameras = {}
    for key in video_keys:
        files, file_of = distinct_paths(
            str(video_template),
            key,
            column(f"videos/{key}/chunk_index", np.int64)[chosen],
            column(f"videos/{key}/file_index", np.int64)[chosen],
        )
        begins = column(f"videos/{key}/from_timestamp", np.float64)
        wrong = ~(np.isfinite(begins) & (begins >= 0))
        if wrong.any():
            episode = int(np.argmax(wrong))
            raise DatasetLayoutError(
                f"Episode {episode} has from_timestamp {begins[episode]} for camera {key!r}; it must be a "
                "time in seconds, >= 0. Repair meta/episodes."
            )
        cameras[key] = CameraTable(
            files,
            file_of,
            begins[chosen],
            column(f"videos/{key}/to_timestamp", np.float64)[chosen],
        )
    return DatasetLayout(
        fps=float(fps),
        features=features,
        episode_index=numbers[chosen],
        lengths=lengths[chosen],
        first_index=start[chosen],
        data_files=data_files,
        data_file_of=data_file_of,
        cameras=cameras,
    )
