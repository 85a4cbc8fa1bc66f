"""Real `lerobot-train` processes on the loopback Hub: step by step the losses of the local directory."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from tests.support.hub import LoopbackHub
from tests.train.support import Run, run_lerobot_train, train_arguments

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.datasets import Shelf

# Long limits, because a loaded machine takes several times as long for the imports.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TOKEN = "hf_trainer"  # noqa: S105  It opens nothing but the loopback Hub.
REPO, BUCKET = "owner/set", "owner/bucket"
STEPS = 12


@pytest.fixture(scope="module")
def root(shelf: Shelf) -> Path:
    return shelf.root("many_tiny")


@pytest.fixture
def hub(root: Path) -> Iterator[LoopbackHub]:
    with LoopbackHub() as served:
        served.add_dataset(REPO, root, private=True, read_token=TOKEN).tag("v3.0")
        served.add_bucket(BUCKET, root, private=True, read_token=TOKEN)
        yield served


def _arguments(root: Path, output_dir: Path, *more: str) -> list[str]:
    flags = (f"--steps={STEPS}", "--num_workers=2", "--policy.dropout=0")
    return train_arguments(root, output_dir, *flags, *more)


def _train_from_hub(hub: LoopbackHub, root: Path, home: Path, *more: str) -> Run:
    arguments = [
        argument
        for argument in _arguments(root, home / "out", *more)
        if not argument.startswith("--dataset.root=") or "--dataset.root" in "".join(more)
    ]
    own = {"HF_HUB_OFFLINE": "0", "HF_HOME": str(home / "hf"), "HF_LEROBOT_HOME": str(home / "lerobot")}
    env = hub.env(TOKEN) | own
    return run_lerobot_train(arguments, env=env)


@pytest.fixture(scope="module")
def local_losses(root: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    run = run_lerobot_train(_arguments(root, tmp_path_factory.mktemp("local") / "out"))
    assert run.code == 0, run.output
    assert len(run.losses) == STEPS
    return run.losses


def test_a_private_dataset_trains_as_the_local_directory(
    hub: LoopbackHub, root: Path, tmp_path: Path, local_losses: list[str]
) -> None:
    run = _train_from_hub(hub, root, tmp_path, f"--dataset.repo_id={REPO}")
    assert run.code == 0, run.output
    assert run.losses == local_losses
    assert TOKEN not in run.output
    written = [path for path in tmp_path.rglob("*") if path.is_file() and not path.is_symlink()]
    assert written
    assert not [path for path in written if path.suffix == ".mp4" or TOKEN.encode() in path.read_bytes()]
    assert all(request.method in {"GET", "HEAD"} or "/paths-info" in request.path for request in hub.log)


def test_a_bucket_trains_as_the_local_directory_through_an_outage(
    hub: LoopbackHub, root: Path, tmp_path: Path, local_losses: list[str]
) -> None:
    ended, was_away = threading.Event(), threading.Event()

    def be_away() -> None:
        # In mid-run: once the workers read video.
        while not any(request.path.endswith(".mp4") and request.range for request in hub.log):
            if ended.wait(0.05):
                return
        hub.stop_serving()
        was_away.set()
        time.sleep(20)
        hub.resume_serving()

    outage = threading.Thread(target=be_away)
    outage.start()
    run = _train_from_hub(
        hub, root, tmp_path, f"--dataset.repo_id={BUCKET}", f"--dataset.root=hf://buckets/{BUCKET}"
    )
    ended.set()
    outage.join()
    assert run.code == 0, run.output
    assert run.losses == local_losses
    assert was_away.is_set()


def test_a_bucket_without_streaming_is_refused(hub: LoopbackHub, root: Path, tmp_path: Path) -> None:
    arguments = [
        *(f"--dataset.repo_id={BUCKET}", "--dataset.repo_type=bucket", "--dataset.streaming=false"),
    ]
    run = _train_from_hub(hub, root, tmp_path, *arguments)
    assert run.code != 0
    assert "streaming-only: set streaming=true" in run.output
    assert not hub.log
