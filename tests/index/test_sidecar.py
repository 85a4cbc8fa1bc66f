from __future__ import annotations

import json
import pickle
import threading
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lerobot_streaming.errors import SidecarError
from lerobot_streaming.index import Sidecar, SidecarIdentity, SourceFile, open_sidecar, write_sidecar
from tests.index.videos import EDITED, index, video

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

COMMIT = "a" * 40
IDENTITY = SidecarIdentity("owner/dataset", "v3.0", f"hf://datasets/owner/dataset@{COMMIT}")
MEMBERS = ("sample_pts", "sample_durations", "sample_composition_offsets", "sample_sizes", "sample_offsets")


def sources() -> list[SourceFile]:
    return [
        index(video("h264 b-frames"), "videos/a.mp4"),
        index(video("h264 all-intra"), "videos/b.mp4"),
        index(EDITED["two sample entries"](), "videos/c.mp4"),
    ]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_sidecar(tmp_path / "s.npz", IDENTITY, sources())
    return tmp_path / "s.npz"


def equal(one: SourceFile, other: SourceFile) -> bool:
    fields = SourceFile.__slots__
    assert fields == ("path", "size", "header", "samples", "description_index")
    same = (one.path, one.size, one.header) == (other.path, other.size, other.header)
    indices = (one.description_index, other.description_index)
    same &= all(k is None for k in indices) or bool(np.array_equal(*indices))  # type: ignore[arg-type]
    for name in type(one.samples).__slots__:
        a, b = getattr(one.samples, name), getattr(other.samples, name)
        same &= a.dtype == b.dtype and bool((a == b).all())
    return same


def test_names_are_those_of_the_format() -> None:
    assert (
        f"{IDENTITY.repo_slug()}/{IDENTITY.file_name()}" == "owner--dataset/mp4-v3-v3.0-2dade90c10fa5ce0.npz"
    )
    pinned = SidecarIdentity("owner/dataset", COMMIT, IDENTITY.data_root)
    assert pinned.file_name() == f"mp4-v3-{'a' * 32}-642a1916c536b449.npz"
    prints = {"videos/cam/chunk-000/file-000.mp4": "ab12"}
    bucket = SidecarIdentity("owner/bucket", "v3.0", "hf://buckets/owner/bucket", prints)
    assert f"{bucket.repo_slug()}/{bucket.file_name()}" == "owner--bucket/mp4-v3-v3.0-fc238877556c246d.npz"


def test_slugs_and_cache_path(tmp_path: Path) -> None:
    odd = SidecarIdentity("//", "refs/pr/1 x", "/data")
    assert odd.repo_slug() == "dataset"
    assert odd.file_name().startswith("mp4-v3-refs-pr-1-x-")
    assert SidecarIdentity("a b/é", "/", "/data").file_name().startswith("mp4-v3-revision-")
    assert odd.cache_path(tmp_path) == tmp_path / "streaming-sidecars" / "dataset" / odd.file_name()


def test_round_trip(path: Path) -> None:
    wanted = sources()
    sidecar = open_sidecar(path, IDENTITY, {source.path: source.size for source in wanted})
    sidecar.validate()
    assert sidecar.identity == IDENTITY
    assert list(sidecar.files) == [source.path for source in wanted]
    for source in wanted:
        assert equal(sidecar.source(source.path), source)
        assert sidecar.header(source.path) == source.header
        assert sidecar.source(source.path) is sidecar.source(source.path)


