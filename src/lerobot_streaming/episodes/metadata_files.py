"""Which files a dataset's metadata names: those of the episode metadata itself, its data and its videos."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lerobot_streaming.errors import DatasetLayoutError, MissingFileError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray


def episode_files(root: Path) -> list[Path]:
    """Finds the files of the episode metadata.

    Args:
        root: Directory that holds `meta/`.

    Returns:
        The Parquet files below `meta/episodes`, in file order.

    Raises:
        MissingFileError: There are none.
    """
    paths = sorted((root / "meta" / "episodes").glob("*/*.parquet"))
    if not paths:
        raise MissingFileError(
            f"No Parquet file below {root / 'meta' / 'episodes'}: the dataset has no episode metadata. "
            "Restore it from the source of the dataset."
        )
    return paths


def read_episode_table(root: Path, columns: Sequence[str]) -> pa.Table:
    """Reads the needed columns of the episode metadata.

    Args:
        root: Directory that holds `meta/`.
        columns: Their names.

    Returns:
        One row per episode, in file order.

    Raises:
        MissingFileError: There is no episode metadata.
        DatasetLayoutError: A file lacks a column.
    """
    tables = []
    for path in episode_files(root):
        schema = pq.read_schema(path)
        missing = [name for name in columns if name not in schema.names]
        if missing:
            raise DatasetLayoutError(
                f"{path} lacks the column(s) {missing} that LeRobotDataset v3 episode metadata must have. "
                "Re-create the metadata with lerobot's own tools."
            )
        tables.append(pq.read_table(path, columns=list(columns)))
    return pa.concat_tables(tables, promote_options="permissive")


def distinct_paths(
    template: str, key: str | None, chunks: NDArray[np.int64], files: NDArray[np.int64]
) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Formats each distinct (chunk, file) pair once.

    Args:
        template: `data_path` or `video_path` of `meta/info.json`.
        key: Feature name of the camera; None for data files.
        chunks: Chunk number of each episode, int64 (n,).
        files: File number of each episode, int64 (n,).

    Returns:
        The distinct paths, and each episode's place among them, int64 (n,).
    """
    pairs, inverse = np.unique(np.stack([chunks, files], axis=1), axis=0, return_inverse=True)
    extra = {} if key is None else {"video_key": key}
    paths = tuple(template.format(chunk_index=int(c), file_index=int(f), **extra) for c, f in pairs)
    return paths, inverse.reshape(-1).astype(np.int64)


def dataset_video_files(
    root: Path, features: Mapping[str, Mapping[str, Any]], video_template: str | None
) -> tuple[str, ...]:
    """Lists the video files of all episodes of a dataset.

    Args:
        root: Directory that holds `meta/`.
        features: The features of `meta/info.json`.
        video_template: `video_path` of `meta/info.json`, or None for a dataset without videos.

    Returns:
        Distinct POSIX paths relative to the dataset root, sorted; files that no episode refers to are not
        among them.

    Raises:
        MissingFileError: There is no episode metadata.
        DatasetLayoutError: The episode metadata lacks a column.
    """
    keys = [key for key, feature in features.items() if feature["dtype"] == "video"]
    names = {key: [f"videos/{key}/{name}" for name in ("chunk_index", "file_index")] for key in keys}
    if not keys or video_template is None:
        return ()
    table = read_episode_table(root, [name for pair in names.values() for name in pair])
    paths: set[str] = set()
    for key, pair in names.items():
        chunks, files = (table.column(name).drop_null().to_numpy().astype(np.int64) for name in pair)
        paths.update(distinct_paths(video_template, key, chunks, files)[0])
    return tuple(sorted(paths))


def dataset_data_files(root: Path, template: str) -> tuple[str, ...]:
    """Lists the data files of all episodes of a dataset.

    Args:
        root: Directory that holds `meta/`.
        template: `data_path` of `meta/info.json`.

    Returns:
        Distinct POSIX paths relative to the dataset root.

    Raises:
        MissingFileError: There is no episode metadata.
        DatasetLayoutError: The episode metadata lacks a column.
    """
    names = ["data/chunk_index", "data/file_index"]
    table = read_episode_table(root, names)
    chunks, files = (table.column(name).to_numpy().astype(np.int64) for name in names)
    return distinct_paths(template, None, chunks, files)[0]
