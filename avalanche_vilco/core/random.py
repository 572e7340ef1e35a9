"""Random draws with an address, and global generators that stay as they are."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch


def seeded_stream(seed: int, *address: int) -> np.random.Generator:
    """One independent stream per address, so that a record's draws are its own."""
    sequence = np.random.SeedSequence(seed, spawn_key=address)
    return np.random.Generator(np.random.PCG64(sequence))


def generators_now() -> Callable[[], None]:
    """Note the global generators of torch (CPU and CUDA), NumPy and Python.

    :return: puts them back to where they are now.
    """
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None

    def put_back() -> None:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)
        elif torch.cuda.is_initialized():
            # Nothing was drawn before there was a context.
            for generator in torch.cuda.default_generators:
                generator.manual_seed(generator.initial_seed())

    return put_back


@contextmanager
def generators_kept() -> Iterator[None]:
    """Leave the global generators as they were, whatever is drawn and raised inside."""
    put_back = generators_now()
    try:
        yield
    finally:
        put_back()
