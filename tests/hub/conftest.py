"""A Hub with a private dataset and a private bucket of the same files, and two kinds of clients."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.support.hub import LoopbackHub, online

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.hub import Dataset

TOKEN = "hf_owner"  # noqa: S105  # Nobody else accepts it.
READ_TOKEN = "hf_reader"  # noqa: S105
OTHER_TOKEN = "hf_other"  # noqa: S105
VIDEO = "videos/cam/chunk-000/file-000.mp4"


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("served")
    for path, content in {
        "README.md": b"# A dataset\n",
        "meta/info.json": b'{"codebase_version": "v3.0"}',
        "meta/tasks.parquet": random.Random(0).randbytes(900),
        "data/chunk-000/file-000.parquet": random.Random(1).randbytes(20_000),
        VIDEO: random.Random(2).randbytes(300_000),
        "a b/c+d é.txt": b"odd name",
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
    return root


@pytest.fixture
def hub() -> Iterator[LoopbackHub]:
    with LoopbackHub() as served:
        yield served


@pytest.fixture
def repo(hub: LoopbackHub, folder: Path) -> Dataset:
    made = hub.add_dataset("owner/set", folder, private=True, token=TOKEN, read_token=READ_TOKEN)
    made.tag("v3.0")
    return made


@pytest.fixture
def client(hub: LoopbackHub) -> Iterator[None]:
    """The Hub client of this process reads from the Hub with the owner's token."""
    with online(hub, TOKEN):
        yield


@pytest.fixture
def http() -> Iterator[httpx.Client]:
    """A bare HTTP client that does not follow redirects."""
    with httpx.Client(trust_env=False, timeout=20.0) as bare:
        yield bare
