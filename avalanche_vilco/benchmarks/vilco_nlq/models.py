"""Question localisers at two sizes."""

from __future__ import annotations

from typing_extensions import Unpack

from avalanche_vilco.models.build import Sizes, localizer_parts
from avalanche_vilco.models.decoding import DecodingOptions, MomentDecoder
from avalanche_vilco.models.question_localizer import QuestionLocalizer

TINY = Sizes(
    dim=48,
    n_heads=2,
    n_stem_convs=1,
    n_text_blocks=1,
    n_stem_blocks=1,
    n_levels=6,
    n_head_convs=1,
    dropout=0.0,
    span=9,
)
BASE = Sizes(
    dim=384,
    n_heads=4,
    n_stem_convs=2,
    n_text_blocks=4,
    n_stem_blocks=4,
    n_levels=7,
    n_head_convs=2,
    dropout=0.0,
    span=9,
)


def vilco_nlq_tiny(
    *, feature_dim: int = 32, text_dim: int = 48, **decoding: Unpack[DecodingOptions]
) -> QuestionLocalizer:
    """Question localiser of the embedded default: seconds on a CPU.

    :param feature_dim: ``benchmark.info["feature_dim"]``.
    :param text_dim: ``benchmark.text_dim``.
    :param decoding: options of :class:`MomentDecoder`.
    """
    options: DecodingOptions = {"max_windows": 5, **decoding}
    decoder = MomentDecoder(**options)
    widths = {"feature_dim": feature_dim, "text_dim": text_dim}
    return QuestionLocalizer(**localizer_parts(TINY, **widths, decoder=decoder))


def vilco_nlq_base(
    *, feature_dim: int = 256, text_dim: int = 768, **decoding: Unpack[DecodingOptions]
) -> QuestionLocalizer:
    """Question localiser at the public sizes.

    Width 384, four text blocks, four blocks at full length, seven levels over up to
    2,560 steps, attention over nine steps at each level.

    :param feature_dim: ``benchmark.info["feature_dim"]``.
    :param text_dim: ``benchmark.text_dim``.
    :param decoding: options of :class:`MomentDecoder`.
    """
    defaults: DecodingOptions = {"max_candidates": 5000, "max_windows": 5}
    options: DecodingOptions = {**defaults, **decoding}
    decoder = MomentDecoder(**options)
    widths = {"feature_dim": feature_dim, "text_dim": text_dim}
    return QuestionLocalizer(**localizer_parts(BASE, **widths, decoder=decoder))
