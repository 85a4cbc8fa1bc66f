from __future__ import annotations

import multiprocessing
import os
import pickle
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lerobot_streaming.errors import SidecarError, SidecarLockTimeoutError
from lerobot_streaming.index import Sidecar, SourceFile, open_sidecar
from lerobot_streaming.index import mapped as mapped_module
from lerobot_streaming.index.generations import index_path
from lerobot_streaming.index.lock import sidecar_lock
from lerobot_streaming.index.mapped import MappedIndex, open_mapped
from tests.index.mapped_cases import (
    IDENTITY,
    Peer,
    check_equal,
    debris,
    indexes,
    opened,
    real_sources,
    renamed,
    write,
)
from tests.index.random_tables import assert_equal, make_source, source_files
from tests.index.videos import EDITED, LIBAV_FORMS, encode, index, video

if TYPE_CHECKING:
    from lerobot_streaming.index.sample_index import SampleIndex


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path, real_sources())


@pytest.fixture
def mapped(path: Path, tmp_path: Path) -> MappedIndex:
    return opened(path, tmp_path)


def test_both_indexes_are_sample_indexes(path: Path, mapped: MappedIndex) -> None:
    several: list[SampleIndex] = [open_sidecar(path), mapped]
    assert several[0].files == several[1].files


def test_it_holds_what_the_sidecar_holds(tmp_path: Path) -> None:
    names = sorted([*LIBAV_FORMS, *EDITED])
    path = write(tmp_path, [index(EDITED[n]() if n in EDITED else video(n), n) for n in names])
    mapped = opened(path, tmp_path)
    check_equal(mapped, open_sidecar(path))
    assert mapped.identity == IDENTITY
    (place,) = indexes(tmp_path)
    assert mapped.path == place
    assert place.parent.name == path.parent.name
    assert re.fullmatch(rf"{path.stem}-[0-9a-f]{{16}}\.idx", place.name)
    assert mapped.num_samples == sum(mapped.source(name).samples.num_samples for name in names)
    assert debris(tmp_path) == []
    with pytest.raises(SidecarError, match=r"nope\.mp4"):
        mapped.source("nope.mp4")


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(source_files(max_samples=60), max_size=5))
def test_it_holds_any_tables(tmp_path: Path, sources: list[SourceFile]) -> None:
    path = write(tmp_path, [renamed(source, f"{i}.mp4") for i, source in enumerate(sources)])
    mapped = opened(path, tmp_path)
    check_equal(mapped, open_sidecar(path))
    # Derived for every content anew, and the one before it is no longer in use.
    assert indexes(tmp_path) == [mapped.path]


def test_it_is_derived_once_and_then_opened(path: Path, tmp_path: Path, mapped: MappedIndex) -> None:
    before = mapped.path.stat()
    os.utime(path)  # Content counts, not times.
    again = opened(path, tmp_path)
    assert (again.path, again.path.stat()) == (mapped.path, before)


def test_a_real_av1_file_takes_less_than_8_bytes_a_frame(tmp_path: Path) -> None:
    data = encode("libsvtav1", frames=300, options={"g": "2", "preset": "12", "svtav1-params": "lp=1"})
    source = index(data)
    assert source.samples.sync_samples[:].tolist() == list(range(0, 300, 2))
    mapped = opened(write(tmp_path, [source]), tmp_path)
    assert_equal(mapped.source(source.path), source)
    content = mapped._content
    assert content is not None
    columns = int(content.records["data_size"].sum()) / 300
    whole = mapped.path.stat().st_size / 300
    print(f"{columns:.2f} bytes a frame in columns, {whole:.2f} with all headers")
    assert columns < 4
    assert whole < 8


def test_views_are_read_only_and_tables_are_kept(mapped: MappedIndex) -> None:
    source = mapped.source("videos/c.mp4")
    assert mapped.source("videos/c.mp4") is source
    assert source.description_index is not None
    with pytest.raises(ValueError, match="read-only"):
        source.description_index[0] = 5


def test_tables_outlive_the_closed_index(mapped: MappedIndex, path: Path) -> None:
    source = mapped.source("videos/b.mp4")
    wanted = open_sidecar(path).source("videos/b.mp4")
    mapped.close()
    mapped.close()
    assert_equal(source, wanted)
    for use in (lambda: mapped.source("videos/b.mp4"), lambda: mapped.header("videos/b.mp4")):
        with pytest.raises(SidecarError, match="closed"):
            use()


def test_threads_share_it(mapped: MappedIndex) -> None:
    found: list[SourceFile] = []

    def work() -> None:
        found.extend(mapped.source(name) for name in mapped.files)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(source) for source in found}) == 4


_UNPICKLE = """
import pickle
mapped = pickle.loads(bytes.fromhex(hear()))
say(mapped.source("videos/b.mp4").samples.sizes[:].sum())
"""


