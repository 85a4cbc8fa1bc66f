"""What `lerobot-build-mp4-sidecar` does: find the files, build, shard or merge, install, report."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from lerobot_streaming.episodes.layout import check_episode_selection, dataset_video_files, load_layout
from lerobot_streaming.errors import MissingFileError, OptionError, StreamingError
from lerobot_streaming.index.builder import index_files, stat_files
from lerobot_streaming.index.identity import SidecarIdentity
from lerobot_streaming.index.lock import sidecar_lock
from lerobot_streaming.index.merge import merge_sidecars
from lerobot_streaming.index.resolve import IndexRequest, install, make_sidecar
from lerobot_streaming.storage.counted import CountedReader
from lerobot_streaming.storage.local import LocalReader

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

_LOCK_TIMEOUT_S = 1800.0


@dataclass(slots=True)
class _Job:
    """What is to be done.

    Attributes:
        request: The files, their identity, and where they are read from.
        num_episodes: Episodes that the files belong to.
        output: Where to write.
        max_moov_bytes: Largest `moov` box in bytes that is read.
    """

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
    begin = perf_counter()
    num_bytes = 0

    def count(size: int) -> None:
        nonlocal num_bytes
        num_bytes += size

    try:
        job = _find_job(options, count)
        files = _write(job, options)
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        return 130
    except (StreamingError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"wrote {job.output}")
    print(
        f"{job.num_episodes} episodes, {len(files)} video files, {num_bytes / 2**20:.2f} MiB read, "
        f"{perf_counter() - begin:.1f} s"
    )
    return 0


def _find_job(options: argparse.Namespace, count: Any) -> _Job:
    if options.push:
        raise OptionError(
            "--push publishes the sidecar of a pinned Hub dataset; a local or unpinned root has no place on "
            "the Hub. Nothing was built."
        )
    root = _metadata_root(options)
    reader = CountedReader(_reader(options, root), count)
    info = _load_info(root)
    paths, num_episodes = _video_paths(root, info, options.episodes)
    stats = stat_files(paths, reader, workers=options.workers)
    if any(stat.size < 0 for stat in stats.values()):
        # Reads the others too, so that one pass lists all bad files.
        list(index_files({path: stat.size for path, stat in stats.items()}, reader, workers=options.workers))
    prints = {path: stat.fingerprint for path, stat in stats.items() if stat.fingerprint is not None}
    identity = SidecarIdentity(options.repo_id, _revision(options), reader.root, prints)
    from lerobot.utils.constants import HF_LEROBOT_HOME  # noqa: PLC0415

    request = IndexRequest(
        identity=identity,
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
    return _Job(request, num_episodes, output, int(options.max_probe_mb * 2**20))


def _metadata_root(options: argparse.Namespace) -> Path:
    from lerobot.utils.constants import HF_LEROBOT_HOME  # noqa: PLC0415

    root = (
        Path(HF_LEROBOT_HOME) / options.repo_id if options.root is None else Path(options.root).expanduser()
    )
    if not (root / "meta" / "info.json").is_file():
        raise MissingFileError(
            f"{root} holds no LeRobotDataset: {root / 'meta' / 'info.json'} does not exist. Give the "
            "directory of the dataset, or of a copy of its metadata, with --root."
        )
    return root


def _reader(options: argparse.Namespace, root: Path) -> LocalReader:
    return LocalReader(Path(options.data_root if options.data_root is not None else root).absolute())


def _revision(options: argparse.Namespace) -> str:
    from lerobot.datasets.dataset_metadata import CODEBASE_VERSION  # noqa: PLC0415

    return str(options.revision or CODEBASE_VERSION)


def _load_info(root: Path) -> dict[str, Any]:
    path = root / "meta" / "info.json"
    try:
        info = json.loads(path.read_text())
        for name in ("features", "fps", "total_episodes", "total_frames", "data_path"):
            info[name]
    except (ValueError, KeyError, TypeError) as error:
        raise MissingFileError(f"{path} is no metadata of a LeRobotDataset v3: {error!r}") from error
    return dict(info)


def _video_paths(root: Path, info: Mapping[str, Any], episodes: str | None) -> tuple[Sequence[str], int]:
    """Gives the video files and the number of episodes."""
    total = int(info["total_episodes"])
    if episodes is None:
        paths = dataset_video_files(root, info["features"], info.get("video_path"))
    else:
        layout = load_layout(
            root,
            features=info["features"],
            fps=info["fps"],
            total_episodes=total,
            total_frames=info["total_frames"],
            data_template=info["data_path"],
            video_template=info.get("video_path"),
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
