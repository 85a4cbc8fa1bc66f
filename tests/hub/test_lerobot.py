"""lerobot's own metadata from the loopback Hub."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from huggingface_hub.errors import BucketNotFoundError, RepositoryNotFoundError

from tests.hub.conftest import TOKEN
from tests.support.hub import LoopbackHub, online, run_client

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.datasets import Shelf


@pytest.fixture
def root(hub: LoopbackHub, shelf: Shelf) -> Path:
    """The directory of the dataset that the Hub has three times."""
    made = shelf.root("images")
    hub.add_dataset("loopback/open", made).tag("v3.0")
    hub.add_dataset("loopback/private", made, private=True, token=TOKEN).tag("v3.0")
    hub.add_bucket("loopback/bucket", made, private=True, token=TOKEN)
    return made


def sizes(root: Path) -> list[int]:
    info = json.loads((root / "meta" / "info.json").read_bytes())
    return [info["total_frames"], info["total_episodes"]]


def test_finds_the_versions(hub: LoopbackHub, root: Path) -> None:
    from lerobot.datasets.utils import get_repo_versions, get_safe_version

    assert root.exists()
    with online(hub):
        assert [str(version) for version in get_repo_versions("loopback/open")] == ["3.0"]
        assert get_safe_version("loopback/open", "v3.0") == "v3.0"
        assert get_safe_version("loopback/private", "v3.0", token=TOKEN) == "v3.0"
        with pytest.raises(RepositoryNotFoundError):
            get_safe_version("loopback/private", "v3.0")


@pytest.mark.parametrize(
    ("where", "revision"),
    [
        ({"repo_id": "loopback/open"}, "v3.0"),
        ({"repo_id": "loopback/open", "revision": "main"}, "main"),
        ({"repo_id": "loopback/private", "token": TOKEN}, "v3.0"),
        ({"repo_id": "loopback/bucket", "repo_type": "bucket", "token": TOKEN}, "v3.0"),
    ],
)
def test_loads_the_metadata(
    hub: LoopbackHub, root: Path, tmp_path: Path, where: dict[str, Any], revision: str
) -> None:
    from lerobot.datasets import LeRobotDatasetMetadata

    with online(hub):
        found = LeRobotDatasetMetadata(**where, root=tmp_path / "meta-only")
        assert [found.total_frames, found.total_episodes, found.revision] == [*sizes(root), revision]
        assert found.features == LeRobotDatasetMetadata("any/name", root=root).features
    assert not (tmp_path / "meta-only" / "data").exists()
    read = [request for request in hub.log if request.host == "cdn"]
    assert read
    assert not any(TOKEN in str(request) for request in read)


def test_loads_no_private_metadata_without_the_token(hub: LoopbackHub, root: Path, tmp_path: Path) -> None:
    from lerobot.datasets import LeRobotDatasetMetadata

    assert root.exists()
    with online(hub):
        with pytest.raises(RepositoryNotFoundError):
            LeRobotDatasetMetadata("loopback/private", root=tmp_path / "dataset")
        with pytest.raises(BucketNotFoundError):
            LeRobotDatasetMetadata("loopback/bucket", root=tmp_path / "bucket", repo_type="bucket")


@pytest.mark.slow
def test_a_process_finds_its_hub_and_token_in_the_environment(
    hub: LoopbackHub, root: Path, tmp_path: Path
) -> None:
    code = """
import json
from lerobot.datasets import LeRobotDatasetMetadata
told = []
for where in ({"repo_id": "loopback/private"}, {"repo_id": "loopback/bucket", "repo_type": "bucket"}):
    found = LeRobotDatasetMetadata(**where)
    told.append([found.total_frames, found.total_episodes, str(found.root)])
print(json.dumps(told))
"""
    told = json.loads(run_client(code, hub, tmp_path, token=TOKEN).splitlines()[-1])
    for *found, where in told:
        assert found == sizes(root)
        assert where.startswith(str(tmp_path / "lerobot"))
