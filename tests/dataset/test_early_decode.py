"""What is decoded before its turn changes no order, no item and no error, and is in nobody's way."""

from __future__ import annotations

import shutil
import threading
from typing import TYPE_CHECKING, Any

import av
import pytest

from lerobot_streaming import StreamingLeRobotDataset
from lerobot_streaming.decode import ordered
from lerobot_streaming.decode.frame_cache import FrameCache
from lerobot_streaming.episodes.byte_cache import EpisodeByteCache
from lerobot_streaming.episodes.catalog import VideoCatalog
from lerobot_streaming.episodes.fetcher import EpisodeFetcher
from lerobot_streaming.errors import DecodeError, DecodeStallError
from lerobot_streaming.options import GIB
from tests.memory.samples import assert_same
from tests.support.datasets import CAMERA_A, REPO_ID, Shelf, video_files

if TYPE_CHECKING:
    from pathlib import Path


def _ours() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("lerobot-streaming")]


def _damaged(shelf: Shelf, target: Path, sample: int) -> Path:
    """A copy with one sample of a GOP of twelve overwritten."""
    root = target / "damaged"
    shutil.copytree(shelf.root("h264_bframes"), root)
    path = video_files(root, CAMERA_A)[0]
    with av.open(str(path)) as container:
        packets = [packet for packet in container.demux(video=0) if packet.size]
    packet = packets[sample]
    assert packet.pos is not None
    assert not packet.is_keyframe
    data = bytearray(path.read_bytes())
    data[packet.pos : packet.pos + packet.size] = bytes(packet.size)
    path.write_bytes(bytes(data))
    return root


def _until_error(root: Path, **arguments: Any) -> tuple[list[int], str]:
    dataset = StreamingLeRobotDataset(REPO_ID, root, return_uint8=True, **arguments)
    delivered: list[int] = []
    with pytest.raises(DecodeError) as caught:
        delivered.extend(int(item["index"]) for item in dataset)
    assert not _ours()
    return delivered, str(caught.value)


@pytest.mark.parametrize(("sample", "shuffle"), [(9, False), (20, True)])
def test_damage_ahead_is_the_error_of_the_first_draw_that_needs_it(
    shelf: Shelf, tmp_path: Path, sample: int, shuffle: bool
) -> None:
    root = _damaged(shelf, tmp_path, sample)
    delivered, message = _until_error(root, shuffle=shuffle, frame_cache_gb=0, decode_threads=1)
    assert "could not decode" in message
    assert "file-000.mp4" in message
    if not shuffle:
        assert len(delivered) >= sample - 3
    for threads in (1, 3):
        got, other = _until_error(root, shuffle=shuffle, decode_threads=threads)
        assert got == delivered
        assert other == message


