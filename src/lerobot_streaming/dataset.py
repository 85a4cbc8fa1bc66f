"""`StreamingLeRobotDataset`: the public face. It wires the parts and holds no logic of its own."""

from __future__ import annotations

import os
import warnings
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch.utils.data import IterableDataset

from lerobot_streaming import stats as stats_table
from lerobot_streaming.accelerate_guard import protect_when_imported, refuse_unprotected_loader
from lerobot_streaming.episodes.feature_selection import select_features
from lerobot_streaming.errors import StreamingError
from lerobot_streaming.item_spec import delta_indices, item_spec
from lerobot_streaming.items import Item
from lerobot_streaming.memory.batches import Sample, share_batches
from lerobot_streaming.memory.heap import trim_in_worker
from lerobot_streaming.opening import open_dataset, sizes_with_cameras
from lerobot_streaming.options import DEFAULT_SEED, Options, check_arguments
from lerobot_streaming.places import DatasetRequest, find_dataset, load_metadata
from lerobot_streaming.ranks import adopt_before_forks, in_worker, worker_and_count
from lerobot_streaming.resumable import Resumable
from lerobot_streaming.resume import Resume
from lerobot_streaming.stats import WorkerStats
from lerobot_streaming.stream import EpisodeStream
from lerobot_streaming.worker import WorkerRuntime, failing, make_parts, make_runtime, set_worker_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from lerobot_streaming.place import Pass
    from lerobot_streaming.plan import WorkerOrder


