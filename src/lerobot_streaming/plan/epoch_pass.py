"""One pass over one epoch: the running state from which draws are taken, in three orders.

A draw is handled as a *code*, one integer that holds the position above `code_bits` bits of frame number.
Codes are made when an episode is admitted and are split only for the caller, which keeps the loops below
short and lets a skip go without ever building pairs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING

from lerobot_streaming.plan.epoch_seed import shuffle_in_place

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from lerobot_streaming.plan.admission import AdmissionQueue, PlanEpisode

CHUNK_DRAWS = 1024
"""Draws that are computed at a time: enough to make the bookkeeping around them negligible, few enough not to
be felt as a delay (about half a millisecond)."""


class EpochPass(ABC):
    """The state of an epoch after some of its draws."""

    @abstractmethod
    def take(self, count: int) -> list[int]:
        """Take the next draws. What is drawn does not depend on how the draws are divided into calls.

        Args:
            count: Number of draws, at most as many as the epoch has left.

        Returns:
            The codes of the draws, in order.
        """

    @abstractmethod
    def remaining(self) -> dict[int, int]:
        """Count what the epoch has left.

        Returns:
            Position -> draws left, in the order of admission, without the episodes that have none left.
        """

    @abstractmethod
    def rest(self) -> dict[int, list[int] | None]:
        """List what the epoch has left, frame by frame.

        Returns:
            Position -> codes left, ascending, or None for an episode that is left as a whole; without the
            episodes that have none left.
        """

    def skip(self, count: int) -> None:
        """Pass over the next draws.

        Args:
            count: Number of draws, at most as many as the epoch has left.
        """
        while count > 0:
            count -= len(self.take(min(count, CHUNK_DRAWS)))


class RemainingPass(EpochPass):
    """Every draw is uniform over all frames of the residents that are not drawn yet."""

    def __init__(
        self, episodes: Sequence[PlanEpisode], code_bits: int, admission: AdmissionQueue, rng: Random
    ) -> None:
        """Admit the first residents.

        Args:
            episodes: All episodes.
            code_bits: Bits of the frame number in a code.
            admission: The epoch's admission queue, with an empty pool.
            rng: Stream of random numbers; each draw uses one.
        """
        self._episodes = episodes
        self._code_bits = code_bits
        self._admission = admission
        self._rng = rng
        self._codes: list[int] = []  # Of all frames that can be drawn now, in no particular order.
        self._left: dict[int, int] = {}  # Resident -> frames in `_codes`.
        self._admit()

    def take(self, count: int) -> list[int]:
        """Take the next draws; see `EpochPass.take`."""
        random = self._rng.random
        codes, left, code_bits = self._codes, self._left, self._code_bits
        drawn: list[int] = []
        # Within the loop the list is only valid up to `size`: the drawn code is overwritten by the last valid
        # one, and the tail is cut off when the list is next used as a whole.
        size = len(codes)
        for _ in range(count):
            index = int(random() * size)
            code = codes[index]
            size -= 1
            codes[index] = codes[size]
            drawn.append(code)
            position = code >> code_bits
            anchors_left = left[position]
            if anchors_left > 1:
                left[position] = anchors_left - 1
            else:
                del codes[size:]
                del left[position]
                self._admission.leave(position)
                self._admit()
                size = len(codes)
        del codes[size:]
        return drawn

    def remaining(self) -> dict[int, int]:
        """Count what the epoch has left; see `EpochPass.remaining`."""
        return self._left | {
            position: self._episodes[position].num_anchors for position in self._admission.waiting()
        }

    def rest(self) -> dict[int, list[int] | None]:
        """List what the epoch has left; see `EpochPass.rest`."""
        left: dict[int, list[int] | None] = dict.fromkeys(self._admission.waiting())
        touched: dict[int, list[int]] = {}
        for code in sorted(self._codes):
            touched.setdefault(code >> self._code_bits, []).append(code)
        return left | touched

    def _admit(self) -> None:
        for position in self._admission.admit():
            episode = self._episodes[position]
            self._codes.extend(_codes_of(episode, position, self._code_bits))
            self._left[position] = episode.num_anchors


class RoundRobinPass(EpochPass):
    """Each round goes through the residents in a new random order and takes one frame of each."""

    def __init__(
        self, episodes: Sequence[PlanEpisode], code_bits: int, admission: AdmissionQueue, rng: Random
    ) -> None:
        """Admit the first residents.

        Args:
            episodes: All episodes.
            code_bits: Bits of the frame number in a code.
            admission: The epoch's admission queue, with an empty pool.
            rng: Stream of random numbers.
        """
        self._episodes = episodes
        self._code_bits = code_bits
        self._admission = admission
        self._rng = rng
        self._decks: dict[int, list[int]] = {}  # Resident -> codes of its frames that are not drawn yet.
        self._turns: list[
            int
        ] = []  # Residents whose turn in this round is still to come; the last one is next.
        self._admit()

    def take(self, count: int) -> list[int]:
        """Take the next draws; see `EpochPass.take`."""
        random = self._rng.random
        decks = self._decks
        drawn: list[int] = []
        for _ in range(count):
            if not self._turns:
                # Whoever was admitted during the last round joins here.
                self._turns = list(decks)
                shuffle_in_place(self._turns, self._rng)
            position = self._turns.pop()
            deck = decks[position]
            index = int(random() * len(deck))
            drawn.append(deck[index])
            deck[index] = deck[-1]
            deck.pop()
            if not deck:
                del decks[position]
                self._admission.leave(position)
                self._admit()
        return drawn

    def remaining(self) -> dict[int, int]:
        """Count what the epoch has left; see `EpochPass.remaining`."""
        residents = {position: len(deck) for position, deck in self._decks.items()}
        return residents | {
            position: self._episodes[position].num_anchors for position in self._admission.waiting()
        }

    def rest(self) -> dict[int, list[int] | None]:
        """List what the epoch has left; see `EpochPass.rest`."""
        left: dict[int, list[int] | None] = dict.fromkeys(self._admission.waiting())
        return left | {position: sorted(deck) for position, deck in self._decks.items()}

    def _admit(self) -> None:
        for position in self._admission.admit():
            self._decks[position] = list(_codes_of(self._episodes[position], position, self._code_bits))


class ChronologicalPass(EpochPass):
    """Episode by episode in the order of their positions, frame by frame.

    Only one episode is drawn from at a time, so the pool's bounds cannot change the order and need no
    bookkeeping here.
    """

    def __init__(self, episodes: Sequence[PlanEpisode], code_bits: int) -> None:
        """Start at the first frame.

        Args:
            episodes: All episodes.
            code_bits: Bits of the frame number in a code.
        """
        self._episodes = episodes
        self._code_bits = code_bits
        self._ends = list(accumulate(episode.num_anchors for episode in episodes))
        self._next = 0

    def take(self, count: int) -> list[int]:
        """Take the next draws; see `EpochPass.take`."""
        drawn: list[int] = []
        position = bisect_right(self._ends, self._next)
        while len(drawn) < count:
            codes = _codes_of(self._episodes[position], position, self._code_bits)
            begin = len(codes) - (self._ends[position] - self._next)
            part = codes[begin : begin + count - len(drawn)]
            drawn.extend(part)
            self._next += len(part)
            position += 1
        return drawn

    def skip(self, count: int) -> None:
        """Pass over the next draws, in no time; see `EpochPass.skip`."""
        self._next += count

    def remaining(self) -> dict[int, int]:
        """Count what the epoch has left; see `EpochPass.remaining`."""
        first = bisect_right(self._ends, self._next)
        return {
            position: min(self._episodes[position].num_anchors, self._ends[position] - self._next)
            for position in range(first, len(self._episodes))
        }

    def rest(self) -> dict[int, list[int] | None]:
        """List what the epoch has left; see `EpochPass.rest`."""
        left: dict[int, list[int] | None] = {}
        for position, count in self.remaining().items():
            codes = _codes_of(self._episodes[position], position, self._code_bits)
            left[position] = None if count == len(codes) else list(codes[-count:])
        return left


def _codes_of(episode: PlanEpisode, position: int, code_bits: int) -> range:
    """List the codes of an episode's anchors, by ascending frame."""
    first = (position << code_bits) + episode.first_anchor
    return range(first, first + episode.num_anchors)
