from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING

import pytest

from lerobot_streaming.index import open_sidecar
from tests.index.mapped_cases import (
    Peer,
    check_equal,
    debris,
    indexes,
    opened,
    real_sources,
    renamed,
    write,
)
from tests.index.random_tables import make_source

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path, real_sources())


_DERIVE = """
hear()
mapped = open_mapped(Path(sys.argv[1]), Path(sys.argv[2]), lock_timeout_s=60)
total = sum(int(mapped.source(path).samples.sizes[:].sum()) for path in mapped.files)
say(mapped.path, mapped.path.stat().st_ino, total)
hear()
"""


def test_processes_that_derive_at_once_get_the_same_file(tmp_path: Path) -> None:
    path = write(tmp_path, [renamed(make_source(i, 3000), f"{i:03}.mp4") for i in range(60)])
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(Peer(_DERIVE, path, tmp_path)) for _ in range(3)]
        for peer in peers:
            peer.tell()
        answers = {peer.hear() for peer in peers}
    assert len(answers) == 1
    assert answers != {""}
    assert debris(tmp_path) == []
    check_equal(opened(path, tmp_path), open_sidecar(path))


_DIE = """
import os, signal
from lerobot_streaming.index import derive
encode, done = derive.encode_columns, []
def dying(record, source):
    if len(done) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    done.append(source.path)
    return encode(record, source)
derive.encode_columns = dying
open_mapped(Path(sys.argv[1]), Path(sys.argv[2]), lock_timeout_s=60)
"""


def test_a_killed_derivation_harms_nothing(path: Path, tmp_path: Path) -> None:
    with Peer(_DIE, path, tmp_path) as peer:
        assert peer.process.wait() == -signal.SIGKILL
    assert indexes(tmp_path) == []
    assert len(debris(tmp_path)) == 1
    check_equal(opened(path, tmp_path), open_sidecar(path))
    assert debris(tmp_path) == []


_SHARE = """
mapped = open_mapped(Path(sys.argv[1]), Path(sys.argv[2]), lock_timeout_s=60)
for path in mapped.files:
    mapped.source(path).samples.offsets[:]
say("ready")
hear()
pss, inside = 0, False
for row in open("/proc/self/smaps"):
    words = row.split()
    if "-" in words[0]:
        inside = words[-1] == str(mapped.path)
    elif inside and words[0] == "Pss:":
        pss += int(words[1])
say(pss)
hear()
"""


def test_processes_share_its_pages(tmp_path: Path) -> None:
    path = write(tmp_path, [renamed(make_source(i, 20_000), f"{i:03}.mp4") for i in range(20)])
    size_kib = opened(path, tmp_path).path.stat().st_size / 1024
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(Peer(_SHARE, path, tmp_path)) for _ in range(4)]
        assert [peer.hear() for peer in peers] == ["ready"] * 4
        for peer in peers:
            peer.tell()
        pss = [int(peer.hear()) for peer in peers]
    print(f"PSS of the mapping in 4 processes: {pss} KiB; the file has {size_kib:.0f} KiB")
    assert sum(pss) < 1.3 * size_kib
    assert max(pss) < 0.35 * size_kib
    assert min(pss) > 0.15 * size_kib
