"""Memory that is lent to tensors and comes back when the last tensor over them is gone."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class _Lease[Lent](weakref.ref[Lent]):
    """Watches one lent object; `ended` says what happens at its end."""

    __slots__ = ("ended",)

    ended: Callable[[], None]


_running: dict[int, weakref.ref[Any]] = {}
"""A weak reference only calls back while it exists itself. Dictionary operations are atomic, so an end in any
thread, at any moment, needs no lock."""


def _end(lease: weakref.ref[Any]) -> None:
    _running.pop(id(lease), None)
    if isinstance(lease, _Lease):
        lease.ended()


def lend[Lent](lent: Lent, ended: Callable[[], None]) -> Lent:
    """Lends a view of some memory to a tensor.

    `torch.from_numpy` keeps the very array that it is given alive as long as anything uses the tensor's
    storage, and `torch.frombuffer` does so with a memoryview. NumPy does not: an array made of a memoryview
    or of another array refers to what lies beneath.

    Args:
        lent: The array or memoryview that PyTorch gets; whoever made it forgets it.
        ended: Called once when nothing refers to it any more, in whichever thread that happens; it must not
            wait for a lock.

    Returns:
        `lent`.
    """
    lease = _Lease(lent, _end)
    lease.ended = ended
    _running[id(lease)] = lease
    return lent
