from __future__ import annotations

import mmap
import os

import pytest

from lerobot_streaming.cli.process_facts import pss_mib
from tests.benchmarks import smaps
from tests.benchmarks.memory import growth

SMAPS = """\
55d0-55f0 r-xp 00001000 fe:00 1234                       /usr/bin/python3.12
Size:                128 kB
Pss:                  64 kB
Private_Clean:         8 kB
Private_Dirty:         4 kB
VmFlags: rd ex mr mw me
7f00-7f01 rw-p 00000000 00:00 0
Pss:                2048 kB
Pss_Dirty:          2048 kB
Private_Dirty:      1024 kB
7f01-7f02 rw-s 00000000 00:1a 77                         /dev/shm/torch_12_34 (deleted)
Pss:                 512 kB
Private_Dirty:       256 kB
"""


def test_mappings_are_read_and_added_up() -> None:
    assert list(smaps.parse(SMAPS)) == [
        ("/usr/bin/python3.12", 64, 12),
        ("", 2048, 1024),
        ("/dev/shm/torch_12_34 (deleted)", 512, 256),  # noqa: S108
    ]
    kinds = smaps.add_up(SMAPS)
    assert kinds[smaps.HEAP] == (2.0, 1.0)
    assert kinds[smaps.SHARED] == (0.5, 0.2)
    assert kinds[smaps.LIBRARIES].pss_mib == 0.1
    assert list(kinds) == list(smaps.KINDS)
    assert list(smaps.parse("")) == []


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("", smaps.HEAP),
        ("[heap]", smaps.HEAP),
        ("[anon: Go heap]", smaps.HEAP),
        ("/memfd:torch (deleted)", smaps.SHARED),
        ("/dev/zero (deleted)", smaps.SHARED),
        ("/x/av.libs/libdav1d-1.so.7", smaps.FFMPEG),
        ("/x/site-packages/av/frame.abi3.so", smaps.FFMPEG),
        ("/usr/lib/libavcodec.so.61 (deleted)", smaps.FFMPEG),
        ("/x/torch/lib/libtorch_cpu.so", smaps.TORCH),
        ("/usr/lib/libc.so.6", smaps.LIBRARIES),
        ("/home/me/streaming-indexes/a/index.bin", smaps.INDEX),
        ("/data/file-000.parquet", smaps.FILES),
    ],
)
def test_every_mapping_has_a_kind(name: str, kind: str) -> None:
    assert smaps.kind_of(name) == kind


@pytest.mark.skipif(not os.path.exists("/proc/self/smaps"), reason="Linux only")  # noqa: PTH110
def test_the_kinds_of_this_process_add_up_to_its_memory() -> None:
    size = 64 * 2**20
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as room:
        before = smaps.breakdown(os.getpid())[smaps.HEAP]
        for place in range(0, size, mmap.PAGESIZE):
            room[place] = 1
        kinds = smaps.breakdown(os.getpid())
        assert kinds[smaps.HEAP].private_mib - before.private_mib == pytest.approx(64, abs=4)
        assert sum(share.pss_mib for share in kinds.values()) == pytest.approx(pss_mib(os.getpid()), rel=0.05)


def test_growth_counts_from_the_second_epoch() -> None:
    epochs = [{"workers": [{"pss_mib": size}, {"pss_mib": size + 20}]} for size in (10, 90, 99, 100)]
    found = growth(epochs)
    assert (found["from_mib"], found["to_mib"], found["mib"], found["percent"]) == (100, 110, 10, 10)
    assert (found["from_epoch"], found["to_epoch"]) == (2, 4)
