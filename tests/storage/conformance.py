"""What every range reader must do, whatever store is behind it."""

from __future__ import annotations

import multiprocessing
import pickle
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lerobot_streaming.errors import FetchError, MissingFileError
from lerobot_streaming.storage.base import FileStat, RangeReader

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.context import ForkContext, SpawnContext

BIG = "videos/cam/file-000.mp4"
SMALL = "meta/info.json"
STRANGE = "data/a b+c?d#e%41ü.bin"
EMPTY = "meta/empty.txt"
MISSING = "videos/cam/file-001.mp4"


def make_files() -> dict[str, bytes]:
    """Files as a dataset has them, with names that need quoting; path -> content."""
    draw = random.Random(7)
    return {
        BIG: draw.randbytes(300_000),
        SMALL: b'{"fps": 30}' * 20,
        STRANGE: draw.randbytes(999),
        EMPTY: b"",
    }


@dataclass
class StoreUnderTest:
    """A store that holds `files`.

    Attributes:
        files: Path -> content.
        open: Makes a reader of it; the test closes it.
        has_fingerprints: Whether the store has any.
        reaches_spawned: Whether a spawned process can see it.
    """

    files: dict[str, bytes]
    open: Callable[[], RangeReader]
    has_fingerprints: bool = True
    reaches_spawned: bool = True


