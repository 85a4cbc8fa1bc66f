"""States meet a dataset with another selection of features: noticed, and every frame still comes once."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from torch.utils.data import DataLoader

from lerobot_streaming import StreamingLeRobotDataset
from lerobot_streaming.errors import OptionError
from lerobot_streaming.options import GIB
from tests.support.datasets import ACTION, CAMERA_A, CAMERA_B, REPO_ID, STATE, Shelf, video_files

if TYPE_CHECKING:
    from pathlib import Path

FRAMES = 27


def make(root: Path, features: list[str] | None = None, **arguments: Any) -> StreamingLeRobotDataset:
    return StreamingLeRobotDataset(REPO_ID, root, features=features, return_uint8=True, **arguments)


def order(dataset: StreamingLeRobotDataset) -> list[int]:
    return [int(item["index"]) for item in dataset]


def interrupted(dataset: StreamingLeRobotDataset, count: int) -> tuple[list[int], dict[str, Any]]:
    """Draw some frames; give them, and the state as a file would keep it."""
    iterator = iter(dataset)
    drawn = [int(next(iterator)["index"]) for _ in range(count)]
    state: dict[str, Any] = json.loads(json.dumps(dataset.state_dict()))
    iterator.close()  # type: ignore[attr-defined]  # It is a generator.
    return drawn, state


def test_the_same_selection_goes_on_exactly(shelf: Shelf, caplog: pytest.LogCaptureFixture) -> None:
    root = shelf.root("rotating_files")
    expected = order(make(root, [CAMERA_A, ACTION]))
    drawn, state = interrupted(make(root, [CAMERA_A, ACTION]), 10)
    assert state["settings"]["cameras"] == [CAMERA_A]
    # What else is in the items does not shape the order.
    resumed = make(root, [STATE, CAMERA_A])
    resumed.load_state_dict(state)
    assert drawn + order(resumed) == expected
    assert not caplog.records


def test_a_selection_of_all_cameras_is_none(shelf: Shelf) -> None:
    root = shelf.root("rotating_files")
    drawn, state = interrupted(make(root), 10)
    # So this is also what states looked like before there were selections.
    assert "cameras" not in state["settings"]
    resumed = make(root, [CAMERA_B, CAMERA_A])
    resumed.load_state_dict(state)
    assert drawn + order(resumed) == order(make(root))


def budgets(root: Path) -> dict[str, Any]:
    """A budget that lets two episodes of both cameras be mixed, but more of one camera."""
    known = make(root)._open.sizes
    sizes = sorted(known.exact(position) for position in range(5))
    return {"byte_budget_gb": (sizes[-1] + sizes[0] + 1) / GIB, "episode_pool_size": 4}


SELECTIONS: list[tuple[list[str] | None, list[str] | None, str]] = [
    (None, [CAMERA_A], f"cameras: all then, ['{CAMERA_A}'] now"),
    ([CAMERA_A], None, f"cameras: ['{CAMERA_A}'] then, all now"),
    ([CAMERA_A], [CAMERA_B], f"cameras: ['{CAMERA_A}'] then, ['{CAMERA_B}'] now"),
    (None, [ACTION], "cameras: all then, [] now"),
    ([ACTION], None, "cameras: [] then, all now"),
]


@pytest.mark.parametrize(("was", "now", "text"), SELECTIONS, ids=str)
def test_another_selection_deals_the_rest_anew(
    shelf: Shelf,
    caplog: pytest.LogCaptureFixture,
    was: list[str] | None,
    now: list[str] | None,
    text: str,
) -> None:
    root = shelf.root("rotating_files")
    tight = budgets(root)
    drawn, state = interrupted(make(root, was, **tight), 13)
    resumed = make(root, now, **tight)
    resumed.load_state_dict(state, num_workers=0)
    assert text in caplog.text
    assert Counter(drawn + order(resumed)) == Counter(range(FRAMES))
    fresh = make(root, now, **tight)
    fresh.set_epoch(1)
    assert order(resumed) == order(fresh)


def test_a_tight_budget_makes_the_order_depend_on_the_cameras(shelf: Shelf) -> None:
    # Else the tests of this module could not fail.
    root = shelf.root("rotating_files")
    tight = budgets(root)
    assert set(order(make(root, None, **tight))[:13]) != set(order(make(root, [CAMERA_A], **tight))[:13])
    assert order(make(root)) == order(make(root, [CAMERA_A]))


@pytest.mark.slow
def test_workers_compute_the_rest_with_the_sizes_of_the_state(shelf: Shelf) -> None:
    root = shelf.root("rotating_files")
    tight = budgets(root)
    tight["byte_budget_gb"] *= 2
    drawn, state = interrupted(make(root, None, **tight), 13)
    resumed = make(root, [CAMERA_A], **tight)
    resumed.load_state_dict(state)  # Nobody says how many workers there will be.
    loader = DataLoader(resumed, batch_size=1, num_workers=2, multiprocessing_context="spawn")
    rest = [int(index) for batch in loader for index in batch["index"]]
    assert Counter(drawn + rest) == Counter(range(FRAMES))


def test_a_state_whose_videos_are_gone_is_refused(shelf: Shelf, tmp_path: Path) -> None:
    root = shelf.copy("rotating_files", tmp_path / "data")
    _, state = interrupted(make(root), 5)
    for path in video_files(root, CAMERA_B):
        path.unlink()
    with pytest.raises(OptionError, match=r"(?s)taken with other cameras .*cannot be told.*file-000.mp4"):
        make(root, [CAMERA_A]).load_state_dict(state)


def test_a_state_of_cameras_that_do_not_exist_is_refused(shelf: Shelf) -> None:
    root = shelf.root("rotating_files")
    _, state = interrupted(make(root, [CAMERA_A]), 5)
    state["settings"]["cameras"] = ["nope"]
    with pytest.raises(OptionError, match=r"\(\['nope'\]\).*the dataset has the cameras"):
        make(root).load_state_dict(state)
    wrong: Any
    for wrong in ("all", [1], {}):
        state["settings"]["cameras"] = wrong
        with pytest.raises(OptionError, match="cameras must be a list of names"):
            make(root).load_state_dict(state)


def test_a_copy_cannot_tell_what_was_drawn_with_other_cameras(shelf: Shelf) -> None:
    root = shelf.root("rotating_files")
    _, state = interrupted(make(root, [CAMERA_A]), 5)
    copy = pickle.loads(pickle.dumps(make(root)))
    with pytest.raises(OptionError, match="only the process that opened the dataset"):
        copy.load_state_dict(state)
