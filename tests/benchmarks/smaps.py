"""What a process's memory is made of, by the kind of its mappings (Linux)."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_HEAD = re.compile(r"[0-9a-f]+-[0-9a-f]+ \S+ [0-9a-f]+ \S+ \d+ *(.*)")
_SIZE = re.compile(r"(Pss|Private_Clean|Private_Dirty): +(\d+) kB")

HEAP = "anonymous heap"
"""The C heap and anonymous `mmap`: Python objects, NumPy arrays, decoded frames, thread stacks."""
SHARED = "shared memory"
"""Batches on their way to the training process, counters."""
FFMPEG = "FFmpeg libraries"
TORCH = "torch libraries"
LIBRARIES = "other libraries"
INDEX = "mapped index"
FILES = "other files"
KINDS = (HEAP, SHARED, FFMPEG, TORCH, LIBRARIES, INDEX, FILES)

_FFMPEG_NAME = re.compile(r"lib(av|sw|dav1d|x26|vpx|aom|svtav1|SvtAv1|postproc)")


class Mapping(NamedTuple):
    """One mapping of a process; sizes in KiB."""

    name: str
    pss: int
    private: int


class Share(NamedTuple):
    """Memory of one kind, MiB: proportional (shared pages count once over all sharers) and private."""

    pss_mib: float
    private_mib: float


def parse(text: str) -> Iterator[Mapping]:
    """Read the mappings of a process.

    Args:
        text: Content of `/proc/PID/smaps`.

    Yields:
        The mappings.
    """
    name: str | None = None
    sizes: dict[str, int] = {}
    for line in [*text.splitlines(), "0-0 ---p 0 00:00 0"]:
        head = _HEAD.fullmatch(line)
        if head is None:
            size = _SIZE.fullmatch(line.strip())
            if size is not None:
                sizes[size[1]] = int(size[2])
            continue
        if name is not None:
            private = sizes.get("Private_Clean", 0) + sizes.get("Private_Dirty", 0)
            yield Mapping(name, sizes.get("Pss", 0), private)
        name, sizes = head[1].strip(), {}


def kind_of(name: str) -> str:
    """Say what a mapping is for.

    Args:
        name: Its name in `/proc/PID/smaps`; empty for anonymous memory.

    Returns:
        One of `KINDS`.
    """
    if not name or name.startswith("["):
        return HEAP
    if name.startswith(("/dev/shm/", "/memfd:", "/SYSV", "/dev/zero", "/torch_")):  # noqa: S108
        return SHARED
    path = PurePosixPath(name.removesuffix(" (deleted)"))
    folders = set(path.parts[:-1])
    if folders & {"streaming-indexes", "streaming-sidecars"}:
        return INDEX
    if folders & {"av.libs", "av"} or _FFMPEG_NAME.match(path.name):
        return FFMPEG
    if folders & {"torch", "torchvision", "torchcodec", "nvidia", "triton"}:
        return TORCH
    if ".so" in path.name or path.name.startswith("python"):
        return LIBRARIES
    return FILES


def add_up(text: str) -> dict[str, Share]:
    """Add up a process's mappings by kind.

    Args:
        text: Content of `/proc/PID/smaps`.

    Returns:
        For each of `KINDS` its memory.
    """
    sums = {kind: [0, 0] for kind in KINDS}
    for mapping in parse(text):
        one = sums[kind_of(mapping.name)]
        one[0] += mapping.pss
        one[1] += mapping.private
    return {
        kind: Share(round(pss / 1024, 1), round(private / 1024, 1)) for kind, (pss, private) in sums.items()
    }


def breakdown(pid: int) -> dict[str, Share]:
    """Say what a process's memory is made of.

    Args:
        pid: The process.

    Returns:
        For each of `KINDS` its memory.
    """
    return add_up(Path(f"/proc/{pid}/smaps").read_text())
