"""Every knob once: its default, its range and what it means.

The constructor of `StreamingLeRobotDataset` and the `--dataset.*` flags of `lerobot-train` both take their
defaults, their checks and their help from here, so that they cannot drift apart.
"""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

from lerobot_streaming.errors import OptionError
from lerobot_streaming.plan import worker_pool_size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

GIB: Final = 1024**3
"""Bytes in one GiB, the unit of `byte_budget_gb` and `frame_cache_gb`."""


@dataclass(frozen=True, slots=True)
class OptionSpec:
    """What one option accepts.

    Args:
        default: Value when the user says nothing.
        help: One sentence for `--help`, units included.
        kind: Python type of a value; `int` refuses floats and bools, `float` takes any real number.
        minimum: Smallest number; None for text.
        exclusive: Whether `minimum` itself is refused.
        choices: The accepted texts; None for numbers.
        optional: Whether None is accepted, meaning "derive it".
    """

    default: Any
    help: str
    kind: type = int
    minimum: float | None = None
    exclusive: bool = False
    choices: tuple[str, ...] | None = None
    optional: bool = False

    @property
    def range_text(self) -> str:
        """The accepted values in words, for messages and help."""
        if self.choices is not None:
            text = " or ".join(repr(choice) for choice in self.choices)
        else:
            number = "an integer" if self.kind is int else "a number"
            sign = ">" if self.exclusive else ">="
            text = f"{number} {sign} {self.minimum:g}" if self.minimum is not None else number
        return f"{text}, or None" if self.optional else text


OPTION_SPECS: Final[Mapping[str, OptionSpec]] = MappingProxyType(
    {
        "tolerance_s": OptionSpec(
            1e-4, "Seconds that a frame may lie from its wanted time.", float, 0, exclusive=True
        ),
        "buffer_size": OptionSpec(1000, "Caps the default episode pool.", int, 0, exclusive=True),
        "max_num_shards": OptionSpec(
            16, "Episodes that one worker fetches concurrently.", int, 0, exclusive=True
        ),
        "episode_pool_size": OptionSpec(
            None,
            "Episodes mixed by each worker; unset: 32 per rank, shared out over its workers.",
            int,
            0,
            exclusive=True,
            optional=True,
        ),
        "sampling_strategy": OptionSpec(
            "remaining",
            "'remaining' draws uniformly over the pool's frames, 'round_robin' one per episode in turn.",
            str,
            choices=("remaining", "round_robin"),
        ),
        "prefetch_episodes": OptionSpec(8, "Episodes fetched ahead of the pool, per worker.", int, 0),
        "byte_budget_gb": OptionSpec(
            8.0, "GiB of compressed video bytes held per rank.", float, 0, exclusive=True
        ),
        "decode_threads": OptionSpec(2, "Decode threads per worker.", int, 0, exclusive=True),
        "decoded_queue_size": OptionSpec(
            8, "Finished samples kept ahead per worker, in plan order.", int, 0, exclusive=True
        ),
        "video_decoder_cache_size": OptionSpec(
            None,
            "Open decoders per rank; unset: as many as the decode threads need.",
            int,
            0,
            exclusive=True,
            optional=True,
        ),
        "native_http_connections": OptionSpec(
            None,
            "HTTP connections per rank; unset: at least 8.",
            int,
            0,
            exclusive=True,
            optional=True,
        ),
        "native_http_subranges": OptionSpec(
            1, "Concurrent parts of one range of at least 16 MiB.", int, 0, exclusive=True
        ),
        "sidecar_lock_timeout_s": OptionSpec(
            1800,
            "Seconds to wait for another process that builds the index.",
            float,
            0,
            exclusive=True,
        ),
        "frame_cache_gb": OptionSpec(
            1.0, "GiB of decoded frames kept per rank by look-ahead; 0 turns it off.", float, 0
        ),
        "on_error": OptionSpec(
            "raise",
            "'raise' stops at a damaged episode; 'skip' leaves it out, logged once.",
            str,
            choices=("raise", "skip"),
        ),
    }
)
"""Name of every option that has a range, with what it accepts (SPEC sections 2 and 14)."""

DEFAULT_SEED: Final = 42
"""Seed when `seed` is None."""

DEPTH_UNITS: Final = ("m", "mm")
"""Accepted values of `depth_output_unit`."""

VIDEO_BACKENDS: Final = (None, "pyav", "torchcodec", "video_reader")
"""Accepted names; all of them decode through libav in process, which gives the same pixels."""

MAX_WORKERS: Final = 256
"""DataLoader workers of one rank; their counters and passes are kept in shared tables of this size."""

