"""Codec contexts fed with packets: no container is opened and nothing is seeked.

A run of samples from a sync sample on is sent to a context, the context is drained, the wanted frames are
kept, and the context is flushed for the next run. FFmpeg's own threads stay at one per context: parallelism
comes from the decode threads, and unset thread counts oversubscribe the machine.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import contextmanager
from fractions import Fraction
from threading import Condition
from typing import TYPE_CHECKING, Final, cast

import av

from lerobot_streaming.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from lerobot_streaming.episodes.videos import StreamParameters

_PREFERRED_DECODERS: Final = {"av1": ("libdav1d", "libaom-av1", "av1"), "vp9": ("vp9", "libvpx-vp9")}
"""The order in which libav's demuxer front end picks decoders; FFmpeg's own `av1` needs hardware."""

_TICK: Final = Fraction(1, 1_000_000)
"""Time base of the packets; only the order of their times matters, since times come from the sample table."""


def open_decoder(stream: StreamParameters) -> av.VideoCodecContext:
    """Opens a decoder with one FFmpeg thread and no frame delay beyond what reordering needs.

    Args:
        stream: Codec and configuration.

    Returns:
        An open codec context.

    Raises:
        DecodeError: The installed PyAV has no decoder for the codec, or it refuses the configuration.
    """
    reasons = []
    for name in _PREFERRED_DECODERS.get(stream.codec, (stream.codec,)):
        try:
            # PyAV makes the class that fits the codec; that of a video codec is VideoCodecContext.
            context = cast("av.VideoCodecContext", av.CodecContext.create(name, "r"))
            if stream.extradata:
                context.extradata = stream.extradata
            context.width, context.height = stream.width, stream.height
            context.thread_count = 1
            if name == "libdav1d":
                # dav1d otherwise holds frames back to decode several at once.
                context.options = {"max_frame_delay": "1"}
            context.open()
        except (av.error.FFmpegError, ValueError) as error:
            reasons.append(f"{name}: {error}")
        else:
            return context
    raise DecodeError(
        f"No decoder for codec {stream.codec!r} in PyAV {av.__version__} ({'; '.join(reasons)}). "
        "Install a PyAV build whose FFmpeg has one, or re-encode the video."
    )


class DecoderPool:
    """Open decoders, shared by the decode threads of a process and reused between runs.

    Args:
        limit: Most decoders open at a time; at least 1.
    """

    def __init__(self, limit: int) -> None:
        """Makes an empty pool."""
        self._limit = max(1, limit)
        self._idle: OrderedDict[int, tuple[StreamParameters, av.VideoCodecContext]] = OrderedDict()
        self._serial = 0
        self._open = 0
        self._changed = Condition()

    @contextmanager
    def lend(self, stream: StreamParameters) -> Iterator[av.VideoCodecContext]:
        """Lends a flushed decoder for one run.

        Waits while `limit` decoders are in use by other threads.

        Args:
            stream: Codec and configuration.

        Yields:
            A codec context that no other thread uses. After an exception it is closed, not reused.
        """
        context = self._take(stream)
        if context is None:
            try:
                context = open_decoder(stream)
            except BaseException:
                self._forget()
                raise
        try:
            yield context
        except BaseException:
            self._forget()
            raise
        context.flush_buffers()
        with self._changed:
            self._serial += 1
            self._idle[self._serial] = (stream, context)
            self._changed.notify()

    def _take(self, stream: StreamParameters) -> av.VideoCodecContext | None:
        """An idle decoder of the stream, or None together with the right to open one."""
        with self._changed:
            while True:
                for serial in reversed(self._idle):
                    if self._idle[serial][0] == stream:
                        return self._idle.pop(serial)[1]
                if self._open < self._limit:
                    self._open += 1
                    return None
                if self._idle:
                    # The right of the longest idle decoder passes on to the new one.
                    self._idle.popitem(last=False)
                    return None
                self._changed.wait()

    def _forget(self) -> None:
        with self._changed:
            self._open -= 1
            self._changed.notify()


def decode_run(
    context: av.VideoCodecContext,
    packets: Sequence[memoryview],
    first: int,
    wanted: Collection[int],
    cancelled: Callable[[], bool],
) -> dict[int, av.VideoFrame]:
    """Decodes one run of samples and keeps the wanted frames.

    A frame is recognised by its packet's time stamp, which decoders hand through unchanged; so the sample's
    number serves as its time stamp, and no time arithmetic can go wrong.

    Args:
        context: A flushed decoder.
        packets: Bytes of the samples in decode order, from a sync sample on.
        first: Number of the first sample.
        wanted: Numbers of the samples whose frames to keep.
        cancelled: Asked between packets; when it says True, decoding ends with what there is.

    Returns:
        The wanted frames that came out, by sample. They are libav's own buffers, not copies.

    Raises:
        av.error.FFmpegError: libav refuses the data.
    """
    frames: dict[int, av.VideoFrame] = {}
    for number, data in enumerate(packets, start=first):
        if cancelled():
            break
        packet = av.Packet(data)  # type: ignore[arg-type]  # PyAV takes any buffer; its stub says bytes.
        packet.pts = packet.dts = number
        packet.time_base = _TICK
        for frame in context.decode(packet):
            if frame.pts in wanted:
                frames[frame.pts] = frame
    # Draining gives up the frames held back for reordering, so nothing after the last wanted sample is
    # decoded.
    for frame in context.decode(None):
        if frame.pts in wanted:
            frames[frame.pts] = frame
    return frames