class RangeReaderConformance:
    """Subclasses give a fixture `store`, of class scope."""

    @pytest.fixture
    def reader(self, store: StoreUnderTest) -> object:
        reader = store.open()
        yield reader
        reader.close()

    def test_its_root_is_stable(self, store: StoreUnderTest, reader: RangeReader) -> None:
        assert isinstance(reader, RangeReader)
        assert reader.root == store.open().root
        assert not reader.root.endswith("/")

    @settings(
        max_examples=25,
        deadline=None,
        suppress_health_check=[HealthCheck.differing_executors, HealthCheck.function_scoped_fixture],
    )
    @given(data=st.data())
    def test_every_range_has_the_files_bytes(
        self, store: StoreUnderTest, reader: RangeReader, data: st.DataObject
    ) -> None:
        path = data.draw(st.sampled_from([BIG, SMALL, STRANGE]))
        content = store.files[path]
        offset = data.draw(st.integers(0, len(content)))
        length = data.draw(st.integers(0, len(content) - offset))
        assert reader.read(path, offset, length) == content[offset : offset + length]

    def test_whole_files_and_last_bytes(self, store: StoreUnderTest, reader: RangeReader) -> None:
        for path, content in store.files.items():
            assert reader.read(path, 0, len(content)) == content
            if content:
                assert reader.read(path, len(content) - 1, 1) == content[-1:]

    def test_a_view_is_filled_in_place_whatever_its_format(
        self, store: StoreUnderTest, reader: RangeReader
    ) -> None:
        buffer = bytearray(b"." * 20)
        reader.read_into(BIG, 5, memoryview(buffer)[4:12].cast("h"))
        assert buffer == b"...." + store.files[BIG][5:13] + b"." * 8

    def test_a_range_of_no_bytes(self, store: StoreUnderTest, reader: RangeReader) -> None:
        assert reader.read(BIG, 0, 0) == b""
        assert reader.read(BIG, len(store.files[BIG]), 0) == b""
        assert reader.read(EMPTY, 0, 0) == b""
        with pytest.raises(MissingFileError):
            reader.read(MISSING, 0, 0)

    def test_a_range_beyond_the_end(self, store: StoreUnderTest, reader: RangeReader) -> None:
        size = len(store.files[BIG])
        with pytest.raises(FetchError, match=rf"offset {size - 3} wanted 10 bytes, got 3") as caught:
            reader.read(BIG, size - 3, 10)
        assert BIG in str(caught.value)
        assert reader.root in str(caught.value)
        with pytest.raises(FetchError, match="wanted 1 bytes, got 0"):
            reader.read(EMPTY, 0, 1)
        with pytest.raises(FetchError, match="got 0"):
            reader.read(BIG, size + 100, 1)
        with pytest.raises(FetchError, match="negative offset"):
            reader.read(BIG, -1, 2)

    @pytest.mark.parametrize("path", [MISSING, "videos/cam", f"{SMALL}/x", "nothing/at/all"])
    def test_a_missing_file_names_root_and_path(self, reader: RangeReader, path: str) -> None:
        for call in (reader.stat, lambda name: reader.read(name, 0, 1)):
            with pytest.raises(MissingFileError) as caught:
                call(path)
            assert path in str(caught.value)
            assert reader.root in str(caught.value)

    @pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "videos/../../x", "videos/..", "a\0b"])
    def test_paths_that_leave_the_root_are_refused(self, reader: RangeReader, path: str) -> None:
        for call in (
            reader.stat,
            lambda name: reader.read(name, 0, 1),
            lambda name: reader.stat_many([SMALL, name]),
        ):
            with pytest.raises(FetchError, match="relative path"):
                call(path)

    def test_stat(self, store: StoreUnderTest, reader: RangeReader) -> None:
        for path, content in store.files.items():
            found = reader.stat(path)
            assert found.size == len(content)
            assert (found.fingerprint is not None) == store.has_fingerprints
            assert found == reader.stat(path)

    def test_stat_many(self, store: StoreUnderTest, reader: RangeReader) -> None:
        wanted = [MISSING, *store.files, "videos/cam", SMALL]
        found = reader.stat_many(wanted)
        assert list(found) == list(dict.fromkeys(wanted))
        assert found[MISSING] == found["videos/cam"] == FileStat(-1, None)
        for path in store.files:
            assert found[path] == reader.stat(path)
        assert reader.stat_many([]) == {}

    def test_many_threads_read_at_once_while_one_closes(
        self, store: StoreUnderTest, reader: RangeReader
    ) -> None:
        # `close` ends waits, so a thread may lose its read to it; what it must never get is wrong bytes.
        wrong: list[object] = []
        lost = 0
        begun = threading.Barrier(9)

        def work(seed: int) -> None:
            nonlocal lost
            draw = random.Random(seed)
            begun.wait()
            for _ in range(12):
                path = draw.choice([BIG, SMALL, STRANGE])
                content = store.files[path]
                offset = draw.randrange(len(content))
                length = draw.randrange(len(content) - offset + 1)
                try:
                    if reader.read(path, offset, length) != content[offset : offset + length]:
                        wrong.append((path, offset, length))
                except FetchError as error:
                    lost += 1
                    if "closed" not in str(error):
                        wrong.append(error)

        with ThreadPoolExecutor(8) as pool:
            done = [pool.submit(work, seed) for seed in range(8)]
            begun.wait()
            reader.close()
            for future in done:
                future.result()
        assert not wrong
        assert lost <= 8

    def test_reading_goes_on_after_close(self, store: StoreUnderTest, reader: RangeReader) -> None:
        reader.read(SMALL, 0, 1)
        reader.close()
        reader.close()
        assert reader.read(SMALL, 3, 5) == store.files[SMALL][3:8]
        assert reader.stat(BIG).size == len(store.files[BIG])

    def test_a_reader_pickles_small_and_without_connections(
        self, store: StoreUnderTest, reader: RangeReader
    ) -> None:
        reader.read(BIG, 0, 100)
        text = pickle.dumps(reader)
        assert len(text) < 2000
        copy = pickle.loads(text)
        try:
            assert copy.root == reader.root
            assert copy.stat(SMALL) == reader.stat(SMALL)
            assert copy.read(BIG, 10, 1000) == store.files[BIG][10:1010]
        finally:
            copy.close()

    def test_a_spawned_process_reads(self, store: StoreUnderTest, reader: RangeReader) -> None:
        if not store.reaches_spawned:
            pytest.skip("the store lives in this process")
        reader.read(BIG, 0, 1)
        assert_child_reads(multiprocessing.get_context("spawn"), reader, store.files[BIG])

    @pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
    def test_forked_processes_read_beside_their_parent(
        self, store: StoreUnderTest, reader: RangeReader
    ) -> None:
        reader.read(BIG, 0, 1)
        reader.stat(SMALL)
        for _ in range(2):
            assert_child_reads(multiprocessing.get_context("fork"), reader, store.files[BIG])
            assert reader.read(BIG, 7, 1000) == store.files[BIG][7:1007]

    def test_nothing_shows_more_than_the_root(self, reader: RangeReader) -> None:
        assert len(repr(reader)) < len(reader.root) + 60


def assert_child_reads(context: ForkContext | SpawnContext, reader: RangeReader, content: bytes) -> None:
    """Has another process read all of a file, in four threads, while this one waits."""
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_read_in_child, args=(reader, len(content), theirs))
    child.start()
    theirs.close()
    try:
        assert ours.poll(60), "the child does not answer"
        found = ours.recv()
        assert found == content, str(found)[:2000]
        child.join(30)
        assert child.exitcode == 0
    finally:
        child.kill()
        child.join()
        ours.close()


def _read_in_child(reader: RangeReader, size: int, answer: multiprocessing.connection.Connection) -> None:
    step = -(-size // 4)
    try:
        with ThreadPoolExecutor(4) as pool:
            parts = pool.map(
                lambda start: reader.read(BIG, start, min(step, size - start)), range(0, size, step)
            )
            found: object = b"".join(parts)
        reader.close()
    except BaseException as error:  # noqa: BLE001 - the parent shows it
        found = repr(error)
    answer.send(found)
    answer.close()
