"""Localiser of an object that is shown by a crop, in the frames of a window.

Frozen embeddings of frames and crop meet in a correspondence; a transformer over space
and neighbouring frames follows; heads give, at each anchor of each frame, one logit
and a box (packed as :mod:`avalanche_vilco.models.anchors` says). After VQLoC (Jiang et
al. 2023), with what is said in docs/vilco_vq.md.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from avalanche_vilco.core.visual_batch import TrackWindowTargets, VisualQueryBatch
from avalanche_vilco.models.anchors import (
    N_ANCHORS,
    TRACK_REGRESSION_CHANNELS,
    bounded_deltas,
)
from avalanche_vilco.models.blocks import CrossAttention, FeedForward, attend
from avalanche_vilco.models.frame_answers import FrameAnswers, best_of_frames
from avalanche_vilco.models.localizer import PRIOR_PROBABILITY, Localizer
from avalanche_vilco.models.visual_backbone import FrozenViT

MAX_SPREAD_CROPS = 64


class ConvNormReLU2d(nn.Sequential):
    """3 x 3 convolution, GroupNorm over all channels of a picture, ReLU."""

    def __init__(self, in_dim: int, out_dim: int, *, stride: int = 1) -> None:
        super().__init__(
            nn.Conv2d(in_dim, out_dim, 3, stride=stride, padding=1, bias=False),
            nn.GroupNorm(1, out_dim),
            nn.ReLU(),
        )


class TokenStem(nn.Module):
    """Makes features of frames and of the crop alike: a projection, then convolutions.

    :param in_dim: channels C of the backbone.
    :param dim: width D.
    :param n_convs: convolutions.
    """

    def __init__(self, *, in_dim: int, dim: int, n_convs: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(in_dim)
        self.projection = nn.Linear(in_dim, dim)
        self.convs = nn.Sequential(*(ConvNormReLU2d(dim, dim) for _ in range(n_convs)))

    def forward(self, embeddings: Tensor) -> Tensor:
        """(N, C, h, w) -> (N, D, h, w)."""
        x = self.projection(self.norm(embeddings.movedim(1, -1))).movedim(-1, 1)
        return self.convs(x)

    def project(self, tokens: Tensor) -> Tensor:
        """(..., C) -> (..., D), without neighbours."""
        return self.projection(self.norm(tokens))


class Correspondence(nn.Module):
    """What each place of a frame has in common with the crop.

    Attention brings what the crop's tokens say (VQLoC). Beside it, each head says how
    much the place resembles the crop's most similar token, and the crop as a whole, by
    cosine: a match is then not something that attention must learn to compute. Cosines
    are taken of the features in training, and of the frozen embeddings, of which
    nothing can be forgotten.

    :param dim: width D.
    :param n_heads: heads; must divide dim.
    :param expansion: width of the feed-forward part, in widths.
    :param dropout: of that part.
    """

    def __init__(
        self, *, dim: int, n_heads: int, expansion: int, dropout: float
    ) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.norm = nn.LayerNorm(dim)
        self.attention = CrossAttention(dim, n_heads)
        self.match = nn.Linear(dim, dim, bias=False)
        self.importance = nn.Linear(dim, n_heads)
        # A bias, the same for all tokens, is nothing to the softmax over them. It is
        # drawn and dropped: without the draw all weights after it would be others.
        self.importance.register_parameter("bias", None)
        self.likeness = nn.Linear(4 * n_heads, dim)
        self.feed_norm = nn.LayerNorm(dim)
        self.feed_forward = FeedForward(dim, expansion=expansion, dropout=dropout)
        nn.init.eye_(self.match.weight)

    def forward(
        self,
        x: Tensor,
        crop: Tensor,
        frozen: tuple[Tensor, Tensor],
        context: Tensor,
        mask: Tensor,
    ) -> Tensor:
        """Compare.

        :param x: (N, L, D) places of frames.
        :param crop: (N, S, D) tokens of the crop that belongs to each frame.
        :param frozen: (N, L, C) and (N, S, C), the backbone's embeddings of both.
        :param context: (N, S', D) tokens that are attended to: the crop's, and prompts.
        :param mask: (N, S') bool, context that is there.
        :return: (N, L, D).
        """
        attended = self.attention(self.norm(x), context, mask)
        weights = self.importance(crop).softmax(dim=1)
        learnt = self._similarity(self.match(x), self.match(crop), weights)
        similarity = [learnt, self._similarity(*frozen, weights)]
        x = x + attended + self.likeness(torch.cat(similarity, dim=-1))
        return x + self.feed_forward(self.feed_norm(x))

    def _similarity(self, x: Tensor, crop: Tensor, weights: Tensor) -> Tensor:
        """(N, L, 2 * heads): largest cosine with a token, and weighted mean."""
        places, tokens = (
            F.normalize(part.unflatten(-1, (self.n_heads, -1)), dim=-1)
            for part in (x, crop)
        )
        # (N, L, S, heads)
        cosines = torch.einsum("nlhd,nshd->nlsh", places, tokens)
        whole = torch.einsum("nlsh,nsh->nlh", cosines, weights)
        return torch.cat([cosines.amax(dim=2), whole], dim=-1)


class NearbyFrames(nn.Module):
    """Pre-norm transformer block whose places attend to those of near frames.

    :param dim: width D.
    :param n_heads: heads.
    :param radius: frames before and after whose places are attended to.
    :param dropout: of the feed-forward part.
    """

    def __init__(self, *, dim: int, n_heads: int, radius: int, dropout: float) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.radius = radius
        self.norm = nn.LayerNorm(dim)
        self.query_key_value = nn.Linear(dim, 3 * dim)
        self.apart = nn.Parameter(torch.zeros(2 * radius + 1, dim))
        """Added to keys: how many frames they are away."""
        self.out = nn.Linear(dim, dim)
        self.feed_norm = nn.LayerNorm(dim)
        self.feed_forward = FeedForward(dim, dropout=dropout)

    def forward(self, x: Tensor, valid: Tensor) -> Tensor:
        """Attend.

        :param x: (B, T, L, D).
        :param valid: (B, T) bool.
        :return: (B, T, L, D).
        """
        query, key, value = self.query_key_value(self.norm(x)).chunk(3, dim=-1)
        key = self._around(key) + self.apart[:, None]
        around = (query, key.flatten(2, 3), self._around(value).flatten(2, 3))
        # (B, T, S, D) -> (B * T, S, D)
        parts = [part.flatten(0, 1) for part in around]
        attended = attend(parts, self._mask(valid, x.shape[2]), self.n_heads)
        x = x + self.out(attended).unflatten(0, valid.shape)
        return x + self.feed_forward(self.feed_norm(x))

    def _around(self, x: Tensor) -> Tensor:
        """(B, T, L, D) -> (B, T, 2 * radius + 1, L, D), zeros beyond the window."""
        padded = F.pad(x, (0, 0, 0, 0, self.radius, self.radius))
        return padded.unfold(1, 2 * self.radius + 1, 1).movedim(-1, 2)

    def _mask(self, valid: Tensor, n_places: int) -> Tensor:
        """(B * T, 1, S) bool; a frame that is not there sees itself."""
        size = 2 * self.radius + 1
        around = F.pad(valid, (self.radius, self.radius)).unfold(1, size, 1)
        itself = torch.arange(size, device=valid.device) == self.radius
        mask = (around | itself).repeat_interleave(n_places, dim=-1)
        return mask.flatten(0, 1)[:, None]


class SpaceTimeEncoder(nn.Module):
    """Halves pictures to ``grid_size`` places, then looks at neighbouring frames.

    :param dim: width D.
    :param n_halvings: convolutions of stride 2.
    :param grid_size: rows, and columns, of the pictures then.
    :param n_blocks: transformer blocks.
    :param n_heads: heads.
    :param radius: frames that a block sees before and after.
    :param dropout: of the feed-forward parts.
    """

    def __init__(
        self,
        *,
        dim: int,
        n_halvings: int,
        grid_size: int,
        n_blocks: int,
        n_heads: int,
        radius: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.grid_size = grid_size
        self.halvings = nn.Sequential(
            *(ConvNormReLU2d(dim, dim, stride=2) for _ in range(n_halvings))
        )
        self.place = nn.Parameter(torch.zeros(grid_size * grid_size, dim))
        self.blocks = nn.ModuleList(
            NearbyFrames(dim=dim, n_heads=n_heads, radius=radius, dropout=dropout)
            for _ in range(n_blocks)
        )
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: Tensor, valid: Tensor) -> Tensor:
        """(B, T, D, h, w), (B, T) -> (B, T, grid_size * grid_size, D).

        :raises ValueError: the pictures do not come to ``grid_size`` rows and columns.
        """
        small = self.halvings(x.flatten(0, 1))
        if small.shape[-2:] != (self.grid_size, self.grid_size):
            raise ValueError(
                f"expected pictures that come to {self.grid_size} x {self.grid_size} "
                f"places but got {tuple(small.shape[-2:])}: build benchmark and model "
                "for one size"
            )
        x = small.flatten(2).transpose(1, 2).unflatten(0, valid.shape) + self.place
        for block in self.blocks:
            x = block(x, valid)
        return self.norm(x)


class TrackHeads(nn.Module):
    """Logit and box of every anchor.

    :param dim: width D of the encoder.
    :param head_dim: width of the heads.
    :param n_doublings: doublings of rows and columns before the heads.
    :param n_convs: hidden convolutions of each head.
    """

    def __init__(
        self, *, dim: int, head_dim: int, n_doublings: int, n_convs: int
    ) -> None:
        super().__init__()
        self.doublings = nn.ModuleList(
            ConvNormReLU2d(dim, dim) for _ in range(n_doublings)
        )
        widths = [dim, *[head_dim] * n_convs]
        self.cls_convs, self.reg_convs = (
            nn.Sequential(*(ConvNormReLU2d(*pair) for pair in pairwise(widths)))
            for _ in range(2)
        )
        width = widths[-1]
        self.cls = nn.Conv2d(width, N_ANCHORS, 3, padding=1)
        n_numbers = N_ANCHORS * TRACK_REGRESSION_CHANNELS
        self.reg = nn.Conv2d(width, n_numbers, 3, padding=1)
        for head in (self.cls, self.reg):
            nn.init.normal_(head.weight, std=0.01)
            assert head.bias is not None
            nn.init.zeros_(head.bias)
        assert self.cls.bias is not None
        nn.init.constant_(self.cls.bias, -math.log(1 / PRIOR_PROBABILITY - 1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(N, D, h, w) -> (N, h * w * anchors) logits and (N, h * w * anchors, 4)."""
        for conv in self.doublings:
            x = conv(F.interpolate(x, scale_factor=2.0, mode="bilinear"))
        logits = self.cls(self.cls_convs(x)).movedim(1, -1).flatten(1)
        deltas = self.reg(self.reg_convs(x)).unflatten(
            1, (N_ANCHORS, TRACK_REGRESSION_CHANNELS)
        )
        return logits, deltas.permute(0, 3, 4, 1, 2).flatten(1, 3)


class VisualQueryLocalizer(Localizer):
    """Finds what a crop shows in the frames of a window.

    :param backbone: frozen encoder of pictures; frames and crops that come as
        embeddings have been through it.
    :param stem: of the embeddings.
    :param correspondence: of frames and crop.
    :param encoder: over space and time.
    :param heads: logits and boxes.
    """

    needs_text = True
    n_queries = 1
    """Query logits of the output, K."""

    def __init__(
        self,
        *,
        backbone: FrozenViT,
        stem: TokenStem,
        correspondence: Correspondence,
        encoder: SpaceTimeEncoder,
        heads: TrackHeads,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.stem = stem
        self.correspondence = correspondence
        self.encoder = encoder
        self.heads = heads

    @property
    def text_dim(self) -> int:
        """Width of prompts: that of the backbone's embeddings, which crops are."""
        return self.backbone.dim

    @property
    def narrated_dim(self) -> int:
        """Width D of what :attr:`narrated_module` sees."""
        return self.encoder.place.shape[1]

    def forward(self, batch: VisualQueryBatch) -> Tensor:
        """Localise.

        :param batch: frames (B, T, 3, S, S) uint8 or their embeddings (B, T, C, h, w),
            and crops alike.
        :return: (B, 1 + 4, P), zero in frames that are not there, see
            :mod:`avalanche_vilco.models.anchors`.
        """
        # (B, T, places, D) -> (B * T, D, h, w)
        pictures = self._encode(batch).flatten(0, 1).transpose(1, 2)
        pictures = pictures.unflatten(2, (self.encoder.grid_size,) * 2)
        logits, deltas = self.heads(pictures)
        packed = torch.cat([logits[..., None], bounded_deltas(deltas)], dim=-1)
        packed = packed * batch.valid.flatten()[:, None, None].to(packed.dtype)
        # (B * T, P / T, 5) -> (B, 5, P)
        return packed.unflatten(0, batch.valid.shape).flatten(1, 2).transpose(1, 2)

    def _encode(self, batch: VisualQueryBatch) -> Tensor:
        """(B, T, places, D)."""
        frames = self._embeddings(batch.frames.flatten(0, 1))
        crops = self._embeddings(batch.crop)
        x, crop = self.stem(frames), self.stem(crops).flatten(2).transpose(1, 2)
        context, mask = self._context(crops, crop)
        # (N, C, h, w) -> (N, h * w, C)
        frozen = [part.flatten(2).transpose(1, 2) for part in (frames, crops)]
        # (B, ...) -> (B * T, ...): each frame beside its crop
        n_frames = batch.valid.shape[1]
        crop, context, mask, frozen_crop = (
            part.repeat_interleave(n_frames, 0)
            for part in (crop, context, mask, frozen[1])
        )
        found = self.correspondence(
            x.flatten(2).transpose(1, 2), crop, (frozen[0], frozen_crop), context, mask
        )
        found = found.transpose(1, 2).unflatten(2, x.shape[-2:])
        encoded = self.encoder(found.unflatten(0, batch.valid.shape), batch.valid)
        self.narrated_module((encoded.mean(dim=2), batch.valid))
        return encoded

    def _embeddings(self, pictures: Tensor) -> Tensor:
        """(N, C, h, w) of pixels, or of embeddings as they come."""
        if pictures.dtype == torch.uint8:
            pictures = self.backbone(pictures)
        return pictures.to(self.stem.projection.weight.dtype)

    def _context(self, crops: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens that frames attend to: the crop's, and the prompts that it finds."""
        mask = tokens.new_ones(tokens.shape[:2], dtype=torch.bool)
        memory = self.prompt_memory
        if memory is None:
            return tokens, mask
        found = memory(crops.mean(dim=(2, 3)))
        prompts = self.stem.project(memory.prompts)
        # The weights make prompts that a crop did not find vanish, and keys learn.
        weighted = found.weights.to(prompts)[..., None, None] * prompts
        used = found.chosen.repeat_interleave(memory.length, dim=1)
        # (B, m, L, D) -> (B, m * L, D), then the crop's
        context = torch.cat([weighted.flatten(1, 2), tokens], dim=1)
        return context, torch.cat([used, mask], dim=1)

    def step_embeddings(self, batch: VisualQueryBatch) -> tuple[Tensor, Tensor]:
        """(B, T, D) mean embeddings of frames, and their (B, T) mask.

        :param batch: a batch.
        """
        return self._encode(batch).mean(dim=2), batch.valid

    @torch.no_grad()
    def query_embeddings(self, experience: Any) -> Tensor:
        """(K, C) mean embeddings of some of an experience's crops, evenly spread.

        :param experience: its dataset holds samples with crops.
        """
        data = experience.dataset
        n_crops = min(len(data), MAX_SPREAD_CROPS)
        indices = torch.linspace(0, len(data) - 1, n_crops).long().tolist()
        crops = [data[index][0]["crop"] for index in indices]
        if not crops:
            return torch.zeros(0, self.text_dim)
        pictures = torch.stack(crops).to(self.stem.projection.weight.device)
        return self._embeddings(pictures).mean(dim=(2, 3)).cpu()

    def decode(self, output: Tensor, targets: TrackWindowTargets) -> FrameAnswers:
        """Best box of each frame; of the targets only the geometry is used.

        :param output: (B, 1 + 4, P).
        :param targets: which frames there are, are searched, and what they measure.
        """
        return best_of_frames(output, targets)
