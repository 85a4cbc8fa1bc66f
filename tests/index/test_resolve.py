from __future__ import annotations

import errno
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from lerobot_streaming.errors import FetchError, SidecarError, SidecarLockTimeoutError
from lerobot_streaming.index import (
    IndexRequest,
    SampleIndex,
    SidecarIdentity,
    build_sidecar,
    index_files,
    open_sidecar,
    resolve_index,
)
from lerobot_streaming.index import builder as builder_module
from lerobot_streaming.index.lock import lock_path, sidecar_lock
from lerobot_streaming.index.partial import PartialIndex
from lerobot_streaming.index.published import PublishedSidecars
from lerobot_streaming.storage.base import FileStat, RangeReader
from lerobot_streaming.storage.local import LocalReader
from tests.index.videos import video

if TYPE_CHECKING:
    from collections.abc import Mapping

NAMES = ("h264 b-frames", "h264 faststart", "h264 all-intra")


class Data:
    """A directory of videos with its cache beside it."""

    def __init__(self, folder: Path, count: int = 6) -> None:
        self.root, self.home = folder / "data", folder / "home"
        (self.root / "videos").mkdir(parents=True)
        for i in range(count):
            (self.root / f"videos/{i}.mp4").write_bytes(video(NAMES[i % 3]))
        self.reader = LocalReader(self.root)
        self.files = {f"videos/{i}.mp4": (self.root / f"videos/{i}.mp4").stat().st_size for i in range(count)}
        self.identity = SidecarIdentity("owner/name", "main", self.reader.root)
        self.path = self.identity.cache_path(self.home)

    def request(self, **options: Any) -> IndexRequest:
        settings = {"lerobot_home": self.home, "lock_timeout_s": 30.0, **options}
        return IndexRequest(self.identity, self.files, self.reader, **settings)

    def resolve(self, **options: Any) -> SampleIndex:
        return resolve_index(self.request(**options))

    def left_over(self) -> list[str]:
        return sorted(path.name for path in self.path.parent.glob(".*.tmp"))


@pytest.fixture
def data(tmp_path: Path) -> Data:
    return Data(tmp_path)


class Counting(RangeReader):
    """Counts reads and how many run at once; can be slow, and can fail."""

    def __init__(self, inner: RangeReader, delay_s: float = 0.0) -> None:
        self.inner, self.delay_s = inner, delay_s
        self.reads = self.active = self.most = 0
        self.lock = threading.Lock()

    @property
    def root(self) -> str:
        return self.inner.root

    def stat(self, path: str) -> FileStat:
        return self.inner.stat(path)

    def read_into(self, path: str, offset: int, view: memoryview) -> None:
        with self.lock:
            self.reads += 1
            self.active += 1
            self.most = max(self.most, self.active)
        time.sleep(self.delay_s)
        self.inner.read_into(path, offset, view)
        with self.lock:
            self.active -= 1

    def close(self) -> None:
        self.inner.close()


def test_it_is_built_once_and_then_opened(data: Data) -> None:
    first = data.resolve()
    assert not isinstance(first, PartialIndex)
    assert data.path.exists()
    written = data.path.stat().st_mtime_ns
    data.reader = LocalReader(data.root / "nowhere")  # Nothing may be read any more.
    second = data.resolve()
    assert second.files == data.files
    assert data.path.stat().st_mtime_ns == written
    assert second.source("videos/3.mp4").samples.num_samples == 30
    assert data.left_over() == []


def test_a_cached_file_that_does_not_fit_is_made_anew(data: Data) -> None:
    data.path.parent.mkdir(parents=True)
    for content in (b"", b"garbage", data.path.parent):
        if isinstance(content, bytes):
            data.path.write_bytes(content)
        assert data.resolve().files == data.files
    (data.root / "videos/0.mp4").write_bytes(video("mpeg4"))
    data.files["videos/0.mp4"] = len(video("mpeg4"))
    assert data.resolve().header("videos/0.mp4").codec == "mp4v"
    del data.files["videos/5.mp4"]
    assert data.resolve().files == data.files


def test_all_bad_files_are_listed_in_one_pass_and_a_valid_file_stays(data: Data) -> None:
    data.resolve()
    before = data.path.read_bytes()
    (data.root / "videos/1.mp4").write_bytes(b"")
    (data.root / "videos/2.mp4").unlink()
    (data.root / "videos/4.mp4").write_bytes(video("h264 faststart")[:-5])
    data.reader = LocalReader(data.root)
    data.files = {path: found.size for path, found in data.reader.stat_many(data.files).items()}
    with pytest.raises(SidecarError) as caught:
        data.resolve()
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("3 of 6 video files")
    assert [re.match(r"  (videos/\d\.mp4): ", line) is not None for line in lines[1:]] == [True] * 3
    assert "too few" in lines[1]
    assert "no file" in lines[2]
    assert "truncated" in lines[3]
    assert data.path.read_bytes() == before
    assert data.left_over() == []


