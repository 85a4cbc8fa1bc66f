from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

import httpx
import pytest
from huggingface_hub import set_client_factory

from tests.storage.hub_fixtures import CONTENT, INFO, TOKEN, VIDEO, HubStore
from tests.support.hub import LoopbackHub, online

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session", autouse=True)
def _quick_clients() -> Iterator[None]:
    """The client of a user who brings a factory: without certificates, which take 30 ms to load."""
    from huggingface_hub.utils._http import default_client_factory, hf_request_event_hook

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    set_client_factory(
        lambda: httpx.Client(
            verify=context,
            headers={"x-factory": "ours"},
            follow_redirects=True,
            event_hooks={"request": [hf_request_event_hook]},
        )
    )
    yield
    set_client_factory(default_client_factory)


@pytest.fixture(scope="module")
def empty_hub() -> Iterator[LoopbackHub]:
    """One Hub for a module: starting and ending it takes longer than most tests."""
    with LoopbackHub() as hub, online(hub):
        yield hub


@pytest.fixture
def store(empty_hub: LoopbackHub) -> Iterator[HubStore]:
    """A Hub that is as if it were new."""
    hub = empty_hub
    files = {VIDEO: CONTENT, INFO: b'{"fps": 30}' * 20}
    dataset = hub.add_dataset("owner/name", private=True, token=TOKEN)
    dataset.add_commit(files)
    bucket = hub.add_bucket("owner/bucket", private=True, token=TOKEN)
    for path, content in files.items():
        bucket.put(path, content)
    hub.clear_log()
    store = HubStore(hub, dataset, bucket)
    yield store
    store.close()
    hub.faults.clear()
    hub.resume_serving()
    hub.shape()
    hub.signed_url_ttl_s = 3600.0
    hub.state.page_size = 1000
    hub.state.relative_redirects = False
    for known in (hub.state.datasets, hub.state.buckets, hub.state.tokens):
        known.clear()
