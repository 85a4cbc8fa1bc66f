"""The data set shapes of the benchmarks: smooth moving pictures with slight noise, made once and kept."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.support.datasets import Camera, Feature, regroup_files, video_files, write_dataset

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

_VERSION = 1
"""Part of a made data set's name: raise it when the pictures or the encoding change."""

_EPISODES_PER_FILE = 2

_COARSE = 4
"""Divides the height and width of every shape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What the videos of a benchmark look like.

    Attributes:
        cameras: Number of cameras.
        width: Columns of pixels.
        height: Rows of pixels.
        fps: Frames per second.
        noise: Standard deviation of the pixel noise, in grey levels; it sets the bytes per frame.
        encoder: Arguments of lerobot's `RGBEncoderConfig`; empty for lerobot's default (AV1, g=2).
        episodes: Default number of episodes.
        frames: Default mean number of frames of an episode.
    """

    cameras: int
    width: int
    height: int
    fps: int
    noise: float
    encoder: dict[str, Any] = field(default_factory=dict)
    episodes: int = 8
    frames: int = 200


_H264 = {"vcodec": "h264", "crf": 20}

SHAPES = {
    "A": Shape(cameras=2, width=640, height=480, fps=30, noise=4, episodes=40),
    "B": Shape(cameras=3, width=320, height=180, fps=15, noise=2, encoder={**_H264, "g": 10}, episodes=48),
    "C": Shape(cameras=1, width=320, height=240, fps=30, noise=4, encoder={**_H264, "g": 60}, episodes=50),
    "D": Shape(
        cameras=1,
        width=320,
        height=240,
        fps=30,
        noise=4,
        encoder={**_H264, "g": 250},
        episodes=40,
        frames=300,
    ),
}
"""The four shapes of the design's speed table; libx264's default preset codes C and D with B-frames.

By default each has more episodes than the pool mixes. The decoded frames of A and B are several times the
default frame cache of a rank, those of C and D little more than it: making more takes long. With C and D the
cache therefore also serves frames of the epoch before; `--option frame_cache_gb=0.25` shows what is left
without them.
"""


def _moving_picture(
    episode: int, frame: int, number: int, camera: Camera, noise: npt.NDArray[np.int16]
) -> npt.NDArray[np.uint8]:
    """Draw a slowly moving gradient with two moving discs, and roll a fixed field of noise over it."""
    # Drawn at a quarter of the size and enlarged: what matters is what noise and motion cost the codec.
    rows = np.arange(0, camera.height, _COARSE, dtype=np.float32)[:, None] / camera.height
    columns = np.arange(0, camera.width, _COARSE, dtype=np.float32)[None, :] / camera.width
    time = frame / 60 + episode + number / 3
    coarse = np.empty((rows.size, columns.size, 3), dtype=np.float32)
    coarse[..., 0] = 128 + 90 * np.sin(2 * np.pi * (columns + 0.2 * time))
    coarse[..., 1] = 128 + 90 * np.cos(2 * np.pi * (rows - 0.15 * time) + columns)
    coarse[..., 2] = 128 + 60 * np.sin(2 * np.pi * (rows + columns + 0.1 * time))
    for phase, colour in ((0.0, (235, 80, 40)), (2.0, (40, 90, 220))):
        centre_row = 0.5 + 0.3 * np.sin(0.9 * time + phase)
        centre_column = 0.5 + 0.35 * np.cos(0.7 * time + phase)
        coarse[(rows - centre_row) ** 2 + (columns - centre_column) ** 2 < 0.012] = colour
    picture = coarse.astype(np.int16).repeat(_COARSE, axis=0).repeat(_COARSE, axis=1)
    picture += np.roll(noise, (37 * frame + 11 * number, 53 * frame + 7 * episode), axis=(0, 1))[..., None]
    return picture.clip(0, 255).astype(np.uint8)


def _vector(episode: int, frame: int) -> npt.NDArray[np.float32]:
    values: npt.NDArray[np.float32] = np.sin(np.arange(7) + frame / 20 + episode).astype(np.float32)
    return values


def make_shape(folder: Path, name: str, *, episodes: int | None, frames: int | None) -> Path:
    """Make the data set of a shape, unless the folder already holds it.

    Args:
        folder: Where the made data sets are kept.
        name: One of :data:`SHAPES`.
        episodes: Number of episodes; None for the shape's default.
        frames: Mean number of frames of an episode; None for the shape's default.

    Returns:
        The data set's directory.
    """
    shape = SHAPES[name]
    episodes, frames = episodes or shape.episodes, frames or shape.frames
    root = folder / f"shape-{name}-v{_VERSION}-{episodes}x{frames}"
    if root.exists():
        return root
    # Lengths from 3/4 to 5/4 of the mean, in no order.
    lengths = [max(1, round(frames * (0.75 + 0.5 * (number * 5 % 8) / 7))) for number in range(episodes)]
    cameras = [
        Camera(key=f"observation.images.cam{number}", height=shape.height, width=shape.width)
        for number in range(shape.cameras)
    ]
    vector = Feature(dtype="float32", shape=(7,), value=_vector)
    rng = np.random.default_rng(0)
    noise = np.rint(rng.normal(0, shape.noise, (shape.height, shape.width))).astype(np.int16)
    making = root.with_name(root.name + ".making")
    shutil.rmtree(making, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    write_dataset(
        making,
        lengths=lengths,
        fps=shape.fps,
        cameras=cameras,
        features={"observation.state": vector, "action": vector},
        rgb_encoder=shape.encoder,
        file_per_episode=True,
        encode_while_recording=True,
        picture=lambda episode, frame, number, camera: _moving_picture(episode, frame, number, camera, noise),
    )
    for number, camera in enumerate(cameras):
        # The cameras rotate their files at different episodes.
        first = min(episodes, _EPISODES_PER_FILE - number % 2)
        groups = [first] + [
            min(_EPISODES_PER_FILE, episodes - start) for start in range(first, episodes, _EPISODES_PER_FILE)
        ]
        regroup_files(making, camera.key, groups)
    making.rename(root)
    return root


def describe(root: Path) -> dict[str, Any]:
    """Say how large a data set is.

    Args:
        root: The data set.

    Returns:
        Its episodes, frames, MP4 files, mean video bytes of one frame of one camera, and GiB of all decoded
        frames (8-bit yuv420p).
    """
    info = json.loads((root / "meta/info.json").read_text())
    cameras = [name for name, feature in info["features"].items() if feature["dtype"] == "video"]
    files = [path for camera in cameras for path in video_files(root, camera)]
    shapes = [info["features"][camera]["shape"] for camera in cameras]
    pixels = sum(height * width for height, width, _ in shapes)
    video_bytes = sum(path.stat().st_size for path in files)
    return {
        "episodes": info["total_episodes"],
        "frames": info["total_frames"],
        "cameras": len(cameras),
        "video_files": len(files),
        "bytes_per_frame": round(video_bytes / info["total_frames"] / len(cameras)),
        "decoded_gib": round(pixels * 1.5 * info["total_frames"] / 1024**3, 2),
    }
