"""Settings and segments as a checkpoint keeps them."""

from __future__ import annotations

from typing import Any

import pytest

from lerobot_streaming.errors import OptionError
from lerobot_streaming.plan import Position, Segment
from tests.plan.shapes import make_settings


@pytest.mark.parametrize(
    "change",
    [
        {"world_size": 0},
        {"num_workers": -1},
        {"num_workers": True},
        {"pool_size": 0},
        {"byte_budget": 1.5},
        {"seed": "1"},
        {"seed": None},
        {"strategy": "best"},
        {"shuffle": 1},
        {"repeat": None},
        {"unknown": 1},
    ],
    ids=str,
)
def test_impossible_settings_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=next(iter(change)) if "unknown" not in change else "names"):
        make_settings(**change)


@pytest.mark.parametrize(
    "values", [None, 3, {}, {"settings": {}}, {"settings": None, "epoch": 0, "offset": 0, "batch_size": 1}]
)
def test_impossible_segments_are_refused(values: Any) -> None:
    with pytest.raises(OptionError, match="state's"):
        Segment.from_dict(values)


def test_a_segment_of_several_workers_needs_a_batch_size() -> None:
    values = Segment(make_settings(num_workers=2), Position(0, 4, None)).to_dict()
    with pytest.raises(OptionError, match="2 workers"):
        Segment.from_dict(values)


def test_settings_that_cannot_change_the_order_are_not_differences() -> None:
    assert make_settings(num_workers=0).differences(make_settings(num_workers=1)) == []
    assert make_settings(rank_pool=3).differences(make_settings(rank_pool=4)) == []
    assert make_settings(pool_size=None).differences(make_settings(pool_size=None, rank_pool=4)) == [
        "rank_pool: 32 then, 4 now"
    ]
    assert make_settings(seed=1).differences(make_settings(world_size=3)) == [
        "world_size: 2 then, 3 now",
        "seed: 1 then, 42 now",
    ]
