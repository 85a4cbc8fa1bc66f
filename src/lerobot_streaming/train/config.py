"""The `--dataset.*` flags of streaming, as a drop-in for lerobot's `DatasetConfig`."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from draccus.parsers.encoding import encode_dataclass
from lerobot.configs.default import DatasetConfig

from lerobot_streaming.episodes.feature_selection import check_feature_names
from lerobot_streaming.options import OPTION_SPECS, Options, validate_option

if TYPE_CHECKING:
    from collections.abc import Mapping

FLAG_OF_OPTION: Final[Mapping[str, str]] = MappingProxyType(
    {
        "episode_pool_size": "streaming_episode_pool_size",
        "sampling_strategy": "streaming_sampling_strategy",
        "prefetch_episodes": "streaming_prefetch_episodes",
        "byte_budget_gb": "streaming_byte_budget_gb",
        "decode_threads": "streaming_decode_threads",
        "decoded_queue_size": "streaming_decoded_queue_size",
        "video_decoder_cache_size": "video_decoder_cache_size",
        "native_http_connections": "streaming_native_http_connections",
        "native_http_subranges": "streaming_native_http_subranges",
        "sidecar_lock_timeout_s": "streaming_sidecar_lock_timeout_s",
        "frame_cache_gb": "streaming_frame_cache_gb",
        "on_error": "streaming_on_error",
    }
)
"""Field of `StreamingDatasetConfig` that sets each option of the dataset."""

FEATURES_FLAG: Final = "--dataset.streaming_features"


# Defaults and ranges are those of `OPTION_SPECS`; they are spelt out because `--help` shows the comments in
# this source, and a test holds the two together.
@dataclass
class StreamingDatasetConfig(DatasetConfig):  # type: ignore[misc]  # lerobot is untyped for mypy
    """lerobot's dataset settings and what streaming adds to them; without streaming those have no effect."""

    # Episodes mixed by each worker, > 0. Unset: 32 per rank, shared out over its workers.
    streaming_episode_pool_size: int | None = None
    # How samples are drawn from the pool: 'remaining' (uniformly over its frames) or 'round_robin' (one frame
    # of each episode in turn).
    streaming_sampling_strategy: str = "remaining"
    # Episodes fetched ahead of the pool, per worker, >= 0.
    streaming_prefetch_episodes: int = 8
    # GiB of compressed video bytes held per rank, > 0.
    streaming_byte_budget_gb: float = 8.0
    # Decode threads per worker, > 0.
    streaming_decode_threads: int = 2
    # Finished samples kept ahead per worker, > 0.
    streaming_decoded_queue_size: int = 8
    # Open video decoders per rank, > 0. Unset: as many as the decode threads need. Streaming only.
    video_decoder_cache_size: int | None = None
    # HTTP connections per rank, > 0. Unset: one per worker, at least 8.
    streaming_native_http_connections: int | None = None
    # Concurrent parts of one HTTP range of at least 16 MiB, > 0.
    streaming_native_http_subranges: int = 1
    # Seconds to wait for another process that builds the same video index, > 0.
    streaming_sidecar_lock_timeout_s: float = 1800
    # GiB of decoded frames kept per rank for draws that are known to come, >= 0; 0 turns it off.
    streaming_frame_cache_gb: float = 1.0
    # What to do with a damaged episode: 'raise' (stop) or 'skip' (leave it out, logged once).
    streaming_on_error: str = "raise"
    # Features that are streamed, e.g. '[observation.images.top,observation.state,action]'; the run goes as on
    # a dataset that has no others. Unset: all.
    streaming_features: list[str] | None = None
    # No flag: what the order depends on, saved with the checkpoints so that they can be resumed.
    streaming_order: str | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            OptionError: One is outside its range; the message names the flag.
        """
        super().__post_init__()
        for option, flag in FLAG_OF_OPTION.items():
            validate_option(option, getattr(self, flag), shown_as=f"--dataset.{flag}")
        Options(**option_values(self))  # refuses what no single range can
        check_feature_names(self.streaming_features, shown_as=FEATURES_FLAG)


def option_values(dataset: Any) -> dict[str, Any]:
    """Read the streaming options out of a dataset config.

    Args:
        dataset: A `StreamingDatasetConfig`, or a plain `DatasetConfig` that a script made, which stands for
            the defaults.

    Returns:
        Keyword arguments for `StreamingLeRobotDataset`.
    """
    return {
        option: getattr(dataset, flag, OPTION_SPECS[option].default)
        for option, flag in FLAG_OF_OPTION.items()
    }


def encode_dataset_config(dataset: Any, declared_type: Any = None) -> dict[str, Any]:
    """Encode a dataset config for logs and `train_config.json`; an encoder for draccus.

    Without streaming it gives what stock lerobot gives, so that the file loads where this distribution is not
    installed.

    Args:
        dataset: The config.
        declared_type: Type of the field that holds it, as draccus passes it on.

    Returns:
        Names and plain values, in the order of the fields.
    """
    encoded: dict[str, Any] = encode_dataclass(dataset, declared_type)
    if not dataset.streaming:
        stock = {stock_field.name for stock_field in fields(DatasetConfig)}
        encoded = {name: value for name, value in encoded.items() if name in stock}
    return encoded
