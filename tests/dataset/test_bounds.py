"""Byte budget, frame cache, threads: what is bounded stays bounded, and everything ends when it is closed."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any

import pytest

from lerobot_streaming import StreamingLeRobotDataset
from lerobot_streaming.decode.frame_cache import FrameCache
from lerobot_streaming.episodes.byte_cache import EpisodeByteCache
from lerobot_streaming.episodes.catalog import VideoCatalog
from lerobot_streaming.errors import ByteBudgetError, DecodeError, DecodeStallError, FetchError
from lerobot_streaming.options import GIB
from lerobot_streaming.storage.local import LocalReader
from tests.support.datasets import CAMERA_A, REPO_ID, Shelf, video_files

if TYPE_CHECKING:
    from pathlib import Path


def _ours() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("lerobot-streaming")]


def _sizes(dataset: StreamingLeRobotDataset) -> list[int]:
    index, layout = dataset._open.index, dataset._open.layout
    assert index is not None
    sizes: list[int] = VideoCatalog(layout, index, 1e-4).sizes(range(layout.num_episodes)).tolist()
    return sizes


@pytest.mark.parametrize("kind", ["many_tiny", "h264_bframes"])
@pytest.mark.parametrize("episodes_that_fit", [1.0, 2.5])
def test_reservations_never_exceed_the_budget(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, kind: str, episodes_that_fit: float
) -> None:
    sizes = _sizes(StreamingLeRobotDataset(REPO_ID, shelf.root(kind)))
    budget = int(max(sizes) * episodes_that_fit)
    seen: list[tuple[int, int]] = []
    caches: set[EpisodeByteCache] = set()
    original = EpisodeByteCache.set_resident

    def watched(self: EpisodeByteCache, position: int, size_bytes: int) -> None:
        original(self, position, size_bytes)
        assert size_bytes == sizes[position], "the planned size is not exact"
        seen.append((self.reserved_bytes, self.resident_bytes))
        caches.add(self)

    monkeypatch.setattr(EpisodeByteCache, "set_resident", watched)
    dataset = StreamingLeRobotDataset(
        REPO_ID,
        shelf.root(kind),
        byte_budget_gb=budget / GIB,
        repeat=True,
        return_uint8=True,
        decode_threads=3,
    )
    iterator = iter(dataset)
    drawn = [int(next(iterator)["index"]) for _ in range(2 * dataset.num_frames)]
    (one,) = caches
    assert one.budget_bytes <= budget
    assert 0 < one.peak_reserved_bytes <= one.budget_bytes
    iterator.close()  # type: ignore[attr-defined]
    assert all(resident <= reserved <= budget for reserved, resident in seen)
    assert one.reserved_bytes == one.resident_bytes == 0
    assert sorted(drawn[: dataset.num_frames]) == list(range(dataset.num_frames))
    assert sorted(drawn[dataset.num_frames :]) == list(range(dataset.num_frames))


def test_an_episode_over_the_budget_is_refused_before_any_payload_is_read(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = shelf.root("h264_bframes")
    sizes = _sizes(StreamingLeRobotDataset(REPO_ID, root))
    reads: list[str] = []
    original = LocalReader.read_into

    def watched(self: LocalReader, path: str, offset: int, view: memoryview) -> None:
        reads.append(path)
        original(self, path, offset, view)

    monkeypatch.setattr(LocalReader, "read_into", watched)
    largest = max(range(len(sizes)), key=sizes.__getitem__)
    with pytest.raises(ByteBudgetError) as caught:
        StreamingLeRobotDataset(REPO_ID, root, byte_budget_gb=(sizes[largest] - 1) / GIB)
    assert f"Episode {largest} " in str(caught.value)
    assert "byte_budget_gb" in str(caught.value)
    assert not [path for path in reads if path.endswith(".mp4")]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")
def test_a_budget_too_small_for_the_workers_names_the_flag(shelf: Shelf) -> None:
    from torch.utils.data import DataLoader

    sizes = _sizes(StreamingLeRobotDataset(REPO_ID, shelf.root("many_tiny")))
    dataset = StreamingLeRobotDataset(
        REPO_ID, shelf.root("many_tiny"), byte_budget_gb=max(sizes) * 1.2 / GIB, return_uint8=True
    )
    loader = DataLoader(dataset, num_workers=2, multiprocessing_context="fork")
    with pytest.raises(ByteBudgetError, match="byte_budget_gb"):
        next(iter(loader))


@pytest.mark.parametrize("kind", ["h264_bframes", "av1"])
def test_the_frame_cache_saves_decodes_within_its_budget(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    def decodes(frame_cache_gb: float) -> tuple[list[int], float, int]:
        peak = 0
        original = FrameCache._keep

        def watched(self: FrameCache, *arguments: Any) -> None:
            nonlocal peak
            original(self, *arguments)
            peak = max(peak, self.num_bytes)

        with monkeypatch.context() as patch:
            patch.setattr(FrameCache, "_keep", watched)
            dataset = StreamingLeRobotDataset(
                REPO_ID, shelf.root(kind), frame_cache_gb=frame_cache_gb, return_uint8=True
            )
            order = [int(item["index"]) for item in dataset]
        return order, dataset.stats()["total"]["decodes_per_sample"], peak

    order, without, nothing = decodes(0)
    assert nothing == 0
    with_all = decodes(1.0)
    assert with_all[0] == order
    assert with_all[1] < without
    assert with_all[1] <= 1.3
    small = 12 * 64 * 48 * 3 // 2
    tight = decodes(small / GIB)
    assert tight[0] == order
    assert 0 < tight[2] <= small
    assert with_all[1] <= tight[1] <= without


def test_closing_early_ends_every_thread_within_a_second(shelf: Shelf) -> None:
    dataset = StreamingLeRobotDataset(REPO_ID, shelf.root("h264_bframes"), repeat=True, decode_threads=4)
    iterator = iter(dataset)
    next(iterator)
    assert _ours()
    # Closing waits a second for the threads at most, so when it returns and they are gone, they were in time.
    iterator.close()  # type: ignore[attr-defined]
    assert not _ours()
    # And a dropped iterator closes itself.
    iterator = iter(dataset)
    next(iterator)
    del iterator
    assert not _ours()


def test_an_exception_in_a_decode_thread_reaches_the_caller_with_its_cause(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lerobot_streaming.items import ItemBuilder

    original = ItemBuilder.build
    calls = 0

    def failing(self: ItemBuilder, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 5:
            raise RuntimeError("inner") from KeyError("cause")
        return original(self, *arguments)

    monkeypatch.setattr(ItemBuilder, "build", failing)
    dataset = StreamingLeRobotDataset(REPO_ID, shelf.root("h264_bframes"))
    with pytest.raises(RuntimeError, match="inner") as caught:
        list(dataset)
    assert isinstance(caught.value.__cause__, KeyError)
    assert not _ours()


@pytest.fixture
def copied(shelf: Shelf, tmp_path: Path) -> Path:
    root = tmp_path / "copy"
    shutil.copytree(shelf.root("h264_bframes"), root)
    return root


def test_a_damaged_video_is_an_error_that_names_it(copied: Path) -> None:
    dataset = StreamingLeRobotDataset(REPO_ID, copied, shuffle=False)
    path = video_files(copied, CAMERA_A)[0]
    data = bytearray(path.read_bytes())
    payload = data.index(b"mdat") + 4
    size = int.from_bytes(data[payload - 8 : payload - 4], "big")
    data[payload : payload + size - 8] = bytes(size - 8)
    path.write_bytes(bytes(data))
    with pytest.raises(DecodeError, match=str(path.relative_to(copied))) as caught:
        list(dataset)
    assert "episodes=" in str(caught.value)
    # The dataset's own number of the episode, not its place in the selection.
    dataset = StreamingLeRobotDataset(REPO_ID, copied, episodes=[1, 0], shuffle=False)
    with pytest.raises(DecodeError, match="of episode 1"):
        list(dataset)
    assert not _ours()


def test_a_file_that_shrinks_under_the_run_is_an_error_that_names_it(copied: Path) -> None:
    dataset = StreamingLeRobotDataset(REPO_ID, copied)
    path = video_files(copied, CAMERA_A)[0]
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)
    with pytest.raises(FetchError, match=f"episode .*camera .*{path.relative_to(copied)}"):
        list(dataset)
    assert not _ours()


@pytest.mark.slow
def test_a_process_that_never_closes_its_iterator_still_ends_cleanly(shelf: Shelf) -> None:
    code = (
        "from lerobot_streaming import StreamingLeRobotDataset\n"
        f"dataset = StreamingLeRobotDataset({REPO_ID!r}, {str(shelf.root('many_tiny'))!r}, repeat=True,\n"
        "    episode_pool_size=1, prefetch_episodes=8)\n"
        "iterator = iter(dataset)\n"
        "for _ in range(40):\n"
        "    next(iterator)\n"
    )
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("episodes", "options"),
    [
        (None, {"episode_pool_size": 4, "prefetch_episodes": 0, "decoded_queue_size": 16}),
        ([0, 1, 2], {"episode_pool_size": 2, "prefetch_episodes": 0}),
        ([0], {"episode_pool_size": 1, "prefetch_episodes": 0, "decoded_queue_size": 1}),
        ([0, 1], {"episode_pool_size": 1, "prefetch_episodes": 3, "decode_threads": 4}),
        (None, {"byte_budget_gb": "2.5 episodes"}),
    ],
)
def test_epochs_that_share_resident_episodes_run_on_for_ever(
    shelf: Shelf, episodes: list[int] | None, options: dict[str, Any]
) -> None:
    root = shelf.root("many_tiny")
    if "byte_budget_gb" in options:
        options = {"byte_budget_gb": 2.5 * max(_sizes(StreamingLeRobotDataset(REPO_ID, root))) / GIB}
    dataset = StreamingLeRobotDataset(
        REPO_ID, root, episodes=episodes, repeat=True, return_uint8=True, **options
    )
    count = dataset.num_frames
    epochs = max(20, 200 // count)
    iterator = iter(dataset)
    drawn = [int(next(iterator)["index"]) for _ in range(epochs * count)]
    iterator.close()  # type: ignore[attr-defined]
    everything = sorted(drawn[:count])
    assert len(set(everything)) == count
    for epoch in range(1, epochs):
        assert sorted(drawn[epoch * count : (epoch + 1) * count]) == everything


def test_the_bytes_in_memory_are_the_bytes_reserved(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts the mini-MP4s that are alive, whoever refers to them."""
    from lerobot_streaming.episodes.mini_mp4 import fetch_mini_mp4

    alive: list[weakref.ref[Any]] = []

    class Counted(bytearray):
        """A bytearray that can be referred to weakly."""

    def counting(*arguments: Any) -> Any:
        data = Counted(fetch_mini_mp4(*arguments))
        alive.append(weakref.ref(data))
        return data

    monkeypatch.setattr("lerobot_streaming.episodes.catalog.fetch_mini_mp4", counting)
    root = shelf.root("many_tiny")
    budget = int(2.2 * max(_sizes(StreamingLeRobotDataset(REPO_ID, root))))
    dataset = StreamingLeRobotDataset(
        REPO_ID, root, byte_budget_gb=budget / GIB, return_uint8=True, max_num_shards=2, repeat=True
    )
    iterator = iter(dataset)
    for _ in range(3 * dataset.num_frames):
        next(iterator)
        assert sum(len(data) for data in (ref() for ref in alive) if data is not None) <= budget
    iterator.close()  # type: ignore[attr-defined]


