"""Which of a dataset's features are read at all."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from lerobot_streaming.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

REQUIRED_COLUMNS: Final = ("timestamp", "frame_index", "episode_index", "index", "task_index")
"""Columns that every LeRobotDataset v3 data file has (lerobot.utils.constants.DEFAULT_FEATURES). Every item
holds them, whatever is selected."""


def check_feature_names(names: Any, *, shown_as: str = "features") -> list[str] | None:
    """Checks that a selection of features is a list of different names, whatever the dataset has.

    Args:
        names: Feature names, or None for all.
        shown_as: How the user knows the option.

    Returns:
        The names, or None.

    Raises:
        OptionError: The selection is no list of names, is empty or names a feature twice.
    """
    if names is None:
        return None
    # A bare name is a sequence of texts as well: those of its letters.
    chosen = None if isinstance(names, str | bytes) or not hasattr(names, "__iter__") else list(names)
    if chosen is None or not all(isinstance(name, str) for name in chosen):
        raise OptionError(
            f"{shown_as} must be a list of feature names, or None for all, got {names!r}. To select a single "
            "feature, give a list of one name."
        )
    if not chosen:
        raise OptionError(
            f"{shown_as} is an empty list: name at least one feature, or pass None for all. For the columns "
            "that every item has, and nothing else, name one of them, such as 'index'."
        )
    duplicates = sorted(name for name, count in Counter(chosen).items() if count > 1)
    if duplicates:
        raise OptionError(f"{shown_as} contains duplicates: {duplicates}. Name each feature once.")
    return chosen


def select_features[Feature](
    names: Any, features: Mapping[str, Feature], *, shown_as: str = "features"
) -> dict[str, Feature]:
    """Picks the features that items hold.

    Args:
        names: Feature names in any order, or None for all.
        features: The features of `meta/info.json`.
        shown_as: How the user knows the option.

    Returns:
        The selected features and those of `REQUIRED_COLUMNS`, in the order of the dataset.

    Raises:
        OptionError: The selection is no list of different names of the dataset's features.
    """
    chosen = check_feature_names(names, shown_as=shown_as)
    if chosen is None:
        return dict(features)
    unknown = [name for name in chosen if name not in features]
    if unknown:
        raise OptionError(
            f"{shown_as} names {unknown}, but the dataset has {sorted(features)}. Every item has its task's "
            "text besides, as 'task'."
        )
    kept = {*chosen, *REQUIRED_COLUMNS}
    return {name: feature for name, feature in features.items() if name in kept}


def check_windows_selected(
    windows: Iterable[str], selected: Mapping[str, Any], features: Mapping[str, Any]
) -> None:
    """Refuses windows of features that no item holds.

    Args:
        windows: The keys of `delta_timestamps`.
        selected: The selected features.
        features: All features of the dataset.

    Raises:
        OptionError: A window's feature is one of the dataset, but was not selected.
    """
    for key in windows:
        if key in features and key not in selected:
            raise OptionError(
                f"delta_timestamps names {key!r}, which is not among the selected features "
                f"{sorted(selected)}. Add it to `features`, or remove its window."
            )


def video_features(features: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """Lists the cameras whose frames lie in video files.

    Args:
        features: Feature name to its description.

    Returns:
        Their names, in the order of the features.
    """
    return tuple(name for name, feature in features.items() if feature["dtype"] == "video")
