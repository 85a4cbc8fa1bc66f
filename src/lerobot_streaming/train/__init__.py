"""Everything that knows `lerobot-train` or accelerate; no other part of the library does.

`config` holds the `--dataset.streaming_*` flags, `factory` builds the datasets of a training run, `split` and
`held_out` its evaluation set, `resume` continues a checkpoint's order, `accelerate_guard` keeps accelerate
from re-sharding our loaders, and `patches` puts the first two into lerobot.
"""

from __future__ import annotations


def enable() -> None:
    """Put the streaming flags and the streaming dataset factory into this process's lerobot.

    `lerobot-train` calls this by itself through lerobot's plug-in discovery. A script that imports
    `lerobot.scripts.lerobot_train.train` and calls it directly has no discovery and calls this first.
    Calling it again changes nothing.

    Raises:
        UnsupportedVersionError: The installed lerobot does not look as expected; nothing was changed.
    """
    # Imported on call: this package must stay importable without loading lerobot's training code.
    from lerobot_streaming.train.patches import install  # noqa: PLC0415

    install()
