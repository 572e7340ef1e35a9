"""Tensors kept in memory once read, up to a number of bytes."""

from __future__ import annotations

from operator import attrgetter

from cachetools import LRUCache
from torch import Tensor


class TensorCache(LRUCache):
    """The tensors used last, up to a number of bytes; a pickle holds none of them.

    :param max_bytes: of all tensors together, at least 0.
    """

    def __init__(self, max_bytes: int) -> None:
        super().__init__(max_bytes, getsizeof=attrgetter("nbytes"))

    def has_room(self, tensor: Tensor) -> bool:
        """Whether a tensor fits in without taking another's place."""
        return self.currsize + tensor.nbytes <= self.maxsize

    def __reduce__(self) -> tuple[type[TensorCache], tuple[float]]:
        return type(self), (self.maxsize,)
