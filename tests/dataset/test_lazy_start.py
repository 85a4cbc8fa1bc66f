"""A dataset of many files starts before its index is complete."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pytest
from torch.utils.data import DataLoader

from lerobot_streaming import StreamingLeRobotDataset
from lerobot_streaming.errors import BadVideoFilesError, ByteBudgetError, DatasetLayoutError, MissingFileError
from lerobot_streaming.index.partial import PartialIndex
from lerobot_streaming.options import GIB
from tests.support.datasets import CAMERA_A, REPO_ID, Shelf, edit_episodes, video_files
from tests.support.oracle import assert_same_items, map_items, stream_items

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")

KIND = "file_per_episode"


@pytest.fixture
def lazy(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Every dataset counts as one of many files; nothing completes an index behind a test's back."""
    with monkeypatch.context() as patch:
        patch.setattr("lerobot_streaming.opening.LAZY_ABOVE", 0)
        patch.setattr("lerobot_streaming.opening.complete_later", lambda *_: None)
        yield patch


def open_lazily(root: Path, **arguments: Any) -> tuple[StreamingLeRobotDataset, PartialIndex]:
    dataset = StreamingLeRobotDataset(REPO_ID, root, return_uint8=True, **arguments)
    index = dataset._open.index
    assert isinstance(index, PartialIndex)
    return dataset, index


def known(index: PartialIndex) -> set[str]:
    return {path for path in index.files if index.knows(path)}


def test_construction_reads_no_video_and_the_first_sample_only_the_first_episodes(
    shelf: Shelf, tmp_path: Path, lazy: pytest.MonkeyPatch
) -> None:
    lazy.setattr(PartialIndex, "load_ahead", lambda *_: None)
    dataset, index = open_lazily(
        shelf.copy(KIND, tmp_path / "data"), episode_pool_size=1, prefetch_episodes=0
    )
    assert known(index) == set()
    items = iter(dataset)
    first = next(items)
    layout = dataset._open.layout
    episode = int(first["episode_index"])
    assert known(index) == {table.path(episode) for table in layout.cameras.values()}
    items.close()  # type: ignore[attr-defined]  # It is a generator.


@pytest.mark.parametrize("kind", ["file_per_episode", "h264_bframes", "rotating_files"])
@pytest.mark.usefixtures("lazy")
def test_items_equal_map_style(shelf: Shelf, tmp_path: Path, kind: str) -> None:
    root = shelf.copy(kind, tmp_path / "data")
    dataset, _ = open_lazily(root)
    assert_same_items(map_items(root, return_uint8=True), stream_items(dataset))


@pytest.mark.parametrize("episodes_that_fit", [1.0, 1.5, 3.0])
@pytest.mark.parametrize("workers", [0, 2])
def test_the_order_is_that_of_a_complete_index_however_tight_the_budget(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, episodes_that_fit: float, workers: int
) -> None:
    root = shelf.copy("many_tiny", tmp_path / "data")
    largest = max(path.stat().st_size for path in video_files(root, CAMERA_A))
    arguments: dict[str, Any] = {"byte_budget_gb": largest * episodes_that_fit * max(1, workers) / GIB}

    def order(dataset: StreamingLeRobotDataset) -> list[int]:
        loader = DataLoader(dataset, batch_size=None, num_workers=workers)
        return [int(item["index"]) for item in loader]

    with monkeypatch.context() as patch:
        patch.setattr("lerobot_streaming.opening.LAZY_ABOVE", 0)
        patch.setattr("lerobot_streaming.opening.complete_later", lambda *_: None)
        lazily = order(open_lazily(root, **arguments)[0])
    complete = StreamingLeRobotDataset(REPO_ID, root, return_uint8=True, **arguments)
    assert not isinstance(complete._open.index, PartialIndex)
    assert order(complete) == lazily


@pytest.mark.usefixtures("lazy")
def test_spawned_workers_index_their_own_files(shelf: Shelf, tmp_path: Path) -> None:
    dataset, index = open_lazily(shelf.copy(KIND, tmp_path / "data"))
    loader = DataLoader(
        dataset, batch_size=None, num_workers=2, multiprocessing_context="spawn", persistent_workers=True
    )
    assert sorted(int(item["index"]) for item in loader) == list(range(dataset.num_frames))
    assert known(index) == set(), "the training process itself needs none"
    assert len(pickle.dumps(index)) < 20_000


def test_the_run_completes_the_index_and_the_next_one_opens_it(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lerobot_streaming.opening.LAZY_ABOVE", 0)
    root = shelf.copy(KIND, tmp_path / "data")
    dataset, _ = open_lazily(root)
    assert dataset._completion is not None
    before = [int(item["index"]) for item in dataset]
    assert dataset._completion.join(60)
    again = StreamingLeRobotDataset(REPO_ID, root, return_uint8=True)
    assert not isinstance(again._open.index, PartialIndex)
    assert [int(item["index"]) for item in again] == before
    # One of a few episodes finds the complete index too.
    some = StreamingLeRobotDataset(REPO_ID, root, episodes=[1])
    assert not isinstance(some._open.index, PartialIndex)


@pytest.mark.usefixtures("lazy")
def test_a_bad_file_is_an_error_for_those_who_stream_it(shelf: Shelf, tmp_path: Path) -> None:
    root = shelf.copy(KIND, tmp_path / "data")
    bad = video_files(root, CAMERA_A)[1]
    bad.write_bytes(b"\0" * 4000)
    dataset, _ = open_lazily(root)
    with pytest.raises(BadVideoFilesError, match=bad.relative_to(root).as_posix()):
        list(dataset)
    others, _ = open_lazily(root, episodes=[0, 2])
    assert len(list(others)) == others.num_frames


@pytest.mark.usefixtures("lazy")
def test_missing_files_are_found_at_construction(shelf: Shelf, tmp_path: Path) -> None:
    root = shelf.copy(KIND, tmp_path / "data")
    missing = video_files(root, CAMERA_A)[1]
    missing.unlink()
    with pytest.raises(MissingFileError, match=missing.relative_to(root).as_posix()):
        StreamingLeRobotDataset(REPO_ID, root)
    others, _ = open_lazily(root, episodes=[0, 2])
    assert len(list(others)) == others.num_frames


@pytest.mark.usefixtures("lazy")
def test_an_episode_above_the_budget_is_found_at_construction(shelf: Shelf, tmp_path: Path) -> None:
    root = shelf.copy(KIND, tmp_path / "data")
    with pytest.raises(ByteBudgetError, match="byte_budget_gb"):
        StreamingLeRobotDataset(REPO_ID, root, byte_budget_gb=500 / GIB)


@pytest.mark.usefixtures("lazy")
def test_an_episode_beyond_its_file_is_found_when_it_is_needed(shelf: Shelf, tmp_path: Path) -> None:
    root = shelf.copy(KIND, tmp_path / "data")

    def edit(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        rows[2][f"videos/{CAMERA_A}/from_timestamp"] = 99.0
        return rows

    edit_episodes(root, edit)
    dataset, _ = open_lazily(root)
    with pytest.raises(DatasetLayoutError, match="lies beyond the end of file"):
        list(dataset)
