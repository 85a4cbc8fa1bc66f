"""Sidecars are written and checked in bounded memory, and stay what other readers of the format know."""

from __future__ import annotations

import dataclasses
import gc
import io
import json
import tracemalloc
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from lerobot_streaming.errors import SidecarError
from lerobot_streaming.index import (
    SampleTable,
    Sidecar,
    SidecarIdentity,
    SourceFile,
    build_sidecar,
    open_sidecar,
    sidecar_writer,
    write_sidecar,
)
from lerobot_streaming.index.builder import check_and_flush
from lerobot_streaming.index.merge import merge_sidecars
from lerobot_streaming.index.sidecar_walk import is_as_written, listed_files, walk_sidecar
from lerobot_streaming.storage.base import FileStat, RangeReader
from tests.index.random_tables import assert_equal
from tests.index.videos import EDITED, index, video

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PRINTS = {"videos/b}}.mp4": "1", 'a "quoted".mp4': "2"}
IDENTITY = SidecarIdentity("owner/dätaset", "v3.0", "/data/ü", PRINTS)
COLUMNS = {
    "sample_pts": "pts_seconds",
    "sample_durations": "durations",
    "sample_composition_offsets": "composition_offsets",
    "sample_sizes": "sizes",
    "sample_offsets": "offsets",
    "sync_samples": "sync_samples",
}


def sources() -> list[SourceFile]:
    return [
        index(video("h264 b-frames"), 'a "quoted".mp4'),
        index(EDITED["two sample entries"](), "videos/b}}.mp4"),
        index(video("h264 all-intra"), "videos/é\udcff\n.mp4"),
    ]


def many(count: int) -> list[SourceFile]:
    first = sources()[0]
    return [dataclasses.replace(first, path=f"videos/file-{i:06}.mp4") for i in range(count)]


def sizes_of(files: list[SourceFile]) -> dict[str, int]:
    return {source.path: source.size for source in files}


def written_at_once(
    identity: SidecarIdentity, files: list[SourceFile], change: Callable[[str], str] = str
) -> bytes:
    """Writes a sidecar with Python's and NumPy's own means, everything in memory."""
    mp4s: list[dict[str, Any]] = []
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:

        def add(name: str, array: Any) -> None:
            buffer = io.BytesIO()
            np.save(buffer, array)
            info = zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0))
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = 0o600 << 16
            archive.writestr(info, buffer.getvalue())

        for i, source in enumerate(files):
            for name, column in COLUMNS.items():
                add(f"{i}/{name}", getattr(source.samples, column)[:])
            header = dataclasses.asdict(source.header)
            codec, faststart = header.pop("codec"), header.pop("faststart")
            ftyp, stsd_body = header.pop("ftyp").hex(), header.pop("stsd_body").hex()
            place = {"file_path": source.path, "file_size": source.size}
            mp4 = {**place, "ftyp": ftyp, **header, "faststart": faststart, "codec": codec}
            mp4["stsd_body"] = stsd_body
            if source.description_index is not None:
                runs = np.unique(source.description_index, return_counts=True)
                mp4["sample_description_runs"] = [[int(n), int(k)] for k, n in zip(*runs, strict=True)]
            mp4s.append({**place, "mp4": mp4})
        sidecar = {
            "schema_version": 3,
            "repo_id": identity.repo_id,
            "revision": identity.revision,
            "data_root": identity.data_root,
            "source_files": [{"path": source.path, "size": source.size} for source in files],
            "source_fingerprints": dict(sorted(identity.source_fingerprints.items())),
        }
        manifest = {"version": 3, "sidecar": sidecar, "files": mp4s}
        add("manifest_json", np.array(change(json.dumps(manifest)).encode()))
    return target.getvalue()


@pytest.mark.parametrize("files", [[], sources()[:1], sources(), many(150)], ids=len)
def test_the_bytes_are_those_of_one_that_is_written_at_once(tmp_path: Path, files: list[SourceFile]) -> None:
    path = tmp_path / "s.npz"
    for identity in (IDENTITY, dataclasses.replace(IDENTITY, source_fingerprints={})):
        write_sidecar(path, identity, iter(files))
        assert path.read_bytes() == written_at_once(identity, files)
        assert list(tmp_path.iterdir()) == [path]
        assert is_as_written(path, identity, sizes_of(files))
        assert dict(listed_files(path, identity)) == sizes_of(files)


