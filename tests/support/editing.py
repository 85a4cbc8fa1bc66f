"""Changes to a finished dataset: to break it, to vary it, and to code its videos anew."""

from __future__ import annotations

import itertools
import json
import shutil
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, cast

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path


def load_info(root: Path) -> dict[str, Any]:
    """Read meta/info.json."""
    info: dict[str, Any] = json.loads((root / "meta/info.json").read_text())
    return info


def set_info(root: Path, **fields: Any) -> None:
    """Overwrite top-level fields of meta/info.json.

    Args:
        root: The dataset.
        **fields: New values; None removes the field.
    """
    info = {**load_info(root), **fields}
    info = {name: value for name, value in info.items() if value is not None}
    (root / "meta/info.json").write_text(json.dumps(info, indent=4))


def set_feature(root: Path, name: str, **fields: Any) -> None:
    """Add or change one feature's declaration in meta/info.json.

    Args:
        root: The dataset.
        name: The feature.
        **fields: What to set in the declaration (`dtype`, `shape`, `names`, `info`...).
    """
    features = load_info(root)["features"]
    features[name] = {**features.get(name, {"names": None}), **fields}
    set_info(root, features=features)


def episode_rows(root: Path) -> list[dict[str, Any]]:
    """Read all rows of meta/episodes, in file and row order."""
    rows: list[dict[str, Any]] = []
    for path in sorted((root / "meta/episodes").glob("*/*.parquet")):
        rows += pq.read_table(path).to_pylist()
    return rows


def edit_episodes(root: Path, edit: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
    """Rewrite meta/episodes as one file, with the counts of meta/info.json left as they are.

    Args:
        root: The dataset.
        edit: Gets the rows and gives the rows to write; may change them in place.
    """
    folder = root / "meta/episodes"
    rows = edit(episode_rows(root))
    shutil.rmtree(folder)
    path = folder / "chunk-000/file-000.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), path)


def data_files(root: Path) -> list[Path]:
    """List the Parquet files of the rows, in name order."""
    return sorted((root / "data").glob("*/*.parquet"))


def edit_data(
    root: Path, edit: Callable[[pa.Table], pa.Table], *, row_groups: Literal["episode", "one"] = "episode"
) -> None:
    """Rewrite every Parquet file of the rows.

    Args:
        root: The dataset.
        edit: Gets a file's table and gives the table to write. The schema's metadata is dropped, so that no
            stale `huggingface` schema contradicts the new columns.
        row_groups: "episode" for one row group per episode, as lerobot writes; "one" for a single one.
    """
    for path in data_files(root):
        table = edit(pq.read_table(path)).replace_schema_metadata(None)
        if row_groups == "one" or len(table) == 0:
            pq.write_table(table, path)
            continue
        episodes = table.column("episode_index").to_numpy()
        starts = [0, *(np.flatnonzero(np.diff(episodes)) + 1).tolist(), len(table)]
        with pq.ParquetWriter(path, table.schema) as writer:
            for start, stop in itertools.pairwise(starts):
                writer.write_table(table.slice(start, stop - start))


def set_column(table: pa.Table, name: str, values: pa.Array | list[Any]) -> pa.Table:
    """Replace or append one column of a table."""
    array = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values)
    position = table.schema.get_field_index(name)
    return table.append_column(name, array) if position < 0 else table.set_column(position, name, array)


def video_files(root: Path, camera: str) -> list[Path]:
    """List the MP4 files of one camera, in name order."""
    return sorted((root / "videos" / camera).glob("*/*.mp4"))


