"""Signed URLs and ranges on the second host."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx
import pytest

from tests.hub.conftest import TOKEN, VIDEO

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.hub import Dataset, LoopbackHub

AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}


def signed(hub: LoopbackHub, http: httpx.Client) -> str:
    answer = http.get(f"{hub.endpoint}/datasets/owner/set/resolve/main/{VIDEO}", headers=AUTHORIZED)
    assert answer.status_code == 302
    return str(answer.headers["Location"])


def test_the_hub_redirects_to_another_host(hub: LoopbackHub, repo: Dataset, http: httpx.Client) -> None:
    answer = http.head(f"{hub.endpoint}/datasets/owner/set/resolve/v3.0/{VIDEO}", headers=AUTHORIZED)
    blob = repo.commits[repo.commit].files[VIDEO]
    assert answer.headers["X-Repo-Commit"] == repo.commit
    assert answer.headers["X-Linked-ETag"] == f'"{blob.sha256}"'
    assert answer.headers["X-Linked-Size"] == str(blob.size)
    target = urlsplit(answer.headers["Location"])
    assert target.hostname != urlsplit(hub.endpoint).hostname
    assert answer.headers["Location"].startswith(hub.cdn_endpoint)
    assert target.path.endswith(VIDEO)


@pytest.mark.usefixtures("repo")
def test_a_signed_url_expires(hub: LoopbackHub, http: httpx.Client) -> None:
    good = signed(hub, http)
    hub.signed_url_ttl_s = 0.05
    short = signed(hub, http)
    time.sleep(0.1)
    assert http.get(short).status_code == 403
    assert http.get(good).status_code == 200
    assert http.get(good.replace("Signature=", "Signature=0")).status_code == 403
    assert http.get(good.replace("Expires=", "Expires=9")).status_code == 403
    assert http.get(good.split("?")[0]).status_code == 403


@pytest.mark.usefixtures("repo")
@pytest.mark.parametrize(
    ("asked", "start", "stop"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=100-299", 100, 300),
        ("bytes=299990-", 299_990, 300_000),
        ("bytes=299990-999999", 299_990, 300_000),
        ("bytes=-10", 299_990, 300_000),
        ("bytes=-400000", 0, 300_000),
    ],
)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_ranges(
    hub: LoopbackHub, folder: Path, http: httpx.Client, method: str, asked: str, start: int, stop: int
) -> None:
    answer = http.request(method, signed(hub, http), headers={"Range": asked})
    assert answer.status_code == 206
    assert answer.headers["Content-Range"] == f"bytes {start}-{stop - 1}/300000"
    assert answer.headers["Content-Length"] == str(stop - start)
    assert answer.content == ((folder / VIDEO).read_bytes()[start:stop] if method == "GET" else b"")


@pytest.mark.usefixtures("repo")
def test_other_ranges_and_preconditions(hub: LoopbackHub, http: httpx.Client) -> None:
    url = signed(hub, http)
    behind = http.get(url, headers={"Range": "bytes=300000-"})
    assert (behind.status_code, behind.headers["Content-Range"]) == (416, "bytes */300000")
    assert http.get(url, headers={"Range": "bytes=0-1,5-6"}).status_code == 200
    etag = http.head(url).headers["ETag"]
    for name, value, status in [
        ("If-Range", etag, 206),
        ("If-Range", '"other"', 200),
        ("If-Match", etag, 206),
        ("If-Match", '"other"', 412),
        ("If-None-Match", etag, 304),
    ]:
        assert http.get(url, headers={"Range": "bytes=0-1", name: value}).status_code == status, name


@pytest.mark.usefixtures("repo")
def test_keeps_connections_and_logs_all_requests(hub: LoopbackHub, http: httpx.Client) -> None:
    url = signed(hub, http)
    for _ in range(3):
        http.get(url, headers={"Range": "bytes=0-9"})
    with httpx.Client(trust_env=False) as other:
        other.get(url, headers={"Range": "bytes=10-"})
    first, *ranges, last = hub.log
    assert (first.host, first.method, first.status, first.authorization) == (
        "hub",
        "GET",
        302,
        f"Bearer {TOKEN}",
    )
    assert {(request.host, request.range, request.status, request.bytes_sent) for request in ranges} == {
        ("cdn", "bytes=0-9", 206, 10)
    }
    assert len({request.connection for request in ranges}) == 1
    assert len({request.connection for request in hub.log}) == 3
    assert (last.bytes_sent, f"{last.path}?{last.query}") == (299_990, url.removeprefix(hub.cdn_endpoint))
    assert [request.time for request in hub.log] == sorted(request.time for request in hub.log)
    hub.clear_log()
    assert hub.log == []
