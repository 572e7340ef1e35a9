"""Temporal intersection over union (tIoU) of windows ``(start, end)``."""

import torch
from torch import Tensor


def tiou(a: Tensor, b: Tensor) -> Tensor:
    """TIoU of aligned windows.

    Only windows that overlap have a tIoU above 0. A window that is reversed, of
    length zero or not finite overlaps nothing, not even itself: its tIoU is 0 and
    never NaN. The unit does not matter as long as both arguments share it.

    :param a: windows, ``(..., 2)`` as (start, end).
    :param b: windows, ``(..., 2)``, broadcastable against ``a``.
    :return: tIoU in [0, 1], in the broadcast shape without the last dimension.
    :raises ValueError: if the last dimension of an argument is not 2.
    """
    _check_windows("a", a)
    _check_windows("b", b)
    overlap = torch.minimum(a[..., 1], b[..., 1]) - torch.maximum(a[..., 0], b[..., 0])
    # Windows that overlap fill their hull, whose length takes one rounding where
    # the sum of both lengths less the overlap takes three: equal windows give 1.0.
    hull = torch.maximum(a[..., 1], b[..., 1]) - torch.minimum(a[..., 0], b[..., 0])
    valid = is_proper(a) & is_proper(b) & (overlap > 0) & hull.isfinite()
    return torch.where(valid, overlap / torch.where(valid, hull, 1), 0)


def pairwise_tiou(a: Tensor, b: Tensor) -> Tensor:
    """TIoU of every window of ``a`` with every window of ``b``.

    :param a: windows, ``(..., N, 2)`` as (start, end).
    :param b: windows, ``(..., M, 2)``; leading dimensions broadcast against ``a``.
    :return: tIoU in [0, 1], ``(..., N, M)``; degenerate windows as in :func:`tiou`.
    :raises ValueError: if the last dimension of an argument is not 2.
    """
    return tiou(a.unsqueeze(-2), b.unsqueeze(-3))


def is_proper(windows: Tensor) -> Tensor:
    """Tell which windows are finite and end after their start.

    :param windows: ``(..., 2)`` as (start, end).
    :return: bool, without the last dimension.
    """
    return (windows[..., 1] > windows[..., 0]) & windows.isfinite().all(dim=-1)


def _check_windows(name: str, windows: Tensor) -> None:
    if windows.ndim == 0 or windows.shape[-1] != 2:
        raise ValueError(
            f"expected {name} of shape (..., 2) but got {tuple(windows.shape)}"
        )
