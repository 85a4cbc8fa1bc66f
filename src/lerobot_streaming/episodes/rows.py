"""The rows of an episode, read from Parquet once and kept as tensors.

Row groups are pruned by the statistics of the `index` column, only declared columns are read, and each
numeric column becomes one tensor with the dtype that map-style items have: LeRobot turns every row into
Python numbers and those into tensors, so floats of any width arrive as float32, integers as int64 and
booleans as bool.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lerobot_streaming.episodes.columns import column_array, numbers_of, row_value
from lerobot_streaming.episodes.feature_selection import REQUIRED_COLUMNS
from lerobot_streaming.errors import DatasetLayoutError, FetchError, MissingFileError, RowError
from lerobot_streaming.storage.range_file import RangeFile
from lerobot_streaming.threads import daemon_pool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from lerobot_streaming.episodes.layout import DatasetLayout
    from lerobot_streaming.storage.base import RangeReader

LANGUAGE_COLUMNS: Final = ("language_persistent", "language_events")
"""Columns that hold lists of language rows; lerobot hands them on as Python lists
(lerobot.datasets.language)."""

_TAIL_BYTES: Final = 256 * 1024
"""Read from the end of a Parquet file: enough for the footer of some hundred row groups. A second read would
take longer than these bytes do."""

_SPARE_BYTES: Final = 256 * 1024
"""Unwanted bytes that are read without a second thought rather than ask for two ranges."""

_FOOTERS_AT_A_TIME: Final = 8


@dataclass(frozen=True, slots=True)
class RowTable:
    """The rows of one episode.

    Attributes:
        columns: Feature name to an array (n, *shape), or to a list of n Python values (strings, None,
            language rows, undecoded images as `{"bytes", "path"}`), in the order of the dataset's features.
        timestamps: Seconds since the start of the episode, float64 (n,), rounded to float32 as items carry
            them.
        tasks: Row of `tasks.parquet` per frame.
    """

    columns: Mapping[str, NDArray[Any] | list[Any]]
    timestamps: NDArray[np.float64]
    tasks: Sequence[int]


@dataclass(frozen=True, slots=True)
class _Footer:
    """What is kept of an open Parquet file: its footer and the index range of each row group."""

    metadata: Any
    size: int
    columns: frozenset[str]
    index_min: NDArray[np.float64]
    index_max: NDArray[np.float64]
    episode_min: NDArray[np.float64]
    episode_max: NDArray[np.float64]


def _statistics(metadata: Any, column: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Smallest and largest value of a column per row group; infinite where the file does not say."""
    low = np.full(metadata.num_row_groups, -math.inf)
    high = np.full(metadata.num_row_groups, math.inf)
    names = [metadata.schema.column(number).path for number in range(metadata.num_columns)]
    if column in names:
        number = names.index(column)
        for group in range(metadata.num_row_groups):
            statistics = metadata.row_group(group).column(number).statistics
            if statistics is not None and statistics.has_min_max:
                low[group], high[group] = statistics.min, statistics.max
    return low, high


def _ranges(metadata: Any, groups: Sequence[int], columns: frozenset[str]) -> list[tuple[int, int]]:
    """Finds the ranges that hold what will be read, as (offset, bytes): one, unless columns lie far apart."""
    chunks: list[tuple[int, int]] = []
    # Names of features have dots of their own, and the path of a list's values adds more.
    paths = [metadata.schema.column(number).path for number in range(metadata.num_columns)]
    numbers = [
        number
        for number, path in enumerate(paths)
        if any(path == name or path.startswith(f"{name}.") for name in columns)
    ]
    for group in groups:
        row_group = metadata.row_group(group)
        for number in numbers:
            chunk = row_group.column(number)
            first = chunk.data_page_offset
            if chunk.has_dictionary_page and chunk.dictionary_page_offset:
                first = min(first, chunk.dictionary_page_offset)
            chunks.append((first, first + chunk.total_compressed_size))
    ranges: list[tuple[int, int]] = []
    for begin, end in sorted(chunks):
        if ranges and begin - sum(ranges[-1]) <= _SPARE_BYTES:
            offset, length = ranges[-1]
            ranges[-1] = offset, max(length, end - offset)
        else:
            ranges.append((begin, end - begin))
    return ranges


