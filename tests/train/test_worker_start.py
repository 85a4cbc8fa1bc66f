"""How the DataLoader workers of a training run start."""

from __future__ import annotations

import importlib.machinery
import multiprocessing
import sys
import time
from multiprocessing import spawn
from pickle import PicklingError
from threading import Thread
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from lerobot_streaming.train.worker_start import WorkerContext, worker_context
from tests.train.support import configure, run_lerobot_train, run_python, train_arguments

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.datasets import Shelf

SCRIPT = "lerobot.scripts.lerobot_train"


class MainScript:
    """A main script that notes that it was run."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "ran"
        self.path = folder / "lerobot-train"
        self.path.write_text(f"with open({str(self._log)!r}, 'a') as log: log.write('x')")

    @property
    def runs(self) -> int:
        return len(self._log.read_text()) if self._log.exists() else 0


@pytest.fixture
def main_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MainScript:
    script = MainScript(tmp_path)
    main = ModuleType("__main__")
    main.__file__ = str(script.path)
    monkeypatch.setitem(sys.modules, "__main__", main)
    return script


def run(context: Any, *args: Any) -> int | None:
    process = context.Process(target=time.sleep, args=args or (0,))
    process.start()
    process.join()
    return process.exitcode  # type: ignore[no-any-return]


def test_a_process_runs_without_the_main_script(main_script: MainScript) -> None:
    assert run(WorkerContext()) == 0
    assert main_script.runs == 0
    assert run(multiprocessing.get_context("spawn")) == 0
    assert main_script.runs == 1


class StartsAnother:
    """When it is pickled, another thread starts an ordinary process."""

    def __reduce__(self) -> tuple[type[int], tuple[()]]:
        thread = Thread(target=run, args=(multiprocessing.get_context("spawn"),))
        thread.start()
        thread.join()
        return int, ()


def test_processes_that_other_threads_start_meanwhile_run_the_main_script(main_script: MainScript) -> None:
    assert run(WorkerContext(), StartsAnother()) == 0
    assert main_script.runs == 1


@pytest.mark.parametrize("argument", [0, lambda: None], ids=["started", "failed"])
def test_afterwards_everything_is_as_it_was(main_script: MainScript, argument: Any) -> None:
    before = spawn.get_preparation_data
    try:
        run(WorkerContext(), argument)
    except (AttributeError, PicklingError):  # The function cannot be pickled.
        assert callable(argument)
    assert spawn.get_preparation_data is before
    assert main_script.runs == 0


def train_main() -> None:
    """Stands for the function that the command calls."""


@pytest.mark.parametrize(
    ("name", "spec", "own", "is_command"),
    [
        ("/usr/bin/lerobot-train", None, {"sys": sys, "main": train_main}, True),
        (f"/site-packages/{SCRIPT.replace('.', '/')}.py", SCRIPT, {"main": train_main}, True),
        # What other programs define or do may be needed where they are run again.
        ("/home/me/my_script.py", None, {"sys": sys, "main": train_main}, False),
        ("/home/me/lerobot-train", None, {"sys": sys, "main": lambda: None}, False),
        ("/home/me/lerobot-train", None, {"main": train_main, "Transform": type("Transform", (), {})}, False),
        ("/home/me/lerobot-train", None, {"main": train_main, "limit": 3}, False),
        (None, None, {}, False),
        ("/home/me/my_package/train.py", "my_package.train", {}, False),
    ],
)
def test_only_the_training_command_itself_is_left_out(
    monkeypatch: pytest.MonkeyPatch, name: str | None, spec: str | None, own: dict[str, Any], is_command: bool
) -> None:
    main, script = ModuleType("__main__"), ModuleType(SCRIPT)
    vars(main).update(own)
    vars(script)["main"] = train_main
    if name is not None:
        main.__file__ = name
    if spec is not None:
        main.__spec__ = importlib.machinery.ModuleSpec(spec, None)
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert isinstance(worker_context("spawn", script), WorkerContext) is is_command
    own_context = multiprocessing.get_context("spawn")
    for other in ("fork", "forkserver", None, own_context):
        assert worker_context(other, script) is other


@pytest.fixture
def command(lerobot_train: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The patched training script in a process whose program is `lerobot-train`."""
    main = ModuleType("__main__")
    main.__file__ = "/usr/bin/lerobot-train"
    vars(main)["main"] = lerobot_train.main
    monkeypatch.setitem(sys.modules, "__main__", main)
    return lerobot_train


