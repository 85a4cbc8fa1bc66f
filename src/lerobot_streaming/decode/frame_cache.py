"""Decoded frames by look-ahead: when a GOP is decoded, what the coming draws want of it is kept."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING

import av

from lerobot_streaming.decode.decoders import decode_run
from lerobot_streaming.errors import DecodeError, PipelineClosedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lerobot_streaming.decode.decoders import DecoderPool
    from lerobot_streaming.decode.lookahead import LookAhead
    from lerobot_streaming.episodes.videos import EpisodeVideo
    from lerobot_streaming.stats import WorkerStats


@dataclass(slots=True)
class _Gop:
    """Kept frames of one GOP, by sample; the lock makes threads that want the same GOP decode it once."""

    lock: Lock = field(default_factory=Lock)
    frames: dict[int, av.VideoFrame] = field(default_factory=dict)
    frame_bytes: int = 0  # One frame's; all of a GOP are of one size.
    users: int = 0


def frame_bytes(frame: av.VideoFrame) -> int:
    """Bytes of a decoded frame's planes, line padding included."""
    return sum(plane.buffer_size for plane in frame.planes)


def _by_gop(video: EpisodeVideo, frames: Sequence[int]) -> dict[int, set[int]]:
    """The samples of some frames, by the sync sample that they decode from."""
    samples: dict[int, set[int]] = {}
    for frame in frames:
        samples.setdefault(video.start_of_frame[frame], set()).add(video.sample_of_frame[frame])
    return samples


