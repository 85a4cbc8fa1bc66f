"""Batches of a DataLoader over the dataset are those that `default_collate` makes of the same items."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import default_collate

from lerobot_streaming import StreamingLeRobotDataset
from tests.dataset.loops import loader
from tests.memory.samples import assert_same, in_segment
from tests.support.datasets import ACTION, CAMERA_A, REPO_ID, Shelf

if TYPE_CHECKING:
    from collections.abc import Callable

# Forked workers start at once. Python 3.12 warns of any fork of a process that runs threads.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]


def _identity(items: Any) -> Any:
    return items


def _nested(items: Any) -> Any:
    batch = default_collate(items)
    return {"observation": {key: batch[key] for key in batch if "observation" in key}, "rest": [batch]}


def _images_only(items: Any) -> Any:
    batch = default_collate(items)
    return {key: value[:, ..., 1:] for key, value in batch.items() if "image" in key}


KINDS = [
    ("av1", {"return_uint8": True}),
    ("h264_bframes", {"delta_timestamps": {CAMERA_A: [-0.1, 0.0], ACTION: [0.0, 0.1, 0.2]}}),
    ("depth_video_mm", {}),
    ("images", {}),
    ("depth_image_m", {}),
]


@pytest.mark.parametrize(
    ("kind", "arguments", "stateful"),
    [(*one, False) for one in KINDS] + [(*KINDS[0], True)],
    ids=[*(kind for kind, _ in KINDS), "stateful"],
)
def test_batches_are_those_of_the_items(
    shelf: Shelf, kind: str, arguments: dict[str, Any], stateful: bool
) -> None:
    def batches(**more: Any) -> list[Any]:
        dataset = StreamingLeRobotDataset(REPO_ID, shelf.root(kind), **arguments)
        return list(loader(dataset, batch_size=3, stateful=stateful, **more))

    wanted = [default_collate(items) for items in batches(collate_fn=_identity)]
    got = batches()
    assert len(got) == len(wanted) > 2
    assert in_segment(got[0]["index"])
    for one, other in zip(got, wanted, strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("change", [_nested, _images_only])
def test_batches_of_a_users_collate_function(shelf: Shelf, change: Callable[[Any], Any]) -> None:
    def batches(collate_fn: Any) -> list[Any]:
        dataset = StreamingLeRobotDataset(REPO_ID, shelf.root("av1"), return_uint8=True)
        return list(loader(dataset, batch_size=4, collate_fn=collate_fn))

    for one, items in zip(batches(change), batches(_identity), strict=True):
        wanted = change(items)
        flat, other = torch.utils._pytree.tree_leaves(one), torch.utils._pytree.tree_leaves(wanted)
        assert one.keys() == wanted.keys()
        for got, value in zip(flat, other, strict=True):
            assert torch.equal(got, value) if isinstance(value, torch.Tensor) else got == value


def test_batches_of_passes_with_persistent_workers_stay_what_they_were(shelf: Shelf) -> None:
    dataset = StreamingLeRobotDataset(REPO_ID, shelf.root("many_tiny"), return_uint8=True)
    items = {
        int(item["index"]): item
        for item in StreamingLeRobotDataset(REPO_ID, shelf.root("many_tiny"), return_uint8=True)
    }
    passes = loader(dataset, batch_size=2, persistent_workers=True)
    kept = []
    for _ in range(3):
        kept += [batch for number, batch in enumerate(passes) if number % 3]
    assert len(kept) > 60
    for batch in kept:
        assert_same(batch, default_collate([items[index] for index in batch["index"].tolist()]))
