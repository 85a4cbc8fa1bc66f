from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lerobot_streaming.errors import OptionError
from lerobot_streaming.train.split import cap_frames, split_episodes
from tests.train.support import configure, train_arguments

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.datasets import Shelf


@pytest.mark.parametrize("eval_split", [0.1, 0.34, 0.5])
@pytest.mark.parametrize("episodes", [None, [5, 4, 3, 2, 1, 0], [0, 2, 3, 4]])
def test_the_split_is_lerobots(
    shelf: Shelf, tmp_path: Path, eval_split: float, episodes: list[int] | None
) -> None:
    from lerobot.datasets import LeRobotDatasetMetadata
    from lerobot.datasets.factory import make_train_eval_datasets

    root = shelf.root("many_tiny")
    selection = [f"--dataset.episodes={episodes}"] if episodes else []
    cfg = configure(
        train_arguments(root, tmp_path, f"--dataset.eval_split={eval_split}", *selection, streaming=False)
    )
    train, held_out = make_train_eval_datasets(cfg)

    meta = LeRobotDatasetMetadata(cfg.dataset.repo_id, root=root)
    selected = episodes or list(range(meta.total_episodes))
    tasks = {episode: meta.episodes["tasks"][episode][0] for episode in selected}
    assert len(set(tasks.values())) > 1
    assert split_episodes(selected, tasks, eval_split) == (train.episodes, held_out.episodes)


def test_nothing_left_to_train_on_is_refused() -> None:
    with pytest.raises(OptionError, match=r"eval_split=0\.5 holds out all of the 2 episode"):
        split_episodes([0, 1], {0: "a", 1: "b"}, 0.5)


@given(
    lengths=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 2)), min_size=1, max_size=8),
    max_samples=st.integers(1, 30),
)
def test_the_cap_takes_the_first_frames_of_each_task(
    lengths: list[tuple[int, int]], max_samples: int
) -> None:
    tasks = {episode: str(task) for episode, (_, task) in enumerate(lengths)}
    used = cap_frames(list(tasks), tasks, {e: n for e, (n, _) in enumerate(lengths)}, max_samples)

    # As lerobot does it: look at the task of every frame in order, keep the first ones.
    frames = [(episode, tasks[episode]) for episode, (length, _) in enumerate(lengths) for _ in range(length)]
    per_task = max(1, max_samples // len(set(tasks.values())))
    kept = [
        episode
        for task in sorted(set(tasks.values()))
        for episode in [episode for episode, its_task in frames if its_task == task][:per_task]
    ]
    assert used == {episode: kept.count(episode) for episode in sorted(set(kept))}
    assert all(used.values())
