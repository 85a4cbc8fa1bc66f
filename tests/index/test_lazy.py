"""An index that is made bit by bit, and its completion."""

from __future__ import annotations

import dataclasses
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from lerobot_streaming.errors import BadVideoFilesError, FetchError, SidecarError
from lerobot_streaming.index import open_sidecar
from lerobot_streaming.index.partial import PartialIndex
from lerobot_streaming.index.parts import PartStore
from lerobot_streaming.index.resolve import complete_later, make_sidecar, resolve_index
from lerobot_streaming.storage.local import LocalReader
from tests.index.test_resolve import Counting, Data, Published

LAZY: dict[str, Any] = {"lazy_above": 0}


@pytest.fixture
def data(tmp_path: Path) -> Data:
    found = Data(tmp_path, count=9)
    found.reader = Counting(found.reader)  # type: ignore[assignment]
    return found


def reads(data: Data) -> int:
    assert isinstance(data.reader, Counting)
    return data.reader.reads


def partial(data: Data, **options: Any) -> PartialIndex:
    index = data.resolve(**LAZY, **options)
    assert isinstance(index, PartialIndex)
    return index


def test_only_the_files_that_are_asked_for_are_read(data: Data) -> None:
    index = partial(data)
    assert reads(data) == 0
    assert not index.knows("videos/4.mp4")
    assert index.source("videos/4.mp4").samples.num_samples == 30
    read = reads(data)
    assert read in {1, 2}
    assert index.knows("videos/4.mp4")
    assert index.header("videos/4.mp4").codec == "avc1"
    assert reads(data) == read
    assert not data.path.exists()


def test_needed_files_are_indexed_at_once_when_they_are_few(data: Data) -> None:
    needed = {path: data.files[path] for path in ("videos/1.mp4", "videos/7.mp4")}
    index = data.resolve(lazy_above=2, needed=needed)
    assert [path for path in data.files if index.knows(path)] == list(needed)


def test_bad_files_matter_only_to_those_who_need_them(data: Data) -> None:
    (data.root / "videos/2.mp4").write_bytes(b"\0" * data.files["videos/2.mp4"])
    good = {path: size for path, size in data.files.items() if path != "videos/2.mp4"}
    for options in ({"lazy_above": 100}, {"lazy_above": 8}):
        index = data.resolve(needed=good, **options)
        assert index.source("videos/3.mp4").samples.num_samples == 30
        with pytest.raises(BadVideoFilesError, match=r"videos/2\.mp4"):
            data.resolve(**{**options, "lazy_above": 100})
    with pytest.raises(BadVideoFilesError, match=r"'videos/2\.mp4' below .* cannot be indexed: .*Restore it"):
        partial(data).source("videos/2.mp4")


