"""A custom loop with accelerate, as each of two ranks runs it; prints what this rank got as JSON."""

from __future__ import annotations

import importlib
import json
import sys
import time
from pathlib import Path

from torch.utils.data import DataLoader

from lerobot_streaming.accelerate_guard import protect_loaders
from lerobot_streaming.train.held_out import HeldOutDataset
from tests.support.datasets import REPO_ID


def main(root: Path, num_workers: int) -> None:
    from lerobot_streaming import StreamingLeRobotDataset

    protect_loaders()
    accelerator = importlib.import_module("accelerate").Accelerator(cpu=True)

    def passes(dataset: StreamingLeRobotDataset, *, worker_count: int, epochs: int) -> list[list[list[int]]]:
        loader = DataLoader(
            dataset, batch_size=4, num_workers=worker_count, persistent_workers=worker_count > 0
        )
        prepared = accelerator.prepare(loader)
        result = []
        for _ in range(epochs):
            batches = list(prepared)
            assert all(isinstance(task, str) for batch in batches for task in batch["task"])
            result.append([batch["index"].tolist() for batch in batches])
        return result

    training = StreamingLeRobotDataset(REPO_ID, root)
    # Three episodes for two ranks: one has more batches than the other.
    held_out = HeldOutDataset(REPO_ID, root, episodes=[0, 1, 3], shuffle=False)
    told = {
        "rank": accelerator.process_index,
        "frames": training.num_frames,
        "training": passes(training, worker_count=num_workers, epochs=2),
        "held_out": passes(held_out, worker_count=0, epochs=2),
        "held_out_frames": held_out.num_frames,
    }
    print("TOLD", json.dumps(told))
    accelerator.end_training()
    # gloo's own thread drops the last tensor that was reduced, and needs the interpreter for it; PyTorch
    # aborts where that has begun to end (3 of about 50 runs without this pause, after all results were in).
    time.sleep(0.5)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