def test_stat_many_gives_sizes_and_fingerprints_and_marks_missing_files(data: Data) -> None:
    found = data.reader.stat_many([*data.files, "videos/none.mp4"], look_ups=2)
    assert found["videos/none.mp4"] == FileStat(-1, None)
    assert {path: stat.size for path, stat in found.items() if stat.size >= 0} == data.files
    assert found["videos/0.mp4"] == data.reader.stat("videos/0.mp4")


def test_at_most_workers_files_are_parsed_and_the_bytes_do_not_depend_on_it(
    data: Data, tmp_path: Path
) -> None:
    reader = Counting(data.reader, 0.01)
    build_sidecar(tmp_path / "3.npz", data.identity, data.files, reader, workers=3)
    assert reader.most == 3
    build_sidecar(tmp_path / "1.npz", data.identity, data.files, data.reader, workers=1)
    assert (tmp_path / "1.npz").read_bytes() == (tmp_path / "3.npz").read_bytes()
    with pytest.raises(ValueError, match="workers is 0"):
        next(index_files(data.files, data.reader, workers=0))


def test_results_are_not_piled_up_while_nobody_takes_them(data: Data) -> None:
    reader = Counting(data.reader)
    stream = index_files(data.files, reader, workers=2)
    next(stream)
    time.sleep(0.2)
    assert reader.reads <= 3
    stream.close()
    assert threading.active_count() < 10


