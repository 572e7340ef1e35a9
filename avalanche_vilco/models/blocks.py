"""Building blocks, time-major: sequences are (B, T, D), masks (B, T) bool."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from avalanche_vilco.ops.convolution import (
    convolve3,
    narrow_convolve3,
    saves_products,
)


class MaskedConv1d(nn.Conv1d):
    """Convolution of width 3 over (B, T, D) that sees zeros beyond a clip's end.

    With stride s, output step t is centred on input step s * t.
    """

    def __init__(self, in_channels: int, out_channels: int, **options: Any) -> None:
        super().__init__(in_channels, out_channels, 3, padding=1, **options)

    def forward(self, x: Tensor, valid: Tensor) -> Tensor:  # type: ignore[override]
        """Convolve.

        :param x: (B, T, in_channels).
        :param valid: (B, T) bool.
        :return: (B, T / stride, out_channels); steps beyond the clip's end are not
            cleared.
        """
        is_plain = self.stride == (1,) and self.groups == 1
        if is_plain and saves_products(x, self.weight):
            y = convolve3(x, valid, self.weight)
            return y if self.bias is None else y + self.bias
        masked = x * valid[..., None].to(x.dtype)
        if is_plain and 2 * self.out_channels <= self.in_channels:
            y = narrow_convolve3(masked, self.weight)
            return y if self.bias is None else y + self.bias
        return super().forward(masked.transpose(1, 2)).transpose(1, 2)


class ConvNormReLU(nn.Module):
    """Convolution, LayerNorm over channels, ReLU."""

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.conv = MaskedConv1d(in_dim, out_dim, bias=False)
        self.norm = nn.LayerNorm(out_dim)

    def forward(self, x: Tensor, valid: Tensor) -> Tensor:
        """(B, T, in_dim), (B, T) -> (B, T, out_dim)."""
        return F.relu(self.norm(self.conv(x, valid)))


class FeedForward(nn.Sequential):
    """Two linear layers with GELU between."""

    def __init__(self, dim: int, *, expansion: int = 4, dropout: float = 0.0) -> None:
        super().__init__(
            nn.Linear(dim, expansion * dim),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(expansion * dim, dim),
            nn.Dropout(dropout),
        )


class ConvSelfAttention(nn.Module):
    """Self-attention after a depthwise convolution.

    That brings local context and, with stride 2, halves the sequence.

    :param dim: width D.
    :param n_heads: heads; must divide dim.
    :param stride: 1 or 2.
    :param span: odd number of output steps that each attends to, around its own;
        None: all of the clip's.
    :raises ValueError: the span is even or below 1.
    """

    def __init__(
        self, dim: int, n_heads: int, *, stride: int = 1, span: int | None = None
    ) -> None:
        super().__init__()
        if span is not None and (span < 1 or span % 2 == 0):
            raise ValueError(f"expected an odd span of at least 1 but got {span}")
        self.n_heads = n_heads
        self.span = span
        self.conv = MaskedConv1d(dim, dim, stride=stride, groups=dim, bias=False)
        self.norm = nn.LayerNorm(dim)
        self.query_key_value = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Tensor, valid: Tensor, valid_out: Tensor) -> Tensor:
        """Attend.

        :param x: (B, T, D).
        :param valid: (B, T) bool.
        :param valid_out: (B, T / stride) bool.
        :return: (B, T / stride, D).
        """
        local = self.norm(self.conv(x, valid))
        parts = self.query_key_value(local).chunk(3, -1)
        if self.span is None or self.span >= 2 * x.shape[1] - 1:
            return self.out(attend(parts, valid_out[:, None], self.n_heads))
        radius = self.span // 2
        return self.out(_attend_nearby(parts, valid_out, self.n_heads, radius))


class CrossAttention(nn.Module):
    """Attention from video steps to text tokens.

    The tokens may be shared by the batch (first dim 1): then keys and values are
    computed once.
    """

    def __init__(self, dim: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.query = nn.Linear(dim, dim)
        self.key_value = nn.Linear(dim, 2 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Tensor, tokens: Tensor, valid_tokens: Tensor) -> Tensor:
        """Attend.

        :param x: (B, T, D).
        :param tokens: (B or 1, L, D).
        :param valid_tokens: (B or 1, L) bool, at least one True a row.
        :return: (B, T, D).
        """
        key, value = self.key_value(tokens).chunk(2, dim=-1)
        if tokens.shape[1] * self.n_heads < x.shape[2]:
            return self._of_few(x, key, value, valid_tokens)
        query, seen = self.query(x), valid_tokens[:, None]
        if len(tokens) == len(valid_tokens) == 1:
            # (B, T, D) -> (1, B * T, D): no copies of keys and values for each clip.
            query = query.flatten(0, 1)[None]
        attended = attend((query, key, value), seen, self.n_heads)
        return self.out(attended.view_as(x))

    def _of_few(self, x: Tensor, key: Tensor, value: Tensor, valid: Tensor) -> Tensor:
        """The same in fewer products, if tokens x heads are fewer than channels.

        Steps are many and tokens few: the projections of queries and of the output are
        applied to keys and values, once a token, instead of once a step.
        """
        # (B or 1, S, D) -> (B or 1, S, H, D / H)
        key, value = (part.unflatten(-1, (self.n_heads, -1)) for part in (key, value))
        key = key * key.shape[-1] ** -0.5
        rows = self.query.weight.unflatten(0, (self.n_heads, -1))
        keys = torch.einsum("bshd,hdc->bchs", key, rows)
        shift = torch.einsum("bshd,hd->bhs", key, self.query.bias.view(rows.shape[:2]))
        shift = shift.masked_fill(~valid[:, None], -torch.inf)
        columns = self.out.weight.unflatten(1, (self.n_heads, -1))
        values = torch.einsum("bshd,chd->bhsc", value, columns)
        # (B, T, H * S)
        scores = x @ keys.flatten(2) + shift.flatten(1)[:, None]
        weights = scores.unflatten(-1, shift.shape[1:]).softmax(dim=-1).flatten(2)
        return weights @ values.flatten(1, 2) + self.out.bias


class CrossModalBlock(nn.Module):
    """Pre-norm transformer block over video steps that looks at the text.

    :param dim: width D.
    :param n_heads: heads.
    :param stride: 2 halves the sequence.
    :param dropout: of the feed-forward part.
    :param span: as in :class:`ConvSelfAttention`.
    """

    def __init__(
        self,
        dim: int,
        n_heads: int,
        *,
        stride: int = 1,
        dropout: float = 0.0,
        span: int | None = None,
    ) -> None:
        super().__init__()
        self.stride = stride
        self.attention_norm = nn.LayerNorm(dim)
        self.attention = ConvSelfAttention(dim, n_heads, stride=stride, span=span)
        self.cross_norm = nn.LayerNorm(dim)
        self.cross_attention = CrossAttention(dim, n_heads)
        self.feed_norm = nn.LayerNorm(dim)
        self.feed_forward = FeedForward(dim, dropout=dropout)

    def forward(
        self, x: Tensor, valid: Tensor, tokens: Tensor, valid_tokens: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Fuse and, with stride 2, halve.

        :param x: (B, T, D).
        :param valid: (B, T) bool.
        :param tokens: (B or 1, L, D).
        :param valid_tokens: (B or 1, L) bool.
        :return: (B, T / stride, D) and its mask.
        """
        valid_out = valid[:, :: self.stride]
        skip = x if self.stride == 1 else masked_max_pool(x, valid)
        x = skip + self.attention(self.attention_norm(x), valid, valid_out)
        x = x + self.cross_attention(self.cross_norm(x), tokens, valid_tokens)
        x = x + self.feed_forward(self.feed_norm(x))
        return x * valid_out[..., None].to(x.dtype), valid_out


