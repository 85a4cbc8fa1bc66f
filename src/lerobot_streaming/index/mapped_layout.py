"""Layout of a mapped index file, and the checks before anything of it is believed.

Little-endian throughout::

    header                      HEADER
    one record per source file  RECORD, in the sidecar's order
    texts                       identity as JSON, paths, ftyp, stsd, codec; equal ones are stored once
    data of source file 0, 1... columns, each aligned to 8 bytes

Everything before the data is the directory: it has one checksum, which is compared at each opening. The data
of each source file have their own, compared when the file is first used, so opening reads no data.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from lerobot_streaming.errors import SidecarError
from lerobot_streaming.index.tables import MAX_SAMPLES

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAGIC = b"LRSINDEX"
VERSION = 1
ALIGNMENT = 8

ABSENT, CONSTANT, DENSE, ANCHORED, DERIVED = range(5)
"""How a column is stored: not at all; `value` for all samples; every entry; sums of the sizes between
anchors; computed from decode times and composition offsets."""

TYPES: tuple[np.dtype[Any], ...] = tuple(
    np.dtype(name) for name in ("<u1", "<i1", "<u2", "<i2", "<u4", "<i4", "<i8", "<f8")
)
"""Types of dense columns by code; integers from the smallest on."""
SECONDS_CODE = 7

_TEXT = np.dtype([("place", "<u8"), ("size", "<u8")])
_COLUMN = np.dtype(
    [("kind", "u1"), ("code", "u1"), ("count", "<u4"), ("place", "<u8"), ("value", "<i8")], align=True
)
HEADER = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u4"),
        ("checksum", "<u4"),
        ("file_size", "<u8"),
        ("directory_size", "<u8"),
        ("num_files", "<u8"),
        ("num_samples", "<u8"),
        ("identity", _TEXT),
    ]
)
_CHECKSUM_AT = 12

TEXTS = ("path", "ftyp", "stsd_body", "codec")
HEADER_NUMBERS = (
    "moov_offset",
    "mdat_offset",
    "mdat_payload_offset",
    "mdat_payload_size",
    "timescale",
    "duration",
    "track_id",
    "width",
    "height",
)
# Column -> how it may be stored.
COLUMNS: dict[str, tuple[int, ...]] = {
    "sizes": (CONSTANT, DENSE),
    "composition_offsets": (CONSTANT, DENSE),
    "durations": (ABSENT, DENSE),
    "residual": (ABSENT, DENSE),
    "offsets": (CONSTANT, DENSE, ANCHORED),
    "anchors": (ABSENT, DENSE),
    "pts_seconds": (DERIVED, DENSE),
    "sync_samples": (DENSE,),
    "order": (ABSENT, DENSE),
    "description_index": (ABSENT, DENSE),
}
"""`durations` is absent when they follow from the decode times, which are `slope` a sample plus `residual`;
`anchors` are the sample numbers of the stored `offsets`; `order` is the order of presentation."""

RECORD = np.dtype(
    [
        *((name, _TEXT) for name in TEXTS),
        ("size", "<i8"),
        *((name, "<i8") for name in HEADER_NUMBERS),
        ("faststart", "u1"),
        ("num_samples", "<u4"),
        ("data_checksum", "<u4"),
        ("data_place", "<u8"),
        ("data_size", "<u8"),
        *((name, "<i8") for name in ("slope", "last_duration", "scale", "shift", "divisor")),
        ("edit", "<f8"),
        *((name, _COLUMN) for name in COLUMNS),
    ],
    align=True,
)

# An NPZ member may be a little longer than MAX_SAMPLES; see `npz`.
_MAX_ROWS = MAX_SAMPLES + 65536


def align(place: int) -> int:
    """Rounds a byte offset up to the alignment of columns.

    Args:
        place: Byte offset.

    Returns:
        The next multiple of `ALIGNMENT`.
    """
    return -(-place // ALIGNMENT) * ALIGNMENT


def directory_checksum(directory: memoryview | bytes) -> int:
    """Computes the checksum of a directory, whose own field counts as zero.

    Args:
        directory: The bytes from the start of the file to the data.

    Returns:
        CRC-32.
    """
    view = memoryview(directory)
    before = zlib.crc32(bytes(4), zlib.crc32(view[:_CHECKSUM_AT]))
    return zlib.crc32(view[_CHECKSUM_AT + 4 :], before)


def read_directory(data: memoryview) -> tuple[Any, NDArray[Any]]:
    """Checks header, directory and every place and length in it.

    Args:
        data: The whole file.

    Returns:
        (header: one HEADER, records: RECORD (files)), views of the file.

    Raises:
        SidecarError: Something is not as it must be.
    """
    if len(data) < HEADER.itemsize:
        raise SidecarError(f"it has {len(data)} bytes, fewer than its header")
    header = np.frombuffer(data, HEADER, 1)[0]
    if header["magic"] != MAGIC or header["version"] != VERSION:
        raise SidecarError(f"it is not an index file of version {VERSION}")
    if header["file_size"] != len(data):
        raise SidecarError(f"it has {len(data)} bytes, but was written with {header['file_size']}")
    directory_size, num_files = int(header["directory_size"]), int(header["num_files"])
    records_end = HEADER.itemsize + num_files * RECORD.itemsize
    if not records_end <= directory_size <= len(data):
        raise SidecarError(f"its directory of {directory_size} bytes cannot hold {num_files} files")
    if directory_checksum(data[:directory_size]) != header["checksum"]:
        raise SidecarError("the checksum of its directory differs")
    records: NDArray[Any] = np.frombuffer(data, RECORD, num_files, HEADER.itemsize)
    texts = [header["identity"], *(records[name] for name in TEXTS)]
    if not all(_inside(text["place"], text["size"], directory_size).all() for text in texts):
        raise SidecarError("a text lies outside its directory")
    samples = records["num_samples"]
    places, sizes = records["data_place"], records["data_size"]
    if not (_inside(places, sizes, len(data)) & (places >= directory_size) & (places % ALIGNMENT == 0)).all():
        raise SidecarError("columns lie outside the file")
    if not ((samples >= 1) & (samples <= _MAX_ROWS)).all() or samples.sum() != header["num_samples"]:
        raise SidecarError("a file has an impossible number of samples")
    for name, kinds in COLUMNS.items():
        if not _sane(name, kinds, records).all():
            raise SidecarError(f"a column '{name}' lies outside its file or has an impossible form")
    _check_forms(records)
    return header, records


def fields_of(record: Any) -> dict[str, Any]:
    """Takes a record apart at once, which is much cheaper than field by field.

    Args:
        record: One RECORD.

    Returns:
        Field -> number; a text -> (place, size); a column -> (kind, code, count, place, value).
    """
    return dict(zip(RECORD.names or (), record.item(), strict=True))


def _inside(place: Any, size: Any, limit: Any) -> Any:
    """True where `place` and `size`, both unsigned, stay inside `limit`; no sum can overflow."""
    return (place <= limit) & (size <= np.maximum(limit, place) - place)


def _sane(name: str, kinds: tuple[int, ...], records: NDArray[Any]) -> NDArray[np.bool_]:
    column, samples = records[name], records["num_samples"]
    kind, code, count = column["kind"], column["code"], column["count"]
    stored = (kind == DENSE) | (kind == ANCHORED)
    widths = np.array([dtype.itemsize for dtype in TYPES], np.uint64)
    good = np.isin(kind, kinds) & (code < len(TYPES))
    good &= (code == SECONDS_CODE) == (stored & (name == "pts_seconds"))
    if name == "sync_samples":
        good &= count <= samples
    else:
        fewer = (kind == ANCHORED) | (name == "anchors")
        good &= ~stored | (count == samples) | (fewer & (count >= 1) & (count <= samples))
    size = count.astype(np.uint64) * widths[np.minimum(code, len(TYPES) - 1)]
    inside = _inside(column["place"], size, records["data_size"]) & (column["place"] % ALIGNMENT == 0)
    return np.asarray(good & (~stored | inside))


def _check_forms(records: NDArray[Any]) -> None:
    """Checks what one column demands of another."""
    offsets, anchors = records["offsets"], records["anchors"]
    anchored = offsets["kind"] == ANCHORED
    same = (anchors["kind"] == DENSE) & (anchors["count"] == offsets["count"])
    derived = records["pts_seconds"]["kind"] == DERIVED
    ticks = (records["durations"]["kind"] == ABSENT) & (records["divisor"] >= 1)
    if not ((~anchored | same) & (~derived | ticks)).all():
        raise SidecarError("a column lacks another one that it needs")
