"""The state that torchdata's `StatefulDataLoader` keeps of every worker."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest

from lerobot_streaming.errors import OptionError
from tests.dataset.loops import everything, flat, indices, loader, make

if TYPE_CHECKING:
    from tests.support.datasets import Shelf

# Forked workers start at once; that spawned ones work too is shown where it matters. Python 3.12 warns of any
# fork of a process that runs threads, and torch alone starts some.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # More workers than cores.
]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_torchdatas_loader_continues_at_every_place(shelf: Shelf, num_workers: int) -> None:
    whole = loader(make(shelf), stateful=True, num_workers=num_workers)
    states = [whole.state_dict()]
    first = []
    for batch in whole:
        first.append(batch["index"].tolist())
        states.append(whole.state_dict())
    second = indices(whole)
    assert sorted(flat(first)) == sorted(flat(second)) == everything(make(shelf))
    # At the start, in the middle, at the last batch and after it.
    for step in (0, 1, 3, len(first) - 1, len(first)):
        resumed = loader(make(shelf), stateful=True, num_workers=num_workers)
        resumed.load_state_dict(pickle.loads(pickle.dumps(states[step])))
        got = indices(resumed)
        if step == len(first):
            # The epoch was at its end: either this pass has nothing left of it, or it is the next one.
            got = got or indices(resumed)
            assert got == second
            continue
        assert got == first[step:], step
        assert indices(resumed) == second


def test_torchdatas_loader_with_persistent_workers_over_epochs(shelf: Shelf) -> None:
    whole = loader(make(shelf), stateful=True, persistent_workers=True)
    passes = [indices(whole), indices(whole)]
    iterator = iter(whole)
    third = [next(iterator)["index"].tolist() for _ in range(2)]
    state = whole.state_dict()
    third += indices(iterator)
    resumed = loader(make(shelf), stateful=True, persistent_workers=True)
    resumed.load_state_dict(state)
    assert indices(resumed) == third[2:]
    assert third not in passes


def test_torchdatas_loader_after_a_resume_by_the_ranks_offset(shelf: Shelf) -> None:
    """The worker that was next in turn goes first, so workers draw other shares than their own."""
    expected = indices(loader(make(shelf)))
    dataset = make(shelf)
    dataset.load_state_dict({"epoch": 0, "offset": 6, "batch_size": 2})
    resumed = loader(dataset, stateful=True)
    iterator = iter(resumed)
    assert [next(iterator)["index"].tolist() for _ in range(2)] == expected[3:5]
    state = resumed.state_dict()
    del iterator
    again = loader(make(shelf), stateful=True)
    again.load_state_dict(state)
    assert indices(again) == expected[5:]

    # Asked before the first batch, the workers tell the rank's state, and take it back.
    dataset = make(shelf)
    state = {**dataset.state_dict(), "offset": 6, "batch_size": 2}
    state["settings"]["num_workers"] = 2
    dataset.load_state_dict(state, num_workers=2)
    state = loader(dataset, stateful=True).state_dict()
    again = loader(make(shelf), stateful=True)
    again.load_state_dict(state)
    assert indices(again) == expected[3:]


def test_a_workers_state_is_for_the_same_settings_only(shelf: Shelf) -> None:
    whole = loader(make(shelf), stateful=True)
    iterator = iter(whole)
    next(iterator)
    state = whole.state_dict()
    del iterator
    other = loader(make(shelf, seed=7), stateful=True)
    other.load_state_dict(state)
    with pytest.raises(OptionError, match=r"one DataLoader worker .*seed: 42 then, 7 now"):
        next(iter(other))
