"""Areas and intersection over union (IoU) of boxes ``(x1, y1, x2, y2)`` in pixels.

Boxes are continuous: a box from 0 to 10 is 10 wide.
"""

import torch
from torch import Tensor


def box_area(boxes: Tensor, *, signed: bool = False) -> Tensor:
    """Area of boxes; 0 for those that are reversed or not finite.

    :param boxes: ``(..., 4)`` as (x1, y1, x2, y2).
    :param signed: True counts width times height of reversed boxes too, which is
        negative if one of them is: the public evaluator of visual queries does so.
    :return: areas, >= 0 unless signed, without the last dimension.
    :raises ValueError: if the last dimension is not 4.
    """
    _check_boxes("boxes", boxes)
    if signed:
        area = (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])
        return area.where(area.isfinite(), 0)
    return _area(boxes, boxes)


def box_intersection(a: Tensor, b: Tensor) -> Tensor:
    """Area that aligned boxes share; 0 if one is reversed or not finite.

    :param a: boxes, ``(..., 4)`` as (x1, y1, x2, y2).
    :param b: boxes, ``(..., 4)``, broadcastable against ``a``.
    :return: areas >= 0, in the broadcast shape without the last dimension.
    :raises ValueError: if the last dimension of an argument is not 4.
    """
    _check_boxes("a", a)
    _check_boxes("b", b)
    shared = _area(torch.maximum(a, b), torch.minimum(a, b))
    return torch.where((box_area(a) > 0) & (box_area(b) > 0), shared, 0)


def box_iou(a: Tensor, b: Tensor) -> Tensor:
    """IoU of aligned boxes; 0, never NaN, if one has no area.

    >>> box_iou(torch.tensor([0., 0., 4., 4.]), torch.tensor([0., 0., 4., 2.])).item()
    0.5

    :param a: boxes, ``(..., 4)`` as (x1, y1, x2, y2).
    :param b: boxes, ``(..., 4)``, broadcastable against ``a``.
    :return: IoU in [0, 1], in the broadcast shape without the last dimension.
    :raises ValueError: if the last dimension of an argument is not 4.
    """
    shared = box_intersection(a, b)
    union = box_area(a) + box_area(b) - shared
    return torch.where(union > 0, shared / torch.where(union > 0, union, 1), 0)


def _area(starts: Tensor, ends: Tensor) -> Tensor:
    """Area from the first corner of ``starts`` to the second corner of ``ends``."""
    width, height = ends[..., 2] - starts[..., 0], ends[..., 3] - starts[..., 1]
    area = width * height
    return torch.where((width > 0) & (height > 0) & area.isfinite(), area, 0)


def _check_boxes(name: str, boxes: Tensor) -> None:
    if boxes.ndim == 0 or boxes.shape[-1] != 4:
        raise ValueError(
            f"expected {name} of shape (..., 4) but got {tuple(boxes.shape)}"
        )
