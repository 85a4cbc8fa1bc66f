from __future__ import annotations

import errno
import fcntl
import os
import shutil
import time
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lerobot_streaming.errors import SidecarError
from lerobot_streaming.index import SidecarIdentity, generations, open_sidecar
from lerobot_streaming.index.generations import content_key, index_path, open_shared
from tests.index.mapped_cases import IDENTITY, Peer, debris, indexes, opened, real_sources, write
from tests.index.random_tables import assert_equal

if TYPE_CHECKING:
    from collections.abc import Callable

OTHER = SidecarIdentity(IDENTITY.repo_id, "v2", "/data")


def archive(path: Path, members: dict[str, bytes], comment: bytes = b"") -> str:
    with zipfile.ZipFile(path, "w") as file:
        file.comment = comment
        for name, content in members.items():
            file.writestr(zipfile.ZipInfo(name), content)
    return content_key(path)


def test_the_key_follows_the_content(tmp_path: Path) -> None:
    keys = [
        archive(tmp_path / "a.npz", {"0": b"abc", "1": b"def"}),
        archive(tmp_path / "b.npz", {"0": b"abc", "1": b"deg"}),
        archive(tmp_path / "c.npz", {"0": b"abcd", "1": b"def"}),
        archive(tmp_path / "d.npz", {"0": b"abc", "2": b"def"}),
        archive(tmp_path / "e.npz", {}),
        archive(tmp_path / "f.npz", {"0": b"abc"}, b"a comment"),
        archive(tmp_path / "g.npz", {"0": b"abd"}, b"a comment"),
    ]
    assert len(set(keys)) == len(keys)
    assert all(len(key) == 16 and int(key, 16) >= 0 for key in keys)
    shutil.copy(tmp_path / "a.npz", tmp_path / "other name.npz")
    assert content_key(tmp_path / "other name.npz") == keys[0]


def test_the_key_of_an_archive_with_more_members_than_plain_zip_can_count(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    key = archive(path, {str(i): b"" for i in range(65_537)})
    content = bytearray(path.read_bytes())
    # What the old fields say does not matter then; the very front of the directory does.
    content[-22 + 12 : -22 + 16] = b"\xff\xff\xff\xff"
    path.write_bytes(content)
    front = content.index(b"PK\x01\x02")
    changed, key = key, content_key(path)
    assert changed != key
    content[front + 16] ^= 1  # A CRC-32.
    path.write_bytes(content)
    assert content_key(path) != key


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK\x05\x06",
        bytes(100),
        b"PK\x05\x06" + bytes(8) + b"\xff\xff\xff\x7f" + bytes(6),
        b"PK\x06\x06" + bytes(36) + b"\xff" * 16 + b"PK\x06\x07" + bytes(16) + b"PK\x05\x06" + bytes(18),
    ],
)
def test_what_is_no_archive_has_no_key(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "s.npz").write_bytes(content)
    with pytest.raises(SidecarError, match=r"s\.npz"):
        content_key(tmp_path / "s.npz")


def test_a_new_generation_replaces_the_old_one(tmp_path: Path) -> None:
    first = opened(write(tmp_path, real_sources()), tmp_path)
    place = first.path
    first.close()
    second = opened(write(tmp_path, real_sources()[:2]), tmp_path)
    assert indexes(tmp_path) == [second.path]
    assert second.path != place
    assert debris(tmp_path) == []


def test_tables_that_are_still_used_keep_their_generation(tmp_path: Path) -> None:
    path = write(tmp_path, real_sources())
    first = opened(path, tmp_path)
    place, source, wanted = first.path, first.source("videos/b.mp4"), open_sidecar(path)
    first.close()
    second = opened(write(tmp_path, real_sources()[:2]), tmp_path)
    assert indexes(tmp_path) == sorted([place, second.path])
    assert_equal(source, wanted.source("videos/b.mp4"))
    del source, first
    second.close()
    third = opened(write(tmp_path, real_sources()[:3]), tmp_path)
    assert indexes(tmp_path) == [third.path]


_READ = """
mapped = open_mapped(Path(sys.argv[1]), Path(sys.argv[2]), lock_timeout_s=60)
say(mapped.path)
while hear() == "sum":
    say(sum(int(mapped.source(path).samples.sizes[:].sum()) for path in mapped.files))
"""


def test_a_reader_in_another_process_keeps_its_generation(tmp_path: Path) -> None:
    path = write(tmp_path, real_sources())
    total = sum(int(source.samples.sizes[:].sum()) for source in real_sources())
    with Peer(_READ, path, tmp_path) as reader:
        old = Path(reader.hear())
        assert indexes(tmp_path) == [old]
        second = opened(write(tmp_path, real_sources()[:2]), tmp_path)
        assert indexes(tmp_path) == sorted([old, second.path])
        reader.tell("sum")
        assert int(reader.hear()) == total
        # A second reader of the old content would find it, too.
        with Peer(_READ, path, tmp_path) as late:
            assert Path(late.hear()) == second.path
            late.tell("end")
        reader.tell("end")
    second.close()
    third = opened(write(tmp_path, real_sources()[:3]), tmp_path)
    assert indexes(tmp_path) == [third.path]


