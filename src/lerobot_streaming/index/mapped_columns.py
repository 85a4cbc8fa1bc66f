"""Makes the columns of one source file from its record and its part of a mapped index file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lerobot_streaming.index import mapped_layout as layout
from lerobot_streaming.index.columns import (
    Column,
    ConstantColumn,
    DenseColumn,
    OffsetColumn,
    TimeColumn,
)
from lerobot_streaming.index.tables import SampleTable
from lerobot_streaming.index.time_columns import DurationColumn, SecondsColumn, TickColumn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray


def read_samples(
    record: Mapping[str, Any], data: NDArray[np.uint8]
) -> tuple[SampleTable, NDArray[np.int32] | None]:
    """Makes the columns of one source file: views of the data and a few numbers, nothing is copied.

    Args:
        record: The fields of a RECORD that was checked, as `fields_of` gives them.
        data: uint8 (data_size). The file's part of the mapping.

    Returns:
        (the sample table, int32 (n) 1-based sample entry of each sample or None when all use the first).
    """
    count = record["num_samples"]
    sizes, composition = _integers(record, data, "sizes"), _integers(record, data, "composition_offsets")
    offsets, anchors = _integers(record, data, "offsets"), _dense(record, data, "anchors")
    if anchors is not None and isinstance(offsets, DenseColumn):
        offsets = OffsetColumn(sizes, anchors, offsets.stored)
    ticks = TickColumn(record["slope"], _dense(record, data, "residual"), count)
    durations, order = _dense(record, data, "durations"), _dense(record, data, "order")
    pts = _dense(record, data, "pts_seconds")
    times: Column[np.float64]
    if pts is None:
        times = SecondsColumn(
            ticks,
            composition,
            scale=record["scale"],
            shift=record["shift"],
            divisor=record["divisor"],
            edit=record["edit"],
        )
    else:
        times = DenseColumn(pts, np.float64)
    samples = SampleTable(
        pts_seconds=TimeColumn(times, None if order is None else DenseColumn(order, np.int64)),
        durations=(
            DurationColumn(ticks, record["last_duration"])
            if durations is None
            else DenseColumn(durations, np.int64)
        ),
        composition_offsets=composition,
        sizes=sizes,
        offsets=offsets,
        sync_samples=_integers(record, data, "sync_samples"),
    )
    return samples, _dense(record, data, "description_index")


def _dense(record: Mapping[str, Any], data: NDArray[np.uint8], name: str) -> NDArray[Any] | None:
    kind, code, count, place, _ = record[name]
    if kind not in {layout.DENSE, layout.ANCHORED}:
        return None
    dtype = layout.TYPES[code]
    stored: NDArray[Any] = data[place : place + count * dtype.itemsize].view(dtype)
    return stored


def _integers(record: Mapping[str, Any], data: NDArray[np.uint8], name: str) -> Column[np.int64]:
    stored = _dense(record, data, name)
    if stored is None:
        return ConstantColumn(record[name][-1], record["num_samples"])
    return DenseColumn(stored, np.int64)