def test_a_failed_read_may_be_tried_again(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    index = partial(data)

    def fail(*_: object) -> None:
        raise FetchError("no route")

    with monkeypatch.context() as patch:
        patch.setattr(Counting, "read_into", fail)
        with pytest.raises(FetchError, match="no route"):
            index.source("videos/0.mp4")
    assert index.source("videos/0.mp4").samples.num_samples == 30
    with pytest.raises(SidecarError, match="not among the 9 video files"):
        index.source("videos/none.mp4")


def test_threads_that_ask_for_one_file_read_it_once(data: Data) -> None:
    data.reader.delay_s = 0.2  # type: ignore[attr-defined]
    index = partial(data)
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(index.source("videos/1.mp4"))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    assert len(set(map(id, found))) == 1
    assert reads(data) in {1, 2}


def test_files_are_indexed_ahead_in_the_given_order(data: Data) -> None:
    data.reader.delay_s = 0.05  # type: ignore[attr-defined]
    index = partial(data, workers=1)
    order = [f"videos/{number}.mp4" for number in (5, 3, 8)]
    index.load_ahead(order)
    seen: list[str] = []
    deadline = time.monotonic() + 30
    while len(seen) < 3 and time.monotonic() < deadline:
        seen += [path for path in data.files if index.knows(path) and path not in seen]
        time.sleep(0.005)
    assert seen == order
    index.load_ahead(data.files)
    index.close()
    time.sleep(0.3)
    before = reads(data)
    time.sleep(0.3)
    assert reads(data) == before, "after close no further file is begun"


def test_another_process_and_the_next_run_read_nothing_twice(data: Data) -> None:
    index = partial(data)
    index.source("videos/0.mp4")
    index.source("videos/1.mp4")
    read = reads(data)
    index._reader = LocalReader(data.root)  # The counting one holds a lock, which does not pickle.
    copy = pickle.loads(pickle.dumps(index))
    copy._parser._reader = LocalReader(data.root / "nowhere")
    assert not copy.knows("videos/0.mp4"), "tables do not travel in the pickle"
    assert copy.source("videos/0.mp4").samples.num_samples == 30
    again = partial(data)
    again.source("videos/1.mp4")
    assert reads(data) == read


def test_the_completion_reads_only_what_is_not_known(data: Data, tmp_path: Path) -> None:
    index = partial(data)
    known = [f"videos/{number}.mp4" for number in range(4)]
    for path in known:
        index.source(path)
    rest = Counting(LocalReader(data.root))
    wanted: list[str] = []

    class Watching(Counting):
        def read_into(self, path: str, offset: int, view: memoryview) -> None:
            wanted.append(path)
            super().read_into(path, offset, view)

    data.reader = Watching(rest)  # type: ignore[assignment]
    request = data.request(**LAZY)
    completion = complete_later(index, request)
    assert completion is not None
    assert completion.join(60)
    assert set(wanted) == data.files.keys() - set(known)
    complete = open_sidecar(data.path, data.identity, data.files)
    complete.validate()
    assert not list(data.path.parent.glob(".*parts")), "the parts have done their duty"
    whole = data.request()
    make_sidecar(whole, output=tmp_path / "at_once.npz")
    assert (tmp_path / "at_once.npz").read_bytes() == data.path.read_bytes()
    # A process that opened the index before goes on from the complete one.
    before = len(wanted)
    assert index.source("videos/8.mp4").samples.num_samples == 30
    assert len(wanted) == before
    assert complete_later(resolve_index(request), request) is None


def test_a_stopped_completion_leaves_parts_for_the_next(data: Data) -> None:
    data.reader.delay_s = 0.1  # type: ignore[attr-defined]
    index = partial(data, workers=1)
    completion = complete_later(index, data.request(**LAZY, workers=1))
    assert completion is not None
    time.sleep(0.45)
    completion.stop()
    assert completion.join(10)
    assert not data.path.exists()
    assert data.left_over() == []
    read = reads(data)
    assert 0 < read < 14
    make_sidecar(data.request())
    total = reads(data)
    make_sidecar(data.request())
    assert total - read < reads(data) - total, "what was known was not read again"


def test_one_completion_runs_on_a_machine(data: Data) -> None:
    index = partial(data)
    data.reader.delay_s = 0.1  # type: ignore[attr-defined]
    first, second = (complete_later(index, data.request(**LAZY)) for _ in range(2))
    assert first is not None
    assert second is not None
    assert first.join(60)
    assert second.join(60)
    assert reads(data) <= 18


def test_a_completion_that_fails_says_so_and_harms_nothing(
    data: Data, caplog: pytest.LogCaptureFixture
) -> None:
    (data.root / "videos/2.mp4").write_bytes(b"\0" * data.files["videos/2.mp4"])
    completion = complete_later(partial(data), data.request(**LAZY))
    assert completion is not None
    assert completion.join(60)
    assert "stays incomplete" in caplog.text
    assert "videos/2.mp4" in caplog.text
    assert not data.path.exists()


def test_damaged_and_foreign_parts_are_read_anew(data: Data) -> None:
    index = partial(data)
    index.source("videos/0.mp4")
    (part,) = data.path.parent.glob(".*parts/*.npz")
    content = part.read_bytes()
    for damaged in (b"", content[:-30], content[:200] + b"x" + content[201:]):
        part.write_bytes(damaged)
        before = reads(data)
        assert partial(data).source("videos/0.mp4").samples.num_samples == 30
        assert reads(data) > before


def test_without_a_cache_tables_live_in_memory_only(data: Data) -> None:
    index = partial(data, use_cache=False)
    index.source("videos/0.mp4")
    index._reader = LocalReader(data.root)
    assert pickle.loads(pickle.dumps(index)).knows("videos/0.mp4")
    assert not data.home.exists()
    assert complete_later(index, data.request(**LAZY, use_cache=False)) is None


def test_opening_does_not_wait_for_a_completion_that_runs(data: Data) -> None:
    data.reader.delay_s = 0.3  # type: ignore[attr-defined]
    published = Published("owner/name", is_bucket=False)
    request = data.request(**LAZY, published=published, workers=1)
    index = resolve_index(request)
    completion = complete_later(index, request)
    assert completion is not None
    begin = time.monotonic()
    assert isinstance(resolve_index(request), PartialIndex)
    assert time.monotonic() - begin < 1.0 < 9 * 0.3, "it waited for the build"
    assert not data.path.exists()
    assert completion.join(60)
    assert not isinstance(resolve_index(request), PartialIndex)


def test_files_are_indexed_only_so_far_ahead(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lerobot_streaming.index.partial._MAX_AHEAD", 3)
    index = partial(data, workers=1)
    paths = list(data.files)
    index.load_ahead(paths)
    for asked in range(4):
        deadline = time.monotonic() + 10
        while not index.knows(paths[asked + 2]) and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(0.1)
        assert [path for path in paths if index.knows(path)] == paths[: asked + 3]
        index.source(paths[asked])


def test_tables_that_the_part_store_has_are_forgotten(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lerobot_streaming.index.partial._MAX_TABLES", 2)
    index = partial(data)
    for path in data.files:
        index.source(path)
    assert sum(map(index.knows, data.files)) == 2
    read = reads(data)
    assert index.source("videos/0.mp4").samples.num_samples == 30
    assert reads(data) == read


def test_a_file_that_is_replaced_meanwhile_leaves_no_part(data: Data) -> None:
    prints = {path: stat.fingerprint or "" for path, stat in data.reader.stat_many(data.files).items()}
    data.identity = dataclasses.replace(data.identity, source_fingerprints=prints)
    data.path = data.identity.cache_path(data.home)
    index = partial(data)
    os.utime(data.root / "videos/0.mp4", ns=(0, 1))
    index.source("videos/0.mp4")
    index.source("videos/1.mp4")
    assert len(list(data.path.parent.glob(".*parts/*.npz"))) == 1


def test_what_was_left_too_late_is_removed(data: Data) -> None:
    data.resolve()
    PartStore(data.path, data.identity).create()
    data.resolve()
    assert not list(data.path.parent.glob(".*parts"))


def test_a_bad_file_found_by_a_worker_reaches_the_training_process_as_itself() -> None:
    error = BadVideoFilesError("the list", ("a.mp4",))
    # This is how PyTorch raises a worker's error again.
    assert str(type(error)(str(error))) == "the list"
    assert pickle.loads(pickle.dumps(error)).paths == ("a.mp4",)


def test_a_forked_child_can_index(data: Data) -> None:
    index = partial(data)
    index.load_ahead(data.files)
    child = os.fork()
    if child == 0:
        good = index.source("videos/6.mp4").samples.num_samples == 30
        os._exit(0 if good else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_parts_of_a_directory_that_is_gone_are_no_error(data: Data) -> None:
    store = PartStore(data.path, data.identity)
    index = PartialIndex(data.identity, data.files, data.reader, parts=store)
    assert index.source("videos/0.mp4").samples.num_samples == 30
    assert not data.home.exists()


_PROGRAM = """
import pathlib, sys, time
from lerobot_streaming.index import IndexRequest, SidecarIdentity
from lerobot_streaming.index.lock import sidecar_lock
from lerobot_streaming.index.resolve import make_sidecar, resolve_index
from lerobot_streaming.storage.local import LocalReader
folder = pathlib.Path({folder!r})
reader = LocalReader(folder / "data")
files = {{p.relative_to(folder / "data").as_posix(): p.stat().st_size for p in folder.glob("data/videos/*")}}
identity = SidecarIdentity("owner/name", "main", reader.root)
request = IndexRequest(identity, files, reader, lerobot_home=folder / "home", lock_timeout_s=60, lazy_above=0)
print("start", flush=True)
while True:
    resolve_index(request)
    with sidecar_lock(request.path, 60):
        make_sidecar(request)
"""


@pytest.mark.slow
def test_a_builder_killed_at_any_instant_harms_nothing(tmp_path: Path) -> None:
    data = Data(tmp_path, count=30)
    source = str(Path(__file__).parents[2] / "src")
    for attempt in range(20):
        builder = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM.format(folder=str(tmp_path))],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": source},
        )
        assert builder.stdout is not None
        assert builder.stdout.readline() == b"start\n"
        time.sleep(0.017 * attempt)
        builder.send_signal(signal.SIGKILL)
        builder.communicate()
        if data.path.exists():
            open_sidecar(data.path, data.identity, data.files).validate()
    make_sidecar(data.request())
    open_sidecar(data.path, data.identity, data.files).validate()
    assert data.left_over() == []
    assert not list(data.path.parent.glob(".*parts"))


_SLOW_STORE = """
import pathlib, sys, time
from lerobot_streaming.index import IndexRequest, SidecarIdentity
from lerobot_streaming.index.resolve import complete_later, resolve_index
from lerobot_streaming.storage.local import LocalReader
def slow(self, path, offset, view):
    time.sleep(60)
LocalReader.read_into = slow
folder = pathlib.Path({folder!r})
reader = LocalReader(folder / "data")
files = {{p.relative_to(folder / "data").as_posix(): p.stat().st_size for p in folder.glob("data/videos/*")}}
identity = SidecarIdentity("owner/name", "main", reader.root)
request = IndexRequest(identity, files, reader, lerobot_home=folder / "home", lock_timeout_s=60, lazy_above=0)
index = resolve_index(request)
kept = complete_later(index, request)
index.load_ahead(files)
time.sleep(0.5)
print("the end", flush=True)
"""


def test_a_process_does_not_wait_for_a_store_that_is_away(tmp_path: Path) -> None:
    Data(tmp_path)
    begin = time.monotonic()
    program = [sys.executable, "-c", _SLOW_STORE.format(folder=str(tmp_path))]
    done = subprocess.run(program, capture_output=True, text=True, timeout=50, check=True)
    assert done.stdout == "the end\n"
    assert done.stderr == ""
    assert time.monotonic() - begin < 45


_ENDLESS_COMPLETION = """
from lerobot_streaming.errors import PipelineClosedError
from lerobot_streaming.index.completion import Completion
def build(stopped):
    stopped.wait(60)
    print("stopped", flush=True)
    raise PipelineClosedError("the end")
kept = Completion(build)
"""


def test_a_completion_ends_with_its_process() -> None:
    program = [sys.executable, "-c", _ENDLESS_COMPLETION]
    done = subprocess.run(program, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "stopped\n"
    assert done.stderr == ""
