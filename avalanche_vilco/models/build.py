"""Localisers of windows from their sizes, which stand with each benchmark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from avalanche_vilco.models.decoding import MomentDecoder
from avalanche_vilco.models.localizer import (
    FeaturePyramid,
    MomentHeads,
    TextBranch,
    VideoStem,
)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of a localiser of windows."""

    dim: int
    n_heads: int
    n_stem_convs: int
    n_text_blocks: int
    n_stem_blocks: int
    n_levels: int
    n_head_convs: int
    dropout: float
    span: int | None = None
    """Steps that attention reaches over at each level; None: all."""


def localizer_parts(
    sizes: Sizes, *, feature_dim: int, text_dim: int, decoder: MomentDecoder
) -> dict[str, Any]:
    """The parts of a localiser by name.

    :param sizes: of its layers.
    :param feature_dim: width of the video features.
    :param text_dim: width of the token features.
    :param decoder: of its output.
    """
    return {
        "stem": VideoStem(
            in_dim=feature_dim, dim=sizes.dim, n_convs=sizes.n_stem_convs
        ),
        "text": TextBranch(
            in_dim=text_dim,
            dim=sizes.dim,
            n_heads=sizes.n_heads,
            n_blocks=sizes.n_text_blocks,
            dropout=sizes.dropout,
        ),
        "pyramid": FeaturePyramid(
            dim=sizes.dim,
            n_heads=sizes.n_heads,
            n_stem_blocks=sizes.n_stem_blocks,
            n_levels=sizes.n_levels,
            dropout=sizes.dropout,
            span=sizes.span,
        ),
        "heads": MomentHeads(
            dim=sizes.dim, n_convs=sizes.n_head_convs, n_levels=sizes.n_levels
        ),
        "decoder": decoder,
    }
