"""What to say when lerobot or accelerate does not look as the integration expects."""

from __future__ import annotations

import importlib.metadata

from lerobot_streaming.errors import UnsupportedVersionError

SUPPORTED_LEROBOT = "0.6."
"""Start of the lerobot versions that the patches were written against."""


def unsupported(package: str, what: str) -> UnsupportedVersionError:
    """Build the error for a patch point that is missing or has changed.

    Args:
        package: Distribution that was to be patched, e.g. `accelerate`.
        what: The thing that is not as expected, e.g. `accelerate.accelerator.prepare_data_loader`.

    Returns:
        The error, naming the installed version.
    """
    return UnsupportedVersionError(
        f"{package} {importlib.metadata.version(package)} is not supported by lerobot_env_streaming "
        f"{importlib.metadata.version('lerobot_env_streaming')}: {what} is not as expected."
    )


def check_lerobot_version() -> None:
    """Raise unless the installed lerobot is one of the supported versions.

    Raises:
        UnsupportedVersionError: It is not.
    """
    if not importlib.metadata.version("lerobot").startswith(SUPPORTED_LEROBOT):
        raise unsupported("lerobot", f"its version (needed: {SUPPORTED_LEROBOT}x)")
