"""A loopback Hub with one dataset and one bucket, and readers of them, for tests of faults."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from lerobot_streaming.storage.bucket import BucketReader
from lerobot_streaming.storage.hub import HubReader
from lerobot_streaming.storage.hub_store import HubOptions, HubStoreReader

if TYPE_CHECKING:
    from tests.support.hub import Bucket, Dataset, LoopbackHub, Request

TOKEN = "hf_tokentokentoken"  # noqa: S105 - it opens nothing but the loopback Hub
VIDEO = "videos/cam/file-000.mp4"
INFO = "meta/info.json"
CONTENT = random.Random(3).randbytes(200_000)


@dataclass
class HubStore:
    """What a test of faults works with.

    Attributes:
        hub: The Hub.
        dataset: Private dataset "owner/name", readable with `TOKEN`.
        bucket: Private bucket "owner/bucket", readable with `TOKEN`.
        retries: One entry for each retry of the readers.
    """

    hub: LoopbackHub
    dataset: Dataset
    bucket: Bucket
    retries: list[int] = field(default_factory=list)
    _open: list[HubStoreReader] = field(default_factory=list)

    def reader(self, kind: str = "dataset", **options: Any) -> HubStoreReader:
        """Makes a reader that gives up early and does not wait long between attempts; `close` closes it."""
        defaults = HubOptions(TOKEN, self.hub.endpoint, deadline_s=30.0, timeout_s=5.0)
        given = replace(defaults, **options)
        reader: HubStoreReader
        if kind == "dataset":
            reader = HubReader("owner/name", self.dataset.commit, given)
        else:
            reader = BucketReader("owner/bucket", given)
        reader.watch_retries(lambda: self.retries.append(1))
        reader._retrier.policy = replace(reader._retrier.policy, first_wait_s=0.02, max_wait_s=0.1)
        self._open.append(reader)
        return reader

    def asked(self, host: str, method: str | None = None) -> list[Request]:
        """Requests that a host got."""
        return [
            request
            for request in self.hub.log
            if request.host == host and (method is None or request.method == method)
        ]

    def close(self) -> None:
        """Closes the readers."""
        for reader in self._open:
            reader.close()
