"""A dataset of many video files, joined from a few encoded episodes without coding a frame again."""

from __future__ import annotations

import copy
import shutil
from typing import TYPE_CHECKING, Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.benchmarks.shapes import SHAPES, _moving_picture, _vector
from tests.support.datasets import (
    Camera,
    Feature,
    data_files,
    episode_rows,
    load_info,
    set_info,
    video_files,
    write_dataset,
)

if TYPE_CHECKING:
    from pathlib import Path

_VERSION = 1

FRAMES = 250
"""Frames of an episode."""

_SOURCES = 6
_EPISODES_PER_DATA_FILE = 150


def make_many_files(folder: Path, *, files_per_camera: int, episodes_per_file: int) -> Path:
    """Make the dataset, unless the folder already holds it: three cameras of 320x180 pixels, h264, g=10.

    Args:
        folder: Where the made datasets are kept.
        files_per_camera: Video files of each camera.
        episodes_per_file: Episodes in each of them.

    Returns:
        The dataset's directory.
    """
    root = folder / f"many-files-v{_VERSION}-{files_per_camera}x{episodes_per_file}"
    if root.exists():
        return root
    shape = SHAPES["B"]
    cameras = [
        Camera(key=f"observation.images.cam{number}", height=shape.height, width=shape.width)
        for number in range(shape.cameras)
    ]
    vector = Feature(dtype="float32", shape=(7,), value=_vector)
    noise = np.rint(np.random.default_rng(0).normal(0, shape.noise, (shape.height, shape.width)))
    source, making = folder / "many-files-source", folder / f"{root.name}.making"
    for place in (source, making):
        shutil.rmtree(place, ignore_errors=True)
    write_dataset(
        source,
        lengths=[FRAMES] * _SOURCES,
        fps=shape.fps,
        cameras=cameras,
        features={"observation.state": vector, "action": vector},
        rgb_encoder=shape.encoder,
        file_per_episode=True,
        encode_while_recording=True,
        picture=lambda episode, frame, number, camera: _moving_picture(
            episode, frame, number, camera, noise.astype(np.int16)
        ),
    )
    for number, camera in enumerate(cameras):
        encoded = video_files(source, camera.key)
        for file in range(files_per_camera):
            first = file * episodes_per_file
            # No two files are equal: each begins at another place of the round.
            parts = [encoded[(first + k + number + file) % _SOURCES] for k in range(episodes_per_file)]
            place = making / f"videos/{camera.key}/chunk-000/file-{file:03d}.mp4"
            place.parent.mkdir(parents=True, exist_ok=True)
            _join(parts, place, shape.fps)
    _write_rows(source, making, files_per_camera * episodes_per_file, episodes_per_file, shape.fps)
    making.rename(root)
    shutil.rmtree(source)
    return root


def _join(parts: list[Path], place: Path, fps: int) -> None:
    """Put episodes of `FRAMES` frames one behind the other, packet by packet."""
    with av.open(str(place), "w") as joined:
        stream = None
        for number, part in enumerate(parts):
            with av.open(str(part)) as container:
                template = container.streams.video[0]
                if stream is None:
                    stream = joined.add_stream_from_template(template)
                assert template.time_base is not None
                shift = round(number * FRAMES / fps / template.time_base)
                for packet in container.demux(template):
                    if packet.dts is None or packet.pts is None:
                        continue
                    packet.pts, packet.dts = packet.pts + shift, packet.dts + shift
                    packet.stream = stream
                    joined.mux(packet)


def _write_rows(source: Path, making: Path, episodes: int, per_file: int, fps: int) -> None:
    """Write the Parquet files and the metadata of the joined videos."""
    shutil.copytree(source / "meta", making / "meta")
    info = load_info(source)
    set_info(making, total_episodes=episodes, total_frames=episodes * FRAMES)
    rows = [pq.read_table(path) for path in data_files(source)]
    table = pa.concat_tables(rows)
    for file, first in enumerate(range(0, episodes, _EPISODES_PER_DATA_FILE)):
        place = making / info["data_path"].format(chunk_index=0, file_index=file)
        place.parent.mkdir(parents=True, exist_ok=True)
        with pq.ParquetWriter(place, table.schema) as writer:
            for episode in range(first, min(first + _EPISODES_PER_DATA_FILE, episodes)):
                writer.write_table(_renumbered(table, episode))
    known = episode_rows(source)
    entries: list[dict[str, Any]] = []
    for episode in range(episodes):
        entry = copy.deepcopy(known[episode % _SOURCES])
        entry |= {
            "episode_index": episode,
            "dataset_from_index": episode * FRAMES,
            "dataset_to_index": (episode + 1) * FRAMES,
            "data/chunk_index": 0,
            "data/file_index": episode // _EPISODES_PER_DATA_FILE,
        }
        for name in [name for name in entry if name.startswith("videos/")]:
            key, _, field = name.rpartition("/")
            begin = episode % per_file * FRAMES / fps
            entry[f"{key}/{field}"] = {
                "chunk_index": 0,
                "file_index": episode // per_file,
                "from_timestamp": begin,
                "to_timestamp": begin + FRAMES / fps,
            }[field]
        entries.append(entry)
    place = making / "meta/episodes"
    shutil.rmtree(place)
    (place / "chunk-000").mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(entries), place / "chunk-000/file-000.parquet")


def _renumbered(table: pa.Table, episode: int) -> pa.Table:
    part = table.slice(episode % _SOURCES * FRAMES, FRAMES)
    for name, values in (
        ("index", np.arange(episode * FRAMES, (episode + 1) * FRAMES)),
        ("episode_index", np.full(FRAMES, episode)),
    ):
        part = part.set_column(part.schema.get_field_index(name), name, pa.array(values))
    return part.cast(table.schema)
