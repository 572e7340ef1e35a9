"""Model builders: the only file with sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from avalanche_vilco.models.decoding import MomentDecoder
from avalanche_vilco.models.localizer import (
    FeaturePyramid,
    MomentHeads,
    TextBranch,
    VideoStem,
)
from avalanche_vilco.models.moment_localizer import MomentLocalizer
from avalanche_vilco.models.pooled_pyramid import PooledPyramid
from avalanche_vilco.models.question_localizer import QuestionLocalizer
from avalanche_vilco.models.visual_backbone import dinov2, random_vit
from avalanche_vilco.models.visual_query_localizer import (
    Correspondence,
    SpaceTimeEncoder,
    TokenStem,
    TrackHeads,
    VisualQueryLocalizer,
)


def vilco_mq_tiny(
    *, feature_dim: int = 32, text_dim: int = 48, **decoding: Any
) -> MomentLocalizer:
    """Moment localiser of the embedded default: seconds on a CPU.

    :param feature_dim: ``benchmark.info["feature_dim"]``.
    :param text_dim: ``benchmark.text_dim``.
    :param decoding: options of :class:`MomentDecoder`.
    """
    return MomentLocalizer(
        **_parts(
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
    return MomentLocalizer(
        **_parts(
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
    )


def vilco_mq_tiny_lower(
    *, feature_dim: int = 32, text_dim: int = 48, **decoding: Any
) -> MomentLocalizer:
    """Lower bound of :func:`vilco_mq_tiny`: no attention, heads of one layer.

    The text of a query enters as one linear match in the head.

    :param feature_dim: ``benchmark.info["feature_dim"]``.
    :param text_dim: ``benchmark.text_dim``.
    :param decoding: options of :class:`MomentDecoder`.
    """
    return _lower_bound(
        feature_dim=feature_dim,
        text_dim=text_dim,
        dim=48,
        n_stem_convs=1,
        n_levels=6,
        decoder=MomentDecoder(**decoding),
    )


def vilco_mq_base_lower(
    *, feature_dim: int = 4096, text_dim: int = 768, **decoding: Any
) -> MomentLocalizer:
    """Lower bound of :func:`vilco_mq_base`, as :func:`vilco_mq_tiny_lower` is of the
    tiny model. (The public one has 93 M parameters and no text at all.)

    :param feature_dim: ``benchmark.info["feature_dim"]``.
    :param text_dim: ``benchmark.text_dim``.
    :param decoding: options of :class:`MomentDecoder`.
    """
    return _lower_bound(
        feature_dim=feature_dim,
        text_dim=text_dim,
        dim=1024,
        n_stem_convs=2,
        n_levels=10,
        decoder=MomentDecoder(**{"max_candidates": 5000, **decoding}),
    )


def _lower_bound(
    *,
    feature_dim: int,
    text_dim: int,
    dim: int,
    n_stem_convs: int,
    n_levels: int,
    decoder: MomentDecoder,
) -> MomentLocalizer:
    text = TextBranch(in_dim=text_dim, dim=dim, n_heads=1, n_blocks=0, dropout=0.0)
    # No attention reads the token that stands for none of the queries.
    text.null_token.requires_grad_(False)
    return MomentLocalizer(
        stem=VideoStem(in_dim=feature_dim, dim=dim, n_convs=n_stem_convs),
        text=text,
        pyramid=PooledPyramid(dim=dim, n_levels=n_levels),
        heads=MomentHeads(dim=dim, n_convs=0, n_levels=n_levels),
        decoder=decoder,
    )


def vilco_nlq_tiny(
    *, feature_dim: int = 32, text_dim: int = 48, **decoding: Any
) -> QuestionLocalizer:
    """Question localiser of the embedded default: seconds on a CPU.

    :param feature_dim: ``benchmark.info["feature_dim"]``.
    :param text_dim: ``benchmark.text_dim``.
    :param decoding: options of :class:`MomentDecoder`.
    """
    return QuestionLocalizer(
        **_parts(
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
            window=9,
            decoder=MomentDecoder(**{"max_windows": 5, **decoding}),
        )
    )


def vilco_nlq_base(
    *, feature_dim: int = 256, text_dim: int = 768, **decoding: Any
) -> QuestionLocalizer:
    """Question localiser at the public sizes: width 384, four text blocks, four
    blocks at full length, seven levels over up to 2,560 steps, attention over nine
    steps at each level.

    :param feature_dim: ``benchmark.info["feature_dim"]``.
    :param text_dim: ``benchmark.text_dim``.
    :param decoding: options of :class:`MomentDecoder`.
    """
    return QuestionLocalizer(
        **_parts(
            feature_dim=feature_dim,
            text_dim=text_dim,
            dim=384,
            n_heads=4,
            n_stem_convs=2,
            n_text_blocks=4,
            n_stem_blocks=4,
            n_levels=7,
            n_head_convs=2,
            dropout=0.1,
            window=9,
            decoder=MomentDecoder(
                **{"max_candidates": 5000, "max_windows": 5, **decoding}
            ),
        )
    )


def vilco_vq_tiny(*, side: int = 128) -> VisualQueryLocalizer:
    """Visual-query localiser of the embedded default: minutes on a CPU.

    Its backbone has drawn weights, the same in every run.

    :param side: ``benchmark.info["side"]``, a multiple of 16.
    """
    dim, patch, n_heads = 48, 8, 4
    backbone = random_vit(side=side, patch=patch, dim=64, depth=1, n_heads=2)
    return VisualQueryLocalizer(
        backbone=backbone,
        stem=TokenStem(in_dim=backbone.dim, dim=dim, n_convs=1),
        correspondence=Correspondence(
            dim=dim, n_heads=n_heads, expansion=1, dropout=0.0
        ),
        encoder=SpaceTimeEncoder(
            dim=dim,
            n_halvings=1,
            side=side // (2 * patch),
            n_blocks=1,
            n_heads=n_heads,
            radius=2,
            dropout=0.0,
        ),
        heads=TrackHeads(dim=dim, head_dim=dim, n_doublings=0, n_convs=1),
    )


def vilco_vq_base(
    *, side: int = 448, weights: Path | str | None = None
) -> VisualQueryLocalizer:
    """Visual-query localiser at the public sizes: DINOv2 ViT-B/14 on 448 pixels, width
    256, three blocks over 8 x 8 places of 30 frames, 16 x 16 x 12 anchors.

    :param side: ``benchmark.info["side"]``, a multiple of 56.
    :param weights: of the backbone, as for
        :func:`~avalanche_vilco.models.visual_backbone.dinov2`.
    """
    dim, n_halvings = 256, 2
    backbone = dinov2(weights)
    return VisualQueryLocalizer(
        backbone=backbone,
        stem=TokenStem(in_dim=backbone.dim, dim=dim, n_convs=2),
        correspondence=Correspondence(dim=dim, n_heads=4, expansion=4, dropout=0.1),
        encoder=SpaceTimeEncoder(
            dim=dim,
            n_halvings=n_halvings,
            side=side // backbone.stride // 2**n_halvings,
            n_blocks=3,
            n_heads=8,
            radius=2,
            dropout=0.1,
        ),
        heads=TrackHeads(dim=dim, head_dim=256, n_doublings=1, n_convs=3),
    )


def _parts(
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
    window: int | None = None,
) -> dict[str, Any]:
    """The parts of a localiser by name."""
    return {
        "stem": VideoStem(in_dim=feature_dim, dim=dim, n_convs=n_stem_convs),
        "text": TextBranch(
            in_dim=text_dim,
            dim=dim,
            n_heads=n_heads,
            n_blocks=n_text_blocks,
            dropout=dropout,
        ),
        "pyramid": FeaturePyramid(
            dim=dim,
            n_heads=n_heads,
            n_stem_blocks=n_stem_blocks,
            n_levels=n_levels,
            dropout=dropout,
            window=window,
        ),
        "heads": MomentHeads(dim=dim, n_convs=n_head_convs, n_levels=n_levels),
        "decoder": decoder,
    }