class StreamingLeRobotDataset(Resumable, IterableDataset[Item]):
    """Streams a LeRobotDataset v3: a drop-in for lerobot's class of the same name.

    Each DataLoader worker owns whole episodes, keeps a small pool of them in memory as compressed bytes and
    draws frames from it so that every frame is drawn exactly once per epoch. Items equal those of map-style
    `LeRobotDataset`, pixel for pixel.

    Args:
        repo_id: Hub id, or a label for a local dataset.
        root: Local dataset directory; metadata, Parquet and video are then read only from it.
            `hf://buckets/OWNER/BUCKET` selects that bucket. None: `$HF_LEROBOT_HOME/<repo_id>` when a dataset
            was recorded there, else the Hub.
        episodes: Episode numbers to stream, in this order; None for all.
        image_transforms: Applied to RGB images, never to depth, as in map-style. Each item's transforms run
            under a seed made of (seed, epoch, frame index), so the augmentations do not depend on workers or
            threads.
        delta_timestamps: Feature name to seconds around the anchor, as in map-style.
        tolerance_s: Seconds that a frame may lie from its wanted time; > 0.
        revision: Branch, tag or commit of a Hub dataset, resolved once: metadata, Parquet and video all come
            from that commit. A local directory has one state only.
        force_cache_sync: Whether metadata of the Hub that is cached is downloaded anew.
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
        data_root: Directory or fsspec URL of the payload when it lies elsewhere than the metadata.
        episode_pool_size: Episodes mixed by each worker; None: `min(buffer_size, 32)` per rank.
        prefetch_episodes: Episodes fetched ahead of the pool, per worker.
        byte_budget_gb: GiB of compressed video held per rank.
        repeat: True: endless, epochs follow one another.
        repo_type: "dataset" or "bucket".
        token: Hub token, as huggingface_hub takes it; never written anywhere.
        storage_options: fsspec options of a `data_root` with a URL; they reach the workers.
        decode_threads: Decode threads per worker.
        decoded_queue_size: Finished samples kept ahead, per worker.
        video_decoder_cache_size: Open decoders per rank; None: as many as the threads need.
        native_http_connections: Requests to the Hub that a rank may have under way; None:
            `max(8, max_num_shards)`.
        native_http_subranges: Concurrent parts of one range of at least 16 MiB.
        sampling_strategy: "remaining" or "round_robin".
        sidecar_lock_timeout_s: Seconds to wait for another process that builds the same index.
        frame_cache_gb: GiB of decoded frames kept per rank by look-ahead; 0 turns it off.
        on_error: "raise"; "skip" is refused by this version.
        features: Names of the features that an item holds, in any order; None for all. `index`,
            `episode_index`, `frame_index`, `timestamp`, `task_index` and `task` are in every item anyway. The
            rest is neither fetched nor decoded, and files of cameras left out need not exist. Without a
            camera episodes are smaller: where the byte budget binds, the order of the draws is another one,
            and resuming counts other cameras as another setting.

    Raises:
        OptionError: An argument is outside its range, or names what the dataset does not have.
        MissingFileError: A file of the dataset is missing, or there is no such revision.
        AccessError: The Hub refuses: no such repository, or no right to read it.
        FetchError: The store could not be asked within the deadline.
        DatasetLayoutError: Metadata and files contradict each other.
        SidecarError: Video files cannot be indexed; all of them are listed.
        ByteBudgetError: An episode is larger than the whole byte budget.
    """

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
        token: str | bool | None = None,
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
        features: Sequence[str] | None = None,
    ) -> None:
        """Opens the dataset and checks everything that can be checked before iteration."""
        super().__init__()
        protect_when_imported()
        for name, value in (("streaming", streaming), ("rng", rng)):
            if value is not None:
                text = f"{name} is ignored: StreamingLeRobotDataset always streams; its order follows `seed`."
                warnings.warn(text, FutureWarning, stacklevel=2)
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
        check_arguments(repo_type, depth_output_unit, video_backend, image_transforms, seed)
        place = find_dataset(
            DatasetRequest(
                repo_id,
                root=root,
                data_root=data_root,
                revision=revision,
                repo_type=repo_type,
                token=token,
                storage_options=storage_options,
                force_cache_sync=force_cache_sync,
                depth_output_unit=depth_output_unit,
            ),
            self._options,
        )
        self.repo_id = repo_id
        self.repo_type = place.repo_type
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
        self._meta = place.meta
        self.root = Path(self._meta.root)
        self.revision = place.revision
        selected = select_features(features, self._meta.features)
        self.delta_indices = delta_indices(delta_timestamps, self._meta, tolerance_s, features=selected)
        self._open, self._completion = open_dataset(
            place,
            repo_id=repo_id,
            episodes=episodes,
            features=selected,
            items=item_spec(
                self._meta,
                self.delta_indices,
                features=selected,
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
            sizes_with=partial(sizes_with_cameras, place, repo_id, episodes, self._options),
        )
        self._stats = stats_table.new_table()
        adopt_before_forks(self)
        self._runtime: tuple[tuple[int, int], WorkerRuntime] | None = None

    @property
    def meta(self) -> Any:
        """Lerobot's metadata of the whole dataset; a worker loads its own from the local directory."""
        if self._meta is None:
            self._meta = load_metadata(
                self.repo_id, self.root, self.revision, self.depth_output_unit, repo_type=self.repo_type
            )
        return self._meta

    @property
    def features(self) -> dict[str, Any]:
        """Features that items hold, by name, as `meta/info.json` describes them."""
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

    def stats(self) -> dict[str, Any]:
        """Counters of all workers of this rank, readable in the parent process while they run.

        Returns:
            `{"total": {...}, "workers": [{...}, ...]}` with counts, bytes and seconds; `decodes_per_sample`
            is frames decoded per sample and camera.
        """
        self.adopt()
        return dict(stats_table.report(self._stats))

    def adopt(self) -> None:
        """See `Resumable.adopt`."""
        if self._resume.adopt():
            self._stats = stats_table.new_table()

    def __iter__(self) -> Iterator[Item]:
        """Begins a pass, and gives its items in plan order. Closing the iterator ends every thread."""
        refuse_unprotected_loader()
        if in_worker():
            set_worker_up()
        self.adopt()
        # Here and not with the first item: a DataLoader makes the iterator in each worker, read or not.
        try:
            begun, order = self._resume.next_pass()
        except StreamingError as error:
            if not in_worker():
                raise
            # A persistent worker that fails where it makes its iterator dies without a word.
            return failing(error)
        return self._items(begun, order)

    def _items(self, begun: Pass, order: WorkerOrder) -> Iterator[Item]:
        worker, num_workers = worker_and_count()
        try:
            parts = make_parts(
                self._current_runtime(worker, num_workers),
                self._options,
                order,
                num_workers=num_workers,
                seed=self.seed,
                transforms=self.image_transforms,
            )
            stream = EpisodeStream(parts, epoch=begun.epoch, offset=begun.offset, repeat=self.repeat)
        except BaseException:
            self._resume.cancel(begun)
            raise
        self._resume.begin(begun)
        with closing(stream):
            shared = in_worker() and share_batches()
            for _, item in stream:
                begun.offset += 1
                trim_in_worker()
                yield Sample(item) if shared else item
        self._resume.finish(begun)

    def __getitem__(self, index: Any) -> Any:
        """Refuses indexing."""
        raise TypeError(
            f"StreamingLeRobotDataset cannot be indexed (got [{index!r}]): it streams. Iterate over it or "
            "over a DataLoader, or use lerobot.datasets.LeRobotDataset for random access."
        )

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out what belongs to this process, so that a worker's copy is small."""
        self.adopt()
        state = self.__dict__.copy()
        state["_meta"] = None
        state["_runtime"] = None
        state["_completion"] = None
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Takes a copy over in another process, or a second one in this process."""
        self.__dict__.update(state)
        if not in_worker():
            protect_when_imported()
        adopt_before_forks(self)
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