def test_a_walk_gives_what_a_reader_gives(tmp_path: Path) -> None:
    path = tmp_path / "s.npz"
    write_sidecar(path, IDENTITY, sources())
    reader: Sidecar = open_sidecar(path, IDENTITY)
    found = list(walk_sidecar(path, IDENTITY, reader.files))
    assert [source.path for source in found] == list(reader.files)
    for source in found:
        assert source.header == reader.header(source.path)
        assert_equal(source, reader.source(source.path))


def test_other_data_and_damage_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "s.npz"
    write_sidecar(path, IDENTITY, sources())
    sizes = sizes_of(sources())
    first = next(iter(sizes))
    changes: list[dict[str, Any]] = [
        {"repo_id": "x"},
        {"revision": "x"},
        {"data_root": "x"},
        {"source_fingerprints": {}},
        {"source_fingerprints": {**PRINTS, "z": "1"}},
    ]
    for change in changes:
        assert not is_as_written(path, dataclasses.replace(IDENTITY, **change), sizes)
    others = [{}, {**sizes, "z.mp4": 1}, {**sizes, first: 1}, {k: sizes[k] for k in sizes if k != first}]
    for other in others:
        assert not is_as_written(path, IDENTITY, other)
    good = path.read_bytes()
    random = np.random.default_rng(0)
    for place in random.integers(0, len(good), 150).tolist():
        path.write_bytes(good[:place])
        assert not is_as_written(path, IDENTITY, sizes)
        path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        assert not is_as_written(path, IDENTITY, sizes)
    with pytest.raises(SidecarError, match=r"s\.npz"):
        check_and_flush(path, IDENTITY, sizes)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"timescale": ', '"timescale": -'),
        ('"timescale": ', '"timescale":  '),
        ('"codec": "avc1"', '"codec": "avc1'),
        ('"codec": "avc1"', '"codec": "avc1", "new": []'),
        ('"faststart": false', '"faststart": 0'),
        ('"sample_description_runs": [[', '"sample_description_runs": [[1, 1], ['),
        ('], "source_fingerprints"', '],  "source_fingerprints"'),
        ('{"file_path"', '[{"file_path"'),
        ('}}, {"file_path"', '}} {"file_path"'),
        ('}}, {"file_path"', '}}, []{"file_path"'),
        ("}}]}", "}}"),
        ("}}]}", "}}]} "),
    ],
)
def test_another_manifest_is_noticed(tmp_path: Path, old: str, new: str) -> None:
    # Every checksum is right: only the text is another one.
    path = tmp_path / "s.npz"
    path.write_bytes(written_at_once(IDENTITY, sources(), lambda text: text.replace(old, new)))
    assert path.read_bytes() != written_at_once(IDENTITY, sources())
    assert not is_as_written(path, IDENTITY, sizes_of(sources()))


def test_arrays_that_do_not_fit_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "s.npz"
    for sizes in (np.full(30, 1 << 40), np.zeros(29, np.int64)):
        files = sources()
        samples = dataclasses.replace(files[0].samples, sizes=sizes)
        files[0] = dataclasses.replace(files[0], samples=samples)
        write_sidecar(path, IDENTITY, files)
        assert not is_as_written(path, IDENTITY, sizes_of(files))
        with pytest.raises(SidecarError, match="quoted"):
            check_and_flush(path, IDENTITY, sizes_of(files))


def test_an_entry_of_many_pieces_is_read_in_time(tmp_path: Path) -> None:
    path = tmp_path / "s.npz"
    n = 200_000
    column = np.zeros(n, np.int64)
    samples = SampleTable(np.zeros(n), column, column, column, column, np.arange(n))
    index = np.resize(np.array([1, 2], np.int32), n)
    files = [dataclasses.replace(sources()[0], samples=samples, description_index=index)]
    write_sidecar(path, IDENTITY, files)
    assert is_as_written(path, IDENTITY, sizes_of(files))


