"""Makes the columns of one source file from its record and its part of a mapped index file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lerobot_streaming.index import mapped_layout as layout
from lerobot_streaming.index.columns import (
    Column,
    ConstantColumn,
    DenseColumn,
    DurationColumn,
    OffsetColumn,
    SecondsColumn,
    TickColumn,
    TimeColumn,
)
from lerobot_streaming.index.tables import SampleTable

if TYPE_CHECKING:
    from numpy.typing import NDArray


def read_samples(record: Any, data: NDArray[np.uint8]) -> tuple[SampleTable, NDArray[np.int32] | None]:
    """Makes the columns of one source file: views of the data and a few numbers, nothing is copied.

    Args:
        record: One RECORD that was checked.
        data: uint8 (data_size). The file's part of the mapping.

    Returns:
        (the sample table, int32 (n) 1-based sample entry of each sample or None when all use the first).
    """
    count = int(record["num_samples"])
    sizes, composition = _integers(record, data, "sizes"), _integers(record, data, "composition_offsets")
    offsets, anchors = _integers(record, data, "offsets"), _dense(record, data, "anchors")
    if anchors is not None and isinstance(offsets, DenseColumn):
        offsets = OffsetColumn(sizes, anchors, offsets.stored)
    ticks = TickColumn(int(record["slope"]), _dense(record, data, "residual"), count)
    durations, order = _dense(record, data, "durations"), _dense(record, data, "order")
    pts = _dense(record, data, "pts_seconds")
    times: Column[np.float64]
    if pts is None:
        times = SecondsColumn(
            ticks,
            composition,
            scale=int(record["scale"]),
            shift=int(record["shift"]),
            divisor=int(record["divisor"]),
            edit=float(record["edit"]),
        )
    else:
        times = DenseColumn(pts, np.float64)
    samples = SampleTable(
        pts_seconds=TimeColumn(times, None if order is None else DenseColumn(order, np.int64)),
        durations=(
            DurationColumn(ticks, int(record["last_duration"]))
            if durations is None
            else DenseColumn(durations, np.int64)
        ),
        composition_offsets=composition,
        sizes=sizes,
        offsets=offsets,
        sync_samples=_integers(record, data, "sync_samples"),
    )
    return samples, _dense(record, data, "description_index")


def _dense(record: Any, data: NDArray[np.uint8], name: str) -> NDArray[Any] | None:
    column = record[name]
    if column["kind"] not in {layout.DENSE, layout.ANCHORED}:
        return None
    dtype, place = layout.TYPES[column["code"]], int(column["place"])
    stored: NDArray[Any] = data[place : place + int(column["count"]) * dtype.itemsize].view(dtype)
    return stored


def _integers(record: Any, data: NDArray[np.uint8], name: str) -> Column[np.int64]:
    stored = _dense(record, data, name)
    if stored is None:
        return ConstantColumn(int(record[name]["value"]), int(record["num_samples"]))
    return DenseColumn(stored, np.int64)
