"""The episodes of the first draws come first, and nothing waits for ever for the others."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from itertools import islice
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, cast

import pytest

from lerobot_streaming import StreamingLeRobotDataset
from lerobot_streaming.episodes.fetch_queue import FetchQueue
from tests.support.datasets import CAMERA_A, REPO_ID, Camera, write_dataset

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three episodes of one frame and one of two."""
    root = tmp_path_factory.mktemp("first-draws") / "tiny"
    return write_dataset(root, lengths=(1, 1, 2, 1), cameras=(Camera(key=CAMERA_A),))


@pytest.mark.parametrize("cache_gb", [0.0, 1.0])
@pytest.mark.parametrize("prefetch", [0, 8])
def test_episodes_that_leave_and_come_back_during_the_first_draws(
    tiny: Path, cache_gb: float, prefetch: int
) -> None:
    dataset = StreamingLeRobotDataset(
        REPO_ID, tiny, repeat=True, episode_pool_size=2, prefetch_episodes=prefetch, frame_cache_gb=cache_gb
    )
    drawn = [int(item["index"]) for item in islice(dataset, 20 * dataset.num_frames)]
    assert Counter(drawn) == dict.fromkeys(range(dataset.num_frames), 20)


def test_a_pass_of_fewer_samples_than_the_first_draws_ends(tiny: Path) -> None:
    dataset = StreamingLeRobotDataset(REPO_ID, tiny)
    for _ in range(2):
        assert sorted(int(item["index"]) for item in dataset) == [0, 1, 2, 3, 4]


def test_other_episodes_are_fetched_once_the_first_draws_are_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FetchQueue.__init__, "__defaults__", (0, 600.0))  # It has patience.
    root = write_dataset(tmp_path / "long", lengths=(40, 40, 40), cameras=(Camera(key=CAMERA_A),))
    dataset = StreamingLeRobotDataset(REPO_ID, root, shuffle=False, episode_pool_size=1, prefetch_episodes=2)

    def fetched() -> int:
        return int(dataset.stats()["total"]["bytes_fetched"])

    with closing(cast("Generator[Any]", iter(dataset))) as items:
        for _ in islice(items, 8):  # All draws that the queue holds now are of the first episode, too.
            pass
        first = fetched()
        sleep(0.5)
        assert fetched() == first
        for _ in islice(items, 10):
            pass
        deadline = monotonic() + 20
        while fetched() < 2 * first and monotonic() < deadline:
            sleep(0.05)
        assert fetched() >= 2 * first
