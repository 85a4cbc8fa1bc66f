from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.train_gap import account, text
from tests.benchmarks.train_probe import busy_seconds, thread_cpu_seconds


def _found(**spent: float) -> dict[str, Any]:
    """Ten steps of 100 ms on two cores: 50 ms of waiting and 40 of preparing, 5 of updating, 5 besides."""
    names = ("consumers_cpu_s", "threads_cpu_s", "training_cpu_s", "machine_cpu_s")
    start = {"time": 5.0, "stats": {"decode_s": 1.0}, **dict.fromkeys(names, 3.0)}
    end: dict[str, Any] = {name: 3.0 + spent[name] for name in names}
    end |= {"time": 6.0, "stats": {"decode_s": 1.0 + spent["decoding"]}}
    return {"start": start, "end": end, "steps": [(0.05, 0.09, 0.005)] * 10}


def test_a_step_is_divided_without_rest() -> None:
    found = _found(
        consumers_cpu_s=0.2, threads_cpu_s=1.0, training_cpu_s=0.4, machine_cpu_s=1.7, decoding=3.0
    )
    parts = account(found, cores=2, decode_threads=4)
    assert parts["step_s"] == pytest.approx(0.1)
    assert [parts["next_s"], parts["prepare_s"]] == pytest.approx([0.05, 0.04])
    on_cores = [parts[name] for name in ("decode_s", "delivery_s", "training_s", "others_s", "idle_s")]
    assert on_cores == pytest.approx([0.05, 0.01, 0.02, 0.005, 0.015])
    assert sum(on_cores) == pytest.approx(parts["step_s"])
    # A quarter of the decode threads' time is 25 ms, more than what the cores were idle.
    assert parts["decoding_share"] == pytest.approx(0.75)
    assert parts["unexplained_share"] == pytest.approx(0.015 / 0.09)
    assert "16.7% of dataloading_s" in text(parts, 0.09)
    assert "quiet machine" not in text(parts, 0.09)
    assert "training process limits" not in text(parts, 0.09)


def test_busy_decode_threads_explain_idle_cores() -> None:
    found = _found(
        consumers_cpu_s=0.1, threads_cpu_s=1.9, training_cpu_s=0.1, machine_cpu_s=4.0, decoding=1.96
    )
    parts = account(found, cores=16, decode_threads=2)
    assert parts["idle_s"] > 0.07
    assert parts["unexplained_share"] == pytest.approx(0.002 / 0.09)
    assert "quiet machine" in text(parts, 0.09)


def test_only_waiting_for_the_loader_can_be_unexplained() -> None:
    found = _found(
        consumers_cpu_s=0.1, threads_cpu_s=0.2, training_cpu_s=0.7, machine_cpu_s=1.0, decoding=0.4
    )
    found["steps"] = [(0.003, 0.09, 0.005)] * 10
    parts = account(found, cores=2, decode_threads=4)
    assert parts["unexplained_share"] == pytest.approx(0.003 / 0.09)
    assert "training process limits" in text(parts, 0.09)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="Linux only")
def test_processor_time_is_told_apart_by_thread() -> None:
    stop = threading.Event()

    def burn() -> None:
        while time.thread_time() < 0.3:
            pass
        stop.wait()

    first, others = thread_cpu_seconds(os.getpid())
    machine = busy_seconds()
    thread = threading.Thread(target=burn)
    thread.start()
    while thread_cpu_seconds(os.getpid())[1] - others < 0.25:
        time.sleep(0.05)
    assert thread_cpu_seconds(os.getpid())[0] - first < 0.2
    stop.set()
    thread.join()
    assert busy_seconds() - machine > 0.2


@pytest.mark.slow
def test_a_training_run_is_accounted_for(tmp_path: Path) -> None:
    sizes = ["--episodes", "3", "--frames", "20", "--steps", "4", "--warmup-steps", "2", "--batch-size", "2"]
    command = [sys.executable, "-m", "tests.benchmarks.train_gap", "--shape", "C", "--dir", str(tmp_path)]
    done = subprocess.run([*command, *sizes], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    result = json.loads((tmp_path / "train-gap-C.json").read_text())
    parts = result["account"]
    assert parts["next_s"] > 0
    assert parts["prepare_s"] > 0
    assert parts["dataloading_s"] == pytest.approx(result["logged_dataloading_s"], abs=0.001)
    assert parts["step_s"] > parts["dataloading_s"]
    assert result["runs"]["end"]["stats"]["samples"] >= 2 * 6
