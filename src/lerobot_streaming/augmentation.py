"""Image transforms that are reproducible: their random generators are seeded, and put back afterwards."""

from __future__ import annotations

import random
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def augmentation_seed(seed: int) -> Iterator[None]:
    """Seeds the random generators that transforms use, and puts the process's own states back afterwards.

    Args:
        seed: Seed, at most 63 bits.

    Yields:
        Nothing.
    """
    torch_state = torch.default_generator.get_state()
    python_state = random.getstate()
    numpy_state = np.random.get_state()  # noqa: NPY002  Transforms may use the legacy generator.
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    try:
        yield
    finally:
        torch.default_generator.set_state(torch_state)
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002
