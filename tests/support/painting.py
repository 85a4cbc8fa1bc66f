"""Pictures that say which frame they are.

A picture shows its episode, frame and camera number as a 4x4 grid of light and dark cells, which survives
lossy coding: a frame that is off by one, of a neighbour episode or of another camera cannot pass as the
right one.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

_GRID = 4
_FRAME_BITS = 8
_EPISODE_BITS = 5
_LIGHT = np.array((230, 205, 60), dtype=np.uint8)
_DARK = np.array((20, 45, 125), dtype=np.uint8)
_DEPTH_FAR_MM = 2400
_DEPTH_NEAR_MM = 600


class Painted(NamedTuple):
    """What :func:`paint` wrote into a picture: the numbers of its episode, frame and camera."""

    episode: int
    frame: int
    camera: int


def _cells(episode: int, frame: int, camera: int, height: int, width: int) -> npt.NDArray[np.bool_]:
    """Spread the 16 bits of (camera, episode, frame) over a grid of `height` x `width` pixels."""
    code = frame | episode << _FRAME_BITS | camera << (_FRAME_BITS + _EPISODE_BITS)
    bits = np.array([code >> i & 1 for i in range(_GRID * _GRID)], dtype=np.bool_).reshape(_GRID, _GRID)
    rows = np.arange(height) * _GRID // height
    columns = np.arange(width) * _GRID // width
    grid: npt.NDArray[np.bool_] = bits[rows[:, None], columns[None, :]]
    return grid


def paint(episode: int, frame: int, camera: int, *, height: int, width: int) -> npt.NDArray[np.uint8]:
    """Draw the picture of one frame.

    Args:
        episode: Episode number, below 32.
        frame: Frame number inside the episode, below 256.
        camera: Camera number, below 8.
        height: Rows, at least 16.
        width: Columns, at least 16.

    Returns:
        RGB pixels, (height, width, 3).
    """
    cells = _cells(episode, frame, camera, height, width)[..., None]
    return np.where(cells, _LIGHT, _DARK)


def read_paint(image: Any) -> Painted:
    """Read back what :func:`paint` drew, also after lossy coding.

    Args:
        image: RGB as (3, H, W) or (H, W, 3), uint8 in [0, 255] or floating point in [0, 1], array or tensor.

    Returns:
        The numbers in the picture.
    """
    pixels = np.asarray(image)
    if pixels.shape[0] == 3:
        pixels = pixels.transpose(1, 2, 0)
    scale = 255.0 if np.issubdtype(pixels.dtype, np.floating) else 1.0
    green = pixels[..., 1].astype(np.float64) * scale
    height, width = green.shape
    code = 0
    for i, (row, column) in enumerate(itertools.product(range(_GRID), repeat=2)):
        cell = green[
            -(-row * height // _GRID) : -(-(row + 1) * height // _GRID),
            -(-column * width // _GRID) : -(-(column + 1) * width // _GRID),
        ]
        code |= int(cell.mean() > (int(_LIGHT[1]) + int(_DARK[1])) / 2) << i
    episode = code >> _FRAME_BITS & (1 << _EPISODE_BITS) - 1
    return Painted(episode, code & (1 << _FRAME_BITS) - 1, code >> (_FRAME_BITS + _EPISODE_BITS))


def paint_depth(episode: int, frame: int, camera: int, *, height: int, width: int) -> npt.NDArray[np.uint16]:
    """Draw one depth map: the same grid, near and far, on a slight slope.

    Args:
        episode: Episode number, below 32.
        frame: Frame number inside the episode, below 256.
        camera: Camera number, below 8.
        height: Rows, at least 16.
        width: Columns, at least 16.

    Returns:
        Millimetres, (height, width, 1).
    """
    cells = _cells(episode, frame, camera, height, width)
    slope = np.arange(width)[None, :]
    depth_mm = np.where(cells, _DEPTH_FAR_MM, _DEPTH_NEAR_MM) + slope
    pixels: npt.NDArray[np.uint16] = depth_mm[..., None].astype(np.uint16)
    return pixels
