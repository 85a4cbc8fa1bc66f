"""Link shaping, going down and coming back, and the server's own errors."""

from __future__ import annotations

import multiprocessing
import threading
import time

import httpx
import pytest

from tests.support.hub import LoopbackHub

SIZE = 200_000


@pytest.fixture
def url(hub: LoopbackHub, http: httpx.Client) -> str:
    hub.add_dataset("owner/set").add_commit({"x.mp4": bytes(SIZE)})
    page = f"{hub.endpoint}/datasets/owner/set/resolve/main/x.mp4"
    return str(http.get(page).headers["Location"])


def fetch(url: str, connections: int = 1, requests: int = 1, size: int = SIZE) -> float:
    """Seconds for some connections to get a range each, several times, at the same time."""

    def work() -> None:
        with httpx.Client(trust_env=False, timeout=30.0) as http:
            for _ in range(requests):
                assert len(http.get(url, headers={"Range": f"bytes=0-{size - 1}"}).content) == size

    threads = [threading.Thread(target=work) for _ in range(connections)]
    begin = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.monotonic() - begin


def test_all_connections_share_the_bandwidth(hub: LoopbackHub, url: str) -> None:
    hub.shape(bandwidth_bytes_per_s=2e6)
    # 0.1 s of line for each: a shaped link is never faster than its rate, however slow the machine is.
    assert fetch(url, connections=4) >= 0.4
    assert fetch(url) >= 0.1
    hub.shape(bandwidth_bytes_per_s=1e6)
    assert fetch(url, connections=4) >= 0.8


def test_a_connection_has_its_own_limit(hub: LoopbackHub, url: str) -> None:
    hub.shape(per_connection_bytes_per_s=1e6)
    alone = fetch(url)
    assert alone >= 0.2
    # Four connections are four lines: as one line they would take 0.8 s and more.
    assert fetch(url, connections=4) < 4 * alone


def test_latency_of_requests_and_of_connections(hub: LoopbackHub, url: str) -> None:
    hub.shape(latency_s=0.05, connect_latency_s=0.3)
    assert fetch(url, requests=4, size=1) >= 0.3 + 4 * 0.05
    hub.shape(latency_s=0.05, connect_latency_s=0.0)
    assert fetch(url, requests=4, size=1) >= 4 * 0.05


def test_goes_down_and_comes_back_on_the_same_ports(hub: LoopbackHub, url: str, http: httpx.Client) -> None:
    where = hub.endpoint, hub.cdn_endpoint
    with http.stream("GET", url) as open_answer:
        assert open_answer.status_code == 200
    assert http.get(url).status_code == 200
    hub.stop_serving()
    for target in (url, hub.endpoint):
        with pytest.raises(httpx.TransportError):
            http.get(target)
        with pytest.raises(httpx.ConnectError):
            httpx.get(target, trust_env=False)
    hub.stop_serving()
    hub.resume_serving()
    hub.resume_serving()
    assert (hub.endpoint, hub.cdn_endpoint) == where
    assert http.get(url).status_code == 200


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_does_not_keep_the_ports_open(hub: LoopbackHub, url: str, http: httpx.Client) -> None:
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    process.start()
    try:
        hub.stop_serving()
        for target in (url, hub.endpoint):
            with pytest.raises(httpx.ConnectError):
                httpx.get(target, trust_env=False, timeout=5.0)
        hub.resume_serving()
        assert http.get(url).status_code == 200
    finally:
        process.kill()
        process.join()


def test_going_down_ends_a_body_on_its_way(hub: LoopbackHub, url: str, http: httpx.Client) -> None:
    hub.shape(bandwidth_bytes_per_s=50_000)
    with http.stream("GET", url) as answer:
        pieces = answer.iter_raw()
        next(pieces)
        hub.stop_serving()
        with pytest.raises(httpx.TransportError):
            list(pieces)


def test_closing_ends_the_server_and_its_threads() -> None:
    with LoopbackHub() as hub:
        hub.add_dataset("owner/set")
        assert httpx.get(f"{hub.endpoint}/api/datasets/owner/set", trust_env=False).status_code == 200
    with pytest.raises(httpx.ConnectError):
        httpx.get(hub.endpoint, trust_env=False)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("loopback-")]


def broken(*_: object) -> None:
    raise RuntimeError("a bug in a route")


def test_an_error_of_the_server_itself_is_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = LoopbackHub()
    monkeypatch.setattr(hub.state, "user", broken)
    hub.resume_serving()
    assert httpx.get(f"{hub.endpoint}/api/whoami-v2", trust_env=False).status_code == 500
    with pytest.raises(ExceptionGroup, match="the loopback Hub itself failed") as caught:
        hub.close()
    assert caught.group_contains(RuntimeError, match="a bug in a route")
    with LoopbackHub() as fine:
        answer = httpx.get(f"{fine.endpoint}/api/nothing", trust_env=False)
    assert answer.status_code == 404
    assert "has no route GET /api/nothing" in answer.text
