"""The held-out evaluation set of a training run, streamed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lerobot_streaming.dataset import StreamingLeRobotDataset

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class HeldOutDataset(StreamingLeRobotDataset):
    """The held-out episodes in chronological order, optionally only the first frames of each."""

    ends_evenly = True

    def __init__(self, *args: Any, frames_used: Mapping[int, int] | None = None, **kwargs: Any) -> None:
        """Open the held-out episodes.

        Args:
            args: As for `StreamingLeRobotDataset`.
            frames_used: For each selected episode how many of its first frames are used; None: all.
            kwargs: As for `StreamingLeRobotDataset`.
        """
        super().__init__(*args, **kwargs)
        self._frames_used = frames_used

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield this worker's share of the frames.

        Yields:
            Items as map-style gives them.
        """
        used = self._frames_used
        for item in super().__iter__():
            if used is None or int(item["frame_index"]) < used[int(item["episode_index"])]:
                yield item
