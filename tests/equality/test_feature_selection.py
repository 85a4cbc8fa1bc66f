"""A selection of features gives map-style's items without the keys that were left out, bit for bit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from torch.utils.data import DataLoader

from lerobot_streaming import StreamingLeRobotDataset
from tests.support.datasets import ACTION, CAMERA_A, CAMERA_B, DEPTH, REPO_ID, STATE, Shelf
from tests.support.oracle import Item, assert_same_items, map_items, stream_items

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import torch

ALWAYS = {"index", "episode_index", "frame_index", "timestamp", "task_index", "task"}
WINDOW = [0.1, -0.1, 0, 0]


def restricted(items: Mapping[int, Item], features: Sequence[str]) -> dict[int, Item]:
    """Leave the selected features, their padding masks and what every item has."""
    kept = {*features, *(f"{name}_is_pad" for name in features), *ALWAYS}
    return {
        index: {key: value for key, value in item.items() if key in kept} for index, item in items.items()
    }


def mirror(image: torch.Tensor) -> torch.Tensor:
    return image.flip(-1)


def identity(item: Any) -> Any:
    return item


SELECTIONS: list[tuple[str, list[str]]] = [
    ("av1", [CAMERA_A]),
    ("av1", [CAMERA_B, ACTION]),
    ("av1", [STATE]),
    ("av1", ["index"]),
    ("rotating_files", [CAMERA_B]),
    ("images", [CAMERA_B]),
    ("images", [STATE, ACTION]),
    ("depth_video_mm", [DEPTH]),
    ("depth_video_mm", [CAMERA_A]),
    ("depth_image_m", [DEPTH, STATE]),
    ("depth_image_m", [CAMERA_A]),
    ("language", ["language_events", "maybe"]),
    ("language", ["note", CAMERA_A]),
    ("odd_features", ["odd.string", "odd.cube", "odd.empty"]),
]


@pytest.mark.parametrize(("kind", "features"), SELECTIONS, ids=str)
def test_items_are_those_of_map_style_without_the_others(
    shelf: Shelf, kind: str, features: list[str]
) -> None:
    expected = restricted(map_items(shelf.reference(kind)), features)
    got = stream_items(StreamingLeRobotDataset(REPO_ID, shelf.root(kind), features=features))
    assert_same_items(expected, got)
    first = min(got)
    assert set(got[first]) == {*features, *ALWAYS}
    assert list(got[first]) == [key for key in expected[first]]  # noqa: C416  The order of map-style.


@pytest.mark.parametrize(
    ("kind", "features"),
    [
        ("rotating_files", [CAMERA_B, ACTION]),
        ("images", [CAMERA_B]),
        ("depth_video_mm", [CAMERA_A, STATE]),
        ("depth_image_m", [DEPTH]),
    ],
    ids=str,
)
def test_windows_and_transforms_of_what_is_left(shelf: Shelf, kind: str, features: list[str]) -> None:
    arguments: dict[str, Any] = {"image_transforms": mirror, "return_uint8": True}
    windows = dict.fromkeys(features, WINDOW)
    expected = map_items(shelf.reference(kind), delta_timestamps=windows, **arguments)
    dataset = StreamingLeRobotDataset(
        REPO_ID, shelf.root(kind), delta_timestamps=windows, features=features, **arguments
    )
    got = stream_items(dataset)
    assert_same_items(restricted(expected, features), got)
    assert all(f"{name}_is_pad" in got[0] for name in features)


def test_a_window_of_a_column_that_every_item_has_needs_no_selection(shelf: Shelf) -> None:
    windows: dict[str, list[float]] = {"timestamp": [0.1], "frame_index": [0.0, 0.1]}
    expected = map_items(shelf.root("av1"), delta_timestamps=windows)
    dataset = StreamingLeRobotDataset(
        REPO_ID, shelf.root("av1"), delta_timestamps=windows, features=[CAMERA_A]
    )
    kept = [CAMERA_A, *windows]
    assert_same_items(restricted(expected, kept), stream_items(dataset))


@pytest.mark.parametrize(
    ("kind", "features"),
    [
        ("rotating_files", [CAMERA_B]),
        pytest.param("language", ["note"], marks=pytest.mark.slow),
        pytest.param("images", [CAMERA_A], marks=pytest.mark.slow),
    ],
)
def test_spawned_workers_know_the_selection(shelf: Shelf, kind: str, features: list[str]) -> None:
    dataset = StreamingLeRobotDataset(REPO_ID, shelf.root(kind), features=features)
    loader = DataLoader(
        dataset, batch_size=None, num_workers=2, multiprocessing_context="spawn", collate_fn=identity
    )
    assert_same_items(restricted(map_items(shelf.reference(kind)), features), stream_items(loader))


def test_without_a_selection_nothing_is_left_out(shelf: Shelf) -> None:
    root: Path = shelf.root("av1")
    dataset = StreamingLeRobotDataset(REPO_ID, root, features=None)
    assert set(dataset.features) == set(dataset.meta.features)
    assert_same_items(map_items(root), stream_items(dataset))
