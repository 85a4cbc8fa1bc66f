"""Pixels are those of `VideoFrame.to_ndarray(format="rgb24")`, whatever the format and size."""

from __future__ import annotations

import threading

import av
import numpy as np
import pytest

from lerobot_streaming.decode.colour import ColourConverter


def _noise(pix_fmt: str, width: int, height: int, seed: int = 0) -> av.VideoFrame:
    rng = np.random.default_rng(seed)
    picture = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
    return av.VideoFrame.from_ndarray(picture, format="rgb24").reformat(format=pix_fmt)


@pytest.mark.parametrize(
    "pix_fmt", ["yuv420p", "yuvj420p", "yuv422p", "yuv444p", "yuv420p10le", "nv12", "gray"]
)
@pytest.mark.parametrize(
    ("width", "height"), [(64, 48), (640, 480), (66, 50), (70, 48), (35, 27), (320, 180), (8, 8)]
)
def test_pixels_equal_those_of_pyav(pix_fmt: str, width: int, height: int) -> None:
    converter = ColourConverter()
    for seed in range(3):
        frame = _noise(pix_fmt, width, height, seed)
        pixels = np.full((2, 3, height, width), 77, dtype=np.uint8)
        converter.rgb(frame, pixels[1])
        assert np.array_equal(pixels[1].transpose(1, 2, 0), frame.to_ndarray(format="rgb24"))
        assert (pixels[0] == 77).all()


@pytest.mark.parametrize("pix_fmt", ["yuv420p", "yuv420p10le"])
def test_threads_may_convert_the_same_frame_at_once(pix_fmt: str) -> None:
    frame = _noise(pix_fmt, 66, 50)
    expected = frame.to_ndarray(format="rgb24").transpose(2, 0, 1)
    wrong: list[int] = []

    def convert(number: int) -> None:
        converter = ColourConverter()
        pixels = np.empty((3, 50, 66), dtype=np.uint8)
        for _ in range(200):
            pixels.fill(number)
            converter.rgb(frame, pixels)
            if not np.array_equal(pixels, expected):
                wrong.append(number)

    threads = [threading.Thread(target=convert, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_depth_codes_keep_all_twelve_bits() -> None:
    codes = np.arange(48 * 64, dtype=np.uint16).reshape(48, 64) % 4096
    frame = av.VideoFrame.from_ndarray(codes, format="gray12le")
    tensor = ColourConverter.depth_codes(frame)
    assert tensor.shape == (1, 48, 64)
    assert np.array_equal(tensor[0].numpy(), codes)
