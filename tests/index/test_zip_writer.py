"""The archives of `ZipWriter` against those of Python's `zipfile`, and how they are read."""

from __future__ import annotations

import io
import zipfile
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lerobot_streaming.index.npy import dump_array
from lerobot_streaming.index.npz import NpzArchive
from lerobot_streaming.index.zip_reader import read_directory, read_member
from lerobot_streaming.index.zip_writer import ZipWriter

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

type Content = list[tuple[str, bytes]]


def pieces(data: bytes, size: int = 1000) -> Iterable[bytes]:
    return (data[i : i + size] for i in range(0, len(data), size))


def write(file: BinaryIO, content: Content) -> None:
    archive = ZipWriter(file, io.BytesIO())
    for name, data in content:
        archive.add(name, pieces(data))
    archive.finish()


def write_as_python(file: BinaryIO, content: Content) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in content:
            info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = 0o600 << 16
            archive.writestr(info, data)


def read(file: BinaryIO) -> Content:
    members = list(read_directory(file))
    return [(member.name.decode(), b"".join(read_member(file, member))) for member in members]


def big_text(seed: int, size: int) -> bytes:
    """Text that packs a little, in many deflate blocks."""
    return np.random.default_rng(seed).integers(40, 90, size, np.uint8).tobytes()


@settings(deadline=None)
@given(
    contents=st.lists(
        st.one_of(st.binary(max_size=5000), st.builds(big_text, st.integers(0, 9), st.integers(0, 300_000))),
        min_size=1,
        max_size=8,
    )
)
def test_its_bytes_are_those_of_zipfile(contents: list[bytes]) -> None:
    content = [(f"{i}/name.npy", data) for i, data in enumerate(contents)]
    ours, theirs = io.BytesIO(), io.BytesIO()
    write(ours, content)
    write_as_python(theirs, content)
    assert ours.getvalue() == theirs.getvalue()
    assert read(ours) == content


@pytest.mark.parametrize("count", [65_535, 65_536])
def test_more_members_than_a_plain_archive_may_have(count: int) -> None:
    content = [(f"{i}.npy", b"%d" % i) for i in range(count)]
    ours, theirs = io.BytesIO(), io.BytesIO()
    write(ours, content)
    write_as_python(theirs, content)
    assert ours.getvalue() == theirs.getvalue()
    assert sum(1 for _ in read_directory(ours)) == count
    ours.seek(0)
    with zipfile.ZipFile(ours) as archive:
        assert len(archive.namelist()) == count
        assert archive.read(f"{count - 1}.npy") == b"%d" % (count - 1)


@pytest.mark.parametrize("start", [(1 << 31) - 60, (1 << 32) - 60, 5 << 30])
def test_archives_beyond_2_and_4_gib(tmp_path: Path, start: int) -> None:
    # A hole takes the place of the first gigabytes: offsets count from the start of the file.
    arrays = {f"{i}/sizes": np.arange(i, i + 20) for i in range(3)}
    content = [(f"{name}.npy", bytes(dump_array(array))) for name, array in arrays.items()]
    ours, theirs = tmp_path / "ours.npz", tmp_path / "theirs.npz"
    for path, writer in ((ours, write), (theirs, write_as_python)):
        with path.open("wb") as file:
            file.write(b"PK\3\4")  # By which NumPy knows an archive.
            file.seek(start)
            writer(file, content)
    with ours.open("rb") as one, theirs.open("rb") as other:
        assert read(one) == content
        one.seek(start)
        other.seek(start)
        assert one.read() == other.read()
    with np.load(ours, allow_pickle=False) as archive:
        assert archive.files == list(arrays)
        for name, array in arrays.items():
            assert (archive[name] == array).all()
    reader = NpzArchive(ours)
    for name, array in arrays.items():
        assert (reader.array(name, "<i8") == array).all()


def test_every_damaged_byte_is_noticed() -> None:
    file = io.BytesIO()
    write(file, [("0/a.npy", b"first" * 9), ("manifest.npy", b"second")])
    good = file.getvalue()
    for place in range(len(good)):
        with pytest.raises(ValueError, match=r"\w"):
            read(io.BytesIO(good[:place]))
        # The lowest bit: the highest ones of the last byte of deflated data may mean nothing.
        damaged = good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :]
        with pytest.raises(ValueError, match=r"\w"):
            read(io.BytesIO(damaged))
    for data in (b"", good + b"\0", b"\0" + good):
        with pytest.raises(ValueError, match=r"\w"):
            read(io.BytesIO(data))


def test_a_member_that_unpacks_to_more_than_it_says_is_left_early() -> None:
    file = io.BytesIO()
    write(file, [("a.npy", bytes(100 << 20))])
    member = next(read_directory(file))._replace(size=1000)
    data = bytearray(file.getvalue())
    data[22:26] = (1000).to_bytes(4, "little")
    chunks = read_member(io.BytesIO(data), member)
    with pytest.raises(ValueError, match="length"):
        sum(map(len, chunks))
