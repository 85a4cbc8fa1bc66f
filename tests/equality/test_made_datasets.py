"""The made datasets: map-style must find in them what the makers painted, or the oracle is blind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.support.datasets import (
    CAMERA_A,
    CAMERA_B,
    DEPTH,
    KINDS,
    Shelf,
    episode_rows,
    lossless_twin,
    paint,
    read_paint,
    video_files,
)
from tests.support.oracle import assert_same_item, assert_same_items, map_items

if TYPE_CHECKING:
    from pathlib import Path

DELETED = ("deleted_reencoded", "deleted_metadata")
"""Kinds whose episodes 0, 1, 2 show the painted numbers 0, 2, 4."""


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_shows_what_was_painted(shelf: Shelf, kind: str) -> None:
    for index, item in map_items(shelf.reference(kind), return_uint8=True).items():
        cameras = [key for key in (CAMERA_A, CAMERA_B) if key in item]
        for number, camera in enumerate(cameras):
            painted = read_paint(item[camera])
            episode = int(item["episode_index"]) * (2 if kind in DELETED else 1)
            assert painted == (episode, int(item["frame_index"]), number), f"{camera} of frame {index}"


def test_paint_reads_back_after_every_size() -> None:
    for height, width in ((16, 16), (32, 32), (45, 63), (48, 64)):
        for numbers in ((0, 0, 0), (31, 255, 7), (9, 130, 2)):
            image = paint(*numbers, height=height, width=width)
            assert read_paint(image) == numbers
            assert read_paint(torch.from_numpy(image).permute(2, 0, 1) / 255) == numbers


def test_the_lossless_twin_has_the_pixels_of_the_original(shelf: Shelf, tmp_path: Path) -> None:
    twin = lossless_twin(shelf.root("av1"), tmp_path / "twin")
    assert_same_items(map_items(shelf.root("av1")), map_items(twin))


def test_the_files_rotate_where_the_makers_say(shelf: Shelf) -> None:
    rows = episode_rows(shelf.root("rotating_files"))
    assert [row[f"videos/{CAMERA_A}/file_index"] for row in rows] == [0, 1, 2, 3, 4]
    assert [row[f"videos/{CAMERA_B}/file_index"] for row in rows] == [0, 1, 1, 2, 2]
    assert len(video_files(shelf.root("aggregated"), CAMERA_A)) > 1
    assert {row["data/file_index"] for row in episode_rows(shelf.root("aggregated"))} == {0, 1}


def test_depth_codes_survive_the_recording(shelf: Shelf) -> None:
    from lerobot.datasets.depth_utils import dequantize_depth

    for item in map_items(shelf.reference("depth_codes"), depth_output_unit="m").values():
        code = (64, 1024, 2048, 4032)[int(item["episode_index"])]
        expected = dequantize_depth(torch.full((1, 48, 64), code), output_unit="m")
        assert torch.equal(item[DEPTH], expected)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x": torch.tensor([1.0, 3.0])}, r"item 0\['x'\]: 1 of 2 values differ, first at \(1,\)"),
        ({"x": torch.tensor([1.0, 2.0], dtype=torch.float64)}, "expected tensor torch.float32"),
        ({"x": torch.tensor([[1.0, 2.0]])}, r"got tensor torch.float32 \(1, 2\)"),
        ({"x": torch.tensor([1.0, 2.0, 3.0])[:2]}, "holds on to a storage of 12 bytes"),
        ({"nan": torch.tensor(0.0)}, "expected nan"),
        ({"task": None}, "expected str 'do', got NoneType None"),
        ({"rows": [{"a": 1}]}, r"\['rows'\]\[0\]\['a'\]"),
        ({"rows": []}, "got list"),
        ({"more": 1}, r"\['more'\] should not be there"),
        ({"x": None}, "got NoneType"),
    ],
)
def test_the_oracle_says_what_differs(changed: dict[str, Any], message: str) -> None:
    item = {
        "x": torch.tensor([1.0, 2.0]),
        "nan": torch.tensor(float("nan")),
        "task": "do",
        "rows": [{"a": None}],
    }
    assert_same_item(item, dict(item), where="item 0")
    with pytest.raises(AssertionError, match=message):
        assert_same_item(item, {**item, **changed}, where="item 0")


def test_the_oracle_misses_no_frame(shelf: Shelf) -> None:
    items = map_items(shelf.root("av1"))
    with pytest.raises(AssertionError, match=r"frames \[3\] never came"):
        assert_same_items(items, {index: item for index, item in items.items() if index != 3})
    with pytest.raises(AssertionError, match=r"frames \[3\] should not have come"):
        assert_same_items({index: item for index, item in items.items() if index != 3}, items)
