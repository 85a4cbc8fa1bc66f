"""Which video samples an episode needs, and its mini-MP4s in memory.

Two steps. From metadata alone (`from_timestamp`, length, fps) the span of samples is known, so sizes can be
reserved before anything is read. Once the rows are there, each frame is matched by its own timestamp to the
sample nearest in time, by the rule of lerobot's reader.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from lerobot_streaming.episodes.layout import DatasetLayout


# A mini-MP4's header: at most 44 bytes for each sample, and the boxes that all files have.
_SAMPLE_BYTES: Final = 44
_HEADER_BYTES: Final = 65536
_LEAD_IN: Final = 4096


@dataclass(frozen=True, slots=True)
class StreamParameters:
    """What a decoder must know before the first packet.

    Attributes:
        codec: libav's codec name, e.g. `h264`.
        extradata: Codec configuration from the file's sample description, empty when there is none.
        width: Coded width in pixels, for codecs whose packets do not carry it.
        height: Coded height in pixels.
    """

    codec: str
    extradata: bytes
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class EpisodeVideo:
    """One camera of one episode, ready to decode.

    Samples are numbered from the first sample of the mini-MP4, in decode order.

    Attributes:
        episode: The dataset's episode number, for messages.
        camera: Feature name.
        path: Source file, for messages.
        streams: What the decoder must know, one for each sample description of the file.
        description_of: Place in `streams` of each sample, or None when the file has one description.
        data: The mini-MP4.
        offsets: Place of each sample in `data`, bytes.
        sizes: Size of each sample, bytes.
        sample_of_frame: The sample of each frame of the episode.
        start_of_frame: The sync sample from which each frame's sample decodes.
        frames_of_start: Sync sample to the frames that decode from it, ascending.
    """

    episode: int
    camera: str
    path: str
    streams: tuple[StreamParameters, ...]
    description_of: list[int] | None
    data: bytearray
    offsets: list[int]
    sizes: list[int]
    sample_of_frame: list[int]
    start_of_frame: list[int]
    frames_of_start: Mapping[int, list[int]]

    def stream(self, sample: int) -> StreamParameters:
        """What the decoder must know for a run that begins at a sync sample."""
        return self.streams[0 if self.description_of is None else self.description_of[sample]]

    def packets(self, first: int, last: int) -> list[memoryview]:
        """The bytes of a run of samples, for the decoder.

        Args:
            first: First sample.
            last: Last sample, inclusive.

        Returns:
            One view of `data` per sample.
        """
        view = memoryview(self.data)
        return [
            view[offset : offset + size]
            for offset, size in zip(self.offsets[first : last + 1], self.sizes[first : last + 1], strict=True)
        ]


def timestamp_verdict(
    wanted: NDArray[np.float64], found: NDArray[np.float64], tolerance_s: float
) -> NDArray[np.bool_]:
    """Whether frames are near enough to their wanted times, as lerobot's reader judges it.

    That reader compares in float32 and accepts a distance strictly below the tolerance. From 1024 s on,
    float32 is coarser than the default tolerance and its verdict hangs on rounding alone; there the same rule
    is applied in float64.

    Args:
        wanted: Wanted times in the file, seconds, float64 (n,).
        found: Times of the nearest frames, seconds, float64 (n,).
        tolerance_s: Tolerance in seconds.

    Returns:
        bool (n,), True where the frame is accepted.
    """
    tolerance = np.float32(tolerance_s)
    wanted32, found32 = wanted.astype(np.float32), found.astype(np.float32)
    coarse = np.spacing(np.abs(wanted32)) >= tolerance
    near: NDArray[np.bool_] = np.where(
        coarse, np.abs(wanted - found) < tolerance_s, np.abs(wanted32 - found32) < tolerance
    )
    return near


def episode_size_bounds(layout: DatasetLayout, files: Mapping[str, int]) -> NDArray[np.int64]:
    """Bounds the bytes of episodes' mini-MP4s by the sizes of their files, without an index.

    Args:
        layout: The selected episodes.
        files: Path -> size in bytes.

    Returns:
        Bytes per episode over all cameras, int64 (n,). The allowance for the header is ample, but the number
        of samples that lead in to an episode cannot be known without the index: admission checks exact sizes.
    """
    bounds = np.zeros(layout.num_episodes, dtype=np.int64)
    for table in layout.cameras.values():
        sizes = np.array([files[path] for path in table.files], dtype=np.int64)
        bounds += sizes[table.file_of] + _HEADER_BYTES + _SAMPLE_BYTES * (2 * layout.lengths + _LEAD_IN)
    return bounds
