"""Spans, sizes and mini-MP4s of the selected episodes, by way of the index."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from lerobot_streaming.episodes.episode_spans import beyond_file, episode_spans
from lerobot_streaming.episodes.mini_mp4 import MiniMp4Plan, fetch_mini_mp4, plan_mini_mp4
from lerobot_streaming.episodes.mini_mp4_sizes import mini_mp4_sizes
from lerobot_streaming.episodes.videos import EpisodeVideo, StreamParameters, timestamp_verdict
from lerobot_streaming.errors import DatasetLayoutError, FetchError, FrameTimestampError, MissingFileError
from lerobot_streaming.index.extradata import codec_extradata, coded_size
from lerobot_streaming.index.spans import FrameIndex

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from lerobot_streaming.episodes.layout import DatasetLayout
    from lerobot_streaming.index.sample_index import SampleIndex
    from lerobot_streaming.index.tables import SourceFile
    from lerobot_streaming.storage.base import RangeReader


_MAX_PLANS: Final = 1024
"""Plans that are kept from an episode's reservation until it is read; making one takes a millisecond."""

_MAX_PREPARED: Final = 512
"""Files whose tables are kept prepared; preparing one again takes a fraction of a millisecond."""


@dataclass(frozen=True, slots=True)
class MiniMp4:
    """One camera of an episode as it was read.

    Attributes:
        plan: What was read.
        data: The finished mini-MP4, `plan.size_bytes` bytes.
    """

    plan: MiniMp4Plan
    data: bytearray


