"""From decoded frames to channel-first pixels, bit for bit those of `VideoFrame.to_ndarray("rgb24")`.

Converting to planar `gbrp` gives the same values already channel first and saves a transposing copy, but only
where swscale takes equivalent paths for both formats: with FFmpeg 7.1 that held for 8-bit frames 64 and 640
pixels wide and failed for 10-bit frames and for 8-bit frames 66 and 70 wide. So the first frame of every
(format, size, colour space) decides: both conversions are made of it and of noise, and `gbrp` is used from
then on only when they agree in every bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import av
import numpy as np
import torch
from av.video.reformatter import VideoReformatter

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PLANES_OF_RGB = (2, 0, 1)
"""The planes of `gbrp` are green, blue, red: red is plane 2, green 0, blue 1."""

_COPIED_UNDER_LOCK: Final = 512 * 1024
"""Planes up to this many bytes (about 50 us) are copied without giving the interpreter's lock away, as NumPy
does: to get it back from busy decode threads takes longer."""

DEPTH_FORMAT = "gray12le"
"""Pixel format that depth codes are read in (12-bit codes in 16-bit words), as in lerobot's reader."""


def _plane(frame: av.VideoFrame, number: int) -> NDArray[np.uint8]:
    """One 8-bit plane without its line padding, a view of the frame's memory."""
    plane = frame.planes[number]
    lines = np.frombuffer(plane, dtype=np.uint8).reshape(-1, plane.line_size)
    view: NDArray[np.uint8] = lines[: plane.height, : plane.width]
    return view


def _copy_planes(planar: av.VideoFrame, out: NDArray[np.uint8]) -> None:
    """Copies the planes of a `gbrp` frame to red, green and blue."""
    planes = planar.planes
    size = planar.width * planar.height
    if size <= _COPIED_UNDER_LOCK and planes[0].buffer_size == size and out.flags.c_contiguous:
        flat = memoryview(out).cast("B")
        for channel, number in enumerate(_PLANES_OF_RGB):
            flat[channel * size : (channel + 1) * size] = planes[number]
        return
    for channel, number in enumerate(_PLANES_OF_RGB):
        np.copyto(out[channel], _plane(planar, number))


def _noise_like(frame: av.VideoFrame) -> av.VideoFrame:
    """A frame of the same format and size with deterministic noise in every plane."""
    noise = av.VideoFrame(frame.width, frame.height, frame.format.name)
    rng = np.random.Generator(np.random.PCG64(0))
    for plane in noise.planes:
        plane.update(rng.integers(0, 256, plane.buffer_size, dtype=np.uint8).tobytes())
    noise.colorspace = frame.colorspace
    noise.color_range = frame.color_range
    return noise


class ColourConverter:
    """Converts decoded frames to tensors. Not thread-safe: every decode thread owns one.

    Frames are shared between threads, and `VideoFrame.reformat` and `to_ndarray(format=...)` keep a swscale
    context in the frame itself: two threads in it at once crash. So conversions only ever use a reformatter
    of their own.

    The swscale contexts live as long as the converter, so a conversion does not set one up.
    """

    def __init__(self) -> None:
        """Makes a converter that has seen no format yet."""
        self._reformatters: dict[tuple[Any, ...], tuple[VideoReformatter, bool]] = {}

    def rgb(self, frame: av.VideoFrame, out: NDArray[np.uint8]) -> None:
        """Converts a frame to RGB.

        Args:
            frame: Any decoded video frame.
            out: Where the pixels go, uint8 (3, H, W).
        """
        key = (frame.format.name, frame.width, frame.height, frame.colorspace, frame.color_range)
        known = self._reformatters.get(key)
        if known is None:
            known = self._reformatters[key] = (VideoReformatter(), self._planar_agrees(frame))
        reformatter, planar = known
        if planar:
            converted = reformatter.reformat(frame, format="gbrp")
            _copy_planes(converted, out)
        else:
            packed = reformatter.reformat(frame, format="rgb24").to_ndarray()
            np.copyto(out, packed.transpose(2, 0, 1))

    @staticmethod
    def depth_codes(frame: av.VideoFrame) -> torch.Tensor:
        """Reads the 12-bit codes of a depth frame.

        Args:
            frame: A decoded frame of a depth video.

        Returns:
            uint16 tensor (1, H, W) that owns its memory.
        """
        codes = VideoReformatter().reformat(frame, format=DEPTH_FORMAT).to_ndarray()
        return torch.from_numpy(np.ascontiguousarray(codes)).unsqueeze(0)

    @staticmethod
    def _planar_agrees(frame: av.VideoFrame) -> bool:
        """Whether `gbrp` gives the bits of `rgb24` for this frame and for noise of its kind."""
        try:
            for probe in (frame, _noise_like(frame)):
                packed = VideoReformatter().reformat(probe, format="rgb24").to_ndarray()
                planar = VideoReformatter().reformat(probe, format="gbrp")
                for channel, number in enumerate(_PLANES_OF_RGB):
                    if not np.array_equal(packed[:, :, channel], _plane(planar, number)):
                        return False
        except (ValueError, av.error.FFmpegError):  # A format that one of the two conversions does not know.
            return False
        return True
