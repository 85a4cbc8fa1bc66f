"""Expands the compact tables of a sample table box (`stbl`, ISO/IEC 14496-12 sections 8.6 and 8.7).

Totals are compared on the compact tables before anything is expanded, so a few hostile bytes that claim
billions of samples cost nothing. No loop runs per sample.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

from lerobot_streaming.errors import Mp4FormatError, Mp4UnsupportedError
from lerobot_streaming.index.boxes import Container, table, unpack
from lerobot_streaming.index.tables import MAX_SAMPLES

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MAX_COMPOSITION_TICKS = 1 << 28
"""libav takes larger composition offsets for damage as well."""


def sample_count(stbl: Container) -> int:
    """Reads how many samples a track claims to have.

    Args:
        stbl: The sample table box.

    Returns:
        The claimed number; nothing is checked against it yet.

    Raises:
        Mp4FormatError: There is neither `stsz` nor `stz2`, or both.
        Mp4UnsupportedError: There are more than `MAX_SAMPLES`.
    """
    payload, name = _size_box(stbl)
    (count,) = unpack("I", payload, 8, name)
    if count > MAX_SAMPLES:
        raise Mp4UnsupportedError(
            f"box '{name}' claims {count} samples, more than the limit of {MAX_SAMPLES}"
        )
    return count


def read_sizes(stbl: Container, count: int, file_size: int) -> NDArray[np.int64]:
    """Reads the samples' sizes from `stsz` (32-bit or uniform) or `stz2` (4, 8 or 16 bits).

    Args:
        stbl: The sample table box.
        count: Number of samples.
        file_size: The file's size in bytes, an upper bound of the sizes' sum.

    Returns:
        int64 (count), bytes.

    Raises:
        Mp4FormatError: The box is too short, or the samples cannot all lie in the file.
    """
    payload, name = _size_box(stbl)
    uniform, _ = unpack("II", payload, 4, name)
    if name == "stz2":
        bits = uniform & 0xFF
        if bits == 4:
            packed = table(payload, 12, (count + 1) // 2, "u1", 1, name)[:, 0]
            sizes = np.stack((packed >> 4, packed & 15), axis=1).reshape(-1)[:count].astype(np.int64)
        elif bits in {8, 16}:
            sizes = table(payload, 12, count, f">u{bits // 8}", 1, name)[:, 0].astype(np.int64)
        else:
            raise Mp4FormatError(f"box 'stz2' has a field size of {bits} bits; it must be 4, 8 or 16")
    elif uniform:
        if uniform * count > file_size:
            raise Mp4FormatError(
                f"{count} samples of {uniform} bytes do not fit the file of {file_size} bytes; it is "
                "truncated"
            )
        sizes = np.full(count, uniform, np.int64)
    else:
        sizes = table(payload, 12, count, ">u4", 1, name)[:, 0].astype(np.int64)
    return sizes


def read_durations(stbl: Container, count: int) -> NDArray[np.int64]:
    """Reads the samples' decode durations from `stts`.

    Args:
        stbl: The sample table box.
        count: Number of samples.

    Returns:
        int64 (count), media ticks, >= 0.

    Raises:
        Mp4FormatError: The entries do not add up to `count`, or a duration is negative as some writers mean
        it
            (2**31 and above): decode time would jump backwards.
    """
    payload = stbl.required(b"stts")
    (rows,) = unpack("I", payload, 4, "stts")
    entries = table(payload, 8, rows, ">u4", 2, "stts").astype(np.int64)
    _check_total(entries[:, 0], count, "stts")
    durations = entries[:, 1]
    backwards = np.flatnonzero((durations >= 1 << 31) & (entries[:, 0] > 0))
    if len(backwards):
        row = int(backwards[0])
        raise Mp4FormatError(
            f"timestamps jump backwards: entry {row} of 'stts' has the duration "
            f"{int(durations[row]) - (1 << 32)} ticks; remux the file"
        )
    return np.repeat(durations, entries[:, 0])


def read_composition_offsets(stbl: Container, count: int) -> NDArray[np.int64]:
    """Reads presentation minus decode times from `ctts`.

    Args:
        stbl: The sample table box.
        count: Number of samples.

    Returns:
        int64 (count), media ticks; zeros without the box. Version 0 is unsigned by the standard, but writers
        put negative numbers there too, and libav reads both versions as signed: so do we.

    Raises:
        Mp4FormatError: The entries do not add up to `count`, or an offset is absurd.
    """
    payload = stbl.optional(b"ctts")
    if payload is None:
        return np.zeros(count, np.int64)
    version, rows = unpack("B3xI", payload, 0, "ctts")
    if version > 1:
        raise Mp4UnsupportedError(f"box 'ctts' has version {version}; versions 0 and 1 are known")
    entries = table(payload, 8, rows, ">u4", 2, "ctts")
    counts = entries[:, 0].astype(np.int64)
    _check_total(counts, count, "ctts")
    offsets = entries[:, 1].astype(np.uint32).view(np.int32).astype(np.int64)
    if rows and int(np.abs(offsets).max()) > _MAX_COMPOSITION_TICKS:
        raise Mp4FormatError(
            f"box 'ctts' holds an offset of more than {_MAX_COMPOSITION_TICKS} ticks; the file is damaged"
        )
    return np.repeat(offsets, counts)


def read_sync_samples(stbl: Container, count: int) -> NDArray[np.int64]:
    """Reads the sync samples from `stss`.

    Args:
        stbl: The sample table box.
        count: Number of samples.

    Returns:
        int64 (k), 0-based; every sample without the box. Ascending order and range are the caller's to check.

    Raises:
        Mp4FormatError: The box is too short.
    """
    payload = stbl.optional(b"stss")
    if payload is None:
        return np.arange(count, dtype=np.int64)
    (rows,) = unpack("I", payload, 4, "stss")
    return table(payload, 8, rows, ">u4", 1, "stss")[:, 0].astype(np.int64) - 1


def read_offsets(
    stbl: Container, sizes: NDArray[np.int64], num_descriptions: int, file_size: int
) -> tuple[NDArray[np.int64], NDArray[np.int32] | None]:
    """Places the samples: `stsc` deals them to chunks, `stco` or `co64` says where the chunks start.

    Args:
        stbl: The sample table box.
        sizes: int64 (n), bytes of each sample.
        num_descriptions: Sample entries of `stsd`.
        file_size: The file's size in bytes.

    Returns:
        (int64 (n) absolute byte offsets, int32 (n) 1-based sample entry of each sample or None when all are
        1).

    Raises:
        Mp4FormatError: The tables contradict each other or the file.
    """
    count = len(sizes)
    chunk_offsets = _chunk_offsets(stbl, file_size)
    payload = stbl.required(b"stsc")
    (rows,) = unpack("I", payload, 4, "stsc")
    entries = table(payload, 8, rows, ">u4", 3, "stsc").astype(np.int64)
    first, per_chunk, description = entries[:, 0], entries[:, 1], entries[:, 2]
    num_chunks = len(chunk_offsets)
    if rows == 0 or int(first[0]) != 1 or not (np.diff(first) > 0).all() or int(first[-1]) > num_chunks:
        raise Mp4FormatError(
            f"box 'stsc' does not number the {num_chunks} chunks in ascending order from 1; the file is "
            "damaged"
        )
    if int(per_chunk.min()) < 1 or int(per_chunk.max()) > count:
        raise Mp4FormatError(f"box 'stsc' has a chunk without samples or with more than all {count} samples")
    if int(description.min()) < 1 or int(description.max()) > num_descriptions:
        raise Mp4FormatError(f"box 'stsc' uses a sample entry beyond the {num_descriptions} of 'stsd'")
    chunks = np.diff(first, append=num_chunks + 1)
    total = int((chunks * per_chunk).sum())  # chunks <= 2**32, samples <= 2**24: no overflow
    if total != count:
        raise Mp4FormatError(f"box 'stsc' places {total} samples, but there are {count}; the file is damaged")
    samples_of_chunk = np.repeat(per_chunk, chunks)
    before = np.cumsum(sizes) - sizes
    first_sample = np.cumsum(samples_of_chunk) - samples_of_chunk
    offsets = np.repeat(chunk_offsets - before[first_sample], samples_of_chunk) + before
    if (description == 1).all():
        return offsets, None
    return offsets, np.repeat(description, chunks * per_chunk).astype(np.int32)


def _chunk_offsets(stbl: Container, file_size: int) -> NDArray[np.int64]:
    narrow, wide = stbl.optional(b"stco"), stbl.optional(b"co64")
    if (narrow is None) == (wide is None):
        raise Mp4FormatError("box 'stbl' must have exactly one of 'stco' and 'co64'; the file is damaged")
    payload, name, dtype = (wide, "co64", ">u8") if wide is not None else (narrow, "stco", ">u4")
    payload = cast("memoryview", payload)
    (rows,) = unpack("I", payload, 4, name)
    offsets = table(payload, 8, rows, dtype, 1, name)[:, 0]
    if rows and int(offsets.max()) > file_size:
        raise Mp4FormatError(
            f"box '{name}' places a chunk at byte {int(offsets.max())}, beyond the end of the file "
            f"({file_size} bytes): it is truncated or its offsets are broken"
        )
    return offsets.astype(np.int64)


def _size_box(stbl: Container) -> tuple[memoryview, str]:
    plain, compact = stbl.optional(b"stsz"), stbl.optional(b"stz2")
    if plain is not None and compact is None:
        return plain, "stsz"
    if compact is not None and plain is None:
        return compact, "stz2"
    raise Mp4FormatError("box 'stbl' must have exactly one of 'stsz' and 'stz2'; the file is damaged")


def _check_total(counts: NDArray[np.int64], count: int, name: str) -> None:
    total = int(counts.sum())  # at most 2**23 rows of less than 2**32: no overflow
    if total != count:
        raise Mp4FormatError(
            f"box '{name}' covers {total} samples, but there are {count}; the file is damaged"
        )
