"""What is not selected is not read: no file of it is needed, no byte fetched and no frame decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from lerobot_streaming import StreamingLeRobotDataset
from lerobot_streaming.errors import MissingFileError, OptionError, StreamingError
from lerobot_streaming.index.mapped import MappedIndex
from lerobot_streaming.index.partial import PartialIndex
from lerobot_streaming.options import GIB
from lerobot_streaming.storage.local import LocalReader
from tests.support.datasets import (
    ACTION,
    CAMERA_A,
    CAMERA_B,
    REPO_ID,
    STATE,
    Camera,
    Shelf,
    data_files,
    video_files,
    write_dataset,
)
from tests.support.oracle import stream_items

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KIND = "rotating_files"
"""Two cameras of several files each, 5 episodes, 27 frames."""


def make(root: Path, features: list[str] | None = None, **arguments: Any) -> StreamingLeRobotDataset:
    return StreamingLeRobotDataset(REPO_ID, root, features=features, return_uint8=True, **arguments)


@pytest.fixture
def root(shelf: Shelf, tmp_path: Path) -> Path:
    return shelf.copy(KIND, tmp_path / "data")


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing completes an index behind a test's back."""
    with monkeypatch.context() as patch:
        patch.setattr("lerobot_streaming.opening.complete_later", lambda *_: None)
        yield


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """Path, offset and bytes of every read of a local file."""
    seen: list[tuple[str, int, int]] = []
    original = LocalReader.read_into

    def watched(self: LocalReader, path: str, offset: int, view: memoryview) -> None:
        seen.append((path, offset, view.nbytes))
        original(self, path, offset, view)

    monkeypatch.setattr(LocalReader, "read_into", watched)
    return seen


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (["nope", CAMERA_A], r"features names \['nope'\], but the dataset has \['action', "),
        (["task"], r"features names \['task'\].*Every item has its task's text besides"),
        ([ACTION, STATE, ACTION], r"features contains duplicates: \['action'\]"),
        ([], "features is an empty list: name at least one .*such as 'index'"),
        (ACTION, "features must be a list of feature names, or None for all, got 'action'"),
        (b"action", "features must be a list"),
        (3, "features must be a list of feature names, or None for all, got 3"),
        ([ACTION, 3], "features must be a list"),
    ],
    ids=str,
)
def test_a_wrong_selection_is_named(shelf: Shelf, features: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make(shelf.root(KIND), features)


def test_a_window_of_a_feature_that_is_left_out_is_refused(shelf: Shelf) -> None:
    with pytest.raises(OptionError, match=r"names 'action', which is not among the selected .*Add it to"):
        make(shelf.root(KIND), [CAMERA_A], delta_timestamps={ACTION: [0.0]})
    with pytest.raises(OptionError, match="'nope', which is no feature of the dataset"):
        make(shelf.root(KIND), [CAMERA_A], delta_timestamps={"nope": [0.0]})


def test_the_dataset_tells_what_was_selected(shelf: Shelf) -> None:
    dataset = make(shelf.root(KIND), [CAMERA_B, ACTION])
    assert set(dataset.features) == set(next(iter(dataset))) - {"task"}
    assert CAMERA_A in dataset.meta.features
    assert dataset.num_frames == make(shelf.root(KIND)).num_frames


@pytest.mark.parametrize("damage", ["delete", "garbage", "loop"])
@pytest.mark.parametrize("features", [[CAMERA_A], [STATE]], ids=str)
def test_files_of_a_camera_that_is_left_out_are_not_needed(
    root: Path, damage: str, features: list[str]
) -> None:
    for path in video_files(root, CAMERA_B):
        path.unlink()
        if damage == "garbage":
            path.write_bytes(b"no video at all")
        elif damage == "loop":
            path.symlink_to(path.name)  # Whatever is asked of it fails.
    with pytest.raises(StreamingError):
        make(root)
    assert len(stream_items(make(root, features))) == 27
    if CAMERA_A in features:
        video_files(root, CAMERA_A)[0].unlink()
        with pytest.raises(MissingFileError, match=CAMERA_A):
            make(root, features)


@pytest.mark.usefixtures("alone")
def test_only_selected_cameras_are_indexed_fetched_and_decoded(
    root: Path, reads: list[tuple[str, int, int]]
) -> None:
    def totals(features: list[str]) -> dict[str, Any]:
        dataset = make(root, features, shuffle=False, decode_threads=1)
        assert len(list(dataset)) == 27
        total: dict[str, Any] = dataset.stats()["total"]
        return total

    one = totals([CAMERA_A])
    assert {path.split("/")[1] for path, _, _ in reads if path.startswith("videos/")} == {CAMERA_A}
    reads.clear()
    none = totals(["index"])
    assert not [path for path, _, _ in reads if path.startswith("videos/")]
    other, both = totals([CAMERA_B]), totals([CAMERA_A, CAMERA_B])

    assert none["frames_decoded"] == 0
    assert one["frames_decoded"] == other["frames_decoded"] == 27
    assert both["frames_decoded"] == 54
    assert one["decodes_per_sample"] == both["decodes_per_sample"] == 1
    video = {
        key: total["bytes_fetched"] - none["bytes_fetched"]
        for key, total in (("one", one), ("other", other), ("both", both))
    }
    assert video["one"] > 0
    assert video["other"] > 0
    assert video["both"] == video["one"] + video["other"]


def test_columns_that_are_left_out_are_not_read(tmp_path: Path, reads: list[tuple[str, int, int]]) -> None:
    def noise(episode: int, frame: int, number: int, camera: Camera) -> Any:
        seed = np.random.default_rng((episode, frame, number))
        return seed.integers(0, 255, (camera.height, camera.width, 3), dtype=np.uint8)

    root = write_dataset(
        tmp_path / "data",
        lengths=(2, 2),
        cameras=[Camera(key=key, height=360, width=360, storage="image") for key in (CAMERA_A, CAMERA_B)],
        picture=noise,
    )
    chunks: list[tuple[str, int, int]] = []
    for path in data_files(root):
        metadata = pq.read_metadata(path)
        for group in range(metadata.num_row_groups):
            for number in range(metadata.num_columns):
                column = metadata.row_group(group).column(number)
                if column.path_in_schema.startswith(f"{CAMERA_A}.bytes"):
                    begin = column.dictionary_page_offset or column.data_page_offset
                    chunks.append((str(path.relative_to(root)), begin, begin + column.total_compressed_size))
    assert all(end - begin > 512 * 1024 for _, begin, end in chunks)

    dataset = make(root, [CAMERA_B, ACTION])
    reads.clear()
    assert len(list(dataset)) == 4
    middles = [(path, (begin + end) // 2) for path, begin, end in chunks]
    assert len(middles) >= 1
    for file, middle in middles:
        assert not [read for read in reads if read[0] == file and read[1] <= middle < sum(read[1:])]
    assert dataset.stats()["total"]["bytes_fetched"] < sum(path.stat().st_size for path in data_files(root))


def known(index: Any) -> set[str]:
    return {path.split("/")[1] for path in index.files if index.knows(path)}


@pytest.mark.usefixtures("alone")
def test_nobody_waits_for_the_index_of_a_camera_that_is_left_out(root: Path) -> None:
    index = make(root, [CAMERA_A])._open.index
    assert isinstance(index, PartialIndex)
    assert known(index) == {CAMERA_A}
    # What was indexed is found again, and completed, by whoever opens all of it.
    assert isinstance(make(root)._open.index, MappedIndex)


def test_all_selections_share_one_index(root: Path, reads: list[tuple[str, int, int]]) -> None:
    first = make(root, [CAMERA_A])
    assert first._completion is not None
    assert first._completion.join(60)
    reads.clear()
    for features in (None, [CAMERA_B], [CAMERA_B, CAMERA_A], [CAMERA_A]):
        dataset = make(root, features)
        assert isinstance(dataset._open.index, MappedIndex)
        assert dataset._completion is None
    assert not [path for path, _, _ in reads if path.startswith("videos/")]


def test_the_byte_budget_counts_selected_cameras_only(root: Path) -> None:
    def sizes_with(features: list[str] | None) -> list[int]:
        sizes = make(root, features)._open.sizes
        return [sizes.exact(position) for position in range(5)]

    sizes = {key: sizes_with([key]) for key in (CAMERA_A, CAMERA_B)}
    both = sizes_with(None)
    assert both == [a + b for a, b in zip(*sizes.values(), strict=True)]
    budget = max(sizes[CAMERA_A]) / GIB
    assert len(stream_items(make(root, [CAMERA_A], byte_budget_gb=budget))) == 27
    with pytest.raises(StreamingError, match="more than the whole byte budget"):
        make(root, byte_budget_gb=budget)
