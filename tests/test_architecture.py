"""The rooms of the library and what each may import."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import lerobot_streaming

SOURCE = Path(lerobot_streaming.__file__).parent

# Room -> rooms of ours that it may import. A room may always import itself.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "threads": set(),
    "memory": set(),
    "augmentation": set(),
    "plan": {"errors"},
    "options": {"errors", "plan"},
    "versions": {"errors"},
    "ranks": {"errors"},
    "accelerate_guard": {"errors", "versions"},
    "storage": {"errors", "threads"},
    "index": {"errors", "storage", "threads"},
    "stats": {"options"},
    "lerobot_values": set(),
    "episodes": {"errors", "index", "storage", "stats", "threads"},
    "decode": {"errors", "episodes", "stats", "threads"},
    "items": {"errors", "decode", "episodes", "lerobot_values", "memory"},
    "stream": {"augmentation", "errors", "plan", "storage", "episodes", "decode", "items", "stats"},
    "state": {"errors", "options", "plan"},
    "orders": {"plan", "state"},
    "pass_numbers": {"options"},
    "place": {"plan", "ranks", "state", "orders", "pass_numbers"},
    "progress": {"errors", "options", "plan", "ranks", "state", "orders", "place"},
    "places": {"errors", "options", "storage", "index", "episodes", "threads"},
    "item_spec": {"episodes", "items", "lerobot_values"},
    "opening": {
        *("errors", "options", "plan", "storage", "index", "episodes", "items", "lerobot_values", "places"),
        "threads",
    },
    "worker": {
        *("errors", "options", "plan", "episodes", "decode", "items", "lerobot_values", "opening", "stats"),
        *("storage", "stream"),
    },
    "resume": {"errors", "options", "plan", "opening", "ranks", "state", "orders", "place", "progress"},
    "resumable": {"errors", "options", "resume", "accelerate_guard"},
    "dataset": {
        *(
            "errors",
            "memory",
            "options",
            "episodes",
            "items",
            "item_spec",
            "opening",
            "place",
            "places",
            "plan",
        ),
        *("ranks", "resume", "resumable", "stats", "stream", "worker", "accelerate_guard"),
    },
    "train": {
        *("errors", "options", "episodes", "dataset", "items", "places", "ranks", "versions"),
        "accelerate_guard",
    },
    "cli": {"errors", "options", "storage", "index", "episodes", "places", "dataset"},
    "__init__": {"dataset"},
}


def _modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def _room(path: Path) -> str:
    parts = path.relative_to(SOURCE).parts
    return parts[0].removesuffix(".py")


def _imports(path: Path) -> set[str]:
    """Full names of all modules that a file imports, for types only or not."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.add(node.module or "")
            if node.module == "lerobot_streaming":
                names |= {f"lerobot_streaming.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("path", _modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_rooms_import_in_one_direction(path: Path) -> None:
    room = _room(path)
    ours = {
        name.split(".")[1] for name in _imports(path) if name.startswith("lerobot_streaming.")
    } & ALLOWED.keys()
    assert ours - {room} <= ALLOWED[room], f"{room} may not import {sorted(ours - {room} - ALLOWED[room])}"


@pytest.mark.parametrize("room", ["plan", "index", "storage"])
def test_the_pure_rooms_know_no_torch_av_or_lerobot(room: str) -> None:
    for path in (SOURCE / room).rglob("*.py"):
        assert not {name.split(".")[0] for name in _imports(path)} & {"torch", "av", "lerobot"}, path


def test_only_train_knows_lerobots_training_and_nobody_imports_accelerate() -> None:
    for path in _modules():
        names = _imports(path)
        # The room that guards against it looks it up by name when it is there.
        assert not {name for name in names if name.split(".")[0] == "accelerate"}, path
        if _room(path) == "train":
            continue
        assert not {name for name in names if name.startswith("lerobot.scripts")}, path
        assert "lerobot.configs.train" not in names, path
        assert "lerobot.datasets.factory" not in names, path


def test_only_the_dataset_knows_torchs_data_classes() -> None:
    for path in _modules():
        if any(name.startswith("torch.utils.data") for name in _imports(path)):
            assert _room(path) in {"dataset", "memory", "ranks", "cli"}, path


def test_the_package_has_the_rooms_that_the_map_names() -> None:
    assert {_room(path) for path in _modules()} == ALLOWED.keys()
    page = (SOURCE.parents[1] / "docs" / "architecture.md").read_text()
    for room in ALLOWED.keys() - {"__init__"}:
        assert f"`{room}`" in page, f"docs/architecture.md does not describe {room}"


def test_the_public_names_are_these() -> None:
    assert lerobot_streaming.__all__ == ["StreamingLeRobotDataset"]
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = lerobot_streaming.nothing


@pytest.mark.parametrize(
    ("module", "unloaded"),
    [
        ("lerobot_streaming", ["torch", "av", "pyarrow", "lerobot"]),
        ("lerobot_streaming.index", ["torch", "av", "lerobot"]),
        # What a spawned worker imports to unpickle the dataset.
        ("lerobot_streaming.dataset", ["lerobot", "datasets", "pandas", "accelerate", "torchvision"]),
    ],
)
def test_imports_stay_light(module: str, unloaded: list[str]) -> None:
    code = f"import sys, {module}; print(*[name for name in {unloaded!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
