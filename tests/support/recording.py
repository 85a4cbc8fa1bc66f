"""Small, real LeRobot v3 datasets, written with lerobot's own writer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tests.support.painting import paint, paint_depth
from tests.support.scheduling import leave_realtime

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt

REPO_ID = "tests/made"
"""The repo id of every made dataset; nothing of that name exists on the Hub."""

CAMERA_A = "observation.images.a"
CAMERA_B = "observation.images.b"
DEPTH = "observation.images.depth"
STATE = "observation.state"
ACTION = "action"


@dataclass(frozen=True, slots=True, kw_only=True)
class Camera:
    """One camera of a made dataset.

    Attributes:
        key: Feature name.
        height: Rows of pixels.
        width: Columns of pixels.
        storage: "video" for MP4 files, "image" for bytes in Parquet.
        depth: None for RGB; "mm" for uint16 millimetres, "m" for float32 metres.
    """

    key: str
    height: int = 48
    width: int = 64
    storage: Literal["video", "image"] = "video"
    depth: Literal["mm", "m"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """One non-camera feature of a made dataset.

    Attributes:
        dtype: The declared dtype, as in info.json.
        shape: The declared shape.
        value: Gives the value from the episode and frame number.
    """

    dtype: str
    shape: tuple[int, ...]
    value: Callable[[int, int], Any]


def draw(episode: int, frame: int, number: int, camera: Camera) -> npt.NDArray[Any]:
    """Draw what one camera sees at one frame: RGB, or depth in the camera's unit."""
    if camera.depth is None:
        return paint(episode, frame, number, height=camera.height, width=camera.width)
    depth_mm = paint_depth(episode, frame, number, height=camera.height, width=camera.width)
    return depth_mm if camera.depth == "mm" else (depth_mm / 1000).astype(np.float32)


def _state(episode: int, frame: int) -> npt.NDArray[np.float32]:
    return np.array([episode, frame, np.sin(frame)], dtype=np.float32)


def _action(episode: int, frame: int) -> npt.NDArray[np.float32]:
    return np.array([episode + frame / 7, -frame], dtype=np.float32)


def base_features() -> dict[str, Feature]:
    """Give the state and the action that every made dataset has."""
    return {
        STATE: Feature(dtype="float32", shape=(3,), value=_state),
        ACTION: Feature(dtype="float32", shape=(2,), value=_action),
    }


def _task_of_parity(episode: int, frame: int) -> str:
    del frame
    return "pick up the cube" if episode % 2 == 0 else "put the cube down"


def _declarations(cameras: Sequence[Camera], features: Mapping[str, Feature]) -> dict[str, dict[str, Any]]:
    """Build the `features` argument of `LeRobotDataset.create`."""
    declared: dict[str, dict[str, Any]] = {
        name: {"dtype": feature.dtype, "shape": feature.shape, "names": None}
        for name, feature in features.items()
    }
    for camera in cameras:
        channels = 3 if camera.depth is None else 1
        declared[camera.key] = {
            "dtype": camera.storage,
            "shape": (camera.height, camera.width, channels),
            "names": ["height", "width", "channels"],
        }
        if camera.depth is not None:
            declared[camera.key]["info"] = {"is_depth_map": True}
    return declared


def write_dataset(
    root: Path,
    *,
    lengths: Sequence[int],
    fps: int = 10,
    cameras: Sequence[Camera] = (Camera(key=CAMERA_A), Camera(key=CAMERA_B)),
    features: Mapping[str, Feature] | None = None,
    task: Callable[[int, int], str] = _task_of_parity,
    rgb_encoder: Mapping[str, Any] | None = None,
    file_per_episode: bool = False,
    episode_offset: int = 0,
    encode_while_recording: bool = False,
    picture: Callable[[int, int, int, Camera], npt.NDArray[Any]] = draw,
) -> Path:
    """Record a dataset with lerobot's writer.

    Args:
        root: Directory to create.
        lengths: Frames of each episode.
        fps: Frames per second.
        cameras: The cameras; a camera's position here is its painted number.
        features: The other features; None for :func:`base_features`.
        task: Gives the task from the episode and frame number.
        rgb_encoder: Arguments of lerobot's `RGBEncoderConfig`; None for lerobot's default (AV1, g=2).
        file_per_episode: Start a new MP4 file with every episode.
        episode_offset: Added to the episode number that is painted and given to the features.
        encode_while_recording: Feed the encoders directly, without a PNG file for each frame: faster, but an
            episode is held in memory.
        picture: Draws (episode, frame, camera number, camera).

    Returns:
        `root`.
    """
    from lerobot.configs import RGBEncoderConfig
    from lerobot.datasets import LeRobotDataset

    features = base_features() if features is None else features
    dataset = LeRobotDataset.create(
        repo_id=REPO_ID,
        fps=fps,
        features=_declarations(cameras, features),
        root=root,
        use_videos=any(camera.storage == "video" for camera in cameras),
        rgb_encoder=RGBEncoderConfig(**rgb_encoder) if rgb_encoder is not None else None,
        encoder_threads=1,
        video_files_size_in_mb=1e-6 if file_per_episode else None,
        video_backend="pyav",
        streaming_encoding=encode_while_recording,
        # lerobot drops frames when this queue is full.
        encoder_queue_maxsize=max(lengths) + 1,
    )
    for number, length in enumerate(lengths):
        episode = number + episode_offset
        for frame in range(length):
            row: dict[str, Any] = {name: feature.value(episode, frame) for name, feature in features.items()}
            for index, camera in enumerate(cameras):
                row[camera.key] = picture(episode, frame, index, camera)
            dataset.add_frame({**row, "task": task(episode, frame)})
        # One camera after the other: the parallel path forks this process for every episode.
        dataset.save_episode(parallel_encoding=False)
    dataset.finalize()
    leave_realtime()
    return root
