"""Sidecars that are published with a dataset: looked up, published by the command, never by training."""

from __future__ import annotations

import shutil
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from lerobot_streaming.cli.build_mp4_sidecar import main
from lerobot_streaming.index.partial import PartialIndex
from tests.hub.conftest import READ_TOKEN, TOKEN
from tests.hub.streaming import BUCKET, REPO, assert_streams, disk_files, open_set, payload_requests
from tests.hub.test_repositories import OLD_PUT

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.support.hub import Bucket, Dataset, LoopbackHub
    from tests.support.oracle import Item

# The client's own way to upload.
pytestmark = pytest.mark.filterwarnings(OLD_PUT)

type Items = Mapping[int, Item]

FOLDER = "meta/mp4-sidecars/"
BRANCH = "lerobot-sidecars"


def push(monkeypatch: pytest.MonkeyPatch, token: str | None, *arguments: str, repo_id: str = REPO) -> int:
    with monkeypatch.context() as patch:
        patch.delenv("HF_TOKEN", raising=False)
        if token is not None:
            patch.setenv("HF_TOKEN", token)
        return main(["--repo-id", repo_id, "--push", *arguments])


def forget(home: Path) -> None:
    """As on another machine."""
    shutil.rmtree(home)


def published(repo: Dataset) -> dict[str, Any]:
    files = repo.commits[repo.branches[BRANCH]].files
    return {path: blob for path, blob in files.items() if path.startswith(FOLDER)}


def video_bytes(hub: LoopbackHub) -> int:
    return sum(
        size for host, path, size in payload_requests(hub) if host == "cdn" and path.startswith("videos/")
    )


@pytest.mark.parametrize("kind", ["dataset", "bucket"])
def test_a_published_sidecar_is_found_by_everybody(
    hub: LoopbackHub,
    streamed: Dataset,
    bucket: Bucket,
    lerobot_home: Path,
    expected: Items,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kind: str,
) -> None:
    main_before = dict(streamed.commits[streamed.branches["main"]].files)
    repo_id = REPO if kind == "dataset" else BUCKET
    assert push(monkeypatch, TOKEN, "--repo-type", kind, repo_id=repo_id) == 0
    out = capsys.readouterr().out
    if kind == "dataset":
        assert f"published hf://datasets/{REPO}@{BRANCH}/{FOLDER}mp4-v3-{streamed.commit[:32]}-" in out
        (path,) = published(streamed)
        assert dict(streamed.commits[streamed.branches["main"]].files) == main_before
    else:
        assert f"published hf://buckets/{BUCKET}/{FOLDER}mp4-v3-" in out
        (path,) = (path for path in bucket.objects if path.startswith(FOLDER))
    built = next(file for file in lerobot_home.rglob("*.npz") if ".parts" not in str(file))
    content = built.read_bytes()
    assert path.endswith(built.name)

    forget(lerobot_home)
    hub.clear_log()
    dataset = open_set(repo_id, repo_type=kind, token=READ_TOKEN)
    assert video_bytes(hub) == 0
    assert not isinstance(dataset._open.index, PartialIndex)
    assert built.read_bytes() == content
    assert_streams(expected, dataset)
    # The sidecar is no metadata, large as it may be: it is on the disk once.
    assert len([file for file in disk_files(lerobot_home) if file.endswith(".npz")]) == 1


