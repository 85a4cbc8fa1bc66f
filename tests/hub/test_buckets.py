"""What the real client reads from the loopback Hub's buckets and writes to them."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import pytest
from huggingface_hub import HfApi, HfFileSystem
from huggingface_hub.errors import BucketNotFoundError, HfHubHTTPError

from tests.hub.conftest import OTHER_TOKEN, READ_TOKEN, TOKEN, VIDEO
from tests.hub.test_repositories import files_of
from tests.support.hub import FaultRule, LoopbackHub, SlowFirstByte, online

if TYPE_CHECKING:
    from pathlib import Path

    import httpx

    from tests.support.hub import Bucket

pytestmark = pytest.mark.usefixtures("client")


@pytest.fixture
def bucket(hub: LoopbackHub, folder: Path) -> Bucket:
    return hub.add_bucket("owner/bucket", folder, private=True, token=TOKEN, read_token=READ_TOKEN)


def listed(prefix: str | None = None, *, recursive: bool = True) -> dict[str, Any]:
    return {
        entry.path: entry for entry in HfApi().list_bucket_tree("owner/bucket", prefix, recursive=recursive)
    }


def test_lists_objects_with_their_content_hashes(bucket: Bucket, folder: Path) -> None:
    info = HfApi().bucket_info("owner/bucket")
    assert (info.private, info.total_files) == (True, len(files_of(folder)))
    entries = listed()
    assert {path: entry.xet_hash for path, entry in entries.items()} == {
        path: found.blob.xet_hash for path, found in bucket.objects.items()
    }
    assert listed("meta").keys() == {"meta/info.json", "meta/tasks.parquet"}
    assert listed("meta", recursive=False).keys() == {"meta/info.json", "meta/tasks.parquet"}
    assert listed(recursive=False).keys() == {"README.md", "a b", "data", "meta", "videos"}
    assert listed("me").keys() == listed("meta").keys()
    assert [found.path for found in HfApi().get_bucket_paths_info("owner/bucket", [VIDEO, "nothing"])] == [
        VIDEO
    ]


def test_replacing_an_object_changes_its_hash_at_equal_size(bucket: Bucket) -> None:
    before = listed()[VIDEO]
    bucket.put(VIDEO, b"x" * before.size)
    after = listed()[VIDEO]
    assert after.size == before.size
    assert after.xet_hash != before.xet_hash
    assert HfApi().get_bucket_file_metadata("owner/bucket", VIDEO).xet_file_data.file_hash == after.xet_hash
    bucket.delete(VIDEO)
    assert VIDEO not in listed()


def test_reads_ranges(hub: LoopbackHub, bucket: Bucket, folder: Path, http: httpx.Client) -> None:
    fs = HfFileSystem(skip_instance_cache=True)
    assert fs.find("buckets/owner/bucket") == [
        f"buckets/owner/bucket/{path}" for path in sorted(files_of(folder))
    ]
    for path, content in files_of(folder).items():
        assert fs.cat_file(f"hf://buckets/owner/bucket/{path}", start=3, end=7) == content[3:7]
    assert {request.authorization for request in hub.log if request.host == "cdn"} == {None}
    answer = http.head(
        f"{hub.endpoint}/buckets/owner/bucket/resolve/{VIDEO}", headers={"Authorization": f"Bearer {TOKEN}"}
    )
    name = bucket.objects[VIDEO].blob.xet_hash
    assert answer.status_code == 302
    assert answer.headers["X-Xet-Hash"] == name
    assert answer.headers["X-Linked-ETag"] == f'"{name}"'
    assert answer.headers["X-Linked-Size"] == "300000"
    assert http.get(answer.headers["Location"], headers={"Range": "bytes=0-3"}).headers["ETag"] == f'"{name}"'


def test_syncs_a_folder_down(hub: LoopbackHub, bucket: Bucket, folder: Path, tmp_path: Path) -> None:
    bucket.put("empty", b"")
    HfApi().sync_bucket("hf://buckets/owner/bucket", str(tmp_path), quiet=True)
    assert files_of(tmp_path) == {**files_of(folder), "empty": b""}
    for request in hub.log:
        assert (request.host == "hub") == (request.authorization == f"Bearer {TOKEN}")


def test_reads_a_file_of_several_xorbs_and_a_part_of_it(
    hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.support.hub.xet._XORB", 4 << 16)
    content = b"".join(struct.pack("<I", number) for number in range(200_001))
    hub.add_bucket("owner/bucket", token=TOKEN).put("big.bin", content)
    HfApi().download_bucket_files("owner/bucket", [("big.bin", tmp_path / "big.bin")])
    assert (tmp_path / "big.bin").read_bytes() == content
    assert sum("/xorbs/" in request.path for request in hub.log) > 1
    found = HfApi().get_bucket_file_metadata("owner/bucket", "big.bin")
    route = found.xet_file_data.refresh_route
    hf_xet = pytest.importorskip("hf_xet")
    group = hf_xet.XetSession().new_download_stream_group(
        token_refresh_url=route, token_refresh_headers={"Authorization": f"Bearer {TOKEN}"}
    )
    info = hf_xet.XetFileInfo(found.xet_file_data.file_hash, found.size)
    for start, stop in [(0, 5), (70_001, 70_003), (262_143, 262_145), (300_000, 800_004)]:
        assert b"".join(group.download_stream(info, start=start, end=stop)) == content[start:stop]


@pytest.mark.parametrize("source", ["bytes", "file"])
def test_uploads(bucket: Bucket, folder: Path, tmp_path: Path, source: str) -> None:
    # Text and floats are compressed on the way, each in its own way.
    contents = {
        "new/text.txt": b"a sentence that repeats " * 20_000,
        "new/floats.bin": b"".join(struct.pack("<f", number / 7) for number in range(100_001)),
        "new/video.mp4": (folder / VIDEO).read_bytes(),
        "new/empty": b"",
    }
    add: list[tuple[str | Path | bytes, str]] = []
    for number, (path, content) in enumerate(contents.items()):
        (tmp_path / str(number)).write_bytes(content)
        add.append((content if source == "bytes" else tmp_path / str(number), path))
    HfApi().batch_bucket_files("owner/bucket", add=add, delete=["README.md"])
    got = {path: found.blob.read() for path, found in bucket.objects.items() if path.startswith("new/")}
    assert got == contents
    assert "README.md" not in bucket.objects
    fs = HfFileSystem(skip_instance_cache=True)
    assert (
        fs.cat_file("hf://buckets/owner/bucket/new/floats.bin", start=8, end=16)
        == contents["new/floats.bin"][8:16]
    )


def test_refuses_who_may_not(hub: LoopbackHub, bucket: Bucket) -> None:
    hub.add_token(OTHER_TOKEN)
    for token in (False, OTHER_TOKEN):
        with pytest.raises(BucketNotFoundError):
            HfApi(token=token).bucket_info("owner/bucket")
    with pytest.raises(BucketNotFoundError):
        HfApi().bucket_info("owner/nothing")
    with pytest.raises(HfHubHTTPError, match="403"):
        HfApi(token=READ_TOKEN).batch_bucket_files("owner/bucket", delete=[VIDEO])
    assert VIDEO in bucket.objects
    with pytest.raises(HfHubHTTPError, match="nothing: File not found"):
        HfApi().batch_bucket_files("owner/bucket", delete=["nothing"])


def test_creates_a_bucket(hub: LoopbackHub) -> None:
    hub.add_token(TOKEN, "owner")
    assert HfApi().create_bucket("owner/made", private=True).bucket_id == "owner/made"
    assert hub.state.buckets["owner/made"].private
    HfApi().create_bucket("owner/made", exist_ok=True)


def test_pages_a_listing(folder: Path) -> None:
    with LoopbackHub(page_size=2) as hub:
        hub.add_bucket("owner/bucket", folder)
        rule = hub.faults.add(FaultRule(SlowFirstByte(0.0), path="/tree$"))
        with online(hub):
            assert listed().keys() == files_of(folder).keys()
        assert rule.hits == -(-len(files_of(folder)) // 2)
