"""Model builders: the only file with sizes."""

from __future__ import annotations

from typing import Any

from avalanche_vilco.models.decoding import MomentDecoder
from avalanche_vilco.models.moment_localizer import (
    FeaturePyramid,
    MomentHeads,
    MomentLocalizer,
    TextBranch,
    VideoStem,
)


def vilco_mq_tiny(
    *, feature_dim: int = 32, text_dim: int = 48, **decoding: Any
) -> MomentLocalizer:
    """Moment localiser of the embedded default: seconds on a CPU.

    :param feature_dim: ``benchmark.info["feature_dim"]``.
    :param text_dim: ``benchmark.text_dim``.
    :param decoding: options of :class:`MomentDecoder`.
    """
    return _moment_localizer(
        feature_dim=feature_dim,
        text_dim=text_dim,
        dim=48,
        n_heads=2,
        n_stem_convs=1,
        n_text_blocks=1,
        n_stem_blocks=1,
        n_levels=6,
        n_head_convs=1,
        dropout=0.0,
        decoder=MomentDecoder(**decoding),
    )


def vilco_mq_base(
    *, feature_dim: int = 4096, text_dim: int = 768, **decoding: Any
) -> MomentLocalizer:
    """Moment localiser at the paper's sizes: EgoVLPv2 features of width 4096, CLIP
    ViT-L/14 tokens of width 768, width 1024, ten levels over about 1,024 steps.

    :param feature_dim: ``benchmark.info["feature_dim"]``.
    :param text_dim: ``benchmark.text_dim``.
    :param decoding: options of :class:`MomentDecoder`.
    """
    return _moment_localizer(
        feature_dim=feature_dim,
        text_dim=text_dim,
        dim=1024,
        n_heads=16,
        n_stem_convs=2,
        n_text_blocks=2,
        n_stem_blocks=2,
        n_levels=10,
        n_head_convs=2,
        dropout=0.1,
        decoder=MomentDecoder(**{"max_candidates": 5000, **decoding}),
    )


def _moment_localizer(
    *,
    feature_dim: int,
    text_dim: int,
    dim: int,
    n_heads: int,
    n_stem_convs: int,
    n_text_blocks: int,
    n_stem_blocks: int,
    n_levels: int,
    n_head_convs: int,
    dropout: float,
    decoder: MomentDecoder,
) -> MomentLocalizer:
    return MomentLocalizer(
        stem=VideoStem(in_dim=feature_dim, dim=dim, n_convs=n_stem_convs),
        text=TextBranch(
            in_dim=text_dim,
            dim=dim,
            n_heads=n_heads,
            n_blocks=n_text_blocks,
            dropout=dropout,
        ),
        pyramid=FeaturePyramid(
            dim=dim,
            n_heads=n_heads,
            n_stem_blocks=n_stem_blocks,
            n_levels=n_levels,
            dropout=dropout,
        ),
        heads=MomentHeads(dim=dim, n_convs=n_head_convs, n_levels=n_levels),
        decoder=decoder,
    )
