"""Build the datasets of a training run, as lerobot's `make_train_eval_datasets` does for map-style."""

from __future__ import annotations

import logging
from typing import Any, Final

import torch
from lerobot.datasets.factory import resolve_delta_timestamps
from lerobot.transforms import ImageTransforms
from lerobot.utils.constants import IMAGENET_STATS

from lerobot_streaming.accelerate_guard import protect_loaders
from lerobot_streaming.dataset import StreamingLeRobotDataset
from lerobot_streaming.episodes.feature_selection import select_features
from lerobot_streaming.errors import OptionError
from lerobot_streaming.options import Options
from lerobot_streaming.places import DatasetRequest, find_dataset
from lerobot_streaming.ranks import rank_and_world
from lerobot_streaming.train.config import FEATURES_FLAG, option_values
from lerobot_streaming.train.held_out import HeldOutDataset
from lerobot_streaming.train.resume import record_order
from lerobot_streaming.train.split import cap_frames, split_episodes

logger = logging.getLogger(__name__)

SEED_WHEN_NULL: Final = 42
"""Order seed of a run with `--seed=null`."""


def make_streaming_datasets(cfg: Any) -> tuple[StreamingLeRobotDataset, HeldOutDataset | None]:
    """Build the training set, and the held-out set when `--dataset.eval_split` asks for one.

    Only metadata is read to split the episodes; nothing else is downloaded.

    Args:
        cfg: The run's validated `TrainPipelineConfig`, with `dataset.streaming` true. What the order
            depends on is noted in it, to be saved with the checkpoints.

    Returns:
        The training set, positioned where a resumed run left off, and the held-out set or None.

    Raises:
        OptionError: An option has no streamed meaning here, or a checkpoint cannot be continued exactly.
        UnsupportedVersionError: accelerate's loader hook is not where it is expected.
    """
    if not isinstance(cfg.dataset.repo_id, str):
        raise OptionError("--dataset.repo_id must be one dataset for streaming; lists are not supported.")
    protect_loaders(required=True)
    meta, revision = _open_metadata(cfg.dataset)
    # A plain `DatasetConfig` that a script made has no such field.
    features = getattr(cfg.dataset, "streaming_features", None)
    _restrict(meta, features)
    common = {
        "root": cfg.dataset.root,
        "delta_timestamps": resolve_delta_timestamps(cfg.trainable_config, meta),
        "tolerance_s": cfg.tolerance_s,
        "revision": revision,
        # Stock passes the worker count as it is, and fails without workers.
        "max_num_shards": max(1, cfg.num_workers),
        "seed": SEED_WHEN_NULL if cfg.seed is None else cfg.seed,
        # The training loop turns uint8 frames into floats itself; this way a quarter of the bytes travels.
        "return_uint8": True,
        "depth_output_unit": cfg.dataset.depth_output_unit,
        "video_backend": cfg.dataset.video_backend,
        "repo_type": cfg.dataset.repo_type,
        "features": features,
        **option_values(cfg.dataset),
    }

    episodes, eval_set = cfg.dataset.episodes, None
    if cfg.dataset.eval_split:
        episodes, eval_set = _hold_out(cfg, meta, common)
    transforms = cfg.dataset.image_transforms
    train_set = StreamingLeRobotDataset(
        cfg.dataset.repo_id,
        episodes=episodes,
        image_transforms=ImageTransforms(transforms) if transforms.enable else None,
        repeat=True,
        **common,
    )
    # What lerobot gives its own sampler in training: only this one, and nothing at all in evaluation.
    train_set.limit_anchors(drop_n_last_frames=getattr(cfg.trainable_config, "drop_n_last_frames", 0))
    for dataset in (train_set, eval_set):
        if dataset is not None:
            _restrict(dataset.meta, features)
        if dataset is not None and cfg.dataset.use_imagenet_stats:
            _use_imagenet_stats(dataset.meta)

    record_order(cfg, train_set)
    return train_set, eval_set


def _open_metadata(dataset: Any) -> tuple[Any, str | None]:
    """Find the dataset once: its metadata, and the revision at which both sets open it."""
    place = find_dataset(
        DatasetRequest(
            dataset.repo_id,
            root=dataset.root,
            data_root=None,
            revision=dataset.revision,
            repo_type=dataset.repo_type,
            token=None,
            storage_options=None,
            force_cache_sync=False,
            depth_output_unit=dataset.depth_output_unit,
        ),
        Options(),
    )
    return place.meta, place.revision if place.is_pinned else dataset.revision


def _restrict(meta: Any, features: list[str] | None) -> None:
    """Make metadata that of a dataset with the selected features only.

    lerobot takes from it what a new policy's inputs are, which windows it wants and how it normalises.
    """
    if features is None:
        return
    selected = select_features(features, meta.features, shown_as=FEATURES_FLAG)
    left_out = meta.features.keys() - selected.keys()
    meta.info.features = selected
    if meta.stats is not None:
        meta.stats = {key: values for key, values in meta.stats.items() if key not in left_out}


def _hold_out(cfg: Any, meta: Any, common: dict[str, Any]) -> tuple[list[int], HeldOutDataset]:
    """Split the selected episodes; give those to train on, and the set of the others."""
    # All rows at once: there may be tens of thousands, and each access to a single one costs much more.
    rows = meta.episodes.select_columns(["tasks", "length"])[:]
    selected = list(range(len(rows["tasks"]))) if cfg.dataset.episodes is None else cfg.dataset.episodes
    tasks = {episode: (rows["tasks"][episode] or [""])[0] for episode in selected}
    train, held_out = split_episodes(selected, tasks, cfg.dataset.eval_split)
    frames_used = None
    if cfg.max_eval_samples > 0:
        lengths = {episode: rows["length"][episode] for episode in held_out}
        frames_used = cap_frames(held_out, tasks, lengths, cfg.max_eval_samples)
        held_out = list(frames_used)
    _, world_size = rank_and_world()
    if len(held_out) < world_size:
        raise OptionError(
            f"--dataset.eval_split={cfg.dataset.eval_split} with --max_eval_samples={cfg.max_eval_samples} "
            f"holds out {len(held_out)} episode(s) for {world_size} processes, and each process evaluates "
            "whole episodes of its own. Raise them (--max_eval_samples=0 means all), or lower the number of "
            "processes."
        )
    logger.info(
        "Train/eval split: %d train, %d eval episodes (eval_split=%s, %d tasks)",
        len(train),
        len(held_out),
        cfg.dataset.eval_split,
        len(set(tasks.values())),
    )
    eval_set = HeldOutDataset(
        cfg.dataset.repo_id,
        # The order in which map-style reads them, so that a single process evaluates on the same batches.
        episodes=sorted(held_out),
        image_transforms=None,
        shuffle=False,
        repeat=False,
        frames_used=frames_used,
        **common,
    )
    return train, eval_set


def _use_imagenet_stats(meta: Any) -> None:
    """Replace the statistics of the colour cameras, as lerobot's `make_dataset` does."""
    for key in meta.camera_keys:
        if key in meta.depth_keys:
            continue
        for name, values in IMAGENET_STATS.items():
            meta.stats[key][name] = torch.tensor(values, dtype=torch.float32)
