"""The ways to load a data set that are compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.benchmarks.measuring import Contender, error_line
from tests.benchmarks.settings import ACTION_STEPS, extra_arguments

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from lerobot.datasets import LeRobotDataset
    from torch.utils.data import DataLoader

    from lerobot_streaming import StreamingLeRobotDataset
    from tests.benchmarks.raw_libav import RawFrames

STREAMING = "streaming"
MAP_TORCHCODEC = "map torchcodec"
MAP_PYAV = "map pyav"
LEROBOT = "lerobot streaming"
RAW = "raw libav"
RAW_RANDOM = "raw libav random"
CONTENDERS = (STREAMING, MAP_TORCHCODEC, MAP_PYAV, LEROBOT, RAW)
"""Compared by default. `RAW`, the ceiling, decodes the frames of our own plan in our own order."""

OPTIONAL = (RAW_RANDOM,)
"""Compared when asked for: random frames of the whole data set, as in map-style."""

_OTHER_FRAME = 2.0
"""Mean difference in grey levels above which a picture is that of another frame: in the made videos
neighbours differ by more, and decoders agree to the last bit."""


def torchcodec_problem() -> str | None:
    """Say why torchcodec cannot be used here; None when it can."""
    try:
        import torchcodec.decoders  # noqa: F401
    except ImportError as error:
        return f"torchcodec is not installed ({error})"
    except RuntimeError as error:
        return f"torchcodec does not load ({str(error).strip().splitlines()[0]})"
    return None


def action_window(root: Path) -> dict[str, list[float]]:
    """Make the windows that every contender delivers.

    Args:
        root: The data set.

    Returns:
        `delta_timestamps`.
    """
    from tests.support.datasets import load_info

    fps = load_info(root)["fps"]
    return {"action": [step / fps for step in range(ACTION_STEPS)]}


def open_streaming(root: Path, options: argparse.Namespace, **more: Any) -> StreamingLeRobotDataset:
    """Open the data set with the streaming library, as it is compared.

    Args:
        root: The data set.
        options: The command line, with `seed` and `option`.
        more: Arguments that win over those of the command line.

    Returns:
        The dataset.
    """
    from lerobot_streaming import StreamingLeRobotDataset
    from tests.support.datasets import REPO_ID

    arguments = {"seed": options.seed, "return_uint8": True, "repeat": True, **extra_arguments(options)}
    return StreamingLeRobotDataset(REPO_ID, root, delta_timestamps=action_window(root), **arguments | more)


def steady_samples(dataset: StreamingLeRobotDataset, num_workers: int) -> int:
    """Say after how many samples a rank's loader does the same amount of work for each sample.

    Until its look-ahead window has gone by once, a worker decodes more than it delivers. And a run begins
    with a pool of whole episodes, whose frames are far apart in the draws; later most residents are nearly
    used up.

    Args:
        dataset: The dataset; its cameras are 8-bit yuv420p.
        num_workers: DataLoader workers.

    Returns:
        Samples of all workers together; at most one epoch, in which every frame is decoded at least once.
    """
    from lerobot_streaming.decode.lookahead import window_length
    from lerobot_streaming.options import GIB

    settings, workers = dataset._options, max(1, num_workers)
    shapes = [dataset.features[key]["shape"] for key in dataset.meta.video_keys]
    draw_bytes = int(sum(1.5 * height * width for height, width, _ in shapes))
    cache_bytes = int(settings.frame_cache_gb * GIB) // workers
    window = settings.decoded_queue_size
    if cache_bytes:
        window = window_length(cache_bytes, draw_bytes, settings.decoded_queue_size)
    pool = settings.pool_size_for_worker(workers) * dataset.num_frames // dataset.num_episodes
    return min(dataset.num_frames, workers * max(window, pool))


def streaming_contender(
    root: Path, options: argparse.Namespace, *, workers: int, name: str = STREAMING, **more: Any
) -> Contender:
    """Make a contender of the streaming library.

    Args:
        root: The data set.
        options: The command line, with `seed`, `option` and `batch_size`.
        workers: DataLoader workers.
        name: Its name.
        more: Arguments of the dataset.

    Returns:
        The contender; each of its loaders begins anew.
    """
    from torch.utils.data import DataLoader

    started: list[StreamingLeRobotDataset] = []

    def make() -> DataLoader[Any]:
        started[:] = [open_streaming(root, options, **more)]
        return DataLoader(started[0], batch_size=options.batch_size, num_workers=workers)

    return Contender(
        name=name,
        make=make,
        stats=lambda: dict(started[0].stats()),
        steady_samples=steady_samples(open_streaming(root, options, **more), workers),
    )


def make_contenders(options: argparse.Namespace, root: Path) -> tuple[list[Contender], list[str]]:
    """Set up the contenders that can run here.

    Args:
        options: The command line.
        root: The data set.

    Returns:
        The contenders, and remarks about those that cannot run.
    """
    from lerobot.datasets import LeRobotDataset

    from tests.benchmarks.raw_libav import RawFrames
    from tests.support.datasets import REPO_ID

    def map_style(backend: str) -> Callable[[], DataLoader[Any]]:
        window = action_window(root)
        dataset = LeRobotDataset(
            REPO_ID, root, delta_timestamps=window, return_uint8=True, video_backend=backend
        )
        return lambda: _random_order(dataset, options)

    wanted = options.contender or CONTENDERS
    remarks: list[str] = []
    contenders: list[Contender] = []
    if STREAMING in wanted:
        contenders.append(streaming_contender(root, options, workers=options.workers))
    if MAP_TORCHCODEC in wanted:
        problem = torchcodec_problem()
        if problem is None:
            contenders.append(Contender(name=MAP_TORCHCODEC, make=map_style("torchcodec")))
        else:
            remarks.append(f"{problem}: map-style runs with pyav only")
    if MAP_PYAV in wanted:
        contenders.append(Contender(name=MAP_PYAV, make=map_style("pyav")))
    if {RAW, RAW_RANDOM, LEROBOT} & set(wanted):
        frames = RawFrames(root)
        if LEROBOT in wanted:
            found = _lerobot_contender(root, options, frames)
            if isinstance(found, Contender):
                contenders.append(found)
            else:
                remarks.append(found)
        contenders += _raw_contenders(root, options, frames, wanted)
    return contenders, remarks


def _random_order(dataset: LeRobotDataset | RawFrames, options: argparse.Namespace) -> DataLoader[Any]:
    import torch
    from torch.utils.data import DataLoader, RandomSampler

    generator = torch.Generator().manual_seed(options.seed)
    sampler = RandomSampler(dataset, replacement=True, num_samples=10**9, generator=generator)
    return DataLoader(dataset, sampler=sampler, batch_size=options.batch_size, num_workers=options.workers)


def _raw_contenders(
    root: Path, options: argparse.Namespace, frames: RawFrames, wanted: Sequence[str]
) -> list[Contender]:
    from torch.utils.data import DataLoader

    from tests.benchmarks.plan_order import PlanBatches

    order = PlanBatches(open_streaming(root, options), options.batch_size, options.workers)

    def plan_order() -> DataLoader[Any]:
        return DataLoader(frames, batch_sampler=order, num_workers=options.workers)

    every = [
        Contender(name=RAW, make=plan_order),
        Contender(name=RAW_RANDOM, make=lambda: _random_order(frames, options)),
    ]
    return [contender for contender in every if contender.name in wanted]


def _lerobot_contender(root: Path, options: argparse.Namespace, frames: RawFrames) -> Contender | str:
    """Make the contender of lerobot's own streaming class; or say why its first batch is not one."""
    from lerobot.datasets.streaming_dataset import StreamingLeRobotDataset as Stock
    from torch.utils.data import DataLoader

    from tests.support.datasets import REPO_ID

    def make() -> DataLoader[Any]:
        dataset = Stock(
            REPO_ID, root, delta_timestamps=action_window(root), return_uint8=True, seed=options.seed
        )
        workers = min(options.workers, dataset.num_shards)
        return DataLoader(dataset, batch_size=options.batch_size, num_workers=workers)

    try:
        batch = next(iter(make()))
    except Exception as error:  # noqa: BLE001  Whatever a class of others raises becomes a remark.
        return f"{LEROBOT} does not run: {error_line(error)}"
    wrong, cameras = foreign_pictures(batch, frames)
    if wrong:
        return (
            f"{LEROBOT} runs, but {wrong} of the {cameras * len(batch['index'])} pictures of its first batch "
            "are those of other frames"
        )
    return Contender(name=LEROBOT, make=make)


def foreign_pictures(batch: dict[str, Any], frames: RawFrames) -> tuple[int, int]:
    """Count the pictures that are not those of their sample's frame.

    Args:
        batch: Of any loader of the data set, uint8.
        frames: Its frames.

    Returns:
        The number of such pictures, and of the cameras.
    """
    wrong, cameras = 0, 0
    for number, index in enumerate(batch["index"].flatten().tolist()):
        right = frames[index]
        cameras = len(right) - 1
        for camera in right.keys() - {"index"}:
            picture = batch[camera][number].reshape(right[camera].shape)
            wrong += bool((picture.float() - right[camera].float()).abs().mean() > _OTHER_FRAME)
    return wrong, cameras
