"""The decoder configuration of a sample entry, as libav's own demuxer would hand it to the decoder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lerobot_streaming.errors import Mp4FormatError, Mp4UnsupportedError
from lerobot_streaming.index.boxes import unpack
from lerobot_streaming.index.sample_entries import entry_children, sample_entries

if TYPE_CHECKING:
    from lerobot_streaming.index.boxes import Box

# Sample entry -> (libav codec, box with the configuration). The codes are those of ISO/IEC 14496-15 (h264,
# hevc, vvc), the AV1 and VP codec ISO bindings, and libavformat/isom_tags.c for the rest.
_ENTRIES: dict[bytes, tuple[str, bytes | None]] = {
    b"avc1": ("h264", b"avcC"),
    b"avc3": ("h264", b"avcC"),
    b"hvc1": ("hevc", b"hvcC"),
    b"hev1": ("hevc", b"hvcC"),
    b"vvc1": ("vvc", b"vvcC"),
    b"vvi1": ("vvc", b"vvcC"),
    b"av01": ("av1", b"av1C"),
    # `vpcC` describes the stream for players; libav's decoders read everything from the packets.
    b"vp08": ("vp8", None),
    b"vp09": ("vp9", None),
    b"FFV1": ("ffv1", b"glbl"),
    b"png ": ("png", None),
    b"jpeg": ("mjpeg", None),
    b"mjpg": ("mjpeg", None),
}

# MPEG-4 object type indications (ISO/IEC 14496-1, table 5, and mp4ra.org) of `mp4v` entries.
_OBJECT_TYPES: dict[int, str] = {
    0x20: "mpeg4",
    0x60: "mpeg2video",
    0x61: "mpeg2video",
    0x62: "mpeg2video",
    0x63: "mpeg2video",
    0x64: "mpeg2video",
    0x65: "mpeg2video",
    0x6A: "mpeg1video",
    0x6C: "mjpeg",
    0x6D: "png",
    0xB1: "vp9",
}

_ES, _DECODER_CONFIG, _DECODER_SPECIFIC = 3, 4, 5  # Descriptor tags, ISO/IEC 14496-1, table 1.


def codec_extradata(stsd_body: bytes, index: int = 1) -> tuple[str, bytes]:
    """Finds the decoder and its configuration, so that packets can go to it without opening a container.

    Args:
        stsd_body: Payload of the `stsd` box.
        index: 1-based number of the sample entry; `SourceFile.description_index` names it where it is not 1.

    Returns:
        (canonical libav codec name, extradata). The name is the codec's (`h264`, `hevc`, `av1`, `vp9`,
        `mpeg4`, `ffv1`, ...); libav's own `av1` decoder needs hardware, so for `av1` open `libdav1d`. The
        extradata equals `stream.codec_context.extradata` of libav's demuxer byte for byte; it is empty where
        libav has none.

    Raises:
        Mp4FormatError: The box is damaged or has no such entry.
        Mp4UnsupportedError: The codec is not known.
    """
    entry = _entry(stsd_body, index)
    if entry.kind == b"mp4v":
        return _from_descriptors(entry)
    known = _ENTRIES.get(entry.kind)
    if known is None:
        raise Mp4UnsupportedError(
            f"the codec of sample entry {entry.name!r} is not known; re-encode the video as h264, hevc or av1"
        )
    codec, box = known
    if box is None:
        return codec, b""
    payload = entry_children(entry).optional(box)
    if payload is None:
        if codec in {"ffv1", "h264"}:  # FFV1 version 1 and `avc3` may carry everything in the packets.
            return codec, b""
        raise Mp4FormatError(
            f"sample entry {entry.name!r} lacks its box '{box.decode()}'; the file is damaged"
        )
    return codec, bytes(payload)


def coded_size(stsd_body: bytes, index: int = 1) -> tuple[int, int]:
    """Reads the picture size of a sample entry (ISO/IEC 14496-12, section 12.1.3).

    Decoders whose packets do not carry the size (ffv1) need it before they are opened.

    Args:
        stsd_body: Payload of the `stsd` box.
        index: 1-based number of the sample entry.

    Returns:
        (width, height) in pixels.

    Raises:
        Mp4FormatError: The box is damaged or has no such entry.
    """
    entry = _entry(stsd_body, index)
    width, height = unpack("HH", entry.payload, 24, entry.name)
    return width, height


def _entry(stsd_body: bytes, index: int) -> Box:
    entries = sample_entries(stsd_body)
    if not 1 <= index <= len(entries):
        raise Mp4FormatError(f"there is no sample entry {index} in 'stsd', which has {len(entries)}")
    return entries[index - 1]


def _from_descriptors(entry: Box) -> tuple[str, bytes]:
    """Reads object type and DecoderSpecificInfo from `esds` (ISO/IEC 14496-1, section 7.2.6)."""
    esds = entry_children(entry).required(b"esds")
    body = _descriptor(esds[4:], _ES)
    flags = unpack("B", body, 2, "esds")[0]
    position = 3
    if flags & 0x80:  # depends on another stream
        position += 2
    if flags & 0x40:  # URL
        position += 1 + unpack("B", body, position, "esds")[0]
    if flags & 0x20:  # clock of another stream
        position += 2
    config = _descriptor(body[position:], _DECODER_CONFIG)
    object_type = unpack("B", config, 0, "esds")[0]
    codec = _OBJECT_TYPES.get(object_type)
    if codec is None:
        raise Mp4UnsupportedError(
            f"MPEG-4 object type 0x{object_type:02x} is not a known video codec; re-encode the video as h264"
        )
    specific = config[13:]
    if len(specific) >= 2 and specific[0] == _DECODER_SPECIFIC:
        return codec, bytes(_descriptor(specific, _DECODER_SPECIFIC))
    return codec, b""


def _descriptor(data: memoryview, tag: int) -> memoryview:
    """Opens the descriptor at the start of `data`; its length has 7 bits per byte, at most 4 bytes."""
    length = 0
    for position in range(1, 5):
        byte = unpack("B", data, position, "esds")[0]
        length = length << 7 | byte & 0x7F
        if not byte & 0x80:
            break
    else:
        raise Mp4FormatError("a descriptor of 'esds' has a length of more than 4 bytes; the file is damaged")
    body = data[position + 1 :]
    if data[0] != tag or length > len(body):
        raise Mp4FormatError(f"box 'esds' lacks descriptor {tag} or it is cut off; the file is damaged")
    return body[:length]
