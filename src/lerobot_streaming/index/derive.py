"""Writes the mapped index of a sidecar: each source file's columns in their smallest exact form."""

from __future__ import annotations

import json
import math
import os
import zlib
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from lerobot_streaming.index import mapped_layout as layout
from lerobot_streaming.index.columns import ConstantColumn, DenseColumn
from lerobot_streaming.index.spans import presentation_order
from lerobot_streaming.index.time_columns import SecondsColumn, TickColumn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from lerobot_streaming.index.identity import SidecarIdentity
    from lerobot_streaming.index.sidecar import Sidecar
    from lerobot_streaming.index.tables import SourceFile

ANCHOR_STRIDE = 128
"""Samples after which an offset is stored in any case: a sum over more would cost a look-up too much."""

_MAX_TICKS = 1 << 62
_MAX_DENOMINATOR = 10**6
_PROBE = 64


def write_index(path: Path, sidecar: Sidecar) -> None:
    """Writes the mapped index of a sidecar and flushes it to the disk; holds one source file at a time.

    Args:
        path: The file to write; not atomic, so give a temporary name and rename it afterwards.
        sidecar: The open sidecar; every array of it is validated.

    Raises:
        SidecarError: The sidecar is damaged.
        OSError: The file cannot be written.
    """
    texts = _Texts()
    identity = texts.add(_identity_json(sidecar.identity))
    records = np.zeros(len(sidecar.files), layout.RECORD)
    for record, (source_path, size) in zip(records, sidecar.files.items(), strict=True):
        header = sidecar.header(source_path)
        record["path"] = texts.add(source_path.encode("utf-8", "surrogatepass"))
        record["codec"] = texts.add(header.codec.encode("utf-8", "surrogatepass"))
        record["ftyp"], record["stsd_body"] = texts.add(header.ftyp), texts.add(header.stsd_body)
        record["size"], record["faststart"] = size, header.faststart
        for name in layout.HEADER_NUMBERS:
            record[name] = getattr(header, name)
    texts_place = layout.HEADER.itemsize + records.nbytes
    directory_size = layout.align(texts_place + texts.size)
    for name in layout.TEXTS:
        records[name]["place"] += np.uint64(texts_place)
    with path.open("wb") as file:
        place = directory_size
        file.seek(place)
        for record, source in zip(records, sidecar.read_all(), strict=True):
            data = encode_columns(record, source)
            record["data_place"], record["data_size"] = place, len(data)
            record["data_checksum"] = zlib.crc32(data)
            place += file.write(data)
        top = np.zeros(1, layout.HEADER)
        top["magic"], top["version"] = layout.MAGIC, layout.VERSION
        top["file_size"], top["directory_size"] = place, directory_size
        top["num_files"], top["num_samples"] = len(records), records["num_samples"].sum()
        top["identity"] = (texts_place + identity[0], identity[1])
        rest = records.tobytes() + b"".join(texts.chunks)
        rest += bytes(directory_size - top.nbytes - len(rest))
        top["checksum"] = layout.directory_checksum(top.tobytes() + rest)
        file.seek(0)
        file.write(top.tobytes() + rest)
        file.truncate(place)
        file.flush()
        os.fsync(file.fileno())


def encode_columns(record: Any, source: SourceFile) -> bytes:
    """Finds the smallest exact form of one source file's columns.

    Args:
        record: One RECORD; receives the number of samples and the forms.
        source: A valid indexed file.

    Returns:
        The file's data, from which `read_samples` makes the columns again.
    """
    record["num_samples"] = source.samples.num_samples
    return _Encoder(record, source).data()


