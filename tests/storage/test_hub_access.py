"""Who may read what, who gets to see the token, and how often the Hub is asked."""

from __future__ import annotations

import gc
import logging
import os
import pickle
import signal
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from huggingface_hub import constants

from lerobot_streaming.errors import (
    AccessError,
    FetchError,
    MissingFileError,
    OptionError,
    StreamingError,
)
from lerobot_streaming.storage.hub import HubReader
from lerobot_streaming.storage.hub_api import resolve_commit
from lerobot_streaming.storage.hub_store import HubOptions
from tests.storage.hub_fixtures import CONTENT, INFO, TOKEN, VIDEO
from tests.support.hub import ExpiredSignature, FaultRule, Status, run_client

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.storage.hub_fixtures import HubStore

KINDS = pytest.mark.parametrize("kind", ["dataset", "bucket"])


def raises(error: type[StreamingError], call: Callable[[], object]) -> str:
    """The message of an error, once it is clear that nothing of it shows the token or a signature."""
    with pytest.raises(error) as caught:
        call()
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
    assert TOKEN not in shown
    assert "Signature=" not in shown
    return str(caught.value)


@KINDS
def test_the_hub_is_asked_once_per_file(store: HubStore, kind: str) -> None:
    reader = store.reader(kind)
    with ThreadPoolExecutor(8) as pool:
        parts = list(pool.map(lambda start: reader.read(VIDEO, start, 10_000), range(0, 200_000, 10_000)))
    assert b"".join(parts) == CONTENT
    assert [request.method for request in store.asked("hub")] == ["HEAD"]
    assert len(store.asked("cdn")) == 20
    assert not store.retries


def test_many_files_are_looked_up_in_few_requests(store: HubStore) -> None:
    store.dataset.add_commit({f"videos/{number}.mp4": b"x" * (number + 1) for number in range(700)})
    reader = store.reader()
    found = reader.stat_many([f"videos/{number}.mp4" for number in range(701)])
    assert [stat.size for stat in found.values()] == [*range(1, 701), -1]
    assert len(store.hub.log) == 2
    assert reader.stat("videos/7.mp4").size == 8
    assert len(store.hub.log) == 2
    assert len(reader.list_files("videos")) == 701


def test_what_was_looked_up_at_a_commit_is_not_asked_for_again(store: HubStore) -> None:
    reader = store.reader()
    first = reader.stat_many([VIDEO, "missing.mp4"])
    store.hub.clear_log()
    assert reader.stat_many([VIDEO]) == {VIDEO: first[VIDEO]}
    assert not store.hub.log
    assert list(reader.stat_many(["missing.mp4", VIDEO])) == ["missing.mp4", VIDEO]
    assert len(store.hub.log) == 1


def test_files_are_located_ahead_of_their_reads(store: HubStore) -> None:
    reader = store.reader()
    reader.locate_ahead([VIDEO, "missing.mp4"])
    assert reader.read(VIDEO, 5, 10) == CONTENT[5:15]
    raises(MissingFileError, lambda: reader.read("missing.mp4", 0, 1))
    assert len([request for request in store.asked("hub") if VIDEO in request.path]) == 1


@KINDS
def test_listings_go_over_pages_and_stop_at_the_folder(store: HubStore, kind: str) -> None:
    store.hub.state.page_size = 2
    store.bucket.put("meta-other/x", b"1")
    store.dataset.add_commit({"meta-other/x": b"1", "meta/a/b": b"22", "meta/c": b"333"})
    store.bucket.put("meta/a/b", b"22")
    store.bucket.put("meta/c", b"333")
    reader = store.reader(kind)
    assert {path: stat.size for path, stat in reader.list_files("meta").items()} == {
        "meta/a/b": 2,
        "meta/c": 3,
        INFO: 220,
    }
    assert len(reader.list_files()) == 5
    assert reader.list_files("nothing") == {}


@KINDS
def test_a_signed_url_that_expired_is_asked_for_once_more_by_one_thread(store: HubStore, kind: str) -> None:
    store.hub.signed_url_ttl_s = 0.2
    reader = store.reader(kind)
    reader.read(VIDEO, 0, 1)
    time.sleep(0.3)
    store.hub.signed_url_ttl_s = 60.0
    store.hub.clear_log()
    begun = threading.Barrier(8)

    def work(start: int) -> bytes:
        begun.wait(20)
        return reader.read(VIDEO, start, 1000)

    with ThreadPoolExecutor(8) as pool:
        assert b"".join(pool.map(work, range(0, 8000, 1000))) == CONTENT[:8000]
    refused = [request for request in store.asked("cdn") if request.status == 403]
    assert refused
    assert len(store.asked("hub")) == 1
    assert len(store.asked("cdn")) == 8 + len(refused)
    assert len(store.retries) == len(refused)


def test_a_content_host_that_refuses_every_url_is_an_error(store: HubStore) -> None:
    reader = store.reader()
    store.hub.faults.add(FaultRule(Status(403), host="cdn"))
    text = raises(AccessError, lambda: reader.read(VIDEO, 0, 10))
    assert "403" in text
    assert "that the Hub has just given" in text
    assert len(store.asked("cdn")) == 3


