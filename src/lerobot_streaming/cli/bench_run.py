"""What `lerobot-streaming-bench` does: stream, count, and say what limits."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from torch.utils.data import DataLoader

from lerobot_streaming.cli.process_facts import cpu_seconds, num_cores, pss_mib
from lerobot_streaming.dataset import StreamingLeRobotDataset
from lerobot_streaming.errors import OptionError, StreamingError
from lerobot_streaming.options import OPTION_SPECS

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

_BUSY: Final = 0.85
_SOME: Final = 0.25


@dataclass(frozen=True, slots=True)
class Measurement:
    """What was measured in the timed part of a run. Shares are of the time of all workers.

    Attributes:
        open_s: Seconds to open the dataset.
        first_batch_s: Seconds from the start of the loader to its first batch.
        samples_per_s: Samples delivered per second.
        frames_per_s: Camera frames delivered per second.
        decodes_per_sample: Frames decoded per sample and camera.
        bytes_per_sample: Bytes read per sample.
        requests_per_sample: Reads per sample.
        mib_per_s: MiB read per second.
        retries: Reads that were tried again.
        decode_share: Share of the decode threads' time spent in decoders.
        fetch_share: Reads under way, on average, per worker.
        transform_share: Share of the workers' time spent in image transforms.
        wait_share: Share of the workers' time spent waiting for the next finished sample.
        cpu_share: Share of the machine's cores that the loader's processes used; None if unknown.
        worker_pss_mib: Proportional memory of each worker process, MiB.
        main_pss_mib: Of this process; None if unknown.
        pool_mib: Compressed video held by all workers, MiB.
        frame_cache_mib: Decoded frames held by all workers, MiB.
    """

    open_s: float
    first_batch_s: float
    samples_per_s: float
    frames_per_s: float
    decodes_per_sample: float
    bytes_per_sample: float
    requests_per_sample: float
    mib_per_s: float
    retries: int
    decode_share: float
    fetch_share: float
    transform_share: float
    wait_share: float
    cpu_share: float | None
    worker_pss_mib: list[float]
    main_pss_mib: float | None
    pool_mib: float
    frame_cache_mib: float

    def verdict(self) -> str:
        """Says what limits the throughput."""
        if self.wait_share < _SOME:
            if self.transform_share > self.wait_share and self.transform_share > _SOME:
                return "image transforms: they run in the workers' own threads; more workers share them"
            return (
                "delivery: finished samples wait to be batched and copied to the training process; a larger "
                "batch, fewer bytes per sample (return_uint8=True) or more workers help"
            )
        if self.decode_share > _BUSY or (self.cpu_share or 0) > _BUSY:
            return (
                "decoding: the cores decode all the time, as they should; more cores, smaller pictures or a "
                "larger frame_cache_gb (fewer decodes per sample) help"
            )
        if self.fetch_share > _SOME:
            return (
                f"fetching: decoders wait for bytes, which come at {self.mib_per_s:.1f} MiB/s; a faster "
                "link, a larger prefetch_episodes or more max_num_shards help"
            )
        return "start-up or a short run: nothing was busy all the time; measure for longer with --seconds"


def run(options: argparse.Namespace) -> int:
    """Measures and prints.

    Args:
        options: Checked command line options.

    Returns:
        Exit code.
    """
    from lerobot.datasets.utils import CompatibilityError  # noqa: PLC0415

    try:
        found = measure(options)
    except (StreamingError, OSError, TypeError, ValueError, RuntimeError, CompatibilityError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if options.json is not None:
        Path(options.json).write_text(json.dumps(asdict(found) | {"verdict": found.verdict()}, indent=1))
    print(_text(found))
    return 0


def measure(options: argparse.Namespace) -> Measurement:
    """Streams as the options say.

    Args:
        options: Checked command line options.

    Returns:
        What was measured.

    Raises:
        StreamingError: The dataset cannot be streamed.
    """
    begin = perf_counter()
    dataset = _open(options)
    open_s = perf_counter() - begin
    loader = DataLoader(dataset, batch_size=options.batch_size, num_workers=options.workers)
    begin = perf_counter()
    batches = iter(loader)
    next(batches)
    first_batch_s = perf_counter() - begin
    _take(batches, options.warmup)
    workers = [child.pid for child in multiprocessing.active_children() if child.pid is not None]
    pids = workers or [os.getpid()]
    before, cpu_before = dataset.stats()["total"], [cpu_seconds(pid) or 0.0 for pid in pids]
    samples, elapsed = _take(batches, options.seconds)
    after, cpu_after = dataset.stats()["total"], [cpu_seconds(pid) or 0.0 for pid in pids]
    spent = {name: after[name] - before[name] for name in after}
    cpu = [late - early for early, late in zip(cpu_before, cpu_after, strict=True)]
    drawn, processes = max(1, spent["samples"]), len(pids)
    cameras = len(dataset.meta.video_keys)
    threads = _extra(options).get("decode_threads", OPTION_SPECS["decode_threads"].default)
    return Measurement(
        open_s=open_s,
        first_batch_s=first_batch_s,
        samples_per_s=samples / elapsed,
        frames_per_s=samples * cameras / elapsed,
        decodes_per_sample=spent["frames_decoded"] / drawn / max(1, cameras),
        bytes_per_sample=spent["bytes_fetched"] / drawn,
        requests_per_sample=spent["requests"] / drawn,
        mib_per_s=spent["bytes_fetched"] / elapsed / 2**20,
        retries=int(spent["retries"]),
        decode_share=spent["decode_s"] / elapsed / processes / threads,
        fetch_share=spent["fetch_s"] / elapsed / processes,
        transform_share=spent["transform_s"] / elapsed / processes,
        wait_share=spent["wait_s"] / elapsed / processes,
        cpu_share=sum(cpu) / elapsed / num_cores() if any(cpu) else None,
        worker_pss_mib=[round(pss_mib(pid) or 0.0, 1) for pid in workers],
        main_pss_mib=pss_mib(os.getpid()),
        pool_mib=after["pool_bytes"] / 2**20,
        frame_cache_mib=after["frame_cache_bytes"] / 2**20,
    )


def _extra(options: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `--option`."""
    extra: dict[str, Any] = {}
    for text in options.option:
        name, _, value = text.partition("=")
        try:
            extra[name] = json.loads(value)
        except ValueError:
            extra[name] = value  # A text needs no quotes.
    return extra


