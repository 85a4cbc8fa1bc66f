"""All kinds of made datasets, by name, and a shelf that makes each once.

The parts, whose names this module gives again: `painting` draws the pictures, `recording` writes datasets
with lerobot's own writer, `editing` changes finished ones, `kinds_video` and `kinds_rows` hold the makers.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support import kinds_rows as rows
from tests.support import kinds_video as video
from tests.support.editing import (
    data_files,
    edit_data,
    edit_episodes,
    episode_rows,
    load_info,
    lossless_twin,
    reencode,
    regroup_files,
    set_column,
    set_feature,
    set_info,
    video_files,
    without_column,
)
from tests.support.kinds_rows import make_empty_vector
from tests.support.painting import Painted, paint, paint_depth, read_paint
from tests.support.recording import (
    ACTION,
    CAMERA_A,
    CAMERA_B,
    DEPTH,
    REPO_ID,
    STATE,
    Camera,
    Feature,
    base_features,
    draw,
    write_dataset,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "ACTION",
    "CAMERA_A",
    "CAMERA_B",
    "DEPTH",
    "KINDS",
    "REFERENCES",
    "REPO_ID",
    "STATE",
    "Camera",
    "Feature",
    "Painted",
    "Shelf",
    "base_features",
    "data_files",
    "draw",
    "edit_data",
    "edit_episodes",
    "episode_rows",
    "load_info",
    "lossless_twin",
    "make_empty_vector",
    "paint",
    "paint_depth",
    "read_paint",
    "reencode",
    "regroup_files",
    "set_column",
    "set_feature",
    "set_info",
    "video_files",
    "without_column",
    "write_dataset",
]

KINDS: dict[str, Callable[[Path], Path]] = {
    "av1": video.make_av1,
    "h264_bframes": video.make_h264_bframes,
    "h264_open_gop": video.make_h264_open_gop,
    "h264_no_edit_list": video.make_h264_no_edit_list,
    "h264_full_range": video.make_h264_full_range,
    "h264_444_odd": video.make_h264_444_odd,
    "hevc_10bit": video.make_hevc_10bit,
    "vp9_odd": video.make_vp9_odd,
    "rotating_files": video.make_rotating_files,
    "file_per_episode": video.make_file_per_episode,
    "images": rows.make_images,
    "depth_video_mm": video.make_depth_video_mm,
    "depth_video_m": video.make_depth_video_m,
    "depth_image_mm": video.make_depth_image_mm,
    "depth_image_m": video.make_depth_image_m,
    "depth_codes": video.make_depth_codes,
    "odd_features": rows.make_odd_features,
    "language": rows.make_language,
    "tasks": rows.make_tasks,
    "aggregated": video.make_aggregated,
    "one_frame_episode": video.make_one_frame_episode,
    "deleted_reencoded": video.make_deleted_reencoded,
    "deleted_metadata": video.make_deleted_metadata,
    "strays": rows.make_strays,
    "short_to_timestamp": video.make_short_to_timestamp,
    "many_tiny": video.make_many_tiny,
    "one_row_group": video.make_one_row_group,
}
"""Every kind of made dataset by name; :data:`REFERENCES` has those that map-style cannot read as they are."""

REFERENCES: dict[str, Callable[[Path, Path], Path]] = {
    "h264_open_gop": lossless_twin,
    "h264_no_edit_list": lossless_twin,
    "hevc_10bit": lossless_twin,
    "depth_video_mm": lossless_twin,
    "depth_video_m": lossless_twin,
    "depth_codes": lossless_twin,
    "strays": lambda root, target: without_column(root, target, "scratch"),
}
"""Makers of what map-style reads in place of a kind: (the kind's directory, directory to create)."""


class Shelf:
    """Makes each kind of dataset once and hands out its directory. The datasets are shared: never change one.

    Args:
        folder: Where to make them.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def root(self, kind: str) -> Path:
        """Give the directory of a kind.

        Args:
            kind: One of :data:`KINDS`.

        Returns:
            The dataset's directory.
        """
        return self._made(self._folder / kind, KINDS[kind])

    def reference(self, kind: str) -> Path:
        """Give the directory that map-style reads as the reference of a kind: mostly :meth:`root` itself.

        Args:
            kind: One of :data:`KINDS`.

        Returns:
            The reference dataset's directory.
        """
        if kind not in REFERENCES:
            return self.root(kind)
        source = self.root(kind)
        return self._made(self._folder / f"{kind}-reference", lambda target: REFERENCES[kind](source, target))

    @staticmethod
    def _made(path: Path, make: Callable[[Path], Path]) -> Path:
        """Make a dataset unless it is there; what a failed maker left behind does not count as made."""
        done = path.with_name(path.name + ".done")
        if not done.exists():
            shutil.rmtree(path, ignore_errors=True)
            make(path)
            done.touch()
        return path

    def copy(self, kind: str, target: Path) -> Path:
        """Copy the dataset of a kind, to change it.

        Args:
            kind: One of :data:`KINDS`.
            target: Directory to create.

        Returns:
            `target`.
        """
        return Path(shutil.copytree(self.root(kind), target))
