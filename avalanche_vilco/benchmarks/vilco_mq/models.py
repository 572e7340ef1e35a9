"""Moment localisers at two sizes, and their lower bounds."""

from __future__ import annotations

from typing_extensions import Unpack

from avalanche_vilco.models.build import Sizes, localizer_parts
from avalanche_vilco.models.decoding import DecodingOptions, MomentDecoder
from avalanche_vilco.models.localizer import MomentHeads, TextBranch, VideoStem
from avalanche_vilco.models.moment_localizer import MomentLocalizer
from avalanche_vilco.models.pooled_pyramid import PooledPyramid

TINY = Sizes(
    dim=48,
    n_heads=2,
    n_stem_convs=1,
    n_text_blocks=1,
    n_stem_blocks=1,
    n_levels=6,
    n_head_convs=1,
    dropout=0.0,
)
BASE = Sizes(
    dim=1024,
    n_heads=16,
    n_stem_convs=2,
    n_text_blocks=2,
    n_stem_blocks=2,
    n_levels=10,
    n_head_convs=2,
    dropout=0.1,
)
BASE_DECODING: DecodingOptions = {"max_candidates": 5000}


def vilco_mq_tiny(
    *, feature_dim: int = 32, text_dim: int = 48, **decoding: Unpack[DecodingOptions]
) -> MomentLocalizer:
    """Moment localiser of the embedded default: seconds on a CPU.

    :param feature_dim: ``benchmark.info["feature_dim"]``.
    :param text_dim: ``benchmark.text_dim``.
    :param decoding: options of :class:`MomentDecoder`.
    """
    decoder = MomentDecoder(**decoding)
    widths = {"feature_dim": feature_dim, "text_dim": text_dim}
    return MomentLocalizer(**localizer_parts(TINY, **widths, decoder=decoder))


def vilco_mq_base(
    *, feature_dim: int = 4096, text_dim: int = 768, **decoding: Unpack[DecodingOptions]
) -> MomentLocalizer:
    """Moment localiser at the paper's sizes.

    EgoVLPv2 features of width 4096, CLIP ViT-L/14 tokens of width 768, width 1024, ten
    levels over about 1,024 steps.

    :param feature_dim: ``benchmark.info["feature_dim"]``.
    :param text_dim: ``benchmark.text_dim``.
    :param decoding: options of :class:`MomentDecoder`.
    """
    options: DecodingOptions = {**BASE_DECODING, **decoding}
    decoder = MomentDecoder(**options)
    widths = {"feature_dim": feature_dim, "text_dim": text_dim}
    return MomentLocalizer(**localizer_parts(BASE, **widths, decoder=decoder))


def vilco_mq_tiny_lower(
    *, feature_dim: int = 32, text_dim: int = 48, **decoding: Unpack[DecodingOptions]
) -> MomentLocalizer:
    """Lower bound of :func:`vilco_mq_tiny`: no attention, heads of one layer.

    The text of a query enters as one linear match in the head.

    :param feature_dim: ``benchmark.info["feature_dim"]``.
    :param text_dim: ``benchmark.text_dim``.
    :param decoding: options of :class:`MomentDecoder`.
    """
    return _lower_bound(TINY, feature_dim, text_dim, MomentDecoder(**decoding))


def vilco_mq_base_lower(
    *, feature_dim: int = 4096, text_dim: int = 768, **decoding: Unpack[DecodingOptions]
) -> MomentLocalizer:
    """Lower bound of :func:`vilco_mq_base`, as :func:`vilco_mq_tiny_lower` is of tiny.

    The public one has 93 M parameters and no text at all.

    :param feature_dim: ``benchmark.info["feature_dim"]``.
    :param text_dim: ``benchmark.text_dim``.
    :param decoding: options of :class:`MomentDecoder`.
    """
    options: DecodingOptions = {**BASE_DECODING, **decoding}
    decoder = MomentDecoder(**options)
    return _lower_bound(BASE, feature_dim, text_dim, decoder)


def _lower_bound(
    sizes: Sizes, feature_dim: int, text_dim: int, decoder: MomentDecoder
) -> MomentLocalizer:
    dim, n_levels = sizes.dim, sizes.n_levels
    text = TextBranch(in_dim=text_dim, dim=dim, n_heads=1, n_blocks=0, dropout=0.0)
    # No attention reads the token that stands for none of the queries.
    text.null_token.requires_grad_(False)
    return MomentLocalizer(
        stem=VideoStem(in_dim=feature_dim, dim=dim, n_convs=sizes.n_stem_convs),
        text=text,
        pyramid=PooledPyramid(dim=dim, n_levels=n_levels),
        heads=MomentHeads(dim=dim, n_convs=0, n_levels=n_levels),
        decoder=decoder,
    )
