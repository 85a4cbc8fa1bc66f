"""Reconcile accelerate's count of epochs, which begins at 0 in every process, with a resumed dataset's."""

from __future__ import annotations

import functools
from typing import Any


def follow_the_dataset(loader: Any) -> None:
    """Let a prepared loader announce the epoch that its dataset continues, instead of its own count.

    accelerate's loader calls `dataset.set_epoch(n)` before each pass, with n from 0 on. After a resume in
    epoch 3 that would send the dataset back to epoch 0. An epoch that the loop itself chooses with
    `loader.set_epoch` is passed on as it is.

    Args:
        loader: accelerate's loader over one of our datasets.
    """
    resumed = loader.dataset.resumed_epoch()
    if resumed is not None:
        loader.iteration = resumed[0]
    # On the object: accelerate's classes are not ours to change, and serve other datasets too.
    loader.set_epoch = functools.partial(_announce, loader)


def _announce(loader: Any, epoch: int) -> None:
    resumed = loader.dataset.resumed_epoch() if epoch == loader.iteration else None
    if resumed is None:
        type(loader).set_epoch(loader, epoch)
        return
    epoch, nothing_left = resumed
    type(loader).set_epoch(loader, epoch)
    if nothing_left:
        # accelerate does not count a pass without a batch, and would announce its epoch again.
        loader.iteration = epoch + 1
