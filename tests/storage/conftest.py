from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.storage.hub_fixtures import CONTENT, INFO, TOKEN, VIDEO, HubStore
from tests.support.hub import LoopbackHub, online

if TYPE_CHECKING:
    from collections.abc import Iterator


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
