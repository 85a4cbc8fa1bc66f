"""The map-style contract: from rows and decoded frames to the items that `LeRobotDataset` gives."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from lerobot_streaming import lerobot_values
from lerobot_streaming.errors import OptionError, RowError
from lerobot_streaming.memory.pixels import PixelMemory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import av
    from numpy.typing import NDArray

    from lerobot_streaming.decode.colour import ColourConverter
    from lerobot_streaming.episodes.layout import DatasetLayout
    from lerobot_streaming.episodes.rows import RowTable
    from lerobot_streaming.lerobot_values import DepthCodec

_MM_PER_METRE: Final = 1000.0

type Item = dict[str, Any]
"""One sample: tensors, the `task` string, and Python values of text and language features."""


@dataclass(frozen=True, slots=True)
class ItemSpec:
    """What an item holds beyond the layout. Picklable, and small.

    Attributes:
        delta_indices: Feature name to frame offsets around the anchor, in the user's order.
        tasks: Task strings by their row in `tasks.parquet`.
        return_uint8: Whether RGB video frames stay uint8.
        rgb_keys: Cameras that image transforms apply to, in feature order.
        depth_videos: Depth video feature to the codec of its values.
        image_keys: Features whose images lie in Parquet.
        depth_images_to_mm: Depth feature stored as images in another than the output unit to whether it goes
            from metres to millimetres (True) or back (False).
    """

    delta_indices: Mapping[str, Sequence[int]]
    tasks: Sequence[str]
    return_uint8: bool
    rgb_keys: Sequence[str]
    depth_videos: Mapping[str, DepthCodec] = field(default_factory=dict)
    image_keys: frozenset[str] = frozenset()
    depth_images_to_mm: Mapping[str, bool] = field(default_factory=dict)


def check_deltas(
    delta_timestamps: Mapping[str, Sequence[float]], features: Mapping[str, Mapping[str, Any]]
) -> None:
    """Refuses windows that no item could be made of; map-style LeRobot fails at the first item.

    Args:
        delta_timestamps: Feature name to seconds around the anchor.
        features: The dataset's features.

    Raises:
        OptionError: A key is unknown or holds text, a list is empty, or the window of a column that steers
            the item (`timestamp`, `task_index`) has several entries.
    """
    has_video = any(feature["dtype"] == "video" for feature in features.values())
    for key, deltas in delta_timestamps.items():
        if key not in features:
            raise OptionError(
                f"delta_timestamps names {key!r}, which is no feature of the dataset. It has "
                f"{sorted(features)}."
            )
        dtype = features[key]["dtype"]
        if dtype in {"string", "language"}:
            raise OptionError(
                f"delta_timestamps names {key!r}, which holds text ({dtype}): text has no window."
            )
        if len(deltas) == 0:
            raise OptionError(f"delta_timestamps[{key!r}] is empty: name at least one offset, e.g. [0.0].")
        if len(deltas) > 1 and (key == "task_index" or (key == "timestamp" and has_video)):
            raise OptionError(
                f"delta_timestamps[{key!r}] has {len(deltas)} entries, but {key} says which frame or task "
                "the item is of: at most one entry."
            )


class ItemBuilder:
    """Builds items. Thread-safe; every thread passes its own colour converter.

    Args:
        layout: The selected episodes.
        spec: What items hold.
    """

    def __init__(self, layout: DatasetLayout, spec: ItemSpec) -> None:
        """Prepares the windows."""
        self._layout = layout
        self._spec = spec
        self._memory = PixelMemory()
        self._offsets = {
            key: np.asarray(indices, dtype=np.int64) for key, indices in spec.delta_indices.items()
        }
        anchor = tuple(spec.delta_indices.get("timestamp", (0,)))
        self.camera_windows: list[tuple[int, ...]] = [
            tuple(spec.delta_indices.get(camera, anchor)) for camera in layout.cameras
        ]

    def build(
        self,
        position: int,
        frame: int,
        rows: RowTable,
        videos: Sequence[Sequence[av.VideoFrame]],
        converter: ColourConverter,
    ) -> Item:
        """Builds the item of one anchor, up to the image transforms.

        Args:
            position: Position of the episode.
            frame: The anchor's frame number.
            rows: The episode's rows.
            videos: Per camera the decoded frames of its window.
            converter: This thread's colour converter.

        Returns:
            The item; every tensor owns its memory.

        Raises:
            RowError: A row holds what no item can be made of.
        """
        item: Item = {}
        for camera, frames in zip(self._layout.cameras, videos, strict=True):
            item[camera] = self._pixels(camera, frames, converter)
        length = int(self._layout.lengths[position])
        reached = {key: frame + offsets for key, offsets in self._offsets.items()}
        for key, column in rows.columns.items():
            if key in reached:
                item[key] = self._window(key, column, reached[key], position)
            elif key in self._spec.image_keys:
                item[key] = self._image(key, column[frame], position)
            elif isinstance(column, np.ndarray):
                item[key] = _tensor(np.array(column[frame]))
            else:
                item[key] = _own(column[frame])
        for key, indices in reached.items():
            item[f"{key}_is_pad"] = torch.from_numpy((indices < 0) | (indices >= length))
        for key, to_mm in self._spec.depth_images_to_mm.items():
            item[key] = item[key] * _MM_PER_METRE if to_mm else item[key] / _MM_PER_METRE
        item["task"] = self._task(position, frame, rows)
        return item

    def _pixels(
        self, camera: str, frames: Sequence[av.VideoFrame], converter: ColourConverter
    ) -> torch.Tensor:
        """The window of a camera; a window of one frame has no time dimension, as in map-style."""
        depth = self._spec.depth_videos.get(camera)
        if depth is not None:
            codes = torch.stack([converter.depth_codes(one) for one in frames])
            return lerobot_values.dequantize(codes, depth).squeeze(0)
        shape: tuple[int, ...] = (len(frames), 3, frames[0].height, frames[0].width)
        if len(frames) == 1:
            shape = shape[1:]
        pixels = self._memory.empty(shape)
        planes = pixels.numpy().reshape(-1, *shape[-3:])
        for number, one in enumerate(frames):
            converter.rgb(one, planes[number])
        if self._spec.return_uint8:
            return pixels
        return self._memory.empty(shape, np.float32).copy_(pixels).div_(255)

    def _window(
        self, key: str, column: NDArray[Any] | list[Any], reached: NDArray[np.int64], position: int
    ) -> torch.Tensor:
        """The rows of a window, stacked; beyond the episode's ends its first or last row."""
        if isinstance(column, np.ndarray):
            return _tensor(column.take(reached, axis=0, mode="clip"))
        last = len(column) - 1
        rows = [column[min(max(number, 0), last)] for number in reached.tolist()]
        if key in self._spec.image_keys:
            return torch.stack([self._image(key, row, position) for row in rows])
        if not all(isinstance(row, torch.Tensor) for row in rows):
            raise RowError(
                f"The window of {key!r} in episode {self._layout.episode_index[position]} reaches rows "
                "without a value: text and missing values have no window. Remove the key from "
                "delta_timestamps."
            )
        return torch.stack(rows)

    def _image(self, key: str, stored: Any, position: int) -> Any:
        """A decoded image of a Parquet column; None where the row has none."""
        if stored is None:
            return None
        try:
            return lerobot_values.decode_image(stored)
        except (OSError, ValueError, SyntaxError) as error:  # What Pillow raises for damaged files.
            raise RowError(
                f"An image of {key!r} in episode {self._layout.episode_index[position]} (file "
                f"{self._layout.data_path(position)}) cannot be decoded: {error}. Restore the file, or leave "
                "the episode out with `episodes=[...]`."
            ) from error

    def _task(self, position: int, frame: int, rows: RowTable) -> str:
        """The task string. lerobot takes tasks by their row, not by their task_index column."""
        for offset in self._spec.delta_indices.get("task_index", (0,)):
            frame = min(max(frame + offset, 0), len(rows.tasks) - 1)
        task = rows.tasks[frame]
        if not 0 <= task < len(self._spec.tasks):
            raise RowError(
                f"Frame {frame} of episode {self._layout.episode_index[position]} has task_index {task}, but "
                f"meta/tasks.parquet has {len(self._spec.tasks)} tasks. Repair the row or add the task."
            )
        return self._spec.tasks[task]


def _tensor(array: NDArray[Any]) -> torch.Tensor:
    """A tensor over an array's memory; an empty one gets the strides that PyTorch gives it."""
    tensor = torch.from_numpy(array)
    return tensor if array.size else torch.empty(tensor.shape, dtype=tensor.dtype)


def _own(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def transform_images(item: Item, keys: Sequence[str], transforms: Callable[[Any], Any]) -> None:
    """Applies image transforms in place, once per RGB camera, as map-style does.

    Args:
        item: The item.
        keys: RGB cameras in feature order.
        transforms: What to apply to the (C, H, W) or (T, C, H, W) tensor.
    """
    for key in keys:
        item[key] = transforms(item[key])
