"""The stock `lerobot-train` with observers: how long each step waits, and what the workers do meanwhile.

`train_gap` starts it as a process of its own. The training loop, the loader, the preprocessing, the metrics
and `update_policy` are lerobot's. With the policy step `tiny`, `update_policy` gets a linear layer from state
to action instead of the policy, with its own optimizer: a step that is faster than any loader of pictures.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from tests.benchmarks.measuring import worker_pids

if TYPE_CHECKING:
    from collections.abc import Iterator


class TinyPolicy(torch.nn.Module):
    """A linear layer from the state to every action of the window.

    Args:
        batch: Any batch of the loader, preprocessed.
    """

    def __init__(self, batch: dict[str, torch.Tensor]) -> None:
        super().__init__()
        inputs, outputs = batch["observation.state"].shape[-1], batch["action"].shape[-1]
        self.layer = torch.nn.Linear(inputs, outputs)

    def forward(self, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, dict[str, Any]]:
        guess = self.layer(batch["observation.state"])
        return (guess[:, None] - batch["action"]).square().mean(), {}


def thread_cpu_seconds(pid: int) -> tuple[float, float]:
    """Processor time of a process's first thread, and of all others together.

    Args:
        pid: The process.

    Returns:
        Seconds of both.
    """
    sums = [0.0, 0.0]
    for task in Path(f"/proc/{pid}/task").iterdir():
        fields = (task / "stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        sums[int(task.name) != pid] += ticks / os.sysconf("SC_CLK_TCK")
    return sums[0], sums[1]


def busy_seconds() -> float:
    """Processor time that all processes of the machine have used."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    # user, nice, system, idle, iowait, irq, softirq, steal
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


class Probe:
    """Notes the steps between the end of the warm-up and the last one.

    Args:
        out: JSON file to write after the last timed step.
        warmup: Steps before.
        timed: Steps that are noted.
        tiny: Whether `TinyPolicy` takes the policy's place.
    """

    def __init__(self, out: Path, *, warmup: int, timed: int, tiny: bool) -> None:
        self._out = out
        self._warmup = warmup
        self._timed = timed
        self._tiny = tiny
        self._instead: tuple[TinyPolicy, torch.optim.Optimizer] | None = None
        self._dataset: Any = None
        self._next_s = 0.0
        self._count = 0
        self._steps: list[tuple[float, float, float]] = []
        self._start: dict[str, Any] = {}

    def cycle(self, original: Any, loader: Any) -> Iterator[Any]:
        """Stand for the loop's `cycle`, and time how long each batch is waited for."""
        self._dataset = loader.dataset
        batches = original(loader)
        while True:
            begin = perf_counter()
            batch = next(batches)
            self._next_s = perf_counter() - begin
            yield batch

    def update(
        self, original: Any, metrics: Any, policy: Any, batch: Any, optimizer: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Stand for the loop's `update_policy`, and note lerobot's own metrics of the step."""
        if self._tiny:
            if self._instead is None:
                instead = TinyPolicy(batch).to(batch["action"].device)
                self._instead = instead, torch.optim.SGD(instead.parameters(), lr=1e-3)
            policy, optimizer = self._instead
            kwargs["lr_scheduler"] = None
        result = original(metrics, policy, batch, optimizer, *args, **kwargs)
        self._count += 1
        self._steps.append((self._next_s, metrics.dataloading_s.val, metrics.update_s.val))
        if self._count == self._warmup:
            self._steps.clear()
            self._start = self._look()
        elif self._count == self._warmup + self._timed:
            found = {"start": self._start, "end": self._look(), "steps": self._steps}
            self._out.write_text(json.dumps(found))
        return result

    def _look(self) -> dict[str, Any]:
        workers = [thread_cpu_seconds(pid) for pid in worker_pids()]
        return {
            "time": perf_counter(),
            "stats": self._dataset.stats()["total"],
            "consumers_cpu_s": sum(first for first, _ in workers),
            "threads_cpu_s": sum(others for _, others in workers),
            "training_cpu_s": sum(thread_cpu_seconds(os.getpid())),
            "machine_cpu_s": busy_seconds(),
        }


def main() -> None:
    """Run `lerobot-train` with the arguments behind `OUT WARMUP TIMED tiny|real`."""
    from lerobot.scripts import lerobot_train

    out, warmup, timed, policy_step, *sys.argv[1:] = sys.argv[1:]
    probe = Probe(Path(out), warmup=int(warmup), timed=int(timed), tiny=policy_step == "tiny")
    cycle, update = lerobot_train.cycle, lerobot_train.update_policy
    lerobot_train.cycle = lambda loader: probe.cycle(cycle, loader)
    lerobot_train.update_policy = lambda *args, **kwargs: probe.update(update, *args, **kwargs)
    lerobot_train.main()


if __name__ == "__main__":
    main()
