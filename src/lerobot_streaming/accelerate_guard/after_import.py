"""Protect loaders in a process that may import accelerate at any time, without importing it."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from importlib.abc import MetaPathFinder
from typing import TYPE_CHECKING, Any

from lerobot_streaming.accelerate_guard.protection import MODULE, protect_loaders
from lerobot_streaming.errors import UnsupportedVersionError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


def protect_when_imported() -> None:
    """Protect loaders now if accelerate is imported, else as soon as it is.

    Where accelerate does not look as expected, nothing is protected and nothing is said: it may never be
    given one of our loaders. If it is, `refuse_unprotected_loader` says so.
    """
    if MODULE in sys.modules:
        _protect()
    elif not any(isinstance(finder, _WaitForAccelerate) for finder in sys.meta_path):
        sys.meta_path.insert(0, _WaitForAccelerate())


def _protect() -> None:
    with contextlib.suppress(UnsupportedVersionError):
        protect_loaders()


class _WaitForAccelerate(MetaPathFinder):
    """Sees the import of one module, lets the other finders do it, and acts when it is done."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the module through the other finders; every other module is none of our business.

        Args:
            fullname: Module that is being imported.
            path: Unused.
            target: Unused.

        Returns:
            The specification of the one module, which protects loaders after it was executed; else None.
        """
        del path, target
        if fullname != MODULE:
            return None
        with contextlib.suppress(ValueError):  # somebody else took us out
            sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_protect(module: Any) -> None:
            execute(module)
            _protect()

        spec.loader.exec_module = execute_and_protect  # type: ignore[method-assign]  # This one loader's.
        return spec
