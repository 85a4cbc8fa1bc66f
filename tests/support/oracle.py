"""The map-style oracle: what `LeRobotDataset` gives, and an exact comparison with what streaming gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tests.support.datasets import REPO_ID

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

type Item = dict[str, Any]


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"tensor {value.dtype} {tuple(value.shape)}"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) < 200 else text[:200] + '...'}"


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _first_difference(expected: torch.Tensor, got: torch.Tensor) -> str:
    size = expected.element_size()
    unequal = (_bits(expected) != _bits(got)).reshape(-1, size).any(dim=1).reshape(expected.shape)
    place = tuple(int(i) for i in unequal.nonzero()[0]) if expected.ndim else ()
    return (
        f"{int(unequal.sum())} of {expected.numel()} values differ, first at {place}: "
        f"expected {expected[place].item()!r}, got {got[place].item()!r}"
    )


def _assert_same_tensor(expected: torch.Tensor, got: torch.Tensor, where: str) -> None:
    assert expected.dtype == got.dtype, f"{where}: expected {_describe(expected)}, got {_describe(got)}"
    assert expected.shape == got.shape, f"{where}: expected {_describe(expected)}, got {_describe(got)}"
    if not torch.equal(_bits(expected), _bits(got)):
        raise AssertionError(f"{where}: {_first_difference(expected, got)}")
    stored, needed = got.untyped_storage().nbytes(), got.numel() * got.element_size()
    assert stored == needed, f"{where}: the tensor of {needed} bytes holds on to a storage of {stored} bytes"


def assert_same_value(expected: Any, got: Any, *, where: str) -> None:
    """Compare two values of an item exactly, into lists and dictionaries.

    Args:
        expected: From map-style.
        got: From streaming.
        where: Names the value in the message.

    Raises:
        AssertionError: They differ in type, dtype, shape or any bit, or a tensor does not own its memory.
    """
    assert type(expected) is type(got), f"{where}: expected {_describe(expected)}, got {_describe(got)}"
    if isinstance(expected, torch.Tensor):
        _assert_same_tensor(expected, got, where)
    elif isinstance(expected, dict):
        missing, extra = expected.keys() - got.keys(), got.keys() - expected.keys()
        assert not missing, f"{where}: keys {sorted(missing)} are missing"
        assert not extra, f"{where}: keys {sorted(extra)} should not be there"
        for key, value in expected.items():
            assert_same_value(value, got[key], where=f"{where}[{key!r}]")
    elif isinstance(expected, list | tuple):
        assert len(expected) == len(got), f"{where}: expected {_describe(expected)}, got {_describe(got)}"
        for position, (left, right) in enumerate(zip(expected, got, strict=True)):
            assert_same_value(left, right, where=f"{where}[{position}]")
    elif isinstance(expected, float):
        assert expected.hex() == got.hex(), f"{where}: expected {expected!r}, got {got!r}"
    else:
        assert expected == got, f"{where}: expected {_describe(expected)}, got {_describe(got)}"


def assert_same_item(expected: Item, got: Item, *, where: str) -> None:
    """Compare an item with map-style's: keys, types, dtypes, shapes and every bit, and who owns the memory.

    Args:
        expected: Map-style's item.
        got: The item under test.
        where: Names the item in the message.

    Raises:
        AssertionError: They differ, or a tensor of `got` holds on to more memory than its values need.
    """
    assert_same_value(expected, got, where=where)


def assert_same_items(expected: Mapping[int, Item], got: Mapping[int, Item], *, where: str = "item") -> None:
    """Compare all items of a dataset, keyed by `index`.

    Args:
        expected: Map-style's items.
        got: The items under test.
        where: Names the run in the messages.

    Raises:
        AssertionError: An index is missing or surplus, or an item differs.
    """
    missing, extra = expected.keys() - got.keys(), got.keys() - expected.keys()
    assert not missing, f"{where}: frames {sorted(missing)} never came"
    assert not extra, f"{where}: frames {sorted(extra)} should not have come"
    for index, item in expected.items():
        assert_same_item(item, got[index], where=f"{where} {index}")


def map_items(root: Path, *, video_backend: str = "pyav", **arguments: Any) -> dict[int, Item]:
    """Read every selected frame of a dataset with `LeRobotDataset`.

    Args:
        root: The dataset.
        video_backend: "pyav" gives the reference pixels; "torchcodec" needs FFmpeg's libraries.
        **arguments: More arguments of `LeRobotDataset`.

    Returns:
        The items by their global frame index.
    """
    from lerobot.datasets import LeRobotDataset

    dataset = LeRobotDataset(REPO_ID, root, video_backend=video_backend, **arguments)
    # Not item["index"]: with delta timestamps for "index" that is a window.
    indices = dataset.hf_dataset.data.column("index").to_pylist()
    return {index: dataset[row] for row, index in enumerate(indices)}


def stream_items(source: Iterable[Item]) -> dict[int, Item]:
    """Read one pass of a streaming dataset, or of a loader over it that does not batch.

    Args:
        source: Gives the items.

    Returns:
        The items by their global frame index, in the order they came.

    Raises:
        AssertionError: A frame came twice.
    """
    items: dict[int, Item] = {}
    for item in source:
        index = int(item["index"])
        assert index not in items, f"frame {index} came twice"
        items[index] = item
    return items
