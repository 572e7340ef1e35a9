"""tIoU of windows given by their ends, rounded as each evaluator rounds it."""

import torch
from torch import Tensor


def hull_tiou(
    start: Tensor, end: Tensor, target_start: Tensor, target_end: Tensor
) -> Tensor:
    """TIoU of proper windows, by the length of their hull.

    Windows that overlap fill their hull, which takes one rounding where the sum of
    both lengths less the overlap takes three.

    :param start: starts of the predictions.
    :param end: their ends.
    :param target_start: starts of the targets, broadcastable.
    :param target_end: their ends.
    :return: tIoU in [0, 1].
    """
    hull = torch.maximum(end, target_end) - torch.minimum(start, target_start)
    return _overlap(start, end, target_start, target_end).div_(hull)


def summed_tiou(
    start: Tensor, end: Tensor, target_start: Tensor, target_end: Tensor
) -> Tensor:
    """TIoU as the public detection code rounds it, NaN for two windows without length.

    :param start: starts of the predictions.
    :param end: their ends.
    :param target_start: starts of the targets, broadcastable.
    :param target_end: their ends.
    :return: overlap over the sum of both lengths less the overlap.
    """
    overlap = _overlap(start, end, target_start, target_end)
    union = (target_end - target_start) + (end - start) - overlap
    return overlap.div_(union)


def _overlap(
    start: Tensor, end: Tensor, target_start: Tensor, target_end: Tensor
) -> Tensor:
    overlap = torch.minimum(end, target_end) - torch.maximum(start, target_start)
    return overlap.clamp_(min=0)
