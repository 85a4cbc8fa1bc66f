"""A lease ends once, when the last thing that uses the memory is gone, and not before."""

from __future__ import annotations

import gc
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from lerobot_streaming.memory import leases
from lerobot_streaming.memory.leases import lend

if TYPE_CHECKING:
    from collections.abc import Callable


def _from_array(ended: Callable[[], None]) -> torch.Tensor:
    return torch.from_numpy(lend(np.ndarray(6, np.float32, buffer=bytearray(24)), ended))


def _from_view(ended: Callable[[], None]) -> torch.Tensor:
    return torch.frombuffer(lend(memoryview(bytearray(24)), ended), dtype=torch.float32)


USERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "itself": lambda tensor: tensor,
    "view": lambda tensor: tensor.view(2, 3)[1:],
    "detached": lambda tensor: tensor.detach(),
    "storage": lambda tensor: tensor.untyped_storage(),
    "array": lambda tensor: tensor.numpy(),
    "view of an array": lambda tensor: tensor.numpy().reshape(2, 3)[:, 1],
    "memoryview of an array": lambda tensor: memoryview(tensor.numpy()),
    "dlpack": np.from_dlpack,
    "other dtype": lambda tensor: tensor.view(torch.uint8),
    "list": list,
    "gradient": lambda tensor: (tensor.requires_grad_() * tensor).sum(),
}


@pytest.mark.parametrize("make", [_from_array, _from_view])
@pytest.mark.parametrize("use", USERS.values(), ids=USERS)
def test_whatever_uses_the_memory_keeps_it(
    make: Callable[[Callable[[], None]], torch.Tensor], use: Callable[[torch.Tensor], Any]
) -> None:
    ends: list[int] = []
    tensor = make(lambda: ends.append(1))
    user = use(tensor)
    del tensor
    assert not ends
    del user
    assert ends == [1]


def test_memory_that_moved_elsewhere_is_given_back() -> None:
    ends: list[int] = []
    tensor = _from_array(lambda: ends.append(1)).copy_(torch.arange(6.0))
    tensor.share_memory_()  # type: ignore[no-untyped-call]  # torch gives it no types.
    assert ends == [1]
    assert torch.equal(tensor, torch.arange(6.0))


def test_a_tensor_in_a_cycle_of_garbage_keeps_its_memory_until_it_is_collected() -> None:
    class Holder:
        def __init__(self, tensor: torch.Tensor) -> None:
            self.tensor = tensor
            self.own = self

        def __del__(self) -> None:
            seen.append((list(ends), self.tensor.tolist()))

    ends: list[int] = []
    seen: list[Any] = []
    tensor = _from_array(lambda: ends.append(1)).fill_(3)
    gc.disable()
    try:
        Holder(tensor)
        del tensor
        assert not ends
    finally:
        gc.enable()
    gc.collect()
    assert seen == [([], [3.0] * 6)]
    assert ends == [1]


def test_ends_in_many_threads_are_each_told_once() -> None:
    before = len(leases._running)
    ends: list[tuple[int, int]] = []

    def work(thread: int) -> None:
        for number in range(300):
            tensor = _from_array(lambda number=number: ends.append((thread, number)))  # type: ignore[misc]
            view = tensor[1:]
            del tensor
            view.add_(1)
            del view

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ends) == [(thread, number) for thread in range(4) for number in range(300)]
    assert len(leases._running) == before
