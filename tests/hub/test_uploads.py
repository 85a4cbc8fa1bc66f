"""What the real client writes to the loopback Hub's dataset repositories."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import BadRequestError, HfHubHTTPError, RevisionNotFoundError

from tests.hub.conftest import READ_TOKEN, TOKEN, VIDEO
from tests.hub.test_repositories import OLD_PUT
from tests.support.hub import FaultRule, LoopbackHub, Status, online

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.hub import Dataset

pytestmark = pytest.mark.filterwarnings(OLD_PUT)
SET: dict[str, Any] = {"repo_id": "owner/set", "repo_type": "dataset"}
LARGE = bytes(range(256)) * 200


@pytest.mark.usefixtures("client")
def test_branches_and_tags(repo: Dataset) -> None:
    api = HfApi()
    api.create_branch(**SET, branch="lerobot-sidecars")
    assert repo.branches == {"main": repo.commit, "lerobot-sidecars": repo.commit}
    with pytest.raises(HfHubHTTPError, match="409"):
        api.create_branch(**SET, branch="lerobot-sidecars")
    api.create_branch(**SET, branch="lerobot-sidecars", exist_ok=True)
    api.create_branch(**SET, branch="from-tag", revision="v3.0")
    with pytest.raises(RevisionNotFoundError):
        api.create_branch(**SET, branch="from-nothing", revision="v9")
    with pytest.raises(BadRequestError):
        api.create_branch(**SET, branch="refs/pr/1")
    api.delete_branch(**SET, branch="from-tag")
    api.create_tag(**SET, tag="v3.1", revision="lerobot-sidecars")
    with pytest.raises(HfHubHTTPError, match="409"):
        api.create_tag(**SET, tag="v3.1")
    assert repo.tags == {"v3.0": repo.commit, "v3.1": repo.commit}
    api.delete_tag(**SET, tag="v3.1")
    assert repo.tags.keys() == {"v3.0"}


@pytest.mark.parametrize("xet", [False, True])
def test_uploads_small_and_large_files_to_a_branch(hub: LoopbackHub, repo: Dataset, xet: bool) -> None:
    before = repo.commit
    repo.branch("side")
    with online(hub, TOKEN, xet=xet):
        small = HfApi().upload_file(path_or_fileobj=b"small", path_in_repo="s.txt", **SET, revision="side")
        assert small.oid == repo.branches["side"]
        done = HfApi().create_commit(
            **SET,
            operations=[
                CommitOperationAdd("meta/mp4-sidecars/x.npz", LARGE),
                CommitOperationDelete("meta/info.json"),
                CommitOperationDelete("videos/"),
            ],
            commit_message="Publish",
            revision="side",
        )
        again = HfApi().upload_file(path_or_fileobj=LARGE, path_in_repo="copy.npz", **SET, revision="side")
    state = repo.commits[again.oid or ""]
    assert repo.commits[done.oid or ""].title == "Publish"
    assert {path: blob.read() for path, blob in state.files.items() if path.endswith((".npz", "s.txt"))} == {
        "s.txt": b"small",
        "meta/mp4-sidecars/x.npz": LARGE,
        "copy.npz": LARGE,
    }
    assert "meta/info.json" not in state.files
    assert VIDEO not in state.files
    assert repo.commit == before
    assert VIDEO in repo.commits[before].files
    # The second time the content was there; and over HTTP or Xet as asked.
    assert sum(request.method == "PUT" for request in hub.log) == (0 if xet else 1)


@pytest.mark.usefixtures("client", "repo")
def test_writes_are_refused() -> None:
    upload: dict[str, Any] = {"path_or_fileobj": b"x", "path_in_repo": "x", **SET}
    with pytest.raises(HfHubHTTPError, match="403"):
        HfApi(token=READ_TOKEN).upload_file(**upload)
    with pytest.raises(HfHubHTTPError, match="403"):
        HfApi(token=READ_TOKEN).create_branch(**SET, branch="mine")
    with pytest.raises(RevisionNotFoundError):
        HfApi().upload_file(**upload, revision="nowhere")
    with pytest.raises(HfHubHTTPError, match="412"):
        HfApi().upload_file(**upload, parent_commit="0" * 40)


@pytest.mark.usefixtures("client")
def test_creates_a_repository(hub: LoopbackHub, folder: Path) -> None:
    hub.add_token(TOKEN, "owner")
    api = HfApi()
    assert api.create_repo("owner/made", repo_type="dataset", private=True).repo_id == "owner/made"
    api.create_repo("owner/made", repo_type="dataset", exist_ok=True)
    api.upload_folder(repo_id="owner/made", repo_type="dataset", folder_path=folder)
    made = hub.state.datasets["owner/made"]
    assert made.private
    assert made.commits[made.commit].files[VIDEO].read() == (folder / VIDEO).read_bytes()


@pytest.mark.usefixtures("client")
def test_an_upload_that_fails_once_is_sent_again(
    hub: LoopbackHub, repo: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    rule = hub.faults.add(FaultRule(Status(500), host="cdn", method="PUT", first=1))
    HfApi().upload_file(path_or_fileobj=LARGE, path_in_repo="x.npz", **SET)
    assert rule.hits == 1
    assert repo.commits[repo.commit].files["x.npz"].read() == LARGE
