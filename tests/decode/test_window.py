"""The window holds the draws in order, keeps to its length, and looks ahead within its bounds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lerobot_streaming.decode import window as window_module
from lerobot_streaming.decode.lookahead import MAX_WINDOW, LookAhead
from lerobot_streaming.decode.window import DrawWindow

if TYPE_CHECKING:
    from collections.abc import Callable

_BUDGET = 1000
_EPISODES = 5

type _Draw = tuple[int, int]


def _place(draw: _Draw) -> tuple[int, int]:
    return draw[0], draw[1]


def _window(frames: Any, *, length: int = 10, early: int = 3, budget: int = _BUDGET) -> DrawWindow[_Draw]:
    lookahead = LookAhead([10**6] * _EPISODES, [(0,)])
    return DrawWindow(lookahead, frames, budget_bytes=budget, length=length, early=early, place=_place)


class Windows(RuleBasedStateMachine):
    """Draws are added and taken while threads ask what to decode early and tell that they did."""

    def __init__(self) -> None:
        super().__init__()
        self.frames = SimpleNamespace(num_bytes=0)
        self.window = _window(self.frames)
        self.added: list[_Draw] = []
        self.taken = 0
        self.last_early = -1
        self.under_way: list[int] = []
        self.early: set[int] = set()
        self.there: set[int] = set()

    @rule(episode=st.integers(0, _EPISODES - 1), count=st.integers(1, 6))
    def add(self, episode: int, count: int) -> None:
        for _ in range(count):
            draw = (episode, len(self.added))
            self.window.add(draw)
            self.added.append(draw)

    @precondition(lambda self: self.taken < len(self.added))
    @rule()
    def take(self) -> None:
        assert self.window.first == self.added[self.taken]
        assert self.window.take() == self.added[self.taken]
        self.taken += 1
        self.early = {number for number in self.early if number >= self.taken}

    @rule(num_bytes=st.integers(0, _BUDGET))
    def fill(self, num_bytes: int) -> None:
        self.frames.num_bytes = num_bytes

    @rule(episode=st.integers(0, _EPISODES - 1))
    def come_or_go(self, episode: int) -> None:
        self.there ^= {episode}

    @rule()
    def ask(self) -> None:
        asked: list[int] = []

        def hold(position: int) -> str | None:
            asked.append(position)
            return f"episode {position}" if position in self.there else None

        found = self.window.next_early(hold)
        number = max(self.last_early + 1, self.taken)
        full = self.frames.num_bytes >= 0.85 * _BUDGET
        if number >= len(self.added) or len(self.early) >= 3 or full:
            assert found is None
            assert not asked
            return
        # It asks for one episode only, that of the next draw that nobody has looked at.
        assert asked == [self.added[number][0]]
        if self.added[number][0] not in self.there:
            assert found is None
            return
        assert found == (number, self.added[number], f"episode {self.added[number][0]}")
        self.last_early = number
        self.under_way.append(number)

    @precondition(lambda self: self.under_way)
    @rule(data=st.data(), decoded=st.booleans())
    def finish(self, data: st.DataObject, decoded: bool) -> None:
        number = self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1)))
        # Threads may finish out of order: what is first in the queue may be of a later draw.
        if decoded and (not self.early or number > max(self.early)):
            self.window.decoded_early(number)
            if number >= self.taken:
                self.early.add(number)

    @invariant()
    def as_many_as_were_added_and_not_taken(self) -> None:
        assert len(self.window) == len(self.added) - self.taken


Windows.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestWindows = Windows.TestCase


def test_only_so_many_draws_are_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_module, "_AHEAD", 4)
    window = _window(SimpleNamespace(num_bytes=0))
    for number in range(9):
        window.add((0, number))

    def numbers() -> list[int]:
        found = []
        while (one := window.next_early(lambda _: "there")) is not None:
            found.append(one[0])
        return found

    assert numbers() == [0, 1, 2, 3]
    window.take()
    window.take()
    assert numbers() == [4, 5]


def test_only_so_many_draws_are_decoded_early() -> None:
    window = _window(SimpleNamespace(num_bytes=0), early=2)
    for number in range(9):
        window.add((0, number))
    for number in range(3):
        found = window.next_early(lambda _: "there")
        assert found is not None
        assert found[0] == number
        if number != 1:  # Its frames were there already.
            window.decoded_early(number)
    assert window.next_early(lambda _: "there") is None
    # The first of them has left, and one that comes too late does not count.
    window.take()
    window.decoded_early(0)
    found = window.next_early(lambda _: "there")
    assert found is not None
    assert found[0] == 3


def test_without_a_frame_cache_nothing_is_decoded_early() -> None:
    window = _window(SimpleNamespace(num_bytes=0), budget=0)
    window.add((0, 0))
    assert window.next_early(lambda _: pytest.fail("an episode was asked for")) is None


def _run(
    bytes_of_window: Callable[[int], int], *, length: int, items: int, budget: int = _BUDGET
) -> list[int]:
    """Delivers items as a stream does, with 4 draws in flight; gives the known draws after each."""
    frames = SimpleNamespace(num_bytes=0)
    window = _window(frames, length=length, budget=budget)
    known = []
    in_flight = added = 0
    for _ in range(items):
        for _ in range(window.room(in_flight)):
            window.add((0, added))
            added += 1
        while len(window) and in_flight < 4:
            window.take()
            in_flight += 1
        known.append(len(window) + in_flight)
        in_flight -= 1
        frames.num_bytes = bytes_of_window(known[-1])
    return known


@given(length=st.integers(4, 150), bytes_per_draw=st.integers(1, 30))
@settings(max_examples=30, deadline=None)
def test_the_window_grows_until_the_cache_is_nearly_full(length: int, bytes_per_draw: int) -> None:
    known = _run(lambda draws: draws * bytes_per_draw, length=length, items=900, budget=200)
    fitting = max(length, int(0.85 * 200 / bytes_per_draw))
    # The first item waits for 64 draws at most, and there is always something to deliver.
    assert known[0] <= 64
    assert min(known) >= 4
    assert max(known) <= fitting + 2
    assert abs(known[-1] - fitting) <= 2


def test_the_window_shrinks_when_the_frames_become_larger() -> None:
    sizes = iter([2] * 600 + [20] * 10**6)
    known = _run(lambda draws: draws * next(sizes), length=10, items=1000)
    assert known[599] >= 150
    assert known[-1] <= 44


@pytest.mark.parametrize(("budget", "num_bytes"), [(0, 0), (_BUDGET, _BUDGET)])
def test_the_window_keeps_its_first_length_when_nothing_more_fits(budget: int, num_bytes: int) -> None:
    known = _run(lambda _: num_bytes, length=20, items=500, budget=budget)
    assert set(known[20:]) == {20}


def test_there_is_a_longest_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_module, "MAX_WINDOW", 100)
    assert MAX_WINDOW > 100
    known = _run(lambda _: 0, length=10, items=600)
    assert 100 <= max(known) <= 102
    assert known[-1] >= 99