class RowReader:
    """Reads episodes' rows. Thread-safe; footers stay open for the life of the reader.

    Columns of features that the layout does not hold are not read; a few bytes of them may be, where they lie
    between others.

    Args:
        layout: The selected episodes.
        reader: Where the Parquet bytes come from.
        decode_language: Turns a language column into one Python value per row; called only for such columns.
    """

    def __init__(
        self,
        layout: DatasetLayout,
        reader: RangeReader,
        decode_language: Callable[[pa.ChunkedArray, str], list[Any]],
    ) -> None:
        """Reads nothing yet."""
        self._layout = layout
        self._reader = reader
        self._decode_language = decode_language
        self._columns = [key for key, feature in layout.features.items() if feature["dtype"] != "video"]
        self._footers: dict[str, _Footer] = {}
        self._opening: dict[str, Lock] = {}
        self._lock = Lock()

    def share_footers(self, other: RowReader) -> None:
        """Takes over the footers that another reader of the same files has read.

        Args:
            other: The other one; no thread may be reading with it.
        """
        self._footers.update(other._footers)

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out locks, and footers, which are large; only a forked worker has those already."""
        state = self.__dict__.copy()
        del state["_opening"], state["_lock"]
        state["_footers"] = {}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Takes a copy over in another process."""
        self.__dict__.update(state)
        self._opening = {}
        self._lock = Lock()

    def check(self, positions: Iterable[int]) -> None:
        """Checks the footers of the files of some episodes, without reading rows.

        Args:
            positions: Positions of the episodes.

        Raises:
            MissingFileError: A Parquet file is missing.
            DatasetLayoutError: A column is missing, or a file's statistics show that an episode's rows are
                not there; the message names file and episode.
        """
        layout = self._layout
        positions = list(positions)
        paths = dict.fromkeys(layout.data_path(position) for position in positions)
        with daemon_pool(_FOOTERS_AT_A_TIME, "footer") as pool:
            try:
                pool.map(self._footer, paths)
            except BaseException:
                self._reader.close()  # Ends the waits of the others.
                raise
        for position in positions:
            footer = self._footer(layout.data_path(position))
            groups = self._candidates(footer, position)
            rows = sum(footer.metadata.row_group(group).num_rows for group in groups)
            episode, length = int(layout.episode_index[position]), int(layout.lengths[position])
            where = f"{layout.data_path(position)} below {self._reader.root}"
            if rows < length:
                first = int(layout.first_index[position])
                raise DatasetLayoutError(
                    f"Episode {episode} has {length} frames (index {first} to {first + length - 1}), but "
                    f"{where} holds at most {rows} rows of them. The file and meta/episodes do not belong "
                    "together."
                )
            if not any(footer.episode_min[group] <= episode <= footer.episode_max[group] for group in groups):
                raise DatasetLayoutError(
                    f"The rows that meta/episodes gives to episode {episode} carry another episode_index in "
                    f"{where}. The file and meta/episodes do not belong together."
                )

    def read(self, position: int) -> RowTable:
        """Reads the rows of one episode.

        Args:
            position: Position of the episode.

        Returns:
            Its rows in frame order.

        Raises:
            RowError: The rows are not those that the metadata promises.
            FetchError: The file could not be read.
        """
        layout = self._layout
        path = layout.data_path(position)
        footer = self._footer(path)
        groups = self._candidates(footer, position)
        present = [key for key in self._columns if key in footer.columns]
        source = RangeFile(self._reader, path, footer.size)
        try:
            for offset, length in _ranges(footer.metadata, groups, frozenset(present)):
                source.preload(offset, length)
            with pq.ParquetFile(pa.PythonFile(source, mode="r"), metadata=footer.metadata) as file:
                table = file.read_row_groups(groups, columns=present, use_threads=False)
        except (FetchError, MissingFileError) as error:
            raise type(error)(
                f"Could not read the rows of episode {layout.episode_index[position]}: {error}"
            ) from error
        except (pa.ArrowException, OSError) as error:
            raise FetchError(
                f"Could not read the rows of episode {layout.episode_index[position]} from {path} below "
                f"{self._reader.root}: {error}"
            ) from error
        return self._table(self._filtered(table, position, path), position, path)

    def _footer(self, path: str) -> _Footer:
        with self._lock:
            footer = self._footers.get(path)
            opening = self._opening.setdefault(path, Lock())
        if footer is not None:
            return footer
        # Threads that need the same file wait for the one that reads its footer.
        with opening:
            footer = self._footers.get(path)
            if footer is None:
                footer = self._footers[path] = self._read_footer(path)
        return footer

    def _read_footer(self, path: str) -> _Footer:
        size = self._reader.stat(path).size
        source = RangeFile(self._reader, path, size)
        source.preload(max(0, size - _TAIL_BYTES), _TAIL_BYTES)
        try:
            metadata = pq.read_metadata(pa.PythonFile(source, mode="r"))
        except pa.ArrowException as error:
            raise DatasetLayoutError(
                f"{path} below {self._reader.root} is no readable Parquet file: {error}"
            ) from error
        names = frozenset(metadata.schema.to_arrow_schema().names)
        missing = [name for name in REQUIRED_COLUMNS if name not in names]
        if missing:
            raise DatasetLayoutError(
                f"{path} below {self._reader.root} lacks the column(s) {missing} that every "
                "LeRobotDataset v3 data file has. Restore the file from the source of the dataset."
            )
        return _Footer(
            metadata,
            size,
            names,
            *_statistics(metadata, "index"),
            *_statistics(metadata, "episode_index"),
        )

    def _candidates(self, footer: _Footer, position: int) -> list[int]:
        """Row groups that may hold rows of an episode."""
        first = int(self._layout.first_index[position])
        last = first + int(self._layout.lengths[position]) - 1
        return [
            int(group) for group in np.nonzero((footer.index_min <= last) & (footer.index_max >= first))[0]
        ]

    def _filtered(self, table: pa.Table, position: int, path: str) -> pa.Table:
        """The rows of the episode, checked to be the planned ones."""
        layout = self._layout
        first, length = int(layout.first_index[position]), int(layout.lengths[position])
        episode = int(layout.episode_index[position])
        index = numbers_of(table.column("index").combine_chunks())
        rows = np.nonzero((index >= first) & (index < first + length))[0]
        expected = np.arange(first, first + length)
        if not np.array_equal(index[rows], expected):
            raise RowError(
                f"Episode {episode} must have the rows with index {first} to {first + length - 1} in "
                f"ascending order, but {path} holds {len(rows)} rows in that "
                f"range{'' if len(rows) != length else ' in another order or with repeats'}. The file and "
                "meta/episodes do not belong together."
            )
        table = table.slice(int(rows[0]), length) if rows[-1] - rows[0] + 1 == length else table.take(rows)
        found = numbers_of(table.column("episode_index").combine_chunks())
        if (found != episode).any():
            row = int(np.argmax(found != episode))
            raise RowError(
                f"The row with index {first + row} in {path} carries episode_index {found[row]}, but "
                f"meta/episodes gives it to episode {episode}."
            )
        return table

    def _table(self, table: pa.Table, position: int, path: str) -> RowTable:
        """Converts the filtered rows."""
        columns: dict[str, NDArray[Any] | list[Any]] = {}
        for key in self._columns:
            if key not in table.column_names:
                # Declared, but not in the file: None in every item, as in map-style.
                columns[key] = [None] * len(table)
                continue
            feature, column = self._layout.features[key], table.column(key)
            if key in LANGUAGE_COLUMNS:
                columns[key] = self._decode_language(column, key)
            elif feature["dtype"] == "image":
                columns[key] = column.to_pylist()
            else:
                columns[key] = self._values(column, key, position, path)
        timestamps, tasks = columns["timestamp"], columns["task_index"]
        if not isinstance(timestamps, np.ndarray) or not isinstance(tasks, np.ndarray):
            raise RowError(
                f"Episode {self._layout.episode_index[position]} in {path} has rows without timestamp or "
                "task_index, or with values that are no numbers."
            )
        return RowTable(columns, timestamps.astype(np.float64).reshape(-1), tasks.reshape(-1).tolist())

    def _values(
        self, column: pa.ChunkedArray, key: str, position: int, path: str
    ) -> NDArray[Any] | list[Any]:
        """A column as one array, or row by row where it holds text or missing values."""
        feature = self._layout.features[key]
        try:
            array = column_array(column, feature["shape"], feature["dtype"])
            return [row_value(value) for value in column.to_pylist()] if array is None else array
        except (pa.ArrowException, RuntimeError, TypeError, ValueError) as error:
            raise RowError(
                f"Column {key!r} of episode {self._layout.episode_index[position]} in {path} cannot be read "
                f"as {feature['dtype']} of shape {tuple(feature['shape'])}: {error}. Repair the file or the "
                "feature in meta/info.json."
            ) from error
