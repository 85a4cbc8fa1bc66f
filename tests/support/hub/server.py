"""The loopback Hub."""

from __future__ import annotations

import contextlib
import os
import socket
from typing import TYPE_CHECKING, Self

from tests.support.hub.blobs import read_directory
from tests.support.hub.buckets import BucketRoutes
from tests.support.hub.cdn import CdnRoutes
from tests.support.hub.client import TOKEN_VARIABLES
from tests.support.hub.faults import Faults
from tests.support.hub.http import Routes
from tests.support.hub.link import Link
from tests.support.hub.log import Request, RequestLog
from tests.support.hub.repositories import RepositoryRoutes
from tests.support.hub.state import State
from tests.support.hub.stores import Bucket, Dataset, Store
from tests.support.hub.uploads import UploadRoutes
from tests.support.hub.wire import Origin, Wire
from tests.support.hub.xet import XetRoutes

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType


class LoopbackHub:
    """A Hub on this machine that the real client accepts, with a second host that serves the contents.

    It serves from `with` on. Datasets and buckets can be added at any time. Closing it raises what went wrong
    in the server itself, so that a test does not pass on an answer that was an accident.

    Args:
        signed_url_ttl_s: Seconds for which a signed URL is good; can be changed at any time.
        large_from: Size in bytes from which a file of a dataset lies in large file storage, so that it is
            read by way of a signed URL. Videos, Parquet files and some others always do; empty files never.
        page_size: Most entries of one page of a listing.
        relative_redirects: Whether small files are answered by a redirect on the Hub's own host, as the
            public Hub does, in place of the bytes.
    """

    def __init__(
        self,
        *,
        signed_url_ttl_s: float = 3600.0,
        large_from: int = 10_000,
        page_size: int = 1000,
        relative_redirects: bool = False,
    ) -> None:
        self.faults = Faults()
        self._log = RequestLog()
        self._wire = Wire(self._log, self.faults)
        self._large_from = large_from
        self.state = State(page_size, signed_url_ttl_s, relative_redirects)
        routes, cdn_routes = Routes(), Routes()
        RepositoryRoutes(self.state, routes)
        UploadRoutes(self.state, routes, large_from)
        BucketRoutes(self.state, routes)
        CdnRoutes(self.state, cdn_routes)
        XetRoutes(self.state, routes, cdn_routes)
        cdn_address, cdn_name = _second_host()
        self._origins = (
            Origin(self._wire, "hub", "127.0.0.1", "127.0.0.1", routes),
            Origin(self._wire, "cdn", cdn_address, cdn_name, cdn_routes),
        )
        self.endpoint = self._origins[0].url
        """URL of the Hub."""
        self.cdn_endpoint = self._origins[1].url
        """URL of the host that signed URLs lead to."""
        self.state.endpoint, self.state.cdn_endpoint = self.endpoint, self.cdn_endpoint

    def __enter__(self) -> Self:
        self.resume_serving()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._wire.errors.clear()
        self.close()

    def close(self) -> None:
        """End all connections and give the ports back.

        Raises:
            ExceptionGroup: What went wrong in the server itself.
        """
        self._wire.stopping.set()
        for origin in self._origins:
            origin.close()
        if self._wire.errors:
            raise ExceptionGroup("the loopback Hub itself failed", self._wire.errors)

    def stop_serving(self) -> None:
        """Go down: open connections end, new ones are refused. The ports stay reserved."""
        self._wire.stopping.set()
        for origin in self._origins:
            origin.stop()

    def resume_serving(self) -> None:
        """Come back on the same ports."""
        self._wire.stopping.clear()
        for origin in self._origins:
            origin.start()

    @property
    def signed_url_ttl_s(self) -> float:
        """Seconds for which a signed URL that is made from now on is good."""
        return self.state.signed_url_ttl_s

    @signed_url_ttl_s.setter
    def signed_url_ttl_s(self, seconds: float) -> None:
        self.state.signed_url_ttl_s = seconds

    @property
    def log(self) -> list[Request]:
        """All requests to both hosts since the last :meth:`clear_log`, in order of arrival."""
        return self._log.snapshot()

    def clear_log(self) -> None:
        """Forget all requests so far."""
        self._log.clear()

    def shape(
        self,
        bandwidth_bytes_per_s: float | None = None,
        latency_s: float = 0.0,
        *,
        connect_latency_s: float | None = None,
        per_connection_bytes_per_s: float | None = None,
    ) -> None:
        """Shape what both hosts send from now on; without arguments, stop shaping.

        Args:
            bandwidth_bytes_per_s: Rate over all connections; None: no limit.
            latency_s: Wait before each answer, in seconds.
            connect_latency_s: Wait before the first answer of a new connection, in seconds, besides
                `latency_s`; None: as `latency_s`.
            per_connection_bytes_per_s: Rate of each connection that is opened from now on; None: no limit.
        """
        self._wire.link = Link(
            bandwidth_bytes_per_s, per_connection_bytes_per_s, latency_s, connect_latency_s
        )

    def add_token(self, token: str, user: str = "someone") -> None:
        """Make a token known, without a right to anything private.

        Args:
            token: The token.
            user: Name of the user it stands for.
        """
        self.state.tokens.setdefault(token, user)

    def grant(self, store: Store, token: str, *, write: bool = False) -> None:
        """Let a token read a dataset or bucket.

        Args:
            store: The dataset or bucket.
            token: The token; it becomes known.
            write: Whether it may write, too.
        """
        self.add_token(token)
        store.grant(token, write=write)

    def add_dataset(
        self,
        repo_id: str,
        directory: Path | None = None,
        *,
        private: bool = False,
        gated: bool = False,
        token: str | None = None,
        read_token: str | None = None,
        xet: bool = False,
    ) -> Dataset:
        """Add a dataset repository.

        Args:
            repo_id: "owner/name".
            directory: Files of the first commit on `main`; they are read from there, and must not change.
                None: a first commit without files.
            private: Whether it is seen only with a token that has a grant.
            gated: Whether its files are read only with a token that has a grant.
            token: A token that may read and write.
            read_token: A token that may read.
            xet: Whether the Hub tells clients that the large files are in Xet storage.

        Returns:
            The repository.
        """
        dataset = Dataset(repo_id, private, gated, xet, large_from=self._large_from)
        dataset.add_commit(read_directory(directory) if directory is not None else {}, title="initial commit")
        self._add(dataset, token, read_token)
        self.state.datasets[repo_id] = dataset
        return dataset

    def add_bucket(
        self,
        bucket_id: str,
        directory: Path | None = None,
        *,
        private: bool = False,
        token: str | None = None,
        read_token: str | None = None,
    ) -> Bucket:
        """Add a bucket.

        Args:
            bucket_id: "owner/name".
            directory: Its first files; they are read from there, and must not change. None: no files.
            private: Whether it is seen only with a token that has a grant.
            token: A token that may read and write.
            read_token: A token that may read.

        Returns:
            The bucket.
        """
        bucket = Bucket(bucket_id, private, xet=True)
        for path, blob in (read_directory(directory) if directory is not None else {}).items():
            bucket.put(path, blob)
        self._add(bucket, token, read_token)
        self.state.buckets[bucket_id] = bucket
        return bucket

    def _add(self, store: Store, token: str | None, read_token: str | None) -> None:
        for given, write in ((token, True), (read_token, False)):
            if given is not None:
                self.grant(store, given, write=write)

    def env(self, token: str | None = None) -> dict[str, str]:
        """Give the environment of a client process. `HF_HOME` is left to the caller.

        Xet is off: the client then reads and uploads files of repositories over HTTP. (For buckets it uses
        Xet all the same.)

        Args:
            token: The client's token; None: no token, whatever this process has.

        Returns:
            The whole environment, this process's with the Hub's own variables on top.
        """
        env = {
            name: value
            for name, value in os.environ.items()
            if name not in {"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", *TOKEN_VARIABLES}
            and not name.lower().endswith("_proxy")
        }
        env |= {
            "HF_ENDPOINT": self.endpoint,
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        }
        return env | ({"HF_TOKEN": token} if token is not None else {})


def _second_host() -> tuple[str, str]:
    """Find an address and a name that differ from 127.0.0.1; not every system has the whole 127.0.0.0/8."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.2", 0))
        return "127.0.0.2", "127.0.0.2"
    return "127.0.0.1", "localhost"
