"""Fixtures of all tests; and, before anything imports lerobot, homes of their own and no network."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

# A change lands or not on what it is, not on the luck of a draw; everywhere else the draws differ every time.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")

_HOME = Path(tempfile.mkdtemp(prefix="lerobot-streaming-tests-"))
"""Holds every cache of this test run; worker processes inherit it through the environment."""

for _module in ("lerobot", "huggingface_hub", "datasets"):
    if _module in sys.modules:
        raise RuntimeError(f"{_module} was imported before the tests could point it at a temporary home")
os.environ["HF_HOME"] = str(_HOME / "huggingface")
os.environ["HF_LEROBOT_HOME"] = str(_HOME / "lerobot")
os.environ["HF_HUB_OFFLINE"] = "1"
for _variable in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "HF_TOKEN"):
    os.environ.pop(_variable, None)

from tests.support.datasets import Shelf  # noqa: E402  # It imports lerobot, late; the environment is set first.


def pytest_unconfigure() -> None:
    shutil.rmtree(_HOME, ignore_errors=True)


@pytest.fixture(scope="session")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    """The made datasets, each made on first use and shared by the whole run."""
    return Shelf(tmp_path_factory.mktemp("shelf"))
