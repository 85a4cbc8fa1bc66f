"""Starts the DataLoader workers of `lerobot-train` without running the training script in each of them.

A spawned process first runs the program's main script again, because what it is given may refer to that. The
script of `lerobot-train` imports every policy, environment and optimizer: several seconds in which a worker
could decode, and it needs none of them.
"""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from multiprocessing import spawn
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_COMMAND: Final = "lerobot-train"
_replacing = threading.RLock()


def worker_context(start_method: Any, script: ModuleType) -> Any:
    """Choose the context in which a loader starts its workers.

    Args:
        start_method: The `multiprocessing_context` that the loader would get: a name, a context or None.
        script: The training script, as it was loaded.

    Returns:
        A context of ours for "spawn", if the program is lerobot's own training command. What was given for
        other ways to start, and for every other program: its workers may need what its main script defines or
        does.
    """
    if start_method == "spawn" and _is_training_command(sys.modules.get("__main__"), script):
        return WorkerContext()
    return start_method


def _is_training_command(main: ModuleType | None, script: ModuleType) -> bool:
    """Whether the program is `lerobot-train` or `python -m` of its script, and nothing that wraps them."""
    if getattr(getattr(main, "__spec__", None), "name", None) == "lerobot.scripts.lerobot_train":
        return True
    file = getattr(main, "__file__", None)
    if file is None or Path(file).name != _COMMAND:
        return False
    # As pip and uv write the command: nothing that a pickle could name as the command's own.
    own = [value for name, value in vars(main).items() if not name.startswith("__")]
    return all(isinstance(value, ModuleType) or value is getattr(script, "main", None) for value in own)


class _WorkerProcess(SpawnProcess):
    """A spawned process that does not run the main script."""

    def start(self) -> None:
        """Start the process."""
        with _main_left_out():
            super().start()


class WorkerContext(SpawnContext):
    """The "spawn" way to start processes, without the main script in them."""

    Process = _WorkerProcess


@contextmanager
def _main_left_out() -> Iterator[None]:
    """Tell the processes that this thread starts of no main script; those of others are told as ever."""
    thread = threading.get_ident()
    with _replacing:
        original = spawn.get_preparation_data

        def prepare(name: str) -> dict[str, Any]:
            data = original(name)
            if threading.get_ident() == thread:
                for key in ("init_main_from_name", "init_main_from_path"):
                    data.pop(key, None)
            return data

        spawn.get_preparation_data = prepare
        try:
            yield
        finally:
            spawn.get_preparation_data = original
