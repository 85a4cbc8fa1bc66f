"""What the coming draws want: the look-ahead window over the plan.

The plan is known, so when a GOP is decoded for one anchor, every frame of it that a draw inside the window
wants is kept until that draw. The window knows, per episode and camera, which of its draws want each frame; a
decoded frame is worth keeping exactly while there is one. Because each kept frame is wanted by a draw of the
window, the window's length bounds the kept bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_WINDOW: Final = 16_384
"""Longest window in draws: beyond it, longer look-ahead saves next to nothing and bookkeeping costs
memory."""


def window_length(cache_bytes: int, bytes_per_draw: int, in_flight: int) -> int:
    """Length of the window that keeps decoded frames within a budget.

    Args:
        cache_bytes: Bytes of decoded frames that may be kept.
        bytes_per_draw: Most bytes of decoded frames that one draw wants over all cameras.
        in_flight: Draws decoded or queued at a time; the window is never shorter.

    Returns:
        Number of draws, the ones in flight included.
    """
    if bytes_per_draw <= 0:
        return in_flight
    return max(in_flight, min(MAX_WINDOW, cache_bytes // bytes_per_draw))


@dataclass(slots=True)
class _EpisodeWants:
    """Wants of one episode: per camera each wanted frame with the draws that want it, oldest first."""

    uses: list[dict[int, list[int]]]
    draws: int = 0


class LookAhead:
    """Knows which draws of the window want each frame of each camera. Thread-safe.

    Args:
        lengths: Frames of each episode, by position.
        windows: Per camera the frame offsets that a draw wants around its anchor, e.g. `(0,)`.
    """

    def __init__(self, lengths: Sequence[int], windows: Sequence[Sequence[int]]) -> None:
        """Makes an empty window."""
        self._lengths = lengths
        self._windows = [tuple(window) for window in windows]
        self._episodes: dict[int, _EpisodeWants] = {}
        self._lock = Lock()
        self._added = 0

    def frames_of(self, camera: int, position: int, frame: int) -> list[int]:
        """The frames that a draw wants of a camera, clamped to the episode.

        Args:
            camera: Number of the camera.
            position: Position of the episode.
            frame: The anchor's frame number.

        Returns:
            Frame numbers in the order of the window; the episode's first or last frame where it reaches
            beyond.
        """
        window = self._windows[camera]
        if window == (0,):
            return [frame]
        last = self._lengths[position] - 1
        return [min(max(frame + offset, 0), last) for offset in window]

    def add(self, position: int, frame: int) -> None:
        """Takes a coming draw into the window."""
        with self._lock:
            wants = self._episodes.get(position)
            if wants is None:
                wants = self._episodes[position] = _EpisodeWants([{} for _ in self._windows])
            wants.draws += 1
            for camera, uses in enumerate(wants.uses):
                for wanted in self.frames_of(camera, position, frame):
                    uses.setdefault(wanted, []).append(self._added)
            self._added += 1

    def remove(self, position: int, frame: int) -> list[list[int]]:
        """Takes a draw whose frames were delivered out of the window.

        Args:
            position: Position of the episode.
            frame: The anchor's frame number.

        Returns:
            Per camera the frames that no draw of the window wants any more.
        """
        with self._lock:
            wants = self._episodes[position]
            unwanted: list[list[int]] = []
            for camera, uses in enumerate(wants.uses):
                dropped = []
                for wanted in self.frames_of(camera, position, frame):
                    draws = uses[wanted]
                    # Threads may finish draws out of order: then for a moment the number is a neighbour's.
                    draws.pop(0)
                    if not draws:
                        del uses[wanted]
                        dropped.append(wanted)
                unwanted.append(dropped)
            wants.draws -= 1
            if wants.draws == 0:
                del self._episodes[position]
            return unwanted

    def wanted(self, camera: int, position: int, frames: Sequence[int]) -> dict[int, int]:
        """Which of some frames a draw of the window wants.

        Args:
            camera: Number of the camera.
            position: Position of the episode.
            frames: Frame numbers, for instance those of one GOP.

        Returns:
            The wanted ones, each with the number of the first draw that wants it; the soonest first.
        """
        with self._lock:
            wants = self._episodes.get(position)
            if wants is None:
                return {}
            uses = wants.uses[camera]
            found = [(uses[frame][0], frame) for frame in frames if frame in uses]
        return {frame: draw for draw, frame in sorted(found)}
