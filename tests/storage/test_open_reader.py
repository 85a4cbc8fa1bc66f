from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from lerobot_streaming.errors import OptionError
from lerobot_streaming.storage.bucket import BucketReader
from lerobot_streaming.storage.fsspec_reader import FsspecReader
from lerobot_streaming.storage.hub import HubReader
from lerobot_streaming.storage.local import LocalReader
from lerobot_streaming.storage.open_reader import open_reader, parse_bucket, parse_dataset
from tests.storage.hub_fixtures import CONTENT, TOKEN, VIDEO, HubStore

if TYPE_CHECKING:
    from pathlib import Path

COMMIT = "ab" * 20


def test_each_location_gets_its_reader(tmp_path: Path) -> None:
    for location in (tmp_path, str(tmp_path), f"file://{tmp_path}"):
        reader = open_reader(location)
        assert isinstance(reader, LocalReader)
        assert reader.root == str(tmp_path)
    with_options = open_reader(f"file://{tmp_path}", storage_options={"auto_mkdir": False})
    assert isinstance(with_options, FsspecReader)
    assert isinstance(open_reader("memory://x/y"), FsspecReader)
    dataset = open_reader(f"hf://datasets/owner/name@{COMMIT}", token=TOKEN, connections=3, subranges=2)
    assert isinstance(dataset, HubReader)
    assert dataset.root == f"hf://datasets/owner/name@{COMMIT}"
    assert (dataset._options.connections, dataset._options.subranges) == (3, 2)
    bucket = open_reader("hf://buckets/owner/bucket/", deadline_s=7)
    assert isinstance(bucket, BucketReader)
    assert bucket.root == "hf://buckets/owner/bucket"
    assert bucket._options.deadline_s == 7


def test_a_branch_is_resolved_once_to_its_commit(store: HubStore) -> None:
    commit = store.dataset.commit
    store.dataset.branch("with/slash")
    store.dataset.branch("other")
    for revision in ("", "@main", "@with%2Fslash"):
        reader = open_reader(f"hf://datasets/owner/name{revision}", token=TOKEN, endpoint=store.hub.endpoint)
        assert reader.root == f"hf://datasets/owner/name@{commit}"
        store.dataset.add_commit({VIDEO: b"newer"}, branch="other")
        assert reader.read(VIDEO, 0, 4) == CONTENT[:4]
        reader.close()


@pytest.mark.parametrize(
    ("location", "text"),
    [
        ("hf://buckets/owner/bucket/folder", "folder of a bucket.*write hf://buckets/owner/bucket"),
        ("hf://buckets/owner", "names no bucket"),
        ("hf://buckets//bucket", "names no bucket"),
        ("hf://buckets/owner/bucket@main", "names no bucket"),
        ("hf://datasets/name", "names no dataset repository"),
        ("hf://datasets/owner/name@", "names no dataset repository"),
        ("hf://datasets/owner/name/folder", "names no dataset repository"),
        ("hf://datasets/owner/name@main/folder", "folder of a repository"),
        ("hf://owner/name", "no dataset and no bucket"),
        ("hf://models/owner/name", "no dataset and no bucket"),
        ("nosuch://x", "no protocol 'nosuch'"),
        ("gs://bucket/x", "gcsfs"),
    ],
)
def test_bad_locations_say_what_to_write(location: str, text: str) -> None:
    with pytest.raises(OptionError, match=text):
        open_reader(location)


def test_numbers_out_of_range_are_refused() -> None:
    for options in ({"connections": 0}, {"subranges": 0}, {"deadline_s": 0.0}, {"timeout_s": 0.0}):
        name = next(iter(options))
        with pytest.raises(OptionError, match=f"{name} must be"):
            open_reader("hf://buckets/owner/bucket", **options)


def test_the_parsers_take_what_they_promise() -> None:
    assert parse_bucket("hf://buckets/a/b") == "a/b"
    assert parse_dataset("hf://datasets/a/b") == ("a/b", None)
    assert parse_dataset("hf://datasets/a/b@refs/convert/parquet") == ("a/b", "refs/convert/parquet")


def test_a_local_root_loads_no_network_package(tmp_path: Path) -> None:
    code = (
        "import sys; from lerobot_streaming.storage.open_reader import open_reader; "
        f"open_reader({str(tmp_path)!r}).close(); "
        "print(*[name for name in ('fsspec', 'huggingface_hub', 'httpx') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
