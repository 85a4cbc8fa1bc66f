"""The plug-in module that lerobot's own discovery imports when this distribution is installed.

Every lerobot command line imports it (`lerobot-record` too), so it stays cheap: it does something only inside
`lerobot-train`, and it never raises. Where the integration cannot be switched on, training without streaming
goes on as if this distribution were absent, and a run that asks for streaming ends with the reason.
"""

from __future__ import annotations

import functools
import logging
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

_TRAIN_SCRIPT = "lerobot.scripts.lerobot_train"
_FACTORY = "make_train_eval_datasets"


def _train_scripts() -> list[ModuleType]:
    """Find the loaded copies of the training script: as a module, and as `python -m` runs it."""
    scripts = []
    if module := sys.modules.get(_TRAIN_SCRIPT):
        scripts.append(module)
    main = sys.modules.get("__main__")
    if main is not None and getattr(getattr(main, "__spec__", None), "name", None) == _TRAIN_SCRIPT:
        scripts.append(main)
    return scripts


def _asks_for_streaming(arguments: list[str]) -> bool:
    """Whether the command line turns streaming on, or uses a flag that only this distribution knows."""
    for position, argument in enumerate(arguments):
        name, _, value = argument.partition("=")
        if name.startswith("--dataset.streaming_"):
            return True
        if name == "--dataset.streaming":
            following = arguments[position + 1] if position + 1 < len(arguments) else ""
            return (value or following).lower() == "true"
    return False


def _refuse_streaming(scripts: list[ModuleType], cause: Exception) -> None:
    """Make a run that asks for streaming end with the reason; leave every other run alone."""
    reason = (
        f"--dataset.streaming=true was asked for, but lerobot_streaming cannot work here: {cause} "
        "Train with --dataset.streaming=false, or install the versions that it needs."
    )
    if _asks_for_streaming(sys.argv[1:]):
        # Not an `Exception`: lerobot's discovery would log it and train on with its own streaming class.
        raise SystemExit(reason)
    for script in scripts:
        original = getattr(script, _FACTORY, None)
        if original is None:
            continue

        @functools.wraps(original)
        def refuse_or_build(cfg: Any, *, _original: Any = original) -> Any:
            # Here streaming was asked for by a config file, or by a script that calls `train` itself.
            if cfg.dataset.streaming:
                raise RuntimeError(reason) from cause
            return _original(cfg)

        setattr(script, _FACTORY, refuse_or_build)


def _switch_on() -> None:
    scripts = _train_scripts()
    if not scripts:
        return
    try:
        from lerobot_streaming.train import enable  # noqa: PLC0415  # other commands must not pay for it

        enable()
    except Exception as error:  # whatever it is, training without streaming must go on
        logging.getLogger(__name__).debug("lerobot_streaming is switched off", exc_info=True)
        _refuse_streaming(scripts, error)


_switch_on()
