"""A loopback Hub in a process of its own, so that it does not share an interpreter with what is measured."""

from __future__ import annotations

import multiprocessing
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from pathlib import Path

TOKEN = "hf_benchmark"  # noqa: S105  It opens nothing but the loopback Hub.
REPO = "owner/many-files"


class ServedHub:
    """A Hub with one private dataset.

    Args:
        root: The dataset.
    """

    def __init__(self, root: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, root), daemon=True)

    def __enter__(self) -> Self:
        self._process.start()
        self.endpoint: str = self._connection.recv()
        """URL of the Hub."""
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.send(("end", {}))
        self._process.join()

    def ask(self, question: str, **arguments: Any) -> Any:
        """Ask the process for "shape", "clear" or "log": (host, method, path, bytes sent, seconds) each."""
        self._connection.send((question, arguments))
        return self._connection.recv()


def _serve(connection: Connection, root: Path) -> None:
    from tests.support.hub import LoopbackHub

    with LoopbackHub() as hub:
        hub.add_dataset(REPO, root, private=True, token=TOKEN).tag("v3.0")
        connection.send(hub.endpoint)
        while True:
            question, arguments = connection.recv()
            answer: Any = None
            if question == "end":
                return
            if question == "shape":
                hub.shape(**arguments)
            elif question == "clear":
                hub.clear_log()
            elif question == "log":
                answer = [
                    (request.host, request.method, request.path, request.bytes_sent, request.time)
                    for request in hub.log
                ]
            connection.send(answer)
