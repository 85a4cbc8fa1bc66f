"""The DataLoader's turn order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lerobot_streaming.errors import OptionError
from lerobot_streaming.plan import deal_batches


def play_turns(batches_taken: int, limits: list[int | None]) -> tuple[list[int], int]:
    """Take the batches one by one."""
    given_batches = [0] * len(limits)

    def next_from(start: int) -> int | None:
        for step in range(len(limits)):
            worker = (start + step) % len(limits)
            limit = limits[worker]
            if limit is None or given_batches[worker] < limit:
                return worker
        return None

    turn = next_from(0)
    for _ in range(batches_taken):
        if turn is None:
            break
        given_batches[turn] += 1
        turn = next_from(turn + 1)
    return given_batches, 0 if turn is None else turn


@pytest.mark.parametrize(
    ("batches_taken", "limits", "expected"),
    [
        (7, [None] * 3, ([3, 2, 2], 1)),
        (5, [1, None], ([1, 4], 1)),
        (4, [0, None, 2], ([0, 2, 2], 1)),
        (3, [2, None, None], ([1, 1, 1], 0)),
        (10, [2, 3], ([2, 3], 0)),
        (0, [0, 3], ([0, 0], 1)),
        (0, [0], ([0], 0)),
    ],
)
def test_check_values(batches_taken: int, limits: list[int | None], expected: tuple[list[int], int]) -> None:
    assert deal_batches(batches_taken, limits) == expected
    assert play_turns(batches_taken, limits) == expected


@given(st.integers(0, 60), st.lists(st.none() | st.integers(0, 9), min_size=1, max_size=6))
def test_arithmetic_equals_taking_batches_one_by_one(batches_taken: int, limits: list[int | None]) -> None:
    assert deal_batches(batches_taken, limits) == play_turns(batches_taken, limits)


def test_batches_are_not_counted_one_by_one() -> None:
    # A loop over so many batches would run into the test timeout.
    given_batches, turn = deal_batches(10**14, [None, 10**13, None])
    assert given_batches == [45 * 10**12, 10 * 10**12, 45 * 10**12]
    assert turn == 0


@pytest.mark.parametrize(
    ("batches_taken", "limits", "message"),
    [
        (1, [], "no worker"),
        (-1, [None], "batches_taken is -1"),
        (1, [None, -2], r"limits\[1\] is -2"),
    ],
)
def test_impossible_numbers_are_refused(batches_taken: int, limits: list[int | None], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        deal_batches(batches_taken, limits)
