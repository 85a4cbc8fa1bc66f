"""Train a small policy while its dataset streams, from nothing, in about two minutes on a laptop's CPU.

Run it from a clean clone::

    pip install uv && uv run --extra train examples/quickstart.py

It writes a small dataset with LeRobot's own writer (two cameras, AV1, several video files each), trains on it
with the stock `lerobot-train` command and `--dataset.streaming=true`, and prints what came out. It needs no
network and no account, and writes nothing outside its output directory. It ends with an error when the loss
does not fall.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FPS = 10
EPISODES = 8
FRAMES_PER_EPISODE = 40
IMAGE_SIZE = 64
CAMERAS = ("observation.images.front", "observation.images.wrist")
REPO_ID = "quickstart/reach"

BATCH_SIZE = 8
LOG_EVERY = 10
LOSS_MUST_FALL_TO = 0.6
"""The mean loss of the last window, as a share of the first window's."""


def main() -> int:
    """Make the dataset, train, report.

    Returns:
        The exit code: 0 when the loss fell.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--output-dir",
        type=Path,
        help="empty or new directory (default: a new temporary one)",
    )
    parser.add_argument("--steps", type=int, default=80, help="training steps (default: %(default)s)")
    parser.add_argument(
        "--streaming", choices=("true", "false"), default="true", help="false: train map-style, to compare"
    )
    arguments = parser.parse_args()
    if arguments.steps < 2 * LOG_EVERY:
        parser.error(f"--steps must be at least {2 * LOG_EVERY}, to compare the first loss with the last")
    output_dir = arguments.output_dir or Path(tempfile.mkdtemp(prefix="lerobot-streaming-quickstart-"))
    output_dir = output_dir.resolve()
    output_dir.mkdir(parents=True, exist_ok=True)
    if any(output_dir.iterdir()):
        parser.error(f"--output-dir {output_dir} is not empty")
    use_only(output_dir)

    started = time.perf_counter()
    dataset_dir = output_dir / "dataset"
    write_dataset(dataset_dir)
    command = train_command(dataset_dir, output_dir / "train", arguments.steps, streaming=arguments.streaming)
    print(f"\n$ {shlex.join(command)}\n", flush=True)
    log = run(command)
    return report(command, log, output_dir, time.perf_counter() - started)


def use_only(output_dir: Path) -> None:
    """Keep this process and those it starts off the network and out of the user's caches."""
    os.environ |= {
        "HF_HUB_OFFLINE": "1",
        "HF_LEROBOT_HOME": str(output_dir / "lerobot"),
        "HF_HOME": str(output_dir / "huggingface"),
        "XDG_CACHE_HOME": str(output_dir / "cache"),
        "WANDB_MODE": "disabled",
    }


def write_dataset(root: Path) -> None:
    """Record episodes of an arm that reaches for a point, seen by two cameras, with LeRobot's own writer."""
    # Imported late: LeRobot reads the environment variables of `use_only` while it is imported.
    import numpy as np  # noqa: PLC0415
    from lerobot.datasets import LeRobotDataset  # noqa: PLC0415

    features = {
        "observation.state": {"dtype": "float32", "shape": (2,), "names": ["x", "y"]},
        "action": {"dtype": "float32", "shape": (2,), "names": ["x", "y"]},
    } | {
        camera: {
            "dtype": "video",
            "shape": (IMAGE_SIZE, IMAGE_SIZE, 3),
            "names": ["height", "width", "channels"],
        }
        for camera in CAMERAS
    }
    dataset = LeRobotDataset.create(
        REPO_ID,
        fps=FPS,
        root=root,
        features=features,
        # Tiny caps, so that the episodes are spread over several files as those of a large dataset are.
        video_files_size_in_mb=0.02,
        data_files_size_in_mb=0.01,
    )
    rng = np.random.default_rng(0)
    rows, columns = np.mgrid[0:IMAGE_SIZE, 0:IMAGE_SIZE]
    for _ in range(EPISODES):
        position, target = rng.uniform(0.1, 0.9, size=(2, 2))
        for _ in range(FRAMES_PER_EPISODE):
            next_position = position + 0.1 * (target - position)
            frame = {
                "observation.state": position.astype(np.float32),
                "action": next_position.astype(np.float32),
                "task": "reach for the point",
            }
            for camera in CAMERAS:
                # The wrist camera looks from the arm: the target moves in its picture, the arm does not.
                shift = position - 0.5 if camera.endswith("wrist") else np.zeros(2)
                image = np.full((IMAGE_SIZE, IMAGE_SIZE, 3), 30, dtype=np.uint8)
                for point, colour in ((target - shift, (240, 60, 60)), (position - shift, (60, 60, 240))):
                    near = np.hypot(columns / IMAGE_SIZE - point[0], rows / IMAGE_SIZE - point[1]) < 0.08
                    image[near] = colour
                frame[camera] = image
            dataset.add_frame(frame)
            position = next_position
        dataset.save_episode()
    dataset.finalize()
    if hasattr(os, "sched_getscheduler") and os.sched_getscheduler(0) != os.SCHED_OTHER:
        # libsvtav1 makes a process of root that encodes AV1 a real-time one; the training would inherit it.
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    videos = len(list((root / "videos").rglob("*.mp4")))
    print(
        f"Wrote {EPISODES} episodes, {EPISODES * FRAMES_PER_EPISODE} frames, {videos} video files to {root}"
    )


