"""Which episodes, and which of their frames, a training run holds out for evaluation; from metadata alone."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from lerobot_streaming.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def split_episodes(
    episodes: Sequence[int], tasks: Mapping[int, str], eval_split: float
) -> tuple[list[int], list[int]]:
    """Split episodes by lerobot's own rule: the last `ceil(n * eval_split)` of each task are held out.

    Args:
        episodes: Selected episode indices.
        tasks: Task of each of them.
        eval_split: Share to hold out, greater than 0 and below 1.

    Returns:
        The episodes to train on and the held-out ones, task by task in the order in which the tasks first
        occur.

    Raises:
        OptionError: No episode is left to train on.
    """
    by_task: dict[str, list[int]] = {}
    for episode in episodes:
        by_task.setdefault(tasks[episode], []).append(episode)
    train: list[int] = []
    held_out: list[int] = []
    for members in by_task.values():
        kept = len(members) - math.ceil(len(members) * eval_split)
        train += members[:kept]
        held_out += members[kept:]
    if not train:
        raise OptionError(
            f"--dataset.eval_split={eval_split} holds out all of the {len(episodes)} episode(s): every task "
            "keeps its last ceil(episodes * eval_split) back. Lower it, or select more episodes."
        )
    return train, held_out


def cap_frames(
    episodes: Sequence[int], tasks: Mapping[int, str], lengths: Mapping[int, int], max_samples: int
) -> dict[int, int]:
    """Choose the frames that `--max_eval_samples` leaves, by lerobot's own rule: as many of each task.

    lerobot takes the first frames of each task in the order of the data set; a task is that of the episode
    here (lerobot looks at each frame's, which differs only for an episode that changes its task midway).

    Args:
        episodes: Held-out episode indices.
        tasks: Task of each of them.
        lengths: Frames of each of them.
        max_samples: The cap, at least 1. Each task keeps at least one frame.

    Returns:
        For each episode that is used at all, ascending, how many of its first frames are.
    """
    per_task = max(1, max_samples // len({tasks[episode] for episode in episodes}))
    left: dict[str, int] = {}
    used: dict[int, int] = {}
    for episode in sorted(episodes):
        task = tasks[episode]
        take = min(left.setdefault(task, per_task), lengths[episode])
        if take:
            used[episode] = take
            left[task] -= take
    return used
