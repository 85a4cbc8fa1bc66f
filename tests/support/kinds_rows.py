"""Kinds of datasets that differ in their rows, features, tasks and stray files."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.editing import (
    data_files,
    edit_data,
    set_column,
    set_feature,
    video_files,
)
from tests.support.recording import CAMERA_A, CAMERA_B, Camera, Feature, base_features, write_dataset

if TYPE_CHECKING:
    from pathlib import Path


def make_images(root: Path) -> Path:
    """RGB as PNG bytes in Parquet, no video at all."""
    cameras = (Camera(key=CAMERA_A, storage="image"), Camera(key=CAMERA_B, storage="image", height=32))
    return write_dataset(root, lengths=(5, 4), cameras=cameras)


def odd_features() -> dict[str, Feature]:
    """Give features of unusual dtypes and shapes, for the writer."""
    return {
        **base_features(),
        "odd.bool": Feature(dtype="bool", shape=(1,), value=lambda e, f: np.array([(e + f) % 2 == 0])),
        "odd.bools": Feature(dtype="bool", shape=(2,), value=lambda e, f: np.array([e % 2 == 0, f % 3 == 0])),
        "odd.int64": Feature(
            dtype="int64", shape=(1,), value=lambda e, f: np.array([2**60 + 100 * e + f], dtype=np.int64)
        ),
        "odd.int32": Feature(
            dtype="int32", shape=(3,), value=lambda e, f: np.array([e, -f, 2**31 - 1], dtype=np.int32)
        ),
        "odd.uint8": Feature(
            dtype="uint8", shape=(2,), value=lambda e, f: np.array([255 - f, e], dtype=np.uint8)
        ),
        "odd.float64": Feature(
            dtype="float64", shape=(3,), value=lambda e, f: np.array([np.pi * e, f / 3, 1e30])
        ),
        "odd.float16": Feature(
            dtype="float16", shape=(1,), value=lambda e, f: np.array([e + f / 3], dtype=np.float16)
        ),
        "odd.matrix": Feature(
            dtype="float32",
            shape=(2, 3),
            value=lambda e, f: (np.arange(6, dtype=np.float32) + 10 * f + e).reshape(2, 3),
        ),
        "odd.cube": Feature(
            dtype="int64", shape=(2, 1, 2), value=lambda e, f: np.arange(4).reshape(2, 1, 2) + 10 * f + e
        ),
        "odd.string": Feature(dtype="string", shape=(1,), value=lambda e, f: f"episode {e}, frame {f}, ü"),
    }


def make_odd_features(root: Path) -> Path:
    """Features of shape (0,), (1,), (2, 3) and (2, 1, 2), bool, integers, float16/64 with NaN, strings.

    The empty vector's column is one of nulls: of all ways to store it, map-style opens only that one.
    """
    write_dataset(root, lengths=(4, 3), cameras=(Camera(key=CAMERA_A),), features=odd_features())
    # lerobot's own writer cannot compute the statistics of an empty vector, nor those of NaN.
    set_feature(root, "odd.empty", dtype="float32", shape=[0])

    def empty_and_nan(table: pa.Table) -> pa.Table:
        rows = table.column("odd.float64").to_pylist()
        rows[0][0], rows[1][1], rows[2][2] = float("nan"), float("-inf"), 1e300
        floats = pa.array(rows, table.schema.field("odd.float64").type)
        return set_column(set_column(table, "odd.float64", floats), "odd.empty", pa.nulls(len(table)))

    edit_data(root, empty_and_nan)
    return root


def make_empty_vector(root: Path) -> Path:
    """A feature of shape (0,) whose column holds empty lists, which map-style refuses to open."""
    write_dataset(root, lengths=(4, 3), cameras=(Camera(key=CAMERA_A),))
    set_feature(root, "odd.empty", dtype="float32", shape=[0])
    edit_data(
        root,
        lambda table: set_column(table, "odd.empty", pa.array([[]] * len(table), pa.list_(pa.float32()))),
    )
    return root


def _tool_call(text: str) -> str:
    call = {"type": "function", "function": {"name": "say", "arguments": {"text": text, "n": [1, 2.5, None]}}}
    return json.dumps(call)


def _persistent_rows(episode: int) -> list[dict[str, Any]]:
    """Language rows of a whole episode: none, one or three."""
    count = (0, 1, 3)[episode % 3]
    rows: list[dict[str, Any]] = [
        {
            "role": "assistant",
            "content": f"subtask {episode}.0",
            "style": "subtask",
            "timestamp": 0.0,
            "camera": None,
            "tool_calls": None,
        },
        {
            "role": "assistant",
            "content": None,
            "style": "plan",
            "timestamp": 0.1,
            "camera": None,
            "tool_calls": [_tool_call("plan"), _tool_call("again")],
        },
        {
            "role": "user",
            "content": "ü 漢字",
            "style": None,
            "timestamp": 0.2,
            "camera": None,
            "tool_calls": [],
        },
    ]
    return rows[:count]


def _event_rows(frame: int) -> list[dict[str, Any]]:
    """Language rows of one frame: none, one or three."""
    count = (0, 1, 3)[frame % 3]
    rows: list[dict[str, Any]] = [
        {
            "role": "user",
            "content": f"where at {frame}?",
            "style": "vqa",
            "camera": CAMERA_A,
            "tool_calls": None,
        },
        {
            "role": "assistant",
            "content": None,
            "style": None,
            "camera": None,
            "tool_calls": [_tool_call(f"frame {frame}")],
        },
        {"role": "user", "content": "stop", "style": "interjection", "camera": None, "tool_calls": []},
    ]
    return rows[:count]


def make_language(root: Path) -> Path:
    """Language columns with 0, 1 and 3 rows and nested tool calls; strings, empty strings and None values."""
    from lerobot.datasets.language import (
        language_events_arrow_type,
        language_feature_info,
        language_persistent_arrow_type,
    )

    features = {
        **base_features(),
        "note": Feature(dtype="string", shape=(1,), value=lambda e, f: f"note {e} {f}" if f else ""),
    }
    write_dataset(root, lengths=(4, 3, 5), cameras=(Camera(key=CAMERA_A),), features=features)

    def annotate(table: pa.Table) -> pa.Table:
        episodes = table.column("episode_index").to_pylist()
        frames = table.column("frame_index").to_pylist()
        persistent = pa.array(
            [_persistent_rows(e) for e in episodes], _plain(language_persistent_arrow_type())
        )
        events = pa.array([_event_rows(f) for f in frames], _plain(language_events_arrow_type()))
        table = set_column(table, "language_persistent", persistent.cast(language_persistent_arrow_type()))
        table = set_column(table, "language_events", events.cast(language_events_arrow_type()))
        # Map-style fetches the rows of a window together, and cannot where only some of them are None.
        maybe = [None if e == 1 else f"m{f}" for e, f in zip(episodes, frames, strict=True)]
        return set_column(table, "maybe", pa.array(maybe, pa.string()))

    for name, declaration in language_feature_info().items():
        set_feature(root, name, **declaration)
    set_feature(root, "maybe", dtype="string", shape=[1])
    edit_data(root, annotate)
    return root


def _plain(kind: pa.DataType) -> pa.DataType:
    """Replace the JSON extension type inside a language column's type by its storage, which Python fits."""
    if isinstance(kind, pa.ListType):
        return pa.list_(_plain(kind.value_type))
    if isinstance(kind, pa.StructType):
        return pa.struct([pa.field(f.name, _plain(f.type), nullable=f.nullable) for f in kind])
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _task_with_switch(episode: int, frame: int) -> str:
    tasks = ("zip the bag", "open the door", "a task in the middle")
    if episode == 1 and frame >= 3:
        return tasks[2]
    return tasks[episode % 2]


def make_tasks(root: Path) -> Path:
    """tasks.parquet not in the order of task_index, and an episode that switches task half-way."""
    write_dataset(root, lengths=(4, 6, 3), cameras=(Camera(key=CAMERA_A),), task=_task_with_switch)
    path = root / "meta/tasks.parquet"
    tasks = pq.read_table(path)
    pq.write_table(tasks.take(list(reversed(range(len(tasks))))), path)
    return root


def make_strays(root: Path) -> Path:
    """A Parquet column that info.json does not declare, an unreferenced videos/ subtree, and *.bak files."""
    write_dataset(root, lengths=(4, 5), cameras=(Camera(key=CAMERA_A),))
    edit_data(root, lambda table: set_column(table, "scratch", pa.array(range(len(table)), pa.int64())))
    video = video_files(root, CAMERA_A)[0]
    shutil.copytree(root / "videos" / CAMERA_A, root / "videos/observation.images.old")
    shutil.copy(video, video.with_name("file-001.mp4.bak"))
    video.with_name("file-007.mp4").write_bytes(b"not a video")
    data = data_files(root)[0]
    shutil.copy(data, data.with_name(data.name + ".bak"))
    return root
