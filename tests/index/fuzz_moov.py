"""Seeded fuzz of the MP4 reader: `python -m tests.index.fuzz_moov --mutations 200000 --seed 0`.

Every mutated or random file must either be read, with a table that lies inside the file, or be refused with
one of our own errors. What is found slowest, and the peak of the process's memory, are printed.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from dataclasses import dataclass, field
from time import perf_counter

from lerobot_streaming.cli.process_facts import peak_rss_mib
from lerobot_streaming.errors import Mp4Error
from lerobot_streaming.index import codec_extradata
from tests.index.videos import EDITED, index, video
from tests.support.scheduling import leave_realtime

_NAMES = ("h264 b-frames", "h264 faststart", "h264 audio first", "mpeg4", "hevc hvc1", "av1", "vp9")
_EDITED = (
    *("co64", "stz2 4", "stz2 16", "version 1 headers", "two sample entries", "64-bit mdat", "empty edit"),
    "uniform stsz",
)
_WORDS = (0, 1, 2, 7, 8, 9, 16, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x10000)
_KINDS = (
    b"moov",
    b"trak",
    b"mdia",
    b"stbl",
    b"stsz",
    b"stz2",
    b"stco",
    b"co64",
    b"stts",
    b"ctts",
    b"elst",
    b"stss",
)


@dataclass(slots=True)
class Outcome:
    """What came of the mutations: count by kind, and the slowest."""

    counts: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    slowest: bytes = b""


def bases() -> list[bytes]:
    """The valid files that are mutated, small: most of their bytes are `moov`."""
    made = [video(name) for name in _NAMES] + [EDITED[name]() for name in _EDITED]
    leave_realtime()  # The AV1 encoder turns it on for root.
    return made


def mutate(rng: random.Random, base: bytes) -> bytes:
    """Changes a file in one to six places, mostly in its head and in `moov`."""
    data = bytearray(base)
    moov = data.find(b"moov") - 4
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        if len(data) < 8:
            break
        whole = rng.random() < 0.1
        low, high = (0, len(data)) if whole else (max(moov, 0), min(max(moov, 0) + 1600, len(data)))
        at = min(rng.randrange(low, max(high, low + 1)), len(data) - 1)
        _change(rng, data, at)
    return bytes(data)


def _change(rng: random.Random, data: bytearray, at: int) -> None:
    kind = rng.randrange(8)
    if kind == 0:
        data[at] ^= 1 << rng.randrange(8)
    elif kind == 1:
        data[at] = rng.randrange(256)
    elif kind == 2:
        word = rng.choice(_WORDS) if rng.random() < 0.7 else rng.getrandbits(32)
        data[at - at % 4 : at - at % 4 + 4] = word.to_bytes(4, "big")
    elif kind == 3:
        del data[at : at + rng.randrange(1, 64)]
    elif kind == 4:
        data[at:at] = rng.randbytes(rng.randrange(1, 32))
    elif kind == 5:
        other = rng.randrange(len(data))
        data[at:at] = data[other : other + rng.randrange(1, 200)]
    elif kind == 6:
        data[at : at + 4] = rng.choice(_KINDS)
    else:
        del data[at:]


def random_moov(rng: random.Random) -> bytes:
    """A file whose `moov` holds random bytes that are dressed as boxes."""
    body = b""
    for _ in range(rng.randrange(1, 12)):
        content = rng.randbytes(rng.randrange(0, 60))
        size = len(content) + 8 if rng.random() < 0.8 else rng.choice(_WORDS)
        body += size.to_bytes(4, "big") + rng.choice(_KINDS) + content
    return b"\0\0\0\x08mdat" + (len(body) + 8).to_bytes(4, "big") + b"moov" + body


def fuzz(mutations: int, seed: int) -> Outcome:
    """Reads mutated and random files.

    Args:
        mutations: Number of files.
        seed: The same seed gives the same files.

    Returns:
        What came of them.

    Raises:
        AssertionError: A table does not lie inside its file. Any error that is not ours comes through.
    """
    rng, outcome, sources = random.Random(seed), Outcome(), bases()
    for _ in range(mutations):
        data = random_moov(rng) if rng.random() < 0.1 else mutate(rng, rng.choice(sources))
        begin = perf_counter()
        try:
            source = index(data)
            fault = source.samples.find_fault(len(data))
            assert fault is None, fault
            codec_extradata(source.header.stsd_body)
            outcome.counts["read"] += 1
        except Mp4Error as error:
            outcome.counts[type(error).__name__] += 1
        spent = perf_counter() - begin
        if spent > outcome.slowest_s:
            outcome.slowest_s, outcome.slowest = spent, data
    return outcome


def main() -> None:
    """Runs the fuzz from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutations", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    begin = perf_counter()
    outcome = fuzz(options.mutations, options.seed)
    peak = peak_rss_mib() or 0.0
    print(
        f"{options.mutations} files in {perf_counter() - begin:.0f} s: {dict(outcome.counts)}; slowest "
        f"{outcome.slowest_s * 1e3:.1f} ms ({len(outcome.slowest)} bytes), peak memory {peak:.0f} MiB"
    )


if __name__ == "__main__":
    main()