def test_numpy_reads_it_as_the_format_says(path: Path) -> None:
    first = sources()[0]
    with np.load(path, allow_pickle=False) as archive:
        assert sorted(archive.files) == sorted(
            ["manifest_json", *(f"{i}/{name}" for i in range(3) for name in (*MEMBERS, "sync_samples"))]
        )
        assert archive["manifest_json"].shape == ()
        manifest = json.loads(archive["manifest_json"].item())
        assert archive["0/sample_pts"].dtype == np.float64
        assert archive["0/sync_samples"].tolist() == first.samples.sync_samples[:].tolist()
    assert manifest["version"] == manifest["sidecar"]["schema_version"] == 3
    assert manifest["sidecar"]["source_files"][0] == {"path": "videos/a.mp4", "size": first.size}
    assert manifest["sidecar"]["source_fingerprints"] == {}
    mp4 = manifest["files"][0]["mp4"]
    assert (mp4["file_path"], mp4["file_size"]) == ("videos/a.mp4", first.size)
    assert bytes.fromhex(mp4["stsd_body"]) == first.header.stsd_body
    assert bytes.fromhex(mp4["ftyp"])[4:8] == b"ftyp"
    assert {"codec": mp4["codec"], "faststart": mp4["faststart"]} == {"codec": "avc1", "faststart": False}
    assert "sample_description_runs" not in mp4


def rewrite(path: Path, change: Callable[[dict[str, Any], dict[str, Any]], None]) -> None:
    """Writes a sidecar anew the way another program would: `numpy.savez_compressed`."""
    with np.load(path, allow_pickle=False) as archive:
        arrays: dict[str, Any] = dict(archive)
    manifest = json.loads(arrays.pop("manifest_json").item())
    change(manifest, arrays)
    np.savez_compressed(path, manifest_json=np.array(json.dumps(manifest).encode()), **arrays)


def test_files_of_other_writers_and_unknown_keys_are_accepted(path: Path) -> None:
    def change(manifest: dict[str, Any], arrays: dict[str, Any]) -> None:
        manifest["new"] = manifest["sidecar"]["new"] = manifest["files"][0]["mp4"]["new"] = {"x": [1]}
        manifest["files"][0]["mp4"]["width"] = 64.0
        arrays["extra"] = np.arange(3)

    rewrite(path, change)
    sidecar = open_sidecar(path, IDENTITY)
    assert all(equal(sidecar.source(source.path), source) for source in sources())


def test_the_same_input_gives_the_same_bytes(path: Path, tmp_path: Path) -> None:
    write_sidecar(tmp_path / "again.npz", IDENTITY, iter(sources()))
    assert (tmp_path / "again.npz").read_bytes() == path.read_bytes()


def test_paths_must_ascend(tmp_path: Path) -> None:
    with pytest.raises(SidecarError, match="ascend"):
        write_sidecar(tmp_path / "s.npz", IDENTITY, reversed(sources()))


@pytest.mark.parametrize(
    ("identity", "reason"),
    [
        (SidecarIdentity("owner/other", "v3.0", IDENTITY.data_root), "repo_id"),
        (SidecarIdentity("owner/dataset", "v3.0", "/data"), "data_root"),
        (SidecarIdentity("owner/dataset", "v3.0", IDENTITY.data_root, {"videos/a.mp4": "1"}), "fingerprint"),
    ],
)
def test_another_identity_is_refused(path: Path, identity: SidecarIdentity, reason: str) -> None:
    with pytest.raises(SidecarError, match=reason):
        open_sidecar(path, identity)


def test_the_revision_is_only_a_label(path: Path) -> None:
    assert open_sidecar(path, SidecarIdentity("owner/dataset", COMMIT, IDENTITY.data_root)).files


def test_another_file_set_or_size_is_refused(path: Path) -> None:
    sizes = {source.path: source.size for source in sources()}
    for files in (
        {**sizes, "videos/a.mp4": 5},
        {**sizes, "videos/z.mp4": 5},
        {"videos/a.mp4": sizes["videos/a.mp4"]},
    ):
        with pytest.raises(SidecarError, match=r"videos/[abz]\.mp4"):
            open_sidecar(path, None, files)


def _set(name: str, value: object) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    def change(manifest: dict[str, Any], arrays: dict[str, Any]) -> None:
        del manifest
        arrays[name] = value

    return change


def _mp4(name: str, value: object) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    def change(manifest: dict[str, Any], arrays: dict[str, Any]) -> None:
        del arrays
        manifest["files"][0]["mp4"][name] = value

    return change


def _drop(manifest: dict[str, Any], arrays: dict[str, Any]) -> None:
    del manifest, arrays["0/sample_sizes"]