def _open(options: argparse.Namespace) -> StreamingLeRobotDataset:
    arguments: dict[str, Any] = {
        "root": options.root
        if options.root is None or "://" in options.root
        else Path(options.root).expanduser(),
        "data_root": options.data_root,
        "revision": options.revision,
        "repo_type": options.repo_type,
        "return_uint8": True,
        "repeat": True,
    }
    if "repeat" in _extra(options):
        raise OptionError("--option repeat=... is not possible: the measurement runs on over epochs")
    dataset = StreamingLeRobotDataset(options.repo_id, **(arguments | _extra(options)))
    if not options.window:
        return dataset
    deltas: dict[str, list[float]] = {}
    for text in options.window:
        name, _, steps = text.partition("=")
        if not steps.isdecimal() or not int(steps):
            raise OptionError(f"--window is {text!r}; it must be FEATURE=STEPS with at least 1 step")
        deltas[name] = [step / dataset.fps for step in range(int(steps))]
    # The rate, which the windows need, is known once the dataset has been opened.
    return StreamingLeRobotDataset(options.repo_id, delta_timestamps=deltas, **(arguments | _extra(options)))


def _take(batches: Iterator[dict[str, Any]], seconds: float) -> tuple[int, float]:
    """Draws whole batches for a time; gives the samples and the time they took."""
    samples, begin = 0, perf_counter()
    while (elapsed := perf_counter() - begin) < seconds:
        samples += len(next(batches)["index"])
    return samples, max(elapsed, 1e-9)


def _text(found: Measurement) -> str:
    cpu = "unknown" if found.cpu_share is None else f"{found.cpu_share:.0%}"
    main = "unknown" if found.main_pss_mib is None else f"{found.main_pss_mib:.0f} MiB"
    workers = ", ".join(f"{pss:.0f}" for pss in found.worker_pss_mib) or "none"
    lines = {
        "throughput": f"{found.samples_per_s:.1f} samples/s, {found.frames_per_s:.1f} camera frames/s",
        "start": f"opened in {found.open_s:.2f} s, first batch {found.first_batch_s:.2f} s later",
        "per sample": f"{found.decodes_per_sample:.2f} decodes per camera, "
        f"{found.bytes_per_sample / 1024:.1f} KiB, {found.requests_per_sample:.3f} requests",
        "read": f"{found.mib_per_s:.2f} MiB/s, {found.retries} retries",
        "time": f"decoders busy {found.decode_share:.0%}, fetching {found.fetch_share:.0%}, "
        f"transforms {found.transform_share:.0%}, waiting {found.wait_share:.0%}; cores in use {cpu}",
        "memory (PSS)": f"workers {workers} MiB, this process {main}; in them compressed video "
        f"{found.pool_mib:.0f} MiB, decoded frames {found.frame_cache_mib:.0f} MiB",
        "limited by": found.verdict(),
    }
    return "\n".join(f"{name:15}{text}" for name, text in lines.items())
