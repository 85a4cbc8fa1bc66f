"""What items hold, from lerobot's metadata, the selected features and the windows around an anchor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lerobot_streaming.episodes.feature_selection import check_windows_selected, video_features
from lerobot_streaming.items import ItemSpec, check_deltas
from lerobot_streaming.lerobot_values import DepthCodec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def delta_indices(
    delta_timestamps: Mapping[str, Sequence[float]] | None,
    meta: Any,
    tolerance_s: float,
    *,
    features: Mapping[str, Mapping[str, Any]],
) -> dict[str, list[int]]:
    """Turns windows in seconds into frame offsets, checked with lerobot's own function.

    Args:
        delta_timestamps: Feature name to seconds around the anchor, or None.
        meta: The dataset's metadata.
        tolerance_s: Seconds that an offset may lie off the frame grid.
        features: The selected features.

    Returns:
        Feature name to frame offsets.

    Raises:
        ValueError: An offset is off the frame grid (raised by lerobot).
        OptionError: A window that no item can have.
    """
    if not delta_timestamps:
        return {}
    from lerobot.datasets.feature_utils import check_delta_timestamps, get_delta_indices  # noqa: PLC0415

    check_windows_selected(delta_timestamps, features, meta.features)
    check_deltas(delta_timestamps, features)
    check_delta_timestamps(delta_timestamps, meta.fps, tolerance_s)
    return dict(get_delta_indices(delta_timestamps, meta.fps))


def item_spec(
    meta: Any,
    indices: Mapping[str, Sequence[int]],
    *,
    features: Mapping[str, Mapping[str, Any]],
    return_uint8: bool,
    depth_output_unit: str,
) -> ItemSpec:
    """Collects what items hold from lerobot's metadata.

    Args:
        meta: The dataset's metadata.
        indices: Frame offsets per feature.
        features: The selected features.
        return_uint8: Whether RGB video frames stay uint8.
        depth_output_unit: "m" or "mm".

    Returns:
        The specification.
    """
    depth_keys, image_keys = features.keys() & meta.depth_keys, features.keys() & meta.image_keys
    depth_videos = depth_keys.intersection(video_features(features))
    codecs = {}
    if depth_videos:
        from lerobot.configs import DepthEncoderConfig  # noqa: PLC0415

        for key in depth_videos:
            encoder = DepthEncoderConfig.from_video_info(meta.features[key].get("info"))
            codecs[key] = DepthCodec(
                encoder.depth_min, encoder.depth_max, encoder.shift, encoder.use_log, depth_output_unit
            )
    to_mm = {}
    for key in depth_keys & image_keys:
        stored = (meta.features[key].get("info") or {}).get("depth_unit")
        if stored is not None and stored != depth_output_unit:
            to_mm[key] = stored == "m"
    return ItemSpec(
        delta_indices=indices,
        tasks=[] if meta.tasks is None else [str(task) for task in meta.tasks.index],
        return_uint8=return_uint8,
        rgb_keys=[key for key in meta.camera_keys if key in features and key not in depth_keys],
        depth_videos=codecs,
        image_keys=frozenset(image_keys),
        depth_images_to_mm=to_mm,
    )
