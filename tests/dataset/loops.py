"""What the tests of states share: a small dataset, loaders over it, and the frames that they give."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from lerobot_streaming import StreamingLeRobotDataset
from tests.support.datasets import REPO_ID, Shelf

if TYPE_CHECKING:
    from collections.abc import Iterable

SIX = [0, 3, 5, 8, 13, 21]


def make(shelf: Shelf, **arguments: Any) -> StreamingLeRobotDataset:
    arguments = {"episodes": SIX, "episode_pool_size": 2, **arguments}
    return StreamingLeRobotDataset(REPO_ID, shelf.root("many_tiny"), return_uint8=True, **arguments)


def loader(dataset: Any, *, stateful: bool = False, num_workers: int = 2, **more: Any) -> Any:
    arguments: dict[str, Any] = {"batch_size": 2, "num_workers": num_workers, **more}
    if num_workers:
        arguments |= {"multiprocessing_context": "fork", "prefetch_factor": 4}
    return (StatefulDataLoader if stateful else DataLoader)(dataset, **arguments)


def indices(batches: Iterable[Any]) -> list[list[int]]:
    return [batch["index"].tolist() for batch in batches]


def take(source: Any, count: int) -> list[list[int]]:
    """The first batches of a pass, which is then broken off."""
    iterator = iter(source)
    taken = [next(iterator)["index"].tolist() for _ in range(count)]
    del iterator
    return taken


def flat(batches: Iterable[list[int]]) -> list[int]:
    return [index for batch in batches for index in batch]


def everything(dataset: StreamingLeRobotDataset) -> list[int]:
    rows = dataset.meta.episodes
    return sorted(
        index
        for episode in dataset.episodes or []
        for index in range(rows["dataset_from_index"][episode], rows["dataset_to_index"][episode])
    )