def test_an_interrupted_build_leaves_nothing_and_harms_nothing(
    data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt(args)

    data.path.parent.mkdir(parents=True)
    data.path.write_bytes(b"old")
    monkeypatch.setattr(builder_module, "check_and_flush", interrupt)
    with pytest.raises(KeyboardInterrupt):
        data.resolve()
    assert data.path.read_bytes() == b"old"
    assert data.left_over() == []
    monkeypatch.undo()
    assert data.resolve().files == data.files


def test_without_a_fingerprint_nothing_is_cached(data: Data) -> None:
    sidecar = data.resolve(use_cache=False)
    assert isinstance(sidecar, PartialIndex)
    assert sidecar.source("videos/5.mp4").samples.num_samples == 30
    assert not data.home.exists()


def test_a_cache_that_cannot_be_created_costs_one_warning(
    data: Data, caplog: pytest.LogCaptureFixture
) -> None:
    data.home.write_bytes(b"a file where a directory should be")
    with caplog.at_level(logging.WARNING):
        sidecar = data.resolve()
    assert sidecar.files == data.files
    assert isinstance(sidecar, PartialIndex)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "HF_LEROBOT_HOME" in caplog.text


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_full_or_read_only_cache_costs_one_warning(
    data: Data, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def fail(*args: object) -> None:
        Path(str(args[0])).write_bytes(b"half")
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(builder_module, "write_sidecar", fail)
    with caplog.at_level(logging.WARNING):
        sidecar = data.resolve()
    assert isinstance(sidecar, PartialIndex)
    assert len(caplog.records) == 1
    assert data.left_over() == []


def test_a_failing_network_is_no_failing_cache(data: Data) -> None:
    class Broken(Counting):
        def read_into(self, path: str, offset: int, view: memoryview) -> None:
            raise FetchError(f"{path}: no route to {offset}, {len(view)}")

    data.reader = Broken(data.reader)  # type: ignore[assignment]
    with pytest.raises(SidecarError, match=r"6 of 6(?s:.*)no route"):
        data.resolve()


class Published(PublishedSidecars):
    """Stands for a store that has the bytes of one sidecar, or none."""

    content: ClassVar[bytes | None] = None
    targets: ClassVar[tuple[Path, ...]] = ()

    def fetch(self, identity: SidecarIdentity, files: Mapping[str, int], target: Path) -> bool:
        assert identity.repo_id
        assert files
        Published.targets += (target,)
        if Published.content is None:
            return False
        target.write_bytes(Published.content)
        return True


@pytest.mark.parametrize("lazy_above", [0, 100])
def test_a_published_file_is_installed_after_validation(
    data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lazy_above: int
) -> None:
    made = tmp_path / "published.npz"
    build_sidecar(made, data.identity, data.files, data.reader)
    published = Published("owner/name", is_bucket=False)
    options: dict[str, Any] = {"published": published, "lazy_above": lazy_above}
    reader = Counting(data.reader)
    data.reader = reader  # type: ignore[assignment]
    monkeypatch.setattr(Published, "content", made.read_bytes())
    monkeypatch.setattr(Published, "targets", ())
    assert not isinstance(data.resolve(**options), PartialIndex)
    assert reader.reads == 0
    assert Published.targets[0].parent == data.path.parent
    for content in (made.read_bytes()[:500], None):
        data.path.unlink()
        monkeypatch.setattr(Published, "content", content)
        assert isinstance(data.resolve(**options), PartialIndex) == (lazy_above == 0)
        assert data.path.exists() == (lazy_above > 0)
        assert data.left_over() == []
        data.path.touch()


# Real processes

_PROGRAM = """
import sys, time, pathlib
sys.path.insert(0, {repository!r})
from tests.index.test_resolve import Counting, Data
from lerobot_streaming.index import IndexRequest, SidecarIdentity, resolve_index
from lerobot_streaming.index.lock import sidecar_lock
from lerobot_streaming.storage.local import LocalReader
folder = pathlib.Path({folder!r})
reader = Counting(LocalReader(folder / "data"), {delay})
files = {{p.relative_to(folder / "data").as_posix(): p.stat().st_size for p in folder.glob("data/videos/*")}}
identity = SidecarIdentity("owner/name", "main", reader.root)
mode = sys.argv[1]
if mode == "hold":
    with sidecar_lock(identity.cache_path(folder / "home"), 30):
        print("held", flush=True)
        time.sleep(60)
print("start", flush=True)
request = IndexRequest(identity, files, reader, lerobot_home=folder / "home", lock_timeout_s=60)
index = resolve_index(request)
for path in files:
    index.source(path)
print(reader.reads, len(index.files), flush=True)
"""


def run(folder: Path, mode: str, delay: float = 0.0) -> subprocess.Popen[str]:
    repository = str(Path(__file__).parents[2])
    program = _PROGRAM.format(repository=repository, folder=str(folder), delay=delay)
    environment = {**os.environ, "PYTHONPATH": f"{repository}/src"}
    return subprocess.Popen(
        [sys.executable, "-c", program, mode], stdout=subprocess.PIPE, text=True, env=environment
    )


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_of_two_builders_at_once_one_builds(data: Data, tmp_path: Path) -> None:
    builders = [run(tmp_path, "build", 0.2) for _ in range(2)]
    results = []
    for process in builders:
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        results.append(output.split()[1:])
    assert sorted(results) == [["0", "6"], ["6", "6"]]
    assert data.left_over() == []


def test_a_killed_builder_leaves_the_lock_free_and_its_debris_is_removed(data: Data, tmp_path: Path) -> None:
    data.path.parent.mkdir(parents=True)
    data.path.write_bytes(b"old")
    builder = run(tmp_path, "build", 3.0)
    assert line(builder) == "start"
    deadline = time.monotonic() + 30
    while not lock_path(data.path).exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.3)
    os.kill(builder.pid, signal.SIGKILL)
    builder.communicate(timeout=10)
    (data.path.parent / f".{data.path.name}.1-dead.tmp").write_bytes(b"half")
    assert data.path.read_bytes() == b"old"
    assert data.resolve(lock_timeout_s=10.0).files == data.files
    assert data.left_over() == []
    open_sidecar(data.path, data.identity, data.files).validate()


def test_a_timeout_names_lock_and_holder_and_a_dead_holder_frees_it(data: Data, tmp_path: Path) -> None:
    data.path.parent.mkdir(parents=True)
    holder = run(tmp_path, "hold")
    try:
        assert line(holder) == "held"
        with pytest.raises(SidecarLockTimeoutError) as caught:
            data.resolve(lock_timeout_s=0.3)
        assert str(lock_path(data.path)) in str(caught.value)
        assert f"process {holder.pid} on host" in str(caught.value)
        assert "sidecar_lock_timeout_s" in str(caught.value)
        waiting = threading.Timer(0.5, holder.kill)
        waiting.start()
        assert data.resolve(lock_timeout_s=30.0).files == data.files
    finally:
        holder.kill()
        holder.communicate()


@pytest.mark.parametrize("content", [b"", b"not json", b"[1]", b'{"pid": "x"}', b"\xff" * 9000])
def test_a_damaged_holder_file_does_not_hide_the_timeout(data: Data, content: bytes) -> None:
    data.path.parent.mkdir(parents=True)
    with sidecar_lock(data.path, 5):
        data.path.with_name(f"{data.path.name}.lock.holder").write_bytes(content)
        with pytest.raises(SidecarLockTimeoutError, match="unknown process"), sidecar_lock(data.path, 0.1):
            pass
