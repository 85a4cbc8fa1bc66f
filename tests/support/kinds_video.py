"""Kinds of datasets that differ in their video files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import av
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tests.support.editing import (
    edit_data,
    edit_episodes,
    load_info,
    reencode,
    regroup_files,
    set_column,
    set_feature,
    set_info,
    video_files,
)
from tests.support.recording import CAMERA_A, CAMERA_B, DEPTH, REPO_ID, Camera, write_dataset

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt


def make_av1(root: Path) -> Path:
    """Two cameras as lerobot records them by default: AV1, g=2, all episodes in one file."""
    return write_dataset(root, lengths=(9, 6, 8))


_BFRAMES = {"g": "12", "keyint_min": "12", "bf": "3", "b_strategy": "0", "sc_threshold": "0", "crf": "20"}
"""Options of libx264: key frames every 12 frames, always three B-frames, of which one is a reference."""


def _reencoded(
    root: Path,
    *,
    options: Mapping[str, str],
    codec: str = "libx264",
    pix_fmt: str = "yuv420p",
    cameras: Sequence[Camera] = (Camera(key=CAMERA_A), Camera(key=CAMERA_B)),
    container_options: Mapping[str, str] | None = None,
) -> Path:
    """Write episodes of 17, 14 and 19 frames, then code each camera's file anew as one stream."""
    write_dataset(
        root,
        lengths=(17, 14, 19),
        cameras=cameras,
        rgb_encoder={"vcodec": "h264", "pix_fmt": "yuv444p", "g": 2, "crf": 12},
    )
    for camera in cameras:
        for path in video_files(root, camera.key):
            reencode(path, codec=codec, pix_fmt=pix_fmt, options=options, container_options=container_options)
    return root


def make_h264_bframes(root: Path) -> Path:
    """H.264 with B-frames, g=12: GOPs cross the episode boundaries (17, 31), and frames are reordered."""
    return _reencoded(root, options=_BFRAMES)


def make_h264_open_gop(root: Path) -> Path:
    """As `make_h264_bframes`, with open GOPs: B-frames before a key frame in time refer to it."""
    return _reencoded(
        root, options={**_BFRAMES, "x264-params": "open-gop=1"}, cameras=(Camera(key=CAMERA_A),)
    )