def train_command(dataset_dir: Path, train_dir: Path, steps: int, *, streaming: str) -> list[str]:
    """Build the stock training command; `--dataset.streaming=true` is all that this library needs in it."""
    return [
        str(Path(sys.executable).with_name("lerobot-train")),
        f"--dataset.repo_id={REPO_ID}",
        f"--dataset.root={dataset_dir}",
        f"--dataset.streaming={streaming}",
        f"--output_dir={train_dir}",
        # A small policy that needs no download.
        "--policy.type=act",
        "--policy.device=cpu",
        "--policy.push_to_hub=false",
        "--policy.pretrained_backbone_weights=null",
        "--policy.chunk_size=10",
        "--policy.n_action_steps=10",
        "--policy.dim_model=64",
        "--policy.n_heads=4",
        "--policy.dim_feedforward=128",
        "--policy.n_encoder_layers=1",
        "--policy.use_vae=false",
        "--policy.optimizer_lr=1e-3",
        "--policy.optimizer_lr_backbone=1e-4",
        "--num_workers=2",
        f"--batch_size={BATCH_SIZE}",
        f"--steps={steps}",
        f"--log_freq={LOG_EVERY}",
        "--wandb.enable=false",
    ]


def run(command: list[str]) -> str:
    """Run the command with its output shown as it comes, progress bar included.

    Returns:
        Its output.

    Raises:
        SystemExit: The command failed.
    """
    output = b""
    with subprocess.Popen(  # noqa: S603  # the command above
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0
    ) as process:
        assert process.stdout is not None  # noqa: S101  # for the type checker
        while chunk := process.stdout.read(1 << 16):
            sys.stdout.buffer.write(chunk)
            sys.stdout.flush()
            output += chunk
    if process.returncode:
        sys.exit(f"lerobot-train failed with exit code {process.returncode}.")
    return output.decode(errors="replace")


def report(command: list[str], log: str, output_dir: Path, total_s: float) -> int:
    """Print what the training log says.

    Returns:
        The exit code: 0 when the loss fell.
    """
    windows = [
        {name: float(value) for name, value in re.findall(r"(loss|updt_s|data_s):([0-9.]+)", line)}
        for line in log.splitlines()
        if "updt_s:" in line
    ]
    if len(windows) < 2:
        print("The log holds no losses.")
        return 1
    # The first window also waits for the loader's processes to start; later ones show the steady state.
    data_s = sum(window["data_s"] for window in windows[1:])
    update_s = sum(window["updt_s"] for window in windows[1:])
    samples_per_s = BATCH_SIZE * len(windows[1:]) / (data_s + update_s)
    first, last = windows[0]["loss"], windows[-1]["loss"]
    print(f"""
Command:            {shlex.join(command)}
Loss:               {first:.3f} (first {LOG_EVERY} steps) -> {last:.3f} (last {LOG_EVERY} steps)
Training speed:     {samples_per_s:.1f} samples/s
Waiting for data:   {100 * data_s / (data_s + update_s):.1f} % of the training time
Start-up:           {LOG_EVERY * windows[0]["data_s"]:.1f} s until the loader's first batches
Everything:         {total_s:.0f} s, in {output_dir}""")
    if last > LOSS_MUST_FALL_TO * first:
        print(f"The loss did not fall to {LOSS_MUST_FALL_TO:.0%} of its first value.")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
