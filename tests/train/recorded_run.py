"""The stock `lerobot-train` with an observer: notes the frames and the loss of every step of this rank."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any


def main(log: Path) -> None:
    # Not at the top, which every spawned worker runs again.
    from lerobot.scripts import lerobot_train

    original = lerobot_train.update_policy
    out = Path(f"{log}.{os.environ.get('RANK', '0')}").open("a", buffering=1)  # noqa: SIM115

    def observed(metrics: Any, policy: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        assert all(isinstance(task, str) for task in batch["task"])
        frames = batch["index"].flatten().tolist()
        result = original(metrics, policy, batch, *args, **kwargs)
        print(json.dumps({"frames": frames, "loss": metrics.loss.val}), file=out)
        return result

    lerobot_train.update_policy = observed
    lerobot_train.main()


if __name__ == "__main__":
    sys.argv[1:], log_path = sys.argv[2:], Path(sys.argv[1])
    main(log_path)
