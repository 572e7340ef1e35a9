"""What localisers are made of, and what all of them do.

Video steps and query tokens meet in every block of a feature pyramid; shared heads
give, at each point, one logit for each query and the distances to a window's two ends
(packed as :mod:`avalanche_vilco.models.output` says).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from avalanche.models import DynamicModule
from torch import Tensor, nn

from avalanche_vilco.core.batch import ClipBatch, MomentTargets
from avalanche_vilco.models.blocks import (
    ConvNormReLU,
    CrossModalBlock,
    MaskedConv1d,
    TextBlock,
    sinusoid_positions,
)
from avalanche_vilco.models.decoding import MomentDecoder, MomentPredictions
from avalanche_vilco.models.output import (
    MOMENT_REGRESSION_CHANNELS,
    OFFSET_LOW,
    OFFSET_SPAN,
    pack_output,
    padded_length,
)
from avalanche_vilco.models.prompt_memory import PromptMemory

PRIOR_PROBABILITY = 0.01
"""Score of a new query before training (focal loss, Lin et al. 2017, section 4.1)."""


class VideoStem(nn.Module):
    """Projection of frozen features and local context.

    :param in_dim: width of the features.
    :param dim: width D.
    :param n_convs: convolutions after the projection.
    """

    def __init__(self, *, in_dim: int, dim: int, n_convs: int) -> None:
        super().__init__()
        self.projection = nn.Linear(in_dim, dim)
        self.convs = nn.ModuleList(ConvNormReLU(dim, dim) for _ in range(n_convs))

    def forward(self, features: Tensor, valid: Tensor) -> Tensor:
        """(B, T, in_dim), (B, T) -> (B, T, D), with the position code added."""
        x = self.projection(features)
        for conv in self.convs:
            x = conv(x, valid)
        code = sinusoid_positions(x.shape[1], x.shape[2], x.device)
        return x + (code / math.sqrt(x.shape[2])).to(x.dtype)


class TextBranch(nn.Module):
    """Encodes each query's tokens by itself, so a new query leaves the codes of the
    others as they are.

    :param in_dim: width of token features.
    :param dim: width D.
    :param n_heads: heads.
    :param n_blocks: transformer blocks.
    :param dropout: of the feed-forward parts.
    """

    def __init__(
        self, *, in_dim: int, dim: int, n_heads: int, n_blocks: int, dropout: float
    ) -> None:
        super().__init__()
        self.projection = nn.Linear(in_dim, dim)
        self.norm = nn.LayerNorm(dim)
        self.blocks = nn.ModuleList(
            TextBlock(dim, n_heads, dropout=dropout) for _ in range(n_blocks)
        )
        self.null_token = nn.Parameter(torch.zeros(1, dim))
        nn.init.normal_(self.null_token, std=0.02)

    def forward(self, tokens: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Encode and flatten.

        :param tokens: (K, L, C) token features, K may be 0.
        :param valid: (K, L) bool; a row may be all False.
        :return: (1, K * L + 1, D) codes, the last a learnt "none of these", and
            their (1, K * L + 1) mask.
        """
        x = self.encode(tokens, valid).flatten(0, 1)
        mask = torch.cat([valid.flatten(), valid.new_ones(1)])
        return torch.cat([x, self.null_token.to(x.dtype)])[None], mask[None]

    def encode(self, tokens: Tensor, valid: Tensor) -> Tensor:
        """(K, L, C), (K, L) -> (K, L, D), each row by itself; K may be 0."""
        if not len(tokens):
            return self.null_token.new_empty(0, 1, self.null_token.shape[1])
        codes = self.norm(self.projection(tokens))
        for block in self.blocks:
            codes = block(codes, _never_empty(valid))
        return codes


def _never_empty(valid: Tensor) -> Tensor:
    """Show the first token of rows without any: attention over nothing is undefined."""
    first = torch.arange(valid.shape[1], device=valid.device) == 0
    return valid | (first & ~valid.any(dim=1, keepdim=True))


