"""One clock for a data set, its copies and the processes that read it."""

import copy
import multiprocessing
import pickle
from functools import partial
from typing import Any

import dill
import pytest
from torch.utils.data import DataLoader

from avalanche_vilco.core.clock import Clock


def test_copies_share_it() -> None:
    data = {"clock": Clock()}
    data["clock"].set(2, 1)
    assert copy.deepcopy(data)["clock"] is copy.copy(data["clock"]) is data["clock"]
    assert data["clock"].now == (2, 1)


@pytest.mark.parametrize("library", [pickle, dill])
def test_a_pickle_comes_back_to_the_clock_of_its_name(library: Any) -> None:
    written = library.dumps(Clock("named"))
    clock = Clock("named")
    clock.set(3, 4)
    first, second = library.loads(written), library.loads(written)
    assert first is second is clock
    clock.set(5, 6)
    assert first.now == (5, 6)


def test_a_pickle_without_a_clock_of_its_name_keeps_what_it_said() -> None:
    clock = Clock("lost")
    clock.set(3, 4)
    written = pickle.dumps([clock, clock])
    del clock
    first, second = pickle.loads(written)
    assert first is second
    assert first.now == (3, 4)
    assert pickle.loads(pickle.dumps(first)) is first


def test_clocks_without_a_name_are_told_apart() -> None:
    one, other = Clock(), Clock()
    one.set(1, 1)
    assert other.now == pickle.loads(pickle.dumps(other)).now == (0, 0)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_know_the_epoch_even_those_that_stay_alive(method: str) -> None:
    clock = Clock("read by workers")
    loader = DataLoader(
        [0, 1],
        # Reads clock.now in the worker, which can import no function of a test.
        collate_fn=partial(getattr, clock, "now"),
        num_workers=1,
        persistent_workers=True,
        multiprocessing_context=multiprocessing.get_context(method),
    )
    for epoch in (1, 2):
        clock.set(0, epoch)
        assert set(loader) == {(0, epoch)}
