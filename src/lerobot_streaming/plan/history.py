"""The shapes that a job has had: all that is needed to compute what they left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lerobot_streaming.errors import OptionError
from lerobot_streaming.plan.job_order import JobOrder, Rests
from lerobot_streaming.plan.settings import OrderSettings, is_plain_integer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lerobot_streaming.plan.anchors import AnchorSelection
    from lerobot_streaming.plan.sizes import EpisodeSizes


_MAX_OFFSET: Final = 10**13
"""No rank draws more samples: at a thousand a second it would take three hundred years."""


@dataclass(frozen=True, slots=True)
class Position:
    """A place in the pass of a rank.

    Attributes:
        epoch: Epoch at which the pass began.
        offset: Samples that the rank has taken of it, counted as if no batch had been short.
        batch_size: Samples per batch; None when a single process counted its own samples.
    """

    epoch: int = 0
    offset: int = 0
    batch_size: int | None = None

    def to_dict(self) -> dict[str, int | None]:
        """Give the position as plain values.

        Returns:
            `{"epoch", "offset", "batch_size"}`.
        """
        return {"epoch": self.epoch, "offset": self.offset, "batch_size": self.batch_size}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Position:
        """Check and take over a position.

        Args:
            state: Holds `epoch`, `offset` and `batch_size`.

        Returns:
            The position.

        Raises:
            OptionError: A value is missing, negative or no integer, or the offset is no multiple of the batch
                size.
        """
        epoch, offset = _whole(state, "epoch", 0), _whole(state, "offset", 0)
        batch_size = None if state.get("batch_size") is None else _whole(state, "batch_size", 1)
        if offset > _MAX_OFFSET:
            raise OptionError(
                f"The state's offset is {offset}; it must be at most {_MAX_OFFSET} samples of a rank."
            )
        if batch_size is not None and offset % batch_size:
            raise OptionError(
                f"The state's offset {offset} is no multiple of its batch_size {batch_size}: it must count "
                "whole batches."
            )
        return cls(epoch, offset, batch_size)


@dataclass(frozen=True, slots=True)
class Segment:
    """What a job did under one shape: every rank took equally many batches.

    Attributes:
        settings: The shape.
        position: Where each rank stood at its end.
        generation: Number of shapes before it that are not in the history any more, because it began after
            everything that they had left.
    """

    settings: OrderSettings
    position: Position
    generation: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Give the segment as plain values.

        Returns:
            Names and values that JSON can hold.
        """
        values = {"settings": self.settings.to_dict(), **self.position.to_dict()}
        return values | {"generation": self.generation} if self.generation else values

    @classmethod
    def from_dict(cls, values: Any) -> Segment:
        """Check and take over what `to_dict` gave.

        Args:
            values: The segment.

        Returns:
            The segment.

        Raises:
            OptionError: It is none.
        """
        if not hasattr(values, "get") or "settings" not in values:
            raise OptionError(f"The state's history must hold segments with their settings, got {values!r}.")
        generation = _whole(values, "generation", 0) if "generation" in values else 0
        segment = cls(OrderSettings.from_dict(values["settings"]), Position.from_dict(values), generation)
        place = segment.position
        if place.offset and place.batch_size is None and segment.settings.num_workers > 1:
            raise OptionError(
                f"The state's history has an offset of a job with {segment.settings.num_workers} workers and "
                "no batch_size to deal it by."
            )
        return segment


def _whole(state: Mapping[str, Any], name: str, low: int) -> int:
    value = state.get(name)
    if value is None or not is_plain_integer(value) or not low <= value < 2**63:
        raise OptionError(
            f"The state's {name!r} must be an integer >= {low} (of 63 bits), got {value!r}. A state has the "
            "keys epoch, offset and batch_size."
        )
    return int(value)


def replay(
    anchors: AnchorSelection,
    size_of: EpisodeSizes | Callable[[int], int],
    segments: Sequence[Segment],
    *,
    other_sizes: Mapping[tuple[str, ...] | None, EpisodeSizes] | None = None,
) -> Rests:
    """Compute what the shapes of a job have left, one after the other.

    The cost is one fast pass over what every worker of each shape has drawn in the epoch that it was in.

    Args:
        anchors: The frames that are drawn.
        size_of: Gives the compressed bytes of the episode at a position of the selection.
        segments: The shapes, oldest first.
        other_sizes: The sizes for segments of other cameras than those that `size_of` counts, by them.

    Returns:
        The rests.

    Raises:
        OptionError: A segment's offset cannot be dealt to its workers.
        ShardingError: There are fewer episodes than a segment has ranks.
        ByteBudgetError: A segment's budget does not fit these episodes.
    """
    rests = Rests(generation=segments[0].generation if segments else 0)
    for segment in segments:
        place = segment.position
        sizes = (other_sizes or {}).get(segment.settings.cameras, size_of)
        job = JobOrder(anchors, sizes, segment.settings, rests)
        rests = job.rests_after(place.epoch, place.offset, place.batch_size)
    return rests
