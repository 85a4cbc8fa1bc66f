from __future__ import annotations

import argparse
from itertools import islice
from typing import TYPE_CHECKING

import pytest
from torch.utils.data import DataLoader

from lerobot_streaming import StreamingLeRobotDataset
from tests.benchmarks.plan_order import PlanBatches, worker_indices
from tests.benchmarks.raw_libav import RawFrames
from tests.support.datasets import REPO_ID, Shelf, load_info

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")


def _open(root: Path) -> StreamingLeRobotDataset:
    return StreamingLeRobotDataset(REPO_ID, root, return_uint8=True, repeat=True, seed=7, episode_pool_size=2)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_ceiling_decodes_what_the_streaming_loader_delivers(shelf: Shelf, num_workers: int) -> None:
    """The same frames in the same batches, across the end of the first epoch, and the same pictures."""
    root = shelf.root("rotating_files")
    count = 2 * load_info(root)["total_frames"] // 4
    streaming = DataLoader(_open(root), batch_size=4, num_workers=num_workers)
    order = PlanBatches(_open(root), 4, num_workers)
    raw = DataLoader(RawFrames(root), batch_sampler=order, num_workers=num_workers)
    pictures = [name for name in RawFrames(root)[0] if name != "index"]
    for ours, theirs in islice(zip(streaming, raw, strict=False), count):
        assert ours["index"].tolist() == theirs["index"].tolist()
        for name in pictures:
            assert (ours[name] == theirs[name]).all()


def test_an_epoch_of_all_workers_is_every_frame_once(shelf: Shelf) -> None:
    root = shelf.root("rotating_files")
    dataset = _open(root)
    share = [dataset.num_frames_for_rank(0, 1)]
    frames = list(islice(worker_indices(dataset, 0, 0), 2 * share[0]))
    assert sorted(frames[: share[0]]) == list(range(share[0]))
    assert sorted(frames[share[0] :]) == list(range(share[0]))
    assert frames[: share[0]] != frames[share[0] :]


def test_the_steady_state_is_a_window_and_a_pool_of_every_worker_or_an_epoch(shelf: Shelf) -> None:
    from tests.benchmarks.contenders import open_streaming, steady_samples

    root = shelf.root("rotating_files")
    options = argparse.Namespace(seed=0, option=["decoded_queue_size=3", "frame_cache_gb=0"])
    dataset = open_streaming(root, options, episode_pool_size=1)
    length = dataset.num_frames // dataset.num_episodes
    assert 3 < length < dataset.num_frames / 2
    assert steady_samples(dataset, 2) == 2 * length
    longer = argparse.Namespace(seed=0, option=[f"decoded_queue_size={length + 1}", "frame_cache_gb=0"])
    assert steady_samples(open_streaming(root, longer, episode_pool_size=1), 2) == 2 * (length + 1)
    dataset = open_streaming(root, options, frame_cache_gb=1.0)
    assert steady_samples(dataset, 2) == dataset.num_frames