class FeaturePyramid(nn.Module):
    """Cross-modal blocks: some at full length, then one for each halving.

    :param dim: width D.
    :param n_heads: heads.
    :param n_stem_blocks: blocks at full length.
    :param n_levels: levels, the first at full length.
    :param dropout: of the feed-forward parts.
    :param span: odd number of steps around its own that a step attends to, at
        every level; None: all steps of the clip.
    """

    def __init__(
        self,
        *,
        dim: int,
        n_heads: int,
        n_stem_blocks: int,
        n_levels: int,
        dropout: float,
        span: int | None = None,
    ) -> None:
        super().__init__()
        self.n_levels = n_levels
        strides = [1] * n_stem_blocks + [2] * (n_levels - 1)
        self.blocks = nn.ModuleList(
            CrossModalBlock(dim, n_heads, stride=stride, dropout=dropout, span=span)
            for stride in strides
        )
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(n_levels))

    def forward(
        self, x: Tensor, valid: Tensor, tokens: Tensor, valid_tokens: Tensor
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Fuse video and text at all levels.

        :param x: (B, T, D), T a multiple of the coarsest stride.
        :return: for each level its (B, T / 2**l, D) features and mask.
        """
        n_stem = len(self.blocks) - (self.n_levels - 1)
        features: list[Tensor] = []
        masks: list[Tensor] = []
        for i, block in enumerate(self.blocks):
            x, valid = block(x, valid, tokens, valid_tokens)
            if i >= n_stem - 1:
                features.append(self.norms[len(features)](x))
                masks.append(valid)
        return features, masks


class GrowingHead(MaskedConv1d):
    """Classification convolution that gains rows as queries are learnt.

    Rows of known queries are carried over bit for bit; new rows start at zero with
    the bias of :data:`PRIOR_PROBABILITY`, so growing draws no random number.
    """

    def __init__(self, dim: int) -> None:
        # Weights of no row cannot be initialised by torch without a warning.
        super().__init__(dim, 1)
        self.weight = nn.Parameter(self.weight.detach()[:0])
        self.bias = nn.Parameter(torch.zeros(0))
        self.out_channels = 0

    def reset_parameters(self) -> None:
        """Untrained rows, as :meth:`grow` makes them."""
        with torch.no_grad():
            self.weight.zero_()
            if self.bias is not None:
                self.bias.fill_(-math.log(1 / PRIOR_PROBABILITY - 1))

    def grow(self, n_queries: int) -> None:
        """Have at least this many rows.

        :param n_queries: rows wanted.
        """
        have = self.out_channels
        if n_queries <= have or self.bias is None:
            return
        old_weight, old_bias = self.weight.detach(), self.bias.detach()
        self.weight = nn.Parameter(
            old_weight.new_empty(n_queries, *old_weight.shape[1:])
        )
        self.bias = nn.Parameter(old_bias.new_empty(n_queries))
        self.out_channels = n_queries
        self.reset_parameters()
        with torch.no_grad():
            self.weight[:have] = old_weight
            self.bias[:have] = old_bias


class MomentHeads(nn.Module):
    """Classification and regression heads, shared by all levels.

    :param dim: width D.
    :param n_convs: hidden convolutions of each head.
    :param n_levels: levels, each with its own scale of distances.
    """

    def __init__(self, *, dim: int, n_convs: int, n_levels: int) -> None:
        super().__init__()
        self.cls_convs = nn.ModuleList(ConvNormReLU(dim, dim) for _ in range(n_convs))
        self.reg_convs = nn.ModuleList(ConvNormReLU(dim, dim) for _ in range(n_convs))
        self.cls = GrowingHead(dim)
        self.match = nn.Linear(dim, dim, bias=False)
        self.reg = MaskedConv1d(dim, MOMENT_REGRESSION_CHANNELS)
        self.scale = nn.Parameter(torch.ones(n_levels))

    def forward(
        self, levels: Sequence[Tensor], masks: Sequence[Tensor], summaries: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Read queries and windows off every point.

        :param levels: features of each level.
        :param masks: their masks.
        :param summaries: (K, D) one code for each query, or (B, K, D) where clips
            ask queries of their own.
        :return: (B, K, P) logits, (B, 2, P) distances in strides, (B, P) mask.
        """
        x, valid = _join_levels(levels), _join_levels(masks)
        cls = reg = x
        for conv in self.cls_convs:
            cls = conv(cls, valid)
        for conv in self.reg_convs:
            reg = conv(reg, valid)
        logits = self._logits(cls, valid, summaries)
        offsets = _bounded(self.reg(reg, valid) * self._scales(levels))
        lengths = [level.shape[1] for level in levels]
        return (
            _drop_gaps(logits, lengths).transpose(1, 2),
            _drop_gaps(offsets, lengths).transpose(1, 2),
            torch.cat(list(masks), dim=1),
        )

    def codes(self, levels: Sequence[Tensor], masks: Sequence[Tensor]) -> Tensor:
        """What the classifier reads at every point, (B, D, P)."""
        x, valid = _join_levels(levels), _join_levels(masks)
        for conv in self.cls_convs:
            x = conv(x, valid)
        return _drop_gaps(x, [level.shape[1] for level in levels]).transpose(1, 2)

    def _logits(self, x: Tensor, valid: Tensor, summaries: Tensor) -> Tensor:
        if not summaries.shape[-2]:
            return x.new_zeros(*x.shape[:2], 0)
        likeness = self.match(x) @ summaries.mT.to(x.dtype) / x.shape[-1]
        return self.cls(x, valid) + likeness

    def _scales(self, levels: Sequence[Tensor]) -> Tensor:
        counts = [level.shape[1] + 1 for level in levels]
        per_step = [self.scale[i].expand(n) for i, n in enumerate(counts)]
        return torch.cat(per_step)[:, None]


def _join_levels(levels: Sequence[Tensor]) -> Tensor:
    """Lay levels (B, T / 2**l, ...) end to end with one empty step after each, so that
    one convolution serves all of them and none sees its neighbour.
    """
    gap = torch.zeros_like(levels[0][:, :1])
    return torch.cat([part for level in levels for part in (level, gap)], dim=1)


def _drop_gaps(x: Tensor, lengths: Sequence[int]) -> Tensor:
    """(B, P + L, ...) laid out by :func:`_join_levels` -> (B, P, ...)."""
    parts = x.split([size for length in lengths for size in (length, 1)], dim=1)
    return torch.cat(parts[::2], dim=1)


def _bounded(x: Tensor) -> Tensor:
    """Distances in (OFFSET_LOW, OFFSET_LOW + OFFSET_SPAN), like softplus when small."""
    return (
        OFFSET_SPAN * torch.tanh(nn.functional.softplus(x) / OFFSET_SPAN) + OFFSET_LOW
    )


class ShownText(NamedTuple):
    """What clips see of the queries."""

    tokens: Tensor
    """(B or 1, S, D), the last stands for none of the queries."""
    seen: Tensor
    """(B or 1, S) bool."""
    summaries: Tensor
    """(K, D) one code for each query, or (B, K, D) where clips ask their own."""


def beside(prompts: ShownText, words: ShownText) -> ShownText:
    """Prompts, then words; of the two tokens that stand for no query one is kept.

    :param prompts: of the same queries.
    :param words: of the same queries.
    """
    n_clips = max(len(part) for text in (prompts, words) for part in text[:2])
    tokens = [text.tokens.expand(n_clips, -1, -1) for text in (prompts, words)]
    masks = [text.seen.expand(n_clips, -1) for text in (prompts, words)]
    if len(prompts.tokens) == len(words.tokens) == 1:
        tokens = [part[:1] for part in tokens]
    return ShownText(
        torch.cat([tokens[0][:, :-1], tokens[1]], dim=1),
        torch.cat([masks[0][:, :-1], masks[1]], dim=1),
        prompts.summaries + words.summaries,
    )


class PyramidLocalizer(DynamicModule):
    """Video stem, text branch, cross-modal pyramid and heads.

    :param stem: video branch.
    :param text: text branch.
    :param pyramid: cross-modal encoder.
    :param heads: classification and regression.
    :param decoder: turns outputs into ranked windows.
    """

    needs_words: ClassVar[bool] = False
    """Whether each clip brings words of its own, of which prompts alone cannot tell."""

    def __init__(
        self,
        *,
        stem: VideoStem,
        text: TextBranch,
        pyramid: FeaturePyramid,
        heads: MomentHeads,
        decoder: MomentDecoder,
    ) -> None:
        super().__init__()
        self.stem = stem
        self.text = text
        self.pyramid = pyramid
        self.pooled = nn.Identity()
        """Sees (B, D) clip codes in :meth:`clip_codes`; a name for feature hooks."""
        self.narrated_module = nn.Identity()
        """Sees the finest level's (B, T, D) codes and their (B, T) mask, as a pair; for
        hooks that compare them with sentences."""
        self.heads = heads
        self.decoder = decoder
        self.prompt_memory: PromptMemory | None = None
        """Prompts that stand in for queries' texts, or come beside them; see
        ``install_prompts``."""

    @abstractmethod
    def shown_text(self, clips: Any) -> ShownText:
        """What each clip sees of the queries.

        :param clips: a batch.
        """

    @abstractmethod
    def query_embeddings(self, experience: Any) -> Tensor:
        """(K, C) embeddings of queries that an experience brings, for keys to start
        from.

        :param experience: of a query-incremental stream.
        """

    @property
    def n_queries(self) -> int:
        """Queries of the output, K."""
        return self.heads.cls.out_channels

    @property
    def text_dim(self) -> int:
        """Width of the queries' token features."""
        return self.text.projection.in_features

    @property
    def narrated_dim(self) -> int:
        """Width D of what :attr:`narrated_module` sees."""
        return self.heads.match.in_features

    def forward(self, clips: ClipBatch) -> Tensor:
        """Localise.

        :param clips: features (B, T, C) with their mask, and which texts they see.
        :return: (B, K + 2, P), see :mod:`avalanche_vilco.models.output`; the same
            form in training and in evaluation.
        """
        levels, masks, summaries = self._encode(clips)
        logits, offsets, valid = self.heads(levels, masks, summaries)
        return pack_output(logits, offsets, valid)

    def clip_codes(self, clips: ClipBatch) -> Tensor:
        """Mean of the finest level over a clip, (B, D); through ``pooled``."""
        levels, masks, _ = self._encode(clips)
        weights = masks[0][..., None].to(levels[0].dtype)
        return self.pooled((levels[0] * weights).sum(1) / weights.sum(1))

    def point_codes(self, clips: ClipBatch) -> Tensor:
        """What the logits of each point are read off, (B, D, P)."""
        levels, masks, _ = self._encode(clips)
        return self.heads.codes(levels, masks)

    def _encode(self, clips: ClipBatch) -> tuple[list[Tensor], list[Tensor], Tensor]:
        extra = padded_length(clips.valid.shape[1], self.pyramid.n_levels)
        extra -= clips.valid.shape[1]
        features = nn.functional.pad(clips.features, (0, 0, 0, extra))
        valid = nn.functional.pad(clips.valid, (0, extra))
        text = self.shown_text(clips)
        x = self.stem(features, valid)
        levels, masks = self.pyramid(x, valid, text.tokens, text.seen)
        self.narrated_module((levels[0], masks[0]))
        return levels, masks, text.summaries

    def encoded_prompts(self, memory: PromptMemory) -> tuple[Tensor, Tensor]:
        """Each prompt by itself.

        :param memory: m prompts of L tokens.
        :return: (1, m * L + 1, D) codes, the last for no query, and (m, D) mean codes.
        """
        shape = memory.prompts.shape[:2]
        everywhere = memory.prompts.new_ones(shape, dtype=torch.bool)
        tokens, _ = self.text(memory.prompts, everywhere)
        return tokens, tokens[0, :-1].unflatten(0, shape).mean(dim=1)

    def decode(self, output: Tensor, targets: MomentTargets) -> MomentPredictions:
        """Ranked windows of an output; of the targets only the geometry is used.

        :param output: (B, K + 2, P).
        :param targets: lengths, durations and feature rates.
        """
        return self.decoder(output, targets)


def seen_prompts(used: Tensor, length: int) -> Tensor:
    """Mask of prompt tokens.

    :param used: (B, m) bool.
    :param length: tokens of a prompt.
    :return: (B, m * length + 1), the last, for no query, always seen.
    """
    seen = used.repeat_interleave(length, dim=1)
    return nn.functional.pad(seen, (0, 1), value=True)
