"""What is received is what `default_collate` gives, whatever a user's collate function did to it."""

from __future__ import annotations

import copy
import io
import pickle
from multiprocessing import resource_sharer
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils._pytree import tree_map, tree_map_only, tree_map_with_path
from torch.utils.data import default_collate, default_convert
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map

from lerobot_streaming.memory import batches, segments
from lerobot_streaming.memory.batches import Sample, SharedBatch, share_batches
from lerobot_streaming.memory.segments import SegmentPool
from tests.memory.samples import Item, assert_same, in_segment, make_item, num_files, num_mapped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.skipif(not segments.SUPPORTED, reason="no anonymous shared memory on this system")


@pytest.fixture(autouse=True)
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[SegmentPool]:
    """Makes this process collate as a worker does, with segments of its own."""
    table = dict(default_collate_fn_map)
    monkeypatch.setattr(batches, "get_worker_info", lambda: True)
    pool = SegmentPool()
    monkeypatch.setattr(batches, "_pool", pool)
    assert share_batches()
    yield pool
    default_collate_fn_map.clear()
    default_collate_fn_map.update(table)
    pool._drop(list(pool._segments))
    # Its thread would be in the way of the forks of other tests.
    resource_sharer.stop(timeout=5)


def _plain() -> list[Item]:
    return [make_item(0, number) for number in range(3)]


def _samples() -> list[Sample]:
    return [Sample(item) for item in _plain()]


def _sent(batch: Any) -> Any:
    return pickle.loads(ForkingPickler.dumps(batch))


def _nothing(batch: Any) -> Any:
    return batch


def _nested(batch: Any) -> Any:
    return {"first": (batch, [batch["pixels"]]), "again": batch}


def _plain_dictionary(batch: Any) -> Any:
    return dict(batch)


def _sliced(batch: Any) -> Any:
    batch["pixels"] = batch["pixels"][1:, :, ::2]
    batch["state"] = batch["state"][:2]
    return batch


def _replaced(batch: Any) -> Any:
    batch["pixels"] = batch["pixels"].float() / 255
    batch["new"] = "text"
    batch["task"] = None
    del batch["depth"]
    return batch


def _renamed(batch: Any) -> Any:
    batch["image"] = batch.pop("pixels")
    return batch


def _swapped(batch: Any) -> Any:
    batch["worker"], batch["number"] = batch["number"], batch["worker"]
    return batch


def _in_place(batch: Any) -> Any:
    batch["pixels"] //= 2
    batch["depth"].mul_(3)
    return batch


def _other_shape_in_place(batch: Any) -> Any:
    batch["pixels"].unsqueeze_(0)
    batch["number"].unsqueeze_(1)
    return batch


def _transposed_in_place(batch: Any) -> Any:
    batch["square"].transpose_(1, 2)  # The shape stays the same.
    return batch


def _shorter_in_place(batch: Any) -> Any:
    batch["state"].set_(batch["state"][:1])
    return batch


def _other_data(batch: Any) -> Any:
    batch["depth"].data = batch["depth"] + 1
    return batch


def _with_gradient(batch: Any) -> Any:
    batch["depth"].requires_grad_()
    return batch


def _view_beside(batch: Any) -> Any:
    return {"view": batch["pixels"][0], "batch": batch, "other": batch["pixels"][:, 1]}


def _moved(batch: Any) -> Any:
    for value in batch.values():
        if isinstance(value, torch.Tensor):
            value.share_memory_()  # type: ignore[no-untyped-call]  # torch gives it no types.
    return batch


def _one_moved(batch: Any) -> Any:
    batch["depth"].share_memory_()
    return batch


def _tree_mapped(batch: Any) -> Any:
    return tree_map_only(torch.Tensor, lambda tensor: tensor[:2] + 1, batch)


def _tree_mapped_with_path(batch: Any) -> Any:
    return tree_map_with_path(lambda path, value: (str(path), value), batch)


def _copied(batch: Any) -> Any:
    return copy.copy(batch)


def _copied_deeply(batch: Any) -> Any:
    return copy.deepcopy(batch)


def _merged(batch: Any) -> Any:
    return batch | {"more": 1}


def _batch_in_batch(batch: Any) -> Any:
    batch["self"] = {**batch}
    return batch


CHANGES = [
    _nothing,
    _nested,
    _plain_dictionary,
    _sliced,
    _replaced,
    _renamed,
    _swapped,
    _in_place,
    _other_shape_in_place,
    _transposed_in_place,
    _shorter_in_place,
    _other_data,
    _with_gradient,
    _view_beside,
    _moved,
    _one_moved,
    _tree_mapped,
    _tree_mapped_with_path,
    _copied,
    _copied_deeply,
    _merged,
    _batch_in_batch,
]


