"""The sample entries of `stsd`: which codec, and is the media readable at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lerobot_streaming.errors import Mp4FormatError, Mp4UnsupportedError
from lerobot_streaming.index.boxes import Box, Container, iterate, unpack

if TYPE_CHECKING:
    from collections.abc import Iterable

VISUAL_FIELDS_BYTES = 78
"""Fixed fields of a VisualSampleEntry before its child boxes (ISO/IEC 14496-12, section 12.1.3)."""

_ENCRYPTED = frozenset({b"encv", b"drmi", b"enca"})


def sample_entries(stsd_body: bytes | memoryview) -> list[Box]:
    """Lists the sample entries of a video track.

    Args:
        stsd_body: Payload of the `stsd` box: version and flags, number of entries, entries.

    Returns:
        One box per entry, at least one.

    Raises:
        Mp4FormatError: The entries do not fit the box, or their number is not the stated one.
    """
    payload = memoryview(stsd_body)
    (count,) = unpack("I", payload, 4, "stsd")
    entries = list(iterate(payload[8:], "stsd"))
    if count != len(entries) or not entries:
        raise Mp4FormatError(f"box 'stsd' claims {count} sample entries, but holds {len(entries)}")
    return entries


def entry_children(entry: Box) -> Container:
    """Opens the child boxes of a visual sample entry.

    Args:
        entry: The sample entry.

    Returns:
        Its child boxes.

    Raises:
        Mp4FormatError: The entry is shorter than its fixed fields, or a child does not fit.
    """
    if len(entry.payload) < VISUAL_FIELDS_BYTES:
        raise Mp4FormatError(
            f"sample entry {entry.name!r} has {len(entry.payload)} bytes, fewer than the "
            f"{VISUAL_FIELDS_BYTES} of a video sample entry; the file is damaged"
        )
    return Container(entry.payload[VISUAL_FIELDS_BYTES:], entry.name)


def check_entries(stsd_body: bytes | memoryview) -> list[Box]:
    """Lists the sample entries of a video track and refuses encrypted ones.

    Args:
        stsd_body: Payload of the `stsd` box.

    Returns:
        One box per entry, at least one.

    Raises:
        Mp4FormatError: As in `sample_entries` and `entry_children`.
        Mp4UnsupportedError: An entry is encrypted (common encryption, ISO/IEC 23001-7).
    """
    entries = sample_entries(stsd_body)
    for entry in entries:
        if entry.kind in _ENCRYPTED or _has(entry_children(entry), (b"sinf",)):
            raise Mp4UnsupportedError(
                f"the media is encrypted (sample entry {entry.name!r}); decrypt the file before training"
            )
    return entries


def _has(container: Container, kinds: Iterable[bytes]) -> bool:
    return any(container.all(kind) for kind in kinds)
