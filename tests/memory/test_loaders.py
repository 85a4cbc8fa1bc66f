"""Batches of real workers: each is what `default_collate` gives, and stays so for as long as it is kept."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import DataLoader, default_collate

from lerobot_streaming.memory import segments
from lerobot_streaming.memory.segments import MAX_SEGMENTS
from tests.memory.samples import (
    Item,
    Numbers,
    assert_same,
    expected,
    in_segment,
    make_item,
    num_files,
    num_mapped,
)

if TYPE_CHECKING:
    from collections.abc import Callable

# Python 3.12 warns of any fork of a process that runs threads, and torch alone starts some.
pytestmark = [
    pytest.mark.skipif(not segments.SUPPORTED, reason="no anonymous shared memory on this system"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]


def _loader(dataset: Numbers, *, method: str = "fork", num_workers: int = 2, **more: Any) -> DataLoader[Any]:
    arguments: dict[str, Any] = {"batch_size": 4, "multiprocessing_context": method, **more}
    return DataLoader(dataset, num_workers=num_workers, **arguments)


def _numbers(batches: Any) -> list[tuple[int, int]]:
    return sorted(
        pair
        for batch in batches
        for pair in zip(batch["worker"].tolist(), batch["number"].tolist(), strict=True)
    )


def _check_kept(loader: DataLoader[Any]) -> list[Any]:
    """Keeps some batches for long and others briefly, while many more come; compares them early and late."""
    rng = random.Random(0)
    whole: list[tuple[Any, Any]] = []
    parts: list[tuple[torch.Tensor, torch.Tensor]] = []
    seen = []
    for batch in loader:
        wanted = expected(batch)
        assert_same(batch, wanted)
        seen.append({key: batch[key].clone() for key in ("worker", "number")})
        if rng.random() < 0.5:
            whole.append((batch, wanted))
        elif rng.random() < 0.5:
            # Of this batch only a part of a tensor is kept.
            parts.append((batch["pixels"][1:, 1], wanted["pixels"][1:, 1]))
        del batch
        if len(whole) + len(parts) > 12:
            kept = rng.choice([whole, parts])
            if kept:
                kept.pop(rng.randrange(len(kept)))
        for got, other in whole:
            assert_same(got, other)
        for part, other in parts:
            assert torch.equal(part, other)
    return seen


def test_batches_stay_what_they_were_while_many_more_come() -> None:
    # The last batch of a worker has three items.
    seen = _check_kept(_loader(Numbers(4 * 60 + 3)))
    assert _numbers(seen) == [(worker, number) for worker in range(2) for number in range(243)]


@pytest.mark.parametrize(
    "method", [pytest.param("spawn"), pytest.param("forkserver", marks=pytest.mark.slow)]
)
def test_workers_that_are_started_otherwise(method: str) -> None:
    loader = _loader(Numbers(4 * 30 + 1), method=method, num_workers=1)
    batches = list(loader)
    assert in_segment(batches[0]["pixels"])
    for batch in batches:
        assert_same(batch, expected(batch))
    assert len(_numbers(batches)) == 121


def test_all_batches_may_be_kept_and_outlive_their_workers() -> None:
    files, mapped = num_files(), num_mapped()
    batches = list(_loader(Numbers(4 * (MAX_SEGMENTS + 10) + 2)))
    assert num_mapped() - mapped == 2 * MAX_SEGMENTS
    assert in_segment(batches[0]["pixels"])
    # The further ones come the ordinary way.
    assert not in_segment(batches[-1]["pixels"])
    for batch in batches:
        assert_same(batch, expected(batch))
    del batches, batch
    assert num_mapped() == mapped
    assert num_files() <= files + 2  # The queues of a first use of multiprocessing.


def test_batches_outlive_a_pass_that_was_broken_off_and_further_passes() -> None:
    loader = _loader(Numbers(200), persistent_workers=True)
    kept = []
    for count in (3, 1, 25, 0, 5):
        iterator = iter(loader)
        kept += [next(iterator) for _ in range(count)]
        for _ in range(count):
            next(iterator)
        del iterator
    for batch in kept:
        assert_same(batch, expected(batch))
    assert _numbers(loader) == [(worker, number) for worker in range(2) for number in range(200)]
    for batch in kept:
        assert_same(batch, expected(batch))


def test_breaking_off_leaves_no_descriptor_and_no_mapping() -> None:
    next(iter(_loader(Numbers(100))))
    files, mapped = num_files(), num_mapped()
    for _ in range(4):
        iterator = iter(_loader(Numbers(100)))
        for _ in range(5):
            next(iterator)
        del iterator
    assert num_mapped() == mapped
    assert num_files() <= files


def _small_item(worker: int, number: int) -> Item:
    """Items of changing size, which tell how many descriptors and segments their worker has."""
    # A multiple of the batch size: the shapes of a batch are alike.
    size = 300 if number // 2 % 50 < 40 else 40
    return {
        "worker": torch.tensor(worker),
        "number": torch.tensor(number),
        "noise": torch.full((size,), number % 251, dtype=torch.uint8),
        "files": torch.tensor(num_files()),
        "segments": torch.tensor(num_mapped()),
    }


@pytest.mark.parametrize("count", [300, pytest.param(20_000, marks=pytest.mark.slow)])
def test_thousands_of_batches_leave_nothing_behind(count: int) -> None:
    loader = _loader(Numbers(count, _small_item), num_workers=1, batch_size=2)
    files: list[int] = []
    mapped: list[int] = []
    parent: list[tuple[int, int]] = []
    previous = None
    for batch in loader:
        noise = batch["number"].to(torch.uint8)[:, None] if count <= 251 else (batch["number"] % 251)[:, None]
        assert bool((batch["noise"] == noise).all())
        files.append(int(batch["files"].max()))
        mapped.append(int(batch["segments"].max()))
        parent.append((num_files(), num_mapped()))
        previous = batch
    assert previous is not None
    assert in_segment(previous["noise"])
    # Two batches are prefetched, one or two are with the receiver, and one is made.
    assert max(mapped) - min(mapped) <= 12
    assert max(files[len(files) // 2 :]) <= max(files[10 : len(files) // 2]) + 4
    assert max(mapped_here for _, mapped_here in parent) - min(here for _, here in parent) <= 2
    assert max(here for here, _ in parent[10:]) - min(here for here, _ in parent[10:]) <= 3


def _identity(items: Any) -> Any:
    return items


def test_other_ways_to_collate_get_dictionaries() -> None:
    for batch in _loader(Numbers(7), collate_fn=_identity):
        for item in batch:
            assert_same(item, make_item(int(item["worker"]), int(item["number"])))
    items = list(_loader(Numbers(7), batch_size=None))
    for item in items:
        assert_same(item, make_item(int(item["worker"]), int(item["number"])))
    assert len(items) == 14


class _KeepsBatches:
    """Keeps what it collated, and gives an earlier batch again."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def __call__(self, items: Any) -> Any:
        batch = default_collate(items)
        self.kept.append((batch, {key: copy_of(value) for key, value in batch.items()}))
        for kept, copied in self.kept:
            assert_same(dict(kept), copied)
        if len(self.kept) % 3 == 0:
            return {"now": batch, "then": self.kept[-2][0]}
        return {"now": batch, "part": self.kept[0][0]["pixels"][1]}