@pytest.mark.parametrize(
    ("streaming", "more", "expected"),
    [
        (True, ("--num_workers=2",), WorkerContext),
        (True, ("--num_workers=2", "--dataloader_multiprocessing_context=fork"), "fork"),
        (True, ("--num_workers=0",), None),
        (False, ("--num_workers=2",), "spawn"),
    ],
)
def test_what_the_loaders_of_a_run_get(
    command: Any, tmp_path: Path, streaming: bool, more: tuple[str, ...], expected: Any
) -> None:
    cfg = configure(train_arguments(tmp_path, tmp_path / "out", *more, streaming=streaming))
    options = command._dataloader_worker_kwargs(cfg)
    stock = command._dataloader_worker_kwargs.__wrapped__(cfg)
    context = options.pop("multiprocessing_context")
    assert type(context) is expected if isinstance(expected, type) else context == expected
    del stock["multiprocessing_context"]
    assert options == stock


def test_a_script_without_worker_options_works_as_ever(
    stock_lerobot: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lerobot_streaming.train import enable

    monkeypatch.delattr(stock_lerobot, "_dataloader_worker_kwargs")
    enable()
    assert not hasattr(stock_lerobot, "_dataloader_worker_kwargs")
    assert hasattr(stock_lerobot.make_train_eval_datasets, "__wrapped__")


CUSTOM_LOOP = """
import sys
import av, numpy, pyarrow.parquet, torch.multiprocessing
from torch.utils.data import DataLoader

def loaded():
    names = {name.partition(".")[0] for name in sys.modules} - sys.stdlib_module_names
    # Those of Cython's runtime and of the interpreter's build settings are no packages.
    return {name for name in names if not name.startswith("_")}

ALLOWED = loaded()

from lerobot_streaming import StreamingLeRobotDataset

def mirrored(images):
    return images.flip(-1)

def loaded_by_the_worker(items):
    return loaded() - ALLOWED

if __name__ == "__main__":
    dataset = StreamingLeRobotDataset("tests/made", sys.argv[1], image_transforms=mirrored)
    loader = DataLoader(
        dataset, num_workers=1, multiprocessing_context="spawn", collate_fn=loaded_by_the_worker
    )
    print("loaded:", *sorted(set().union(*loader)))
"""


def test_a_worker_of_a_custom_loop_loads_nothing_that_it_does_not_need(shelf: Shelf, tmp_path: Path) -> None:
    script = tmp_path / "loop.py"
    script.write_text(CUSTOM_LOOP)
    # Strings, booleans, arrays and an empty vector besides the camera.
    done = run_python(str(script), str(shelf.root("odd_features")))
    assert done.code == 0, done.output
    (line,) = (line for line in done.output.splitlines() if line.startswith("loaded:"))
    assert "lerobot_streaming" in line
    assert set(line.split()[1:]) <= {"lerobot_streaming", "filelock"}


def times_imported(output: str, module: str) -> int:
    """How many processes imported a module, by what Python reports of every import."""
    reports = [line.split("|") for line in output.splitlines() if line.startswith("import time:")]
    return sum(report[-1].strip() == module for report in reports)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("how", ["script", "module"])
def test_workers_of_a_training_run_import_no_policies(shelf: Shelf, tmp_path: Path, how: str) -> None:
    done = run_lerobot_train(
        train_arguments(
            shelf.root("many_tiny"),
            tmp_path / "out",
            "--num_workers=2",
            "--dataset.eval_split=0.2",
            "--eval_steps=2",
        ),
        how=how,
        env={"PYTHONPROFILEIMPORTTIME": "1"},
    )
    assert done.code == 0, done.output
    assert len(done.losses) == 3
    # The training process and the workers of its two loaders.
    assert times_imported(done.output, "torch") == 5
    for module in ("lerobot", "lerobot.policies", "accelerate", "datasets", "pandas"):
        assert times_imported(done.output, module) == 1, module


OWN_SCRIPT = """
import functools
import os
from pathlib import Path

class Noted:
    def __call__(self, images):
        Path(os.environ["NOTED"]).touch()
        return images

def main():
    from lerobot.scripts import lerobot_train
    from lerobot_streaming.train import enable

    enable()
    make = lerobot_train.make_train_eval_datasets

    @functools.wraps(make)
    def with_transforms(cfg):
        train, held_out = make(cfg)
        train.image_transforms = Noted()
        return train, held_out

    lerobot_train.make_train_eval_datasets = with_transforms
    lerobot_train.main()

if __name__ == "__main__":
    main()
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_workers_of_ones_own_script_find_what_it_defines(shelf: Shelf, tmp_path: Path) -> None:
    script, noted = tmp_path / "train.py", tmp_path / "noted"
    script.write_text(OWN_SCRIPT)
    arguments = train_arguments(shelf.root("many_tiny"), tmp_path / "out", "--num_workers=1")
    done = run_python(str(script), *arguments, env={"NOTED": str(noted)})
    assert done.code == 0, done.output
    assert len(done.losses) == 3
    assert noted.exists()
