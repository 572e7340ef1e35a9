"""Sorting by integer keys, which is several times faster than by floats.

The rule of ties of all metrics stands here: no number depends on the order in which
predictions, annotations, clips or batches come. What ties is ranked by its content, the
lower number first, and equal content may be exchanged.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from avalanche_vilco.evaluation.functional.references import Reference


def best_first(
    values: Tensor,
    reference: Reference | None = None,
    *,
    content: Sequence[Tensor] = (),
    counted: Tensor | None = None,
) -> Tensor:
    """Order of the last dimension from the highest value down.

    NaN comes last, as minus infinity does. Values that tie are ranked by ``content``,
    and what ties there too keeps the order given. With a reference the later of a tie
    comes first and NaN too, as in ``argsort()[::-1]`` of the public evaluators, whose
    order of ties among more than a few values depends on the version of NumPy and the
    processor.

    :param values: numbers of any shape.
    :param reference: public evaluator to reproduce, None for our own rule.
    :param content: numbers in the shape of ``values`` that decide ties by our own rule:
        the lower of the first comes first, then of the second, and so on, NaN last.
    :param counted: False where the order of ties does not matter, as of padding.
    :return: places, int64 in the shape of ``values``.
    """
    keys = ~_keys(values, -torch.inf if reference is None else torch.inf)
    if reference is not None:
        return values.shape[-1] - 1 - by_number(keys.flip(-1))
    if not content or not keys.numel():
        return by_number(keys)
    if not keys.is_cpu:
        return by_content(keys, *content)
    order = by_number(keys)
    ranked = keys.gather(-1, order)
    follows = F.pad(ranked[..., 1:] == ranked[..., :-1], (1, 0))
    is_tied = follows | F.pad(follows[..., 1:], (0, 1))
    if counted is not None:
        is_tied &= counted.gather(-1, order)
    # On the CPU only what ties is sorted again, in the places that it has together.
    places = is_tied.flatten().nonzero().squeeze(1)
    row_start = places // order.shape[-1] * order.shape[-1]
    source = order.flatten()[places] + row_start
    tied = (~follows).flatten().cumsum(0)[places]
    within = by_content(tied, *(column.flatten()[source] for column in content))
    order.view(-1)[places] = source[within] - row_start
    return order


def by_content(*columns: Tensor) -> Tensor:
    """Stable ascending order of the last dimension by several numbers, NaN last.

    :param columns: numbers of one shape, the most important first.
    :return: places, int64 in the shape of the columns.
    """
    *others, keys = (_keys(column, torch.inf) for column in columns)
    order = by_number(keys)
    for keys in reversed(others):
        order = order.gather(-1, by_number(keys.gather(-1, order)))
    return order


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


def _keys(values: Tensor, rank_of_nan: float) -> Tensor:
    """Integers that ascend as ``values`` do and tie as they tie."""
    if not values.is_floating_point():
        return values.long()
    values = values.masked_fill(values.isnan(), rank_of_nan)
    if values.dtype != torch.float64:
        values = values.float()
    # Adding 0 turns -0.0, whose bits differ, into 0.0.
    bits = (values + 0.0).view(
        torch.int64 if values.dtype == torch.float64 else torch.int32
    )
    return torch.where(bits < 0, bits ^ torch.iinfo(bits.dtype).max, bits)