class _Texts:
    """Collects texts, equal ones once."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.size = 0
        self._known: dict[bytes, tuple[int, int]] = {}

    def add(self, text: bytes) -> tuple[int, int]:
        place = self._known.setdefault(text, (self.size, len(text)))
        if place[0] == self.size and text:
            self.chunks.append(text)
            self.size += len(text)
        return place


def _identity_json(identity: SidecarIdentity) -> bytes:
    fields = {
        "repo_id": identity.repo_id,
        "revision": identity.revision,
        "data_root": identity.data_root,
        "source_fingerprints": dict(identity.source_fingerprints),
    }
    return json.dumps(fields).encode()


class _Encoder:
    """Collects one source file's columns and notes their forms in the file's record."""

    def __init__(self, record: Any, source: SourceFile) -> None:
        self.size = 0
        self._record = record
        self._arrays: list[NDArray[Any]] = []
        samples = source.samples
        self._integers("sizes", samples.sizes[:])
        self._integers("composition_offsets", samples.composition_offsets[:])
        self._offsets(samples.offsets[:], samples.sizes[:])
        sync = samples.sync_samples[:]
        self._dense("sync_samples", _shrink(sync) if len(sync) else np.empty(0, "<u1"))
        pts = samples.pts_seconds[:]
        self._times(pts, samples.durations[:], samples.composition_offsets[:], source.header.timescale)
        order = presentation_order(pts)
        if order is not None:
            self._dense("order", _shrink(order))
        if source.description_index is not None:
            self._dense("description_index", source.description_index.astype("<i4"))

    def data(self) -> bytes:
        return b"".join(
            array.tobytes() + bytes(layout.align(array.nbytes) - array.nbytes) for array in self._arrays
        )

    def _dense(self, name: str, array: NDArray[Any], kind: int = layout.DENSE) -> None:
        code = layout.TYPES.index(array.dtype)
        self._record[name] = (kind, code, len(array), self.size, 0)
        self._arrays.append(array)
        self.size += layout.align(array.nbytes)

    def _integers(self, name: str, values: NDArray[np.int64]) -> None:
        if (values == values[0]).all():
            self._record[name] = (layout.CONSTANT, 0, 0, 0, int(values[0]))
        else:
            self._dense(name, _shrink(values))

    def _offsets(self, offsets: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
        breaks = np.flatnonzero(offsets[1:] != offsets[:-1] + sizes[:-1]) + 1
        anchors = np.union1d(np.arange(0, len(offsets), ANCHOR_STRIDE), breaks)
        stored = _shrink(offsets[anchors])
        positions = _shrink(anchors)
        dense = _shrink(offsets)
        if (stored.itemsize + positions.itemsize) * len(anchors) < dense.nbytes:
            self._dense("offsets", stored, layout.ANCHORED)
            self._dense("anchors", positions)
        else:
            self._integers("offsets", offsets)

    def _times(
        self,
        pts: NDArray[np.float64],
        durations: NDArray[np.int64],
        composition: NDArray[np.int64],
        timescale: int,
    ) -> None:
        ticks = _decode_times(durations)
        formula = None if ticks is None else _find_formula(pts, ticks, composition, timescale)
        if formula is not None:
            self._record["pts_seconds"] = (layout.DERIVED, 0, 0, 0, 0)
            for name, value in formula.items():
                self._record[name] = value
        else:
            self._dense("pts_seconds", pts.astype("<f8"))
        dense = _shrink(durations)
        residual = None if ticks is None else ticks.residual
        if ticks is None or (formula is None and residual is not None and residual.nbytes >= dense.nbytes):
            self._dense("durations", dense)
            return
        self._record["slope"], self._record["last_duration"] = ticks.slope, int(durations[-1])
        if residual is not None:
            self._dense("residual", residual)


def _shrink(values: NDArray[np.int64]) -> NDArray[Any]:
    """Converts integers, at least one, to the smallest type that holds them all."""
    low, high = int(values.min()), int(values.max())
    fits = (
        dtype
        for dtype in layout.TYPES[: layout.SECONDS_CODE]
        if np.iinfo(dtype).min <= low and high <= np.iinfo(dtype).max
    )
    return values.astype(next(fits))


def _decode_times(durations: NDArray[np.int64]) -> TickColumn | None:
    """Puts the durations into the form of decode times; None when these would overflow."""
    count = len(durations)
    if int(durations.max()) * count >= _MAX_TICKS:
        return None
    if (durations[:-1] == durations[0]).all():
        return TickColumn(int(durations[0]) if count > 1 else 0, None, count)
    times = np.cumsum(durations) - durations
    # The most usual duration, or the mean: whichever leaves less.
    slopes = (int(np.median(durations)), round(int(times[-1]) / (count - 1)))
    numbers = np.arange(count)
    residuals = [_shrink(times - slope * numbers) for slope in slopes]
    best = 0 if residuals[0].itemsize <= residuals[1].itemsize else 1
    return TickColumn(slopes[best], residuals[best], count)


def _find_formula(
    pts: NDArray[np.float64], ticks: TickColumn, composition: NDArray[np.int64], timescale: int
) -> dict[str, Any] | None:
    """Finds parameters with which `SecondsColumn` gives the stored times bit for bit, or None."""
    count = len(pts)
    column = ConstantColumn(int(composition[0]), count) if (composition == composition[0]).all() else None
    offsets = column or DenseColumn(composition, np.int64)
    times = ticks[:] + composition
    largest = max(abs(int(times.min())), abs(int(times.max())), abs(int(composition[0])))
    probe = np.unique(np.linspace(0, count - 1, min(count, _PROBE)).astype(np.int64))
    wanted = pts.view(np.int64)
    for formula in _formulas(pts, times, timescale):
        scale, shift = formula["scale"], formula["shift"]
        if max(largest * scale + abs(shift), ticks.slope * scale, formula["divisor"]) >= _MAX_TICKS:
            continue
        seconds = SecondsColumn(ticks, offsets, **formula)
        with np.errstate(over="ignore"):  # A wild guess may overflow; it is a wrong guess then.
            if not (seconds[probe].view(np.int64) == wanted[probe]).all():
                continue
            if (seconds[:].view(np.int64) == wanted).all():
                return formula
    return None


def _formulas(pts: NDArray[np.float64], times: NDArray[np.int64], timescale: int) -> Iterator[dict[str, Any]]:
    """Guesses how a writer got from ticks to seconds; the likely ways first.

    The edit list is not in the sidecar. Its shift is a fraction: media ticks, or those and movie ticks.
    """
    first = Fraction(float(pts[0])) - Fraction(int(times[0]), timescale)
    fractions = (Fraction(round(first * timescale), timescale), first.limit_denominator(_MAX_DENOMINATOR))
    for fraction in fractions:
        divisor = math.lcm(timescale, fraction.denominator)
        shift = fraction.numerator * (divisor // fraction.denominator)
        yield {"scale": divisor // timescale, "shift": shift, "divisor": divisor, "edit": 0.0}
    # Or the shift was added as seconds after the division.
    anchors = {int(np.abs(times).argmin()), int(np.abs(pts).argmin()), 0}
    guesses = [float(fraction) for fraction in fractions]
    guesses += [float(pts[k]) - int(times[k]) / timescale for k in sorted(anchors)]
    for guess in guesses:
        for edit in (guess, math.nextafter(guess, math.inf), math.nextafter(guess, -math.inf)):
            yield {"scale": 1, "shift": 0, "divisor": timescale, "edit": edit}
