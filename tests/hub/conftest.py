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

    from tests.support.datasets import Shelf
    from tests.support.hub import Bucket, Dataset
    from tests.support.oracle import Item

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


# A dataset that can be streamed: these replace the small files above where a test asks for them.


@pytest.fixture
def lerobot_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home for lerobot's caches that no other test has filled."""
    from lerobot.utils import constants

    home = tmp_path / "lerobot-home"
    monkeypatch.setattr(constants, "HF_LEROBOT_HOME", home)
    monkeypatch.setattr(constants, "HF_LEROBOT_HUB_CACHE", home / "hub")
    # For processes that a test starts.
    monkeypatch.setenv("HF_LEROBOT_HOME", str(home))
    return home


@pytest.fixture(scope="session")
def root(shelf: Shelf) -> Path:
    return shelf.root("rotating_files")


@pytest.fixture(scope="session")
def expected(root: Path) -> dict[int, Item]:
    """What map-style gives for the local directory."""
    from tests.support.oracle import map_items

    return map_items(root, return_uint8=True)


@pytest.fixture
def streamed(
    hub: LoopbackHub, root: Path, lerobot_home: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Dataset]:
    """A private dataset on the Hub, which this process and those that it starts can reach."""
    assert not lerobot_home.exists()
    made = hub.add_dataset("owner/set", root, private=True, token=TOKEN, read_token=READ_TOKEN)
    made.tag("v3.0")
    with online(hub):
        monkeypatch.setenv("HF_HUB_OFFLINE", "0")
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        yield made


@pytest.fixture
def bucket(hub: LoopbackHub, streamed: Dataset, root: Path) -> Bucket:
    """A private bucket of the same files."""
    assert streamed.commit
    return hub.add_bucket("owner/bucket", root, private=True, token=TOKEN, read_token=READ_TOKEN)
