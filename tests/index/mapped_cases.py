"""Sidecars for the tests of the mapped index, and processes that use one."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Self

from lerobot_streaming.index import SidecarIdentity, SourceFile, write_sidecar
from lerobot_streaming.index.mapped import MappedIndex, open_mapped
from tests.index.random_tables import assert_equal
from tests.index.videos import EDITED, index, video

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lerobot_streaming.index import Sidecar
    from lerobot_streaming.index.sample_index import SampleIndex

ROOT = Path(__file__).parents[2]
IDENTITY = SidecarIdentity("owner/name", "main", "/data", {"videos/é.mp4": "ab12"})


def real_sources() -> list[SourceFile]:
    return [
        index(video("h264 all-intra"), "videos/a.mp4"),
        index(video("h264 b-frames"), "videos/b.mp4"),
        index(EDITED["two sample entries"](), "videos/c.mp4"),
        index(video("h264 variable"), "videos/é.mp4"),
    ]


def write(home: Path, sources: Iterable[SourceFile], identity: SidecarIdentity = IDENTITY) -> Path:
    """Puts a sidecar where the cache has it, as an install does, and gives its path."""
    path = identity.cache_path(home)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    write_sidecar(temporary, identity, sources)
    temporary.replace(path)
    return path


def renamed(source: SourceFile, path: str) -> SourceFile:
    return dataclasses.replace(source, path=path)


def opened(path: Path, home: Path) -> MappedIndex:
    return open_mapped(path, home, lock_timeout_s=60)


def check_equal(found: SampleIndex, wanted: Sidecar) -> None:
    assert dict(found.files) == dict(wanted.files)
    assert list(found.files) == list(wanted.files)
    for path in wanted.files:
        assert found.header(path) == wanted.header(path)
        assert_equal(found.source(path), wanted.source(path))


def indexes(home: Path) -> list[Path]:
    return sorted(home.glob("streaming-indexes/*/*.idx"))


def debris(home: Path) -> list[str]:
    return sorted(path.name for path in home.glob("streaming-indexes/*/.*"))


_PREAMBLE = """
import sys
from pathlib import Path
from lerobot_streaming.index.mapped import open_mapped
def hear():
    return sys.stdin.readline().strip()
def say(*words):
    print(*words, flush=True)
"""


class Peer:
    """A process of its own that is told lines and answers lines."""

    def __init__(self, code: str, *arguments: object) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
        self.process = subprocess.Popen(
            [sys.executable, "-c", _PREAMBLE + code, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        try:
            self.process.wait(30)
        finally:
            self.process.kill()

    def tell(self, words: str = "") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(words + "\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()
