"""Stream LeRobotDataset v3 into training: a drop-in streaming dataset for LeRobot.

`StreamingLeRobotDataset` is imported on first use, so that the command-line tools start without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lerobot_streaming.dataset import StreamingLeRobotDataset

__all__ = ["StreamingLeRobotDataset"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name in __all__:
        from lerobot_streaming.dataset import StreamingLeRobotDataset  # noqa: PLC0415

        return StreamingLeRobotDataset
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
