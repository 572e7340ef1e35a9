"""Video and narrations in one space, for self-supervision."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class NarrationAligner(nn.Module):
    """Brings sentences to where a localiser's video embeddings are.

    :param narration_dim: width of the embeddings of sentences.
    :param dim: width D of the localiser's embeddings.
    :param seed: of the initial weights; torch's own generator is not drawn from.
    """

    def __init__(self, *, narration_dim: int, dim: int, seed: int = 0) -> None:
        super().__init__()
        self.text = nn.utils.skip_init(nn.Linear, narration_dim, dim)
        draw = torch.Generator().manual_seed(seed)
        bound = narration_dim**-0.5
        with torch.no_grad():
            for weights in self.text.parameters():
                weights.uniform_(-bound, bound, generator=draw)

    def forward(self, narrations: Tensor) -> Tensor:
        """(..., narration_dim) -> (..., D)."""
        return self.text(narrations)


def narrated_embeddings(features: Tensor, valid: Tensor, windows: Tensor) -> Tensor:
    """Mean video embedding of what each sentence is about.

    :param features: (B, T, D) of the finest level.
    :param valid: (B, T) bool.
    :param windows: (B, S, 2) grid steps; an instant takes the nearest step.
    :return: (B, S, D), zero where a window holds no step of the clip.
    """
    steps = torch.arange(features.shape[1], device=features.device)
    inside = (steps >= windows[..., :1] - 0.5) & (steps <= windows[..., 1:] + 0.5)
    weights = (inside & valid[:, None]).to(features.dtype)
    return weights @ features / weights.sum(-1, keepdim=True).clamp(min=1)


def install_aligner(model: Any, narration_dim: int, *, seed: int = 0) -> None:
    """Give a localiser a :class:`NarrationAligner`, as ``model.narration_aligner``.

    :param model: a localiser with ``narrated_dim``, the width of its video embeddings.
    :param narration_dim: width of the embeddings of sentences.
    :param seed: of the initial weights.
    """
    aligner = NarrationAligner(
        narration_dim=narration_dim, dim=model.narrated_dim, seed=seed
    )
    device = next(model.parameters()).device
    model.narration_aligner = aligner.to(device).train(model.training)
