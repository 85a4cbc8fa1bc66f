"""What the package shows, and what it may use."""

from __future__ import annotations

import ast
from pathlib import Path

from lerobot_streaming import plan


def test_public_names() -> None:
    assert plan.__all__ == sorted(plan.__all__)
    assert set(plan.__all__) == {
        "AnchorSelection",
        "CoveragePlan",
        "EpisodeSizes",
        "JobOrder",
        "OrderSettings",
        "PlanEpisode",
        "Position",
        "RankOrder",
        "Rests",
        "SamplingStrategy",
        "Segment",
        "WorkerOrder",
        "WorkerPass",
        "deal_batches",
        "replay",
        "sample_seed",
        "select_anchors",
        "shard_episodes",
        "shards_for_worker",
        "worker_budgets",
        "worker_pool_size",
    }
    assert all(hasattr(plan, name) for name in plan.__all__)


def test_imports_nothing_of_ours_but_errors() -> None:
    folder = Path(plan.__file__).parent
    for file in sorted(folder.glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, file
                names = [node.module or ""]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            for name in names:
                assert name.partition(".")[0] not in {"torch", "lerobot", "av", "pyarrow", "fsspec"}, file
                ours = name.startswith("lerobot_streaming")
                allowed = name == "lerobot_streaming.errors" or name.startswith("lerobot_streaming.plan")
                assert allowed or not ours, f"{file.name} imports {name}"
