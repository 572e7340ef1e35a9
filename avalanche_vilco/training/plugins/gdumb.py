"""GDumb with a memory that is filled."""

from __future__ import annotations

from avalanche.training import plugins as stock

from avalanche_vilco.training.storage_policy import TargetShareBuffer


class GDumbPlugin(stock.GDumbPlugin):
    """Training from scratch on a balanced memory.

    :param mem_size: samples kept, shared equally by class-balancing targets; what one
        with few samples leaves goes to the others.
    """

    def __init__(self, mem_size: int = 200) -> None:
        super().__init__(mem_size)
        self.storage_policy = TargetShareBuffer(mem_size)
