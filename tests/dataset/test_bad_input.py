"""What is wrong is said at construction, by name, with the way out."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lerobot_streaming import StreamingLeRobotDataset
from lerobot_streaming.errors import (
    AccessError,
    DatasetLayoutError,
    FrameTimestampError,
    MissingFileError,
    OptionError,
    RowError,
    SidecarError,
    StreamingError,
)
from tests.support.datasets import (
    ACTION,
    CAMERA_A,
    REPO_ID,
    Shelf,
    data_files,
    edit_data,
    edit_episodes,
    set_column,
    set_info,
    video_files,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def root(shelf: Shelf, tmp_path: Path) -> Path:
    """A copy of a dataset with two cameras, several video files and one Parquet file, free to be damaged."""
    shutil.copytree(shelf.root("rotating_files"), tmp_path / "copy")
    return tmp_path / "copy"


def _open(root: Path, **arguments: Any) -> StreamingLeRobotDataset:
    return StreamingLeRobotDataset(REPO_ID, root, **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"episodes": [0, 1, 0]}, r"duplicates: \[0\]"),
        ({"episodes": [-1]}, r"not be negative, got \[-1\]"),
        ({"episodes": [0, 99]}, r"names \[99\], but the dataset has 5 episodes: 0 to 4"),
        ({"episodes": []}, "empty list"),
        ({"episodes": [0.5]}, "list of episode numbers"),
        ({"episodes": "all"}, "list of episode numbers"),
        ({"tolerance_s": 0}, "tolerance_s must be a number > 0, got 0"),
        ({"video_backend": "zzz"}, "video_backend must be one of .*got 'zzz'"),
        ({"depth_output_unit": "km"}, "depth_output_unit must be one of .*got 'km'"),
        ({"repo_type": "model"}, "repo_type must be one of .*got 'model'"),
        ({"repo_type": "bucket"}, "streams from the bucket .* itself; leave out root"),
        ({"data_root": "nope://bucket/data"}, "nope"),
        ({"data_root": "hf://buckets/owner/bucket/folder"}, "folder of a bucket"),
        ({"storage_options": {"anon": True}}, "storage_options are for a data_root with a URL"),
        ({"on_error": "skip"}, "not available in this version"),
        ({"image_transforms": 3}, "image_transforms must be callable"),
        ({"seed": 1.5}, "seed must be an integer"),
        ({"delta_timestamps": {"nope": [0.0]}}, "'nope', which is no feature"),
        ({"delta_timestamps": {ACTION: []}}, "is empty"),
        ({"delta_timestamps": {"timestamp": [0.0, 0.1]}}, "at most one entry"),
        ({"delta_timestamps": {"task_index": [0.0, 0.1]}}, "at most one entry"),
    ],
    ids=str,
)
def test_a_wrong_argument_is_named(shelf: Shelf, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        _open(shelf.root("rotating_files"), **arguments)


def test_a_delta_off_the_grid_is_lerobots_own_error(shelf: Shelf) -> None:
    from lerobot.datasets import LeRobotDataset

    arguments: dict[str, Any] = {"delta_timestamps": {ACTION: [0.05]}}
    with pytest.raises(ValueError, match="outside of tolerance range") as expected:
        LeRobotDataset(REPO_ID, shelf.root("rotating_files"), **arguments)
    with pytest.raises(ValueError, match="outside of tolerance range") as got:
        _open(shelf.root("rotating_files"), **arguments)
    assert type(got.value) is type(expected.value)
    assert str(got.value) == str(expected.value)


@pytest.mark.parametrize(("name", "value"), [("streaming", True), ("rng", 1)])
def test_what_is_accepted_for_compatibility_warns(shelf: Shelf, name: str, value: Any) -> None:
    arguments: dict[str, Any] = {name: value}
    with pytest.warns(FutureWarning, match=name):
        _open(shelf.root("rotating_files"), **arguments)


def test_a_place_without_a_dataset_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match=r"info.json does not exist"):
        _open(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()
    with pytest.raises(MissingFileError, match=r"'nothing' is no dataset .*pass .* directory as `root`"):
        StreamingLeRobotDataset("nothing")
    with pytest.raises(AccessError, match=r"HF_HUB_OFFLINE is set.*pass its directory as root"):
        StreamingLeRobotDataset("nobody/nothing")
    with pytest.raises(OptionError, match="must be a local directory"):
        _open("s3://bucket/data")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="both must name the same bucket"):
        StreamingLeRobotDataset("owner/name", "hf://buckets/owner/bucket")
    with pytest.raises(OptionError, match="folder of a bucket"):
        StreamingLeRobotDataset("owner/bucket", "hf://buckets/owner/bucket/folder")


@pytest.mark.parametrize(
    ("victim", "message"),
    [
        ("meta/tasks.parquet", "tasks.parquet does not exist"),
        ("meta/episodes", "no episode metadata"),
        ("data", "file-000.parquet"),
        ("videos", "file-000.mp4"),
    ],
)
def test_a_missing_file_is_named(root: Path, victim: str, message: str) -> None:
    target = root / victim
    shutil.rmtree(target) if target.is_dir() else target.unlink()
    with pytest.raises(MissingFileError, match=message):
        _open(root)


def test_all_bad_video_files_are_listed_in_one_pass(root: Path) -> None:
    files = video_files(root, CAMERA_A)
    files[0].write_bytes(files[0].read_bytes()[:100])
    files[1].write_bytes(b"")
    files[2].unlink()
    with pytest.raises(MissingFileError) as caught:
        _open(root)
    assert isinstance(caught.value.__cause__, SidecarError)
    for path in files[:3]:
        assert str(path.relative_to(root)) in str(caught.value)


def test_metadata_that_is_no_json_is_named(root: Path) -> None:
    (root / "meta/info.json").write_text("{")
    with pytest.raises(DatasetLayoutError, match=r"info.json is no JSON"):
        _open(root)


def test_a_damaged_image_names_key_episode_and_file(shelf: Shelf, tmp_path: Path) -> None:
    shutil.copytree(shelf.root("images"), tmp_path / "images")

    def edit(table: pa.Table) -> pa.Table:
        images = table.column(CAMERA_A).to_pylist()
        images[1] = {**images[1], "bytes": b"nothing"}
        return set_column(table, CAMERA_A, pa.array(images, table.schema.field(CAMERA_A).type))

    edit_data(tmp_path / "images", edit)
    with pytest.raises(RowError, match=f"{CAMERA_A}' in episode 0 .*parquet.* cannot be decoded"):
        list(_open(tmp_path / "images"))


def test_a_missing_file_of_an_episode_that_is_not_selected_does_not_matter(root: Path) -> None:
    # In this dataset the first camera has a file of its own for each episode.
    video_files(root, CAMERA_A)[0].unlink()
    assert len(list(_open(root, episodes=[2, 3]))) == sum(
        1 for _ in _open(root, episodes=[2, 3], shuffle=False)
    )


def test_version_2_1_names_lerobots_converter(root: Path) -> None:
    set_info(root, codebase_version="v2.1")
    with pytest.raises(Exception, match="convert_dataset_v21_to_v30"):
        _open(root)


def _lengths_with_zero(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows[1]["length"] = 0
    return rows


def _reversed_range(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows[1]["dataset_to_index"] = rows[1]["dataset_from_index"]
    return rows


def _gap(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for row in rows[2:]:
        row["dataset_from_index"] += 1
        row["dataset_to_index"] += 1
    return rows


def _overlap(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for row in rows[2:]:
        row["dataset_from_index"] -= 1
        row["dataset_to_index"] -= 1
    return rows


def _misnumbered(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows[2]["episode_index"] = 7
    return rows


def _longer_than_the_data(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows[-1]["length"] += 5
    rows[-1]["dataset_to_index"] += 5
    return rows


def _beyond_the_file(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows[1][f"videos/{CAMERA_A}/from_timestamp"] = 100.0
    rows[1][f"videos/{CAMERA_A}/to_timestamp"] = 101.0
    return rows


def _no_time(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows[1][f"videos/{CAMERA_A}/from_timestamp"] = float("nan")
    return rows


def _reaches_beyond_the_file(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows[1][f"videos/{CAMERA_A}/from_timestamp"] += 0.3
    return rows


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (_lengths_with_zero, "Episode 1 has length 0"),
        (_reversed_range, "Episode 1 has dataset_to_index .* <= dataset_from_index"),
        (_gap, "Episode 2 leaves a gap"),
        (_overlap, "Episode 2 overlaps"),
        (_misnumbered, "Row 2 of meta/episodes carries episode_index 7"),
        (lambda rows: rows[:-1], "total_episodes=5, but meta/episodes has 4 rows"),
        (_longer_than_the_data, "total_frames="),
        (_beyond_the_file, r"from_timestamp 100.* of episode 1.*lies beyond the end of file .*mp4"),
        (_no_time, "Episode 1 has from_timestamp nan"),
        (_reaches_beyond_the_file, r"of episode 1.*reach beyond the end of file .*mp4"),
    ],
)
def test_contradicting_metadata_names_the_episode(
    root: Path, edit: Callable[[list[dict[str, Any]]], list[dict[str, Any]]], message: str
) -> None:
    edit_episodes(root, edit)
    with pytest.raises(DatasetLayoutError, match=message):
        _open(root)


def test_a_wrong_row_count_is_found_at_construction(root: Path) -> None:
    edit_episodes(root, _longer_than_the_data)
    set_info(root, total_frames=sum(pq.read_metadata(path).num_rows for path in data_files(root)) + 5)
    with pytest.raises(DatasetLayoutError, match=r"Episode 4 has .* frames .*holds at most"):
        _open(root)


def test_rows_of_another_episode_are_found_at_construction(root: Path) -> None:
    def edit(table: pa.Table) -> pa.Table:
        episodes = table.column("episode_index").to_pylist()
        return set_column(table, "episode_index", [0 if number == 1 else number for number in episodes])

    edit_data(root, edit)
    with pytest.raises(DatasetLayoutError, match="episode 1 carry another episode_index"):
        _open(root)


def test_rows_that_statistics_cannot_tell_apart_are_found_when_read(root: Path) -> None:
    def edit(table: pa.Table) -> pa.Table:
        episodes = table.column("episode_index").to_pylist()
        first = episodes.index(1)
        episodes[first + 1] = 2
        return set_column(table, "episode_index", episodes)

    edit_data(root, edit, row_groups="one")
    dataset = _open(root)
    with pytest.raises(RowError, match=r"carries episode_index 2, but .* gives it to episode 1"):
        list(dataset)


def test_a_repeated_index_is_found_when_read(root: Path) -> None:
    def edit(table: pa.Table) -> pa.Table:
        index = table.column("index").to_pylist()
        index[3] = index[2]
        return set_column(table, "index", index)

    edit_data(root, edit, row_groups="one")
    with pytest.raises(RowError, match="Episode 0 must have the rows with index 0 to"):
        list(_open(root))


def test_a_task_out_of_range_names_the_row(root: Path) -> None:
    def edit(table: pa.Table) -> pa.Table:
        tasks = table.column("task_index").to_pylist()
        tasks[2] = 99
        return set_column(table, "task_index", tasks)

    edit_data(root, edit)
    with pytest.raises(RowError, match="Frame 2 of episode 0 has task_index 99"):
        list(_open(root))


def test_a_timestamp_too_far_from_any_frame_is_an_error(root: Path) -> None:
    def edit(table: pa.Table) -> pa.Table:
        times = table.column("timestamp").to_pylist()
        times[2] += 0.004
        return set_column(table, "timestamp", pa.array(times, pa.float32()))

    edit_data(root, edit)
    with pytest.raises(FrameTimestampError, match=r"Frame 2 of episode 0.*tolerance_s is 0.0001"):
        list(_open(root))
    assert len(list(_open(root, tolerance_s=0.01))) == 27


def test_every_error_is_of_the_one_tree() -> None:
    from lerobot_streaming import errors

    classes = [value for value in vars(errors).values() if isinstance(value, type)]
    assert all(issubclass(one, StreamingError) for one in classes)
    builtin = (ValueError, OSError, RuntimeError, TimeoutError)
    assert all(issubclass(one, builtin) for one in classes if one is not StreamingError)
    for one in classes:
        assert f"{one.__name__}" in (errors.__doc__ or "")
