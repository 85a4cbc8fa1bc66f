"""A Hub and a content host that misbehave: the right bytes in bounded time, or an error that says why."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from lerobot_streaming.errors import ChangedFileError, FetchError
from tests.storage.hub_fixtures import CONTENT, INFO, VIDEO
from tests.support.hub import (
    ChangedObject,
    Drop,
    FaultRule,
    ShortBody,
    SlowFirstByte,
    Stall,
    Status,
    WholeFile,
    WrongContentRange,
)

if TYPE_CHECKING:
    from lerobot_streaming.storage.base import RangeReader
    from tests.storage.hub_fixtures import HubStore

KINDS = pytest.mark.parametrize("kind", ["dataset", "bucket"])


def read_ranges(reader: RangeReader, seed: int, times: int = 6) -> None:
    draw = random.Random(seed)
    for _ in range(times):
        offset = draw.randrange(len(CONTENT) - 70_000)
        assert reader.read(VIDEO, offset, 70_000) == CONTENT[offset : offset + 70_000]


@KINDS
@pytest.mark.parametrize(
    "rule",
    [
        FaultRule(Status(503), host="cdn", every=3),
        FaultRule(Status(504), host="cdn", every=2),
        FaultRule(Status(500), first=2),
        FaultRule(Status(408), host="hub", first=2),
        FaultRule(Status(425), host="cdn", first=2),
        FaultRule(Drop(), host="cdn", every=3),
        FaultRule(Drop(), host="hub", first=2),
        FaultRule(Drop(after=30_000), host="cdn", every=2),
        FaultRule(ShortBody(100), host="cdn", every=2),
        FaultRule(WholeFile(), host="cdn", every=2),
        FaultRule(WrongContentRange(1), host="cdn", every=2),
        FaultRule(WrongContentRange(-1), host="cdn", every=2),
        FaultRule(SlowFirstByte(0.2), host="cdn", first=2),
    ],
    ids=lambda rule: f"{rule.action}-{rule.host}",
)
def test_what_goes_away_is_tried_again(store: HubStore, kind: str, rule: FaultRule) -> None:
    reader = store.reader(kind)
    # Copied: a rule counts its hits.
    fault = store.hub.faults.add(replace(rule, skip=0 if rule.host == "hub" else 1))
    with ThreadPoolExecutor(3) as pool:
        for future in [pool.submit(read_ranges, reader, seed) for seed in range(3)]:
            future.result()
    assert fault.hits
    if not isinstance(rule.action, SlowFirstByte):
        assert store.retries


def test_a_body_that_broke_off_goes_on_where_it_ended(store: HubStore) -> None:
    reader = store.reader()
    reader.stat(VIDEO)
    store.hub.faults.add(FaultRule(Drop(after=60_000), host="cdn", first=1))
    assert reader.read(VIDEO, 1000, 100_000) == CONTENT[1000:101_000]
    first, second = (request.range for request in store.asked("cdn"))
    assert first == "bytes=1000-100999"
    assert second is not None
    start = int(second.removeprefix("bytes=").split("-")[0])
    assert 1000 < start <= 61_000
    assert second.endswith("-100999")


def test_every_third_request_is_throttled_and_every_wait_is_honoured(store: HubStore) -> None:
    reader = store.reader()
    reader.read(VIDEO, 0, 1)
    store.hub.clear_log()
    store.hub.faults.add(FaultRule(Status(429, retry_after=1), host="cdn", every=3, first=2))
    read_ranges(reader, 1)
    log = store.asked("cdn")
    throttled = [number for number, request in enumerate(log) if request.status == 429]
    assert throttled == [2, 5]
    assert len(log) == 6 + 2
    for number in throttled:
        assert log[number + 1].time - log[number].time >= 0.99


def test_the_hubs_rate_limit_header_is_honoured(store: HubStore) -> None:
    reader = store.reader()
    headers = {"ratelimit": '"resolvers";r=0;t=0', "ratelimit-policy": '"fixed window";"resolvers";q=5;w=300'}
    store.hub.faults.add(FaultRule(Status(429, headers=headers), host="hub", first=1))
    reader.read(VIDEO, 0, 10)
    first, second = store.asked("hub", "HEAD")
    assert second.time - first.time >= 0.99


def test_a_throttle_halves_the_requests_in_flight(store: HubStore) -> None:
    reader = store.reader(connections=8)
    store.hub.faults.add(FaultRule(Status(503), host="cdn", first=1))
    reader.read(VIDEO, 0, 10)
    assert reader._governor.limit == 4


@KINDS
def test_a_stalled_body_is_tried_again(store: HubStore, kind: str) -> None:
    reader = store.reader(kind, timeout_s=0.3)
    store.hub.faults.add(FaultRule(Stall(30, after=5_000), host="cdn", first=1))
    assert reader.read(VIDEO, 0, 100_000) == CONTENT[:100_000]
    assert len(store.retries) == 1


def test_a_trickle_does_not_outlive_the_deadline(store: HubStore) -> None:
    reader = store.reader(deadline_s=0.4)
    reader.stat(VIDEO)
    store.hub.shape(per_connection_bytes_per_s=20_000)
    with pytest.raises(FetchError, match="time was over while the store was still answering"):
        reader.read(VIDEO, 0, 200_000)


def test_a_whole_file_in_place_of_a_range_is_not_downloaded(store: HubStore) -> None:
    big = bytes(8_000_000)
    store.dataset.add_commit({"big.mp4": big})
    reader = store.reader(deadline_s=0.4)
    store.hub.faults.add(FaultRule(WholeFile(), host="cdn"))
    with pytest.raises(FetchError, match="answered 200 with the whole file"):
        reader.read("big.mp4", 0, 1000)
    answers = store.asked("cdn")
    assert len(answers) > 1
    # Where it is the file that was asked for, it is the answer.
    store.hub.faults.clear()
    store.hub.faults.add(FaultRule(WholeFile(), host="cdn"))
    assert reader.read("big.mp4", 0, len(big)) == big


@KINDS
def test_a_changed_object_is_an_error(store: HubStore, kind: str) -> None:
    reader = store.reader(kind)
    assert reader.read(VIDEO, 0, 100) == CONTENT[:100]
    store.hub.faults.add(FaultRule(ChangedObject()))
    with pytest.raises(ChangedFileError, match="changed while the run was reading it") as caught:
        reader.read(VIDEO, 0, 100)
    assert VIDEO in str(caught.value)
    assert "Signature" not in str(caught.value)


def test_an_object_that_changed_on_the_content_host_only_is_an_error(store: HubStore) -> None:
    reader = store.reader()
    reader.read(VIDEO, 0, 100)
    store.hub.faults.add(FaultRule(ChangedObject(), host="cdn"))
    with pytest.raises(ChangedFileError, match="another object"):
        reader.read(VIDEO, 0, 100)


def test_a_bucket_file_that_was_replaced_is_an_error(store: HubStore) -> None:
    reader = store.reader("bucket")
    found = reader.stat(VIDEO)
    assert reader.read(VIDEO, 0, 100) == CONTENT[:100]
    store.bucket.put(VIDEO, CONTENT[::-1])
    other = store.reader("bucket")
    assert other.stat(VIDEO).size == found.size
    assert other.stat(VIDEO).fingerprint != found.fingerprint
    store.hub.signed_url_ttl_s = 0.0
    with pytest.raises(ChangedFileError):
        # The old URL still leads to the old bytes; asking for a new one shows it.
        read_until_asked_again(reader, store)


def read_until_asked_again(reader: RangeReader, store: HubStore) -> None:
    from tests.support.hub import ExpiredSignature

    store.hub.faults.add(FaultRule(ExpiredSignature(), host="cdn", first=1))
    reader.read(VIDEO, 0, 100)


@KINDS
def test_a_server_that_comes_back_is_waited_for(store: HubStore, kind: str) -> None:
    reader = store.reader(kind)
    reader.read(VIDEO, 0, 1)
    store.hub.stop_serving()
    back = threading.Timer(0.4, store.hub.resume_serving)
    back.start()
    read_ranges(reader, 1)
    back.join()
    assert store.retries


@KINDS
def test_a_server_that_is_gone_is_an_error_that_names_what_failed(store: HubStore, kind: str) -> None:
    reader = store.reader(kind, deadline_s=0.5)
    reader.read(VIDEO, 0, 1)
    store.hub.stop_serving()
    with pytest.raises(FetchError) as caught:
        reader.read(VIDEO, 5, 10)
    text = str(caught.value)
    assert f"reading '{VIDEO}' below '{reader.root}', bytes 5 to 14 failed" in text
    assert f"{len(store.retries) + 1} attempts in " in text
    assert "limit 0.5 s" in text
    assert "Connect" in text
    with pytest.raises(FetchError, match=f"looking up '{INFO}'"):
        store.reader(deadline_s=0.3).stat(INFO)
    store.hub.resume_serving()
    assert reader.read(VIDEO, 5, 10) == CONTENT[5:15]


def test_closing_ends_a_wait_for_a_server_that_is_gone(store: HubStore) -> None:
    reader = store.reader(deadline_s=600.0)
    store.hub.stop_serving()
    errors: list[BaseException] = []

    def work() -> None:
        try:
            reader.read(VIDEO, 0, 10)
        except FetchError as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    while len(store.retries) < 6:
        time.sleep(0.01)
    reader.close()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert all("the reader was closed" in str(error) for error in errors)
    assert len(errors) == 3
    store.hub.resume_serving()
    assert reader.read(VIDEO, 0, 10) == CONTENT[:10]


def test_subranges_are_read_at_the_same_time_and_fail_together(store: HubStore) -> None:
    big = random.Random(1).randbytes((16 << 20) + 12_345)
    store.dataset.add_commit({"big.mp4": big})
    reader = store.reader(subranges=3)
    store.hub.faults.add(FaultRule(Drop(after=2_000_000), host="cdn", every=2, first=2))
    assert reader.read("big.mp4", 100, len(big) - 101) == big[100:-1]
    ranges = {request.range for request in store.asked("cdn")}
    assert f"bytes={100}-{99 + -(-(len(big) - 101) // 3)}" in ranges
    assert len(store.asked("hub", "HEAD")) == 1
    store.hub.clear_log()
    assert reader.read("big.mp4", 0, 1 << 20) == big[: 1 << 20]
    assert len(store.asked("cdn")) == 1
    store.hub.faults.add(FaultRule(Status(451), host="cdn", skip=1, first=1))
    with pytest.raises(FetchError, match="451"):
        reader.read("big.mp4", 0, len(big))
