"""Everything that one worker draws: the rests of begun epochs that were dealt to it, then its own plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lerobot_streaming.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lerobot_streaming.plan.coverage import CoveragePlan, OpenEpoch


@dataclass(frozen=True, slots=True)
class WorkerPass:
    """What one worker draws of one epoch.

    Attributes:
        plan: The order; its positions are places in `positions`.
        positions: Positions of the episodes in the dataset's selection.
        frames: For each place the frame numbers that the plan's frame numbers are indices of, or None where
            they are frame numbers themselves.
    """

    plan: CoveragePlan
    positions: Sequence[int]
    frames: Sequence[Sequence[int] | None]

    def draws(self, opened: OpenEpoch) -> Iterator[tuple[int, int]]:
        """Iterate over what an opened epoch of the plan has left.

        Args:
            opened: The epoch.

        Yields:
            (position in the selection, frame number).
        """
        for place, frame in opened.draws():
            frames = self.frames[place]
            yield self.positions[place], frame if frames is None else int(frames[frame])

    def rest(self, opened: OpenEpoch) -> dict[int, Sequence[int] | None]:
        """List what an opened epoch of the plan has left.

        Args:
            opened: The epoch.

        Returns:
            Position in the selection -> frame numbers left, ascending, or None for all anchors of the
            episode; without the episodes that have none left.
        """
        left: dict[int, Sequence[int] | None] = {}
        for place, indices in opened.rest().items():
            frames = self.frames[place]
            if frames is None:
                left[self.positions[place]] = indices
            elif indices is None:
                left[self.positions[place]] = frames
            else:
                left[self.positions[place]] = [int(frames[index]) for index in indices]
        return left

    def counts(self, opened: OpenEpoch) -> list[tuple[int, int]]:
        """Count what an opened epoch of the plan has left.

        Args:
            opened: The epoch.

        Returns:
            (position in the selection, draws left), in the order of admission.
        """
        return [(self.positions[place], count) for place, count in opened.remaining().items()]

    def whole(self, epoch: int) -> list[tuple[int, int]]:
        """Count the draws of a whole epoch.

        Args:
            epoch: Coverage epoch.

        Returns:
            (position in the selection, draws), in the order of admission.
        """
        return [
            (self.positions[place], self.plan.episodes[place].num_anchors)
            for place in self.plan.admission_order(epoch)
        ]


class WorkerOrder:
    """The order of one worker between two changes of the job's shape.

    Args:
        regular: The worker's own plan, for every epoch but those in `rests`.
        rests: For each epoch that was begun under another shape what this worker draws of it; None: nothing.
        byte_budget: Bytes that the pool of any of these passes may hold.
    """

    def __init__(self, regular: WorkerPass, rests: Mapping[int, WorkerPass | None], byte_budget: int) -> None:
        """Take the passes over; no draw is computed yet."""
        self._regular = regular
        self._rests = dict(rests)
        self.byte_budget = byte_budget

    @property
    def positions(self) -> list[int]:
        """Positions of all episodes that the worker may ever draw from, ascending."""
        passes = [self._regular, *(one for one in self._rests.values() if one is not None)]
        return sorted({position for one in passes for position in one.positions})

    def num_draws(self, epoch: int) -> int:
        """Count the draws of an epoch.

        Args:
            epoch: Coverage epoch.

        Returns:
            The number; 0 for an epoch of whose rest the worker got nothing.
        """
        one = self._pass(epoch)
        return 0 if one is None else one.plan.num_anchors

    def locate(self, epoch: int, offset: int) -> tuple[int, int]:
        """Find the place of an endless pass, by arithmetic over whole epochs.

        Args:
            epoch: Epoch at which the offset begins to count.
            offset: Draws done since, at least 0.

        Returns:
            The epoch of the next draw, and the draws of it that are done.

        Raises:
            OptionError: A number is negative.
        """
        if epoch < 0 or offset < 0:
            raise OptionError(f"epoch is {epoch} and offset is {offset}; both must be at least 0.")
        for begun in sorted(number for number in self._rests if number >= epoch):
            # The epochs of the rests lie close together, but need not be all there are.
            between = (begun - epoch) * self._regular.plan.num_anchors
            if offset < between:
                break
            offset -= between
            epoch = begun
            if offset < self.num_draws(begun):
                return epoch, offset
            offset -= self.num_draws(begun)
            epoch += 1
        whole, offset = divmod(offset, self._regular.plan.num_anchors)
        return epoch + whole, offset

    def admissions(self, epoch: int, offset: int, *, repeat: bool) -> list[int]:
        """List the episodes of the epoch in which a pass begins, for whoever must prepare them in time.

        Args:
            epoch: Epoch at which the offset begins to count.
            offset: Draws to skip.
            repeat: Whether the pass runs on over epochs.

        Returns:
            Their positions in the order of admission; no size is asked for.
        """
        if repeat:
            epoch, _ = self.locate(epoch, offset)
        first = self._pass(epoch)
        return [] if first is None else [position for position, _ in first.whole(epoch)]

    def begin(
        self, epoch: int, offset: int, *, repeat: bool
    ) -> tuple[Iterator[tuple[int, int, int]], Iterator[tuple[int, int]]]:
        """Begin a pass. What is skipped costs one fast pass over the plan of a single epoch, here and now.

        Args:
            epoch: Epoch at which the offset begins to count.
            offset: Draws to skip; with `repeat` they may reach over any number of epochs.
            repeat: Whether the pass runs on over epochs.

        Returns:
            The draws, as (epoch, position, frame); and the episodes in the order in which the plan admits
            them, as (position, draws), epoch after epoch.

        Raises:
            OptionError: A number is negative, or the offset lies beyond the end of a pass that ends.
        """
        if repeat:
            epoch, offset = self.locate(epoch, offset)
        elif not 0 <= offset <= self.num_draws(epoch):
            raise OptionError(
                f"The offset {offset} is not from 0 to {self.num_draws(epoch)}, the draws of epoch {epoch}."
            )
        first = self._pass(epoch)
        if first is None:
            return iter(()) if not repeat else self._later_draws(epoch), self._admissions([], epoch, repeat)
        opened = first.plan.open_epoch(epoch, offset)
        counts = first.counts(opened)
        return self._draws(first, opened, epoch, repeat), self._admissions(counts, epoch, repeat)

    def rests_after(
        self, epoch: int, offset: int, *, repeat: bool
    ) -> tuple[int, dict[int, dict[int, Sequence[int] | None]]]:
        """Say what a pass has left of the epochs that it has begun.

        Args:
            epoch: Epoch at which the offset begins to count.
            offset: Draws done; those beyond the end of a pass that ends cannot have been done, and are
                ignored.
            repeat: Whether the pass runs on over epochs.

        Returns:
            The first epoch of which nothing is done and which is no rest either, and for each epoch before it
            that is not complete: position -> frame numbers left, ascending, or None for all anchors.
        """
        if repeat:
            epoch, offset = self.locate(epoch, offset)
        else:
            offset = min(offset, self.num_draws(epoch))
        untouched = max([epoch + (offset > 0), *(number + 1 for number in self._rests)])
        left: dict[int, dict[int, Sequence[int] | None]] = {}
        for number in range(epoch, untouched):
            one = self._pass(number)
            if one is None:
                continue
            rest = one.rest(one.plan.open_epoch(number, offset if number == epoch else 0))
            if rest:
                left[number] = rest
        return untouched, left

    def whole_epoch(self) -> dict[int, Sequence[int] | None]:
        """List what the worker's own plan draws in an epoch of which nothing is done.

        Returns:
            Position -> None, for all anchors of the episode.
        """
        return dict.fromkeys(self._regular.positions)

    def _pass(self, epoch: int) -> WorkerPass | None:
        return self._rests.get(epoch, self._regular)

    def _draws(
        self,
        first: WorkerPass,
        opened: OpenEpoch,
        epoch: int,
        repeat: bool,  # noqa: FBT001
    ) -> Iterator[tuple[int, int, int]]:
        for position, frame in first.draws(opened):
            yield epoch, position, frame
        if repeat:
            yield from self._later_draws(epoch)

    def _later_draws(self, epoch: int) -> Iterator[tuple[int, int, int]]:
        while True:
            epoch += 1
            one = self._pass(epoch)
            if one is not None:
                for position, frame in one.draws(one.plan.open_epoch(epoch)):
                    yield epoch, position, frame

    def _admissions(
        self,
        first: Sequence[tuple[int, int]],
        epoch: int,
        repeat: bool,  # noqa: FBT001
    ) -> Iterator[tuple[int, int]]:
        yield from first
        while repeat:
            epoch += 1
            one = self._pass(epoch)
            if one is not None:
                yield from one.whole(epoch)
