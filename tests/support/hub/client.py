"""Runs client code against the loopback Hub."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.support.hub.server import LoopbackHub

_REPOSITORY = Path(__file__).parents[3]


def run_client(
    code: str,
    hub: LoopbackHub,
    home: Path,
    *,
    token: str | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 120.0,
) -> str:
    """Run Python code in a process of its own whose environment points to a Hub.

    The client reads `HF_ENDPOINT` and `HF_HOME` when it is imported, so a process that has imported it cannot
    change them.

    Args:
        code: The code. It can import this repository's tests and sources.
        hub: The Hub.
        home: Directory for the client's caches.
        token: The client's token; None: none.
        env: More variables.
        timeout_s: Seconds after which the process is killed.

    Returns:
        What it wrote to standard output.

    Raises:
        RuntimeError: When it ends with an error; the message has its standard error.
    """
    environment = {
        **hub.env(token),
        "HF_HOME": str(home / "huggingface"),
        "HF_LEROBOT_HOME": str(home / "lerobot"),
        **(env or {}),
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        cwd=_REPOSITORY,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"the client code ended with status {done.returncode}:\n{done.stderr}")
    return done.stdout
