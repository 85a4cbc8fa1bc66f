"""Byte ranges of the files of a local directory."""

from __future__ import annotations

import os
import stat as stat_module
import threading
from collections import OrderedDict
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lerobot_streaming.errors import FetchError, MissingFileError
from lerobot_streaming.storage.base import FileStat, RangeReader, check_offset, check_path
from lerobot_streaming.storage.forking import renew_in_children

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DEFAULT_MAX_OPEN_FILES = 64


@dataclass(slots=True)
class _Handle:
    """One open descriptor; `users` threads read it, and the last one closes it once it is `retired`."""

    fd: int
    users: int = 0
    retired: bool = False


class LocalReader(RangeReader):
    """Reads byte ranges below a local directory with positioned reads.

    Descriptors stay open in a small least-recently-used table, because opening costs more than reading a
    span. Positioned reads share no file offset, so any number of threads, and forked children, read at once.
    """

    def __init__(self, root: str | Path, *, max_open_files: int = DEFAULT_MAX_OPEN_FILES) -> None:
        """Binds the reader to a directory; nothing is opened yet.

        Args:
            root: The directory; made absolute, with symbolic links resolved, so that its text is stable.
            max_open_files: Descriptors kept open while no thread reads from them; at least 1.

        Raises:
            ValueError: `max_open_files` is below 1.
        """
        if max_open_files < 1:
            raise ValueError(f"max_open_files is {max_open_files}, but at least 1 descriptor must stay open")
        self._root = Path(root).expanduser().resolve()
        self._max_open_files = max_open_files
        self._lock = threading.Lock()
        self._handles: OrderedDict[str, _Handle] = OrderedDict()
        renew_in_children(self)

    @property
    def root(self) -> str:
        """The directory's absolute POSIX path."""
        return self._root.as_posix()

    def stat(self, path: str) -> FileStat:
        """Looks one file up.

        Args:
            path: POSIX path relative to the root.

        Returns:
            Size in bytes, and `SIZE-MTIME_NS` as fingerprint.

        Raises:
            MissingFileError: There is no regular file at the path.
            FetchError: The path leaves the root, or the file system refuses.
        """
        full = self._locate(path)
        try:
            found = full.stat()
        except (FileNotFoundError, NotADirectoryError) as error:
            raise self._missing(path) from error
        except OSError as error:
            raise FetchError(f"cannot look up '{path}' below '{self.root}': {error}") from error
        if not stat_module.S_ISREG(found.st_mode):
            raise self._missing(path)
        return FileStat(size=found.st_size, fingerprint=f"{found.st_size}-{found.st_mtime_ns}")

    def read_into(self, path: str, offset: int, view: memoryview) -> None:
        """Fills a buffer from one byte range.

        Args:
            path: POSIX path relative to the root.
            offset: First byte of the range, from the start of the file; >= 0.
            view: Writable contiguous buffer; exactly `view.nbytes` bytes are read into it.

        Raises:
            MissingFileError: There is no such file.
            FetchError: The path leaves the root, the offset is negative, or the file ends inside the range.
        """
        target = view.cast("B") if view.nbytes else memoryview(bytearray())
        wanted = target.nbytes
        check_offset(path, self.root, offset)
        got = 0
        with self._descriptor(path) as fd:
            # One system call moves at most about 2 GiB, and may move less.
            while got < wanted:
                try:
                    count = os.preadv(fd, [target[got:]], offset + got)
                except (OSError, OverflowError) as error:
                    raise FetchError(
                        f"reading '{path}' below '{self.root}' failed at offset {offset}: wanted {wanted} "
                        f"bytes, got {got}: {error}"
                    ) from error
                if count == 0:
                    raise FetchError(
                        f"short read of '{path}' below '{self.root}': at offset {offset} wanted {wanted} "
                        f"bytes, got {got}; the file is truncated or was replaced, copy it again"
                    )
                got += count

    def close(self) -> None:
        """Closes the descriptors; one that a thread reads from is closed when that read ends."""
        with self._lock:
            while self._handles:
                self._retire_oldest()

    def __getstate__(self) -> dict[str, Any]:
        """Pickles the root only: descriptors and locks mean nothing in another process."""
        return {"root": self.root, "max_open_files": self._max_open_files}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Rebuilds a reader without open descriptors."""
        self._root = Path(state["root"])
        self._max_open_files = state["max_open_files"]
        self._lock = threading.Lock()
        self._handles = OrderedDict()
        renew_in_children(self)

    def __del__(self, _close: Callable[[int], None] = os.close) -> None:
        """Closes what is still open when the reader is collected, be it while the interpreter ends."""
        handles: OrderedDict[str, _Handle] | None = getattr(self, "_handles", None)
        for handle in handles.values() if handles else ():
            _close(handle.fd)

    def _locate(self, path: str) -> Path:
        # Symbolic links are followed on purpose: the Hub's cache is made of links that leave the snapshot.
        return self._root / check_path(path, self.root)

    def _missing(self, path: str) -> MissingFileError:
        return MissingFileError(
            f"no file '{path}' below '{self.root}'; download it again or fix the data root"
        )

    @contextmanager
    def _descriptor(self, path: str) -> Iterator[int]:
        """Lends a descriptor that no other thread can close meanwhile."""
        handle = self._acquire(path)
        try:
            yield handle.fd
        finally:
            with self._lock:
                handle.users -= 1
                if handle.retired and handle.users == 0:
                    os.close(handle.fd)

    def _acquire(self, path: str) -> _Handle:
        with self._lock:
            handle = self._handles.get(path)
            if handle is not None:
                handle.users += 1
                self._handles.move_to_end(path)
                return handle
        fd = self._open(path)  # Outside the lock: opening may take long on a network file system.
        with self._lock:
            handle = self._handles.get(path)
            if handle is None:
                handle = self._handles[path] = _Handle(fd)
            else:
                os.close(fd)  # Another thread was faster.
            handle.users += 1
            self._handles.move_to_end(path)
            while len(self._handles) > self._max_open_files:
                self._retire_oldest()
            return handle

    def _open(self, path: str) -> int:
        full = self._locate(path)
        try:
            # Non-blocking, or opening a named pipe would wait for a writer for ever.
            fd = os.open(full, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise self._missing(path) from error
        except OSError as error:
            raise FetchError(f"cannot open '{path}' below '{self.root}': {error}") from error
        if not stat_module.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise self._missing(path)
        return fd

    def _retire_oldest(self) -> None:
        _, handle = self._handles.popitem(last=False)
        if handle.users:
            handle.retired = True
        else:
            os.close(handle.fd)

    def renew_after_fork(self) -> None:
        """Gives a forked child a lock of its own and closes its copies of the descriptors."""
        # Another thread of the parent may have held the lock; in the child nobody would ever release it. The
        # parent's reads do not exist here either, so the inherited copies of its descriptors are free to
        # close.
        self._lock = threading.Lock()
        handles, self._handles = self._handles, OrderedDict()
        for handle in handles.values():
            os.close(handle.fd)
