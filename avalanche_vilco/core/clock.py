"""Which epoch training has come to, for datasets that draw something of a sample."""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor


class Clock:
    """Experience and epoch that training has come to, (0, 0) at first.

    A dataset that draws something of a sample when it is read keeps a clock, and draws
    from a seed, :attr:`now` and the sample's id alone. Strategies of ours set the clock
    of ``benchmark.datasets[...]`` before each epoch. Subsets, views and copies share
    it.

    What a pickle brings back reads the clock that was made last under the name of the
    saved one, so that a resumed run's memory, which holds copies of the data set, knows
    the epoch like the benchmark. Where there is none, as in a loader's worker process,
    it reads the saved one.

    :param name: the same in each process; empty: only the pickle's own copies share it.
    """

    def __init__(self, name: str = "") -> None:
        self.name = name
        self._address = torch.zeros(2, dtype=torch.int64)
        if name:
            _LAST[name] = self

    @property
    def now(self) -> tuple[int, int]:
        """Numbers of the experience and of its epoch."""
        experience, epoch = self._address.tolist()
        return experience, epoch

    def set(self, experience: int, epoch: int) -> None:
        """Say where training has come to.

        :param experience: number of the experience that is learnt.
        :param epoch: number of its epoch.
        """
        # Shared memory, so that workers which stay alive are told too.
        self._address.share_memory_().copy_(torch.tensor([experience, epoch]))

    def __copy__(self) -> Clock:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Clock:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self.name, self._address)


_LAST: WeakValueDictionary[str, Clock] = WeakValueDictionary()
"""The clock made last, by name."""


def _unpickled(name: str, address: Tensor) -> Clock:
    clock = _LAST.get(name)
    if clock is None:
        clock = Clock(name)
        clock._address = address
    return clock
