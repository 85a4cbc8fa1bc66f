"""The ceiling of the benchmarks: libav's decoders fed with packets from memory, and nothing else."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import av
import numpy as np
import torch
from torch.utils.data import Dataset

from tests.support.datasets import episode_rows, video_files

if TYPE_CHECKING:
    from pathlib import Path


class _File(NamedTuple):
    """One MP4 file: everything its decoder needs, and where each of its frames is."""

    codec: str
    extradata: bytes | None
    packets: list[tuple[bytes, int, int]]
    """Bytes, pts and dts, in decode order."""
    key_of_frame: list[int]
    """In display order: the packet to start from."""
    packet_of_frame: list[int]
    """In display order: the packet that holds the frame."""


def _read_file(path: Path) -> _File:
    packets: list[tuple[bytes, int, int]] = []
    keys: list[int] = []
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        codec, extradata = stream.codec_context.name, stream.codec_context.extradata
        for packet in container.demux(stream):
            if packet.size and packet.pts is not None and packet.dts is not None:
                keys.append(len(packets) if packet.is_keyframe else keys[-1])
                packets.append((bytes(packet), packet.pts, packet.dts))
    order = sorted(range(len(packets)), key=lambda position: packets[position][1])
    return _File(codec, extradata, packets, [keys[position] for position in order], order)


class RawFrames(Dataset[dict[str, Any]]):
    """One random frame per camera and index, as uint8 RGB (C, H, W): no timestamps, rows, windows or checks.

    Packets wait in memory; a frame costs the decode of its GOP up to the frame itself, one conversion to
    planar RGB, and one copy.

    Args:
        root: The dataset; its videos are 8-bit yuv420p of even size.
    """

    def __init__(self, root: Path) -> None:
        info = json.loads((root / "meta/info.json").read_text())
        cameras = [name for name, feature in info["features"].items() if feature["dtype"] == "video"]
        self._files = {camera: [_read_file(path) for path in video_files(root, camera)] for camera in cameras}
        self._places: list[dict[str, tuple[int, int]]] = []
        for row in episode_rows(root):
            starts = {
                camera: (
                    int(row[f"videos/{camera}/file_index"]),
                    round(row[f"videos/{camera}/from_timestamp"] * info["fps"]),
                )
                for camera in cameras
            }
            self._places += [
                {camera: (file, start + frame) for camera, (file, start) in starts.items()}
                for frame in range(row["length"])
            ]
        self._decoders: dict[str, av.VideoCodecContext] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> dict[str, Any]:
        item: dict[str, Any] = {"index": index}
        for camera, (file, frame) in self._places[index].items():
            item[camera] = self._decode(camera, self._files[camera][file], frame)
        return item

    def _decode(self, camera: str, file: _File, number: int) -> torch.Tensor:
        decoder = self._decoders.get(camera)
        if decoder is None:
            decoder = cast("av.VideoCodecContext", av.CodecContext.create(file.codec, "r"))
            decoder.extradata = file.extradata
            decoder.thread_count = 1
            self._decoders[camera] = decoder
        wanted = file.packets[file.packet_of_frame[number]][1]
        decoder.flush_buffers()
        for data, pts, dts in file.packets[file.key_of_frame[number] :]:
            packet = av.Packet(data)
            packet.pts, packet.dts = pts, dts
            for frame in decoder.decode(packet):
                if frame.pts == wanted:
                    return _to_rgb(frame)
        for frame in decoder.decode(None):
            if frame.pts == wanted:
                return _to_rgb(frame)
        raise LookupError(f"libav gave no frame {number} of camera {camera}")


def _to_rgb(frame: av.VideoFrame) -> torch.Tensor:
    planar = frame.reformat(format="gbrp")
    pixels = np.empty((3, frame.height, frame.width), dtype=np.uint8)
    for channel, plane in ((1, 0), (2, 1), (0, 2)):
        source = planar.planes[plane]
        lines = np.frombuffer(source, np.uint8).reshape(-1, source.line_size)
        pixels[channel] = lines[: frame.height, : frame.width]
    return torch.from_numpy(pixels)
