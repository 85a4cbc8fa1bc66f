"""A segment is used again when neither side uses it any more, and never before."""

from __future__ import annotations

import errno
import os
import resource
import sys
import threading
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from lerobot_streaming.memory import segments
from lerobot_streaming.memory.segments import (
    HEADER_BYTES,
    MAX_SEGMENTS,
    Segment,
    SegmentPool,
    receive,
)
from tests.memory.samples import num_files, num_mapped

pytestmark = pytest.mark.skipif(not segments.SUPPORTED, reason="no anonymous shared memory on this system")

_SIZES = (8, 30, 32, 200, 4096)


def _tensor(memory: memoryview) -> torch.Tensor:
    return torch.frombuffer(memory, dtype=torch.uint8, offset=HEADER_BYTES)


def _write(segment: Segment, value: int) -> torch.Tensor:
    return _tensor(segment.lend()).fill_(value)


def _deliver(segment: Segment) -> torch.Tensor:
    """Sends a segment and receives it as another process does: with a descriptor and a mapping of its own."""
    segment.send()
    return _tensor(receive(os.dup(segment.fd), segment.size))


class Segments(RuleBasedStateMachine):
    """A worker writes batches, sends them or not, and both sides keep theirs for as long as they like."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = SegmentPool()
        self.written: list[tuple[Segment, torch.Tensor, int]] = []
        self.received: list[tuple[torch.Tensor, int]] = []
        self.value = 0

    def teardown(self) -> None:
        self.pool._drop(list(self.pool._segments))

    @rule(size=st.sampled_from(_SIZES), kept=st.booleans())
    def write(self, size: int, kept: bool) -> None:
        segment = self.pool.take(size)
        if segment is None:
            assert len(self.pool) == MAX_SEGMENTS
            return
        assert segment.size >= size
        self.value = (self.value + 1) % 251
        tensor = _write(segment, self.value)
        if kept:
            self.written.append((segment, tensor, self.value))

    @rule(data=st.data(), kept_here=st.booleans(), kept_there=st.booleans())
    def deliver(self, data: st.DataObject, kept_here: bool, kept_there: bool) -> None:
        unsent = [number for number, (_, _, value) in enumerate(self.written) if value >= 0]
        if unsent:
            number = data.draw(st.sampled_from(unsent))
            segment, tensor, value = self.written.pop(number)
            got = _deliver(segment)
            assert bool((got == value).all())
            if kept_there:
                self.received.append((got, value))
            if kept_here:
                # It stays as it is, and is not sent a second time.
                self.received.append((tensor, value))

    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        if self.received:
            self.received.pop(data.draw(st.integers(0, len(self.received) - 1)))

    @rule(data=st.data())
    def drop_unsent(self, data: st.DataObject) -> None:
        if self.written:
            self.written.pop(data.draw(st.integers(0, len(self.written) - 1)))

    @rule()
    def fork(self) -> None:
        # What the child would keep is all that is there now.
        segments._retire_received()
        self.pool.retire_lent()

    @invariant()
    def nothing_was_written_over(self) -> None:
        for _, tensor, value in self.written:
            assert bool((tensor == value).all())
        for tensor, value in self.received:
            assert bool((tensor == value).all())

    @invariant()
    def there_are_few(self) -> None:
        assert len(self.pool) <= MAX_SEGMENTS


Segments.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestSegments = Segments.TestCase


def test_a_segment_serves_again_when_both_sides_are_done() -> None:
    pool = SegmentPool()
    first = pool.take(100)
    assert first is not None
    idle = []  # After each step: mypy takes a property for a constant.
    written = _write(first, 1)
    idle.append(first.is_idle)
    received = _deliver(first)
    del written
    idle.append(first.is_idle)
    other = pool.take(100)
    part = received[50:]
    del received
    idle.append(first.is_idle)
    del part
    idle.append(first.is_idle)
    assert idle == [False, False, False, True]
    assert other is not first
    assert pool.take(100) is first
    pool._drop(list(pool._segments))


def test_a_batch_that_was_never_sent_gives_its_segment_back() -> None:
    pool = SegmentPool()
    segment = pool.take(100)
    assert segment is not None
    written = _write(segment, 1)
    assert pool.take(100) is not segment
    del written
    assert pool.take(100) is segment
    pool._drop(list(pool._segments))


def test_a_receiver_that_forks_takes_its_segments_out_of_use() -> None:
    pool = SegmentPool()
    segment = pool.take(100)
    assert segment is not None
    _write(segment, 7)
    received = _deliver(segment)
    segments._retire_received()
    del received
    assert not segment.is_idle
    assert segment.is_retired
    assert pool.take(100) is not segment
    assert segment not in pool._segments
    pool._drop(list(pool._segments))


def test_what_was_given_back_before_a_fork_stays_in_use() -> None:
    pool = SegmentPool()
    segment = pool.take(100)
    assert segment is not None
    _write(segment, 7)
    _deliver(segment)
    segments._retire_received()
    pool.retire_lent()
    assert pool.take(100) is segment
    pool._drop(list(pool._segments))


def test_batches_may_come_and_go_in_other_threads_while_one_forks() -> None:
    segment = Segment(10)
    stop = threading.Event()

    come = [0, 0]

    def come_and_go(number: int) -> None:
        kept = []
        while not stop.is_set():
            kept.append(receive(os.dup(segment.fd), segment.size))
            come[number] += 1
            if len(kept) > 40:
                del kept[:20]

    interval = sys.getswitchinterval()
    threads = [threading.Thread(target=come_and_go, args=(number,)) for number in range(2)]
    try:
        sys.setswitchinterval(1e-6)
        for thread in threads:
            thread.start()
        while min(come) < 2000:
            # What `os.fork` calls; an exception there is printed, and the fork goes on.
            segments._retire_received()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)
        segment.close()


def test_batches_of_another_size_get_a_segment_that_is_not_far_too_large() -> None:
    pool = SegmentPool()
    large = pool.take(1000)
    assert large is not None
    assert pool.take(250) is large  # The last, smaller batch of a pass.
    small = pool.take(249)
    assert small is not None
    assert small.size == 249
    # Nothing used the large one, and it was of no use: it is gone.
    assert pool._segments == [small]
    pool._drop([small])


def test_only_few_idle_segments_stay() -> None:
    files, mapped = num_files(), num_mapped()
    pool = SegmentPool()
    kept = []
    for _ in range(20):
        segment = pool.take(50)
        assert segment is not None
        kept.append(_write(segment, 1))
    assert len(pool) == 20
    kept.clear()
    segment = pool.take(50)
    del segment
    assert len(pool) == segments._MAX_IDLE + 1
    assert num_mapped() - mapped == len(pool)
    pool._drop(list(pool._segments))
    assert (num_files(), num_mapped()) == (files, mapped)


def test_there_is_a_most_number_of_segments() -> None:
    pool = SegmentPool()
    kept: list[Any] = []
    for _ in range(MAX_SEGMENTS):
        segment = pool.take(50)
        assert segment is not None
        kept.append(_write(segment, 1))
    assert pool.take(50) is None
    kept.pop(3)
    assert pool.take(50) is not None
    kept.clear()
    pool._drop(list(pool._segments))


def test_a_system_without_another_descriptor_gives_no_segment_and_loses_none() -> None:
    pool = SegmentPool()
    files = num_files()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The lowest free numbers decide; room for one more is not enough, since a mapping takes a second one.
    spare = os.dup(0)
    os.close(spare)
    try:
        for limit in (spare, spare + 1):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            assert pool.take(50) is None
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert num_files() == files
    assert len(pool) == 0
    segment = pool.take(50)
    assert segment is not None
    pool._drop([segment])


def test_a_receiver_that_cannot_map_closes_the_descriptor() -> None:
    segment = Segment(10)
    files = num_files()
    with pytest.raises(ValueError, match="length"):
        receive(os.dup(segment.fd), 10**6)
    assert num_files() == files
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        receive(10**6, 10)
    segment.close()
