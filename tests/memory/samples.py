"""Items made of numbers, what their batches must be, and a dataset that gives them as a worker does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, default_collate, get_worker_info

from lerobot_streaming.memory.batches import Sample, share_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

type Item = dict[str, Any]


def make_item(worker: int, number: int) -> Item:
    """An item with a value of each sort; its pixels tell the worker and the number."""
    rng = np.random.default_rng((worker, number))
    return {
        "pixels": torch.from_numpy(rng.integers(0, 256, (3, 24, 40), dtype=np.uint8)),
        "flag": torch.tensor(number % 2 == 0),
        "task": f"task {number}",
        "depth": torch.from_numpy(rng.random((1, 9, 7), dtype=np.float32)),
        "none_of": torch.empty(0, 4),
        "state": torch.from_numpy(rng.random(3)).to(torch.bfloat16),
        "words": [{"role": "user", "number": number}, {"role": "robot", "number": -number}],
        "square": torch.full((3, 3), number, dtype=torch.int32) + torch.arange(3, dtype=torch.int32),
        "worker": torch.tensor(worker),
        "number": torch.tensor(number),
        "plain": number / 3,
    }


def expected(batch: Item) -> Item:
    """What `default_collate` makes of the items that a batch says it is of."""
    pairs = zip(batch["worker"].tolist(), batch["number"].tolist(), strict=True)
    collated: Item = default_collate([make_item(worker, number) for worker, number in pairs])
    return collated


def assert_same(got: Any, wanted: Any) -> None:
    """Both have the same types, shapes, dtypes, order of keys, and values to the bit."""
    assert type(got) is type(wanted)
    if isinstance(wanted, torch.Tensor):
        assert (got.dtype, got.shape, got.stride()) == (wanted.dtype, wanted.shape, wanted.stride())
        assert got.requires_grad == wanted.requires_grad
        assert not got._is_view()
        assert torch.equal(got, wanted)
    elif isinstance(wanted, dict):
        assert list(got) == list(wanted)
        for key, value in wanted.items():
            assert_same(got[key], value)
    elif isinstance(wanted, list | tuple):
        assert len(got) == len(wanted)
        for one, other in zip(got, wanted, strict=True):
            assert_same(one, other)
    else:
        assert got == wanted


def in_segment(tensor: torch.Tensor) -> bool:
    """Whether a received tensor lies in a segment. PyTorch's own way gives what it calls shared."""
    return not tensor.is_shared()  # type: ignore[no-untyped-call]  # torch gives it no types.


def num_files() -> int:
    """Open file descriptors of this process."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def num_mapped() -> int:
    """Segments that this process maps."""
    return Path("/proc/self/maps").read_text().count("memfd:lerobot-streaming-batch")


class Numbers(IterableDataset[Item]):
    """Gives the items of numbers from 0 on.

    Args:
        count: Items of each worker.
        make: Makes the item of (worker, number).
        shared: Whether they are handed over as `StreamingLeRobotDataset` does.
    """

    def __init__(
        self, count: int, make: Callable[[int, int], Item] = make_item, *, shared: bool = True
    ) -> None:
        self.count = count
        self.make = make
        self.shared = shared

    def __iter__(self) -> Iterator[Item]:
        worker = get_worker_info()
        assert worker is not None
        shared = self.shared and share_batches()
        for number in range(self.count):
            item = self.make(worker.id, number)
            yield Sample(item) if shared else item
