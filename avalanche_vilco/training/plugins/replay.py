"""Rehearsal whose memory can be counted as the public code counts it."""

from __future__ import annotations

from typing import Annotated, Literal

from avalanche.training import plugins as stock
from avalanche.training.storage_policy import ExemplarsBuffer
from msgspec import Meta

from avalanche_vilco.core.settings import check_value
from avalanche_vilco.training.storage_policy import (
    ClassSlotBuffer,
    ExperienceShareBuffer,
)

MemoryUnit = Literal["samples", "class_slots"]
"""What the size of a memory counts."""


class ReplayPlugin(stock.ReplayPlugin):
    """Stock rehearsal whose memory is filled, with a unit.

    :param mem_size: samples kept, shared equally by experiences; what a small one
        leaves goes to the others.
    :param unit: what ``mem_size`` counts: ``"samples"``, or ``"class_slots"`` as in the
        public code, see ``ClassSlotBuffer``.
    :param memory_seed: of the draws of class slots.
    :param batch_size: of the current data; None is the strategy's.
    :param batch_size_mem: of the memory; None is the strategy's.
    :param storage_policy: what is kept, of capacity ``mem_size``; default an
        ``ExperienceShareBuffer``. Goes with the unit ``"samples"``.
    :raises ValueError: unknown unit, or a policy that does not go with it.
    """

    def __init__(
        self,
        mem_size: Annotated[int, Meta(ge=0)] = 200,
        *,
        unit: MemoryUnit = "samples",
        memory_seed: int = 0,
        batch_size: int | None = None,
        batch_size_mem: int | None = None,
        storage_policy: ExemplarsBuffer | None = None,
    ) -> None:
        check_value("unit", unit, MemoryUnit)
        if unit == "class_slots":
            if storage_policy is not None:
                raise ValueError("expected a storage_policy or class slots, got both")
            storage_policy = ClassSlotBuffer(mem_size, seed=memory_seed)
        elif storage_policy is None:
            storage_policy = ExperienceShareBuffer(mem_size)
        super().__init__(
            mem_size,
            batch_size=batch_size,
            batch_size_mem=batch_size_mem,
            storage_policy=storage_policy,
        )
