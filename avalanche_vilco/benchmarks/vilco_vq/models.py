"""Visual-query localisers at two sizes."""

from __future__ import annotations

from pathlib import Path

from avalanche_vilco.models.visual_backbone import dinov2, random_vit
from avalanche_vilco.models.visual_query_localizer import (
    Correspondence,
    SpaceTimeEncoder,
    TokenStem,
    TrackHeads,
    VisualQueryLocalizer,
)


def vilco_vq_tiny(*, image_size: int = 128) -> VisualQueryLocalizer:
    """Visual-query localiser of the embedded default: minutes on a CPU.

    Its backbone has drawn weights, the same in every run.

    :param image_size: ``benchmark.info["image_size"]``, a multiple of 16.
    """
    dim, patch, n_heads = 48, 8, 4
    backbone = random_vit(
        image_size=image_size, patch=patch, dim=64, depth=1, n_heads=2
    )
    return VisualQueryLocalizer(
        backbone=backbone,
        stem=TokenStem(in_dim=backbone.dim, dim=dim, n_convs=1),
        correspondence=Correspondence(
            dim=dim, n_heads=n_heads, expansion=1, dropout=0.0
        ),
        encoder=SpaceTimeEncoder(
            dim=dim,
            n_halvings=1,
            grid_size=image_size // (2 * patch),
            n_blocks=1,
            n_heads=n_heads,
            radius=2,
            dropout=0.0,
        ),
        heads=TrackHeads(dim=dim, head_dim=dim, n_doublings=0, n_convs=1),
    )


def vilco_vq_base(
    *, image_size: int = 448, weights: Path | str | None = None
) -> VisualQueryLocalizer:
    """Visual-query localiser at the public sizes.

    DINOv2 ViT-B/14 on 448 pixels, width 256, three blocks over 8 x 8 places of 30
    frames, 16 x 16 x 12 anchors.

    :param image_size: ``benchmark.info["image_size"]``, a multiple of 56.
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
            grid_size=image_size // backbone.stride // 2**n_halvings,
            n_blocks=3,
            n_heads=8,
            radius=2,
            dropout=0.1,
        ),
        heads=TrackHeads(dim=dim, head_dim=256, n_doublings=1, n_convs=3),
    )
