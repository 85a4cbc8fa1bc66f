from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import pickle
import re
import signal
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
from lerobot_streaming.index import mapped_layout as layout
from lerobot_streaming.index.generations import index_path
from lerobot_streaming.index.lock import sidecar_lock
from lerobot_streaming.index.mapped import MappedIndex, open_mapped
from lerobot_streaming.index.mapped_columns import _dense
from tests.index.mapped_cases import (
    IDENTITY,
    Peer,
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


def check_equal(found: SampleIndex, wanted: Sidecar) -> None:
    assert dict(found.files) == dict(wanted.files)
    assert list(found.files) == list(wanted.files)
    for path in wanted.files:
        assert found.header(path) == wanted.header(path)
        assert_equal(found.source(path), wanted.source(path))


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


# Damaged index files.


def _flip(data: bytearray, places: list[int], value: int) -> None:
    for place in places:
        data[place % len(data)] ^= value


def _use(path: Path, home: Path, wanted: Sidecar) -> None:
    """Opens and reads everything: either it is right, or the error is ours and the next opening heals it."""
    try:
        check_equal(opened(path, home), wanted)
    except SidecarError as error:
        assert "checksum" in str(error)  # noqa: PT017 - the alternative is a right result
        check_equal(opened(path, home), wanted)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.integers(0, 1 << 30), min_size=1, max_size=3), st.integers(1, 255))
def test_flipped_bits_are_noticed(path: Path, tmp_path: Path, places: list[int], value: int) -> None:
    mapped = opened(path, tmp_path)
    data = bytearray(mapped.path.read_bytes())
    _flip(data, places, value)
    mapped.path.unlink()
    mapped.path.write_bytes(data)
    _use(path, tmp_path, open_sidecar(path))


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 1 << 30), st.binary(max_size=50))
def test_truncated_and_extended_files_are_noticed(path: Path, tmp_path: Path, cut: int, tail: bytes) -> None:
    mapped = opened(path, tmp_path)
    data = mapped.path.read_bytes()
    mapped.path.unlink()
    mapped.path.write_bytes(data[: cut % len(data)] + tail)
    _use(path, tmp_path, open_sidecar(path))


def test_every_cut_is_noticed(path: Path, tmp_path: Path) -> None:
    mapped = opened(path, tmp_path)
    data = mapped.path.read_bytes()
    for size in range(0, len(data), 97):
        with pytest.raises(SidecarError):
            layout.read_directory(memoryview(data[:size]))


_NUMBERS = [0, 1, 7, 8, 255, (1 << 31) - 1, 1 << 32, (1 << 63) - 8, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_a_hostile_directory_reads_nothing_outside_the_file(
    path: Path, tmp_path: Path, data: st.DataObject
) -> None:
    """Checksums are made right again, so that only the checks of places and lengths stand in the way."""
    content = bytearray(opened(path, tmp_path).path.read_bytes())
    end = layout.HEADER.itemsize + 4 * layout.RECORD.itemsize
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, end - 8))
        width = data.draw(st.sampled_from([1, 4, 8]))
        place -= place % width
        number = data.draw(st.sampled_from(_NUMBERS)) % (1 << 8 * width)
        content[place : place + width] = number.to_bytes(width, "little")
    size = min(int.from_bytes(content[24:32], "little"), len(content))
    content[12:16] = layout.directory_checksum(bytes(content[:size])).to_bytes(4, "little")
    try:
        header, records = layout.read_directory(memoryview(content))
    except SidecarError:
        return
    # Whatever passed the checks can be read without a fault, right or wrong.
    part = mapped_module._Content(memoryview(content), header, records)
    part.text(header["identity"].item())
    for record in map(layout.fields_of, records):
        for name in layout.TEXTS:
            place, size = record[name]
            assert len(part.text((place, size))) == size
        start, length = record["data_place"], record["data_size"]
        view = np.frombuffer(content, np.uint8)[start : start + length]
        assert len(view) == length
        for name in layout.COLUMNS:
            column = _dense(record, view, name)
            assert column is None or len(column) == record[name][2]


def test_a_damaged_file_is_reported_and_derived_anew(
    path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = opened(path, tmp_path).path
    for content in (b"", b"garbage", bytes(5000), layout.MAGIC + bytes(5000)):
        place.unlink()
        place.write_bytes(content)
        with caplog.at_level(logging.INFO, "lerobot_streaming"):
            check_equal(opened(path, tmp_path), open_sidecar(path))
        assert "derived anew" in caplog.text
        caplog.clear()


# Processes.

_DERIVE = """
hear()
mapped = open_mapped(Path(sys.argv[1]), Path(sys.argv[2]), lock_timeout_s=60)
total = sum(int(mapped.source(path).samples.sizes[:].sum()) for path in mapped.files)
say(mapped.path, mapped.path.stat().st_ino, total)
hear()
"""


def test_processes_that_derive_at_once_get_the_same_file(tmp_path: Path) -> None:
    path = write(tmp_path, [renamed(make_source(i, 3000), f"{i:03}.mp4") for i in range(60)])
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(Peer(_DERIVE, path, tmp_path)) for _ in range(3)]
        for peer in peers:
            peer.tell()
        answers = {peer.hear() for peer in peers}
    assert len(answers) == 1
    assert answers != {""}
    assert debris(tmp_path) == []
    check_equal(opened(path, tmp_path), open_sidecar(path))


_DIE = """
import os, signal
from lerobot_streaming.index import derive
encode, done = derive.encode_columns, []
def dying(record, source):
    if len(done) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    done.append(source.path)
    return encode(record, source)
derive.encode_columns = dying
open_mapped(Path(sys.argv[1]), Path(sys.argv[2]), lock_timeout_s=60)
"""


def test_a_killed_derivation_harms_nothing(path: Path, tmp_path: Path) -> None:
    with Peer(_DIE, path, tmp_path) as peer:
        assert peer.process.wait() == -signal.SIGKILL
    assert indexes(tmp_path) == []
    assert len(debris(tmp_path)) == 1
    check_equal(opened(path, tmp_path), open_sidecar(path))
    assert debris(tmp_path) == []


_SHARE = """
mapped = open_mapped(Path(sys.argv[1]), Path(sys.argv[2]), lock_timeout_s=60)
for path in mapped.files:
    mapped.source(path).samples.offsets[:]
say("ready")
hear()
pss, inside = 0, False
for row in open("/proc/self/smaps"):
    words = row.split()
    if "-" in words[0]:
        inside = words[-1] == str(mapped.path)
    elif inside and words[0] == "Pss:":
        pss += int(words[1])
say(pss)
hear()
"""


def test_processes_share_its_pages(tmp_path: Path) -> None:
    path = write(tmp_path, [renamed(make_source(i, 20_000), f"{i:03}.mp4") for i in range(20)])
    size_kib = opened(path, tmp_path).path.stat().st_size / 1024
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(Peer(_SHARE, path, tmp_path)) for _ in range(4)]
        assert [peer.hear() for peer in peers] == ["ready"] * 4
        for peer in peers:
            peer.tell()
        pss = [int(peer.hear()) for peer in peers]
    print(f"PSS of the mapping in 4 processes: {pss} KiB; the file has {size_kib:.0f} KiB")
    assert sum(pss) < 1.3 * size_kib
    assert max(pss) < 0.35 * size_kib
    assert min(pss) > 0.15 * size_kib


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
