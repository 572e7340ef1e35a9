"""Text-conditioned localiser of moments.

Video steps and query tokens meet in every block of a feature pyramid; shared heads
give, at each point, one logit for each query learnt so far and the distances to a
window's two ends (packed as :mod:`avalanche_vilco.models.output` says).

The queries are those learnt so far, the same for every clip, in training and in
evaluation: no model sees which queries a clip answers, unless a batch says which
texts it shows (``ClipBatch.shown``), as the reference protocol may.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from avalanche.models import DynamicModule
from torch import Tensor, nn

from avalanche_vilco.data.batch import ClipBatch, MomentTargets
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
from avalanche_vilco.models.prompt_memory import (
    PromptMemory,
    PromptSelection,
    mean_token,
)

PRIOR_PROBABILITY = 0.01
"""Score of a new query before training (focal loss, Lin et al. 2017, section 4.1)."""


class LearnableQuery(Protocol):
    """What the model needs to know of a query to learn it."""

    @property
    def channel(self) -> int:
        """Its output channel."""

    @property
    def tokens(self) -> Tensor:
        """(L, C) token features of its text."""


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
        codes = self.null_token.new_empty(0, 1, self.null_token.shape[1])
        if len(tokens):
            codes = self.norm(self.projection(tokens))
            for block in self.blocks:
                codes = block(codes, _never_empty(valid))
        x = codes.flatten(0, 1)
        mask = torch.cat([valid.flatten(), valid.new_ones(1)])
        return torch.cat([x, self.null_token.to(x.dtype)])[None], mask[None]


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
    """

    def __init__(
        self,
        *,
        dim: int,
        n_heads: int,
        n_stem_blocks: int,
        n_levels: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.n_levels = n_levels
        strides = [1] * n_stem_blocks + [2] * (n_levels - 1)
        self.blocks = nn.ModuleList(
            CrossModalBlock(dim, n_heads, stride=stride, dropout=dropout)
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
        :param summaries: (K, D) one code for each query.
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
        if not len(summaries):
            return x.new_zeros(*x.shape[:2], 0)
        likeness = self.match(x) @ summaries.T.to(x.dtype) / x.shape[-1]
        return self.cls(x, valid) + likeness

    def _scales(self, levels: Sequence[Tensor]) -> Tensor:
        counts = [level.shape[1] + 1 for level in levels]
        per_step = [self.scale[i].expand(n) for i, n in enumerate(counts)]
        return torch.cat(per_step)[:, None]


def _join_levels(levels: Sequence[Tensor]) -> Tensor:
    """Lay levels (B, T / 2**l, ...) end to end with one empty step after each, so that
    one convolution serves all of them and none sees its neighbour."""
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


class _Text(NamedTuple):
    """What clips see of the queries."""

    tokens: Tensor
    """(1, S, D), the last stands for none of the queries."""
    seen: Tensor
    """(B or 1, S) bool."""
    summaries: Tensor
    """(K, D) one code for each query learnt."""


class MomentLocalizer(DynamicModule):
    """Localises the moments of all queries learnt so far.

    :param stem: video branch.
    :param text: text branch.
    :param pyramid: cross-modal encoder.
    :param heads: classification and regression.
    :param decoder: turns outputs into ranked windows.
    """

    query_tokens: Tensor
    known_tokens: Tensor

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
        self.heads = heads
        self.decoder = decoder
        self.prompt_memory: PromptMemory | None = None
        """Prompts that stand in for queries' texts, or come beside them; see
        ``install_prompts``."""
        width = self.text_dim
        self.register_buffer("query_tokens", torch.zeros(0, 1, width))
        self.register_buffer("known_tokens", torch.zeros(0, 1, dtype=torch.bool))

    @property
    def n_queries(self) -> int:
        """Queries learnt so far: K of the output."""
        return self.heads.cls.out_channels

    @property
    def text_dim(self) -> int:
        """Width of the queries' token features."""
        return self.text.projection.in_features

    def adaptation(self, experience: Any) -> None:
        """Learn the text of new queries and grow the head; in training mode only.

        :param experience: has ``queries_in_this_experience``; the texts of its
            ``shown_queries``, if it has any, are read too.
        :raises TypeError: it has not.
        :raises ValueError: token features are none, or of another width than the
            model's.
        """
        if not self.training:
            return
        queries = getattr(experience, "queries_in_this_experience", None)
        if queries is None:
            raise TypeError(
                "expected an experience with queries_in_this_experience, as the "
                f"streams of vilco_mq() have, but got {type(experience).__name__}"
            )
        self.learn_queries(queries)
        self.read_queries(getattr(experience, "shown_queries", ()))

    def learn_queries(self, queries: Sequence[LearnableQuery]) -> None:
        """Have a channel and a text for each query.

        :param queries: queries; those already known are left as they are.
        :raises ValueError: token features are none, or of another width than the
            model's.
        """
        self.read_queries(queries)
        self.heads.cls.grow(max((query.channel + 1 for query in queries), default=0))

    def read_queries(self, queries: Sequence[LearnableQuery]) -> None:
        """Have a text for each query; one without a channel is seen only with clips
        that show it.

        :param queries: queries; those already read are left as they are.
        :raises ValueError: token features are none, or of another width than the
            model's.
        """
        new = [query for query in queries if not self._has_read(query.channel)]
        if not new:
            return
        width = self.query_tokens.shape[2]
        for query in new:
            if query.tokens.shape[1:] != (width,) or not len(query.tokens):
                raise ValueError(
                    f"expected (L > 0, {width}) token features for query channel "
                    f"{query.channel} but got {tuple(query.tokens.shape)}: build "
                    "the model with text_dim=benchmark.text_dim"
                )
        self._resize(
            max(query.channel for query in new) + 1,
            max(len(query.tokens) for query in new),
        )
        for query in new:
            length = len(query.tokens)
            self.query_tokens[query.channel, :length] = query.tokens
            self.known_tokens[query.channel, :length] = True

    def _has_read(self, channel: int) -> bool:
        n_texts = len(self.known_tokens)
        return channel < n_texts and bool(self.known_tokens[channel].any())

    def _resize(self, n_texts: int, n_tokens: int) -> None:
        have, length = self.known_tokens.shape
        more = (0, max(n_tokens - length, 0), 0, max(n_texts - have, 0))
        self.query_tokens = nn.functional.pad(self.query_tokens, (0, 0, *more))
        self.known_tokens = nn.functional.pad(self.known_tokens, more)

    def forward(self, clips: ClipBatch) -> Tensor:
        """Localise.

        :param clips: features (B, T, C) with their mask and, where the clips do not
            see all queries' texts, which they see.
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
        text = self._text(clips.shown)
        x = self.stem(features, valid)
        levels, masks = self.pyramid(x, valid, text.tokens, text.seen)
        return levels, masks, text.summaries

    def find_prompts(self) -> PromptSelection:
        """The prompts of each query learnt so far.

        :raises ValueError: the model has no prompt memory.
        """
        if self.prompt_memory is None:
            raise ValueError("expected a model with prompts: see install_prompts")
        return self._selection(self.prompt_memory, self.n_queries)

    def _selection(self, memory: PromptMemory, n_queries: int) -> PromptSelection:
        tokens, known = self.query_tokens[:n_queries], self.known_tokens[:n_queries]
        return memory(mean_token(tokens, known))

    def _text(self, shown: Tensor | None) -> _Text:
        memory = self.prompt_memory
        if memory is None:
            return self._words(shown)
        prompts = self._prompts(memory, shown)
        if memory.mode == "replace":
            return prompts
        words = self._words(shown)
        n_clips = max(len(words.seen), len(prompts.seen))
        masks = [part.seen.expand(n_clips, -1) for part in (prompts, words)]
        # Both end with the token that stands for no query: one is enough.
        return _Text(
            torch.cat([prompts.tokens[:, :-1], words.tokens], dim=1),
            torch.cat([masks[0][:, :-1], masks[1]], dim=1),
            prompts.summaries + words.summaries,
        )

    def _words(self, shown: Tensor | None) -> _Text:
        """The texts of the queries themselves."""
        tokens, valid = self.text(self.query_tokens, self.known_tokens)
        return _Text(tokens, self._seen(valid, shown), self._summaries(tokens))

    def _prompts(self, memory: PromptMemory, shown: Tensor | None) -> _Text:
        """The union of the prompts that the clips' queries have found."""
        n_prompts, length, _ = memory.prompts.shape
        everywhere = memory.prompts.new_ones(n_prompts, length, dtype=torch.bool)
        tokens, _ = self.text(memory.prompts, everywhere)
        found = self._selection(memory, len(self.known_tokens))
        chosen = found.chosen & self.known_tokens.any(dim=1, keepdim=True)
        if shown is None:
            used = chosen[: self.n_queries].any(dim=0, keepdim=True)
        else:
            used = (shown[:, : len(chosen)].float() @ chosen.float()) > 0
        seen = nn.functional.pad(used.repeat_interleave(length, 1), (0, 1), value=True)
        codes = tokens[0, :-1].unflatten(0, (n_prompts, length)).mean(dim=1)
        return _Text(tokens, seen, found.weights[: self.n_queries].to(codes) @ codes)

    def _seen(self, valid_tokens: Tensor, shown: Tensor | None) -> Tensor:
        """(B or 1, K * L + 1) mask of the tokens that each clip sees, the last, which
        stands for none of the queries, always among them."""
        n_texts, length = self.known_tokens.shape
        if shown is None and n_texts == self.n_queries:
            return valid_tokens
        if shown is None:
            texts = torch.arange(n_texts, device=valid_tokens.device)
            shown = (texts < self.n_queries)[None]
        shown = shown[:, :n_texts].repeat_interleave(length, dim=1)
        more = valid_tokens.shape[1] - shown.shape[1]
        return valid_tokens & nn.functional.pad(shown, (0, more), value=True)

    def _summaries(self, tokens: Tensor) -> Tensor:
        """(K, D) mean code of each query's tokens."""
        if not self.n_queries:
            return tokens.new_zeros(0, tokens.shape[2])
        codes = tokens[0, :-1].unflatten(0, self.known_tokens.shape)[: self.n_queries]
        return mean_token(codes, self.known_tokens[: self.n_queries])

    def decode(self, output: Tensor, targets: MomentTargets) -> MomentPredictions:
        """Ranked windows of an output; of the targets only the geometry is used.

        :param output: (B, K + 2, P).
        :param targets: lengths, durations and feature rates.
        """
        return self.decoder(output, targets)

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, *args: Any
    ) -> None:
        stored = state_dict.get(f"{prefix}known_tokens")
        if stored is not None:
            self._resize(*stored.shape)
            rows = state_dict.get(f"{prefix}heads.cls.weight", stored)
            self.heads.cls.grow(len(rows))
        super()._load_from_state_dict(state_dict, prefix, *args)
