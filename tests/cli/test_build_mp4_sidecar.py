"""The command `lerobot-build-mp4-sidecar`."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import fsspec
import pytest

from lerobot_streaming import StreamingLeRobotDataset
from lerobot_streaming.cli.build_mp4_sidecar import main
from lerobot_streaming.cli.sidecar_job import parse_episodes
from lerobot_streaming.errors import OptionError
from lerobot_streaming.index import open_sidecar
from tests.support.datasets import CAMERA_A, CAMERA_B, REPO_ID, Shelf, set_info, video_files

if TYPE_CHECKING:
    from collections.abc import Sequence

KIND = "rotating_files"


@pytest.fixture
def root(shelf: Shelf, tmp_path: Path) -> Path:
    return shelf.copy(KIND, tmp_path / "data")


def run(root: Path, *arguments: object) -> int:
    return main(["--repo-id", REPO_ID, "--root", str(root), *map(str, arguments)])


def written(capsys: pytest.CaptureFixture[str]) -> Path:
    return Path(capsys.readouterr().out.splitlines()[0].removeprefix("wrote "))


def all_videos(root: Path) -> list[str]:
    files = [*video_files(root, CAMERA_A), *video_files(root, CAMERA_B)]
    return sorted(path.relative_to(root).as_posix() for path in files)


def test_what_it_writes_is_what_training_looks_for(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(root) == 0
    captured = capsys.readouterr()
    first, second = captured.out.splitlines()
    place = Path(first.removeprefix("wrote "))
    videos = all_videos(root)
    assert f"{len(videos)} video files" in second
    assert "MiB read" in second
    assert list(open_sidecar(place).files) == videos

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the index was built again")

    monkeypatch.setattr("lerobot_streaming.index.resolve.build_sidecar", refuse)
    dataset = StreamingLeRobotDataset(REPO_ID, root)
    assert dataset._open.index is not None
    assert list(dataset._open.index.files) == videos


def test_training_writes_the_same_bytes(
    root: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    output = tmp_path / "folder" / "mine.npz"
    assert run(root, "--output", output, "--workers", 1) == 0
    assert written(capsys) == output
    StreamingLeRobotDataset(REPO_ID, root)
    assert run(root) == 0
    assert written(capsys).read_bytes() == output.read_bytes()
    assert sorted(path.name for path in output.parent.iterdir() if not path.name.endswith(".lock")) == [
        "mine.npz"
    ]


@pytest.mark.parametrize("count", [1, 3, 9])
def test_merged_parts_have_the_bytes_of_one_build(
    root: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, count: int
) -> None:
    parts = []
    for number in range(count):
        assert run(root, "--shard-index", number, "--num-shards", count) == 0
        parts.append(written(capsys))
    assert len(set(parts)) == count
    whole, merged = tmp_path / "whole.npz", tmp_path / "merged.npz"
    assert run(root, "--output", whole) == 0
    for order in (parts, parts[::-1]):
        assert run(root, "--output", merged, "--merge", *order) == 0
        assert merged.read_bytes() == whole.read_bytes()


def test_parts_that_do_not_make_the_whole_are_refused(
    root: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    parts = [tmp_path / f"{number}.npz" for number in range(3)]
    for number, part in enumerate(parts):
        run(root, "--shard-index", number, "--num-shards", 3, "--output", part)
    merged = tmp_path / "merged.npz"

    def refused(names: Sequence[Path], *more: object) -> str:
        capsys.readouterr()
        assert run(root, "--output", merged, "--merge", *names, *more) == 1
        assert not merged.exists()
        return capsys.readouterr().err

    assert "in none of the 2 parts" in refused(parts[:2])
    assert "is in two parts" in refused([*parts, parts[0]])
    assert "another revision ('v3.0', not 'other')" in refused(parts, "--revision", "other")
    (tmp_path / "bad.npz").write_bytes(parts[0].read_bytes()[:-40])
    assert "bad.npz" in refused([tmp_path / "bad.npz", *parts[1:]])
    assert "nowhere.npz" in refused([tmp_path / "nowhere.npz"])
    changed = root / all_videos(root)[0]
    os.utime(changed, ns=(0, 1))
    assert "as it was before it changed" in refused(parts)
    changed.write_bytes(changed.read_bytes() + bytes(8))
    assert "build the part again" in refused(parts)


def test_all_bad_files_are_listed_and_nothing_is_installed(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(root) == 0
    place = written(capsys)
    before, names = place.read_bytes(), set(place.parent.iterdir())
    first, second, third = (root / name for name in all_videos(root)[:3])
    first.write_bytes(b"")
    second.unlink()
    third.write_bytes(third.read_bytes()[:-100])
    assert run(root) == 1
    error = capsys.readouterr().err
    assert f"3 of {len(all_videos(root)) + 1} video files" in error
    for bad in (first, second, third):
        assert bad.relative_to(root).as_posix() in error
    assert place.read_bytes() == before
    assert {path for path in place.parent.iterdir() if path.suffix != ".lock"} <= names


def test_only_the_files_of_some_episodes(
    root: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    output = tmp_path / "some.npz"
    assert run(root, "--episodes", "0,", "--output", output) == 0
    assert "1 episodes" in capsys.readouterr().out
    names = list(open_sidecar(output).files)
    assert 0 < len(names) < len(all_videos(root))
    assert run(root, "--episodes", "0,99", "--output", output) == 1
    assert "names [99]" in capsys.readouterr().err


def test_the_value_of_episodes() -> None:
    assert parse_episodes("3", 3) == [0, 1, 2]
    assert parse_episodes("3,", 9) == [3]
    assert parse_episodes("4, 0,7", 9) == [4, 0, 7]
    for wrong, message in (("x", "--episodes is 'x'"), ("4", "has 3 episodes"), ("0", "Give 1 to 3")):
        with pytest.raises(OptionError, match=message):
            parse_episodes(wrong, 3)


def test_data_may_lie_apart_from_the_metadata(
    root: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    shutil.move(root / "videos", tmp_path / "payload" / "videos")
    assert run(root, "--data-root", tmp_path / "payload", "--output", tmp_path / "x.npz") == 0
    assert open_sidecar(written(capsys)).identity.data_root == str(tmp_path / "payload")


def test_data_may_lie_in_any_fsspec_store(
    root: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    store = fsspec.filesystem("memory")
    for name in all_videos(root):
        store.pipe_file(f"/cli-set/{name}", (root / name).read_bytes())
    shutil.rmtree(root / "videos")
    assert run(root, "--data-root", "memory://cli-set", "--output", tmp_path / "x.npz") == 0
    sidecar = open_sidecar(written(capsys))
    assert sidecar.identity.data_root == "memory://cli-set"
    assert list(sidecar.files) == list(sidecar.identity.source_fingerprints)
    store.rm("/cli-set", recursive=True)


def test_a_limit_on_the_header(root: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(root, "--max-probe-mb", 0.0001, "--output", tmp_path / "x.npz") == 1
    assert "moov" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--shard-index", "0"],
        ["--num-shards", "2"],
        ["--shard-index", "2", "--num-shards", "2"],
        ["--shard-index", "-1", "--num-shards", "2"],
        ["--shard-index", "0", "--num-shards", "2", "--merge", "x"],
        ["--workers", "0"],
        ["--max-probe-mb", "nan"],
        ["--max-probe-mb", "inf"],
        ["--repo-type", "model"],
    ],
    ids=" ".join,
)
def test_wrong_arguments(root: Path, arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run(root, *arguments)
    assert caught.value.code == 2


def test_misuse_is_told_before_any_work(
    root: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for arguments, message in (
        (["--episodes", "1"], "say with --output"),
        (["--output", str(tmp_path)], "give the name of a file"),
    ):
        assert run(root, *arguments) == 1
        assert message in capsys.readouterr().err
    assert list(tmp_path.glob("*.lock")) == []


def test_lerobots_own_errors_are_no_tracebacks(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    set_info(root, codebase_version="v2.1")
    assert run(root) == 1
    assert "v2.1" in capsys.readouterr().err


def test_refusals_come_before_any_work(
    root: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(root, "--push") == 1
    assert "--push" in capsys.readouterr().err
    assert run(tmp_path / "nowhere") == 1
    assert "nowhere" in capsys.readouterr().err


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from lerobot_streaming.cli.build_mp4_sidecar import main\n"
        "try:\n    main(['--help'])\n"
        "except SystemExit as error:\n    print(error.code)\n"
        "print([name for name in ('torch', 'numpy', 'av', 'pyarrow', 'lerobot') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "--shard-index" in done.stdout
    assert done.stdout.splitlines()[-2:] == ["0", "[]"]


_SLOW_READS = """
import signal, sys, time
# Whoever runs the tests in the background may have it ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
from lerobot_streaming.cli import build_mp4_sidecar
from lerobot_streaming.storage.local import LocalReader
read = LocalReader.read_into
def slow(self, path, offset, view):
    print("reading", flush=True)
    time.sleep(60)
LocalReader.read_into = slow
sys.argv = ["lerobot-build-mp4-sidecar", *sys.argv[1:]]
build_mp4_sidecar.script()
"""


def test_an_interrupt_ends_it_at_once_and_leaves_nothing(root: Path, tmp_path: Path) -> None:
    output = tmp_path / "out" / "x.npz"
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            _SLOW_READS,
            "--repo-id",
            REPO_ID,
            "--root",
            str(root),
            "--output",
            str(output),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("reading")
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert time.monotonic() - begin < 20, "it waited for reads that nobody wants"
    assert process.returncode == 130
    assert "interrupted" in errors
    assert "Traceback" not in errors
    assert [path.name for path in output.parent.iterdir() if not path.name.endswith(".lock")] == []
