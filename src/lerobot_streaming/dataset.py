"""`StreamingLeRobotDataset`: the public face. It wires the parts and holds no logic of its own."""

from __future__ import annotations

import os
import warnings
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import av
from torch.utils.data import IterableDataset

from lerobot_streaming import stats as stats_table
from lerobot_streaming.accelerate_guard import protect_when_imported, refuse_unprotected_loader
from lerobot_streaming.errors import OptionError
from lerobot_streaming.items import Item
from lerobot_streaming.opening import (
    DEPTH_UNITS,
    delta_indices,
    item_spec,
    load_metadata,
    local_root,
    open_dataset,
)
from lerobot_streaming.options import VIDEO_BACKENDS, Options, check_choice, is_integer
from lerobot_streaming.ranks import in_worker, worker_and_count
from lerobot_streaming.resume import Resume
from lerobot_streaming.stats import WorkerStats
from lerobot_streaming.stream import EpisodeStream
from lerobot_streaming.worker import WorkerRuntime, make_parts, make_runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

DEFAULT_SEED = 42


class StreamingLeRobotDataset(IterableDataset[Item]):
    """Streams a LeRobotDataset v3: a drop-in for lerobot's class of the same name.

    Each DataLoader worker owns whole episodes, keeps a small pool of them in memory as compressed bytes and
    draws frames from it so that every frame is drawn exactly once per epoch. Items equal those of map-style
    `LeRobotDataset`, pixel for pixel.

    Args:
        repo_id: Hub id, or a label for a local dataset.
        root: Local dataset directory; metadata, Parquet and video are then read only from it. None:
            `$HF_LEROBOT_HOME/<repo_id>`.
        episodes: Episode numbers to stream, in this order; None for all.
        image_transforms: Applied to RGB images, never to depth, as in map-style. Each item's transforms run
            under a seed made of (seed, epoch, frame index), so the augmentations do not depend on workers or
            threads.
        delta_timestamps: Feature name to seconds around the anchor, as in map-style.
        tolerance_s: Seconds that a frame may lie from its wanted time; > 0.
        revision: Recorded in the identity of the index; a local directory has one state only.
        force_cache_sync: Accepted; a local directory has nothing to refresh.
        streaming: Accepted for compatibility: the class always streams.
        buffer_size: Only caps the default pool.
        max_num_shards: Episodes fetched concurrently by one worker; at least 1.
        seed: Seed of the order and of the augmentations.
        rng: Accepted for compatibility and ignored.
        shuffle: True: a new random plan every epoch. False: episode by episode and frame by frame.
        return_uint8: RGB video frames as uint8 (C, H, W) instead of float32 in [0, 1].
        depth_output_unit: "mm" or "m".
        video_backend: None, "pyav", "torchcodec" or "video_reader"; all decode through libav in process,
            which gives the same pixels.
        data_root: Directory of the payload when it lies elsewhere than the metadata.
        episode_pool_size: Episodes mixed by each worker; None: `min(buffer_size, 32)` per rank.
        prefetch_episodes: Episodes fetched ahead of the pool, per worker.
        byte_budget_gb: GiB of compressed video held per rank.
        repeat: True: endless, epochs follow one another.
        repo_type: "dataset"; "bucket" is refused by this version.
        token: Hub token; unused for a local directory and never stored.
        storage_options: fsspec options of remote roots; refused by this version.
        decode_threads: Decode threads per worker.
        decoded_queue_size: Finished samples kept ahead, per worker.
        video_decoder_cache_size: Open decoders per rank; None: as many as the threads need.
        native_http_connections: HTTP connections per rank; unused for a local directory.
        native_http_subranges: Parts of one large range; unused for a local directory.
        sampling_strategy: "remaining" or "round_robin".
        sidecar_lock_timeout_s: Seconds to wait for another process that builds the same index.
        frame_cache_gb: GiB of decoded frames kept per rank by look-ahead; 0 turns it off.
        on_error: "raise"; "skip" is refused by this version.

    Raises:
        OptionError: An argument is outside its range; the message names it.
        MissingFileError: A file of the dataset is missing.
        DatasetLayoutError: Metadata and files contradict each other.
        SidecarError: Video files cannot be indexed; all of them are listed.
        ByteBudgetError: An episode is larger than the whole byte budget.
    """

    ends_evenly = False
    """True lets the loaders that accelerate prepares on all ranks end after equally many batches: ranks that
    are through repeat their last batch until every rank is. For passes that end in loops with collectives."""

    def __init__(  # noqa: PLR0917  The positional order is that of lerobot's class.
        self,
        repo_id: str,
        root: str | Path | None = None,
        episodes: list[int] | None = None,
        image_transforms: Callable[[Any], Any] | None = None,
        delta_timestamps: Mapping[str, Sequence[float]] | None = None,
        tolerance_s: float = 1e-4,
        revision: str | None = None,
        force_cache_sync: bool = False,  # noqa: FBT001, FBT002
        streaming: bool | None = None,  # noqa: FBT001
        buffer_size: int = 1000,
        max_num_shards: int = 16,
        seed: int | None = DEFAULT_SEED,
        rng: Any = None,
        shuffle: bool = True,  # noqa: FBT001, FBT002
        return_uint8: bool = False,  # noqa: FBT001, FBT002
        depth_output_unit: str = "mm",
        video_backend: str | None = None,
        data_root: str | None = None,
        episode_pool_size: int | None = None,
        prefetch_episodes: int = 8,
        byte_budget_gb: float = 8.0,
        repeat: bool = False,  # noqa: FBT001, FBT002
        *,
        repo_type: Literal["dataset", "bucket"] = "dataset",
        token: str | bool | None = None,  # noqa: ARG002  Never kept; a local directory needs none.
        storage_options: Mapping[str, Any] | None = None,
        decode_threads: int = 2,
        decoded_queue_size: int = 8,
        video_decoder_cache_size: int | None = None,
        native_http_connections: int | None = None,
        native_http_subranges: int = 1,
        sampling_strategy: Literal["remaining", "round_robin"] = "remaining",
        sidecar_lock_timeout_s: float = 1800,
        frame_cache_gb: float = 1.0,
        on_error: Literal["raise", "skip"] = "raise",
    ) -> None:
        """Opens the dataset and checks everything that can be checked before iteration."""
        super().__init__()
        protect_when_imported()
        for name, value in (("streaming", streaming), ("rng", rng)):
            if value is not None:
                warnings.warn(
                    f"{name} is ignored: StreamingLeRobotDataset always streams, and its order follows "
                    f"`seed`.",
                    FutureWarning,
                    stacklevel=2,
                )
        self._options = Options(
            tolerance_s=tolerance_s,
            buffer_size=buffer_size,
            max_num_shards=max_num_shards,
            episode_pool_size=episode_pool_size,
            sampling_strategy=sampling_strategy,
            prefetch_episodes=prefetch_episodes,
            byte_budget_gb=byte_budget_gb,
            decode_threads=decode_threads,
            decoded_queue_size=decoded_queue_size,
            video_decoder_cache_size=video_decoder_cache_size,
            native_http_connections=native_http_connections,
            native_http_subranges=native_http_subranges,
            sidecar_lock_timeout_s=sidecar_lock_timeout_s,
            frame_cache_gb=frame_cache_gb,
            on_error=on_error,
        )
        check_choice("repo_type", repo_type, ("dataset", "bucket"))
        check_choice("depth_output_unit", depth_output_unit, DEPTH_UNITS)
        check_choice("video_backend", video_backend, VIDEO_BACKENDS)
        if image_transforms is not None and not callable(image_transforms):
            raise OptionError(f"image_transforms must be callable or None, got {image_transforms!r}.")
        if storage_options:
            raise OptionError(
                "storage_options are for remote roots, which this version does not stream from."
            )
        if seed is not None and (not is_integer(seed)):
            raise OptionError(f"seed must be an integer or None (which means {DEFAULT_SEED}), got {seed!r}.")

        place = local_root(repo_id, root, data_root, repo_type)
        self.repo_id = repo_id
        self.repo_type = repo_type
        self.tolerance_s = tolerance_s
        self.seed = DEFAULT_SEED if seed is None else int(seed)
        self.shuffle = shuffle
        self.repeat = repeat
        self.buffer_size = buffer_size
        self.image_transforms = image_transforms
        self.delta_timestamps = delta_timestamps
        self.episodes = None if episodes is None else list(episodes)
        self.force_cache_sync = force_cache_sync
        self.return_uint8 = return_uint8
        self.depth_output_unit = depth_output_unit
        self._meta = load_metadata(repo_id, place, revision, depth_output_unit)
        self.root = Path(self._meta.root)
        self.revision = str(self._meta.revision)
        self.delta_indices = delta_indices(delta_timestamps, self._meta, tolerance_s)
        self._open = open_dataset(
            self._meta,
            repo_id=repo_id,
            revision=self.revision,
            data_root=data_root,
            episodes=episodes,
            items=item_spec(
                self._meta,
                self.delta_indices,
                return_uint8=return_uint8,
                depth_output_unit=depth_output_unit,
            ),
            options=self._options,
        )
        self._resume = Resume(
            self._open,
            self._options,
            seed=self.seed,
            shuffle=bool(shuffle),
            repeat=bool(repeat),
            revision=self.revision,
        )
        self._stats = stats_table.new_table()
        self._runtime: tuple[tuple[int, int], WorkerRuntime] | None = None

    # Facts about the selection.

    @property
    def meta(self) -> Any:
        """Lerobot's metadata object; a worker loads its own from the local directory when it is asked for."""
        if self._meta is None:
            self._meta = load_metadata(self.repo_id, self.root, self.revision, self.depth_output_unit)
        return self._meta

    @property
    def features(self) -> dict[str, Any]:
        """Feature name to its description in `meta/info.json`."""
        return dict(self._open.layout.features)

    @property
    def fps(self) -> float:
        """Frames per second of the dataset."""
        fps = self._open.layout.fps
        return int(fps) if fps.is_integer() else fps

    @property
    def num_frames(self) -> int:
        """Frames of the selected episodes."""
        return self._open.layout.num_frames

    @property
    def num_episodes(self) -> int:
        """Number of selected episodes."""
        return self._open.layout.num_episodes

    @property
    def num_shards(self) -> int:
        """Most workers that could get an episode, capped by `max_num_shards`."""
        return min(self._resume.num_episodes, self._options.max_num_shards)

    def num_frames_for_rank(self, rank: int, world_size: int, num_workers: int = 0) -> int:
        """Anchors that one rank draws per coverage epoch.

        Args:
            rank: Training process.
            world_size: Number of training processes.
            num_workers: DataLoader workers of the rank; 0 means the training process itself.

        Returns:
            Number of anchors.

        Raises:
            ShardingError: The rank, or one of its workers, would get no episode.
        """
        return self._resume.num_frames_for_rank(rank, world_size, num_workers)

    def num_episodes_for_rank(self, rank: int, world_size: int) -> int:
        """Episodes that one rank draws from: the most workers that it can have.

        Args:
            rank: Training process.
            world_size: Number of training processes.

        Returns:
            Number of episodes.

        Raises:
            ShardingError: There are fewer episodes than ranks.
        """
        return self._resume.num_episodes_for_rank(rank, world_size)

    def batches_per_rank(self, world_size: int, batch_size: int, num_workers: int = 0) -> list[int]:
        """Batches that each rank's DataLoader gives in a whole pass that ends (`repeat=False`).

        Ranks hold different episodes, so the numbers differ. A loop with collectives takes `min` of them from
        every rank, or uses `repeat=True` and counts its steps.

        Args:
            world_size: Number of training processes.
            batch_size: Samples per batch, >= 1; the last batch of each worker may be short.
            num_workers: DataLoader workers of each rank.

        Returns:
            The number of batches of each rank.

        Raises:
            OptionError: `batch_size` is below 1.
            ShardingError: A rank, or one of its workers, would get no episode.
        """
        return self._resume.batches_per_rank(world_size, batch_size, num_workers)

    def stats(self) -> dict[str, Any]:
        """Counters of all workers of this rank, readable in the parent process while they run.

        Returns:
            `{"total": {...}, "workers": [{...}, ...]}` with counts, bytes and seconds; `decodes_per_sample`
            is frames decoded per sample and camera.
        """
        return dict(stats_table.report(self._stats))

    # Order and state.

    def limit_anchors(self, drop_n_first_frames: int = 0, drop_n_last_frames: int = 0) -> None:
        """Leaves out anchors at the ends of episodes, as lerobot's sampler does for policies that need it.

        Call it before iteration. Windows still reach into the frames that are left out.

        Args:
            drop_n_first_frames: Frames at the beginning of each episode.
            drop_n_last_frames: Frames at the end of each episode.

        Raises:
            OptionError: A number is negative.
            ShardingError: No anchor is left.
        """
        self._resume.limit_anchors(drop_n_first_frames, drop_n_last_frames)

    def set_epoch(self, epoch: int) -> None:
        """Chooses the coverage epoch of the next pass; without a call, passes count up by themselves.

        Args:
            epoch: Coverage epoch, >= 0.

        Raises:
            OptionError: The epoch is negative or no integer.
        """
        if not is_integer(epoch) or epoch < 0:
            raise OptionError(f"epoch must be an integer >= 0, got {epoch!r}.")
        refuse_unprotected_loader()
        self._resume.set_epoch(int(epoch))

    def state_dict(self, *, batches: int | None = None, batch_size: int | None = None) -> dict[str, Any]:
        """Where the training stands, for `load_state_dict`.

        In a process that iterates the dataset itself (`num_workers=0`, or a worker of torchdata's
        `StatefulDataLoader`) the offset counts the samples that it has yielded. In front of a DataLoader with
        workers only the loop knows how many batches it has taken, and says so.

        Args:
            batches: Batches taken from the DataLoader in its latest pass, since a state was loaded; None
                where this process iterates the dataset itself.
            batch_size: Samples per batch; goes together with `batches`.

        Returns:
            `epoch`, `offset` and `batch_size` (None says that the offset is this process's own), and what is
            needed to continue them under other settings: `settings`, `history` and `data`. JSON can hold it.

        Raises:
            OptionError: DataLoader workers iterate, and `batches` is not given; or a number is out of range.
        """
        return self._resume.state(batches, batch_size).to_dict()

    def load_state_dict(
        self, state: Mapping[str, Any], *, batch_size: int | None = None, num_workers: int | None = None
    ) -> None:
        """Continues where a state was taken: the next pass begins at its offset, even if it is broken off.

        With the settings that the state was taken with, the sequence goes on exactly. With others (ranks,
        workers, batch size, pool, strategy, budget, seed) what is left of the epoch is dealt anew, each
        remaining frame once, with a warning that says which differ; the epochs after it follow the new
        settings. All ranks load the state of one and the same rank.

        Args:
            state: `epoch`; `offset` in samples; `batch_size`, with which an offset that counts a rank's
                samples is dealt to its workers in the DataLoader's turn order, or None when the offset is
                this process's own. The other keys of `state_dict` may be absent: the settings are then taken
                to be the same.
            batch_size: Batch size of the coming DataLoader; needed where it is not that of the state.
            num_workers: Workers of the coming DataLoader. When it is said here, what is left of an epoch is
                computed once in this process instead of in every worker.

        Raises:
            OptionError: A value is missing or out of range, or the state is of other data.
        """
        self._resume.load(state, batch_size=batch_size, num_workers=num_workers)

    def expect_workers(self, num_workers: int) -> None:
        """Says how many workers the DataLoader was asked to have, where it may have fewer.

        Args:
            num_workers: Workers that every rank was asked to have; a rank with fewer episodes has fewer.

        Raises:
            OptionError: The number is out of range.
        """
        self._resume.expect_workers(num_workers)

    def resumed_epoch(self) -> tuple[int, bool] | None:
        """The epoch that the next pass continues, after one was loaded or chosen and before a pass begins.

        Returns:
            The epoch and whether nothing of it is left to this rank; None once a pass has begun.
        """
        return self._resume.resumed_epoch()

    # Iteration.

    def __iter__(self) -> Iterator[Item]:
        """Yields the items of this worker in plan order. Closing the iterator ends every thread."""
        refuse_unprotected_loader()
        if in_worker():
            # PyAV hands FFmpeg's log to Python, which serialises the decode threads.
            av.logging.set_level(None)
        begun, order = self._resume.next_pass()
        worker, num_workers = worker_and_count()
        parts = make_parts(
            self._current_runtime(worker, num_workers),
            self._options,
            order,
            num_workers=num_workers,
            seed=self.seed,
            transforms=self.image_transforms,
        )
        stream = EpisodeStream(parts, epoch=begun.epoch, offset=begun.offset, repeat=self.repeat)
        self._resume.begin(begun)
        with closing(stream):
            for _, item in stream:
                begun.offset += 1
                yield item
        self._resume.finish(begun)

    def __getitem__(self, index: Any) -> Any:
        """Refuses indexing."""
        raise TypeError(
            f"StreamingLeRobotDataset cannot be indexed (got [{index!r}]): it streams. Iterate over it or "
            "over a DataLoader, or use lerobot.datasets.LeRobotDataset for random access."
        )

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out what belongs to this process, so that a worker's copy is small."""
        state = self.__dict__.copy()
        state["_meta"] = None
        state["_runtime"] = None
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Takes a copy over in another process, or a second one in this process."""
        self.__dict__.update(state)
        if not self._stats.is_shared():  # type: ignore[no-untyped-call]  # torch gives it no types.
            # Made by plain pickling, not handed to a worker: it counts for itself.
            self._stats = stats_table.new_table()

    def _current_runtime(self, worker: int, num_workers: int) -> WorkerRuntime:
        """The long-lived parts of this process; a forked process makes its own."""
        key = (os.getpid(), num_workers)
        if self._runtime is None or self._runtime[0] != key:
            stats = WorkerStats(self._stats, worker)
            self._runtime = key, make_runtime(self._open, self._options, num_workers, stats)
        return self._runtime[1]