def test_a_manifest_that_no_reader_would_take_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sidecar_writer, "MAX_MEMBER_BYTES", 1500)
    write_sidecar(tmp_path / "s.npz", IDENTITY, sources()[:1])
    with pytest.raises(SidecarError, match="too many video files"):
        write_sidecar(tmp_path / "s.npz", IDENTITY, sources())
    assert list(tmp_path.iterdir()) == [tmp_path / "s.npz"]


def test_a_valid_sidecar_of_another_program_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "s.npz"
    write_sidecar(path, IDENTITY, sources())
    with np.load(path, allow_pickle=False) as archive:
        arrays: dict[str, Any] = dict(archive)
    manifest = arrays.pop("manifest_json")
    np.savez_compressed(path, manifest_json=manifest, **arrays)
    sizes = sizes_of(sources())
    assert not is_as_written(path, IDENTITY, sizes)
    check_and_flush(path, IDENTITY, sizes)
    arrays["0/sample_offsets"] = arrays["0/sample_offsets"] + (1 << 40)
    np.savez_compressed(path, manifest_json=manifest, **arrays)
    with pytest.raises(SidecarError, match="beyond the end"):
        check_and_flush(path, IDENTITY, sizes)


class OneVideo(RangeReader):
    """Has the same video at every path."""

    def __init__(self) -> None:
        self.content = video("h264 b-frames")

    @property
    def root(self) -> str:
        return "/data"

    def stat(self, path: str) -> FileStat:
        del path
        return FileStat(len(self.content), "1")

    def read_into(self, path: str, offset: int, view: memoryview) -> None:
        del path
        view[:] = self.content[offset : offset + len(view)]

    def close(self) -> None:
        pass


def peak_growth(act: Callable[[int], Callable[[], object]], few: int, more: int) -> float:
    """Bytes that the peak of the memory taken by an action grows with each file."""
    peaks = []
    for count in (5, few, more):  # The first one pays for what is made once.
        work = act(count)
        gc.collect()
        tracemalloc.start()
        try:
            work()
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    return (peaks[2] - peaks[1]) / (more - few)


def test_the_memory_of_a_build_does_not_grow_with_its_files(tmp_path: Path) -> None:
    reader = OneVideo()

    def act(count: int) -> Callable[[], object]:
        files = {f"videos/file-{i:06}.mp4": len(reader.content) for i in range(count)}
        return lambda: build_sidecar(tmp_path / "s.npz", IDENTITY, files, reader, workers=2)

    # One pointer a file to sort them, and what buffers differ by; entries in memory take 8 kB a file.
    assert peak_growth(act, 100, 400) < 500


def split(folder: Path, files: list[SourceFile], count: int, *, step: bool) -> list[Path]:
    """Writes parts that follow each other, or of every COUNTth file."""
    parts = []
    for number in range(count):
        first, last = (number * len(files) // count, (number + 1) * len(files) // count)
        mine = files[number::count] if step else files[first:last]
        parts.append(folder / f"part-{number}.npz")
        write_sidecar(parts[-1], IDENTITY.restrict(source.path for source in mine), mine)
    return parts


@pytest.mark.parametrize("step", [False, True])
def test_merged_parts_are_one_build(tmp_path: Path, step: bool) -> None:
    files = sorted([*sources(), *many(10)], key=lambda source: source.path)
    parts = split(tmp_path, files, 3, step=step)
    with np.load(parts[1], allow_pickle=False) as archive:  # One comes from another program.
        arrays: dict[str, Any] = dict(archive)
    np.savez_compressed(parts[1], **arrays)
    merge_sidecars(tmp_path / "whole.npz", IDENTITY, sizes_of(files), parts)
    assert (tmp_path / "whole.npz").read_bytes() == written_at_once(IDENTITY, files)


def test_the_memory_of_a_merge_does_not_grow_with_its_files(tmp_path: Path) -> None:
    def act(count: int) -> Callable[[], object]:
        files = many(count)
        parts = split(tmp_path, files, 2, step=False)
        sizes = sizes_of(files)
        return lambda: merge_sidecars(tmp_path / "whole.npz", IDENTITY, sizes, parts)

    # The names and sizes of one part, and where each file is.
    assert peak_growth(act, 100, 400) < 700
