"""lerobot's own metadata from the loopback Hub."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.hub.conftest import TOKEN
from tests.support.hub import LoopbackHub, run_client

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.datasets import Shelf

CODE = """
import json
from huggingface_hub.errors import RepositoryNotFoundError
from lerobot.datasets import LeRobotDatasetMetadata
from lerobot.datasets.utils import get_repo_versions, get_safe_version

def facts(**where):
    found = LeRobotDatasetMetadata(**where)
    return [found.total_frames, found.total_episodes, found.revision, str(found.root)]

told = {
    "versions": [str(version) for version in get_repo_versions("owner/open")],
    "safe": get_safe_version("owner/open", "v3.0"),
    "open": facts(repo_id="owner/open"),
    "main": facts(repo_id="owner/open", revision="main"),
    "private": facts(repo_id="owner/private", token="%(token)s"),
    "private bucket": facts(repo_id="owner/bucket", repo_type="bucket", token="%(token)s"),
}
try:
    facts(repo_id="owner/private")
except RepositoryNotFoundError as error:
    told["without token"] = type(error).__name__
print(json.dumps(told))
"""


def test_metadata_of_datasets_and_a_bucket(hub: LoopbackHub, shelf: Shelf, tmp_path: Path) -> None:
    root = shelf.root("images")
    hub.add_dataset("owner/open", root).tag("v3.0")
    hub.add_dataset("owner/private", root, private=True, token=TOKEN).tag("v3.0")
    hub.add_bucket("owner/bucket", root, private=True, token=TOKEN)
    told = json.loads(run_client(CODE % {"token": TOKEN}, hub, tmp_path).splitlines()[-1])
    info = json.loads((root / "meta" / "info.json").read_bytes())
    sizes = [info["total_frames"], info["total_episodes"]]
    assert told["versions"] == ["3.0"]
    assert told["safe"] == "v3.0"
    assert told["without token"] == "RepositoryNotFoundError"
    for name, revision in {
        "open": "v3.0",
        "main": "main",
        "private": "v3.0",
        "private bucket": "v3.0",
    }.items():
        assert told[name][:3] == [*sizes, revision], name
        assert told[name][3].startswith(str(tmp_path))
    cdn = [request for request in hub.log if request.host == "cdn"]
    assert {request.authorization for request in cdn if not request.path.startswith("/xet/")} == {None}
    assert not any(TOKEN in str(request) for request in cdn)
