"""The window counts exactly what its draws want."""

from __future__ import annotations

from collections import Counter, deque

from hypothesis import given
from hypothesis import strategies as st

from lerobot_streaming.decode.lookahead import MAX_WINDOW, LookAhead, window_length

LENGTHS = (1, 4, 9)
WINDOWS = ((0,), (-2, 0, 0, 3))


@given(
    draws=st.lists(
        st.sampled_from(range(len(LENGTHS))).flatmap(
            lambda episode: st.tuples(st.just(episode), st.integers(0, LENGTHS[episode] - 1))
        ),
        max_size=60,
    ),
    size=st.integers(1, 10),
)
def test_a_frame_is_wanted_while_a_draw_of_the_window_wants_it(
    draws: list[tuple[int, int]], size: int
) -> None:
    lookahead = LookAhead(LENGTHS, WINDOWS)
    window: deque[tuple[int, int]] = deque()

    def expected(camera: int) -> Counter[tuple[int, int]]:
        counts: Counter[tuple[int, int]] = Counter()
        for episode, frame in window:
            for offset in WINDOWS[camera]:
                counts[episode, min(max(frame + offset, 0), LENGTHS[episode] - 1)] += 1
        return counts

    def check() -> None:
        for camera in range(len(WINDOWS)):
            counts = expected(camera)
            for episode, length in enumerate(LENGTHS):
                wanted = lookahead.wanted(camera, episode, range(length))
                assert sorted(wanted) == [frame for frame in range(length) if counts[episode, frame]]

    for draw in draws:
        lookahead.add(*draw)
        window.append(draw)
        if len(window) > size:
            before = [expected(camera) for camera in range(len(WINDOWS))]
            oldest = window.popleft()
            dropped = lookahead.remove(*oldest)
            for camera, counts in enumerate(before):
                gone = {key for key in counts if not expected(camera)[key]}
                assert {(oldest[0], frame) for frame in dropped[camera]} == gone
        check()


def test_windows_are_clamped_to_the_episode() -> None:
    lookahead = LookAhead(LENGTHS, WINDOWS)
    assert lookahead.frames_of(1, 2, 0) == [0, 0, 0, 3]
    assert lookahead.frames_of(1, 2, 8) == [6, 8, 8, 8]
    assert lookahead.frames_of(1, 0, 0) == [0, 0, 0, 0]


def test_the_length_follows_from_the_budget() -> None:
    assert window_length(1000, 10, 8) == 100
    assert window_length(1000, 500, 8) == 8
    assert window_length(10**12, 1, 8) == MAX_WINDOW
    assert window_length(0, 0, 8) == 8
