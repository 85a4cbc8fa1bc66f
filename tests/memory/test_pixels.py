"""Memory is used again, and never while a living tensor uses it."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from lerobot_streaming.memory.pixels import _SMALLEST, PixelMemory

_SHAPES = [(_SMALLEST,), (2, _SMALLEST // 2), (_SMALLEST // 4, 3), (3, 1), (0, 7)]


class Pixels(RuleBasedStateMachine):
    """Tensors come, are sliced, and go, in any order; each keeps what was written into it."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = PixelMemory(kept_bytes=5 * _SMALLEST)
        self.living: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.written = 0

    @rule(shape=st.sampled_from(_SHAPES), is_float=st.booleans())
    def make(self, shape: tuple[int, ...], is_float: bool) -> None:
        tensor = self.memory.empty(shape, np.float32 if is_float else np.uint8)
        assert tensor.shape == shape
        assert tensor.is_contiguous()
        assert tensor.dtype == (torch.float32 if is_float else torch.uint8)
        self.written = (self.written + 1) % 251
        tensor.fill_(self.written)
        self.living.append((tensor, tensor.clone()))

    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        if self.living:
            self.living.pop(data.draw(st.integers(0, len(self.living) - 1)))

    @rule(data=st.data())
    def keep_a_part_only(self, data: st.DataObject) -> None:
        if self.living:
            number = data.draw(st.integers(0, len(self.living) - 1))
            tensor, wanted = self.living[number]
            self.living[number] = tensor[1:], wanted[1:]

    @invariant()
    def nothing_changed(self) -> None:
        for tensor, wanted in self.living:
            assert torch.equal(tensor, wanted)
        # Empty ones have no memory to share.
        starts = [tensor.untyped_storage().data_ptr() for tensor, _ in self.living if tensor.numel()]
        assert len(set(starts)) == len(starts)

    @invariant()
    def little_is_kept(self) -> None:
        assert self.memory.num_idle_bytes <= 5 * _SMALLEST


Pixels.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestPixels = Pixels.TestCase


def test_the_memory_of_an_item_that_is_gone_serves_the_next_one() -> None:
    memory = PixelMemory()
    tensor = memory.empty((3, 128, 128))
    start = tensor.data_ptr()
    assert memory.num_idle_bytes == 0
    del tensor
    assert memory.num_idle_bytes == 3 * 128 * 128
    other = memory.empty((128, 3, 32), np.float32)
    assert other.data_ptr() == start
    assert memory.num_idle_bytes == 0


def test_nothing_is_kept_beyond_the_limit() -> None:
    memory = PixelMemory(kept_bytes=2 * _SMALLEST)
    tensors = [memory.empty((_SMALLEST,)) for _ in range(5)]
    tensors.clear()
    assert memory.num_idle_bytes == 2 * _SMALLEST
    assert PixelMemory(kept_bytes=0).empty((_SMALLEST,)).shape == (_SMALLEST,)


def test_threads_never_share_memory() -> None:
    memory = PixelMemory()
    wrong: list[Any] = []

    def work(thread: int) -> None:
        kept = []
        for number in range(300):
            tensor = memory.empty((2, _SMALLEST // 2))
            tensor.fill_(thread)
            kept.append(tensor)
            if len(kept) > 1 + number % 4:
                wrong.extend(one for one in kept if not bool((one == thread).all()))
                del kept[number % 2 :]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
