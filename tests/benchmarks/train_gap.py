"""Explain the `dataloading_s` of a real `lerobot-train` run whose policy step is faster than the loader.

Run from the repository's root:

    python -m tests.benchmarks.train_gap --shape A

What is explained, and how. All times are seconds per step, means over the timed steps.

* lerobot's `dataloading_s` is the wait for the loader's next batch (`next_s`) and what the training process
  then does itself with the batch, map-style or streaming: uint8 to float32, normalisation (`prepare_s`).
* The workers go on while the training process prepares and updates, so in the steady state a whole step,
  `step_s = dataloading_s + update_s` and what the loop does besides, takes as long as the loader needs for a
  batch.
* On the cores, `step_s` divides without rest: each part is its processor time per step over the number of
  cores. `decode_s`: the workers' threads but the first (decoding, colours, assembly of items).
  `delivery_s`: the workers' first threads (plan, collation, the batch's copy into shared memory).
  `training_s`: the training process. `others_s`: other programs on the machine. `idle_s`: nobody.
* On the decode threads, `decoding_share` is the part of the time of all of them that lies inside of a
  decoder, waiting for a core included. Where there are more cores than threads to use them, cores are idle
  although the loader does all that it can.

`prepare_s` is lerobot's own work and explains itself. The unexplained part of a step is that in which the
training process waits for the loader although neither all cores are busy nor all decode threads decode: the
smallest one of `next_s`, `idle_s` and `step_s * (1 - decoding_share)`. Over `dataloading_s` it is the
unexplained share. Where `prepare_s` is most of `dataloading_s`, the loader does not limit the run and the
account says little of it: take `--device cuda`, or a shape with smaller pictures.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from lerobot_streaming.cli.process_facts import num_cores
from lerobot_streaming.options import OPTION_SPECS
from tests.benchmarks.settings import (
    ACTION_STEPS,
    add_one_run,
    describe_machine,
    enter,
    extra_arguments,
    make_parser,
    write,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

_SETTINGS = ("workers", "warmup_steps", "steps", "policy_step", "device", "batch_size", "seed", "option")
_NO_PICTURES = {"VISUAL": "IDENTITY", "STATE": "MEAN_STD", "ACTION": "MEAN_STD"}
_ROOT = Path(__file__).parents[2]


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line.

    Args:
        arguments: The arguments; None for those of the process.

    Returns:
        The parsed arguments.
    """
    parser = make_parser(__doc__)
    add = parser.add_argument
    add_one_run(parser, "train-gap")
    add(
        "--warmup-steps",
        type=int,
        default=100,
        help="steps before the timed ones (default: %(default)s); they must fill the look-ahead window",
    )
    add("--steps", type=int, default=200, help="timed steps (default: %(default)s)")
    add(
        "--policy-step",
        choices=("tiny", "real"),
        default="tiny",
        help="tiny: lerobot's update_policy of a linear layer; real: of a small ACT (default: %(default)s)",
    )
    add("--device", default="cpu", help="where lerobot prepares and trains (default: %(default)s)")
    options = parser.parse_args(arguments)
    for name in ("workers", "warmup_steps", "steps"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} is {getattr(options, name)}; it must be at least 1")
    return options


def account(found: Mapping[str, Any], *, cores: int, decode_threads: int) -> dict[str, float]:
    """Divide a step among those who spent it; see the module's description.

    Args:
        found: What the probe wrote: `start` and `end` with time, counters and processor times, and for each
            step its `next`, `dataloading_s` and `update_s`.
        cores: Cores that the run may use.
        decode_threads: Decode threads of all workers together.

    Returns:
        The parts in seconds per step, `decoding_share`, and `unexplained_share` of `dataloading_s`.
    """
    start, end, steps = found["start"], found["end"], found["steps"]
    count = len(steps)
    step_s = (end["time"] - start["time"]) / count

    def per_step(name: str) -> float:
        return float(end[name] - start[name]) / count / cores

    parts = {
        "decode_s": per_step("threads_cpu_s"),
        "delivery_s": per_step("consumers_cpu_s"),
        "training_s": per_step("training_cpu_s"),
    }
    parts["others_s"] = max(0.0, per_step("machine_cpu_s") - sum(parts.values()))
    parts["idle_s"] = max(0.0, step_s - sum(parts.values()))
    decoding = float(end["stats"]["decode_s"] - start["stats"]["decode_s"])
    decoding_share = decoding / decode_threads / (step_s * count)
    data_s = mean(step[1] for step in steps)
    next_s = mean(step[0] for step in steps)
    unexplained_s = min(next_s, parts["idle_s"], step_s * max(0.0, 1 - decoding_share))
    return {
        "step_s": step_s,
        "dataloading_s": data_s,
        "next_s": next_s,
        "prepare_s": data_s - next_s,
        "update_s": mean(step[2] for step in steps),
        **parts,
        "decoding_share": decoding_share,
        "unexplained_s": unexplained_s,
        "unexplained_share": unexplained_s / data_s,
    }


