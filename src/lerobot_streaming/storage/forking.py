"""What a forked child must do with what it inherits: new locks, no connection of its parent."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Renewable(Protocol):
    """Something with locks or connections."""

    def renew_after_fork(self) -> None:
        """Makes it usable in a forked child, where no other thread of the parent lives on."""
        ...


_things: weakref.WeakSet[Renewable] = weakref.WeakSet()
_buried: list[object] = []


def renew_in_children(thing: Renewable) -> None:
    """Has a thing renewed in every process that is forked from now on.

    Args:
        thing: Held weakly.
    """
    _things.add(thing)


def bury(thing: object) -> None:
    """Keeps something that a child inherited from ever being finalised there.

    Closing a connection of the parent may wait for a lock, or for a thread, that does not exist in the child.

    Args:
        thing: What the child will not use.
    """
    _buried.append(thing)


def _renew() -> None:
    for thing in list(_things):
        thing.renew_after_fork()


os.register_at_fork(after_in_child=_renew)