DEFAULT_RANK_POOL: Final = 32
"""Episodes that a rank mixes when `episode_pool_size` is unset (capped by `buffer_size`)."""


def is_integer(value: Any) -> bool:
    """Whether a value is a whole number: an int or a NumPy integer, but no bool."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def validate_option(name: str, value: Any, *, shown_as: str | None = None) -> None:
    """Check one option against its range.

    Args:
        name: Key of `OPTION_SPECS`.
        value: The value to check.
        shown_as: How the user knows the option, e.g. `--dataset.streaming_decode_threads`; default: `name`.

    Raises:
        OptionError: The value has the wrong type or lies outside the range.
    """
    spec = OPTION_SPECS[name]
    if value is None and spec.optional:
        return
    problem = OptionError(f"{shown_as or name} must be {spec.range_text}, got {value!r}.")
    if spec.choices is not None:
        if value not in spec.choices:
            raise problem
        return
    if isinstance(value, bool) or not isinstance(
        value, numbers.Integral if spec.kind is int else numbers.Real
    ):
        raise problem
    if not math.isfinite(value):
        raise problem
    low = spec.minimum
    if low is not None and (value < low or (spec.exclusive and value == low)):
        raise problem


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one dataset, checked. See `OPTION_SPECS` for meanings, units and ranges."""

    tolerance_s: float = 1e-4
    buffer_size: int = 1000
    max_num_shards: int = 16
    episode_pool_size: int | None = None
    sampling_strategy: Literal["remaining", "round_robin"] = "remaining"
    prefetch_episodes: int = 8
    byte_budget_gb: float = 8.0
    decode_threads: int = 2
    decoded_queue_size: int = 8
    video_decoder_cache_size: int | None = None
    native_http_connections: int | None = None
    native_http_subranges: int = 1
    sidecar_lock_timeout_s: float = 1800
    frame_cache_gb: float = 1.0
    on_error: Literal["raise", "skip"] = "raise"

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            OptionError: A value is outside its range, or asks for what is not built.
        """
        for field in fields(self):
            validate_option(field.name, getattr(self, field.name))
        if self.on_error == "skip":
            raise OptionError(
                "on_error='skip' is not available in this version: a damaged episode always stops the run. "
                "Use on_error='raise' and leave damaged episodes out with `episodes=[...]`."
            )

    @property
    def byte_budget_bytes(self) -> int:
        """Bytes of mini-MP4s that one rank may reserve."""
        return int(self.byte_budget_gb * GIB)

    @property
    def connections(self) -> int:
        """Requests that one rank may have under way at a time."""
        return self.native_http_connections or max(8, self.max_num_shards)

    @property
    def rank_pool(self) -> int:
        """Episodes that a rank mixes when `episode_pool_size` is unset."""
        return min(self.buffer_size, DEFAULT_RANK_POOL)

    def pool_size_for_worker(self, num_workers: int) -> int:
        """Episodes that each of a rank's workers mixes.

        Args:
            num_workers: Workers of the rank; 0 counts as one.

        Returns:
            `episode_pool_size` when set, else the rank's default pool shared out over its workers.
        """
        return worker_pool_size(self.episode_pool_size, self.rank_pool, max(1, num_workers))


def check_choice(name: str, value: Any, choices: Sequence[Any]) -> None:
    """Check an argument that takes one of some values.

    Args:
        name: Name of the argument.
        value: Its value.
        choices: The accepted values.

    Raises:
        OptionError: The value is none of them.
    """
    if value not in choices:
        raise OptionError(f"{name} must be one of {list(choices)}, got {value!r}.")


def check_arguments(
    repo_type: Any, depth_output_unit: Any, video_backend: Any, image_transforms: Any, seed: Any
) -> None:
    """Check those arguments of the dataset that have no range.

    Args:
        repo_type: "dataset" or "bucket".
        depth_output_unit: One of `DEPTH_UNITS`.
        video_backend: One of `VIDEO_BACKENDS`.
        image_transforms: A callable or None.
        seed: An integer or None.

    Raises:
        OptionError: One of them is none of these; the message names it.
    """
    check_choice("repo_type", repo_type, ("dataset", "bucket"))
    check_choice("depth_output_unit", depth_output_unit, DEPTH_UNITS)
    check_choice("video_backend", video_backend, VIDEO_BACKENDS)
    if image_transforms is not None and not callable(image_transforms):
        raise OptionError(f"image_transforms must be callable or None, got {image_transforms!r}.")
    if seed is not None and not is_integer(seed):
        raise OptionError(f"seed must be an integer or None (which means {DEFAULT_SEED}), got {seed!r}.")
