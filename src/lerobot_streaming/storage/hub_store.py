"""What readers of datasets and buckets on the Hub share."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import suppress
from dataclasses import dataclass, field, replace
from threading import Thread
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from lerobot_streaming.errors import FetchError, MissingFileError, OptionError, StreamingError
from lerobot_streaming.storage.base import FileStat, RangeReader, check_offset, check_path
from lerobot_streaming.storage.forking import renew_in_children
from lerobot_streaming.storage.governor import Governor
from lerobot_streaming.storage.http_ranges import RangeRead, RangeReads, run_together, split_range
from lerobot_streaming.storage.http_session import HttpSession, host_of
from lerobot_streaming.storage.hub_api import HubApi
from lerobot_streaming.storage.locations import Locations, Pin
from lerobot_streaming.storage.retry import DEFAULT_DEADLINE_S, Retrier, RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from lerobot_streaming.storage.hub_api import Location
    from lerobot_streaming.storage.hub_refusals import HubSubject
    from lerobot_streaming.storage.retry import Deadline

DEFAULT_CONNECTIONS: Final = 16
MIN_SPLIT_BYTES: Final = 16 << 20
_PATHS_PER_REQUEST: Final = 500


@dataclass(frozen=True, slots=True)
class HubOptions:
    """How a store on the Hub is read.

    Attributes:
        token: As huggingface_hub takes it: a token, True for this machine's, False for none, None for this
            machine's if there is one. It is never shown.
        endpoint: URL of the Hub; None takes huggingface_hub's.
        connections: Most requests at a time; at least 1.
        subranges: Concurrent parts of one range of at least 16 MiB; at least 1.
        deadline_s: Seconds for one read or look-up with all of its attempts; > 0.
        timeout_s: Seconds without a byte after which a request counts as stalled; None takes what
            huggingface_hub takes.
    """

    token: str | bool | None = field(default=None, repr=False)
    endpoint: str | None = None
    connections: int = DEFAULT_CONNECTIONS
    subranges: int = 1
    deadline_s: float = DEFAULT_DEADLINE_S
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        """Checks the numbers.

        Raises:
            OptionError: One is out of range.
        """
        for name in ("connections", "subranges"):
            if getattr(self, name) < 1:
                raise OptionError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if self.timeout_s is not None and not self.timeout_s > 0:
            raise OptionError(f"timeout_s must be > 0 seconds, got {self.timeout_s}.")


class HubStoreReader(RangeReader):
    """Reads byte ranges of one store on the Hub over HTTPS.

    Args:
        repo_id: "OWNER/NAME".
        options: How it is read.
        on_retry: Called before each further attempt.
    """

    def __init__(self, repo_id: str, options: HubOptions, on_retry: Callable[[], None] | None = None) -> None:
        """Binds the reader; nothing is asked yet."""
        self._repo_id = repo_id
        self._options = options
        self._start(on_retry)
        # A worker must ask the same Hub, whatever its environment says.
        self._options = replace(options, endpoint=self._api.endpoint)

    def _start(self, on_retry: Callable[[], None] | None) -> None:
        options = self._options
        self._session = HttpSession(options.timeout_s)
        self._api = HubApi(self._session, options.endpoint, options.token)
        self._retrier = Retrier(RetryPolicy(options.deadline_s), on_retry)
        self._governor = Governor(options.connections)
        self._locations = Locations(self._locate, self.root)
        self._reads = RangeReads(self._session, self._api, self._governor, self._locations, self._subject)
        renew_in_children(self)

    @abstractmethod
    def _subject(self, path: str | None) -> HubSubject:
        """Names a file, or the store, for messages."""
        ...

    @abstractmethod
    def _file_url(self, path: str) -> str:
        """URL of a file on the Hub."""
        ...

    @abstractmethod
    def _api_url(self, call: str) -> str:
        """URL of one of the store's API calls: `tree` or `paths-info`."""
        ...

    @abstractmethod
    def _stat_of(self, entry: Mapping[str, Any]) -> FileStat:
        """What a listing's entry of a file says."""
        ...

    def __repr__(self) -> str:
        """Names the root only."""
        return f"{type(self).__name__}({self.root!r})"

    def watch_retries(self, on_retry: Callable[[], None] | None) -> None:
        """Sets what counts the retries in this process."""
        self._retrier.on_retry = on_retry

    def limit_requests(self, count: int) -> None:
        """Sets how many requests this process may have under way at a time."""
        self._options = replace(self._options, connections=count)
        self._governor.set_limit(count)

    def stat_many(self, paths: Iterable[str], *, look_ups: int = 1) -> dict[str, FileStat]:
        """Looks many files up, hundreds per request.

        Args:
            paths: POSIX paths relative to the root.
            look_ups: Without effect: one request at a time is enough.

        Returns:
            Path -> size and fingerprint, in the order of `paths`; a missing file has the size -1.

        Raises:
            AccessError: The Hub refuses.
            FetchError: The Hub could not be asked, or a path leaves the root.
        """
        del look_ups
        wanted = [check_path(path, self.root) for path in dict.fromkeys(paths)]
        found: dict[str, FileStat] = {}
        url = self._api_url("paths-info")
        for start in range(0, len(wanted), _PATHS_PER_REQUEST):
            body = {"paths": wanted[start : start + _PATHS_PER_REQUEST]}

            def ask(deadline: Deadline, body: Mapping[str, Any] = body) -> Any:
                with self._governor.slot(host_of(url), deadline):
                    return self._api.get_json(url, self._subject(None), deadline, body)[0]

            found.update(self._take_in(self._retrier.run(ask, f"looking up files of '{self.root}'")))
        return {path: found.get(path, FileStat(-1, None)) for path in wanted}

    def list_files(self, folder: str = "") -> dict[str, FileStat]:
        """Lists all files below a folder.

        Args:
            folder: POSIX path relative to the root; empty for everything.

        Returns:
            Path -> size and fingerprint; empty when there is no such folder.

        Raises:
            MissingFileError: There is no such revision.
            AccessError: The Hub refuses.
            FetchError: The Hub could not be asked.
        """
        folder = folder.strip("/")
        below = f"/{quote(check_path(folder, self.root), safe='')}" if folder else ""
        url = f"{self._api_url('tree')}{below}?recursive=true"
        found: dict[str, FileStat] = {}
        pages = self._api.pages(url, self._subject(folder or None), self._retrier, f"listing '{self.root}'")
        try:
            for entries in pages:
                found.update(self._take_in(entries))
        except MissingFileError:
            # The folder, or the revision itself? Only the latter is an error.
            if not folder:
                raise
            self.list_root()
            return {}
        return {path: stat for path, stat in found.items() if path.startswith(f"{folder}/" if folder else "")}

    def locate_ahead(self, paths: Iterable[str]) -> None:
        """Lets threads ask where files are, so that reads which follow need not wait for the answer.

        Args:
            paths: POSIX paths relative to the root. One that is not there is an error of its read only.
        """
        for path in paths:
            Thread(target=self._try_to_find, args=(path,), name="locate-ahead", daemon=True).start()

    def _try_to_find(self, path: str) -> None:
        with suppress(StreamingError):
            self._find(path)

    def list_root(self) -> None:
        """Asks for one entry of the root, to see whether it is there.

        Raises:
            MissingFileError: There is no such revision.
            AccessError: The Hub refuses.
            FetchError: The Hub could not be asked.
        """
        url = f"{self._api_url('tree')}?limit=1"
        what = f"looking up '{self.root}'"
        self._retrier.run(lambda deadline: self._api.get_json(url, self._subject(None), deadline), what)

    def read_into(self, path: str, offset: int, view: memoryview) -> None:
        """Fills a buffer from one byte range, straight from the connection.

        Args:
            path: POSIX path relative to the root.
            offset: First byte of the range, from the start of the file; >= 0.
            view: Writable contiguous buffer; exactly `view.nbytes` bytes are read into it.

        Raises:
            MissingFileError: There is no such file.
            AccessError: The Hub, or the host of the content, refuses.
            ChangedFileError: The file is not the one that was first seen.
            FetchError: The range leaves the file, or the bytes did not come within the deadline.
        """
        check_path(path, self.root)
        check_offset(path, self.root, offset)
        wanted = view.nbytes
        size = self._size(path)
        if not wanted:
            return
        if offset + wanted > size:
            raise FetchError(
                f"short read of '{path}' below '{self.root}': at offset {offset} wanted {wanted} bytes, got "
                f"{max(0, size - offset)}; the file has {size} bytes"
            )
        split = self._options.subranges if wanted >= MIN_SPLIT_BYTES else 1
        stop = self._retrier.new_stop()

        def job(start: int, part: memoryview) -> Callable[[], None]:
            first = offset + start
            read = RangeRead(self._reads, path, first, part)
            what = f"reading '{path}' below '{self.root}', bytes {first} to {first + part.nbytes - 1}"
            return lambda: self._retrier.run(read.attempt, what, num_bytes=part.nbytes, stop=stop)

        run_together([job(*part) for part in split_range(view.cast("B"), split)], stop)

    def close(self) -> None:
        """Ends waits and closes the connections."""
        self._retrier.close()
        self._session.close()

    def __getstate__(self) -> dict[str, Any]:
        """Pickles what the store is and how it is read; connections and signed URLs stay here."""
        hidden = {"_session", "_api", "_retrier", "_governor", "_locations", "_reads"}
        return {name: value for name, value in self.__dict__.items() if name not in hidden}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Rebuilds a reader without connections."""
        self.__dict__.update(state)
        self._start(None)

    def renew_after_fork(self) -> None:
        """Gives a forked child locks and connections of its own; what is known of the files stays known."""
        self._session.renew_after_fork()
        known = self._locations
        self._start(self._retrier.on_retry)
        self._locations.take_over(known)

    def _size(self, path: str) -> int:
        pin: Pin | None = self._locations.pinned(path)
        if pin is not None and pin.size is not None:
            return pin.size
        return self._find(path).size or 0

    def _find(self, path: str) -> Location:
        what = f"looking up '{path}' below '{self.root}'"
        return self._retrier.run(lambda deadline: self._locations.get(path, deadline), what)

    def _locate(self, path: str, deadline: Deadline) -> Location:
        url = self._file_url(path)
        with self._governor.slot(host_of(url), deadline):
            return self._api.locate(url, self._subject(path), deadline)

    def _take_in(self, entries: Any) -> Iterator[tuple[str, FileStat]]:
        """Sorts out the files of a listing and pins what it says of them."""
        if not isinstance(entries, list):
            raise FetchError(f"the Hub's listing of '{self.root}' is no list")
        for entry in entries:
            if isinstance(entry, dict) and entry.get("type") == "file":
                stat = self._stat_of(entry)
                self._locations.pin(entry["path"], stat.size, stat.fingerprint)
                yield entry["path"], stat
