"""Custom loops with accelerate, as each of several ranks runs them; prints what this rank got as JSON.

Nothing here protects the loaders: the dataset sees to it, although accelerate is imported after it is made.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

from lerobot_streaming import StreamingLeRobotDataset
from tests.support.datasets import REPO_ID

if TYPE_CHECKING:
    from collections.abc import Callable

UNEVEN = [0, 1, 2]
"""Three episodes for two ranks: one has more batches than the other."""


def indices(batches: Any) -> list[list[int]]:
    taken = []
    for batch in batches:
        assert all(isinstance(task, str) for task in batch["task"])
        taken.append(batch["index"].tolist())
    return taken


def main(root: Path, num_workers: int) -> None:
    training = StreamingLeRobotDataset(REPO_ID, root, return_uint8=True)
    assert "accelerate.accelerator" not in sys.modules
    accelerator = importlib.import_module("accelerate").Accelerator(cpu=True)

    def prepare(dataset: StreamingLeRobotDataset, *, batch_size: int = 4, workers: int = 0) -> Any:
        loader = DataLoader(
            dataset, batch_size=batch_size, num_workers=workers, persistent_workers=workers > 0
        )
        return accelerator.prepare(loader)

    def step_together(_: Any) -> None:
        torch.distributed.all_reduce(torch.ones(1))

    told: dict[str, Any] = {"rank": accelerator.process_index, "frames": training.num_frames}
    prepared = prepare(training, workers=num_workers)
    told["training"] = [indices(prepared) for _ in range(2)]

    # Passes that end: with collectives, all ranks take as many batches as the one with the fewest...
    uneven = StreamingLeRobotDataset(REPO_ID, root, episodes=UNEVEN, return_uint8=True)
    numbers = uneven.batches_per_rank(accelerator.num_processes, 1)
    told["batches"] = numbers
    told["cut"] = _with_collective(prepare(uneven, batch_size=1), step_together, at_most=min(numbers))
    # ... or repeat their last batch until all are through.
    even = StreamingLeRobotDataset(REPO_ID, root, episodes=UNEVEN, shuffle=False, return_uint8=True)
    even.ends_evenly = True
    told["even_frames"] = even.num_frames
    prepared = prepare(even, batch_size=1)
    told["even"] = [_with_collective(prepared, step_together) for _ in range(2)]

    told |= _resumed(root, prepare)
    print("TOLD", json.dumps(told))
    accelerator.end_training()
    # gloo's own thread drops the last tensor that was reduced, and needs the interpreter for it; PyTorch
    # aborts where that has begun to end (3 of about 50 runs without this pause, after all results were in).
    time.sleep(0.5)


def _with_collective(
    batches: Any, step_together: Callable[[Any], None], at_most: int | None = None
) -> list[list[int]]:
    taken: list[list[int]] = []
    for batch in batches:
        step_together(batch)
        taken.append(batch["index"].tolist())
        if len(taken) == at_most:
            break
    return taken


def _resumed(root: Path, prepare: Callable[..., Any]) -> dict[str, Any]:
    """Finite passes that begin in a later epoch, exactly and under another batch size."""

    def fresh() -> StreamingLeRobotDataset:
        return StreamingLeRobotDataset(REPO_ID, root, episode_pool_size=3, return_uint8=True)

    whole = fresh()
    whole.set_epoch(3)
    prepared = prepare(whole)
    expected = [indices(prepared) for _ in range(2)]
    told: dict[str, Any] = {"expected": expected}
    state = whole.state_dict() | {"epoch": 3, "offset": 8, "batch_size": 4}
    # The state is loaded before and after `prepare`; accelerate counts its epochs from 0 in both cases.
    early = fresh()
    early.load_state_dict(state)
    prepared = prepare(early)
    told["early"] = [indices(prepared) for _ in range(2)]
    late = fresh()
    prepared = prepare(late)
    late.load_state_dict(state)
    told["late"] = [indices(prepared) for _ in range(2)]
    # At the very end of the epoch: an empty pass, which accelerate does not count, then the next epoch.
    ended = fresh()
    ended.load_state_dict(state | {"offset": 4 * len(expected[0])})
    prepared = prepare(ended)
    told["ended"] = [indices(prepared) for _ in range(2)]
    elastic = fresh()
    elastic.load_state_dict(state, batch_size=5)
    prepared = prepare(elastic, batch_size=5)
    told["elastic"] = [indices(prepared) for _ in range(2)]
    return told


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
