"""The errors of this library, in one tree.

Every class also inherits the builtin that a caller would expect for that kind of fault, so that code written
against map-style LeRobot (`except ValueError`, `except FileNotFoundError`) keeps working::

    StreamingError
    ├── OptionError (ValueError)             an argument or flag is outside its range
    ├── DatasetLayoutError (ValueError)      metadata, files and rows do not fit together
    │   └── RowError                         a Parquet row is not the planned one
    ├── MissingFileError (FileNotFoundError) a file that the metadata names is not there
    ├── ShardingError (ValueError)           ranks or workers that cannot all get an episode
    ├── ByteBudgetError (ValueError)         an episode does not fit the byte budget
    ├── Mp4Error (ValueError)
    │   ├── Mp4FormatError                   truncated or inconsistent boxes
    │   └── Mp4UnsupportedError              a valid form that is refused by name
    ├── SidecarError (ValueError)            an index file that does not hold what it must
    │   ├── BadVideoFilesError               video files that cannot be indexed, all of them
    │   └── SidecarLockTimeoutError (TimeoutError)
    ├── FetchError (OSError)                 bytes that could not be read as planned
    │   ├── AccessError (PermissionError)    storage refuses: no right, no credentials, no such repository
    │   └── ChangedFileError                 a file is not the one it was when it was first looked up
    ├── FrameTimestampError (ValueError)     no frame near enough to the wanted time
    ├── DecodeError (RuntimeError)           libav could not give the wanted frame
    │   └── DecodeStallError (TimeoutError)  a decode that does not return
    ├── UnsupportedVersionError (RuntimeError)  lerobot or accelerate is not of a known version
    ├── UnprotectedLoaderError (RuntimeError)   accelerate would lose the episodes of other processes
    └── PipelineClosedError (RuntimeError)   the iterator was closed while something waited on it
"""

from __future__ import annotations


class StreamingError(Exception):
    """Base class of every error that this library raises on purpose."""


class OptionError(StreamingError, ValueError):
    """An option has a value outside its range; the message names option, value and range."""


class DatasetLayoutError(StreamingError, ValueError):
    """Metadata, Parquet rows and video files of a dataset contradict each other."""


class RowError(DatasetLayoutError):
    """A Parquet row is not the row that the metadata promises at its place."""


class MissingFileError(StreamingError, FileNotFoundError):
    """A file that the dataset's metadata names does not exist."""


class ShardingError(StreamingError, ValueError):
    """The episodes cannot be dealt so that every rank and worker gets at least one."""


class ByteBudgetError(StreamingError, ValueError):
    """An episode's compressed bytes do not fit into the byte budget."""


class Mp4Error(StreamingError, ValueError):
    """Base class of the errors about the structure of an MP4 file."""


class Mp4FormatError(Mp4Error):
    """The boxes of an MP4 file are truncated, inconsistent or not MP4 at all."""


class Mp4UnsupportedError(Mp4Error):
    """The MP4 file is valid, but of a form that is refused rather than misread."""


class SidecarError(StreamingError, ValueError):
    """A sidecar file is damaged, incomplete or belongs to other data."""


class BadVideoFilesError(SidecarError):
    """Video files are missing, damaged or unsupported; the message lists each with its reason.

    Args:
        message: The list.
        paths: Paths of the bad files, relative to the data root.
    """

    def __init__(self, message: str, paths: tuple[str, ...] = ()) -> None:
        """Keeps the paths beside the message; a DataLoader raises a worker's error with the message alone."""
        super().__init__(message, paths)
        self.paths = paths

    def __str__(self) -> str:
        """Gives the message alone."""
        return str(self.args[0])


class SidecarLockTimeoutError(SidecarError, TimeoutError):
    """Another process held the lock of the same sidecar for longer than the timeout."""


class FetchError(StreamingError, OSError):
    """Bytes could not be read from storage as planned (short read, changed file, ...)."""


class AccessError(FetchError, PermissionError):
    """Storage refuses: credentials are missing or wrong, or what they open does not exist."""


class ChangedFileError(FetchError):
    """A file was replaced while the run was reading it."""


class FrameTimestampError(StreamingError, ValueError):
    """The frame nearest to a wanted time is farther away than the tolerance."""


class DecodeError(StreamingError, RuntimeError):
    """The decoder did not return the frame that the sample table promises."""


class DecodeStallError(DecodeError, TimeoutError):
    """A decode did not return within its time limit."""


class UnsupportedVersionError(StreamingError, RuntimeError):
    """An installed package does not look as the integration with it expects."""


class UnprotectedLoaderError(StreamingError, RuntimeError):
    """accelerate reads a dataset in a way that would lose the episodes of other processes."""


class PipelineClosedError(StreamingError, RuntimeError):
    """The pipeline was closed while a caller waited on it."""