def copy_of(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def test_a_collate_function_may_keep_batches_and_send_them_again() -> None:
    received = list(_loader(Numbers(40), collate_fn=_KeepsBatches()))
    first: dict[int, Any] = {}
    for batch in received:
        now = batch["now"]
        assert_same(now, expected(now))
        worker = int(now["worker"][0])
        first.setdefault(worker, now)
        if "then" in batch:
            assert_same(batch["then"], expected(batch["then"]))
            assert batch["then"]["number"][0] == now["number"][0] - 4
        else:
            assert torch.equal(batch["part"], first[worker]["pixels"][1])
    assert len(received) == 20


def test_the_sharing_strategy_of_the_file_system() -> None:
    sharing: Any = torch.multiprocessing  # It has no types.
    strategy = sharing.get_sharing_strategy()
    sharing.set_sharing_strategy("file_system")
    try:
        batches = list(_loader(Numbers(4 * (MAX_SEGMENTS + 3)), num_workers=1))
    finally:
        sharing.set_sharing_strategy(strategy)
    for batch in batches:
        assert_same(batch, expected(batch))


def _uneven_item(worker: int, number: int) -> Item:
    return {"good": torch.zeros(2000), "bad": torch.zeros(3 + number // 8 * (number % 2), worker + 1)}


def _missing_item(worker: int, number: int) -> Item:
    return {"good": torch.zeros(2000), "bad": None if number == 9 else torch.zeros(worker + 1)}


# Slow: PyTorch waits five seconds for a worker after an error.
@pytest.mark.slow
@pytest.mark.parametrize("make", [_uneven_item, _missing_item])
def test_items_that_cannot_be_collated_are_the_usual_error(make: Callable[[int, int], Item]) -> None:
    def outcome(*, shared: bool) -> tuple[int, type[BaseException], str]:
        count = 0
        try:
            for _ in _loader(Numbers(20, make, shared=shared), num_workers=1):
                count += 1
        except (RuntimeError, TypeError, AttributeError) as error:
            return count, type(error), str(error).strip().splitlines()[-1]
        raise AssertionError("nothing was raised")

    assert outcome(shared=True) == outcome(shared=False)
    assert outcome(shared=True)[0] == 2


def _with_pid(worker: int, number: int) -> Item:
    return {**make_item(worker, number), "pid": torch.tensor(os.getpid())}


def test_batches_outlive_a_worker_that_is_killed() -> None:
    iterator = iter(_loader(Numbers(10_000, _with_pid), prefetch_factor=4))
    kept = [next(iterator) for _ in range(9)]
    os.kill(int(kept[-1]["pid"][0]), signal.SIGKILL)
    with pytest.raises((RuntimeError, ConnectionError, FileNotFoundError)):  # noqa: PT012  As PyTorch itself.
        while True:
            kept.append(next(iterator))
    del iterator
    for batch in kept:
        del batch["pid"]
        assert_same(batch, expected(batch))


def _in_child(work: Callable[[], bool]) -> int:
    """Forks; the child ends with 0 if `work` says True."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        code = 0 if work() else 2
    finally:
        os._exit(code)


def _equals(batch: Any, wanted: Any) -> bool:
    try:
        assert_same(batch, wanted)
    except AssertionError:
        return False
    return True


def test_a_forked_process_keeps_the_batches_of_its_parent() -> None:
    iterator = iter(_loader(Numbers(4 * 60)))
    batches = [next(iterator) for _ in range(4)]
    wanted = [expected(batch) for batch in batches]
    come, go = os.pipe()

    def work() -> bool:
        os.close(go)
        os.read(come, 1)  # Until the parent has let go of its batches, and got many more.
        return all(_equals(one, other) for one, other in zip(batches, wanted, strict=True))

    pid = _in_child(work)
    os.close(come)
    batches.clear()
    rest = [batch["number"].clone() for batch in iterator]
    os.close(go)
    assert os.waitpid(pid, 0)[1] == 0
    assert len(rest) == 116


class _Forks:
    """Forks a process in the worker while a batch is there, and lets it look at the batch much later."""

    def __init__(self) -> None:
        self.calls = 0
        self.child = 0
        self.pipe = (-1, -1)

    def __call__(self, items: Any) -> Any:
        self.calls += 1
        batch = default_collate(items)
        if self.calls == 3:
            wanted = {key: copy_of(value) for key, value in batch.items()}
            self.pipe = os.pipe()

            def work() -> bool:
                os.close(self.pipe[1])
                os.read(self.pipe[0], 1)
                return _equals(dict(batch), wanted)

            self.child = _in_child(work)
            os.close(self.pipe[0])
        if self.calls == 25:
            os.close(self.pipe[1])
            batch["status"] = os.waitpid(self.child, 0)[1]
        return batch


def test_a_process_that_a_worker_forks_keeps_the_workers_batch() -> None:
    statuses = []
    for batch in _loader(Numbers(4 * 30), num_workers=1, collate_fn=_Forks()):
        statuses += [batch.pop("status")] if "status" in batch else []
        assert_same(batch, expected(batch))
    assert statuses == [0]


def test_a_batch_may_be_passed_on_to_another_process() -> None:
    context = multiprocessing.get_context("fork")
    iterator = iter(_loader(Numbers(4 * 30)))
    batch = next(iterator)
    wanted = expected(batch)
    queue = torch.multiprocessing.get_context("fork").Queue()
    answers = context.Queue()

    def receive() -> None:
        got = queue.get()
        answers.put("received")
        answers.put(_equals(got, wanted) and queue.get() == "look" and _equals(got, wanted))

    process = context.Process(target=receive)
    process.start()
    queue.put(batch)
    assert answers.get(timeout=60) == "received"
    assert_same(batch, wanted)
    del batch
    for later in iterator:
        assert_same(later, expected(later))
    queue.put("look")
    assert answers.get(timeout=60) is True
    process.join()


_SCRIPT = """
import torch
from torch.utils.data import DataLoader
from tests.memory.samples import Numbers, expected, assert_same
iterator = iter(DataLoader(Numbers(400), batch_size=4, num_workers=2, multiprocessing_context="fork"))
batch = next(iterator)
cycle = [next(iterator)]
cycle.append(cycle)
class Late:
    def __del__(self, batch=next(iterator)):
        assert batch["pixels"].shape == (4, 3, 24, 40)
torch.late = Late()
"""


def test_a_script_may_end_while_it_has_batches() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _SCRIPT], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_two_loaders_at_a_time_do_not_mix_their_batches() -> None:
    pairs = zip(_loader(Numbers(80)), _loader(Numbers(80), batch_size=8), strict=False)
    kept = [batch for pair in pairs for batch in pair]
    assert len(kept) == 40
    for batch in kept:
        assert_same(batch, expected(batch))
