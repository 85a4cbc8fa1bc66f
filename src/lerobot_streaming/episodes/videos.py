"""Which video samples an episode needs, and its mini-MP4s in memory.

Two steps. From metadata alone (`from_timestamp`, length, fps) the span of samples is known, so sizes can be
reserved before anything is read. Once the rows are there, each frame is matched by its own timestamp to the
sample nearest in time, by the rule of lerobot's reader.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from lerobot_streaming.episodes.mini_mp4 import MiniMp4Plan, fetch_mini_mp4, plan_mini_mp4
from lerobot_streaming.errors import DatasetLayoutError, FetchError, FrameTimestampError, MissingFileError
from lerobot_streaming.index.extradata import codec_extradata, coded_size
from lerobot_streaming.index.spans import FrameIndex

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from lerobot_streaming.episodes.layout import DatasetLayout
    from lerobot_streaming.index.sidecar import Sidecar
    from lerobot_streaming.index.tables import SourceFile
    from lerobot_streaming.storage.base import RangeReader


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


class VideoCatalog:
    """Spans, sizes and frame maps of the selected episodes. Thread-safe.

    Args:
        layout: The selected episodes.
        sidecar: Sample tables of the video files.
        tolerance_s: Seconds that a frame may lie from its wanted time.
    """

    def __init__(self, layout: DatasetLayout, sidecar: Sidecar, tolerance_s: float) -> None:
        """Reads nothing yet: a file's table is prepared when an episode first needs it."""
        self._layout = layout
        self._sidecar = sidecar
        self._tolerance_s = tolerance_s
        self._sources: dict[str, tuple[SourceFile, FrameIndex, tuple[StreamParameters, ...]]] = {}
        self._lock = Lock()

    def sizes(self, positions: Iterable[int]) -> NDArray[np.int64]:
        """Exact bytes of the mini-MP4s of episodes, from the index alone.

        Args:
            positions: Positions of the episodes.

        Returns:
            Bytes per episode over all cameras, int64 (n,).

        Raises:
            DatasetLayoutError: An episode lies beyond the end of a file.
        """
        return np.array(
            [
                sum(self.plan(position, camera).size_bytes for camera in self._layout.cameras)
                for position in positions
            ],
            dtype=np.int64,
        )

    def frame_size(self, camera: str) -> tuple[int, int]:
        """Width and height in pixels of a camera's first file, from its track header."""
        table = self._layout.cameras[camera]
        header = self._source(table.files[0])[0].header
        return header.width, header.height

    def plan(self, position: int, camera: str) -> MiniMp4Plan:
        """The mini-MP4 of one camera of an episode, from metadata alone.

        Args:
            position: Position of the episode.
            camera: Feature name of the camera.

        Returns:
            Its plan: exact size, byte ranges and samples.

        Raises:
            DatasetLayoutError: The episode lies beyond the end of the file.
        """
        layout, table = self._layout, self._layout.cameras[camera]
        path = table.path(position)
        source, frames, _ = self._source(path)
        begin, length = float(table.from_seconds[position]), int(layout.lengths[position])
        times = begin + np.arange(length + 1) / layout.fps
        # `to_timestamp` is the end of the last frame or, in some datasets, its beginning: reach for the
        # later.
        times[length] = max(times[length - 1], float(table.to_seconds[position]) - 1 / layout.fps)
        file_end = frames.last_pts_seconds
        who = f"episode {layout.episode_index[position]}, camera {camera!r}"
        if begin > file_end + self._tolerance_s:
            raise DatasetLayoutError(
                f"from_timestamp {begin:.6f} s of {who}, lies beyond the end of file {path}, whose last "
                f"frame is at {file_end:.6f} s. Repair meta/episodes: the offset probably belongs to another "
                "file."
            )
        if times[length - 1] > file_end + 0.5 / layout.fps:
            raise DatasetLayoutError(
                f"The {length} frames of {who}, begin at {begin:.6f} s and reach beyond the end of file "
                f"{path}, whose last frame is at {file_end:.6f} s. Repair meta/episodes or the video."
            )
        return plan_mini_mp4(source, *frames.decode_span(frames.sample_at(times)))

    def fetch(
        self, position: int, camera: str, timestamps: NDArray[np.float64], reader: RangeReader
    ) -> EpisodeVideo:
        """Reads one camera of an episode and matches its frames to samples.

        Args:
            position: Position of the episode.
            camera: Feature name of the camera.
            timestamps: Seconds since the start of the episode of each of its frames, float64 (n,).
            reader: Where the bytes come from.

        Returns:
            The camera's mini-MP4 with the sample of every frame.

        Raises:
            FrameTimestampError: A frame has no sample near enough; nothing was read then.
            FetchError: The bytes could not be read.
        """
        path = self._layout.cameras[camera].path(position)
        source, frames, streams = self._source(path)
        plan = self.plan(position, camera)
        samples = self._match(position, camera, timestamps, plan)
        starts = frames.sync_for(samples)
        try:
            data = fetch_mini_mp4(plan, reader, path)
        except (FetchError, MissingFileError) as error:
            raise type(error)(
                f"Could not read episode {self._layout.episode_index[position]}, camera {camera!r}: {error}"
            ) from error
        by_start: dict[int, list[int]] = {}
        relative_starts = (starts - plan.first).tolist()
        for frame, start in enumerate(relative_starts):
            by_start.setdefault(start, []).append(frame)
        span = slice(plan.first, plan.last + 1)
        return EpisodeVideo(
            episode=int(self._layout.episode_index[position]),
            camera=camera,
            path=path,
            streams=streams,
            description_of=(
                None if source.description_index is None else (source.description_index[span] - 1).tolist()
            ),
            data=data,
            offsets=plan.sample_offsets.tolist(),
            sizes=source.samples.sizes[span].tolist(),
            sample_of_frame=(samples - plan.first).tolist(),
            start_of_frame=relative_starts,
            frames_of_start=by_start,
        )

    def _match(
        self, position: int, camera: str, timestamps: NDArray[np.float64], plan: MiniMp4Plan
    ) -> NDArray[np.int64]:
        """The sample of each frame, checked to be near enough and inside the planned span."""
        layout, table = self._layout, self._layout.cameras[camera]
        path = table.path(position)
        source, frames, _ = self._source(path)
        wanted = float(table.from_seconds[position]) + timestamps
        samples = frames.sample_at(wanted)
        found = source.samples.pts_seconds[samples]
        near = timestamp_verdict(wanted, found, self._tolerance_s)
        where = f"episode {layout.episode_index[position]}, camera {camera!r}, file {path}"
        if not near.all():
            frame = int(np.argmin(near))
            raise FrameTimestampError(
                f"Frame {frame} of {where}, is wanted at {wanted[frame]:.6f} s (from_timestamp "
                f"{table.from_seconds[position]:.6f} + timestamp {timestamps[frame]:.6f}), but the nearest "
                f"video frame is at {found[frame]:.6f} s, {abs(found[frame] - wanted[frame]):.6f} s away; "
                f"tolerance_s is {self._tolerance_s:g}. Raise tolerance_s, or repair the timestamps of the "
                "dataset."
            )
        starts = frames.sync_for(samples)
        outside = (starts < plan.first) | (samples > plan.last)
        if outside.any():
            frame = int(np.argmax(outside))
            raise FrameTimestampError(
                f"Frame {frame} of {where}, has timestamp {timestamps[frame]:.6f} s, which lies outside the "
                f"episode's span of {layout.lengths[position]} frames at {layout.fps:g} fps. Repair the "
                f"timestamps."
            )
        return samples

    def _source(self, path: str) -> tuple[SourceFile, FrameIndex, tuple[StreamParameters, ...]]:
        """The prepared table of one file."""
        with self._lock:
            known = self._sources.get(path)
            if known is None:
                source = self._sidecar.source(path)
                stsd = source.header.stsd_body
                last = 1 if source.description_index is None else int(source.description_index.max())
                streams = tuple(
                    StreamParameters(*codec_extradata(stsd, number), *coded_size(stsd, number))
                    for number in range(1, last + 1)
                )
                known = (source, FrameIndex(source.samples), streams)
                self._sources[path] = known
            return known
