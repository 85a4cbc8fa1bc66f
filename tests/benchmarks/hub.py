"""Measure streaming from the loopback Hub over a shaped link, and print the numbers as JSON.

Run from the repository's root:

    python -m tests.benchmarks.hub

It makes a dataset of about 200 video files (three cameras, episodes of 250 frames), serves it, private, from
a process of its own over a link of 1 Gbit/s and 50 ms, and measures

* the first batch, from the construction of the dataset on, with empty caches, with and without a published
  sidecar; every module has been imported before;
* the steady speed against that of the local directory, in alternating windows of one run;
* bytes and requests of one whole pass over some of the episodes.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.benchmarks.served import REPO, TOKEN, ServedHub

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lerobot_streaming import StreamingLeRobotDataset

LINK = {"bandwidth_bytes_per_s": 125e6, "latency_s": 0.05}
BATCH_SIZE = 16
WORKERS = 2
ACTION_STEPS = 50


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line.

    Args:
        arguments: The arguments; None for those of the process.

    Returns:
        The parsed arguments.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--dir",
        type=Path,
        default=Path(tempfile.gettempdir()) / "lerobot-streaming-bench",
        help="keeps the made dataset between runs (default: %(default)s)",
    )
    parser.add_argument("--files", type=int, default=67, help="video files of each of the three cameras")
    parser.add_argument("--episodes-per-file", type=int, default=8, help="(default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="pairs of windows (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=8.0, help="of a window (default: %(default)s)")
    parser.add_argument(
        "--pass-files", type=int, default=8, help="files per camera of the pass whose traffic is counted"
    )
    parser.add_argument("--starts", type=int, default=3, help="first batches of each kind")
    parser.add_argument("--only", choices=("start", "steady", "traffic"), help="measure only this")
    return parser.parse_args(arguments)


def in_process[T](function: Callable[..., T], home: Path, endpoint: str, *arguments: Any) -> T:
    """Call a function in a new process with caches of its own and a Hub.

    Args:
        function: A function of this module.
        home: Directory of the caches.
        endpoint: URL of the Hub.
        *arguments: Its arguments.

    Returns:
        What it gave.
    """
    variables = {
        "HF_HOME": str(home / "huggingface"),
        "HF_LEROBOT_HOME": str(home / "lerobot"),
        "HF_ENDPOINT": endpoint,
        "HF_TOKEN": TOKEN,
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        # One process for each, because the client reads its settings when it is imported.
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            return pool.submit(function, *arguments).result()
    finally:
        os.environ.clear()
        os.environ.update(before)


def _loader(dataset: StreamingLeRobotDataset) -> Iterator[Any]:
    from torch.utils.data import DataLoader

    # Named, because a spawned process would spawn its workers, which then import everything anew.
    return iter(
        DataLoader(dataset, batch_size=BATCH_SIZE, num_workers=WORKERS, multiprocessing_context="fork")
    )


def _open(root: Path | None, **arguments: Any) -> StreamingLeRobotDataset:
    from lerobot_streaming import StreamingLeRobotDataset

    deltas = {"action": [step / 15 for step in range(ACTION_STEPS)]}
    return StreamingLeRobotDataset(REPO, root, delta_timestamps=deltas, return_uint8=True, **arguments)


def _disk_bytes() -> int:
    homes = [Path(os.environ[name]) for name in ("HF_HOME", "HF_LEROBOT_HOME")]
    return sum(
        path.stat().st_size
        for home in homes
        for path in home.rglob("*")
        if path.is_file() and not path.is_symlink()
    )


def first_batch(root: Path) -> dict[str, float]:
    """Measure the first batch.

    Args:
        root: The local directory; streaming a little of it imports every module.

    Returns:
        Seconds to the open dataset and to the first batch, and bytes on the disk before and after; and
        seconds to the first batch from the local directory, which say how busy the machine is.
    """
    for module in ("httpx", "huggingface_hub.utils", "lerobot_streaming.storage.hub"):
        import_module(module)
    warm = _open(root, episodes=[0, 1])
    next(_loader(warm))
    if warm._completion is not None:
        # The rest of the local index belongs to no first batch of the Hub.
        warm._completion.join(60)
    before = _disk_bytes()
    begin = time.perf_counter()
    dataset = _open(None)
    opened = time.perf_counter() - begin
    batches = _loader(dataset)
    next(batches)
    found = {
        "open_s": opened,
        "first_batch_s": time.perf_counter() - begin,
        "disk_before": before,
        "disk_after": _disk_bytes(),
    }
    del batches
    for _ in range(2):  # The first one makes the index.
        begin = time.perf_counter()
        batches = _loader(_open(root))
        next(batches)
        found["local_first_batch_s"] = time.perf_counter() - begin
        del batches
    return found


def steady(root: Path, rounds: int, seconds: float) -> dict[str, Any]:
    """Measure Hub and local directory in alternating windows.

    Args:
        root: The local directory.
        rounds: Pairs of windows.
        seconds: Length of a window.

    Returns:
        Samples per second of both, all windows and medians, and their ratio.
    """
    datasets = {"hub": _open(None, repeat=True), "local": _open(root, repeat=True)}
    loaders = {name: _loader(dataset) for name, dataset in datasets.items()}
    speeds: dict[str, list[float]] = {name: [] for name in loaders}
    for number in range(rounds + 1):
        for name in sorted(loaders, reverse=bool(number % 2)):
            # What the loader has ready from the time when the other one ran does not count.
            _take(loaders[name], 2.0 if number else 10.0)
            samples, elapsed = _take(loaders[name], seconds)
            if number:
                speeds[name].append(samples / elapsed)
    medians = {name: statistics.median(every) for name, every in speeds.items()}
    ratios = [hub / local for hub, local in zip(speeds["hub"], speeds["local"], strict=True)]
    return {"samples_per_s": medians, "windows": speeds, "hub_to_local": statistics.median(ratios)}


def _take(batches: Iterator[Any], seconds: float) -> tuple[int, float]:
    samples, begin = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - begin) < seconds:
        samples += len(next(batches)["index"])
    return samples, elapsed


def whole_pass(episodes: int) -> dict[str, Any]:
    """Stream every frame of some episodes once.

    Args:
        episodes: How many.

    Returns:
        Samples, the bytes of the episodes' own video samples and rows, the counters, and bytes on the disk.
    """
    from lerobot_streaming.episodes.catalog import VideoCatalog

    before = _disk_bytes()
    dataset = _open(None, episodes=list(range(episodes)))
    layout, index = dataset._open.layout, dataset._open.index
    assert index is not None
    catalog = VideoCatalog(layout, index, 1e-4)
    own = sum(
        length
        for position in range(layout.num_episodes)
        for camera in layout.cameras
        for _, length in catalog.plan(position, camera).payload_runs
    )
    samples = sum(len(batch["index"]) for batch in _loader(dataset))
    return {
        "samples": samples,
        "own_video_bytes": own,
        "stats": dataset.stats()["total"],
        "disk_before": before,
        "disk_after": _disk_bytes(),
    }


def publish() -> int:
    """Publish the dataset's sidecar with the command.

    Returns:
        Its exit code.
    """
    from lerobot_streaming.cli.build_mp4_sidecar import main as build

    return build(["--repo-id", REPO, "--push"])


def describe_traffic(
    log: Sequence[tuple[str, str, str, int, float]], result: dict[str, Any]
) -> dict[str, Any]:
    """Say what a pass cost.

    Args:
        log: The Hub's log of it.
        result: What `whole_pass` gave.

    Returns:
        Bytes fetched by the episodes' own bytes, requests per sample, questions per file and worker.
    """
    payload = [entry for entry in log if "/data/" in entry[2] or "/videos/" in entry[2]]
    videos = [entry for entry in payload if entry[2].endswith(".mp4")]
    asked = Counter(path for host, _, path, *_ in payload if host == "hub")
    samples = result["samples"]
    sent = sum(size for host, _, _, size, _ in videos if host == "cdn")
    return {
        "samples": samples,
        "video_bytes_by_own": sent / result["own_video_bytes"],
        "all_bytes_by_own_video": sum(entry[3] for entry in log) / result["own_video_bytes"],
        "requests_per_sample": len(payload) / samples,
        "of_them_to_the_resolver": sum(asked.values()) / samples,
        "all_requests_of_the_run": len(log),
        "resolver_per_file_and_process_max": max(asked.values()),
        "processes": WORKERS + 1,
        "counted_by_the_library": {name: result["stats"][name] for name in ("requests", "retries")},
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the dataset, measure, print the JSON.

    Args:
        arguments: The command line; None for that of the process.
    """
    options = parse_arguments(arguments)
    os.environ["HF_HOME"] = str(options.dir / "huggingface")
    os.environ["HF_LEROBOT_HOME"] = str(options.dir / "lerobot")
    os.environ["HF_HUB_OFFLINE"] = "1"
    from tests.benchmarks.many_files import make_many_files
    from tests.benchmarks.shapes import describe

    options.dir.mkdir(parents=True, exist_ok=True)
    root = make_many_files(
        options.dir, files_per_camera=options.files, episodes_per_file=options.episodes_per_file
    )
    results: dict[str, Any] = {"data": describe(root), "link": LINK}
    with tempfile.TemporaryDirectory(prefix="hub-bench-") as scratch, ServedHub(root) as hub:
        homes = (Path(scratch) / str(number) for number in range(1000))

        def run[T](function: Callable[..., T], *given: Any) -> T:
            return in_process(function, next(homes), hub.endpoint, *given)

        def starts(name: str) -> None:
            hub.ask("shape", **LINK)
            results[name] = [run(first_batch, root) for _ in range(options.starts)]

        if options.only in {None, "start"}:
            starts("first_batch_without_sidecar")
        hub.ask("shape")
        assert run(publish) == 0
        if options.only in {None, "start"}:
            starts("first_batch_with_sidecar")
        hub.ask("shape", **LINK)
        if options.only in {None, "traffic"}:
            hub.ask("clear")
            found = run(whole_pass, options.pass_files * options.episodes_per_file)
            results["traffic"] = describe_traffic(hub.ask("log"), found)
            results["disk"] = {name: found[name] for name in ("disk_before", "disk_after")}
        if options.only in {None, "steady"}:
            results["steady"] = run(steady, root, options.rounds, options.seconds)
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