@KINDS
def test_the_token_reaches_the_hub_and_no_other_host(store: HubStore, kind: str) -> None:
    reader = store.reader(kind)
    reader.read(VIDEO, 0, 10)
    reader.read(INFO, 0, 10)
    reader.stat_many([VIDEO, INFO])
    assert {request.authorization for request in store.asked("hub")} == {f"Bearer {TOKEN}"}
    assert {request.authorization for request in store.asked("cdn")} == {None}
    assert all(TOKEN not in str(request.headers) + request.query for request in store.asked("cdn"))


def test_small_files_come_from_the_hub_itself_also_through_its_redirects(store: HubStore) -> None:
    store.hub.state.relative_redirects = True
    reader = store.reader()
    assert reader.read(INFO, 2, 5) == (b'{"fps": 30}' * 20)[2:7]
    assert reader.stat(INFO).size == 220
    assert not store.asked("cdn")
    assert {request.authorization for request in store.hub.log} == {f"Bearer {TOKEN}"}


@KINDS
@pytest.mark.parametrize("level", [logging.INFO, logging.DEBUG])
def test_nothing_that_is_logged_or_shown_has_token_or_signature(
    store: HubStore, kind: str, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(level):
        for name in ("httpx", "httpcore", "huggingface_hub", "lerobot_streaming"):
            caplog.set_level(level, name)
        reader = store.reader(kind)
        reader.read(VIDEO, 0, 10)
        store.hub.faults.add(FaultRule(Status(503), host="cdn", first=2))
        reader.read(VIDEO, 0, 10)
    assert caplog.records
    for shown in (caplog.text, repr(reader), reader.root, repr(reader._options), str(vars(reader))):
        assert TOKEN not in shown
        assert "Signature=" not in shown


@pytest.mark.parametrize("token", ["hf_line\nbreak", "hf_ümlaut", "", "  "])
def test_a_token_that_cannot_be_one_is_refused_without_being_shown(store: HubStore, token: str) -> None:
    with pytest.raises(OptionError, match="token is empty, or has characters") as caught:
        store.reader(token=token)
    assert "hf_" not in str(caught.value)


def test_no_token_and_wrong_tokens(store: HubStore) -> None:
    for kind in ("dataset", "bucket"):
        text = raises(AccessError, lambda kind=kind: store.reader(kind, token=False).read(VIDEO, 0, 1))  # type: ignore[misc]
        assert "401" in text
        assert "no token was sent" in text
        assert f"hf://{kind}s/owner/" in text
        text = raises(AccessError, lambda kind=kind: store.reader(kind, token="hf_unknown").read(VIDEO, 0, 1))  # type: ignore[misc]  # noqa: S106
        assert "401" in text
        assert "no token was sent" not in text
        store.hub.add_token("hf_other")
        text = raises(AccessError, lambda kind=kind: store.reader(kind, token="hf_other").read(VIDEO, 0, 1))  # type: ignore[misc]  # noqa: S106
        assert f"no such {kind}, or it is private" in text
    assert not store.retries
    assert not store.asked("cdn")


def test_a_gated_dataset_says_where_to_accept_its_conditions(store: HubStore) -> None:
    gated = store.hub.add_dataset("owner/gated", gated=True)
    gated.add_commit({VIDEO: CONTENT})
    store.hub.add_token("hf_other")
    for token, status in ((False, 401), ("hf_other", 403)):
        options = HubOptions(token, store.hub.endpoint)
        reader = HubReader("owner/gated", gated.commit, options)
        text = raises(AccessError, lambda reader=reader: reader.read(VIDEO, 0, 1))  # type: ignore[misc]
        assert f"{status} for '{VIDEO}' below 'hf://datasets/owner/gated@{gated.commit}'" in text
        assert f"{store.hub.endpoint}/datasets/owner/gated" in text
        reader.close()


def test_the_machines_token_is_used_as_the_hub_client_uses_it(
    store: HubStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    for token in (None, True):
        assert store.reader(token=token).read(VIDEO, 0, 3) == CONTENT[:3]
    raises(AccessError, lambda: store.reader(token=False).read(VIDEO, 0, 3))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", True)
    raises(AccessError, lambda: store.reader(token=None).read(VIDEO, 0, 3))
    monkeypatch.delenv("HF_TOKEN")
    assert "no" in raises(AccessError, lambda: store.reader(token=True).read(VIDEO, 0, 3))


def test_wrong_paths_revisions_and_repositories(store: HubStore) -> None:
    reader = store.reader()
    assert "nope.mp4" in raises(MissingFileError, lambda: reader.read("nope.mp4", 0, 1))
    store.dataset.tag("v3.0")
    old = "0" * 40
    options = HubOptions(TOKEN, store.hub.endpoint)
    gone = HubReader("owner/name", old, options)
    assert f"no revision '{old}'" in raises(MissingFileError, lambda: gone.stat(VIDEO))
    assert f"no revision '{old}'" in raises(MissingFileError, lambda: gone.list_files("meta"))
    gone.close()
    assert not store.retries

    def commit(repo_id: str, revision: str | None, token: str | bool | None = TOKEN) -> str:
        return resolve_commit(repo_id, revision, token=token, endpoint=store.hub.endpoint)

    assert commit("owner/name", None) == commit("owner/name", "v3.0") == store.dataset.commit
    assert commit("owner/never-asked", old) == old
    text = raises(MissingFileError, lambda: commit("owner/name", "v9"))
    assert "no revision 'v9' for 'hf://datasets/owner/name@v9'" in text
    assert "no such dataset" in raises(AccessError, lambda: commit("owner/nothing", "main"))
    assert "no token was sent" in raises(AccessError, lambda: commit("owner/name", "main", token=False))
    with pytest.raises(OptionError, match="bucket"):
        resolve_commit("owner/bucket", None, repo_type="bucket")
    with pytest.raises(OptionError, match="'main' is no commit"):
        HubReader("owner/name", "main")


def test_a_branch_that_moves_changes_nothing(store: HubStore) -> None:
    reader = store.reader()
    assert reader.read(INFO, 0, 3) == b'{"f'
    store.dataset.add_commit({VIDEO: CONTENT[::-1], INFO: b"other"})
    store.hub.faults.add(FaultRule(ExpiredSignature(), host="cdn", first=1))
    assert reader.read(VIDEO, 0, 100) == CONTENT[:100]
    assert reader.stat(INFO).size == 220


def test_offline_mode_is_an_error_at_once(store: HubStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for kind in ("dataset", "bucket"):
        assert "HF_HUB_OFFLINE" in raises(AccessError, lambda kind=kind: store.reader(kind).stat(VIDEO))  # type: ignore[misc]
    text = raises(AccessError, lambda: resolve_commit("owner/name", "main", endpoint=store.hub.endpoint))
    assert "HF_HUB_OFFLINE" in text
    assert not store.hub.log
    assert not store.retries


def test_the_environment_names_hub_and_token(store: HubStore, tmp_path: Path) -> None:
    code = f"""
from lerobot_streaming.storage.open_reader import open_reader
reader = open_reader("hf://datasets/owner/name@main")
print(reader.root, reader.read({VIDEO!r}, 0, 4).hex())
reader.close()
"""
    out = run_client(code, store.hub, tmp_path, token=TOKEN)
    assert out.split() == [f"hf://datasets/owner/name@{store.dataset.commit}", CONTENT[:4].hex()]
    with pytest.raises(RuntimeError, match="HF_HUB_OFFLINE is set"):
        run_client(code, store.hub, tmp_path, token=TOKEN, env={"HF_HUB_OFFLINE": "1"})
    # The token is nowhere on the disk.
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or TOKEN.encode() not in file.read_bytes()


def test_a_bucket_reader_tells_workers_what_the_files_were(store: HubStore) -> None:
    reader = store.reader("bucket")
    reader.stat_many([VIDEO])
    copy = pickle.loads(pickle.dumps(reader))
    store.bucket.put(VIDEO, CONTENT[::-1])
    raises(FetchError, lambda: copy.read(VIDEO, 0, 1))
    copy.close()


def test_connections_are_bounded_and_reused(store: HubStore) -> None:
    reader = store.reader(connections=3)
    with ThreadPoolExecutor(12) as pool:
        list(pool.map(lambda start: reader.read(VIDEO, start, 100), range(0, 6000, 100)))
    assert len({request.connection for request in store.hub.log}) <= 4


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_neither_asks_again_nor_touches_its_parents_connections(store: HubStore) -> None:
    reader = store.reader()
    reader.read(VIDEO, 0, 10)
    store.hub.clear_log()
    client = reader._session._client
    pool_lock = client._transport._pool._optional_thread_lock  # type: ignore[union-attr]
    del client
    # As if other threads of the parent held every lock at that moment.
    with reader._session._lock, reader._locations._lock, reader._governor._lock, pool_lock:
        child = os.fork()
        if child == 0:
            right = reader.read(VIDEO, 5, 10) == CONTENT[5:15]
            gc.collect()
            os._exit(0 if right else 1)
    killer = threading.Timer(20, os.kill, (child, signal.SIGKILL))
    killer.start()
    status = os.waitpid(child, 0)[1]
    killer.cancel()
    assert os.waitstatus_to_exitcode(status) == 0
    assert reader.read(VIDEO, 7, 10) == CONTENT[7:17]
    assert not store.asked("hub")
    theirs, ours = store.asked("cdn")
    assert theirs.connection != ours.connection


def test_the_users_own_client_factory_makes_the_client(store: HubStore) -> None:
    # `conftest` brings one that adds a header.
    store.reader().read(VIDEO, 0, 1)
    assert {request.headers.get("x-factory") for request in store.hub.log} == {"ours"}
