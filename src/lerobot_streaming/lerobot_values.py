"""Values that lerobot itself knows how to make: depth, images in Parquet, language rows.

lerobot is imported on first use only: the datasets that need none of this start their workers without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa
    import torch


@dataclass(frozen=True, slots=True)
class DepthCodec:
    """How the 12-bit codes of a depth video become distances (lerobot.datasets.depth_utils).

    Attributes:
        depth_min: Distance of code 0, metres.
        depth_max: Distance of code 4095, metres.
        shift: Offset of the logarithmic scale, metres.
        use_log: Whether the scale is logarithmic.
        output_unit: "m" or "mm".
    """

    depth_min: float
    depth_max: float
    shift: float
    use_log: bool
    output_unit: str


@cache
def _dequantize() -> Callable[..., torch.Tensor]:
    from lerobot.datasets.depth_utils import dequantize_depth  # noqa: PLC0415

    return dequantize_depth  # type: ignore[no-any-return]


@cache
def _image_decoders() -> tuple[Any, Callable[[Any], torch.Tensor]]:
    import datasets  # noqa: PLC0415
    from lerobot.datasets.io_utils import pil_to_chw_tensor  # noqa: PLC0415

    return datasets.Image(), pil_to_chw_tensor


def dequantize(codes: torch.Tensor, codec: DepthCodec) -> torch.Tensor:
    """Turns depth codes into distances with lerobot's own arithmetic.

    Args:
        codes: uint16 (T, 1, H, W), 12-bit codes.
        codec: The scale.

    Returns:
        float32 (T, 1, H, W) in the codec's output unit.
    """
    return _dequantize()(
        codes,
        depth_min=codec.depth_min,
        depth_max=codec.depth_max,
        shift=codec.shift,
        use_log=codec.use_log,
        output_unit=codec.output_unit,
    )


def decode_image(stored: Mapping[str, Any]) -> torch.Tensor:
    """Decodes an image of a Parquet column.

    Args:
        stored: `{"bytes": ..., "path": ...}` as Hugging Face datasets stores images.

    Returns:
        float32 (C, H, W): RGB in [0, 1], or depth in its stored unit.
    """
    feature, to_tensor = _image_decoders()
    return to_tensor(feature.decode_example(stored))


def decode_language(column: pa.ChunkedArray, key: str) -> list[Any]:
    """Decodes a language column as Hugging Face datasets does for map-style items.

    Args:
        column: Lists of language rows.
        key: `language_persistent` or `language_events`.

    Returns:
        One Python list of dicts per row.
    """
    import datasets  # noqa: PLC0415
    import pyarrow as pa  # noqa: PLC0415
    from lerobot.datasets.feature_utils import get_hf_features_from_features  # noqa: PLC0415

    features = get_hf_features_from_features({key: {"dtype": "language", "shape": (1,)}})
    table = datasets.table.table_cast(pa.table({key: column}), features.arrow_schema)
    rows = datasets.Dataset(table, info=datasets.DatasetInfo(features=features))
    return list(rows[key])
