"""What `state_dict` gives and `load_state_dict` takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lerobot_streaming.errors import OptionError
from lerobot_streaming.options import is_integer
from lerobot_streaming.plan import OrderSettings, Position, Segment

if TYPE_CHECKING:
    from collections.abc import Mapping

_KEYS: Final = {"epoch", "offset", "batch_size", "share", "settings", "history", "data"}


@dataclass(frozen=True, slots=True)
class State:
    """Where a job stands, and what its order depends on.

    Attributes:
        position: Where a rank stands, or one process of it.
        settings: What the position was reached with; None: with the settings of whoever loads it.
        history: The shapes that the job had before, in the epochs that it has begun.
        share: Whose share of a rank's episodes the process draws, when the state is that of one of several
            DataLoader workers.
        data: Describes the selected frames; None: not recorded.
    """

    position: Position
    settings: OrderSettings | None = None
    history: tuple[Segment, ...] = ()
    share: int | None = None
    data: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Give the state as plain values.

        Returns:
            `epoch`, `offset`, `batch_size`, and those of `share`, `settings`, `history` and `data` that there
            are; JSON can hold all of it.
        """
        state: dict[str, Any] = self.position.to_dict()
        if self.share is not None:
            state["share"] = self.share
        if self.settings is not None:
            state["settings"] = self.settings.to_dict()
        if self.history:
            state["history"] = [segment.to_dict() for segment in self.history]
        if self.data is not None:
            state["data"] = self.data
        return state

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> State:
        """Check and take over a state.

        Args:
            state: `epoch`, `offset` and `batch_size`; the other keys may be absent.

        Returns:
            The state.

        Raises:
            OptionError: A value is missing, of the wrong type or outside its range, or a key is not known.
        """
        if not hasattr(state, "get"):
            raise OptionError(f"The state's keys are epoch, offset and batch_size; got {state!r}.")
        unknown = set(state) - _KEYS
        if unknown:
            raise OptionError(f"The state's keys {sorted(map(str, unknown))} are not known.")
        settings, history = state.get("settings"), state.get("history") or ()
        share, data = state.get("share"), state.get("data")
        if isinstance(history, str) or not hasattr(history, "__iter__"):
            raise OptionError(f"The state's history must be a list of segments, got {history!r}.")
        if share is not None and (not is_integer(share) or share < 0):
            raise OptionError(f"The state's share must be an integer >= 0, got {share!r}.")
        if data is not None and not isinstance(data, str):
            raise OptionError(f"The state's data must be a text, got {data!r}.")
        return cls(
            Position.from_dict(state),
            None if settings is None else OrderSettings.from_dict(settings),
            tuple(Segment.from_dict(segment) for segment in history),
            share,
            data,
        )
