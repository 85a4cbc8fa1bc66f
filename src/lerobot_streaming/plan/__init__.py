"""The order of a run as pure arithmetic: which episode, which frame, which worker, which turn.

Nothing here reads a file, knows a tensor or depends on time: every result is a function of its arguments, so
that any process can compute what any other process draws, at any step of a run.

* `sharding`: episodes to ranks, a rank's episodes and bytes to its workers.
* `coverage`: the draws of one worker, epoch by epoch, from a bounded pool of episodes.
* `turns`: how a PyTorch DataLoader takes batches from its workers in turn.
* `settings`, `job_order`, `worker_order`, `history`: the order of a whole job, before and after its shape
  changes; the rest of a begun epoch is dealt anew.
* `anchors`: which frames are drawn at all.
* `epoch_seed`: the random numbers behind all of them.
"""

from lerobot_streaming.plan.anchors import AnchorSelection, select_anchors
from lerobot_streaming.plan.coverage import CoveragePlan, PlanEpisode, SamplingStrategy
from lerobot_streaming.plan.epoch_seed import sample_seed
from lerobot_streaming.plan.history import Position, Segment, replay
from lerobot_streaming.plan.job_order import JobOrder, RankOrder, Rests
from lerobot_streaming.plan.settings import OrderSettings, worker_pool_size
from lerobot_streaming.plan.sharding import shard_episodes, shards_for_worker, worker_budgets
from lerobot_streaming.plan.sizes import EpisodeSizes
from lerobot_streaming.plan.turns import deal_batches
from lerobot_streaming.plan.worker_order import WorkerOrder, WorkerPass

__all__ = [
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
]
