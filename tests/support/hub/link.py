"""The network between the loopback Hub and its clients: bandwidth and latency."""

from __future__ import annotations

import threading
import time

_SLICE_S = 0.02
"""A piece takes about this long on the link, so that connections share it evenly."""


class Pacer:
    """Bytes leave one after another at a rate; who asks waits until the line has carried them.

    Args:
        bytes_per_s: The rate; None: no limit.
    """

    def __init__(self, bytes_per_s: float | None) -> None:
        self._rate = bytes_per_s
        self._lock = threading.Lock()
        self._free_at = 0.0

    def carry(self, size: int) -> None:
        """Wait until the line has carried some bytes behind all that were asked for before.

        Args:
            size: Number of bytes.
        """
        if self._rate is None:
            return
        with self._lock:
            self._free_at = max(self._free_at, time.monotonic()) + size / self._rate
            until = self._free_at
        time.sleep(max(0.0, until - time.monotonic()))


class Link:
    """What all connections to the Hub share. It shapes what the Hub sends, not what it receives.

    Args:
        bandwidth_bytes_per_s: Rate over all connections; None: no limit.
        per_connection_bytes_per_s: Rate of each connection; None: no limit.
        latency_s: Wait before each answer, in seconds.
        connect_latency_s: Wait before the first answer of a new connection, in seconds, besides `latency_s`;
            None: as `latency_s`.
    """

    def __init__(
        self,
        bandwidth_bytes_per_s: float | None = None,
        per_connection_bytes_per_s: float | None = None,
        latency_s: float = 0.0,
        connect_latency_s: float | None = None,
    ) -> None:
        self._shared = Pacer(bandwidth_bytes_per_s)
        self._per_connection = per_connection_bytes_per_s
        self._latency_s = latency_s
        self._connect_s = latency_s if connect_latency_s is None else connect_latency_s
        rates = [rate for rate in (bandwidth_bytes_per_s, per_connection_bytes_per_s) if rate is not None]
        self.piece_size = max(1024, min(1 << 20, int(min(rates) * _SLICE_S))) if rates else 1 << 20

    def connection(self) -> Pacer:
        """Give the line of a new connection.

        Returns:
            Its own pacer, to pass to :meth:`carry`.
        """
        return Pacer(self._per_connection)

    def answer(self, *, new_connection: bool) -> None:
        """Wait as long as an answer takes to begin.

        Args:
            new_connection: Whether it is the first of its connection.
        """
        wait = self._latency_s + (self._connect_s if new_connection else 0.0)
        if wait > 0:
            time.sleep(wait)

    def carry(self, size: int, connection: Pacer) -> None:
        """Wait until the link has carried a piece.

        Args:
            size: Number of bytes.
            connection: The connection's own line.
        """
        connection.carry(size)
        self._shared.carry(size)
