"""A feature pyramid without attention: the encoder of the lower bound."""

from __future__ import annotations

from torch import Tensor, nn

from avalanche_vilco.models.blocks import masked_max_pool
from avalanche_vilco.models.localizer import FeaturePyramid


class PooledPyramid(FeaturePyramid):
    """Each level is the one before, max-pooled to half its length.

    It has the levels of :class:`FeaturePyramid` and none of its blocks: steps see no
    text, and no other steps than a pool's.

    :param dim: width D.
    :param n_levels: levels, the first at full length.
    """

    def __init__(self, *, dim: int, n_levels: int) -> None:
        super().__init__(
            dim=dim, n_heads=1, n_stem_blocks=0, n_levels=n_levels, dropout=0.0
        )
        self.blocks = nn.ModuleList()

    def forward(
        self, x: Tensor, valid: Tensor, tokens: Tensor, valid_tokens: Tensor
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Pool, as :meth:`FeaturePyramid.forward` fuses."""
        features: list[Tensor] = []
        masks: list[Tensor] = []
        for level, norm in enumerate(self.norms):
            if level:
                x, valid = masked_max_pool(x, valid), valid[:, ::2]
            features.append(norm(x))
            masks.append(valid)
        return features, masks
