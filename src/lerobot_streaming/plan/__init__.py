"""The order of a run as pure arithmetic: which episode, which frame, which worker, which turn.

Nothing here reads a file, knows a tensor or depends on time: every result is a function of its arguments, so
that any process can compute what any other process draws, at any step of a run.

* `sharding`: episodes to ranks, a rank's episodes and bytes to its workers.
* `coverage`: the draws of one worker, epoch by epoch, from a bounded pool of episodes.
* `turns`: how a PyTorch DataLoader takes batches from its workers in turn.
* `epoch_seed`: the random numbers behind all of them.
"""

from lerobot_streaming.plan.coverage import CoveragePlan, PlanEpisode, SamplingStrategy
from lerobot_streaming.plan.epoch_seed import sample_seed
from lerobot_streaming.plan.sharding import shard_episodes, shards_for_worker, worker_budgets
from lerobot_streaming.plan.turns import deal_batches

__all__ = [
    "CoveragePlan",
    "PlanEpisode",
    "SamplingStrategy",
    "deal_batches",
    "sample_seed",
    "shard_episodes",
    "shards_for_worker",
    "worker_budgets",
]
