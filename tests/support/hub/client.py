"""Runs client code against the loopback Hub, in a process of its own or in this one."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.support.hub.server import LoopbackHub

TOKEN_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
"""Where the client looks for a token."""

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


@contextmanager
def online(hub: LoopbackHub, token: str | None = None, *, xet: bool = False) -> Iterator[None]:
    """Point the Hub client of this process to a Hub. Caches stay where the process has them.

    It covers what reads the client's settings when it is called, which is all of the client and what lerobot
    does with it; not what has made an `HfApi` before, or copied a setting.

    Args:
        hub: The Hub.
        token: The client's token; None: none.
        xet: Whether the client may use Xet for repositories, too.

    Yields:
        Nothing; on leaving, the settings are as before and the client's connections closed.
    """
    from huggingface_hub import constants, hf_api
    from huggingface_hub.utils._http import close_session

    settings: dict[str, Any] = {
        "ENDPOINT": hub.endpoint,
        "HUGGINGFACE_CO_URL_TEMPLATE": hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_OFFLINE": False,
        "HF_HUB_DISABLE_XET": not xet,
    }
    close_session()
    with (
        mock.patch.multiple(constants, **settings),
        mock.patch.object(hf_api.api, "endpoint", hub.endpoint),
        mock.patch.dict(os.environ),
    ):
        for name in TOKEN_VARIABLES:
            os.environ.pop(name, None)
        if token is not None:
            os.environ["HF_TOKEN"] = token
        try:
            yield
        finally:
            close_session()