def _without_views(value: Any) -> Any:
    """A view that was sent is none; PyTorch's own way does the same."""
    return tree_map(lambda one: one.clone() if isinstance(one, torch.Tensor) else one, value)


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_batch_arrives_as_it_was_sent(change: Callable[[Any], Any], pool: SegmentPool) -> None:
    with torch.no_grad():
        wanted = change(default_collate(_plain()))
        batch = default_collate(_samples())
        assert type(batch) is SharedBatch
        message = change(batch)
    got = _sent(message)
    wanted = pickle.loads(ForkingPickler.dumps(wanted))
    assert_same(got, wanted)
    # Collated and dropped, collated and sent: whatever comes next is not written over what was received.
    del batch, message
    for _ in range(3):
        _sent(default_collate([Sample(make_item(1, number)) for number in range(3)]))
    assert_same(got, wanted)
    del got
    assert all(segment.is_idle for segment in pool._segments)


def test_tensors_lie_in_one_segment_and_come_as_ordinary_ones() -> None:
    got = _sent(default_collate(_samples()))
    assert type(got) is dict
    assert in_segment(got["pixels"])
    tensors = [got[key] for key in ("pixels", "flag", "depth", "state", "square", "worker", "number")]
    starts = {tensor.data_ptr() - got["pixels"].data_ptr() for tensor in tensors}
    assert len(starts) == len(tensors)
    assert all(start % 64 == 0 and start < 2**16 for start in starts)
    assert all(
        tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size() for tensor in tensors
    )
    got["pixels"].detach_()
    got["depth"] += 1


@pytest.mark.parametrize(
    "dtype",
    [
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.uint16,
        torch.int16,
        torch.uint32,
        torch.int32,
        torch.uint64,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.complex64,
        torch.float8_e4m3fn,
    ],
)
def test_every_dtype_arrives_to_the_bit(dtype: torch.dtype) -> None:
    raw = torch.arange(2 * 3 * 8, dtype=torch.uint8) % 2
    values = [
        raw[:24].clone().view(dtype).view(3, -1),
        raw[24:].clone().view(dtype).view(3, -1),
        # An odd number of bytes before the next one.
    ]
    items = [
        Sample(first=torch.tensor([number]), odd=torch.zeros(5, dtype=torch.uint8), value=value)
        for number, value in enumerate(values)
    ]
    got = _sent(default_collate(items))
    assert got["value"].dtype == dtype
    assert torch.equal(got["value"].view(torch.uint8), torch.stack(values).view(torch.uint8))
    assert in_segment(got["value"])


def test_a_batch_that_is_sent_twice_arrives_twice(pool: SegmentPool) -> None:
    wanted = default_collate(_plain())
    batch = default_collate(_samples())
    first = _sent(batch)
    assert_same(first, wanted)
    assert in_segment(first["pixels"])
    del first
    # The worker still has it, and might look at it again.
    assert not any(segment.is_idle for segment in pool._segments)
    second = _sent(batch)
    assert not in_segment(second["pixels"])
    third = _sent(batch)
    del batch
    assert all(segment.is_idle for segment in pool._segments)
    _sent(default_collate([Sample(make_item(1, number)) for number in range(3)]))
    assert_same(second, wanted)
    assert_same(third, wanted)


def test_the_same_batch_twice_in_a_message_is_one_batch() -> None:
    got = _sent([default_collate(_samples())] * 2)
    assert got[0] is got[1]


def test_a_moved_batch_that_waits_is_not_sent_over_the_segment_of_another(pool: SegmentPool) -> None:
    """All its tensors moved, so its segment is free for another batch before it is sent."""
    waiting = _moved(default_collate(_samples()))
    other = default_collate([Sample(make_item(1, number)) for number in range(3)])
    got = _sent(other)
    del other
    _sent(waiting)
    third = default_collate([Sample(make_item(2, number)) for number in range(3)])
    assert_same(got, default_collate([make_item(1, number) for number in range(3)]))
    del third, waiting, got
    assert all(segment.is_idle for segment in pool._segments)


def test_a_batch_with_something_that_cannot_be_sent_harms_no_other() -> None:
    batch = default_collate(_samples())
    batch["bad"] = lambda: None
    kept = _sent(default_collate(_samples()))
    for _ in range(2):
        with pytest.raises((pickle.PicklingError, AttributeError)):
            ForkingPickler.dumps(batch)
    del batch
    for number in range(40):
        _sent(default_collate([Sample(make_item(number, 0))]))
    assert_same(kept, default_collate(_plain()))


