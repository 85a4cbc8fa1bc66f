from __future__ import annotations

import multiprocessing
import os
import pickle
import random
import threading
from pathlib import Path

import pytest

from lerobot_streaming.errors import FetchError, MissingFileError
from lerobot_streaming.storage.base import RangeReader
from lerobot_streaming.storage.local import LocalReader


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "a").mkdir()
    for name in ("a/x.bin", "y.bin"):
        (tmp_path / name).write_bytes(name.encode() * 1000)
    return tmp_path


def open_files(root: Path) -> int:
    return sum(link.resolve().is_relative_to(root) for link in Path("/proc/self/fd").iterdir())


def test_reads_ranges_and_stats(root: Path) -> None:
    reader = LocalReader(root)
    assert isinstance(reader, RangeReader)
    assert reader.root == str(root.resolve())
    assert reader.read("a/x.bin", 7, 7) == b"a/x.bin"
    assert reader.read("a/x.bin", 0, 0) == b""
    buffer = bytearray(5)
    reader.read_into("y.bin", 5 * 999, memoryview(buffer))
    assert buffer == b"y.bin"
    found = reader.stat("y.bin")
    assert found.size == 5000
    assert found.fingerprint == f"5000-{(root / 'y.bin').stat().st_mtime_ns}"
    os.utime(root / "y.bin", ns=(1, 1))
    assert reader.stat("y.bin").fingerprint == "5000-1"


def test_a_short_file_names_path_offset_wanted_and_got(root: Path) -> None:
    with pytest.raises(FetchError, match=r"y\.bin.*offset 4990 wanted 20 bytes, got 10"):
        LocalReader(root).read("y.bin", 4990, 20)
    with pytest.raises(FetchError, match="negative offset"):
        LocalReader(root).read("y.bin", -1, 2)


@pytest.mark.parametrize("path", ["nope.bin", "a", "y.bin/z"])
def test_a_missing_file_names_root_and_path(root: Path, path: str) -> None:
    for call in (LocalReader(root).stat, lambda name: LocalReader(root).read(name, 0, 1)):
        with pytest.raises(MissingFileError) as caught:
            call(path)
        assert str(root) in str(caught.value)
        assert path in str(caught.value)


def test_a_named_pipe_is_no_file_and_does_not_block(root: Path) -> None:
    os.mkfifo(root / "pipe")
    with pytest.raises(MissingFileError):
        LocalReader(root).read("pipe", 0, 1)


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../y.bin", "a/../../y.bin", "a/..", "a\0b"])
def test_paths_that_leave_the_root_are_refused(root: Path, path: str) -> None:
    for call in (LocalReader(root).stat, lambda name: LocalReader(root).read(name, 0, 1)):
        with pytest.raises(FetchError, match="relative path"):
            call(path)


def test_links_are_followed_as_the_hubs_cache_needs(
    root: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    blob = tmp_path_factory.mktemp("blobs") / "blob"
    blob.write_bytes(b"hello")
    (root / "link.mp4").symlink_to(blob)
    assert LocalReader(root).read("link.mp4", 1, 3) == b"ell"


def test_descriptors_are_bounded_and_given_back(tmp_path: Path) -> None:
    for i in range(40):
        (tmp_path / f"{i}").write_bytes(bytes([i]) * 10)
    reader = LocalReader(tmp_path, max_open_files=8)
    for i in range(40):
        assert reader.read(f"{i}", 3, 4) == bytes([i]) * 4
        assert open_files(tmp_path) <= 8
    reader.close()
    assert open_files(tmp_path) == 0
    assert reader.read("3", 0, 1) == b"\3"
    del reader
    assert open_files(tmp_path) == 0
    with pytest.raises(ValueError, match="max_open_files is 0"):
        LocalReader(tmp_path, max_open_files=0)


def test_many_threads_never_read_from_a_closed_or_reused_descriptor(tmp_path: Path) -> None:
    for i in range(12):
        (tmp_path / f"{i}").write_bytes(bytes([i]) * 5000)
    reader = LocalReader(tmp_path, max_open_files=2)
    faults: list[object] = []

    def work(seed: int) -> None:
        draw = random.Random(seed)
        try:
            for step in range(400):
                i = draw.randrange(12)
                if reader.read(f"{i}", draw.randrange(1000), 2000) != bytes([i]) * 2000:
                    faults.append(i)
                if step % 50 == 0:
                    reader.close()
        except BaseException as error:  # noqa: BLE001 - whatever it is, the test must show it
            faults.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert open_files(tmp_path) <= 2


def test_a_reader_pickles_without_descriptors(root: Path) -> None:
    reader = LocalReader(root, max_open_files=3)
    reader.read("y.bin", 0, 1)
    copy = pickle.loads(pickle.dumps(reader))
    assert copy.root == reader.root
    assert copy.read("y.bin", 0, 5) == b"y.bin"


def _child(reader: LocalReader, result: multiprocessing.Queue[bytes]) -> None:
    result.put(reader.read("y.bin", 0, 5))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_reads_even_if_the_lock_was_held(root: Path) -> None:
    reader = LocalReader(root)
    reader.read("y.bin", 0, 1)
    context = multiprocessing.get_context("fork")
    result: multiprocessing.Queue[bytes] = context.Queue()
    with reader._lock:
        child = context.Process(target=_child, args=(reader, result))
        child.start()
    try:
        assert result.get(timeout=20) == b"y.bin"
    finally:
        child.kill()
        child.join()
