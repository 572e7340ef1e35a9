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
from avalanche_vilco.core.precision import Precision
from avalanche_vilco.models.blocks import (
    ConvNormReLU,
    CrossModalBlock,
    MaskedConv1d,
    TextBlock,
    masked_mean,
    sinusoid_positions,
)
from avalanche_vilco.models.decoding import MomentDecoder, MomentPredictions
from avalanche_vilco.models.output import (
    MOMENT_REGRESSION_CHANNELS,
    OFFSET_LOW,
    OFFSET_SPAN,
    UNTAUGHT,
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
        """(B, T, in_dim), (B, T) -> (B, T, D), with the position encoding added."""
        x = self.projection(features)
        for conv in self.convs:
            x = conv(x, valid)
        positions = sinusoid_positions(x.shape[1], x.shape[2], x.device)
        return x + (positions / math.sqrt(x.shape[2])).to(x.dtype)


class TextBranch(nn.Module):
    """Encodes each query's tokens by itself: a new query leaves the others as they are.

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

    def forward(
        self, tokens: Tensor, valid: Tensor, places: Tensor | None = None
    ) -> Tensor:
        """Encode and flatten.

        :param tokens: (K, L, C) token features, K may be 0.
        :param valid: (K, L) bool; a row may be all False.
        :param places: (N,) the tokens wanted, by their positions among the K * L;
            None: all, valid or not.
        :return: (1, N + 1, D) embeddings, the last a learnt "none of these".
        """
        x = self.encode(tokens, valid, places)
        x = x if places is not None else x.flatten(0, 1)
        return torch.cat([x, self.null_token.to(x.dtype)])[None]

    def encode(
        self, tokens: Tensor, valid: Tensor, places: Tensor | None = None
    ) -> Tensor:
        """Encode each row by itself.

        :param tokens: (K, L, C), K may be 0.
        :param valid: (K, L) bool.
        :param places: as in :meth:`forward`; other tokens cost nothing.
        :return: (K, L, D), or (N, D) with places.
        """
        if not len(tokens):
            shape = (0, 1) if places is None else (0,)
            return self.null_token.new_empty(*shape, self.null_token.shape[1])
        if places is not None:
            tokens = tokens.flatten(0, 1)[places]
        x = self.norm(self.projection(tokens))
        # Rows without a token show their first: attention over nothing is undefined.
        first = torch.arange(valid.shape[1], device=valid.device) == 0
        seen = valid | (first & ~valid.any(dim=1, keepdim=True))
        for block in self.blocks:
            x = block(x, seen, places)
        return x


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

    Rows of learnt queries are carried over bit for bit; new rows start at zero with
    the bias of :data:`PRIOR_PROBABILITY`, so growing draws no random number. Where a
    query is learnt before those of lower rows, these are there and do not answer.
    """

    taught: Tensor

    def __init__(self, dim: int) -> None:
        # Weights of no row cannot be initialised by torch without a warning.
        super().__init__(dim, 1)
        self.weight = nn.Parameter(self.weight.detach()[:0])
        self.bias = nn.Parameter(torch.zeros(0))
        self.out_channels = 0
        self.register_buffer("taught", torch.zeros(0, dtype=torch.bool))

    def reset_parameters(self) -> None:
        """Untrained rows, as :meth:`grow` makes them."""
        with torch.no_grad():
            self.weight.zero_()
            if self.bias is not None:
                self.bias.fill_(-math.log(1 / PRIOR_PROBABILITY - 1))

    def grow(self, n_queries: int) -> None:
        """Have at least this many rows, all of them taught.

        :param n_queries: rows wanted.
        """
        self.teach(range(n_queries))

    def teach(self, queries: Sequence[int]) -> None:
        """Have a row that answers for each query, and rows up to the highest.

        :param queries: their rows.
        """
        self._resize(max(queries, default=-1) + 1)
        self.taught[list(queries)] = True

    def _resize(self, n_queries: int) -> None:
        n_rows = self.out_channels
        if n_queries <= n_rows or self.bias is None:
            return
        old_weight, old_bias = self.weight.detach(), self.bias.detach()
        shape = (n_queries, *old_weight.shape[1:])
        self.weight = nn.Parameter(old_weight.new_empty(shape))
        self.bias = nn.Parameter(old_bias.new_empty(n_queries))
        self.out_channels = n_queries
        self.reset_parameters()
        with torch.no_grad():
            self.weight[:n_rows] = old_weight
            self.bias[:n_rows] = old_bias
        self.taught = nn.functional.pad(self.taught, (0, n_queries - n_rows))

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        # Where all rows are taught, files have nothing to tell, as they always had.
        if self.taught.all():
            del destination[f"{prefix}taught"]

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any
    ) -> None:
        rows = state_dict.get(f"{prefix}weight")
        if rows is not None:
            self._resize(len(rows))
            everything = torch.ones(len(rows), dtype=torch.bool)
            state_dict.setdefault(f"{prefix}taught", everything)
        super()._load_from_state_dict(state_dict, prefix, *args)


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
        :param summaries: (K, D) one embedding for each query, or (B, K, D) where clips
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
        lengths = [level.shape[1] for level in levels]
        scales = [self.scale[i].expand(n + 1) for i, n in enumerate(lengths)]
        offsets = _bounded(self.reg(reg, valid) * torch.cat(scales)[:, None])
        return (
            _drop_gaps(logits, lengths).transpose(1, 2),
            _drop_gaps(offsets, lengths).transpose(1, 2),
            torch.cat(list(masks), dim=1),
        )

    def embeddings(self, levels: Sequence[Tensor], masks: Sequence[Tensor]) -> Tensor:
        """What the classifier reads at every point, (B, D, P)."""
        x, valid = _join_levels(levels), _join_levels(masks)
        for conv in self.cls_convs:
            x = conv(x, valid)
        return _drop_gaps(x, [level.shape[1] for level in levels]).transpose(1, 2)

    def _logits(self, x: Tensor, valid: Tensor, summaries: Tensor) -> Tensor:
        if not summaries.shape[-2]:
            return x.new_zeros(*x.shape[:2], 0)
        similarity = self.match(x) @ summaries.mT.to(x.dtype) / x.shape[-1]
        logits = self.cls(x, valid) + similarity
        return torch.where(self.cls.taught, logits, UNTAUGHT)


