"""The coming draws of a worker: how many are known ahead, and which are decoded before their turn."""

from __future__ import annotations

from collections import deque
from threading import Lock
from typing import TYPE_CHECKING, Final

from lerobot_streaming.decode.lookahead import MAX_WINDOW

if TYPE_CHECKING:
    from collections.abc import Callable

    from lerobot_streaming.decode.frame_cache import FrameCache
    from lerobot_streaming.decode.lookahead import LookAhead

_STEP: Final = 64
"""Draws by which the window grows per delivered item until it has its first length, so that the first item
does not wait for it."""

_GROWTH: Final = 4
"""Beyond that it grows by one draw in so many delivered items: what a longer window keeps shows only after
about a window's length."""

_FILL: Final = 0.85
"""Share of the frame cache that the window aims at. A full cache refuses frames, near ones too."""

_AHEAD: Final = 1024
"""Draws that are looked through for something to decode early."""


class DrawWindow[Draw]:
    """The draws that are known and not yet handed to a decode thread.

    A window of its first length fits the frame cache even if each of its draws has all its frames kept. Most
    have not, above all with short GOPs; so it grows while the cache has room.

    The consumer's thread adds and takes draws; decode threads ask for what may be decoded early.

    Args:
        lookahead: What the window's draws want.
        frames: Where their decoded frames are kept.
        budget_bytes: Bytes of decoded frames that may be kept.
        length: First length, draws in flight included.
        early: Most draws whose frames were decoded before their turn.
        place: Gives the position and frame number of a draw.
    """

    def __init__(
        self,
        lookahead: LookAhead,
        frames: FrameCache,
        *,
        budget_bytes: int,
        length: int,
        early: int,
        place: Callable[[Draw], tuple[int, int]],
    ) -> None:
        """Makes an empty window."""
        self._lookahead = lookahead
        self._frames = frames
        self._budget_bytes = budget_bytes
        self._first_length = length
        self._most_early = early
        self._place = place
        self._draws: deque[Draw] = deque()
        self._lock = Lock()
        self._taken = 0  # Draws that have left.
        self._looked = 0  # Draws, from the first ever, that were looked at for early decoding.
        self._early: deque[int] = deque()  # Numbers of the draws that were decoded early, in order.
        self._items = 0

    def __len__(self) -> int:
        """Draws in the window."""
        return len(self._draws)

    @property
    def first(self) -> Draw:
        """The next draw."""
        return self._draws[0]

    def room(self, in_flight: int) -> int:
        """How many draws to add after an item was delivered.

        Args:
            in_flight: Draws that have left the window and are not delivered.

        Returns:
            Their number.
        """
        self._items += 1
        known = len(self._draws) + in_flight
        missing = self._first_length - known
        # One is always missing: the draw that was delivered.
        if missing > 1:
            return min(_STEP, missing)
        kept = self._frames.num_bytes
        fitting = min(MAX_WINDOW, known * _FILL * self._budget_bytes / kept) if kept else MAX_WINDOW
        if self._budget_bytes and known < fitting:
            return 1 + (self._items % _GROWTH == 0)
        return max(0, missing)

    def add(self, draw: Draw) -> None:
        """Adds a draw at the end."""
        self._lookahead.add(*self._place(draw))
        with self._lock:
            self._draws.append(draw)

    def take(self) -> Draw:
        """Takes the first draw out; what it wants stays wanted until it is delivered."""
        with self._lock:
            self._taken += 1
            while self._early and self._early[0] < self._taken:
                self._early.popleft()
            return self._draws.popleft()

    def next_early[Held](self, hold: Callable[[int], Held | None]) -> tuple[int, Draw, Held] | None:
        """Finds the next draw whose frames may be decoded before its turn.

        Args:
            hold: Holds the episode at a position, so that its bytes stay, and returns them; None when they
                are not there.

        Returns:
            The draw's number, the draw, and what `hold` gave; None when nothing may be decoded early now.
        """
        with self._lock:
            number = max(self._looked, self._taken)
            ahead = number - self._taken
            if (
                ahead >= min(len(self._draws), _AHEAD)
                or len(self._early) >= self._most_early
                or self._frames.num_bytes >= _FILL * self._budget_bytes
            ):
                return None
            draw = self._draws[ahead]
            held = hold(self._place(draw)[0])
            if held is None:
                return None
            self._looked = number + 1
            return number, draw, held

    def decoded_early(self, number: int) -> None:
        """Notes that a draw's frames had to be decoded and are there.

        Args:
            number: The draw's number, as `next_early` gave it.
        """
        with self._lock:
            if number >= self._taken:
                self._early.append(number)
