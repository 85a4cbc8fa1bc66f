from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.storage.hub_fixtures import CONTENT, INFO, TOKEN, VIDEO, HubStore
from tests.support.hub import LoopbackHub, online

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def store() -> Iterator[HubStore]:
    files = {VIDEO: CONTENT, INFO: b'{"fps": 30}' * 20}
    with LoopbackHub() as hub, online(hub):
        dataset = hub.add_dataset("owner/name", private=True, token=TOKEN)
        dataset.add_commit(files)
        bucket = hub.add_bucket("owner/bucket", private=True, token=TOKEN)
        for path, content in files.items():
            bucket.put(path, content)
        store = HubStore(hub, dataset, bucket)
        yield store
        store.close()