def reencode(
    path: Path,
    *,
    codec: str,
    pix_fmt: str,
    options: Mapping[str, str],
    container_options: Mapping[str, str] | None = None,
) -> None:
    """Encode an MP4 file anew as one continuous stream, on the same frame times.

    Decodes from the file's start, so every frame is kept, whatever the GOPs are. GOPs of the new stream know
    nothing of episode boundaries.

    Args:
        path: The file; it is replaced.
        codec: Name of libav's encoder.
        pix_fmt: Pixel format of the new stream.
        options: The encoder's options.
        container_options: The muxer's options.
    """
    target = path.with_suffix(".new.mp4")
    muxing = dict(container_options or {})
    with av.open(str(path)) as source, av.open(str(target), "w", options=muxing) as sink:
        video = source.streams.video[0]
        video.codec_context.thread_count = 1
        rate = video.guessed_rate or video.average_rate or Fraction(1)
        out = cast("av.VideoStream", sink.add_stream(codec, rate=rate, options=dict(options)))
        out.width, out.height, out.pix_fmt = video.width, video.height, pix_fmt
        out.codec_context.thread_count = 1
        out.codec_context.time_base = 1 / rate
        assert video.time_base is not None
        for frame in source.decode(video):
            assert frame.pts is not None
            position = frame.pts * video.time_base * rate
            picture = frame.reformat(format=pix_fmt)
            picture.time_base = 1 / rate
            picture.pts = round(position)
            picture.pict_type = av.video.frame.PictureType.NONE
            sink.mux(out.encode(picture))
        sink.mux(out.encode(None))
    target.replace(path)


def lossless_twin(root: Path, target: Path) -> Path:
    """Copy a dataset with every video coded losslessly, as pictures that each stand alone (RGB or gray12le).

    Map-style's own seek misses frames of some GOP structures, among them those of lerobot's depth recordings.
    It reads the twin without trouble, and the twin's pixels are those of a decode from the start of the
    original file, bit for bit: so map-style on the twin is the reference for such a file.

    Args:
        root: The dataset to copy.
        target: Directory to create.

    Returns:
        `target`.
    """
    shutil.copytree(root, target)
    for name, feature in load_info(target)["features"].items():
        if feature["dtype"] != "video":
            continue
        info = feature.get("info") or {}
        codec, pix_fmt, options = "libx264rgb", "rgb24", {"qp": "0", "g": "1", "bf": "0"}
        if info.get("is_depth_map") or info.get("video.is_depth_map"):
            # As lerobot's own depth encoder, but each picture a key frame.
            codec, pix_fmt = "hevc", "gray12le"
            options = {"x265-params": "lossless=1:keyint=1:bframes=0:log-level=none"}
        for path in video_files(target, name):
            reencode(path, codec=codec, pix_fmt=pix_fmt, options=options)
    return target


def regroup_files(root: Path, camera: str, groups: Sequence[int]) -> None:
    """Join the MP4 files of a camera of a dataset that has one file per episode.

    Args:
        root: The dataset, written with `file_per_episode=True`.
        camera: Which camera.
        groups: Number of episodes of each new file; the sum is the number of episodes.
    """
    from lerobot.datasets.video_utils import concatenate_video_files, get_video_duration_in_s

    files = video_files(root, camera)
    assert len(files) == sum(groups)
    places: list[tuple[int, float, float]] = []
    folder = root / "videos" / camera
    staging = folder.with_name(folder.name + ".new")
    for number, count in enumerate(groups):
        parts = files[sum(groups[:number]) :][:count]
        bounds = [0.0, *itertools.accumulate(get_video_duration_in_s(part) for part in parts)]
        places += [(number, start, stop) for start, stop in itertools.pairwise(bounds)]
        joined = staging / "chunk-000" / f"file-{number:03d}.mp4"
        joined.parent.mkdir(parents=True, exist_ok=True)
        concatenate_video_files(parts, joined)
    shutil.rmtree(folder)
    staging.rename(folder)

    def relocate(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for row, (number, start, stop) in zip(rows, places, strict=True):
            row |= {
                f"videos/{camera}/chunk_index": 0,
                f"videos/{camera}/file_index": number,
                f"videos/{camera}/from_timestamp": start,
                f"videos/{camera}/to_timestamp": stop,
            }
        return rows

    edit_episodes(root, relocate)


def without_column(root: Path, target: Path, column: str) -> Path:
    """Copy a dataset without one column, in Parquet and in meta/info.json.

    Args:
        root: The dataset to copy.
        target: Directory to create.
        column: The column.

    Returns:
        `target`.
    """
    shutil.copytree(root, target)
    edit_data(target, lambda table: table.drop_columns([column]))
    features = load_info(target)["features"]
    features.pop(column, None)
    set_info(target, features=features)
    return target
