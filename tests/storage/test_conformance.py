"""Every reader passes the same tests."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import fsspec
import pytest

from lerobot_streaming.storage.base import RangeReader
from lerobot_streaming.storage.bucket import BucketReader
from lerobot_streaming.storage.counted import CountedReader
from lerobot_streaming.storage.fsspec_reader import FsspecReader
from lerobot_streaming.storage.hub import HubReader
from lerobot_streaming.storage.hub_store import HubOptions
from lerobot_streaming.storage.local import LocalReader
from tests.storage.conformance import RangeReaderConformance, StoreUnderTest, make_files
from tests.storage.s3 import S3Server
from tests.support.hub import LoopbackHub, online

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FILES = make_files()
TOKEN = "hf_secret"  # noqa: S105 - it opens nothing but the loopback Hub


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("store")
    for path, content in FILES.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
    return root


@pytest.fixture(scope="module")
def hub(directory: Path) -> Iterator[LoopbackHub]:
    with LoopbackHub() as hub, pytest.MonkeyPatch.context() as patch, online(hub):
        patch.setenv("HF_HUB_OFFLINE", "0")  # For spawned processes.
        hub.add_dataset("owner/name", directory, private=True, token=TOKEN)
        hub.add_bucket("owner/bucket", directory, private=True, token=TOKEN)
        yield hub


class TestLocalReader(RangeReaderConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def store(cls, directory: Path) -> StoreUnderTest:
        return StoreUnderTest(FILES, lambda: LocalReader(directory))


class TestFsspecFile(RangeReaderConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def store(cls, directory: Path) -> StoreUnderTest:
        return StoreUnderTest(FILES, lambda: FsspecReader(f"file://{directory}/"))


class TestFsspecMemory(RangeReaderConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def store(cls) -> Iterator[StoreUnderTest]:
        memory = fsspec.filesystem("memory")
        for path, content in FILES.items():
            memory.pipe_file(f"/conformance/{path}", content)
        yield StoreUnderTest(FILES, lambda: FsspecReader("memory://conformance"), reaches_spawned=False)
        memory.rm("/conformance", recursive=True)


class TestFsspecS3(RangeReaderConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def store(cls) -> Iterator[StoreUnderTest]:
        with S3Server() as server:
            server.put("bucket", "set/", FILES)
            yield StoreUnderTest(FILES, lambda: FsspecReader("s3://bucket/set", server.options))


class TestHub(RangeReaderConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def store(cls, hub: LoopbackHub) -> StoreUnderTest:
        commit = hub.state.datasets["owner/name"].commit
        options = HubOptions(TOKEN, hub.endpoint, deadline_s=20)
        return StoreUnderTest(FILES, lambda: HubReader("owner/name", commit, options), has_fingerprints=False)


class TestBucket(RangeReaderConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def store(cls, hub: LoopbackHub) -> StoreUnderTest:
        options = HubOptions(TOKEN, hub.endpoint, deadline_s=20)
        return StoreUnderTest(FILES, lambda: BucketReader("owner/bucket", options))


class TestCounted(RangeReaderConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def store(cls, directory: Path) -> StoreUnderTest:
        return StoreUnderTest(FILES, lambda: CountedReader(LocalReader(directory), _ignore))


def _ignore(num_bytes: int) -> None:
    del num_bytes


def test_a_changed_file_has_another_fingerprint(tmp_path: Path) -> None:
    path = tmp_path / "x"
    for reader in (FsspecReader(f"file://{tmp_path}"), LocalReader(tmp_path)):
        found = []
        for stamp in (1, 2):
            path.write_bytes(b"abc")
            os.utime(path, ns=(stamp, stamp * 10**9))
            found.append(reader.stat("x").fingerprint)
        assert len(set(found)) == 2
        assert isinstance(reader, RangeReader)
