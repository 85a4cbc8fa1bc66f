"""Batches that a worker writes once, into shared memory that it uses again.

A `DataLoader` collates in its workers with `default_collate`, which asks a public table how to collate a
type. Items of a worker are of a type of their own, a dictionary in all else, and the table says for that
type: all tensors of the batch into one shared segment. PyTorch's own way makes a new shared file for every
tensor of every batch, whose fresh pages cost about 1 ms per 640x480 picture on the machine of the
benchmarks, and passes each on by a connection of its own. The training process gets an ordinary dictionary
of ordinary tensors either way. A user's own collate function sees dictionaries and does what it likes.
"""

from __future__ import annotations

import os
from multiprocessing import reduction
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils import _pytree
from torch.utils.data import get_worker_info
from torch.utils.data._utils.collate import collate, collate_tensor_fn, default_collate_fn_map

from lerobot_streaming.memory.segments import HEADER_BYTES, SUPPORTED, Segment, SegmentPool, receive

if TYPE_CHECKING:
    from collections.abc import Sequence

_ALIGNMENT = 64


class Sample(dict[str, Any]):
    """An item that a worker hands to its `DataLoader`; elsewhere it becomes a plain dictionary."""

    def __reduce__(self) -> tuple[type[dict[str, Any]], tuple[dict[str, Any]]]:
        """Pickles and copies as a plain dictionary."""
        return dict, (dict(self),)


class _Place(NamedTuple):
    """Where a tensor lies in a segment: bytes from its start, and what is there."""

    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]


class _Written(NamedTuple):
    """A tensor of a batch, where it was written to, and where that is in this process."""

    tensor: torch.Tensor
    place: _Place
    address: int


class SharedBatch(dict[str, Any]):
    """A collated batch in the worker, on its way to the training process.

    Args:
        segment: Where its tensors lie.
    """

    def __init__(self, segment: Segment) -> None:
        """Makes an empty batch."""
        super().__init__()
        self.segment: Segment | None = segment
        self.written: dict[str, _Written] = {}

    def __reduce__(self) -> tuple[type[dict[str, Any]], tuple[dict[str, Any]]]:
        """Pickles and copies as a plain dictionary, except on its way to the training process."""
        return dict, (dict(self),)


for _kind in (Sample, SharedBatch):
    # `tree_map` in a user's collate function knows exact types only, and looks into no other.
    _pytree.register_pytree_node(
        _kind,
        _pytree.SUPPORTED_NODES[dict].flatten_fn,
        _pytree.SUPPORTED_NODES[dict].unflatten_fn,
        flatten_with_keys_fn=_pytree.SUPPORTED_NODES[dict].flatten_with_keys_fn,
    )


def _place_of(values: Sequence[Any], end: int) -> _Place | None:
    """Where the stacked values go, if they are plain tensors of one kind."""
    first = values[0]
    for value in values:
        if (
            type(value) is not torch.Tensor
            or value.is_nested
            or value.dtype != first.dtype
            or value.shape != first.shape
            or value.layout is not torch.strided
            or value.device.type != "cpu"
            or value.requires_grad
        ):
            return None
    if not first.numel() or first.is_quantized:
        return None
    return _Place(-(-end // _ALIGNMENT) * _ALIGNMENT, first.dtype, (len(values), *first.shape))


def _num_bytes(place: _Place) -> int:
    return torch.Size(place.shape).numel() * place.dtype.itemsize


def _view(memory: memoryview, place: _Place) -> torch.Tensor:
    count = torch.Size(place.shape).numel()
    tensor = torch.frombuffer(memory, dtype=place.dtype, count=count, offset=place.offset)
    # An ordinary batch is no view of anything, and may be detached in place.
    return tensor.view(place.shape).detach()


def _stays(value: Any, written: _Written | None) -> bool:
    """Whether a value is what was written; a user's collate function may have changed it, or moved it."""
    return (
        written is not None
        and value is written.tensor
        and value.data_ptr() == written.address
        and value.shape == written.place.shape
        and value.is_contiguous()
        and not value.requires_grad
    )


_pool = SegmentPool()
os.register_at_fork(before=_pool.retire_lent, after_in_child=_pool.forget)


def collate_samples(batch: Sequence[Sample], *, collate_fn_map: dict[Any, Any] | None = None) -> Any:
    """Collates the items of a worker as `default_collate` does, into memory that is used again.

    Args:
        batch: The items.
        collate_fn_map: How to collate the types of their values.

    Returns:
        The batch, with the keys in the items' order.
    """
    columns = {key: [sample[key] for sample in batch] for key in batch[0]}
    places: dict[str, _Place] = {}
    end = HEADER_BYTES
    # The table is public: whoever has tensors collated in another way gets that.
    usual = collate_fn_map is not None and collate_fn_map.get(torch.Tensor) is collate_tensor_fn
    for key, values in columns.items() if usual else ():
        place = _place_of(values, end)
        if place is not None:
            places[key] = place
            end = place.offset + _num_bytes(place)
    segment = _pool.take(end - HEADER_BYTES) if places and get_worker_info() is not None else None
    if segment is None:
        return {key: collate(values, collate_fn_map=collate_fn_map) for key, values in columns.items()}
    memory = segment.lend()
    result = SharedBatch(segment)
    for key, values in columns.items():
        place = places.get(key)
        if place is None:
            result[key] = collate(values, collate_fn_map=collate_fn_map)
        else:
            tensor = _view(memory, place)
            result[key] = torch.stack(values, 0, out=tensor)
            result.written[key] = _Written(tensor, place, tensor.data_ptr())
    return result


def _reduce(batch: SharedBatch) -> tuple[Any, ...]:
    """Sends a batch: its segment's descriptor, and where the tensors lie."""
    segment, batch.segment = batch.segment, None
    if segment is None:
        # Sent before: two receivers could not both say when the segment is free.
        return batch.__reduce__()
    staying = {key for key, value in batch.items() if _stays(value, batch.written.get(key))}
    if not staying:
        # Then the segment may be another batch's by now.
        return batch.__reduce__()
    content = {key: batch.written[key].place if key in staying else value for key, value in batch.items()}
    segment.send()
    # typeshed types DupFd's result as an integer; it is an object that is made for pickling.
    return _receive, (reduction.DupFd(segment.fd), segment.size, content)


def _receive(descriptor: Any, size: int, content: dict[str, Any]) -> dict[str, Any]:
    """Makes a batch in the receiving process."""
    memory = receive(descriptor.detach(), size)
    return {
        key: _view(memory, value) if isinstance(value, _Place) else value for key, value in content.items()
    }


def share_batches() -> bool:
    """Lets `default_collate` of this process collate samples into memory that is used again.

    Returns:
        Whether it does; then the worker's items are to be `Sample`s. It does not where the system cannot, and
        where the table already says how to collate dictionaries.
    """
    if SUPPORTED and not any(issubclass(Sample, kind) for kind in default_collate_fn_map):
        default_collate_fn_map[Sample] = collate_samples
        reduction.ForkingPickler.register(SharedBatch, _reduce)
    return default_collate_fn_map.get(Sample) is collate_samples
