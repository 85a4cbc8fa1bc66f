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

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from lerobot_streaming.dataset import StreamingLeRobotDataset

logger = logging.getLogger(__name__)


def record_order(cfg: Any, dataset: StreamingLeRobotDataset) -> None:
    """Position the training set, and note in the config what a later run needs to continue its order.

    lerobot saves the config, the step, the batch size and the number of processes with every checkpoint. What
    the order depends on besides is noted in the config's `streaming_order`: it stays the same until the
    settings change, so one note serves all checkpoints of a run.

    Args:
        cfg: The run's validated `TrainPipelineConfig`.
        dataset: The training set, not iterated yet. When the run resumes, it is placed behind the samples
            that the checkpoint's run has used.

    Raises:
        OptionError: The checkpoint's order cannot be continued: it is not known, or is one of other data.
    """
    coming = {"batch_size": cfg.batch_size, "num_workers": cfg.num_workers}
    items: dict[str, Any] = {"windows": _windows(dataset), "features": list(dataset.features)}
    if not cfg.resume:
        dataset.load_state_dict({"epoch": 0, "offset": 0, "batch_size": cfg.batch_size}, **coming)
        cfg.dataset.streaming_order = _note(0, dataset.state_dict(), items)
        return

    checkpoint: Path = cfg.checkpoint_path
    way_out = (
        f"start a new run from its weights with --policy.path={checkpoint / PRETRAINED_MODEL_DIR} "
        "and without --resume"
    )
    note = _read_note(checkpoint, way_out)
    step = load_training_step(checkpoint / TRAINING_STATE_DIR)
    _warn_of_windows(note.get("windows"), items["windows"])
    _warn_of_features(note.get("features"), items["features"])
    batch_size = load_training_batch_size(checkpoint)
    processes = load_training_num_processes(checkpoint)
    try:
        state = {
            **note["state"],
            "offset": (step - note["step"]) * batch_size,
            "batch_size": batch_size,
        }
        noted = state["settings"]["world_size"]
        dataset.load_state_dict(state, **coming)
    except (OptionError, TypeError, KeyError) as error:
        raise OptionError(
            f"--resume=true cannot continue the data order of {checkpoint}: {error} Resume with what the "
            f"checkpoint was trained on, or {way_out}."
        ) from error
    if processes != noted:
        raise OptionError(
            f"--resume=true cannot continue the data order of {checkpoint}: it was written by {processes} "
            f"process(es), but notes an order for {noted}. Start them with torchrun or accelerate launch, or "
            f"{way_out}."
        )

    begun = dataset.state_dict()
    if begun["offset"] == state["offset"] and begun.get("history", []) == state.get("history", []):
        since = f" since step {note['step']}" if note["step"] else ""
        logger.info("Resuming the data order behind %d samples of each rank%s", state["offset"], since)
        cfg.dataset.streaming_order = json.dumps(note)
    else:
        logger.info("Resuming in epoch %d with the rest of it dealt anew", begun["epoch"])
        cfg.dataset.streaming_order = _note(step, begun, items)


def _note(step: int, state: Mapping[str, Any], items: Mapping[str, Any]) -> str:
    return json.dumps({"step": step, "state": dict(state), **items})


def _read_note(checkpoint: Path, way_out: str) -> dict[str, Any]:
    """Read what the checkpoint's run noted; map-style and lerobot's own streaming class note nothing."""
    saved = json.loads((checkpoint / PRETRAINED_MODEL_DIR / TRAIN_CONFIG_NAME).read_text())["dataset"]
    try:
        note = json.loads(saved.get("streaming_order") or "null")
    except ValueError:
        note = None
    if not saved.get("streaming") or not isinstance(note, dict):
        raise OptionError(
            f"--resume=true cannot continue the data order of {checkpoint}: it was not trained with this "
            f"streaming dataset and does not say how it sampled. Resume without streaming, or {way_out}."
        )
    return note


def _windows(dataset: StreamingLeRobotDataset) -> dict[str, list[int]]:
    return {key: [int(delta) for delta in deltas] for key, deltas in sorted(dataset.delta_indices.items())}


def _warn_of_windows(was: Any, now: Mapping[str, Any]) -> None:
    """Windows do not change which frames are drawn, so the order goes on; but the items change."""
    if was == now:
        return
    keys = sorted({*(was or {}), *now})
    texts = [
        f"{key}: {(was or {}).get(key)} in the checkpoint, {now.get(key)} now"
        for key in keys
        if (was or {}).get(key) != now.get(key)
    ]
    logger.warning("The items have other windows than those of the checkpoint's run (%s)", "; ".join(texts))


def _warn_of_features(was: Any, now: list[str]) -> None:
    """Other cameras are a difference of the settings too; other features change nothing but the items."""
    if was is None or sorted(was) == sorted(now):  # Notes of former versions do not say.
        return
    logger.warning(
        "The items have other features than those of the checkpoint's run (left out: %s; new: %s)",
        sorted(set(was) - set(now)) or "none",
        sorted(set(now) - set(was)) or "none",
    )