def test_everything_about_a_published_sidecar_is_asked_once(
    hub: LoopbackHub, streamed: Dataset, lerobot_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert push(monkeypatch, TOKEN) == 0
    forget(lerobot_home)
    hub.clear_log()
    dataset = open_set()
    requests = Counter((request.method, request.path.rpartition("/")[2]) for request in hub.log)
    sidecars = {key: count for key, count in requests.items() if key[1].endswith(".npz")}
    # Where it is, and its bytes; what the folder holds, and the sizes of the dataset's files.
    assert sorted(sidecars.values()) == [1, 1]
    assert sum("mp4-sidecars" in request.path and "/tree/" in request.path for request in hub.log) == 1
    assert sum("/paths-info/" in request.path for request in hub.log) == 1
    for path in dataset._open.layout.data_files:
        assert sum(path in request.path and request.method == "HEAD" for request in hub.log) <= 1
    assert len(published(streamed)) == 1


def test_a_sidecar_of_another_name_is_used_if_its_manifest_fits(
    hub: LoopbackHub,
    streamed: Dataset,
    lerobot_home: Path,
    expected: Items,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert push(monkeypatch, TOKEN) == 0
    ((path, blob),) = published(streamed).items()
    streamed.add_commit(
        {path: None, f"{FOLDER}a-old.npz": b"no archive", f"{FOLDER}b.npz": blob}, branch=BRANCH
    )
    forget(lerobot_home)
    hub.clear_log()
    dataset = open_set()
    assert video_bytes(hub) == 0
    assert_streams(expected, dataset)


def test_a_sidecar_of_another_commit_is_not_used(
    hub: LoopbackHub,
    streamed: Dataset,
    root: Path,
    lerobot_home: Path,
    expected: Items,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert push(monkeypatch, TOKEN) == 0
    assert len(published(streamed)) == 1
    # Even though not a byte of a video differs.
    streamed.add_commit({"README.md": b"other words"})
    streamed.tag("v3.0", "main")
    forget(lerobot_home)
    hub.clear_log()
    dataset = open_set()
    assert video_bytes(hub) > 0
    assert_streams(expected, dataset)
    assert root.exists()


def test_a_damaged_sidecar_is_replaced_by_a_build(
    streamed: Dataset,
    lerobot_home: Path,
    expected: Items,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert push(monkeypatch, TOKEN) == 0
    ((path, blob),) = published(streamed).items()
    content = bytearray(blob.read())
    content[len(content) // 2] ^= 255
    streamed.add_commit({path: bytes(content)}, branch=BRANCH)
    forget(lerobot_home)
    assert_streams(expected, open_set())
    assert "the published video index does not fit and is not used" in caplog.text


def test_pushing_twice_is_no_error(streamed: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    assert push(monkeypatch, TOKEN) == 0
    assert push(monkeypatch, TOKEN, "--revision", "main") == 0
    assert len(published(streamed)) == 1


@pytest.mark.parametrize(
    ("token", "arguments", "message"),
    [
        (READ_TOKEN, (), "right to write to dataset 'owner/set'"),
        (READ_TOKEN, ("--repo-type", "bucket", "--repo-id", BUCKET), "right to write to bucket"),
        (None, (), "no token was sent"),
        (TOKEN, ("--episodes", "2", "--output", "part.npz"), "leave out --episodes"),
        (TOKEN, ("--shard-index", "0", "--num-shards", "2"), "leave out --num-shards"),
        (TOKEN, ("--data-root", "s3://store/set"), "leave out --data-root"),
        (TOKEN, ("--root", "{root}"), "a local or unpinned root"),
    ],
    ids=str,
)
def test_what_cannot_be_published_is_refused_before_any_work(
    hub: LoopbackHub,
    bucket: Bucket,
    streamed: Dataset,
    root: Path,
    lerobot_home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    token: str | None,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    objects = dict(bucket.objects)
    given = [argument.format(root=root) for argument in arguments]
    assert push(monkeypatch, token, *given) == 1
    assert message in capsys.readouterr().err
    assert not payload_requests(hub)
    assert BRANCH not in streamed.branches
    assert bucket.objects == objects
    assert not list(lerobot_home.rglob("*.npz"))


@pytest.mark.parametrize("kind", ["dataset", "bucket"])
def test_streaming_never_writes_to_the_hub(
    hub: LoopbackHub, streamed: Dataset, bucket: Bucket, expected: Items, kind: str
) -> None:
    objects, heads = dict(bucket.objects), dict(streamed.branches)
    # With the right to do so.
    dataset = open_set(REPO if kind == "dataset" else BUCKET, repo_type=kind, token=TOKEN)
    assert_streams(expected, dataset)
    writing = [(request.method, request.path) for request in hub.log if request.method not in {"GET", "HEAD"}]
    assert all(method == "POST" and "/paths-info" in path for method, path in writing), writing
    assert bucket.objects == objects
    assert streamed.branches == heads