class VideoCatalog:
    """Spans, sizes and frame maps of the selected episodes. Thread-safe.

    Args:
        layout: The selected episodes.
        index: Sample tables of the video files.
        tolerance_s: Seconds that a frame may lie from its wanted time.
    """

    def __init__(self, layout: DatasetLayout, index: SampleIndex, tolerance_s: float) -> None:
        """Reads nothing yet: a file's table is prepared when an episode first needs it."""
        self._layout = layout
        self._index = index
        self._tolerance_s = tolerance_s
        self._sources: dict[str, tuple[SourceFile, FrameIndex, tuple[StreamParameters, ...]]] = {}
        self._plans: dict[tuple[int, str], MiniMp4Plan] = {}
        self._sizes = {camera: np.full(layout.num_episodes, -1, dtype=np.int64) for camera in layout.cameras}

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out what has been prepared: a worker prepares what it needs."""
        state = self.__dict__.copy()
        state["_sources"], state["_plans"] = {}, {}
        return state

    def check(self) -> None:
        """Finds episodes that lie beyond the end of their files, as far as the files are indexed.

        Raises:
            DatasetLayoutError: An episode lies beyond the end of a file.
        """
        for camera, table in self._layout.cameras.items():
            ends = [
                self._source(path)[1].last_pts_seconds if self._index.knows(path) else np.inf
                for path in table.files
            ]
            everybody = np.arange(self._layout.num_episodes)
            file_ends = np.array(ends)[table.file_of]
            outside = beyond_file(self._layout, table, everybody, file_ends, self._tolerance_s)
            if outside.any():
                position = int(np.argmax(outside))
                raise self._outside(position, camera, ends[int(table.file_of[position])])

    def _outside(self, position: int, camera: str, file_end: float) -> DatasetLayoutError:
        layout, table = self._layout, self._layout.cameras[camera]
        begin, path = float(table.from_seconds[position]), table.path(position)
        who = f"episode {layout.episode_index[position]}, camera {camera!r}"
        if begin > file_end + self._tolerance_s:
            return DatasetLayoutError(
                f"from_timestamp {begin:.6f} s of {who}, lies beyond the end of file {path}, whose last "
                f"frame is at {file_end:.6f} s. Repair meta/episodes: the offset probably belongs to another "
                "file."
            )
        return DatasetLayoutError(
            f"The {layout.lengths[position]} frames of {who}, begin at {begin:.6f} s and reach beyond the "
            f"end of file {path}, whose last frame is at {file_end:.6f} s. Repair meta/episodes or the video."
        )

    def load(self, positions: Iterable[int]) -> None:
        """Makes sure that the files of episodes are indexed.

        Args:
            positions: Positions of the episodes.

        Raises:
            BadVideoFilesError: Files cannot be indexed; all of them are listed.
        """
        self._index.load(path for position in positions for path in self._paths(position))

    def load_ahead(self, positions: Iterable[int]) -> None:
        """Says in which order episodes will be needed, so that their files are indexed in time.

        Args:
            positions: Positions of the episodes.
        """
        self._index.load_ahead(path for position in positions for path in self._paths(position))

    def known_size(self, position: int) -> int | None:
        """Exact bytes of an episode's mini-MP4s, if they can be told without reading from the dataset.

        Whoever asks reads the episode next: its mini-MP4s are planned, and its files' other episodes are not
        looked at.

        Args:
            position: Position of the episode.

        Returns:
            Bytes over all cameras, or None while a file has not been indexed.
        """
        for camera, sizes in self._sizes.items():
            if sizes[position] < 0:
                if not all(self._index.knows(path) for path in self._paths(position)):
                    return None
                plan = self.plan(position, camera)
                sizes[position] = plan.size_bytes
                self._plans[position, camera] = plan
                while len(self._plans) > _MAX_PLANS:
                    self._plans.pop(next(iter(self._plans)), None)
        return self.size(position)

    def size(self, position: int) -> int:
        """Exact bytes of an episode's mini-MP4s; files that have not been indexed are indexed first.

        Args:
            position: Position of the episode.

        Returns:
            Bytes over all cameras.

        Raises:
            DatasetLayoutError: The episode lies beyond the end of a file.
            BadVideoFilesError: A file cannot be indexed.
        """
        return sum(self._camera_size(position, camera) for camera in self._layout.cameras)

    def sizes(self, positions: Sequence[int]) -> NDArray[np.int64]:
        """Exact bytes of the mini-MP4s of episodes; files that have not been indexed are indexed first.

        Args:
            positions: Positions of the episodes.

        Returns:
            Bytes per episode over all cameras, int64 (n,).

        Raises:
            DatasetLayoutError: An episode lies beyond the end of a file.
            BadVideoFilesError: Files cannot be indexed; all of them are listed.
        """
        self.load(positions)
        return np.array([self.size(position) for position in positions], dtype=np.int64)

    def _camera_size(self, position: int, camera: str) -> int:
        sizes = self._sizes[camera]
        if sizes[position] < 0:
            self._measure_file(position, camera)
            if sizes[position] < 0:
                # It lies beyond the end of its file, which planning it says in full.
                sizes[position] = self.plan(position, camera).size_bytes
        return int(sizes[position])

    def _measure_file(self, position: int, camera: str) -> None:
        """Computes the sizes of all episodes in a file: together they cost little more than one."""
        layout, table = self._layout, self._layout.cameras[camera]
        source, frames, _ = self._source(table.path(position))
        group = np.flatnonzero(table.file_of == table.file_of[position])
        inside = group[~beyond_file(layout, table, group, frames.last_pts_seconds, self._tolerance_s)]
        self._sizes[camera][inside] = mini_mp4_sizes(source, *episode_spans(layout, table, frames, inside))

    def _paths(self, position: int) -> Iterator[str]:
        return (table.path(position) for table in self._layout.cameras.values())

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
        only = np.array([position])
        if beyond_file(layout, table, only, frames.last_pts_seconds, self._tolerance_s)[0]:
            raise self._outside(position, camera, frames.last_pts_seconds)
        first, last = episode_spans(layout, table, frames, only)
        return plan_mini_mp4(source, int(first[0]), int(last[0]))

    def read(self, position: int, camera: str, reader: RangeReader) -> MiniMp4:
        """Reads one camera of an episode.

        Args:
            position: Position of the episode.
            camera: Feature name of the camera.
            reader: Where the bytes come from.

        Returns:
            The camera's mini-MP4, for `match`.

        Raises:
            DatasetLayoutError: The episode lies beyond the end of the file.
            FetchError: The bytes could not be read.
        """
        plan, path = self._plans.pop((position, camera), None), self._layout.cameras[camera].path(position)
        if plan is None:
            plan = self.plan(position, camera)
        try:
            return MiniMp4(plan, fetch_mini_mp4(plan, reader, path))
        except (FetchError, MissingFileError) as error:
            raise type(error)(
                f"Could not read episode {self._layout.episode_index[position]}, camera {camera!r}: {error}"
            ) from error

    def match(
        self, position: int, camera: str, timestamps: NDArray[np.float64], mini_mp4: MiniMp4
    ) -> EpisodeVideo:
        """Matches the frames of one camera of an episode to the samples that were read.

        Args:
            position: Position of the episode.
            camera: Feature name of the camera.
            timestamps: Seconds since the start of the episode of each of its frames, float64 (n,).
            mini_mp4: What `read` gave.

        Returns:
            The camera's mini-MP4 with the sample of every frame.

        Raises:
            FrameTimestampError: A frame has no sample near enough.
        """
        path = self._layout.cameras[camera].path(position)
        source, frames, streams = self._source(path)
        plan = mini_mp4.plan
        samples = self._match(position, camera, timestamps, plan)
        starts = frames.sync_for(samples)
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
            data=mini_mp4.data,
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
        known = self._sources.get(path)
        if known is None:
            # Two threads may both prepare it; both results are equal, and the first one stays.
            known = self._sources.setdefault(path, _prepare(self._index.source(path)))
            while len(self._sources) > _MAX_PREPARED:
                self._sources.pop(next(iter(self._sources), path), None)
        return known


def _prepare(source: SourceFile) -> tuple[SourceFile, FrameIndex, tuple[StreamParameters, ...]]:
    stsd = source.header.stsd_body
    last = 1 if source.description_index is None else int(source.description_index.max())
    streams = tuple(
        StreamParameters(*codec_extradata(stsd, number), *coded_size(stsd, number))
        for number in range(1, last + 1)
    )
    return source, FrameIndex(source.samples), streams
