"""Measure the MP4 reader and the builder of sidecars.

Run from the repository's root:

    python -m tests.benchmarks.build_bench

It parses the `moov` box of a file of many samples, and indexes directories of many small files, each build in
a process of its own, so that their peaks of memory can be compared. Everything lies in a temporary directory.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from lerobot_streaming.index import read_mp4
from tests.index.long_moov import Sparse, big_head, big_source
from tests.index.videos import video

_BUILD = """
import json, sys, time
from pathlib import Path
from lerobot_streaming.cli.process_facts import peak_rss_mib
from lerobot_streaming.index import SidecarIdentity, build_sidecar
from lerobot_streaming.storage.counted import CountedReader
from lerobot_streaming.storage.local import LocalReader
folder, workers = Path(sys.argv[1]), int(sys.argv[2])
reads, bytes_read = 0, 0
def count(size):
    global reads, bytes_read
    reads, bytes_read = reads + 1, bytes_read + size
reader = CountedReader(LocalReader(folder / "data"), count)
paths = (folder / "data").rglob("*.mp4")
files = {p.relative_to(folder / "data").as_posix(): p.stat().st_size for p in paths}
base = peak_rss_mib()
begin = time.perf_counter()
identity = SidecarIdentity("bench/build", "main", reader.root)
build_sidecar(folder / "x.npz", identity, files, reader, workers=workers)
seconds = time.perf_counter() - begin
peak = peak_rss_mib()
print(json.dumps({"files": len(files), "seconds": seconds, "bytes_read": bytes_read, "reads": reads,
                  "data_bytes": sum(files.values()), "base_mib": base, "peak_mib": peak}))
"""


def bench_parse(samples: int) -> dict[str, float]:
    """Parses a `moov` of many samples.

    Args:
        samples: Samples of the file.

    Returns:
        Milliseconds, median and worst of 21 runs.
    """
    head, payload = big_head(big_source(samples))
    file = Sparse(head, len(head) + payload)
    times = []
    for _ in range(21):
        begin = time.perf_counter()
        read_mp4("long.mp4", file.size, file.read)
        times.append((time.perf_counter() - begin) * 1e3)
    return {"samples": samples, "median_ms": statistics.median(times), "worst_ms": max(times)}


def bench_build(count: int, workers: int) -> dict[str, float]:
    """Indexes many small files in a process of its own.

    Args:
        count: Number of files.
        workers: Files parsed at a time.

    Returns:
        Files, seconds, bytes and reads, and the process's memory before and at its peak.
    """
    with tempfile.TemporaryDirectory(prefix="build-bench-") as folder:
        data = Path(folder) / "data"
        contents = [video("h264 b-frames"), video("h264 faststart"), video("h264 all-intra")]
        for number in range(count):
            path = data / f"chunk-{number // 1000:03}" / f"file-{number % 1000:03}.mp4"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(contents[number % len(contents)])
        program = [sys.executable, "-c", _BUILD, folder, str(workers)]
        done = subprocess.run(program, capture_output=True, text=True, check=True)
        result: dict[str, float] = json.loads(done.stdout)
        return result


def main() -> None:
    """Runs the benchmarks and prints JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--samples", type=int, default=100_000, help="samples of the long file")
    parser.add_argument("--files", type=int, nargs="+", default=[200, 2000], help="small files of each build")
    parser.add_argument("--workers", type=int, default=8, help="files parsed at a time")
    options = parser.parse_args()
    report = {
        "parse": bench_parse(options.samples),
        "build": [bench_build(count, options.workers) for count in options.files],
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