def make_h264_no_edit_list(root: Path) -> Path:
    """As `make_h264_bframes`, without an edit list: the first frame comes after the reordering delay."""
    cameras = (Camera(key=CAMERA_A),)
    _reencoded(root, options=_BFRAMES, cameras=cameras, container_options={"use_editlist": "0"})
    with av.open(str(video_files(root, CAMERA_A)[0])) as container:
        stream = container.streams.video[0]
        assert stream.start_time is not None
        assert stream.time_base is not None
        offset = float(stream.start_time * stream.time_base)

    def shift(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for row in rows:
            row[f"videos/{CAMERA_A}/from_timestamp"] += offset
            row[f"videos/{CAMERA_A}/to_timestamp"] += offset
        return rows

    edit_episodes(root, shift)
    return root


def make_h264_full_range(root: Path) -> Path:
    """H.264 in full-range BT.709."""
    params = "fullrange=on:colormatrix=bt709:colorprim=bt709:transfer=bt709"
    return _reencoded(
        root, options={**_BFRAMES, "x264-params": params}, cameras=(Camera(key=CAMERA_A),), pix_fmt="yuvj420p"
    )


def make_h264_444_odd(root: Path) -> Path:
    """H.264 yuv444p of 63x45 pixels."""
    camera = Camera(key=CAMERA_A, height=45, width=63)
    encoder = {"vcodec": "h264", "pix_fmt": "yuv444p", "g": 6, "crf": 20}
    return write_dataset(root, lengths=(7, 5), cameras=(camera,), rgb_encoder=encoder)


def make_hevc_10bit(root: Path) -> Path:
    """HEVC of 10 bits."""
    options = {"x265-params": "keyint=12:min-keyint=12:scenecut=0:log-level=none"}
    cameras = (Camera(key=CAMERA_A),)
    return _reencoded(root, codec="libx265", pix_fmt="yuv420p10le", options=options, cameras=cameras)


def make_vp9_odd(root: Path) -> Path:
    """VP9 yuv420p of 63x45 pixels: the chroma planes are rounded up."""
    camera = Camera(key=CAMERA_A, height=45, width=63)
    options = {"g": "12", "crf": "20", "b": "0", "deadline": "realtime", "cpu-used": "8"}
    return _reencoded(root, codec="libvpx-vp9", options=options, cameras=(camera,))


def make_rotating_files(root: Path) -> Path:
    """One Parquet file; camera A has a file per episode, camera B one for 1, 2 and 2 episodes."""
    write_dataset(root, lengths=(5, 7, 4, 6, 5), file_per_episode=True)
    regroup_files(root, CAMERA_B, (1, 2, 2))
    return root


def _make_depth(root: Path, unit: Literal["mm", "m"], storage: Literal["video", "image"]) -> Path:
    cameras = (
        Camera(key=CAMERA_A, storage=storage),
        Camera(key=DEPTH, storage=storage, depth=unit),
    )
    return write_dataset(root, lengths=(6, 5), cameras=cameras)


def make_depth_video_mm(root: Path) -> Path:
    """A depth video (HEVC gray12le) recorded in millimetres, next to an RGB camera."""
    return _make_depth(root, "mm", "video")


def make_depth_video_m(root: Path) -> Path:
    """A depth video recorded in metres, declared with the older spelling `video.is_depth_map`."""
    _make_depth(root, "m", "video")
    info = load_info(root)["features"][DEPTH]["info"]
    info["video.is_depth_map"] = info.pop("is_depth_map")
    set_feature(root, DEPTH, info=info)
    return root


def make_depth_image_mm(root: Path) -> Path:
    """Depth images (16-bit TIFF bytes in Parquet) in millimetres."""
    return _make_depth(root, "mm", "image")


def make_depth_image_m(root: Path) -> Path:
    """Depth images (32-bit floating point TIFF bytes in Parquet) in metres."""
    return _make_depth(root, "m", "image")


def depth_code_picture(code: int) -> npt.NDArray[np.float32]:
    """Draw a constant depth map that lerobot's default quantiser codes as `code`.

    Args:
        code: 12-bit code.

    Returns:
        float32 metres, (48, 64, 1).
    """
    from lerobot.datasets.depth_utils import dequantize_depth

    codes = np.full((48, 64, 1), code, dtype=np.uint16)
    metres: npt.NDArray[np.float32] = dequantize_depth(
        codes, output_unit="m", output_tensor=False, output_channel_last=True
    )
    return metres


def make_depth_codes(root: Path) -> Path:
    """Depth video of four episodes with the constant codes 64, 1024, 2048 and 4032.

    Each in a file of its own: where x265 chooses a B-frame for so short an episode, lerobot's joining of
    files fails on the decode times.
    """
    codes = (64, 1024, 2048, 4032)
    return write_dataset(
        root,
        lengths=(3, 2, 3, 2),
        cameras=(Camera(key=DEPTH, depth="m"),),
        picture=lambda episode, _frame, _index, _camera: depth_code_picture(codes[episode]),
        file_per_episode=True,
    )


def make_aggregated(root: Path) -> Path:
    """Two datasets joined by lerobot's `aggregate_datasets`, with MP4 files capped so that they rotate."""
    from lerobot.datasets import aggregate_datasets

    parts = [root.with_name(f"{root.name}-part-{number}") for number in range(2)]
    write_dataset(parts[0], lengths=(7, 5, 6), file_per_episode=True)
    write_dataset(parts[1], lengths=(4, 8), task=lambda _e, _f: "sweep the table", episode_offset=3)
    aggregate_datasets(
        repo_ids=[REPO_ID, REPO_ID],
        aggr_repo_id=REPO_ID,
        roots=parts,
        aggr_root=root,
        video_files_size_in_mb=0.0035,  # room for about two of these tiny files
        data_files_size_in_mb=0.0001,
    )
    return root


def make_one_frame_episode(root: Path) -> Path:
    """An episode of a single frame between two of twelve."""
    return write_dataset(root, lengths=(12, 1, 12), cameras=(Camera(key=CAMERA_A),))


def make_deleted_reencoded(root: Path) -> Path:
    """Five episodes, of which lerobot's `delete_episodes` removed 1 and 3 by re-encoding the video."""
    from lerobot.datasets import LeRobotDataset, delete_episodes

    source = write_dataset(root.with_name(f"{root.name}-source"), lengths=(5, 4, 6, 3, 5))
    delete_episodes(LeRobotDataset(REPO_ID, source, video_backend="pyav"), [1, 3], root, REPO_ID)
    return root


def make_deleted_metadata(root: Path) -> Path:
    """Five episodes, of which 1 and 3 are gone from metadata and rows, while their video frames stay."""
    write_dataset(root, lengths=(5, 4, 6, 3, 5))
    kept = (0, 2, 4)

    def drop_rows(table: pa.Table) -> pa.Table:
        table = table.filter(pc.is_in(table.column("episode_index"), pa.array(kept)))
        episodes = [kept.index(e) for e in table.column("episode_index").to_pylist()]
        table = set_column(table, "episode_index", pa.array(episodes, pa.int64()))
        return set_column(table, "index", pa.array(range(len(table)), pa.int64()))

    def drop_episodes(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        rows = [rows[episode] for episode in kept]
        start = 0
        for episode, row in enumerate(rows):
            stop = start + row["length"]
            row |= {"episode_index": episode, "dataset_from_index": start, "dataset_to_index": stop}
            start = stop
        return rows

    edit_data(root, drop_rows)
    edit_episodes(root, drop_episodes)
    set_info(root, total_episodes=3, total_frames=16, splits={"train": "0:3"})
    return root


def make_short_to_timestamp(root: Path) -> Path:
    """As some converters write it: `to_timestamp` is the last frame's time, (N-1)/fps after the first."""
    write_dataset(root, lengths=(5, 6, 4), cameras=(Camera(key=CAMERA_A),))
    fps = load_info(root)["fps"]

    def shorten(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for row in rows:
            row[f"videos/{CAMERA_A}/to_timestamp"] -= 1 / fps
        return rows

    edit_episodes(root, shorten)
    return root


def make_many_tiny(root: Path) -> Path:
    """24 episodes of 2 to 5 frames at 10 fps, one small camera."""
    lengths = [2 + (5 * episode) % 4 for episode in range(24)]
    return write_dataset(root, lengths=lengths, cameras=(Camera(key=CAMERA_A, height=32, width=32),))


def make_file_per_episode(root: Path) -> Path:
    """Three episodes of 17, 14 and 19 frames at 10 fps, each in its own MP4 file."""
    return write_dataset(root, lengths=(17, 14, 19), cameras=(Camera(key=CAMERA_A),), file_per_episode=True)


def make_one_row_group(root: Path) -> Path:
    """All rows of all episodes in a single row group of one Parquet file."""
    write_dataset(root, lengths=(5, 4, 6), cameras=(Camera(key=CAMERA_A),))
    edit_data(root, lambda table: table, row_groups="one")
    return root
