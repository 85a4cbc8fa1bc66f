"""Which training process this is, among how many; and which of its DataLoader workers."""

from __future__ import annotations

import os
from typing import Any

import torch.distributed
from torch.utils.data import get_worker_info

from lerobot_streaming.errors import OptionError


def rank_and_world() -> tuple[int, int]:
    """Find this training process: from `torch.distributed` when initialised, else from `RANK`/`WORLD_SIZE`.

    Returns:
        Its rank, and the number of ranks.

    Raises:
        OptionError: The environment's values are no integers, or no rank of a world.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    rank, world = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    try:
        place = int(rank), int(world)
    except ValueError:
        raise OptionError(
            f"The environment says RANK={rank!r} and WORLD_SIZE={world!r}; both must be integers."
        ) from None
    if not 0 <= place[0] < place[1]:
        raise OptionError(
            f"The environment says RANK={rank} and WORLD_SIZE={world}; RANK must be from 0 to WORLD_SIZE - 1."
        )
    return place


def worker_and_count() -> tuple[int, int]:
    """Find this DataLoader worker.

    Returns:
        Its number and the number of workers; (0, 1) in the training process itself.
    """
    info = get_worker_info()
    return (0, 1) if info is None else (int(info.id), int(info.num_workers))


def in_worker() -> bool:
    """Say whether this process is a DataLoader worker.

    Returns:
        Whether it is.
    """
    return get_worker_info() is not None


class RankMemory:
    """Lets a spawned worker know its rank: the process group stays behind in the training process."""

    def __init__(self) -> None:
        """Knows nothing yet."""
        self._told: tuple[int, int] | None = None
        self._told_in: int | None = None

    def current(self) -> tuple[int, int]:
        """Find the rank that this process works for.

        Returns:
            The rank, and the number of ranks.

        Raises:
            OptionError: See `rank_and_world`.
        """
        # A forked worker did not unpickle this, and finds the process group or the environment as they are. A
        # copy that was unpickled in a training process finds its own.
        if self._told is not None and self._told_in == os.getpid() and in_worker():
            return self._told
        return rank_and_world()

    def __getstate__(self) -> dict[str, Any]:
        """Tell the copy where it comes from."""
        return {"told": self.current()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take over what was told, for this process only."""
        self._told = state["told"]
        self._told_in = os.getpid()
