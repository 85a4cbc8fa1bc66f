"""The command `lerobot-streaming-bench`."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from lerobot_streaming.cli.bench import main
from lerobot_streaming.cli.bench_run import Measurement
from tests.support.datasets import ACTION, REPO_ID, Shelf

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")
QUICK = ["--seconds", "0.3", "--warmup", "0.1", "--batch-size", "4"]


@pytest.mark.parametrize("workers", ["0", "2"])
def test_it_measures_a_dataset(
    shelf: Shelf, tmp_path: Path, capsys: pytest.CaptureFixture[str], workers: str
) -> None:
    root, target = shelf.root("rotating_files"), tmp_path / "numbers.json"
    dataset = ["--repo-id", REPO_ID, "--root", str(root), "--workers", workers, "--json", str(target)]
    extra = [
        "--window",
        f"{ACTION}=3",
        "--option",
        "decode_threads=1",
        "--option",
        "sampling_strategy=round_robin",
    ]
    assert main([*dataset, *QUICK, *extra]) == 0
    out = capsys.readouterr().out
    assert "limited by" in out
    numbers: dict[str, Any] = json.loads(target.read_text())
    assert numbers["samples_per_s"] > 0
    assert numbers["frames_per_s"] == pytest.approx(2 * numbers["samples_per_s"])
    assert len(numbers["worker_pss_mib"]) == int(workers)
    assert all(pss > 10 for pss in numbers["worker_pss_mib"])
    assert numbers["verdict"] in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--option", "episode_pool_size=0"], "episode_pool_size"),
        (["--option", "nonsense=1"], "nonsense"),
        (["--window", "action=x"], "FEATURE=STEPS"),
    ],
    ids=str,
)
def test_what_cannot_be_streamed_is_an_error(
    shelf: Shelf, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    dataset = ["--repo-id", REPO_ID, "--root", str(shelf.root("rotating_files"))]
    assert main([*dataset, *QUICK, *arguments]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [["--workers", "-1"], ["--seconds", "0"], ["--window", "action"], ["--batch-size", "0"]],
    ids=str,
)
def test_wrong_arguments(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--repo-id", "x", *arguments])
    assert caught.value.code == 2


def test_the_verdict_names_what_limits() -> None:
    nothing: dict[str, Any] = {
        field.name: [] if field.name == "worker_pss_mib" else 0 for field in dataclasses.fields(Measurement)
    }
    idle = Measurement(**nothing)

    def verdict(**shares: float) -> str:
        return dataclasses.replace(idle, **shares).verdict()  # type: ignore[arg-type]

    assert verdict(wait_share=0.9, decode_share=0.95).startswith("decoding")
    assert verdict(wait_share=0.9, decode_share=0.5, cpu_share=0.97).startswith("decoding")
    assert verdict(wait_share=0.9, decode_share=0.1, fetch_share=3.0).startswith("fetching")
    assert verdict(wait_share=0.05, decode_share=0.9).startswith("delivery")
    assert verdict(wait_share=0.05, transform_share=0.9).startswith("image transforms")
    assert verdict(wait_share=0.9).startswith("start-up")


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from lerobot_streaming.cli.bench import main\n"
        "try:\n    main(['--help'])\n"
        "except SystemExit:\n    pass\n"
        "print([name for name in ('torch', 'numpy', 'av', 'lerobot') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
