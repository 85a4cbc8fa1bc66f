"""Reservations against the byte budget: the bound on compressed video bytes of one worker."""

from __future__ import annotations

from threading import Lock

from lerobot_streaming.errors import ByteBudgetError


class EpisodeByteCache:
    """Counts the bytes of episodes that are being fetched, fetched, or still being decoded.

    An episode's bytes are reserved before anything of it is read and released after its last decode. The sum
    of the reservations never exceeds the budget.

    Args:
        budget_bytes: Most bytes reserved at a time.
    """

    def __init__(self, budget_bytes: int) -> None:
        """Makes a cache without reservations."""
        self.budget_bytes = budget_bytes
        self._reserved: dict[int, int] = {}
        self._resident: dict[int, int] = {}
        self._reserved_bytes = 0
        self._resident_bytes = 0
        self._peak_bytes = 0
        self._lock = Lock()

    @property
    def reserved_bytes(self) -> int:
        """Sum of the reservations, in bytes; at most `budget_bytes`."""
        return self._reserved_bytes

    @property
    def resident_bytes(self) -> int:
        """Bytes of the mini-MP4s that are in memory now; at most `reserved_bytes`."""
        return self._resident_bytes

    @property
    def peak_reserved_bytes(self) -> int:
        """Largest `reserved_bytes` so far."""
        return self._peak_bytes

    def try_reserve(self, position: int, size_bytes: int) -> bool:
        """Reserves an episode's bytes if they fit now.

        Args:
            position: The episode's position; it must hold no reservation.
            size_bytes: Exact size of its mini-MP4s.

        Returns:
            False when the budget has no room at the moment.

        Raises:
            ByteBudgetError: The episode can never fit.
        """
        with self._lock:
            if size_bytes > self.budget_bytes:
                raise ByteBudgetError(
                    f"The episode at position {position} needs {size_bytes} bytes of video, but the worker's "
                    f"byte budget is {self.budget_bytes}. Raise byte_budget_gb."
                )
            if position in self._reserved:
                raise ByteBudgetError(f"The episode at position {position} already holds a reservation.")
            if self._reserved_bytes + size_bytes > self.budget_bytes:
                return False
            self._reserved[position] = size_bytes
            self._reserved_bytes += size_bytes
            self._peak_bytes = max(self._peak_bytes, self._reserved_bytes)
            return True

    def set_resident(self, position: int, size_bytes: int) -> None:
        """Records that an episode's bytes are in memory.

        Args:
            position: The episode's position; it holds a reservation.
            size_bytes: Bytes in memory.

        Raises:
            ByteBudgetError: More bytes than were reserved.
        """
        with self._lock:
            reserved = self._reserved.get(position, 0)
            if size_bytes > reserved:
                raise ByteBudgetError(
                    f"The episode at position {position} holds {size_bytes} bytes, but reserved {reserved}."
                )
            self._resident_bytes += size_bytes - self._resident.get(position, 0)
            self._resident[position] = size_bytes

    def release(self, position: int) -> None:
        """Gives an episode's reservation back; its bytes must no longer be referenced.

        Args:
            position: The episode's position. Releasing what is not reserved does nothing.
        """
        with self._lock:
            self._reserved_bytes -= self._reserved.pop(position, 0)
            self._resident_bytes -= self._resident.pop(position, 0)
