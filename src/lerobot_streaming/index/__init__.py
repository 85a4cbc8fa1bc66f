"""Where each video sample lies: box reader, sample tables, the sidecar file, and how it is found."""

from __future__ import annotations

from lerobot_streaming.index.builder import build_sidecar, index_files
from lerobot_streaming.index.extradata import codec_extradata, coded_size
from lerobot_streaming.index.identity import SidecarIdentity
from lerobot_streaming.index.mp4 import read_mp4
from lerobot_streaming.index.resolve import IndexRequest, resolve_index
from lerobot_streaming.index.sample_index import SampleIndex
from lerobot_streaming.index.sidecar import Sidecar, open_sidecar
from lerobot_streaming.index.sidecar_writer import write_sidecar
from lerobot_streaming.index.spans import FrameIndex
from lerobot_streaming.index.tables import Mp4Header, SampleTable, SourceFile

__all__ = [
    "FrameIndex",
    "IndexRequest",
    "Mp4Header",
    "SampleIndex",
    "SampleTable",
    "Sidecar",
    "SidecarIdentity",
    "SourceFile",
    "build_sidecar",
    "codec_extradata",
    "coded_size",
    "index_files",
    "open_sidecar",
    "read_mp4",
    "resolve_index",
    "write_sidecar",
]
