"""Streaming gives what map-style gives: every frame of every kind of dataset, bit for bit, exactly once."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import DataLoader

from lerobot_streaming import StreamingLeRobotDataset
from tests.support.datasets import (
    ACTION,
    CAMERA_A,
    CAMERA_B,
    DEPTH,
    KINDS,
    REPO_ID,
    STATE,
    Shelf,
    load_info,
    make_empty_vector,
    without_column,
)
from tests.support.oracle import assert_same_item, assert_same_items, map_items, stream_items

if TYPE_CHECKING:
    from pathlib import Path


WINDOW = [0.1, -0.1, 0, 0]
"""Deltas at 10 fps: unsorted and with a duplicate."""


def identity(item: Any) -> Any:
    """Collate nothing; a function of a module, so that it reaches spawned workers."""
    return item


def mirror_and_darken(image: torch.Tensor) -> torch.Tensor:
    """Transform an image or a window so that the result shows the dtype that the transform was given."""
    return (image.flip(-1) // 2) if image.dtype == torch.uint8 else 1 - image.flip(-1)


def windows_of(root: Path) -> dict[str, list[float]]:
    """Give deltas for every camera, the state and the action of a dataset."""
    features = load_info(root)["features"]
    cameras = [name for name, feature in features.items() if feature["dtype"] in ("image", "video")]
    return dict.fromkeys([*cameras, STATE, ACTION], WINDOW)


TWO_QUICK = {"av1", "h264_bframes", "images", "depth_video_mm", "language", "odd_features", "rotating_files"}
"""Kinds of which windows with transforms are compared by default too."""


def combination(kind: str, *, windows: bool, uint8: bool, transform: bool) -> Any:
    """Mark all but one or two combinations of every kind as slow."""
    name = "-".join(
        [
            kind,
            "windows" if windows else "frames",
            "uint8" if uint8 else "float",
            "transform" if transform else "plain",
        ]
    )
    quick = (windows, uint8, transform) == (False, True, False) or (
        kind in TWO_QUICK and (windows, uint8, transform) == (True, False, True)
    )
    return pytest.param(kind, windows, uint8, transform, id=name, marks=() if quick else pytest.mark.slow)


COMBINATIONS = [
    combination(kind, windows=windows, uint8=uint8, transform=transform)
    for kind in KINDS
    for windows in (False, True)
    for uint8 in (False, True)
    for transform in (False, True)
]


@pytest.mark.parametrize(("kind", "windows", "uint8", "transform"), COMBINATIONS)
def test_every_frame_equals_map(shelf: Shelf, kind: str, windows: bool, uint8: bool, transform: bool) -> None:
    root = shelf.root(kind)
    arguments: dict[str, Any] = {
        "delta_timestamps": windows_of(root) if windows else None,
        "return_uint8": uint8,
        "image_transforms": mirror_and_darken if transform else None,
    }
    dataset = StreamingLeRobotDataset(REPO_ID, root, **arguments)
    expected = map_items(shelf.reference(kind), **arguments)
    assert_same_items(expected, stream_items(dataset))
    assert dataset.num_frames == len(expected)


@pytest.mark.parametrize(
    "kind", ["depth_video_mm", "depth_video_m", "depth_image_mm", "depth_image_m", "depth_codes"]
)
@pytest.mark.parametrize("unit", ["mm", "m"])
def test_depth_comes_in_either_unit(shelf: Shelf, kind: str, unit: str) -> None:
    from lerobot.datasets import LeRobotDataset

    dataset = StreamingLeRobotDataset(REPO_ID, shelf.root(kind), depth_output_unit=unit)
    assert_same_items(map_items(shelf.reference(kind), depth_output_unit=unit), stream_items(dataset))
    reference = LeRobotDataset(REPO_ID, shelf.reference(kind), depth_output_unit=unit, video_backend="pyav")
    assert dataset.meta.stats[DEPTH].keys() == reference.meta.stats[DEPTH].keys()
    for name, value in reference.meta.stats[DEPTH].items():
        assert (dataset.meta.stats[DEPTH][name] == value).all(), name


@pytest.mark.parametrize(
    "deltas",
    [
        {CAMERA_A: [0.0]},
        {STATE: [0.0], CAMERA_B: [-0.1]},
        {ACTION: [i / 10 for i in range(12)]},
        {CAMERA_A: [-2.0, 0.0, 2.0], STATE: [5.0]},
        {"frame_index": [0.0, 0.1], "episode_index": [0.0]},
        {"timestamp": [0.1]},
        {"task_index": [0.1]},
        {},
    ],
    ids=str,
)
def test_windows_of_every_form_equal_map(shelf: Shelf, deltas: dict[str, list[float]]) -> None:
    root = shelf.root("av1")
    dataset = StreamingLeRobotDataset(REPO_ID, root, delta_timestamps=deltas, return_uint8=True)
    expected = map_items(root, delta_timestamps=deltas, return_uint8=True)
    assert_same_items(expected, stream_items(dataset))


def test_windows_over_odd_features_equal_map(shelf: Shelf) -> None:
    root = shelf.root("odd_features")
    features = load_info(root)["features"]
    deltas = {
        name: WINDOW
        for name, feature in features.items()
        if name.startswith("odd.") and feature["dtype"] != "string" and feature["shape"] != [0]
    }
    dataset = StreamingLeRobotDataset(REPO_ID, root, delta_timestamps=deltas)
    assert_same_items(map_items(root, delta_timestamps=deltas), stream_items(dataset))


def test_windows_stay_inside_a_one_frame_episode(shelf: Shelf) -> None:
    root = shelf.root("one_frame_episode")
    deltas = {CAMERA_A: [-0.1, 0.0, 0.1], ACTION: [(i - 5) / 10 for i in range(10)]}
    dataset = StreamingLeRobotDataset(REPO_ID, root, delta_timestamps=deltas, return_uint8=True)
    items = stream_items(dataset)
    assert_same_items(map_items(root, delta_timestamps=deltas, return_uint8=True), items)
    assert items[12][f"{ACTION}_is_pad"].tolist() == [i != 5 for i in range(10)]
    assert items[12][f"{CAMERA_A}_is_pad"].tolist() == [True, False, True]


def test_windows_over_many_tiny_episodes_equal_map(shelf: Shelf) -> None:
    root = shelf.root("many_tiny")
    arguments: dict[str, Any] = {
        "episodes": [0, 10, 11, 23],
        "delta_timestamps": {key: [-1, -0.5, -0.2, 0] for key in (CAMERA_A, STATE, ACTION)},
    }
    dataset = StreamingLeRobotDataset(REPO_ID, root, **arguments)
    assert_same_items(map_items(root, **arguments), stream_items(dataset))


def test_the_keys_come_in_the_order_of_map(shelf: Shelf) -> None:
    for kind in ("av1", "images", "odd_features", "language"):
        deltas = windows_of(shelf.root(kind))
        dataset = StreamingLeRobotDataset(REPO_ID, shelf.root(kind), delta_timestamps=deltas, shuffle=False)
        expected = map_items(shelf.root(kind), delta_timestamps=deltas)
        assert list(next(iter(dataset))) == list(expected[0])


@pytest.mark.parametrize("workers", [0, 1])
def test_without_shuffle_the_index_ascends(shelf: Shelf, workers: int) -> None:
    dataset = StreamingLeRobotDataset(REPO_ID, shelf.root("rotating_files"), shuffle=False)
    loader = DataLoader(dataset, batch_size=None, num_workers=workers, collate_fn=identity)
    assert list(stream_items(loader)) == list(range(27))


def test_shuffle_mixes_frames_of_several_episodes(shelf: Shelf) -> None:
    dataset = StreamingLeRobotDataset(REPO_ID, shelf.root("rotating_files"), seed=1)
    order = list(stream_items(dataset))
    assert order != sorted(order)
    assert sorted(order) == list(range(27))
    assert order == list(stream_items(StreamingLeRobotDataset(REPO_ID, shelf.root("rotating_files"), seed=1)))
    assert order != list(stream_items(StreamingLeRobotDataset(REPO_ID, shelf.root("rotating_files"), seed=2)))


@pytest.mark.parametrize("kind", ["rotating_files", "h264_bframes", "images"])
def test_a_selection_of_episodes_keeps_its_order(shelf: Shelf, kind: str) -> None:
    root = shelf.root(kind)
    last = load_info(root)["total_episodes"] - 1
    dataset = StreamingLeRobotDataset(REPO_ID, root, episodes=[last, 0], shuffle=False, return_uint8=True)
    items = stream_items(dataset)
    expected = map_items(root, episodes=[last, 0], return_uint8=True)
    assert_same_items(expected, items)
    assert (dataset.num_frames, dataset.num_episodes) == (len(expected), 2)
    assert dataset.episodes is not None
    assert list(dataset.episodes) == [last, 0]
    episodes = [int(item["episode_index"]) for item in items.values()]
    assert episodes == sorted(episodes, reverse=True)
    frames = {last: [int(i["frame_index"]) for i in items.values() if int(i["episode_index"]) == last]}
    assert frames[last] == sorted(frames[last])


def _loader(dataset: StreamingLeRobotDataset, workers: int, method: str) -> DataLoader[Any]:
    return DataLoader(
        dataset, batch_size=None, num_workers=workers, multiprocessing_context=method, collate_fn=identity
    )


@pytest.mark.parametrize(
    ("kind", "workers", "method"),
    [
        pytest.param("rotating_files", 1, "spawn", marks=pytest.mark.slow),
        ("h264_bframes", 2, "spawn"),
        ("language", 2, "forkserver"),
        # Python 3.12 warns of any fork of a process that runs threads, and torch alone starts some.
        pytest.param("av1", 2, "fork", marks=pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")),
        pytest.param("images", 2, "spawn", marks=pytest.mark.slow),
        pytest.param("depth_video_mm", 2, "spawn", marks=pytest.mark.slow),
        pytest.param("odd_features", 2, "spawn", marks=pytest.mark.slow),
    ],
)
def test_workers_together_give_every_frame_once(shelf: Shelf, kind: str, workers: int, method: str) -> None:
    root = shelf.root(kind)
    arguments: dict[str, Any] = {
        "delta_timestamps": windows_of(root),
        "return_uint8": True,
        "image_transforms": mirror_and_darken,
    }
    dataset = StreamingLeRobotDataset(REPO_ID, root, **arguments)
    # A sample decoded before the workers start must not break them.
    first = next(iter(dataset))
    expected = map_items(shelf.reference(kind), **arguments)
    assert_same_item(expected[int(first["index"])], first, where="first")
    assert_same_items(expected, stream_items(_loader(dataset, workers, method)))


def test_batches_of_lerobots_collate_equal_map(shelf: Shelf) -> None:
    from lerobot.utils.collate import lerobot_collate_fn

    root = shelf.root("rotating_files")
    dataset = StreamingLeRobotDataset(REPO_ID, root, shuffle=False, return_uint8=True)
    expected = list(map_items(root, return_uint8=True).values())
    batches = list(DataLoader(dataset, batch_size=4, collate_fn=lerobot_collate_fn))
    assert [len(batch["index"]) for batch in batches] == [4] * 6 + [3]
    for number, batch in enumerate(batches):
        wanted = lerobot_collate_fn(expected[4 * number : 4 * number + 4])
        assert wanted is not None
        assert_same_item(wanted, batch, where=f"batch {number}")


def test_a_second_pass_gives_every_frame_again(shelf: Shelf) -> None:
    root = shelf.root("h264_bframes")
    dataset = StreamingLeRobotDataset(REPO_ID, root, return_uint8=True)
    expected = map_items(root, return_uint8=True)
    first, second = stream_items(dataset), stream_items(dataset)
    assert_same_items(expected, first)
    assert_same_items(expected, second)
    assert list(first) != list(second)


def test_positional_arguments_are_those_of_lerobots_class(shelf: Shelf) -> None:
    from lerobot.datasets import StreamingLeRobotDataset as Stock

    stock = [p.name for p in inspect.signature(Stock).parameters.values() if p.kind != p.KEYWORD_ONLY]
    ours = [p.name for p in inspect.signature(StreamingLeRobotDataset).parameters.values()]
    assert ours[: len(stock)] == stock

    root = shelf.root("rotating_files")
    deltas = {STATE: WINDOW}
    dataset = StreamingLeRobotDataset(
        REPO_ID,
        root,
        [3, 1],
        mirror_and_darken,
        deltas,
        1e-4,
        None,
        False,
        None,
        100,
        2,
        7,
        None,
        False,
        True,
    )
    expected = map_items(
        root, episodes=[3, 1], image_transforms=mirror_and_darken, delta_timestamps=deltas, return_uint8=True
    )
    items = stream_items(dataset)
    assert_same_items(expected, items)
    assert [int(item["episode_index"]) for item in items.values()] == [3] * 6 + [1] * 7


def test_an_empty_vector_comes_as_an_empty_tensor(tmp_path: Path) -> None:
    # Map-style refuses to open such a column, so the reference is the dataset without it.
    root = make_empty_vector(tmp_path / "made")
    items = stream_items(StreamingLeRobotDataset(REPO_ID, root))
    for item in items.values():
        assert_same_item(
            {"odd.empty": torch.zeros(0)}, {"odd.empty": item.pop("odd.empty")}, where="odd.empty"
        )
    assert_same_items(map_items(without_column(root, tmp_path / "twin", "odd.empty")), items)
