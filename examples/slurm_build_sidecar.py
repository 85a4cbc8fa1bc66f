r"""Index a very large dataset on a SLURM cluster, or on this machine, with datatrove.

Each task indexes one part of the video files; the last job joins the parts into the sidecar that training
looks for. datatrove (`pip install datatrove`) is what LeRobot itself uses for cluster jobs; tasks that have
finished are not run again when the job is started anew.

    python examples/slurm_build_sidecar.py --repo-id me/pens --root /data/pens \
        --parts-dir /scratch/parts --logs-dir /scratch/logs --tasks 64 --partition cpu
    python examples/slurm_build_sidecar.py --repo-id me/pens --root /data/pens \
        --parts-dir /tmp/parts --logs-dir /tmp/logs --tasks 8 --local-workers 4
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datatrove.executor import LocalPipelineExecutor, SlurmPipelineExecutor
from datatrove.pipeline.base import PipelineStep

from lerobot_streaming.cli.build_mp4_sidecar import main as build

if TYPE_CHECKING:
    from collections.abc import Sequence


class IndexPart(PipelineStep):  # type: ignore[misc]  # It ships no types.
    """Indexes one part of the dataset's video files: task `rank` of `world_size`."""

    name = "Index part"
    type = "LeRobot sidecar"

    def __init__(self, dataset: Sequence[str], parts_dir: str) -> None:
        """Keep what the tasks need.

        Args:
            dataset: Arguments of `lerobot-build-mp4-sidecar` that say which dataset.
            parts_dir: Directory for the parts, on a file system that all tasks share.
        """
        super().__init__()
        self.dataset = list(dataset)
        self.parts_dir = parts_dir

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Any:
        """Index the part.

        Args:
            data: Unused; datatrove hands it on from step to step.
            rank: This task.
            world_size: Number of tasks.

        Returns:
            `data`.

        Raises:
            RuntimeError: Files could not be indexed; the task's log lists them.
        """
        part = Path(self.parts_dir) / f"part-{rank:05d}.npz"
        shard = ["--shard-index", str(rank), "--num-shards", str(world_size)]
        if build([*self.dataset, *shard, "--output", str(part)]) != 0:
            raise RuntimeError(f"part {rank} of {world_size} could not be indexed")
        return data


class JoinParts(PipelineStep):  # type: ignore[misc]  # It ships no types.
    """Joins all parts into the sidecar."""

    name = "Join parts"
    type = "LeRobot sidecar"

    def __init__(self, dataset: Sequence[str], parts_dir: str, tasks: int) -> None:
        """Keep what the job needs.

        Args:
            dataset: Arguments of `lerobot-build-mp4-sidecar` that say which dataset.
            parts_dir: Directory of the parts.
            tasks: Number of parts.
        """
        super().__init__()
        self.dataset = list(dataset)
        self.parts_dir = parts_dir
        self.tasks = tasks

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Any:  # noqa: ARG002
        """Join the parts.

        Args:
            data: Unused.
            rank: Unused; there is one task.
            world_size: Unused.

        Returns:
            `data`.

        Raises:
            RuntimeError: Parts are missing or do not fit; the log says which.
        """
        parts = [str(Path(self.parts_dir) / f"part-{task:05d}.npz") for task in range(self.tasks)]
        if build([*self.dataset, "--merge", *parts]) != 0:
            raise RuntimeError("the parts could not be joined")
        return data


def main() -> None:
    """Run both jobs, the second after the first."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repo-id", required=True)
    parser.add_argument("--root", required=True, help="local directory that holds meta/")
    parser.add_argument("--data-root", help="where the videos lie, when elsewhere")
    parser.add_argument("--parts-dir", required=True, help="for the parts; shared by all tasks")
    parser.add_argument("--logs-dir", required=True, help="for datatrove's logs and marks of finished tasks")
    parser.add_argument("--tasks", type=int, default=64, help="number of parts")
    parser.add_argument("--local-workers", type=int, help="run here, this many tasks at a time, not on SLURM")
    parser.add_argument("--partition", help="SLURM partition")
    parser.add_argument("--time", default="02:00:00", help="SLURM time limit")
    options = parser.parse_args()

    dataset = ["--repo-id", options.repo_id, "--root", options.root]
    if options.data_root is not None:
        dataset += ["--data-root", options.data_root]
    index, join = IndexPart(dataset, options.parts_dir), JoinParts(dataset, options.parts_dir, options.tasks)
    logs = Path(options.logs_dir)
    if options.local_workers is not None:
        workers = options.local_workers
        parts = LocalPipelineExecutor(
            [index], tasks=options.tasks, workers=workers, logging_dir=str(logs / "index")
        )
        LocalPipelineExecutor([join], tasks=1, logging_dir=str(logs / "join"), depends=parts).run()
        return
    settings = {"time": options.time, "partition": options.partition, "cpus_per_task": 2}
    parts = SlurmPipelineExecutor(
        [index], tasks=options.tasks, logging_dir=str(logs / "index"), job_name="sidecar-index", **settings
    )
    SlurmPipelineExecutor(
        [join], tasks=1, logging_dir=str(logs / "join"), job_name="sidecar-join", depends=parts, **settings
    ).run()


if __name__ == "__main__":
    main()
