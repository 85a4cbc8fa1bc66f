"""What cannot be streamed is refused at construction, with the remedy; secrets stay out of everything."""

from __future__ import annotations

import http.server
import logging
import pickle
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from lerobot_streaming.errors import AccessError, FetchError, MissingFileError, OptionError, StreamingError
from tests.hub.conftest import OTHER_TOKEN, READ_TOKEN, TOKEN
from tests.hub.streaming import BUCKET, REPO, assert_streams, disk_files, open_set, payload_requests
from tests.storage.s3 import SECRET, S3Server
from tests.support.hub import FaultRule, Status, run_client

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.support.hub import Bucket, Dataset, LoopbackHub
    from tests.support.oracle import Item

type Items = Mapping[int, Item]


@pytest.mark.parametrize(
    ("repo_id", "arguments", "error", "messages"),
    [
        ("owner/nothing", {}, AccessError, ("owner/nothing", "there is no such dataset", "check the id")),
        ("nothing", {}, MissingFileError, ("no OWNER/NAME on the Hub", "`root`")),
        (REPO, {"token": False}, AccessError, ("no token was sent", "hf auth login", "HF_TOKEN")),
        (REPO, {"token": OTHER_TOKEN}, AccessError, ("there is no such dataset, or it is private", "rights")),
        (REPO, {"token": "hf_unknown"}, AccessError, ("401", "token is valid")),
        ("owner/gated", {"token": OTHER_TOKEN}, AccessError, ("it is gated; accept its conditions at http",)),
        (REPO, {"revision": "nowhere"}, MissingFileError, ("no revision 'nowhere'", "branch, tag or commit")),
        (REPO, {"revision": "0" * 40}, MissingFileError, ("no revision '0000", REPO)),
        (REPO, {"root": "hf://buckets/owner/bucket"}, OptionError, ("both must name the same bucket",)),
        (BUCKET, {"root": "hf://buckets/owner/bucket/sub"}, OptionError, ("a bucket of its own",)),
        (BUCKET, {"root": "hf://datasets/owner/set"}, OptionError, ("a local directory or hf://buckets/",)),
        (REPO, {"root": "s3://store/set"}, OptionError, ("`data_root`",)),
        ("owner/nothing", {"repo_type": "bucket"}, AccessError, ("there is no such bucket", "check the id")),
        (BUCKET, {"repo_type": "bucket", "token": False}, AccessError, ("no token was sent", "HF_TOKEN")),
        (BUCKET, {"repo_type": "bucket", "token": OTHER_TOKEN}, AccessError, ("no such bucket, or it is",)),
        ("owner/empty", {"repo_type": "bucket"}, MissingFileError, ("it has no meta/info.json", "repo_id")),
        ("owner/plain", {"revision": "main"}, MissingFileError, ("it has no meta/info.json", "repo_id")),
        (REPO, {"storage_options": {"key": "x"}}, OptionError, ("pass the URL of the payload as data_root",)),
    ],
    ids=str,
)
def test_a_bad_place_is_refused_with_the_remedy(
    hub: LoopbackHub,
    streamed: Dataset,
    bucket: Bucket,
    root: Path,
    tmp_path: Path,
    repo_id: str,
    arguments: dict[str, Any],
    error: type[StreamingError],
    messages: tuple[str, ...],
) -> None:
    assert streamed.commit
    assert bucket.objects
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "README.md").write_text("no dataset")
    hub.add_bucket("owner/empty", empty, token=TOKEN)
    hub.add_dataset("owner/plain", empty)
    hub.add_token(OTHER_TOKEN)
    hub.add_dataset("owner/gated", root, gated=True, token=TOKEN).tag("v3.0")
    with pytest.raises(error) as caught:
        open_set(repo_id, **arguments)
    for message in messages:
        assert message in str(caught.value)
    assert not payload_requests(hub)
    assert not any(token in str(caught.value) for token in (TOKEN, OTHER_TOKEN, "hf_unknown"))


class _WholeFiles(http.server.SimpleHTTPRequestHandler):
    """A web server that knows no ranges, as Python's own is."""

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def plain_server(root: Path) -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(_WholeFiles, directory=root))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.usefixtures("lerobot_home")
def test_a_store_without_ranges_is_refused(root: Path, plain_server: str) -> None:
    with pytest.raises(FetchError, match=r"(?s)range.*copy the data to a store that does"):
        open_set(root=root, data_root=plain_server)


# The environment.


def test_offline_is_honoured(
    hub: LoopbackHub, streamed: Dataset, root: Path, expected: Items, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    assert streamed.commit
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for arguments in ({}, {"repo_type": "bucket"}, {"revision": "0" * 40}):
        with pytest.raises(AccessError, match="HF_HUB_OFFLINE is set; unset it, or download the dataset"):
            open_set(**arguments)
    assert_streams(expected, open_set(root=root))
    assert not hub.log


@pytest.mark.slow
def test_a_process_finds_hub_token_and_caches_in_the_environment(
    hub: LoopbackHub, streamed: Dataset, tmp_path: Path
) -> None:
    code = f"""
from lerobot_streaming import StreamingLeRobotDataset
dataset = StreamingLeRobotDataset({REPO!r}, return_uint8=True)
print(dataset.revision, dataset.root, sum(1 for _ in dataset), dataset.num_frames)
"""
    told = run_client(code, hub, tmp_path / "home", token=READ_TOKEN).split()
    assert told[0] == streamed.commit
    assert told[1].startswith(str(tmp_path / "home"))
    assert told[2] == told[3]


# Secrets.


def test_the_token_appears_nowhere(
    hub: LoopbackHub,
    streamed: Dataset,
    bucket: Bucket,
    lerobot_home: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert streamed.commit
    assert bucket.objects
    caplog.set_level(logging.DEBUG)
    hub.faults.add(FaultRule(Status(503), path=r"/(data|videos|tree)/", every=4))
    hub.faults.add(FaultRule(Status(403), host="cdn", path=r"\.mp4$", first=1))
    dataset = open_set()
    list(dataset)
    assert repr(dataset) is not None
    list(open_set(BUCKET, repo_type="bucket"))
    assert dataset._completion is None
    assert TOKEN.encode() not in pickle.dumps(dataset._open.index)
    assert TOKEN not in caplog.text
    assert "Signature=" not in caplog.text
    files = disk_files(lerobot_home)
    assert files
    for path in files:
        assert TOKEN.encode() not in (lerobot_home / path).read_bytes(), path
    # It went to the Hub, and nowhere else.
    assert {request.host for request in hub.log if request.authorization} == {"hub"}


@pytest.mark.usefixtures("lerobot_home")
def test_storage_options_appear_nowhere(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    with S3Server() as server:
        server.put("store", "set/", {"data/x": b"abc"})
        with (
            caplog.at_level(logging.DEBUG, logger="lerobot_streaming"),
            pytest.raises(StreamingError) as caught,
        ):
            open_set(root=root, data_root="s3://store/set", storage_options=server.options)
    assert "s3://store/set" in str(caught.value)
    assert SECRET not in str(caught.value) + caplog.text
