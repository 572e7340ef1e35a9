"""Long-term memory of ViLCo: learnable prompts, found by keys.

Tang et al. 2024, section 4: a memory of m pairs of a prompt and a key. The embedding
of a query is matched with the keys by cosine, and the prompts of the best N keys take
the place of the query's tokens. Which experience a query belongs to is never asked, and
queries do not vote: each finds its own prompts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

MODES = ("replace", "prepend")
KEY_NOISE = 0.1
"""Of keys laid among queries, as a share of the queries' norm."""


@dataclass(frozen=True)
class PromptSelection:
    """Prompts that queries have found."""

    weights: Tensor
    """(K, m), zero for prompts not selected; a row sums to 1. Keys learn by these."""
    similarity: Tensor
    """(K, m) cosine of queries and keys."""

    @property
    def chosen(self) -> Tensor:
        """(K, m) bool, N prompts a row."""
        return self.weights.detach() > 0


class PromptMemory(nn.Module):
    """m pairs (prompt, key).

    A query's embedding is the mean of its token features, which are frozen. Its
    prompts are weighted by a softmax over the cosines of the selected keys, so that
    the task's loss reaches the keys (in the public code only a pull term does).

    :param n_prompts: m.
    :param length: tokens L of a prompt.
    :param width: channels D of a token, those of the queries' token features.
    :param top_n: prompts N that a query finds, in [1, m].
    :param mode: ``"replace"``: prompts stand in for the query's tokens, as in the
        paper; ``"prepend"``: they come beside them, as in the public code.
    :param temperature: of the softmax over cosines, > 0.
    :param seed: of the initial prompts and keys; torch's own generator is not drawn
        from, so that a model's other weights and the order of samples are those of a
        run without prompts.
    :raises ValueError: a parameter is out of range.
    """

    def __init__(
        self,
        *,
        n_prompts: int = 10,
        length: int = 4,
        width: int,
        top_n: int = 4,
        mode: str = "replace",
        temperature: float = 0.1,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if not 1 <= top_n <= n_prompts:
            raise ValueError(f"expected top_n in [1, {n_prompts}] but got {top_n}")
        if length < 1:
            raise ValueError(f"expected length of at least 1 but got {length}")
        if mode not in MODES:
            raise ValueError(f"expected mode in {list(MODES)} but got {mode!r}")
        if not temperature > 0:
            raise ValueError(f"expected temperature > 0 but got {temperature}")
        self.top_n = top_n
        self.length = length
        self.mode = mode
        self.temperature = temperature
        self.seed = seed
        draw = torch.Generator().manual_seed(seed)
        self.prompts = nn.Parameter(
            torch.randn(n_prompts, length, width, generator=draw) / math.sqrt(width)
        )
        self.keys = nn.Parameter(torch.randn(n_prompts, width, generator=draw))

    @torch.no_grad()
    def spread_keys(self, queries: Tensor) -> None:
        """Lay keys and prompts among queries.

        Text encoders put all sentences into a narrow cone, where random keys see all
        queries alike. Queries as far from each other as can be serve as keys, again
        from the first where there are more keys than queries, each with some noise;
        a prompt's tokens start as its key.

        :param queries: (K, D) embeddings, K may be 0.
        """
        if not len(queries):
            return
        order = _farthest_first(queries.detach().cpu().float())
        indices = [order[i % len(order)] for i in range(len(self.keys))]
        chosen = queries.detach().cpu().float()[indices]
        draw = torch.Generator().manual_seed(self.seed + 1)
        scale = (
            KEY_NOISE * chosen.norm(dim=1, keepdim=True) / math.sqrt(chosen.shape[1])
        )
        shaken = chosen + scale * torch.randn(chosen.shape, generator=draw)
        self.keys.copy_(shaken)
        tokens = torch.randn(self.prompts.shape, generator=draw) * scale[:, None]
        self.prompts.copy_(shaken[:, None] + tokens)

    def forward(
        self, queries: Tensor, is_query: Tensor | None = None
    ) -> PromptSelection:
        """Find the prompts of each query.

        :param queries: (K, D) embeddings.
        :param is_query: (K,) bool, rows that are one; others find none.
        """
        similarity = F.normalize(queries, dim=-1) @ F.normalize(self.keys, dim=-1).T
        best, index = similarity.topk(self.top_n, dim=-1)
        weights = (best / self.temperature).softmax(dim=-1)
        if is_query is not None:
            weights = weights * is_query[:, None]
        return PromptSelection(
            torch.zeros_like(similarity).scatter(-1, index, weights), similarity
        )

    def pull(self, selection: PromptSelection) -> Tensor:
        """How far queries are from the keys that they found: mean of 1 - cosine.

        :param selection: of at least one query.
        :return: 0-d, in [0, 2].
        """
        chosen = selection.chosen.to(selection.similarity.dtype)
        return 1 - (selection.similarity * chosen).sum() / chosen.sum().clamp(min=1)


def _farthest_first(points: Tensor) -> list[int]:
    """Indices of points, each the one farthest in cosine from those before it."""
    unit = F.normalize(points, dim=1)
    order = [0]
    nearest = unit @ unit[0]
    for _ in range(len(points) - 1):
        nearest[order] = torch.inf
        order.append(int(nearest.argmin()))
        nearest = torch.maximum(nearest, unit @ unit[order[-1]])
    return order


def install_prompts(
    model: Any, queries: Tensor | None = None, **options: Any
) -> PromptMemory:
    """Give a localiser a prompt memory, as a submodule.

    Call it before the optimizer is built, or before the strategy's next training,
    which takes in new parameters.

    :param model: a localiser with ``text_dim`` and ``prompt_memory``.
    :param queries: (K, C) embeddings of queries of the first experience; keys start
        among them.
    :param options: of :class:`PromptMemory`.
    :return: the memory, now ``model.prompt_memory``.
    :raises TypeError: the model cannot hold one.
    """
    if not hasattr(model, "prompt_memory"):
        raise TypeError(
            "expected a localiser of avalanche_vilco.models, which can hold prompts, "
            f"but got {type(model).__name__}"
        )
    memory = PromptMemory(width=model.text_dim, **options)
    if queries is not None:
        memory.spread_keys(queries)
    device = next(model.parameters()).device
    model.prompt_memory = memory.to(device).train(model.training)
    return memory
