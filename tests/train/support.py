"""Helpers that start real training runs and build real training configs."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.datasets import REPO_ID
from tests.support.scheduling import leave_realtime

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WITHOUT_PLUGIN = (
    "import lerobot.scripts.lerobot_train as t; t.register_third_party_plugins = lambda: None; t.main()"
)
"""`lerobot-train` as it is where this distribution is not installed."""


def train_arguments(root: Path, output_dir: Path, *more: str, streaming: bool = True) -> list[str]:
    """Give the arguments of the smallest run there is: three steps of an ACT policy with 8 dimensions."""
    arguments = {
        "--dataset.repo_id": REPO_ID,
        "--dataset.root": str(root),
        "--dataset.streaming": str(streaming).lower(),
        "--output_dir": str(output_dir),
        "--policy.type": "act",
        "--policy.device": "cpu",
        "--policy.push_to_hub": "false",
        "--policy.pretrained_backbone_weights": "null",
        "--policy.chunk_size": "4",
        "--policy.n_action_steps": "4",
        "--policy.dim_model": "8",
        "--policy.n_heads": "2",
        "--policy.dim_feedforward": "8",
        "--policy.n_encoder_layers": "1",
        "--policy.use_vae": "false",
        "--num_workers": "0",
        "--batch_size": "2",
        "--steps": "3",
        "--log_freq": "1",
        "--save_checkpoint": "false",
        "--wandb.enable": "false",
    }
    arguments |= dict(argument.split("=", 1) for argument in more)
    return [f"{name}={value}" for name, value in arguments.items()]


@dataclass(frozen=True, slots=True)
class Run:
    """A finished training process: its exit code, and its two outputs as one text."""

    code: int
    output: str

    @property
    def losses(self) -> list[str]:
        """The logged losses, as printed."""
        return re.findall(r" loss:(\S+)", self.output)


def run_python(*arguments: str, env: dict[str, str] | None = None, timeout_s: float = 280) -> Run:
    """Run this environment's Python; it never outlives the call."""
    (run,) = _run_together([env or {}], arguments, timeout_s)
    return run


def run_ranks(
    *arguments: str,
    world_size: int = 2,
    timeout_s: float = 280,
    kill_when: Callable[[], bool] | None = None,
) -> list[Run]:
    """Run this environment's Python as the ranks of one distributed job, as `torchrun` would start them.

    Args:
        arguments: Of Python.
        world_size: Number of ranks.
        timeout_s: Seconds after which they are ended.
        kill_when: Asked again and again; once it says so, all ranks are killed.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environments = [
        {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        for rank in range(world_size)
    ]
    return _run_together(environments, arguments, timeout_s, kill_when)


def _run_together(
    environments: Sequence[dict[str, str]],
    arguments: Sequence[str],
    timeout_s: float,
    kill_when: Callable[[], bool] | None = None,
) -> list[Run]:
    leave_realtime()
    with contextlib.ExitStack() as stack:
        processes = []
        for more in environments:
            env = {**os.environ, "OMP_NUM_THREADS": "1", **more}
            output = stack.enter_context(tempfile.TemporaryFile("w+"))
            # A session of its own, so that its worker processes can be ended with it.
            process = subprocess.Popen(
                [sys.executable, *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=env,
                start_new_session=True,
            )
            stack.callback(_end, process)
            processes.append((process, output))
        ends_at = time.monotonic() + timeout_s
        while kill_when is not None and time.monotonic() < ends_at:
            if kill_when() or all(process.poll() is not None for process, _ in processes):
                for process, _ in processes:
                    _end(process)
                break
            time.sleep(0.05)
        runs = []
        for process, output in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0, ends_at - time.monotonic()))
            output.seek(0)
            runs.append(Run(-1 if process.returncode is None else process.returncode, output.read()))
    return runs


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and those that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run_lerobot_train(
    arguments: Sequence[str], *, how: str = "script", env: dict[str, str] | None = None
) -> Run:
    """Run `lerobot-train`.

    Args:
        arguments: Its arguments.
        how: "script" for the installed command, "module" for `python -m`, "without plug-in" for stock.
        env: Additional environment variables.
    """
    # The installed command is a Python script.
    start = {
        "script": [str(Path(sys.executable).with_name("lerobot-train"))],
        "module": ["-m", "lerobot.scripts.lerobot_train"],
        "without plug-in": ["-c", WITHOUT_PLUGIN],
    }[how]
    return run_python(*start, *arguments, env=env)


def parse(arguments: Sequence[str]) -> Any:
    """Parse arguments as `lerobot-train` does, without its detours for pretrained paths."""
    import draccus
    from lerobot.configs.train import TrainPipelineConfig

    return draccus.parse(TrainPipelineConfig, args=list(arguments))


def configure(arguments: Sequence[str]) -> Any:
    """Give the config that `parse` gives, without setting up lerobot's parser, which takes a second."""
    from draccus import cfgparsing, utils
    from draccus.parsers import decoding
    from lerobot.configs.train import TrainPipelineConfig

    pairs = (argument.removeprefix("--").split("=", 1) for argument in arguments)
    values = {name: cfgparsing.parse_string(text) for name, text in pairs}
    return decoding.decode(TrainPipelineConfig, utils.deflatten(values, sep="."))


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())
