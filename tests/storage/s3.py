"""An S3 server on this machine, for tests of fsspec roots."""

from __future__ import annotations

import logging
import socket
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Mapping

KEY, SECRET = "AKIAKEYKEYKEYKEY", "wJalrSECRETSECRETSECRET"


class S3Server:
    """A server of its own, with what s3fs needs to reach it."""

    def __init__(self) -> None:
        from moto.server import ThreadedMotoServer

        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._server = ThreadedMotoServer("127.0.0.1", self.port, verbose=False)
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self.options: dict[str, Any] = {
            "key": KEY,
            "secret": SECRET,
            "client_kwargs": {"endpoint_url": self.endpoint},
        }

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.stop()

    def put(self, bucket: str, prefix: str, files: Mapping[str, bytes]) -> None:
        """Writes files; makes the bucket if there is none."""
        import fsspec

        client = fsspec.filesystem("s3", **self.options, skip_instance_cache=True)
        if not client.exists(bucket):
            client.mkdir(bucket)
        for path, content in files.items():
            client.pipe_file(f"{bucket}/{prefix}{path}", content)
