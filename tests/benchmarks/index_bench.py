"""Measure the index on synthetic data sets.

Run from the repository's root:

    python -m tests.benchmarks.index_bench mapped

`mapped`: a sidecar of `--frames` frames in `--files` files, written by the library itself, and the mapped
index that is derived from it. Everything lies in a temporary directory and is removed afterwards.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import os
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lerobot_streaming.episodes.mini_mp4_sizes import mini_mp4_sizes
from lerobot_streaming.index import (
    FrameIndex,
    Mp4Header,
    SampleTable,
    SidecarIdentity,
    SourceFile,
    write_sidecar,
)
from lerobot_streaming.index.mapped import open_mapped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_HEADER = Mp4Header(
    ftyp=b"\0\0\0\x1cftypisom\0\0\2\0isomiso2mp41",
    moov_offset=0,
    mdat_offset=0,
    mdat_payload_offset=48,
    mdat_payload_size=0,
    faststart=False,
    codec="av01",
    timescale=15360,
    duration=0,
    track_id=1,
    width=640,
    height=480,
    stsd_body=bytes(140),
)
_EPISODE_FRAMES = 250


def synthetic_file(path: str, frames: int, seed: int) -> SourceFile:
    """Makes the table of a video as lerobot's default encoder writes it: constant rate, AV1, g=2.

    Args:
        path: Its path.
        frames: Its frames.
        seed: Seed of the sizes.

    Returns:
        The indexed file.
    """
    sizes = np.random.default_rng(seed).integers(1500, 12_000, frames)
    numbers = np.arange(frames)
    table = SampleTable(
        pts_seconds=numbers * 512 / 15360,
        durations=np.full(frames, 512),
        composition_offsets=np.zeros(frames, np.int64),
        sizes=sizes,
        offsets=np.cumsum(sizes) - sizes + 48,
        sync_samples=numbers[::2],
    )
    size = int(sizes.sum()) + 48
    return SourceFile(path, size, dataclasses.replace(_HEADER, mdat_payload_size=size - 48), table)


def synthetic_files(frames: int, files: int) -> Iterator[SourceFile]:
    """Makes many such tables, one at a time.

    Args:
        frames: Frames of all files together.
        files: Number of files.

    Yields:
        The files in ascending order of their paths.
    """
    for i in range(files):
        path = f"videos/observation.images.front/chunk-{i // 1000:03}/file-{i % 1000:03}.mp4"
        yield synthetic_file(path, frames // files, i)


def _seconds(action: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        gc.collect()
        begin = time.perf_counter()
        action()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def _forget_pages(path: Path) -> None:
    """Asks the system to drop a file's pages from its cache."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def bench_mapped(arguments: argparse.Namespace) -> None:
    """Prints what deriving, opening and using a mapped index costs.

    Args:
        arguments: `frames` and `files`.
    """
    with tempfile.TemporaryDirectory(prefix="index-bench-") as folder:
        home = Path(folder)
        identity = SidecarIdentity("bench/mapped", "main", "/bench")
        sidecar = identity.cache_path(home)
        sidecar.parent.mkdir(parents=True)
        begin = time.perf_counter()
        write_sidecar(sidecar, identity, synthetic_files(arguments.frames, arguments.files))
        seconds = time.perf_counter() - begin
        print(f"sidecar: {sidecar.stat().st_size / 2**20:.1f} MiB, written in {seconds:.1f} s")
        begin = time.perf_counter()
        index = open_mapped(sidecar, home, lock_timeout_s=60)
        print(f"derive: {time.perf_counter() - begin:.2f} s")
        size = index.path.stat().st_size
        print(
            f"index: {size / 2**20:.1f} MiB, {size / index.num_samples:.3f} bytes a frame with all headers "
            f"({index.num_samples} frames, {len(index.files)} files)"
        )
        path = index.path
        index.close()
        del index

        def cold() -> None:
            open_mapped(sidecar, home, lock_timeout_s=60).close()

        _forget_pages(path)
        _forget_pages(sidecar)
        print(f"open, cold: {_seconds(cold, 1) * 1e3:.2f} ms")
        print(f"open, warm: {_seconds(cold, 9) * 1e3:.2f} ms")
        index = open_mapped(sidecar, home, lock_timeout_s=60)
        names = _seconds(lambda: index.files, 1)
        print(f"names of all files, once: {names * 1e3:.2f} ms")
        paths = list(index.files)
        some = paths[:: len(paths) // 50 or 1]
        first = [_seconds(partial(index.source, path), 1) for path in some]
        print(f"source(), first: {statistics.median(first) * 1e6:.0f} us (median of {len(first)} files)")
        _bench_use(index.source(paths[0]))


def _bench_use(source: SourceFile) -> None:
    """Prints what the spans and sizes of one file's episodes cost."""
    count = source.samples.num_samples
    starts = np.arange(0, count, _EPISODE_FRAMES)
    times = np.arange(count) / 30
    spans = _seconds(lambda: FrameIndex(source.samples).decode_spans(times, starts), 21)
    firsts, lasts = FrameIndex(source.samples).decode_spans(times, starts)
    sizes = _seconds(lambda: mini_mp4_sizes(source, firsts, lasts), 21)
    print(
        f"one file of {count} frames, {len(starts)} episodes: spans {spans * 1e3:.2f} ms, "
        f"sizes {sizes * 1e3:.2f} ms"
    )


def main() -> None:
    """Reads the command line and runs one benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    mapped = commands.add_parser("mapped", help="derive, open and use a mapped index")
    mapped.add_argument("--frames", type=int, default=10_000_000, help="frames of all files together")
    mapped.add_argument("--files", type=int, default=2000, help="video files")
    mapped.set_defaults(run=bench_mapped)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