_FORK = """
import os
mapped = open_mapped(Path(sys.argv[1]), Path(sys.argv[2]), lock_timeout_s=60)
if os.fork() == 0:
    hear()
    say(sum(int(mapped.source(path).samples.sizes[:].sum()) for path in mapped.files))
    os._exit(0)
say(mapped.path)
os._exit(0)
"""


def test_a_forked_child_keeps_the_generation_when_its_parent_is_gone(tmp_path: Path) -> None:
    path = write(tmp_path, real_sources())
    with Peer(_FORK, path, tmp_path) as reader:
        old = Path(reader.hear())
        reader.process.wait()
        second = opened(write(tmp_path, real_sources()[:2]), tmp_path)
        assert indexes(tmp_path) == sorted([old, second.path])
        reader.tell()
        assert int(reader.hear()) == sum(int(source.samples.sizes[:].sum()) for source in real_sources())


def test_indexes_of_sidecars_that_are_gone_are_removed(tmp_path: Path) -> None:
    other_path = write(tmp_path, real_sources(), OTHER)
    other = opened(other_path, tmp_path)
    first = opened(write(tmp_path, real_sources()), tmp_path)
    assert indexes(tmp_path) == sorted([first.path, other.path])
    other_path.unlink()
    first.close()
    first = opened(write(tmp_path, real_sources()[:3]), tmp_path)
    assert indexes(tmp_path) == sorted([first.path, other.path])  # Still open.
    other.close()
    first.close()
    first = opened(write(tmp_path, real_sources()[:2]), tmp_path)
    assert indexes(tmp_path) == [first.path]


def test_what_is_no_index_file_is_left_alone(tmp_path: Path) -> None:
    first = opened(write(tmp_path, real_sources()), tmp_path)
    names = ["notes.txt", "x.idx", "mp4-v3-main-0-0123.idx", ".hidden.tmp"]
    for name in names:
        (first.path.parent / name).write_bytes(b"mine")
    first.close()
    opened(write(tmp_path, real_sources()[:2]), tmp_path)
    for name in names:
        assert (first.path.parent / name).read_bytes() == b"mine"


def test_stale_temporaries_go_and_those_of_other_sidecars_stay(tmp_path: Path) -> None:
    path = write(tmp_path, real_sources())
    place = index_path(path, tmp_path, content_key(path))
    place.parent.mkdir(parents=True)
    stale = generations.temporary_path(place)
    other = generations.temporary_path(place.with_name(f"{path.stem}-x-{'0' * 16}.idx"))
    for temporary in (stale, other):
        temporary.write_bytes(b"half")
    opened(path, tmp_path)
    assert debris(tmp_path) == [other.name]


def _without_locks(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    flock = fcntl.flock

    def refuse(fd: int, operation: int) -> None:
        # The lock library has its own ways to go on without it.
        if Path(f"/proc/self/fd/{fd}").resolve().suffix in {".idx", ".tmp"}:
            raise OSError(number, os.strerror(number))
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", refuse)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL])
def test_without_locks_nothing_is_removed_and_nothing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    _without_locks(monkeypatch, number)
    path = write(tmp_path, real_sources())
    first = opened(path, tmp_path)
    assert_equal(first.source("videos/b.mp4"), open_sidecar(path).source("videos/b.mp4"))
    place = first.path
    first.close()
    second = opened(write(tmp_path, real_sources()[:2]), tmp_path)
    assert indexes(tmp_path) == sorted([place, second.path])


def _while_locked(act: Callable[[], Any]) -> Callable[[float], None]:
    def sleep(seconds: float) -> None:
        assert seconds < 1
        act()

    return sleep


def test_a_file_that_is_being_removed_is_as_good_as_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a-0000000000000000.idx"
    file.write_bytes(b"content")
    fd = os.open(file, os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)

    def remove() -> None:
        file.unlink()
        os.close(fd)

    monkeypatch.setattr(time, "sleep", _while_locked(remove))
    assert open_shared(file) is None


def test_a_file_that_was_removed_between_opening_and_locking_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a-0000000000000000.idx"
    file.write_bytes(b"content")
    flock = fcntl.flock

    def slow(fd: int, operation: int) -> None:
        file.unlink()
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", slow)
    assert open_shared(file) is None


def test_a_lock_that_never_ends_is_waited_for_a_moment_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a-0000000000000000.idx"
    file.write_bytes(b"content")
    monkeypatch.setattr(time, "sleep", _while_locked(lambda: None))
    fd = os.open(file, os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    assert open_shared(file) is None
    os.close(fd)
    reader = open_shared(file)
    assert reader is not None
    os.close(reader)