def test_decoded_frames_are_freed_when_the_iterator_is_closed(shelf: Shelf) -> None:
    caches: list[weakref.ref[FrameCache]] = []
    original = FrameCache.__init__

    def watched(self: FrameCache, *arguments: Any) -> None:
        original(self, *arguments)
        caches.append(weakref.ref(self))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FrameCache, "__init__", watched)
        dataset = StreamingLeRobotDataset(REPO_ID, shelf.root("h264_bframes"), return_uint8=True)
        iterator = iter(dataset)
        for _ in range(10):
            next(iterator)
        (cache,) = caches
        living = cache()
        assert living is not None
        assert living.num_bytes > 0
        iterator.close()  # type: ignore[attr-defined]
        assert living.num_bytes == 0


def test_a_read_that_does_not_return_becomes_an_error(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    from lerobot_streaming.decode import ordered

    release = threading.Event()
    dataset = StreamingLeRobotDataset(REPO_ID, shelf.root("h264_bframes"), return_uint8=True)
    monkeypatch.setattr(ordered.OrderedPipeline.__init__, "__kwdefaults__", {"stall_timeout_s": 0.5})
    monkeypatch.setattr(LocalReader, "read_into", lambda *_: release.wait(30))
    try:
        with pytest.raises(DecodeStallError, match=r"Fetching episode \d+ has not returned"):
            next(iter(dataset))
    finally:
        release.set()