@pytest.mark.parametrize("threads", [1, 3])
def test_items_and_their_order_do_not_depend_on_it(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    warmed = threading.Event()
    original = FrameCache.warm

    def noting(self: FrameCache, *arguments: Any) -> bool:
        warmed.set()
        return original(self, *arguments)

    monkeypatch.setattr(FrameCache, "warm", noting)
    arguments: dict[str, Any] = {"return_uint8": True, "decoded_queue_size": 2}
    deltas = {CAMERA_A: [-0.3, 0.0, 0.5]}
    root = shelf.root("h264_bframes")
    plain = StreamingLeRobotDataset(
        REPO_ID, root, frame_cache_gb=0, decode_threads=1, delta_timestamps=deltas, **arguments
    )
    wanted = list(plain)
    assert not warmed.is_set()
    early = StreamingLeRobotDataset(
        REPO_ID, root, decode_threads=threads, delta_timestamps=deltas, **arguments
    )
    for got, other in zip(early, wanted, strict=True):
        assert_same(got, other)
        # A slow consumer: the threads have nothing else to do.
        warmed.wait(0.1)
    assert warmed.is_set()


def test_a_decode_that_holds_the_last_room_is_waited_for(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = shelf.root("many_tiny")
    dataset = StreamingLeRobotDataset(REPO_ID, root)
    index, layout = dataset._open.index, dataset._open.layout
    assert index is not None
    largest = max(VideoCatalog(layout, index, 1e-4).sizes(range(layout.num_episodes)).tolist())
    original = FrameCache.warm
    slow = threading.Event()

    def late(self: FrameCache, *arguments: Any) -> bool:
        decoded = original(self, *arguments)
        slow.wait(0.02)  # Longer than all other draws of an episode take.
        return decoded

    monkeypatch.setattr(FrameCache, "warm", late)
    caches: set[EpisodeByteCache] = set()
    reserve = EpisodeByteCache.try_reserve

    def watched(self: EpisodeByteCache, position: int, size_bytes: int) -> bool:
        caches.add(self)
        return reserve(self, position, size_bytes)

    monkeypatch.setattr(EpisodeByteCache, "try_reserve", watched)
    dataset = StreamingLeRobotDataset(
        REPO_ID,
        root,
        byte_budget_gb=(largest + 0.5) / GIB,
        episode_pool_size=3,
        return_uint8=True,
        decode_threads=3,
        decoded_queue_size=1,  # Else an episode's draws are all under way before any is decoded early.
        repeat=True,
    )
    iterator = iter(dataset)
    drawn = [int(next(iterator)["index"]) for _ in range(2 * dataset.num_frames)]
    iterator.close()  # type: ignore[attr-defined]
    assert sorted(drawn) == sorted(2 * list(range(dataset.num_frames)))
    (cache,) = caches
    assert cache.peak_reserved_bytes <= largest
    assert cache.reserved_bytes == 0


@pytest.mark.parametrize("error", [MemoryError("no room"), ValueError("odd"), KeyError(3)], ids=repr)
def test_no_error_of_an_early_decode_ends_a_thread(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    tried = threading.Event()

    def failing(*_: Any) -> bool:
        tried.set()
        raise error

    monkeypatch.setattr(FrameCache, "warm", failing)
    dataset = StreamingLeRobotDataset(
        REPO_ID, shelf.root("many_tiny"), return_uint8=True, decode_threads=1, decoded_queue_size=1
    )
    drawn = []
    for item in dataset:
        drawn.append(int(item["index"]))
        tried.wait(0.1)
    assert sorted(drawn) == list(range(dataset.num_frames))
    assert tried.is_set()
    assert not _ours()


def _blocking(
    monkeypatch: pytest.MonkeyPatch, release: threading.Event, begun: threading.Event
) -> list[EpisodeFetcher]:
    """Early decodes do not return until they are released; gives the fetchers whose episodes they hold."""
    fetchers: list[EpisodeFetcher] = []
    hold = EpisodeFetcher.hold

    def watched(self: EpisodeFetcher, position: int) -> Any:
        if self not in fetchers:
            fetchers.append(self)
        return hold(self, position)

    def block(*_: Any) -> bool:
        begun.set()
        release.wait(60)
        return False

    monkeypatch.setattr(EpisodeFetcher, "hold", watched)
    monkeypatch.setattr(FrameCache, "warm", block)
    return fetchers


def test_an_early_decode_that_does_not_return_becomes_an_error(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, begun = threading.Event(), threading.Event()
    _blocking(monkeypatch, release, begun)
    monkeypatch.setattr(ordered.OrderedPipeline.__init__, "__kwdefaults__", {"stall_timeout_s": 0.5})
    dataset = StreamingLeRobotDataset(
        REPO_ID, shelf.root("h264_bframes"), return_uint8=True, decode_threads=1, decoded_queue_size=1
    )
    try:
        with pytest.raises(DecodeStallError, match=r"Decoding frame \d+ of episode \d+ from .*mp4 has not"):  # noqa: PT012
            for _ in dataset:
                begun.wait(0.1)
    finally:
        release.set()
    for thread in _ours():
        thread.join(10)
    assert not _ours()


def test_closing_while_a_thread_decodes_early_is_prompt_and_leaves_nothing(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, begun = threading.Event(), threading.Event()
    fetchers = _blocking(monkeypatch, release, begun)
    dataset = StreamingLeRobotDataset(
        REPO_ID, shelf.root("h264_bframes"), return_uint8=True, decode_threads=2, repeat=True
    )
    iterator = iter(dataset)
    closed = threading.Event()

    def take_and_close() -> None:
        while not begun.wait(0.1):
            next(iterator)
        iterator.close()  # type: ignore[attr-defined]
        closed.set()

    thread = threading.Thread(target=take_and_close)
    thread.start()
    # It gives up waiting for the thread after a second.
    assert closed.wait(30)
    (fetcher,) = fetchers
    assert fetcher.num_held >= 1
    assert fetcher._cache.reserved_bytes == 0
    release.set()
    for one in _ours():
        one.join(10)
    assert not _ours()
    assert fetcher.num_held == 0
    assert fetcher._cache.reserved_bytes == 0
    thread.join()
