"""Damaged and hostile index files: noticed, made anew, and never read outside their bounds."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lerobot_streaming.errors import SidecarError
from lerobot_streaming.index import Sidecar, open_sidecar
from lerobot_streaming.index import mapped as mapped_module
from lerobot_streaming.index import mapped_layout as layout
from lerobot_streaming.index.mapped_columns import _dense
from tests.index.mapped_cases import (
    check_equal,
    opened,
    real_sources,
    write,
)

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path, real_sources())


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


def _changed(content: bytes, changes: list[tuple[int, int, int]]) -> bytearray:
    """Puts numbers into a file: (place, bytes, number).

    The checksum is made right again, so that only the checks of places and lengths stand in the way.
    """
    data = bytearray(content)
    for place, width, number in changes:
        data[place : place + width] = (number % (1 << 8 * width)).to_bytes(width, "little")
    size = min(int.from_bytes(data[24:32], "little"), len(data))
    data[12:16] = layout.directory_checksum(bytes(data[:size])).to_bytes(4, "little")
    return data


def _check_places(content: bytearray) -> None:
    """Whatever passes the checks can be read without a fault, right or wrong."""
    try:
        header, records = layout.read_directory(memoryview(content))
    except SidecarError:
        return
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


@pytest.mark.parametrize("width", [1, 4, 8])
def test_no_number_of_the_directory_is_believed(path: Path, tmp_path: Path, width: int) -> None:
    content = opened(path, tmp_path).path.read_bytes()
    end = layout.HEADER.itemsize + layout.RECORD.itemsize
    for place in range(0, end, width):
        for number in {number % (1 << 8 * width) for number in _NUMBERS}:
            _check_places(_changed(content, [(place, width, number)]))


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_no_numbers_together_are_believed(path: Path, tmp_path: Path, data: st.DataObject) -> None:
    content = opened(path, tmp_path).path.read_bytes()
    end = layout.HEADER.itemsize + 4 * layout.RECORD.itemsize
    changes = []
    for _ in range(data.draw(st.integers(2, 4))):
        width = data.draw(st.sampled_from([1, 4, 8]))
        place = data.draw(st.integers(0, end - 8)) // width * width
        changes.append((place, width, data.draw(st.sampled_from(_NUMBERS))))
    _check_places(_changed(content, changes))


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