def _join_levels(levels: Sequence[Tensor]) -> Tensor:
    """Lay levels (B, T / 2**l, ...) end to end, with one empty step after each.

    One convolution then serves all of them and none sees its neighbour.
    """
    gap = torch.zeros_like(levels[0][:, :1])
    return torch.cat([part for level in levels for part in (level, gap)], dim=1)


def _drop_gaps(x: Tensor, lengths: Sequence[int]) -> Tensor:
    """(B, P + L, ...) laid out by :func:`_join_levels` -> (B, P, ...)."""
    parts = x.split([size for length in lengths for size in (length, 1)], dim=1)
    return torch.cat(parts[::2], dim=1)


def _bounded(x: Tensor) -> Tensor:
    """Distances in (OFFSET_LOW, OFFSET_LOW + OFFSET_SPAN), like softplus when small."""
    low = nn.functional.softplus(x) / OFFSET_SPAN
    return OFFSET_SPAN * torch.tanh(low) + OFFSET_LOW


class QueryText(NamedTuple):
    """What clips see of the queries.

    :param tokens: (B or 1, S, D), the last stands for none of the queries.
    :param mask: (B or 1, S) bool, tokens that a clip sees.
    :param summaries: (K, D) one embedding for each query, or (B, K, D) where clips ask
        their own.
    """

    tokens: Tensor
    mask: Tensor
    summaries: Tensor


def prepend(prompts: QueryText, text: QueryText) -> QueryText:
    """Prompts, then text; of the two tokens that stand for no query one is kept.

    :param prompts: of the same queries.
    :param text: of the same queries.
    """
    both = (prompts, text)
    n_clips = max(len(part) for one in both for part in one[:2])
    tokens = [one.tokens.expand(n_clips, -1, -1) for one in both]
    masks = [one.mask.expand(n_clips, -1) for one in both]
    if len(prompts.tokens) == len(text.tokens) == 1:
        # All clips share them: keys and values of one row serve every clip.
        tokens = [part[:1] for part in tokens]
    return QueryText(
        torch.cat([tokens[0][:, :-1], tokens[1]], dim=1),
        torch.cat([masks[0][:, :-1], masks[1]], dim=1),
        prompts.summaries + text.summaries,
    )


def prompt_mask(used: Tensor, length: int) -> Tensor:
    """Mask of prompt tokens.

    :param used: (B, m) bool.
    :param length: tokens of a prompt.
    :return: (B, m * length + 1), the last, for no query, always True.
    """
    mask = used.repeat_interleave(length, dim=1)
    return nn.functional.pad(mask, (0, 1), value=True)


