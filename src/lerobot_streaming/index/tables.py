"""What is known about one MP4 file once its `moov` box has been read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lerobot_streaming.index.columns import Column

MAX_SAMPLES = 1 << 24
"""Samples that one file may have (155 hours at 30 fps): compact tables can claim billions in a few bytes."""


# Arrays have no single truth value, so the generated `==` would raise: identity comparison instead.
@dataclass(frozen=True, slots=True, eq=False)
class SampleTable:
    """The video samples of one file in decode order; the columns are those of the sidecar (schema 3).

    A column is an array or computes its entries: take slices of it, or entries by number.

    Attributes:
        pts_seconds: float64 (n). Presentation times in seconds, with the edit list applied.
        durations: int64 (n). Decode durations in media ticks.
        composition_offsets: int64 (n). Presentation minus decode time in media ticks; zeros without `ctts`.
        sizes: int64 (n). Bytes.
        offsets: int64 (n). Absolute byte offset in the file.
        sync_samples: int64 (k). 0-based numbers of the sync samples, ascending.
    """

    pts_seconds: Column[np.float64]
    durations: Column[np.int64]
    composition_offsets: Column[np.int64]
    sizes: Column[np.int64]
    offsets: Column[np.int64]
    sync_samples: Column[np.int64]

    @property
    def num_samples(self) -> int:
        """Number of samples, n."""
        return len(self.sizes)

    def find_fault(self, file_size: int) -> str | None:
        """Looks for a value that cannot be true of a file.

        Args:
            file_size: The file's size in bytes.

        Returns:
            What is wrong, or None: lengths equal, times finite, every sample inside the file, sync samples
            ascending and in range.
        """
        n = self.num_samples
        columns: dict[str, Column[Any]] = {
            "sample_pts": self.pts_seconds,
            "sample_durations": self.durations,
            "sample_composition_offsets": self.composition_offsets,
            "sample_offsets": self.offsets,
        }
        for name, column in columns.items():
            if len(column) != n:
                return f"{name} has {len(column)} entries, but sample_sizes has {n}"
        if n == 0:
            return "there are no samples"
        if not np.isfinite(self.pts_seconds[:]).all():
            return "sample_pts holds a time that is not finite"
        durations, sizes, offsets = self.durations[:], self.sizes[:], self.offsets[:]
        if int(durations.min()) < 0:
            return f"sample {int(durations.argmin())} has a negative duration: decode time goes backwards"
        if int(sizes.min()) < 0 or int(offsets.min()) < 0:
            return "a sample has a negative size or offset"
        # The subtraction cannot overflow where a sum of two hostile numbers could.
        outside = np.flatnonzero(offsets > file_size - sizes)
        if len(outside):
            k = int(outside[0])
            return (
                f"sample {k} lies at byte {int(offsets[k])} with {int(sizes[k])} bytes, beyond the end of "
                f"the file ({file_size} bytes)"
            )
        return self._find_sync_fault()

    def _find_sync_fault(self) -> str | None:
        sync = self.sync_samples[:]
        if len(sync) == 0:
            return None
        if int(sync[0]) < 0 or int(sync[-1]) >= self.num_samples:
            return (
                f"sync samples {int(sync[0])}..{int(sync[-1])} are outside the {self.num_samples} samples "
                "(0-based)"
            )
        if len(sync) > 1 and not (sync[1:] > sync[:-1]).all():
            return "the sync samples are not ascending"
        return None


@dataclass(frozen=True, slots=True)
class Mp4Header:
    """The file-level facts of one MP4, as the sidecar keeps them.

    Attributes:
        ftyp: The whole `ftyp` box, or a generic one when the file has none.
        moov_offset: Byte offset of the `moov` box.
        mdat_offset: Byte offset of the first `mdat` box.
        mdat_payload_offset: Byte offset behind that box's header.
        mdat_payload_size: Bytes of that box's payload.
        faststart: True when `moov` comes before `mdat`.
        codec: Four-character code of the first sample entry.
        timescale: Media ticks per second (`mdhd`).
        duration: Media duration in ticks.
        track_id: The video track's number (`tkhd`).
        width: Display width in pixels (`tkhd`).
        height: Display height in pixels (`tkhd`).
        stsd_body: Payload of the `stsd` box, with every sample entry.
    """

    ftyp: bytes
    moov_offset: int
    mdat_offset: int
    mdat_payload_offset: int
    mdat_payload_size: int
    faststart: bool
    codec: str
    timescale: int
    duration: int
    track_id: int
    width: int
    height: int
    stsd_body: bytes


@dataclass(frozen=True, slots=True, eq=False)
class SourceFile:
    """One indexed MP4 file.

    Attributes:
        path: POSIX path relative to the data root.
        size: Bytes.
        header: File-level facts.
        samples: The video samples.
        description_index: int32 (n). 1-based number of each sample's entry in `stsd`, or None when every
            sample uses the first, which is nearly always so.
    """

    path: str
    size: int
    header: Mp4Header
    samples: SampleTable
    description_index: NDArray[np.int32] | None = None
