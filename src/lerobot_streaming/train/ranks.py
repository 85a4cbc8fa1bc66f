"""The number of training processes, as the dataset itself sees it."""

from __future__ import annotations

import os

import torch.distributed


def world_size() -> int:
    """Count the processes of this job: from `torch.distributed` when initialised, else from `WORLD_SIZE`.

    Returns:
        The number, at least 1.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size()
    return int(os.environ.get("WORLD_SIZE", "1"))
