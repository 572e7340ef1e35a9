"""Convolution of width 3 over time with half the multiplications."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# Winograd's minimal filtering F(4, 3) (Lavin and Gray 2016, section 4.1; the points are
# 0, 1, -1, 2, -2 and infinity): four outputs of three taps take 6 products, not 12.
_KERNEL = (
    (1 / 4, 0.0, 0.0),
    (-1 / 6, -1 / 6, -1 / 6),
    (-1 / 6, 1 / 6, -1 / 6),
    (1 / 24, 1 / 12, 1 / 6),
    (1 / 24, -1 / 12, 1 / 6),
    (0.0, 0.0, 1.0),
)
_TILE = 4
_FEWEST_CHANNELS = 128
"""Below, the additions cost more than the products saved (measured on AVX-512)."""


def saves_products(x: Tensor, weight: Tensor) -> bool:
    """Whether :func:`convolve3` is the faster of two equal forms.

    On a GPU, in half precision and on few channels it is not.

    :param x: (B, T, I).
    :param weight: (O, I, 3).
    """
    return (
        x.device.type == "cpu"
        and x.dtype in (torch.float32, torch.float64)
        and x.dtype == weight.dtype
        and min(weight.shape[:2]) >= _FEWEST_CHANNELS
        and not torch.is_autocast_enabled("cpu")
    )


def convolve3(x: Tensor, valid: Tensor, weight: Tensor) -> Tensor:
    """Convolve what is valid over time, with a step of zeros on either side.

    Equal to ``conv1d`` but for rounding; it can be differentiated once.

    :param x: (B, T, I).
    :param valid: (B, T) bool, steps that do not count as zero.
    :param weight: (O, I, 3).
    :return: (B, T, O).
    """
    result: Tensor = _Convolve3.apply(x, valid, weight)  # type: ignore[no-untyped-call]
    return result


def narrow_convolve3(x: Tensor, weight: Tensor) -> Tensor:
    """Convolve to a few channels: one product, whose three parts are shifted and added.

    :param x: (B, T, I).
    :param weight: (O, I, 3), O small.
    :return: (B, T, O).
    """
    parts = F.linear(x, weight.permute(2, 0, 1).flatten(0, 1)).unflatten(-1, (3, -1))
    before, here, after = parts.unbind(2)
    return (
        here + F.pad(before[:, :-1], (0, 0, 1, 0)) + F.pad(after[:, 1:], (0, 0, 0, 1))
    )


class _Convolve3(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, valid: Tensor, weight: Tensor) -> Tensor:
        # Tiles hold half as much again as x: they are made anew in the backward pass.
        ctx.save_for_backward(x, valid, weight)
        products = torch.bmm(_tiles_of(x, valid), _kernels_of(weight))
        return _outputs_of(products.unflatten(1, (len(x), -1)), x.shape[1])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(
        ctx: Any, slope: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, valid, weight = ctx.saved_tensors
        slopes = _slopes_of(slope)
        of_x = of_weight = None
        if ctx.needs_input_grad[0]:
            tiles = torch.bmm(slopes, _kernels_of(weight).mT)
            of_x = _overlapping_sum(tiles.unflatten(1, (len(x), -1)), x.shape[1])
            of_x.mul_(valid[..., None])
        if ctx.needs_input_grad[2]:
            kernels = torch.bmm(_tiles_of(x, valid).mT, slopes)
            of_weight = torch.einsum("ij,ido->odj", x.new_tensor(_KERNEL), kernels)
        return of_x, None, of_weight


def _kernels_of(weight: Tensor) -> Tensor:
    """(O, I, 3) -> (6, I, O)."""
    return torch.einsum("ij,odj->ido", weight.new_tensor(_KERNEL), weight)


def _tiles_of(x: Tensor, valid: Tensor) -> Tensor:
    """(B, T, I) -> (6, B * N, I), N tiles of 4 steps and one on either side."""
    n_steps = x.shape[1]
    padded = x.new_empty(len(x), n_steps + 2 + -n_steps % _TILE, x.shape[2])
    padded[:, 0] = 0
    padded[:, n_steps + 1 :] = 0
    torch.mul(x, valid[..., None], out=padded[:, 1 : n_steps + 1])
    stop = padded.shape[1] - 5
    d = [padded[:, k : k + stop : _TILE] for k in range(6)]
    tiles = x.new_empty(6, *d[0].shape)
    torch.sub(d[4], d[2], alpha=5, out=tiles[0]).add_(d[0], alpha=4)
    torch.sub(d[5], d[3], alpha=5, out=tiles[5]).add_(d[1], alpha=4)
    even, odd = d[4].sub(d[2], alpha=4), d[3].sub(d[1], alpha=4)
    torch.add(even, odd, out=tiles[1])
    torch.sub(even, odd, out=tiles[2])
    torch.sub(d[4], d[2], out=even)
    torch.sub(d[3], d[1], out=odd)
    torch.add(even, odd, alpha=2, out=tiles[3])
    torch.sub(even, odd, alpha=2, out=tiles[4])
    return tiles.flatten(1, 2)


def _outputs_of(products: Tensor, n_steps: int) -> Tensor:
    """(6, B, N, O) -> (B, T, O)."""
    m = products
    ones, twos = m[1] + m[2], m[3] + m[4]
    outputs = m.new_empty(*m.shape[1:3], _TILE, m.shape[3])
    torch.add(ones, twos, out=outputs[:, :, 0]).add_(m[0])
    torch.add(ones, twos, alpha=4, out=outputs[:, :, 2])
    torch.sub(m[1], m[2], out=ones)
    torch.sub(m[3], m[4], out=twos)
    torch.add(ones, twos, alpha=2, out=outputs[:, :, 1])
    torch.add(ones, twos, alpha=8, out=outputs[:, :, 3]).add_(m[5])
    return outputs.flatten(1, 2)[:, :n_steps]


def _slopes_of(slope: Tensor) -> Tensor:
    """(B, T, O) -> (6, B * N, O), the transpose of :func:`_outputs_of`."""
    padded = F.pad(slope, (0, 0, 0, -slope.shape[1] % _TILE))
    y = padded.reshape(-1, _TILE, slope.shape[2]).unbind(1)
    slopes = slope.new_empty(6, *y[0].shape)
    slopes[0], slopes[5] = y[0], y[3]
    even, odd = y[0] + y[2], y[1] + y[3]
    torch.add(even, odd, out=slopes[1])
    torch.sub(even, odd, out=slopes[2])
    torch.add(y[0], y[2], alpha=4, out=even)
    torch.add(y[1], y[3], alpha=4, out=odd)
    torch.add(even, odd, alpha=2, out=slopes[3])
    torch.sub(even, odd, alpha=2, out=slopes[4])
    return slopes


def _overlapping_sum(v: Tensor, n_steps: int) -> Tensor:
    """(6, B, N, I) -> (B, T, I), the transpose of :func:`_tiles_of`."""
    ones, twos, lows, highs = v[1] + v[2], v[3] + v[4], v[2] - v[1], v[4] - v[3]
    whole = v.new_zeros(v.shape[1], v.shape[2] + 1, _TILE, v.shape[3])
    first, last = whole[:, :-1], whole[:, 1:]
    torch.mul(v[0], 4, out=first[:, :, 0])
    torch.add(lows, v[5], out=first[:, :, 1]).mul_(4).add_(highs, alpha=2)
    first[:, :, 2] = ones.mul(-4).sub_(twos).sub_(v[0], alpha=5)
    first[:, :, 3] = lows.add_(highs, alpha=2).add_(v[5], alpha=5).neg_()
    last[:, :, 0] += ones.add_(twos).add_(v[0])
    last[:, :, 1] += v[5]
    # The first step stands for the zero before the clip.
    return whole.flatten(1, 2)[:, 1 : n_steps + 1]
