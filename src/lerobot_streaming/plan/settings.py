"""Everything that shapes the order of a job, in a form that a checkpoint can keep."""

from __future__ import annotations

import numbers
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Final, get_args

from lerobot_streaming.errors import OptionError
from lerobot_streaming.plan.coverage import SamplingStrategy

if TYPE_CHECKING:
    from collections.abc import Mapping

_AT_LEAST: Final = {"world_size": 1, "num_workers": 0, "pool_size": 1, "rank_pool": 1, "byte_budget": 0}


def is_plain_integer(value: Any) -> bool:
    """Say whether a value is a whole number.

    Args:
        value: Anything.

    Returns:
        Whether it is an int or a NumPy integer, but no bool.
    """
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def worker_pool_size(pool_size: int | None, rank_pool: int, workers: int) -> int:
    """Say how many episodes each of a rank's workers mixes.

    Args:
        pool_size: Episodes that each worker mixes, when that was said.
        rank_pool: Episodes that the rank mixes otherwise.
        workers: Workers of the rank, at least 1.

    Returns:
        The number, at least 1.
    """
    return pool_size if pool_size is not None else max(1, round(rank_pool / workers))


@dataclass(frozen=True, slots=True)
class OrderSettings:
    """The settings that, with the episodes and their anchors, determine what every worker draws and when.

    Attributes:
        world_size: Number of ranks, at least 1.
        num_workers: DataLoader workers of each rank as they were asked for; 0 (no worker processes) counts as
            1, and a rank with fewer episodes has only as many workers as episodes.
        pool_size: Episodes that each worker mixes; None: `rank_pool` shared out over the rank's workers.
        rank_pool: Episodes that a rank mixes when `pool_size` is None.
        byte_budget: Bytes that a rank's pools may hold.
        strategy: "remaining" or "round_robin".
        seed: Order seed; any integer.
        shuffle: Whether the order is random.
        repeat: Whether a pass runs on over epochs.
        cameras: Video features that are streamed, whose bytes make up the episodes' sizes; None: all that the
            dataset has.
    """

    world_size: int
    num_workers: int
    pool_size: int | None
    rank_pool: int
    byte_budget: int
    strategy: SamplingStrategy
    seed: int
    shuffle: bool
    repeat: bool
    cameras: tuple[str, ...] | None = None

    def workers(self, num_episodes: int) -> int:
        """Say how many workers a rank has.

        Args:
            num_episodes: Episodes of the rank, at least 1.

        Returns:
            The number, at least 1.
        """
        return min(max(1, self.num_workers), num_episodes)

    def differences(self, now: OrderSettings) -> list[str]:
        """Say in what other settings differ, as far as that can make another order.

        Args:
            now: The settings to compare with.

        Returns:
            For each difference "name: value here, value there".
        """
        texts = []
        for field in fields(self):
            was, is_now = getattr(self, field.name), getattr(now, field.name)
            if field.name == "num_workers" and max(1, was) == max(1, is_now):
                continue
            if field.name == "rank_pool" and None not in (self.pool_size, now.pool_size):
                continue
            if was != is_now and field.name == "cameras":
                shown = ["all" if value is None else str(list(value)) for value in (was, is_now)]
                texts.append(f"cameras: {shown[0]} then, {shown[1]} now")
            elif was != is_now:
                texts.append(f"{field.name}: {was!r} then, {is_now!r} now")
        return texts

    def to_dict(self) -> dict[str, Any]:
        """Give the settings as plain values.

        Returns:
            Names and values that JSON can hold; `cameras` only where some are left out.
        """
        values = asdict(self)
        cameras = values.pop("cameras")
        return values if cameras is None else values | {"cameras": list(cameras)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> OrderSettings:
        """Check and take over what `to_dict` gave.

        Args:
            values: The settings; names that are not known are an error, since they may shape the order.
                Without `cameras` they are of all cameras.

        Returns:
            The settings.

        Raises:
            OptionError: A name is missing or unknown, or a value has the wrong type or lies outside its
                range.
        """
        names = {field.name for field in fields(cls)}
        if not hasattr(values, "keys") or set(values.keys()) | {"cameras"} != names:
            got = sorted(map(str, values.keys())) if hasattr(values, "keys") else repr(values)
            raise OptionError(f"The state's settings must have the names {sorted(names)}, got {got}.")
        for name, low in _AT_LEAST.items():
            value = values[name]
            if name == "pool_size" and value is None:
                continue
            if not is_plain_integer(value) or value < low:
                raise OptionError(f"The state's {name} must be an integer >= {low}, got {value!r}.")
        if not is_plain_integer(values["seed"]):
            raise OptionError(f"The state's seed must be an integer, got {values['seed']!r}.")
        if values["strategy"] not in get_args(SamplingStrategy):
            raise OptionError(
                f"The state's strategy must be one of {get_args(SamplingStrategy)}, got "
                f"{values['strategy']!r}."
            )
        for name in ("shuffle", "repeat"):
            if not isinstance(values[name], bool):
                raise OptionError(f"The state's {name} must be true or false, got {values[name]!r}.")
        cameras = values.get("cameras")
        if cameras is None:
            return cls(**{**values, "cameras": None})
        if not isinstance(cameras, list | tuple) or not all(isinstance(name, str) for name in cameras):
            raise OptionError(f"The state's cameras must be a list of names, got {cameras!r}.")
        return cls(**{**values, "cameras": tuple(cameras)})
