"""Random draws with an address."""

from __future__ import annotations

import numpy as np


def seeded_stream(seed: int, *address: int) -> np.random.Generator:
    """One independent stream per address, so that a record's draws are its own."""
    sequence = np.random.SeedSequence(seed, spawn_key=address)
    return np.random.Generator(np.random.PCG64(sequence))
