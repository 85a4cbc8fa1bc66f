"""Reads single members of an NPZ archive (a ZIP of NPY arrays) without trusting it and without pickles.

`numpy.load` and `ZipFile.open` share one file position between threads and forked processes, and allocate
what a header claims. Here each member is one positioned read, a bounded decompression and a strict header.
"""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from typing import TYPE_CHECKING

from lerobot_streaming.errors import SidecarError
from lerobot_streaming.index.npy import parse_array
from lerobot_streaming.index.tables import MAX_SAMPLES

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

MAX_MEMBER_BYTES = MAX_SAMPLES * 8 + 65536
_LOCAL_HEADER_BYTES = 30

ZIP_ERRORS = (
    zipfile.BadZipFile,
    ValueError,
    EOFError,
    NotImplementedError,
    RuntimeError,
    struct.error,
    KeyError,
)
"""What `zipfile` raises on damaged archives."""


class NpzArchive:
    """An open NPZ archive. Any number of threads, and forked children, may read members at once."""

    def __init__(self, path: Path) -> None:
        """Opens the archive and reads its directory.

        Args:
            path: The archive.

        Raises:
            SidecarError: It cannot be opened or is not a ZIP archive.
        """
        self.path = path
        self._fd = -1
        try:
            with path.open("rb") as file, zipfile.ZipFile(file) as archive:
                self._members = {info.filename: info for info in archive.infolist()}
                # The directory and the members come from the same open file, even if it is being replaced.
                self._fd = os.dup(file.fileno())
                self._size = os.fstat(self._fd).st_size
        except OSError as error:
            raise SidecarError(f"cannot open sidecar '{path}': {error}") from error
        except ZIP_ERRORS as error:
            raise SidecarError(
                f"sidecar '{path}' is not an NPZ archive ({error}); delete it, it will be built again"
            ) from error

    def close(self) -> None:
        """Closes the archive; reading afterwards is an error."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        """Closes the archive when it is collected."""
        if getattr(self, "_fd", -1) >= 0:
            self.close()

    def array(self, name: str, dtype: str, *, scalar: bool = False) -> NDArray[np.generic]:
        """Reads one member.

        Args:
            name: Array name, without `.npy`.
            dtype: Expected NumPy type, such as `<i8`; for text `S`, whatever its length.
            scalar: True: a 0-d array is expected, not a 1-d one.

        Returns:
            The array, read-only.

        Raises:
            SidecarError: The member is missing, damaged, or of another type or shape.
        """
        data = self._member(f"{name}.npy")
        try:
            return parse_array(data, dtype, scalar=scalar)
        except ValueError as error:
            raise self._fault(name, str(error)) from error

    def _member(self, name: str) -> bytes:
        info = self._members.get(name)
        if info is None:
            raise self._fault(name, "is missing")
        packed, wanted = info.compress_size, info.file_size
        if info.flag_bits & 1 or info.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
            raise self._fault(name, "is encrypted or compressed in an unknown way")
        if wanted > MAX_MEMBER_BYTES or packed > self._size:
            raise self._fault(name, f"claims {wanted} bytes, more than the limit of {MAX_MEMBER_BYTES}")
        local = self._read(info.header_offset, _LOCAL_HEADER_BYTES, name)
        if local[:4] != b"PK\x03\x04":
            raise self._fault(name, "is not where the archive's directory says")
        name_bytes, extra_bytes = struct.unpack_from("<HH", local, 26)
        start = info.header_offset + _LOCAL_HEADER_BYTES + name_bytes + extra_bytes
        data = self._read(start, packed, name)
        if info.compress_type == zipfile.ZIP_DEFLATED:
            try:
                data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, wanted + 1)
            except zlib.error as error:
                raise self._fault(name, f"cannot be decompressed ({error})") from error
        if len(data) != wanted or zlib.crc32(data) != info.CRC:
            raise self._fault(name, "is damaged (its checksum or length differs)")
        return data

    def _read(self, offset: int, length: int, name: str) -> bytes:
        if self._fd < 0:
            raise SidecarError(f"sidecar '{self.path}' is closed")
        try:
            data = os.pread(self._fd, length, offset)
        except (OSError, OverflowError) as error:
            raise self._fault(name, f"cannot be read ({error})") from error
        if len(data) != length:
            raise self._fault(name, "is cut off")
        return data

    def _fault(self, name: str, fault: str) -> SidecarError:
        return SidecarError(
            f"member '{name}' of sidecar '{self.path}' {fault}; delete the file, it will be built again"
        )
