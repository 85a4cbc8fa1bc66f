"""Faults of the network, in mid-stream: right bytes, or an error that names what failed."""

from __future__ import annotations

import functools
import re
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from lerobot_streaming import places
from lerobot_streaming.errors import ChangedFileError, FetchError
from lerobot_streaming.storage.open_reader import open_reader
from tests.hub.conftest import TOKEN
from tests.hub.streaming import BUCKET, assert_streams, open_set, payload_requests
from tests.support.hub import (
    ChangedObject,
    Drop,
    ExpiredSignature,
    FaultRule,
    ShortBody,
    Stall,
    Status,
    WholeFile,
    WrongContentRange,
    run_client,
)
from tests.support.oracle import Item, assert_same_items, stream_items

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.support.hub import Bucket, Dataset, LoopbackHub

type Items = Mapping[int, Item]

PAYLOAD = r"/(data|videos)/.*\.(mp4|parquet)$"


def _patience(monkeypatch: pytest.MonkeyPatch, seconds: Mapping[str, Any]) -> None:
    monkeypatch.setattr(places, "open_reader", functools.partial(open_reader, **seconds))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stall is noticed soon."""
    _patience(monkeypatch, {"timeout_s": 0.5})


@pytest.mark.parametrize(
    "rule",
    [
        FaultRule(Status(429, retry_after=1), path=PAYLOAD, every=3, first=3),
        FaultRule(Status(503), path=PAYLOAD, every=3),
        FaultRule(Status(504), path=PAYLOAD, every=3),
        FaultRule(Drop(after=300), host="cdn", path=PAYLOAD, every=2),
        FaultRule(ShortBody(200), host="cdn", path=PAYLOAD, every=2),
        FaultRule(WholeFile(), host="cdn", path=PAYLOAD, every=3),
        FaultRule(WrongContentRange(1), host="cdn", path=PAYLOAD, every=3),
        FaultRule(Stall(5.0, after=100), host="cdn", path=PAYLOAD, every=5, first=2),
        FaultRule(ExpiredSignature(), host="cdn", path=PAYLOAD, every=4, first=4),
    ],
    ids=lambda rule: type(rule.action).__name__ + str(getattr(rule.action, "code", "")),
)
@pytest.mark.usefixtures("impatient")
def test_faults_in_mid_stream_change_no_byte(
    hub: LoopbackHub, streamed: Dataset, expected: Items, rule: FaultRule
) -> None:
    assert streamed.commit
    dataset = open_set()
    hub.faults.add(rule)
    hub.clear_log()
    assert_streams(expected, dataset)
    assert rule.hits
    assert dataset.stats()["total"]["retries"] >= 1
    assert not any(TOKEN in str(request) for request in hub.log if request.host == "cdn")


@pytest.mark.usefixtures("impatient")
def test_faults_while_it_opens_are_waited_out(hub: LoopbackHub, streamed: Dataset, expected: Items) -> None:
    assert streamed.commit
    rules = [
        hub.faults.add(FaultRule(Status(503), host="hub", path=path, first=2))
        for path in ("/revision/", "/tree/", "/paths-info/", "/resolve/")
    ]
    dataset = open_set()
    assert all(rule.hits for rule in rules)
    hub.faults.clear()
    assert_streams(expected, dataset)


def test_an_expired_signature_is_renewed_once_by_one_thread(
    hub: LoopbackHub, streamed: Dataset, expected: Items
) -> None:
    assert streamed.commit
    hub.signed_url_ttl_s = 2.0
    dataset = open_set()
    time.sleep(2.2)
    hub.clear_log()
    assert_streams(expected, dataset)
    asked = [path for host, path, _ in payload_requests(hub) if host == "hub"]
    assert len(asked) == len(set(asked))
    assert any(request.status == 403 for request in hub.log if request.host == "cdn")
    assert not any(request.authorization for request in hub.log if request.host == "cdn")


@pytest.mark.usefixtures("impatient")
def test_an_object_that_changes_in_mid_stream_is_an_error(hub: LoopbackHub, streamed: Dataset) -> None:
    assert streamed.commit
    dataset = open_set(prefetch_episodes=0, episode_pool_size=1)
    items = iter(dataset)
    next(items)
    hub.faults.add(FaultRule(ChangedObject(), path=r"\.mp4$"))
    with pytest.raises(ChangedFileError, match=r"(?s)episode \d+, camera .*\.mp4.*changed while"):
        list(items)


def _away(hub: LoopbackHub, seconds: float) -> threading.Timer:
    hub.stop_serving()
    timer = threading.Timer(seconds, hub.resume_serving)
    timer.start()
    return timer


@pytest.mark.parametrize(
    "seconds", [2.0, pytest.param(20.0, marks=[pytest.mark.slow, pytest.mark.timeout(120)])]
)
@pytest.mark.parametrize("kind", ["dataset", "bucket"])
def test_a_hub_that_is_away_for_a_while_only_delays(
    hub: LoopbackHub, bucket: Bucket, expected: Items, seconds: float, kind: str
) -> None:
    assert bucket.objects
    where: dict[str, Any] = {"prefetch_episodes": 0, "episode_pool_size": 1}
    dataset = open_set(**where) if kind == "dataset" else open_set(BUCKET, repo_type="bucket", **where)
    items = iter(dataset)
    first = [next(items) for _ in range(3)]
    begin = time.monotonic()
    timer = _away(hub, seconds)
    try:
        rest = list(items)
    finally:
        timer.join()
    assert time.monotonic() - begin > seconds / 2
    assert_same_items(expected, stream_items([*first, *rest]))
    assert dataset.stats()["total"]["retries"] > 0


def test_a_hub_that_is_gone_for_good_is_an_error_within_the_deadline(
    hub: LoopbackHub, streamed: Dataset, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lerobot_streaming.storage import hub_api

    _patience(monkeypatch, {"deadline_s": 2.0})
    monkeypatch.setattr(hub_api, "resolve_commit", functools.partial(hub_api.resolve_commit, deadline_s=0.5))
    dataset = open_set(prefetch_episodes=0, episode_pool_size=1)
    items = iter(dataset)
    next(items)
    hub.stop_serving()
    try:
        begin = time.monotonic()
        with pytest.raises(FetchError) as caught:
            list(items)
        # The deadline, and a wait that had begun before it.
        assert time.monotonic() - begin < 10
        message = str(caught.value)
        assert re.search(r"(?s)episode \d+.*(mp4|parquet)", message)
        assert f"hf://datasets/owner/set@{streamed.commit}" in message
        assert "limit 2.0 s" in message
        with pytest.raises(FetchError, match=r"owner/set@v3\.0.* failed"):
            open_set()
    finally:
        hub.resume_serving()
    assert TOKEN not in caplog.text + message


@pytest.mark.slow
def test_a_process_does_not_wait_for_the_hub_to_end(
    hub: LoopbackHub, streamed: Dataset, tmp_path: Path
) -> None:
    assert streamed.commit
    code = """
import time
from lerobot_streaming import StreamingLeRobotDataset, opening
from lerobot_streaming.index import resolve
opening.LAZY_ABOVE = resolve._HEAD_START_S = 0  # So that a thread completes the index.
dataset = StreamingLeRobotDataset("owner/set")
assert dataset._completion is not None
time.sleep(1)
print("open")
"""
    hub.faults.add(FaultRule(Status(503), path=r"\.mp4$"))
    begin = time.monotonic()
    assert run_client(code, hub, tmp_path / "home", token=TOKEN, timeout_s=100).strip() == "open"
    assert any(request.status == 503 for request in hub.log)
    assert time.monotonic() - begin < 90