def _by_copy(value: Any) -> Any:
    return copy.copy(value)


def _by_deepcopy(value: Any) -> Any:
    return copy.deepcopy(value)


def _by_pickle(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def _by_forking_pickler(value: Any) -> Any:
    return pickle.loads(ForkingPickler.dumps(value))


def _by_torch_save(value: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("way", [_by_copy, _by_deepcopy, _by_pickle, _by_forking_pickler, _by_torch_save])
def test_copies_are_plain_dictionaries(way: Callable[[Any], Any]) -> None:
    item = way(Sample(make_item(0, 3)))
    assert_same(item, make_item(0, 3))
    batch = default_collate(_samples())
    got = way(batch)
    assert_same(got, default_collate(_plain()))
    # And what was received copies like any other dictionary.
    assert_same(way(_sent(default_collate(_samples()))), default_collate(_plain()))


def test_items_without_batches_are_plain_dictionaries() -> None:
    converted = default_convert(Sample(make_item(0, 3)))  # type: ignore[no-untyped-call]  # torch has no types.
    assert_same(converted, make_item(0, 3))
    assert_same(_tree_mapped(Sample(state=torch.ones(3))), {"state": torch.full((2,), 2.0)})


@pytest.mark.parametrize(
    "values",
    [
        (torch.zeros(2, 3), torch.zeros(2, 4)),
        (torch.zeros(2, 3), None),
        (None, torch.zeros(2, 3)),
        (None, None),
        (torch.zeros(2), "text"),
        ([1, 2], [1]),
        ({"a": 1}, {}),
        (torch.zeros(2).to_sparse(), torch.zeros(2).to_sparse()),
        (object(), object()),
    ],
)
def test_what_cannot_be_collated_is_default_collates_own_error(
    values: tuple[Any, Any], pool: SegmentPool
) -> None:
    items = [{"good": torch.zeros(9), "bad": value} for value in values]
    with pytest.raises(Exception, match=r".") as wanted:
        default_collate(items)
    with pytest.raises(type(wanted.value)) as got:
        default_collate([Sample(item) for item in items])
    assert str(got.value) == str(wanted.value)
    del got
    assert all(segment.is_idle for segment in pool._segments)


@pytest.mark.parametrize(
    "values",
    [
        (torch.zeros(2, 3), torch.ones(3, 2).T),
        (torch.zeros(2, dtype=torch.int32), torch.ones(2)),
        (torch.zeros(2, requires_grad=True), torch.ones(2)),
        (torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(2))),
        (torch.tensor([1 + 2j]).conj(), torch.tensor([3 + 4j])),
        (torch.zeros(0, 3), torch.zeros(0, 3)),
        ("a", "b"),
        ([{"role": "user"}], [{"role": "robot"}]),
        (1.5, 2),
    ],
)
def test_unlike_values_are_collated_as_ever(values: tuple[Any, Any]) -> None:
    with torch.no_grad():
        items = [{"good": torch.zeros(9), "odd": value} for value in values]
        wanted = default_collate(items)
        got = default_collate([Sample(item) for item in items])
    assert_same(dict(got), wanted)
    assert_same(_sent(got), pickle.loads(ForkingPickler.dumps(wanted)))


def test_a_users_own_way_to_collate_tensors_is_used() -> None:
    def negated(batch: Any, *, collate_fn_map: Any = None) -> Any:
        return -collate_tensor_fn(batch, collate_fn_map=collate_fn_map)

    default_collate_fn_map[torch.Tensor] = negated
    batch = default_collate([Sample(x=torch.ones(3)), Sample(x=torch.ones(3))])
    assert type(batch) is dict
    assert batch["x"].tolist() == [[-1.0] * 3] * 2


def test_a_users_own_way_to_collate_dictionaries_is_used() -> None:
    del default_collate_fn_map[Sample]
    default_collate_fn_map[dict] = lambda batch, **_: len(batch)
    assert not share_batches()
    assert default_collate([{"x": 1}] * 3) == 3


def test_no_descriptor_and_no_mapping_is_left_behind(pool: SegmentPool) -> None:
    _sent(default_collate(_samples()))
    files, mapped = num_files(), num_mapped()
    for _ in range(100):
        _sent(default_collate(_samples()))
    # Fewer, when what an earlier test left behind has been collected meanwhile.
    assert num_files() <= files
    assert num_mapped() <= mapped
    assert len(pool) == 1
