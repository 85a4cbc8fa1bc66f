"""What the real client reads from the loopback Hub's dataset repositories."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from huggingface_hub import HfApi, HfFileSystem, hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from tests.hub.conftest import OTHER_TOKEN, READ_TOKEN, TOKEN, VIDEO
from tests.support.hub import LoopbackHub, online, run_client

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.hub import Dataset

pytestmark = pytest.mark.usefixtures("client")
OLD_PUT = "ignore:Use 'content=:DeprecationWarning"
"""What httpx says to the way in which the client uploads."""
SET: dict[str, Any] = {"repo_id": "owner/set", "repo_type": "dataset"}


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def test_says_who_a_token_is() -> None:
    with pytest.raises(HfHubHTTPError, match="Invalid user token"):
        HfApi().whoami(token=OTHER_TOKEN)


def test_informs_about_a_repository_and_its_references(hub: LoopbackHub, repo: Dataset, folder: Path) -> None:
    hub.add_token(TOKEN, "owner")
    repo.branch("next")
    later = repo.add_commit(
        {"meta/info.json": b"{}", "README.md": None, "new.txt": folder / "README.md"}, "next"
    )
    with pytest.raises(KeyError):
        repo.add_commit({}, "nowhere")
    info = HfApi().dataset_info("owner/set", files_metadata=True)
    assert (info.sha, info.private, info.gated, info.author) == (repo.commit, True, False, "owner")
    assert {sibling.rfilename: sibling.size for sibling in info.siblings or []} == {
        path: len(content) for path, content in files_of(folder).items()
    }
    assert HfApi().dataset_info("owner/set", revision="next").sha == later
    assert HfApi().dataset_info("owner/set", revision=later[:10]).sha == later
    refs = HfApi().list_repo_refs(**SET)
    assert {ref.name: ref.target_commit for ref in refs.branches} == repo.branches
    assert {ref.name: ref.target_commit for ref in refs.tags} == {"v3.0": repo.commit}
    assert [commit.commit_id for commit in HfApi().list_repo_commits(**SET, revision="next")] == [
        later,
        repo.commit,
    ]
    assert HfApi().file_exists("owner/set", "new.txt", repo_type="dataset", revision="next")
    assert not HfApi().file_exists("owner/set", "README.md", repo_type="dataset", revision="next")


def test_lists_folders_and_files_with_their_hashes(repo: Dataset, folder: Path) -> None:
    entries = {entry.path: entry for entry in HfApi().list_repo_tree(**SET, recursive=True)}
    contents = files_of(folder)
    parents = {parent.as_posix() for path in contents for parent in Path(path).parents} - {"."}
    assert entries.keys() == contents.keys() | parents
    video: Any = entries[VIDEO]
    blob = repo.commits[repo.commit].files[VIDEO]
    assert (video.size, video.lfs.sha256, video.xet_hash) == (300_000, blob.sha256, None)
    small: Any = entries["meta/info.json"]
    assert (small.blob_id, small.lfs) == (repo.commits[repo.commit].files["meta/info.json"].git_oid, None)
    assert {entry.path for entry in HfApi().list_repo_tree(**SET, path_in_repo="meta")} == {
        "meta/info.json",
        "meta/tasks.parquet",
    }
    found = HfApi().get_paths_info("owner/set", [VIDEO, "meta", "nothing"], repo_type="dataset")
    assert {entry.path for entry in found} == {VIDEO, "meta"}
    with pytest.raises(EntryNotFoundError):
        list(HfApi().list_repo_tree(**SET, path_in_repo="nothing"))


def test_pages_a_listing(folder: Path) -> None:
    with LoopbackHub(page_size=3) as hub:
        hub.add_dataset("owner/set", folder)
        with online(hub):
            paths = [entry.path for entry in HfApi().list_repo_tree(**SET, recursive=True)]
        assert len(paths) == len(set(paths)) > 9
        assert len(hub.log) == -(-len(paths) // 3)


@pytest.mark.parametrize("relative_redirects", [False, True])
def test_downloads_files(folder: Path, tmp_path: Path, relative_redirects: bool) -> None:
    with LoopbackHub(relative_redirects=relative_redirects) as hub:
        repo = hub.add_dataset("owner/set", folder, private=True, token=TOKEN)
        with online(hub, TOKEN):
            one = hf_hub_download(filename=VIDEO, **SET, cache_dir=tmp_path / "one")
            assert Path(one).read_bytes() == (folder / VIDEO).read_bytes()
            root = Path(snapshot_download(**SET, cache_dir=tmp_path / "all"))
        assert root.name == repo.commit
        assert files_of(root) == files_of(folder)
        redirected = [request for request in hub.log if request.path.startswith("/api/resolve-cache/")]
        assert bool(redirected) == relative_redirects


@pytest.mark.usefixtures("repo")
@pytest.mark.filterwarnings(OLD_PUT)
def test_the_token_never_reaches_the_second_host(hub: LoopbackHub, folder: Path, tmp_path: Path) -> None:
    snapshot_download(**SET, cache_dir=tmp_path)
    assert (
        HfFileSystem().cat_file(f"datasets/owner/set/{VIDEO}", start=10, end=99)
        == ((folder / VIDEO).read_bytes()[10:99])
    )
    HfApi().upload_file(path_or_fileobj=b"x" * 50_000, path_in_repo="up.bin", **SET)
    sent = {host: [request for request in hub.log if request.host == host] for host in ("hub", "cdn")}
    assert {request.method for request in sent["cdn"]} == {"GET", "PUT"}
    assert all(request.authorization == f"Bearer {TOKEN}" for request in sent["hub"])
    for request in sent["cdn"]:
        assert request.authorization is None
        assert TOKEN not in f"{request.path} {request.query} {request.headers}"


def test_the_file_system_reads_ranges(repo: Dataset, folder: Path) -> None:
    fs = HfFileSystem(skip_instance_cache=True)
    assert set(fs.ls("datasets/owner/set@v3.0/meta", detail=False)) == {
        "datasets/owner/set@v3.0/meta/info.json",
        "datasets/owner/set@v3.0/meta/tasks.parquet",
    }
    root = f"datasets/owner/set@{repo.commit}"
    for path, content in files_of(folder).items():
        assert fs.cat_file(f"{root}/{path}", start=3, end=7) == content[3:7]
    assert fs.glob(f"{root}/**/*.mp4") == [f"{root}/{VIDEO}"]


MISSING: list[tuple[Callable[[], object], type[Exception]]] = [
    (lambda: HfApi().dataset_info("owner/nothing"), RepositoryNotFoundError),
    (lambda: HfApi().dataset_info("owner/set", revision="v9"), RevisionNotFoundError),
    (lambda: hf_hub_download("owner/set", "nothing", repo_type="dataset"), EntryNotFoundError),
    (lambda: hf_hub_download("owner/set", VIDEO, repo_type="dataset", revision="v9"), RevisionNotFoundError),
    (lambda: HfApi(token=False).dataset_info("owner/set"), RepositoryNotFoundError),
    (lambda: HfApi(token=OTHER_TOKEN).dataset_info("owner/set"), RepositoryNotFoundError),
    (lambda: HfApi(token=False).dataset_info("owner/gated", revision="v9"), RevisionNotFoundError),
    (lambda: hf_hub_download("owner/gated", VIDEO, repo_type="dataset", token=False), GatedRepoError),
    (lambda: hf_hub_download("owner/gated", VIDEO, repo_type="dataset", token=OTHER_TOKEN), GatedRepoError),
    (lambda: HfApi(token=OTHER_TOKEN).auth_check("owner/gated", repo_type="dataset"), GatedRepoError),
]


@pytest.mark.parametrize(("ask", "error"), MISSING)
@pytest.mark.usefixtures("repo")
def test_what_is_missing_or_forbidden_raises_the_clients_own_errors(
    hub: LoopbackHub, folder: Path, ask: Callable[[], object], error: type[Exception]
) -> None:
    hub.add_token(OTHER_TOKEN)
    hub.add_dataset("owner/gated", folder, gated=True, token=TOKEN)
    with pytest.raises(error):
        ask()


@pytest.mark.usefixtures("repo")
def test_an_unknown_token_is_refused_as_such(hub: LoopbackHub, folder: Path) -> None:
    hub.add_dataset("owner/open", folder)
    with pytest.raises(HfHubHTTPError, match="Invalid credentials in Authorization header") as caught:
        HfApi(token=OTHER_TOKEN).dataset_info("owner/open")
    assert not isinstance(caught.value, RepositoryNotFoundError)
    assert HfApi(token=False).dataset_info("owner/open").gated is False


def test_a_gated_repository_is_read_with_a_grant(hub: LoopbackHub, folder: Path, tmp_path: Path) -> None:
    gated = hub.add_dataset("owner/gated", folder, gated=True)
    hub.grant(gated, READ_TOKEN)
    assert HfApi(token=False).dataset_info("owner/gated").gated == "auto"
    got = hf_hub_download("owner/gated", VIDEO, repo_type="dataset", token=READ_TOKEN, cache_dir=tmp_path)
    assert Path(got).read_bytes() == (folder / VIDEO).read_bytes()


def test_runs_client_code_in_a_process_of_its_own(hub: LoopbackHub, repo: Dataset, tmp_path: Path) -> None:
    code = "import huggingface_hub as h; print(h.whoami()['name'], h.dataset_info('owner/set').sha)"
    assert run_client(code, hub, tmp_path, token=READ_TOKEN) == f"someone {repo.commit}\n"
    with pytest.raises(RuntimeError, match=r"ended with status 1(?s:.*)RepositoryNotFoundError"):
        run_client(code.replace("h.whoami()['name']", "0"), hub, tmp_path)