def run_training(options: argparse.Namespace, root: Path, folder: Path) -> tuple[dict[str, Any], float]:
    """Run the training.

    Args:
        options: The command line.
        root: The data set.
        folder: For the run's output.

    Returns:
        What the probe wrote, and the `dataloading_s` that lerobot logged for the same steps.

    Raises:
        RuntimeError: The training failed; its last lines are in the message.
    """
    from tests.train.support import train_arguments

    every = math.gcd(options.warmup_steps, options.steps)
    total = options.warmup_steps + options.steps
    extra = [
        f"--dataset.{name if name == 'video_decoder_cache_size' else 'streaming_' + name}={value}"
        for name, value in extra_arguments(options).items()
    ]
    if options.policy_step == "tiny":
        # It does not look at the pictures, so lerobot need not normalise them: on a CPU that takes longer
        # than to decode them.
        extra.append(f"--policy.normalization_mapping={json.dumps(_NO_PICTURES)}")
    arguments = train_arguments(
        root,
        folder / "run",
        f"--policy.chunk_size={ACTION_STEPS}",
        f"--policy.n_action_steps={ACTION_STEPS}",
        f"--policy.device={options.device}",
        f"--num_workers={options.workers}",
        f"--batch_size={options.batch_size}",
        f"--seed={options.seed}",
        f"--steps={total}",
        f"--log_freq={every}",
        *extra,
    )
    out = folder / "probe.json"
    probe = [str(out), str(options.warmup_steps), str(options.steps), options.policy_step]
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.train_probe", *probe, *arguments],
        cwd=_ROOT,
        env=dict(os.environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode or not out.exists():
        raise RuntimeError(f"lerobot-train ended with {done.returncode}:\n{done.stdout[-4000:]}")
    logged = [float(value) for value in re.findall(r" data_s:([0-9.]+)", done.stdout)]
    return json.loads(out.read_text()), mean(logged[options.warmup_steps // every :])


def text(parts: Mapping[str, float], logged: float) -> str:
    """Write the account for people.

    Args:
        parts: What `account` gave.
        logged: `dataloading_s` as lerobot logged it.

    Returns:
        The lines.
    """
    milli = {name: 1000 * value for name, value in parts.items() if name.endswith("_s")}
    on_cores = {
        "decode threads": "decode_s",
        "delivery": "delivery_s",
        "training process": "training_s",
        "other programs": "others_s",
        "idle": "idle_s",
    }
    waiting, preparing = f"{milli['next_s']:.1f} ms", f"{milli['prepare_s']:.1f} ms"
    cores = ", ".join(f"{name} {milli[key]:.1f}" for name, key in on_cores.items())
    lines = [
        f"a step takes {milli['step_s']:.1f} ms",
        f"dataloading_s {milli['dataloading_s']:.1f} ms (lerobot logged {1000 * logged:.0f})",
        f"of it waiting for the loader {waiting}, preparing the batch in the training process {preparing}",
        f"update_s {milli['update_s']:.1f} ms",
        f"on the cores, ms: {cores}",
        f"decode threads are inside of decoders for {parts['decoding_share']:.0%} of the time",
        f"unexplained: {milli['unexplained_s']:.1f} ms, {parts['unexplained_share']:.1%} of dataloading_s",
    ]
    if milli["others_s"] > 0.05 * milli["step_s"]:
        lines.append("other programs used the cores meanwhile: measure again on a quiet machine")
    if parts["next_s"] < 0.5 * parts["dataloading_s"]:
        lines.append(
            "the training process limits this run more than the loader does: its own work on a batch takes "
            "longer than the wait for one (--device cuda, or a shape with smaller pictures)"
        )
    if parts["update_s"] > 0.5 * parts["dataloading_s"]:
        lines.append("the policy step is not much faster than the loader: the account says little")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the training, print the account and write the JSON file.

    Args:
        arguments: The command line; None for that of the process.
    """
    options = parse_arguments(arguments)
    enter(options)

    from tests.benchmarks.shapes import describe, make_shape

    root = make_shape(options.dir, options.shape, episodes=options.episodes, frames=options.frames)
    with tempfile.TemporaryDirectory() as folder:
        found, logged = run_training(options, root, Path(folder))
    per_worker = extra_arguments(options).get("decode_threads", OPTION_SPECS["decode_threads"].default)
    parts = account(found, cores=num_cores(), decode_threads=options.workers * per_worker)
    print(text(parts, logged))
    result = {
        "kind": "train_gap",
        **describe_machine(),
        "shape": options.shape,
        "data": describe(root),
        "settings": {name: getattr(options, name) for name in _SETTINGS},
        "logged_dataloading_s": logged,
        "account": parts,
        "runs": {name: found[name] for name in ("start", "end")},
    }
    write(result, options.json or options.dir / f"train-gap-{options.shape}.json")


if __name__ == "__main__":
    main()
