"""The part of the dataset's face that is about ranks, order and state; `resume` does the work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lerobot_streaming.accelerate_guard import refuse_unprotected_loader
from lerobot_streaming.errors import OptionError
from lerobot_streaming.options import is_integer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lerobot_streaming.resume import Resume


class Resumable:
    """What a dataset says of its ranks' shares, and how its position is chosen, told and loaded."""

    _resume: Resume

    ends_evenly = False
    """True lets the loaders that accelerate prepares on all ranks end after equally many batches: ranks that
    are through repeat their last batch until every rank is. For passes that end in loops with collectives."""

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