class Localizer(DynamicModule):
    """What plugins may ask of every localiser."""

    needs_text: ClassVar[bool] = False
    """Whether samples bring queries of their own, which prompts alone cannot say."""

    def __init__(self) -> None:
        super().__init__()
        self.pooled = nn.Identity()
        """Sees (B, D) embeddings in :meth:`clip_embeddings`; for feature hooks."""
        self.narrated_module = nn.Identity()
        """Sees (B, T, D) embeddings of steps or frames and their (B, T) mask, as a
        pair; for hooks that compare them with sentences."""
        self.prompt_memory: PromptMemory | None = None
        """Prompts that stand in for queries' texts, or come before them; see
        ``install_prompts``."""
        self.precision: Precision = "float32"
        """Of products in ``forward``: ``"bf16"`` is torch's autocast to bfloat16,
        on any device. Weights, gradients of weights and the output are float32."""

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """``forward``, in the precision chosen."""
        if self.precision == "float32":
            return super().__call__(*inputs, **options)
        device = next(self.parameters()).device.type
        with torch.autocast(device, torch.bfloat16):
            return super().__call__(*inputs, **options).float()

    @property
    @abstractmethod
    def text_dim(self) -> int:
        """Width of the queries' token features, and of prompts."""

    @property
    @abstractmethod
    def narrated_dim(self) -> int:
        """Width D of what :attr:`narrated_module` sees."""

    @abstractmethod
    def query_embeddings(self, experience: Any) -> Tensor:
        """(K, C) embeddings of queries of an experience, for keys to start from.

        :param experience: of a query-incremental stream.
        """

    @abstractmethod
    def step_embeddings(self, batch: Any) -> tuple[Tensor, Tensor]:
        """(B, T, D) embeddings of steps or frames, and their (B, T) mask.

        :param batch: what the model takes.
        """

    def clip_embeddings(self, batch: Any) -> Tensor:
        """Mean over the steps or frames of a clip, (B, D); through ``pooled``.

        :param batch: what the model takes.
        """
        return self.pooled(masked_mean(*self.step_embeddings(batch)))


class PyramidLocalizer(Localizer):
    """Video stem, text branch, cross-modal pyramid and heads.

    :param stem: video branch.
    :param text: text branch.
    :param pyramid: cross-modal encoder.
    :param heads: classification and regression.
    :param decoder: turns outputs into ranked windows.
    """

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
        self.heads = heads
        self.decoder = decoder

    @abstractmethod
    def text_of(self, clips: Any) -> QueryText:
        """Encode the queries' texts as each clip sees them.

        :param clips: a batch.
        """

    @abstractmethod
    def prompts_of(self, memory: PromptMemory, clips: Any) -> QueryText:
        """Encode the prompts that the queries of each clip find.

        :param memory: the model's.
        :param clips: a batch.
        """

    def query_text(self, clips: Any) -> QueryText:
        """What each clip sees of the queries: their texts, prompts, or both.

        :param clips: a batch.
        """
        memory = self.prompt_memory
        if memory is None:
            return self.text_of(clips)
        prompts = self.prompts_of(memory, clips)
        if memory.mode == "replace":
            return prompts
        return prepend(prompts, self.text_of(clips))

    @property
    def n_queries(self) -> int:
        """Queries of the output, K."""
        return self.heads.cls.out_channels

    @property
    def taught_queries(self) -> Tensor:
        """(K,) bool, the queries of the output that have been taught."""
        return self.heads.cls.taught

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
        return pack_output(*self.heads(*self._encode(clips)))

    def step_embeddings(self, clips: ClipBatch) -> tuple[Tensor, Tensor]:
        """(B, T, D) embeddings of the finest level, and their (B, T) mask.

        :param clips: a batch.
        """
        levels, masks, _ = self._encode(clips)
        return levels[0], masks[0]

    def point_embeddings(self, clips: ClipBatch) -> Tensor:
        """What the logits of each point are read off, (B, D, P).

        :param clips: a batch.
        """
        levels, masks, _ = self._encode(clips)
        return self.heads.embeddings(levels, masks)

    def _encode(self, clips: ClipBatch) -> tuple[list[Tensor], list[Tensor], Tensor]:
        # (B, T, C) -> (B, T', C), T' a multiple of the coarsest stride
        extra = padded_length(clips.valid.shape[1], self.pyramid.n_levels)
        extra -= clips.valid.shape[1]
        features = nn.functional.pad(clips.features, (0, 0, 0, extra))
        valid = nn.functional.pad(clips.valid, (0, extra))
        text = self.query_text(clips)
        x = self.stem(features, valid)
        levels, masks = self.pyramid(x, valid, text.tokens, text.mask)
        self.narrated_module((levels[0], masks[0]))
        return levels, masks, text.summaries

    def encoded_prompts(self, memory: PromptMemory) -> tuple[Tensor, Tensor]:
        """Encode each prompt by itself.

        :param memory: m prompts of L tokens.
        :return: (1, m * L + 1, D) tokens, the last for no query, and (m, D) means.
        """
        shape = memory.prompts.shape[:2]
        everywhere = memory.prompts.new_ones(shape, dtype=torch.bool)
        tokens = self.text(memory.prompts, everywhere)
        # (1, m * L + 1, D) -> (m, L, D) -> (m, D)
        return tokens, tokens[0, :-1].unflatten(0, shape).mean(dim=1)

    def decode(self, output: Tensor, targets: MomentTargets) -> MomentPredictions:
        """Ranked windows of an output; of the targets only the geometry is used.

        :param output: (B, K + 2, P).
        :param targets: lengths, durations and feature rates.
        """
        return self.decoder(output, targets)