def masked_mean(x: Tensor, valid: Tensor) -> Tensor:
    """Means over what is valid.

    :param x: (N, L, D), such as tokens of queries or steps of clips.
    :param valid: (N, L) bool.
    :return: (N, D), zero where nothing is valid.
    """
    weights = valid[..., None].to(x.dtype)
    return (x * weights).sum(1) / weights.sum(1).clamp(min=1)


def masked_max_pool(x: Tensor, valid: Tensor) -> Tensor:
    """Maxima over three steps around every second one, of steps within the clip.

    :param x: (B, T, D), T even.
    :param valid: (B, T) bool.
    :return: (B, T / 2, D), zeros beyond the clip's end.
    """
    lowest = torch.finfo(x.dtype).min
    hidden = x.masked_fill(~valid[..., None], lowest).transpose(1, 2)
    pooled = F.max_pool1d(hidden, kernel_size=3, stride=2, padding=1)
    return pooled.transpose(1, 2).masked_fill(~valid[:, ::2, None], 0.0)


class TextBlock(nn.Module):
    """Pre-norm transformer block over the tokens of each query."""

    def __init__(self, dim: int, n_heads: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.attention_norm = nn.LayerNorm(dim)
        self.query_key_value = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.feed_norm = nn.LayerNorm(dim)
        self.feed_forward = FeedForward(dim, dropout=dropout)

    def forward(self, x: Tensor, valid: Tensor, places: Tensor | None = None) -> Tensor:
        """Attend within each query.

        :param x: (K, L, D), or its (N, D) rows at ``places``.
        :param valid: (K, L) bool, at least one True a row.
        :param places: (N,) positions of rows among the K * L; None: all.
        :return: as ``x``.
        """
        joint = self.query_key_value(self.attention_norm(x))
        if places is not None:
            joint = spread(joint, places, valid.shape)
        attended = attend(joint.chunk(3, -1), valid[:, None], self.n_heads)
        if places is not None:
            attended = attended.flatten(0, 1)[places]
        x = x + self.out(attended)
        return x + self.feed_forward(self.feed_norm(x))


def spread(rows: Tensor, places: Tensor, shape: Sequence[int]) -> Tensor:
    """Rows (N, D) at their places among K * L, (K, L, D); zeros elsewhere."""
    everywhere = rows.new_zeros(math.prod(shape), rows.shape[1])
    return everywhere.index_copy(0, places, rows).unflatten(0, tuple(shape))


def attend(parts: Sequence[Tensor], seen: Tensor, n_heads: int) -> Tensor:
    """Multi-head attention.

    :param parts: (B, T, D) queries, (B or 1, S, D) keys and values.
    :param seen: (B or 1, T or 1, S) bool, keys that a query looks at, at least one.
    :param n_heads: heads.
    :return: (B, T, D).
    """
    # (B, T, D) -> (B, H, T, D / H)
    query, key, value = (
        part.unflatten(-1, (n_heads, -1)).transpose(1, 2) for part in parts
    )
    key, value = (part.expand(len(query), -1, -1, -1) for part in (key, value))
    mask = seen[:, None]
    attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    return attended.transpose(1, 2).flatten(2)


_BLOCK = 32
"""Steps that attend together: with a radius of 4, 40 keys serve 32 queries."""


def _attend_nearby(
    parts: Sequence[Tensor], valid: Tensor, n_heads: int, radius: int
) -> Tensor:
    """Multi-head attention of each of (B, T, D) steps over those near it."""
    # The cost grows with T, not with its square: steps attend in blocks to their own
    # block and `radius` steps on either side.
    n_steps = valid.shape[1]
    size = max(_BLOCK, radius)
    n_blocks = -(-n_steps // size)
    extra = n_blocks * size - n_steps
    query, key, value = (F.pad(part, (0, 0, 0, extra)) for part in parts)
    inside = F.pad(valid, (0, extra))
    # N blocks: (B, T, D) -> (B * N, size, D) and (B * N, size + 2 * radius, D)
    query = query.unflatten(1, (n_blocks, size)).flatten(0, 1)
    key, value = (
        F.pad(part, (0, 0, radius, radius))
        .unfold(1, size + 2 * radius, size)
        .transpose(2, 3)
        .flatten(0, 1)
        for part in (key, value)
    )
    real = F.pad(inside, (radius, radius)).unfold(1, size + 2 * radius, size)
    steps = torch.arange(size, device=valid.device)
    places = torch.arange(size + 2 * radius, device=valid.device) - radius
    near = (places - steps[:, None]).abs() <= radius
    seen = real.flatten(0, 1)[:, None] & near
    # A step beyond the clip's end sees itself: attention over nothing is undefined.
    seen = seen | (places == steps[:, None])
    # (B * N, size, D) -> (B, T, D)
    joined = attend((query, key, value), seen, n_heads)
    return joined.unflatten(0, (-1, n_blocks)).flatten(1, 2)[:, :n_steps]


def sinusoid_positions(n_steps: int, dim: int, device: torch.device) -> Tensor:
    """Sinusoidal position encoding.

    :param n_steps: T.
    :param dim: even width D.
    :return: (T, D), values in [-1, 1].
    """
    position = torch.arange(n_steps, device=device, dtype=torch.float32)[:, None]
    channel = torch.arange(0, dim, 2, device=device, dtype=torch.float32)
    angle = position * torch.exp(channel * (-math.log(10000.0) / dim))
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)
