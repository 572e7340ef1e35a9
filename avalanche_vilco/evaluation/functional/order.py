"""Sorting by integer keys, which is several times faster than by floats."""

import numpy as np
import torch
from torch import Tensor

from avalanche_vilco.evaluation.functional.references import Reference


def best_first(values: Tensor, reference: Reference | None = None) -> Tensor:
    """Order of the last dimension from the highest value down.

    Values that tie keep the order given and NaN comes last. With a reference the later
    of a tie comes first and NaN too, as in ``argsort()[::-1]`` of the public
    evaluators, whose order of ties among more than 16 values depends on the version of
    NumPy and the processor.

    :param values: numbers of any shape.
    :param reference: public evaluator to reproduce, None for our own rule.
    :return: places, int64 in the shape of ``values``.
    """
    if values.is_floating_point():
        rank_of_nan = -torch.inf if reference is None else torch.inf
        values = values.masked_fill(values.isnan(), rank_of_nan)
    keys = _descending_keys(values)
    if reference is None:
        return by_number(keys)
    return values.shape[-1] - 1 - by_number(keys.flip(-1))


def by_number(numbers: Tensor) -> Tensor:
    """Stable ascending order of the last dimension.

    :param numbers: integers.
    :return: places, int64 in the shape of ``numbers``.
    """
    if numbers.is_cpu and numbers.numel():
        # Both libraries sort by digits, so fewer digits are faster; of two bytes,
        # NumPy sorts a few thousand numbers ten times as fast as torch.
        low, high = (int(end) for end in numbers.aminmax())
        if low >= -(1 << 15) and high < 1 << 15:
            places = np.argsort(numbers.short().numpy(), axis=-1, kind="stable")
            return torch.from_numpy(places)
        if low >= -(1 << 31) and high < 1 << 31:
            numbers = numbers.int()
    return numbers.sort(dim=-1, stable=True).indices


def _descending_keys(values: Tensor) -> Tensor:
    """Integers that ascend as ``values`` descend and tie as they tie."""
    if not values.is_floating_point():
        return ~values.long()
    if values.dtype != torch.float64:
        values = values.float()
    # Adding 0 turns -0.0, whose bits differ, into 0.0.
    bits = (values + 0.0).view(
        torch.int64 if values.dtype == torch.float64 else torch.int32
    )
    return ~torch.where(bits < 0, bits ^ torch.iinfo(bits.dtype).max, bits)
