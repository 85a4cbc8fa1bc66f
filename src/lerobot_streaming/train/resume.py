"""Continue the order of a checkpoint, or say why that cannot be done."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from lerobot.common.train_utils import (
    load_training_batch_size,
    load_training_num_processes,
    load_training_step,
)
from lerobot.configs.train import TRAIN_CONFIG_NAME
from lerobot.utils.constants import PRETRAINED_MODEL_DIR, TRAINING_STATE_DIR

from lerobot_streaming.errors import OptionError
from lerobot_streaming.train.ranks import world_size

if TYPE_CHECKING:
    from pathlib import Path

    from lerobot_streaming.dataset import StreamingLeRobotDataset

logger = logging.getLogger(__name__)

_RUN_SETTINGS = ("seed", "num_workers")
_DATASET_SETTINGS = (
    "repo_id",
    "repo_type",
    "episodes",
    "eval_split",
    "streaming_episode_pool_size",
    "streaming_sampling_strategy",
    "streaming_byte_budget_gb",
)


def data_version(dataset: StreamingLeRobotDataset) -> str:
    """Describe what a training set holds, so that a resumed run can tell whether it still does.

    Args:
        dataset: The training set.

    Returns:
        Its commit (when it has one), episodes and frames.
    """
    where = dataset.revision or "no commit"
    return f"{where}, {dataset.num_episodes} episodes, {dataset.num_frames} frames"


def resume_order(cfg: Any, dataset: StreamingLeRobotDataset, version: str) -> None:
    """Position the training set of a resumed run behind the samples that the checkpoint's run has used.

    Args:
        cfg: The run's validated `TrainPipelineConfig`; does nothing unless it resumes.
        dataset: The training set, not iterated yet.
        version: What `data_version` says of it.

    Raises:
        OptionError: The order cannot be continued: something that it depends on is unknown or has changed.
    """
    if not cfg.resume:
        return
    checkpoint: Path = cfg.checkpoint_path
    saved = json.loads((checkpoint / PRETRAINED_MODEL_DIR / TRAIN_CONFIG_NAME).read_text())
    way_out = (
        f"start a new run from its weights with --policy.path={checkpoint / PRETRAINED_MODEL_DIR} "
        "and without --resume"
    )
    # Stock lerobot's own streaming class saves none of our settings, and map-style training draws otherwise.
    if not saved["dataset"].get("streaming") or "streaming_data_version" not in saved["dataset"]:
        raise OptionError(
            f"--resume=true cannot continue the data order of {checkpoint}: it was not trained with this "
            f"streaming dataset and does not say how it sampled. Resume without streaming, or {way_out}."
        )

    differing = [
        f"{name}: {was!r} in the checkpoint, {now!r} now"
        for name, (was, now) in _settings(cfg, saved, checkpoint, version).items()
        if was != now
    ]
    if differing:
        raise OptionError(
            f"--resume=true cannot continue the data order of {checkpoint} exactly, because it depends on "
            f"settings that differ ({'; '.join(differing)}), and resuming with other settings is not "
            f"supported yet. Resume with the checkpoint's settings, or {way_out}."
        )
    step = load_training_step(checkpoint / TRAINING_STATE_DIR)
    dataset.load_state_dict({"epoch": 0, "offset": step * cfg.batch_size, "batch_size": cfg.batch_size})
    logger.info("Resuming the data order behind %d samples of each rank", step * cfg.batch_size)


def _settings(cfg: Any, saved: dict[str, Any], checkpoint: Path, version: str) -> dict[str, tuple[Any, Any]]:
    """Pair what the order depends on: the checkpoint's value and the current one, by the name users know."""
    pairs = {f"--{name}": (saved[name], getattr(cfg, name)) for name in _RUN_SETTINGS}
    pairs |= {
        f"--dataset.{name}": (saved["dataset"].get(name), getattr(cfg.dataset, name, None))
        for name in _DATASET_SETTINGS
    }
    drop = "drop_n_last_frames"
    trainable = "reward_model" if cfg.is_reward_model_training else "policy"
    pairs[f"--{trainable}.{drop}"] = (
        saved[trainable].get(drop, getattr(cfg.trainable_config, drop, 0)),
        getattr(cfg.trainable_config, drop, 0),
    )
    pairs["--batch_size"] = (load_training_batch_size(checkpoint), cfg.batch_size)
    pairs["number of processes"] = (load_training_num_processes(checkpoint), world_size())
    pairs["the dataset"] = (saved["dataset"]["streaming_data_version"], version)
    return pairs
