"""What Avalanche's storage policies need to look at clips."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from avalanche_vilco.data.batch import ClipBatch


class ClipCodes(nn.Module):
    """A localiser whose output is its clip codes.

    Avalanche's selection strategies hook a layer of a model's forward pass and want
    one vector a sample from it::

        HerdingSelectionStrategy(ClipCodes(model), "model.pooled")

    :param model: has ``clip_codes`` and a layer ``pooled`` that its codes go through.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, clips: ClipBatch) -> Tensor:
        """(B, D) clip codes."""
        return self.model.clip_codes(clips)