def _version(manifest: dict[str, Any], arrays: dict[str, Any]) -> None:
    del arrays
    manifest["version"] = 2


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_set("0/sample_sizes", np.zeros(29, np.int64)), "sample_pts has 30 entries"),
        (_set("0/sample_sizes", np.zeros(30, np.int32)), "<i8 is expected"),
        (_set("0/sample_sizes", np.zeros((30, 1), np.int64)), "plain array"),
        (_set("0/sample_sizes", np.full(30, 1 << 62)), "beyond the end"),
        (_set("0/sample_offsets", np.full(30, -1)), "negative"),
        (_set("0/sample_offsets", np.full(30, (1 << 63) - 1)), "beyond the end"),
        (_set("0/sample_pts", np.full(30, np.nan)), "not finite"),
        (_set("0/sync_samples", np.array([0, 30])), "outside"),
        (_set("0/sync_samples", np.array([5, 5])), "ascending"),
        (_drop, "missing"),
        (_version, "version is 2"),
        (_mp4("timescale", 0), "timescale"),
        (_mp4("timescale", 10**30), "outside"),
        (_mp4("timescale", True), "bool"),
        (_mp4("stsd_body", "xyz"), "hexadecimal"),
        (_mp4("codec", None), "codec"),
        (_mp4("sample_description_runs", [[5, 1]]), "sample_description_runs"),
        (_mp4("sample_description_runs", [[1 << 40, 1]]), "sample_description_runs"),
    ],
)
def test_wrong_content_is_refused(path: Path, change: Callable[..., None], reason: str) -> None:
    rewrite(path, change)
    with pytest.raises(SidecarError, match=reason):
        open_sidecar(path).validate()
    with pytest.raises(SidecarError):
        open_sidecar(path).source("videos/a.mp4")


def test_an_object_array_is_refused_and_never_unpickled(path: Path) -> None:
    rewrite(path, _set("0/sample_sizes", np.array([print], object)))
    with pytest.raises(SidecarError, match=r"type \|O"):
        open_sidecar(path).source("videos/a.mp4")


def test_a_decompression_bomb_is_refused(path: Path, tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as new:
        for info in old.infolist():
            data = old.read(info)
            new.writestr(info.filename, bytes(200 * 2**20) if info.filename == "0/sample_sizes.npy" else data)
    with pytest.raises(SidecarError, match="limit"):
        open_sidecar(bomb).source("videos/a.mp4")
    assert open_sidecar(bomb).source("videos/b.mp4").samples.num_samples == 30


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(place=st.integers(0, 1 << 20), value=st.integers(0, 255), cut=st.booleans())
def test_damaged_archives_raise_only_our_error(path: Path, place: int, value: int, cut: bool) -> None:
    write_sidecar(path, IDENTITY, sources()[:1])
    data = bytearray(path.read_bytes())
    place %= len(data)
    if cut:
        del data[place:]
    else:
        data[place] = value
    path.write_bytes(data)
    try:
        sidecar = open_sidecar(path)
        sidecar.validate()
    except SidecarError:
        return
    assert equal(sidecar.source("videos/a.mp4"), sources()[0])


def test_threads_share_it(path: Path) -> None:
    sidecar = open_sidecar(path)
    found: list[SourceFile] = []

    def work() -> None:
        found.extend(sidecar.source(name) for name in sidecar.files)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(source) for source in found}) == 3


def test_it_pickles_and_reads_on_after_its_file_was_replaced(path: Path) -> None:
    sidecar = open_sidecar(path, IDENTITY)
    copy = pickle.loads(pickle.dumps(sidecar))
    assert equal(copy.source("videos/a.mp4"), sidecar.source("videos/a.mp4"))
    other = path.with_name("other.npz")
    write_sidecar(other, IDENTITY, sources()[:1])
    other.replace(path)
    assert equal(sidecar.source("videos/b.mp4"), sources()[1])
    memory = pickle.loads(pickle.dumps(Sidecar.in_memory(IDENTITY, sources())))
    assert equal(memory.source("videos/c.mp4"), sources()[2])
    assert memory.path is None
    with pytest.raises(SidecarError, match=r"nope\.mp4"):
        memory.source("nope.mp4")