class FrameCache:
    """Gives decoded frames, decoding each GOP about once while the window reaches over its draws.

    Thread-safe. The kept frames are libav's own buffers in the decoder's format (1.5 bytes a pixel for
    yuv420p), not copies.

    Args:
        budget_bytes: Most bytes of frames kept for later draws; 0 keeps none.
        lookahead: The window of coming draws.
        decoders: Where decoders come from.
        stats: Counters to report to.
        cancelled: Says True when decoding must stop.
    """

    def __init__(
        self,
        budget_bytes: int,
        lookahead: LookAhead,
        decoders: DecoderPool,
        stats: WorkerStats,
        cancelled: Callable[[], bool],
    ) -> None:
        """Makes an empty cache."""
        self._budget_bytes = budget_bytes
        self._lookahead = lookahead
        self._decoders = decoders
        self._stats = stats
        self._cancelled = cancelled
        self._gops: dict[tuple[int, int, int], _Gop] = {}
        self._frame_bytes: dict[int, int] = {}
        self._bytes = 0
        self._lock = Lock()

    @property
    def num_bytes(self) -> int:
        """Bytes of the frames kept now; at most the budget."""
        return self._bytes

    def warm(self, position: int, camera: int, video: EpisodeVideo, wanted: Sequence[int]) -> bool:
        """Decodes and keeps frames that a coming draw wants, unless they are kept already.

        Args:
            position: Position of the episode.
            camera: Number of the camera.
            video: Its mini-MP4.
            wanted: Frame numbers.

        Returns:
            Whether anything was decoded.

        Raises:
            DecodeError: As for `frames`.
            PipelineClosedError: Decoding was cancelled.
        """
        decoded = False
        for start, samples in _by_gop(video, wanted).items():
            with self._gop((position, camera, start)) as gop:
                missing = samples - gop.frames.keys()
                if missing:
                    self._decode(position, camera, video, start, missing, gop)
                    decoded = True
        return decoded

    def frames(
        self, position: int, camera: int, video: EpisodeVideo, wanted: Sequence[int]
    ) -> list[av.VideoFrame]:
        """Decoded frames of one camera.

        Args:
            position: Position of the episode.
            camera: Number of the camera.
            video: Its mini-MP4.
            wanted: Frame numbers, in any order, repeats allowed.

        Returns:
            One decoded frame per wanted number. They are shared: read them only.

        Raises:
            DecodeError: libav refuses the data, or a frame does not come out; episode and file are named.
            PipelineClosedError: Decoding was cancelled.
        """
        found: dict[int, av.VideoFrame] = {}
        for start, samples in _by_gop(video, wanted).items():
            with self._gop((position, camera, start)) as gop:
                kept = {sample: gop.frames[sample] for sample in samples if sample in gop.frames}
                self._stats.add("frames_from_cache", len(kept))
                missing = samples - kept.keys()
                found |= kept
                if missing:
                    found |= self._decode(position, camera, video, start, missing, gop)
        return [found[video.sample_of_frame[frame]] for frame in wanted]

    def draw_done(self, position: int, frame: int, videos: Sequence[EpisodeVideo]) -> None:
        """Takes a delivered draw out of the window and drops the frames that nothing wants any more.

        Args:
            position: Position of the episode.
            frame: The anchor's frame number.
            videos: The episode's cameras.
        """
        unwanted = self._lookahead.remove(position, frame)
        with self._lock:
            for camera, (video, frames) in enumerate(zip(videos, unwanted, strict=True)):
                for number in frames:
                    key = (position, camera, video.start_of_frame[number])
                    gop = self._gops.get(key)
                    if gop is None:
                        continue
                    dropped = gop.frames.pop(video.sample_of_frame[number], None)
                    if dropped is not None:
                        self._bytes -= gop.frame_bytes
                    if not gop.frames and not gop.users:
                        del self._gops[key]

    def clear(self) -> None:
        """Drops all frames; nothing is kept from then on."""
        with self._lock:
            self._budget_bytes = 0
            self._gops.clear()
            self._bytes = 0

    @contextmanager
    def _gop(self, key: tuple[int, int, int]) -> Iterator[_Gop]:
        """The kept frames of a GOP, which no other thread decodes meanwhile."""
        with self._lock:
            gop = self._gops.setdefault(key, _Gop())
            gop.users += 1
        try:
            with gop.lock:
                yield gop
        finally:
            with self._lock:
                gop.users -= 1
                if not gop.frames and not gop.users:
                    self._gops.pop(key, None)

    def _decode(
        self, position: int, camera: int, video: EpisodeVideo, start: int, missing: set[int], gop: _Gop
    ) -> dict[int, av.VideoFrame]:
        """Decodes a GOP from its sync sample as far as it pays, keeping what the window wants."""
        wanted = missing
        if self._budget_bytes:
            # Decoding on to a frame that a later draw wants costs less than the run from the sync sample that
            # this draw would cost, unless the frame cannot be kept.
            coming = self._lookahead.wanted(camera, position, video.frames_of_start[start])
            samples = (video.sample_of_frame[frame] for frame in coming)
            ahead = [sample for sample in samples if sample not in gop.frames]
            wanted = missing | set(ahead[: self._num_fitting(camera)])
        try:
            frames = self._run(video, start, wanted)
        except DecodeError:
            if max(wanted) == max(missing):
                raise
            # Maybe only what later draws want is damaged: then the error is theirs.
            frames = self._run(video, start, missing)
        if not missing <= frames.keys():
            if self._cancelled():
                raise PipelineClosedError("The pipeline was closed during a decode.")
            raise DecodeError(
                f"The decoder did not return sample(s) {sorted(missing - frames.keys())} of camera "
                f"{video.camera!r} of episode {video.episode} (file {video.path}), though their bytes were "
                "read. The file is damaged there: restore it, or leave the episode out with "
                "`episodes=[...]`."
            )
        if self._budget_bytes:
            self._keep(gop, frames, camera, position, video.frames_of_start[start], video.sample_of_frame)
        return {sample: frames[sample] for sample in missing}

    def _run(self, video: EpisodeVideo, start: int, wanted: set[int]) -> dict[int, av.VideoFrame]:
        """Decodes from a sync sample to the last wanted one."""
        last = max(wanted)
        begin = perf_counter()
        try:
            with self._decoders.lend(video.stream(start)) as decoder:
                frames = decode_run(decoder, video.packets(start, last), start, wanted, self._cancelled)
        except av.error.FFmpegError as error:
            raise DecodeError(
                f"libav could not decode camera {video.camera!r} of episode {video.episode}, samples {start} "
                f"to {last} of its span in file {video.path}: {error}. The file is damaged there: restore "
                "it, or leave the episode out with `episodes=[...]`."
            ) from error
        self._stats.add("decode_s", perf_counter() - begin)
        self._stats.add("frames_decoded", last - start + 1)
        return frames

    def _num_fitting(self, camera: int) -> int | None:
        """How many frames of a camera the cache has room for; None before the first has come."""
        size = self._frame_bytes.get(camera)
        return None if size is None else (self._budget_bytes - self._bytes) // size

    def _keep(
        self,
        gop: _Gop,
        decoded: dict[int, av.VideoFrame],
        camera: int,
        position: int,
        frames: Sequence[int],
        sample_of_frame: Sequence[int],
    ) -> None:
        """Keeps what the window wants, as far as the budget allows; the rest is decoded again."""
        with self._lock:
            # Asked again under the lock: a draw that was delivered meanwhile would never come to drop its
            # frame.
            for number in self._lookahead.wanted(camera, position, frames):
                sample = sample_of_frame[number]
                frame = decoded.get(sample)
                if frame is None or sample in gop.frames:
                    continue
                if not gop.frame_bytes:
                    gop.frame_bytes = self._frame_bytes[camera] = frame_bytes(frame)
                size = gop.frame_bytes
                if self._bytes + size > self._budget_bytes:
                    break
                gop.frames[sample] = frame
                self._bytes += size
