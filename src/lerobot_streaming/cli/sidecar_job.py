"""What `lerobot-build-mp4-sidecar` does: find the files, build, shard or merge, install, report."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from lerobot_streaming.cli.publish import check_publishable, publish
from lerobot_streaming.episodes.layout import check_episode_selection, load_layout
from lerobot_streaming.episodes.metadata_files import dataset_video_files
from lerobot_streaming.errors import OptionError, StreamingError
from lerobot_streaming.index.builder import index_files
from lerobot_streaming.index.identity import SidecarIdentity
from lerobot_streaming.index.lock import sidecar_lock
from lerobot_streaming.index.merge import merge_sidecars
from lerobot_streaming.index.resolve import IndexRequest, install, make_sidecar
from lerobot_streaming.options import Options
from lerobot_streaming.places import DatasetRequest, find_dataset
from lerobot_streaming.storage.counted import CountedReader

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence

    from lerobot_streaming.places import DatasetPlace
    from lerobot_streaming.storage.base import RangeReader

_LOCK_TIMEOUT_S = 1800.0


@dataclass(slots=True)
class _Job:
    """What is to be done.

    Attributes:
        place: Where the dataset was found.
        request: The files, their identity, and where they are read from.
        num_episodes: Episodes that the files belong to.
        output: Where to write.
        max_moov_bytes: Largest `moov` box in bytes that is read.
    """

    place: DatasetPlace
    request: IndexRequest
    num_episodes: int
    output: Path
    max_moov_bytes: int


def run(options: argparse.Namespace) -> int:
    """Builds, shards or merges a sidecar as the command line says, and reports on stdout.

    Args:
        options: Checked command line options.

    Returns:
        Exit code: 0, 1 with the reason on stderr, or 130 after an interrupt.
    """
    from lerobot.datasets.utils import CompatibilityError  # noqa: PLC0415

    begin = perf_counter()
    num_bytes, done = 0, "nothing was written"

    def count(size: int) -> None:
        nonlocal num_bytes
        num_bytes += size

    try:
        job = _find_job(options, count)
        files = _write(job, options)
        done = f"{job.output} is written, but not published"
        published = publish(job.place, job.request.identity, job.output) if options.push else None
    except KeyboardInterrupt:
        print(f"interrupted; {done}", file=sys.stderr)
        return 130
    # lerobot's and pyarrow's errors about metadata are of these kinds.
    except (StreamingError, OSError, ValueError, RuntimeError, CompatibilityError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"wrote {job.output}")
    if published is not None:
        print(f"published {published}")
    print(
        f"{job.num_episodes} episodes, {len(files)} video files, {num_bytes / 2**20:.2f} MiB read, "
        f"{perf_counter() - begin:.1f} s"
    )
    return 0


def _find_job(options: argparse.Namespace, count: Callable[[int], None]) -> _Job:
    from lerobot.utils.constants import HF_LEROBOT_HOME  # noqa: PLC0415

    _check_arguments(options)
    place = find_dataset(
        DatasetRequest(
            options.repo_id,
            root=options.root if options.root is None else _local(options.root),
            data_root=options.data_root,
            revision=options.revision,
            repo_type=options.repo_type,
            token=None,
            storage_options=None,
            force_cache_sync=False,
            depth_output_unit="mm",
        ),
        Options(max_num_shards=options.workers),
    )
    if options.push:
        check_publishable(place, options.repo_id)
    reader = CountedReader(_reader(options, place), count)
    paths, num_episodes = _video_paths(place.meta, options.episodes)
    stats = reader.stat_many(paths, look_ups=options.workers)
    if any(stat.size < 0 for stat in stats.values()):
        # Reads the others too, so that one pass lists all bad files.
        list(index_files({path: stat.size for path, stat in stats.items()}, reader, workers=options.workers))
    prints = {path: stat.fingerprint for path, stat in stats.items() if stat.fingerprint is not None}
    request = IndexRequest(
        identity=SidecarIdentity(options.repo_id, place.revision, reader.root, prints),
        files={path: stat.size for path, stat in stats.items()},
        reader=reader,
        lerobot_home=Path(HF_LEROBOT_HOME),
        lock_timeout_s=_LOCK_TIMEOUT_S,
        workers=options.workers,
        progress=True,
    )
    output = request.path
    if options.num_shards is not None:
        output = output.with_name(
            f"{output.stem}.part-{options.shard_index:05d}-of-{options.num_shards:05d}.npz"
        )
    if options.output is not None:
        output = Path(options.output).expanduser().absolute()
    return _Job(place, request, num_episodes, output, int(options.max_probe_mb * 2**20))


def _local(root: str) -> str | Path:
    return root if "://" in root else Path(root).expanduser()


def _check_arguments(options: argparse.Namespace) -> None:
    if options.output is not None and Path(options.output).expanduser().is_dir():
        raise OptionError(f"--output is the directory {options.output}; give the name of a file in it")
    if options.episodes is not None and options.output is None:
        raise OptionError(
            "--episodes indexes a part of the dataset, which training does not look for in the cache; say "
            "with --output where to write it"
        )
    if not options.push:
        return
    for name in ("episodes", "num_shards", "data_root"):
        if getattr(options, name) is not None:
            raise OptionError(
                f"--push publishes the complete sidecar of the dataset as it lies on the Hub; leave out "
                f"--{name.replace('_', '-')}. Nothing was built."
            )


def _reader(options: argparse.Namespace, place: DatasetPlace) -> RangeReader:
    if options.range_backend == "fsspec" and place.reader.root.startswith("hf://"):
        from lerobot_streaming.storage.fsspec_reader import FsspecReader  # noqa: PLC0415 - heavy

        return FsspecReader(place.reader.root, connections=options.workers)
    return place.reader


def _video_paths(meta: Any, episodes: str | None) -> tuple[Sequence[str], int]:
    """Gives the video files and the number of episodes."""
    root, total = Path(meta.root), int(meta.total_episodes)
    features = {key: dict(feature) for key, feature in meta.features.items()}
    if episodes is None:
        paths = dataset_video_files(root, features, meta.video_path)
    else:
        layout = load_layout(
            root,
            features=features,
            fps=meta.fps,
            total_episodes=total,
            total_frames=meta.total_frames,
            data_template=meta.data_path,
            video_template=meta.video_path,
            episodes=check_episode_selection(parse_episodes(episodes, total), total),
        )
        total = layout.num_episodes
        paths = tuple(sorted({path for table in layout.cameras.values() for path in table.files}))
    if not paths:
        raise OptionError(f"the dataset in {root} has no video: there is nothing to index")
    return paths, total


def parse_episodes(text: str, total: int) -> list[int]:
    """Reads the value of `--episodes`.

    Args:
        text: `N`, the first N episodes, or a list of episode numbers with commas (`4,` is the list of one).
        total: Episodes of the dataset.

    Returns:
        Episode numbers.

    Raises:
        OptionError: It is neither, or N is not from 1 to `total`.
    """
    try:
        if "," not in text:
            number = int(text)
            if not 1 <= number <= total:
                raise OptionError(
                    f"--episodes {number} asks for the first {number}, but the dataset has {total} episodes. "
                    f"Give 1 to {total}, or a list such as '{number},'"
                )
            return list(range(number))
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        if isinstance(error, OptionError):
            raise
        raise OptionError(
            f"--episodes is {text!r}; it must be a number (the first N) or a list such as 0,4,7"
        ) from None


def _write(job: _Job, options: argparse.Namespace) -> Mapping[str, int]:
    """Writes the output under its lock; gives the files that it holds."""
    request, output = job.request, job.output
    output.parent.mkdir(parents=True, exist_ok=True)
    in_cache = output == request.path
    with sidecar_lock(output, _LOCK_TIMEOUT_S):
        if options.merge:
            parts = [Path(part).expanduser() for part in options.merge]
            install(output, lambda place: merge_sidecars(place, request.identity, request.files, parts))
        else:
            if options.num_shards is not None:
                request = _shard(request, options.shard_index, options.num_shards)
            make_sidecar(request, output=None if in_cache else output, max_moov_bytes=job.max_moov_bytes)
    return request.files


def _shard(request: IndexRequest, number: int, count: int) -> IndexRequest:
    """Takes one of `count` runs of the sorted files: parts in order then merge without going to and fro."""
    paths = sorted(request.files)
    mine = paths[number * len(paths) // count : (number + 1) * len(paths) // count]
    files = {path: request.files[path] for path in mine}
    return replace(request, identity=request.identity.restrict(files), files=files)
