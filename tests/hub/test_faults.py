"""Every fault, as a bare HTTP client sees it; and which requests a rule hits."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.support.hub import (
    ChangedObject,
    Drop,
    ExpiredSignature,
    FaultRule,
    LoopbackHub,
    ShortBody,
    SlowFirstByte,
    Stall,
    Status,
    WholeFile,
    WrongContentRange,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

CONTENT = bytes(range(256)) * 400
RANGE = {"Range": "bytes=1000-50999"}
SLICE = CONTENT[1000:51_000]


def collect(pieces: Iterator[bytes], into: bytearray) -> None:
    for piece in pieces:
        into += piece


class Server:
    def __init__(self, hub: LoopbackHub, http: httpx.Client) -> None:
        self.hub, self.http = hub, http
        self.page = f"{hub.endpoint}/datasets/owner/set/resolve/main/x.mp4"
        self.url = str(http.get(self.page).headers["Location"])
        hub.clear_log()

    def get(self) -> httpx.Response:
        return self.http.get(self.url, headers=RANGE)


@pytest.fixture
def server(hub: LoopbackHub, http: httpx.Client) -> Iterator[Server]:
    hub.add_dataset("owner/set").add_commit({"x.mp4": CONTENT})
    made = Server(hub, http)
    yield made
    hub.faults.clear()
    assert made.get().content == SLICE


def test_status(server: Server) -> None:
    headers = {"ratelimit": '"resolvers";r=0;t=7'}
    server.hub.faults.add(FaultRule(Status(429, retry_after=3, headers=headers)))
    answer = server.get()
    assert answer.status_code == 429
    assert answer.headers["Retry-After"] == "3"
    assert answer.headers["ratelimit"] == headers["ratelimit"]
    (noted,) = server.hub.log
    assert (noted.status, noted.fault) == (429, "Status")


def test_drop_before_the_head(server: Server) -> None:
    server.hub.faults.add(FaultRule(Drop(), first=1))
    with pytest.raises(httpx.RemoteProtocolError, match="without sending a response"):
        server.get()
    (noted,) = server.hub.log
    assert (noted.status, noted.bytes_sent, noted.fault) == (0, 0, "Drop")


@pytest.mark.parametrize("after", [0, 1, 49_999])
def test_drop_in_the_body(server: Server, after: int) -> None:
    server.hub.faults.add(FaultRule(Drop(after), first=1))
    got = bytearray()
    with server.http.stream("GET", server.url, headers=RANGE) as answer:
        assert (answer.status_code, answer.headers["Content-Length"]) == (206, "50000")
        pieces = answer.iter_raw()
        with pytest.raises(httpx.RemoteProtocolError, match="closed connection"):
            collect(pieces, got)
    assert got == SLICE[:after]


def test_short_body(server: Server) -> None:
    server.hub.faults.add(FaultRule(ShortBody(10), first=1))
    answer = server.get()
    assert (answer.status_code, answer.content) == (206, SLICE[:10])
    assert answer.headers["Content-Range"] == f"bytes 1000-50999/{len(CONTENT)}"


def test_whole_file_for_a_range(server: Server) -> None:
    server.hub.faults.add(FaultRule(WholeFile()))
    answer = server.get()
    assert (answer.status_code, answer.content) == (200, CONTENT)
    assert "Content-Range" not in answer.headers


def test_wrong_content_range(server: Server) -> None:
    server.hub.faults.add(FaultRule(WrongContentRange(5)))
    answer = server.get()
    assert (answer.status_code, answer.content) == (206, SLICE)
    assert answer.headers["Content-Range"] == f"bytes 1005-51004/{len(CONTENT)}"


def test_expired_signature(server: Server) -> None:
    server.hub.faults.add(FaultRule(ExpiredSignature(), host="cdn", first=1))
    assert server.get().status_code == 403


def test_changed_object(server: Server) -> None:
    before = server.get()
    page = server.http.head(server.page)
    server.hub.faults.add(FaultRule(ChangedObject()))
    after = server.get()
    assert (after.status_code, len(after.content)) == (206, len(before.content))
    assert after.content != before.content
    assert after.headers["Content-Range"] == before.headers["Content-Range"]
    assert after.headers["ETag"] != before.headers["ETag"] == f"{page.headers['X-Linked-ETag']}"
    assert server.http.head(server.page).headers["X-Linked-ETag"] != page.headers["X-Linked-ETag"]


@pytest.mark.parametrize("action", [Stall(60.0, after=100), SlowFirstByte(60.0)])
def test_waits_end_when_the_server_goes_down(server: Server, action: Stall | SlowFirstByte) -> None:
    server.hub.faults.add(FaultRule(action, first=1))
    with pytest.raises(httpx.ReadTimeout):
        server.http.get(server.url, headers=RANGE, timeout=0.2)
    (noted,) = server.hub.log
    assert noted.bytes_sent == (100 if isinstance(action, Stall) else 0)
    server.hub.stop_serving()
    server.hub.resume_serving()


def test_a_short_wait_only_delays(server: Server) -> None:
    server.hub.faults.add(FaultRule(Stall(0.01, after=100), first=1))
    server.hub.faults.add(FaultRule(SlowFirstByte(0.01), first=1))
    assert server.get().content == server.get().content == SLICE
    assert [request.fault for request in server.hub.log] == ["Stall", "SlowFirstByte"]


def statuses(server: Server, rule: FaultRule, count: int = 12) -> list[int]:
    server.hub.faults.clear()
    server.hub.faults.add(rule)
    return [server.get().status_code for _ in range(count)]


def test_rules_choose_by_number(server: Server) -> None:
    ok, bad = 206, 503
    action = Status(bad)
    assert statuses(server, FaultRule(action, first=2), 4) == [bad, bad, ok, ok]
    assert statuses(server, FaultRule(action, skip=1, first=1), 4) == [ok, bad, ok, ok]
    assert statuses(server, FaultRule(action, every=3), 6) == [ok, ok, bad] * 2
    assert statuses(server, FaultRule(action, skip=1, every=2, first=1), 6) == [ok, ok, bad, ok, ok, ok]


def test_rules_choose_by_seeded_draw(server: Server) -> None:
    drawn = [statuses(server, FaultRule(Status(503), probability=0.5, seed=seed)) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert {206, 503} == set(drawn[0])


def test_rules_choose_by_host_method_and_path(server: Server) -> None:
    for rule in (
        FaultRule(Status(503), host="hub"),
        FaultRule(Status(503), method="HEAD"),
        FaultRule(Status(503), path=r"\.parquet$"),
    ):
        assert statuses(server, rule, 1) == [206]
        assert rule.hits == 0
    for rule in (
        FaultRule(Status(503), host="cdn"),
        FaultRule(Status(503), method="GET"),
        FaultRule(Status(503), path=r"\.mp4$"),
    ):
        assert statuses(server, rule, 1) == [503]
    server.hub.faults.clear()
    assert server.http.get(server.page).status_code == 302


def test_the_first_rule_that_fires_takes_the_request(server: Server) -> None:
    server.hub.faults.add(FaultRule(Status(500), first=1))
    server.hub.faults.add(FaultRule(Status(503), first=1))
    assert [server.get().status_code for _ in range(3)] == [500, 503, 206]


def test_rules_count_requests_of_many_threads(server: Server) -> None:
    rule = server.hub.faults.add(FaultRule(Status(503), first=7))
    found: list[int] = []

    def ask() -> None:
        with httpx.Client(trust_env=False) as http:
            found.extend(http.get(server.url, headers=RANGE).status_code for _ in range(5))

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (found.count(503), rule.hits, len(found)) == (7, 7, 30)