def test_it_pickles_as_a_path(path: Path, tmp_path: Path, mapped: MappedIndex) -> None:
    mapped.source("videos/b.mp4")
    pickled = pickle.dumps(mapped)
    assert len(pickled) < 1000
    before = mapped.path.stat()
    path.unlink()  # Whoever has the file does not need the sidecar.
    copy = pickle.loads(pickled)
    assert copy.path.stat() == before
    assert_equal(copy.source("videos/b.mp4"), mapped.source("videos/b.mp4"))
    with Peer(_UNPICKLE) as peer:
        peer.tell(pickled.hex())
        assert int(peer.hear()) == mapped.source("videos/b.mp4").samples.sizes[:].sum()
    assert indexes(tmp_path) == [mapped.path]


def test_it_is_derived_again_when_it_is_gone_before_it_is_unpickled(
    path: Path, tmp_path: Path, mapped: MappedIndex
) -> None:
    pickled = pickle.dumps(mapped)
    mapped.path.unlink()
    check_equal(pickle.loads(pickled), open_sidecar(path))
    mapped.path.unlink()
    write(tmp_path, real_sources()[:2])
    with pytest.raises(SidecarError, match="another content"):
        pickle.loads(pickled)
    path.unlink()
    with pytest.raises(SidecarError, match="cannot open sidecar"):
        pickle.loads(pickled)


def test_relative_paths_are_resolved_before_they_travel(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pickled = pickle.dumps(opened(path.relative_to(tmp_path), Path()))
    monkeypatch.chdir("/")
    check_equal(pickle.loads(pickled), open_sidecar(path))


def _child(mapped: MappedIndex, queue: Any) -> None:
    queue.put(mapped.source("videos/b.mp4").samples.sizes[:].tolist())


def test_forked_children_use_it(mapped: MappedIndex) -> None:
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=_child, args=(mapped, queue))
    process.start()
    assert queue.get() == mapped.source("videos/b.mp4").samples.sizes[:].tolist()
    process.join()
    assert process.exitcode == 0


def test_a_damaged_sidecar_is_refused_and_leaves_nothing(path: Path, tmp_path: Path) -> None:
    with np.load(path) as archive:
        arrays: dict[str, Any] = dict(archive)
    arrays["2/sample_sizes"] = np.full(30, 1 << 62)
    np.savez_compressed(path, **arrays)
    with pytest.raises(SidecarError, match="beyond the end"):
        opened(path, tmp_path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(SidecarError, match="not an NPZ archive"):
        opened(path, tmp_path)
    path.unlink()
    with pytest.raises(SidecarError, match="cannot open sidecar"):
        opened(path, tmp_path)
    assert indexes(tmp_path) == []
    assert debris(tmp_path) == []


def test_a_directory_that_cannot_be_written_is_an_oserror(path: Path, tmp_path: Path) -> None:
    (tmp_path / "streaming-indexes").write_text("a file where the directory should be")
    with pytest.raises(OSError, match="streaming-indexes"):
        opened(path, tmp_path)


def test_missing_file_locks_are_an_oserror(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(lock: Path, timeout_s: float) -> Any:
        raise NotImplementedError(lock, timeout_s)

    monkeypatch.setattr(mapped_module, "sidecar_lock", refuse)
    with pytest.raises(OSError, match="no file locks"):
        opened(path, tmp_path)


def test_the_lock_is_waited_for_no_longer_than_told(path: Path, tmp_path: Path) -> None:
    place = index_path(path, tmp_path, "0" * 16)
    place.parent.mkdir(parents=True)
    with (
        sidecar_lock(place.with_name(f"{path.stem}.idx"), 1),
        pytest.raises(SidecarLockTimeoutError, match=str(os.getpid())),
    ):
        open_mapped(path, tmp_path, lock_timeout_s=0.2)


def test_a_sidecar_replaced_while_it_is_read_is_read_again(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replacements = iter([real_sources()[:3], real_sources()[:1]])

    def open_and_replace(sidecar: Path) -> Sidecar:
        found = open_sidecar(sidecar)
        if (sources := next(replacements, None)) is not None:
            write(tmp_path, sources)
        return found

    monkeypatch.setattr(mapped_module, "open_sidecar", open_and_replace)
    found = opened(path, tmp_path)
    assert list(found.files) == ["videos/a.mp4"]
    replacements = iter([real_sources()[:k] for k in (2, 3, 4, 2)])
    write(tmp_path, [])
    with pytest.raises(SidecarError, match="replaced 3 times"):
        opened(path, tmp_path)


def test_an_empty_sidecar_and_text_that_is_no_unicode(tmp_path: Path) -> None:
    assert opened(write(tmp_path, []), tmp_path).files == {}
    path = write(tmp_path, [renamed(make_source(1, 5), "a\udcff.mp4")])
    check_equal(opened(path, tmp_path), open_sidecar(path))


@pytest.mark.slow
def test_a_sidecar_with_more_members_than_plain_zip_can_count(tmp_path: Path) -> None:
    small = make_source(1, 2)
    path = write(tmp_path, (renamed(small, f"{i:06}.mp4") for i in range(11_000)))
    mapped = opened(path, tmp_path)
    assert len(mapped.files) == 11_000
    assert_equal(mapped.source("010999.mp4"), renamed(small, "010999.mp4"))
    assert opened(path, tmp_path).path == mapped.path
