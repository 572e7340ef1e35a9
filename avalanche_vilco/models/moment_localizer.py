"""Text-conditioned localiser of moments.

A query is *learnt* once it has been taught a row of the head, and has a *text* once its
tokens are held. The queries are those learnt so far, in whatever order, the same for
every clip, in training and in evaluation: no model sees which queries a clip answers,
unless a batch says which texts its clips are *shown* (``ClipBatch.shown``), as the
reference protocol may.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from avalanche_vilco.core.batch import ClipBatch
from avalanche_vilco.core.experiences import whole_experience
from avalanche_vilco.models.blocks import masked_mean, spread
from avalanche_vilco.models.localizer import PyramidLocalizer, QueryText, prompt_mask
from avalanche_vilco.models.prompt_memory import PromptMemory, PromptSelection


class LearnableQuery(Protocol):
    """What the model needs to know of a query to learn it."""

    @property
    def class_index(self) -> int:
        """Its row of the head."""

    @property
    def tokens(self) -> Tensor:
        """(L, C) token features of its text."""


class MomentLocalizer(PyramidLocalizer):
    """Localises the moments of all queries learnt so far.

    :param parts: of :class:`~avalanche_vilco.models.localizer.PyramidLocalizer`.
    """

    query_tokens: Tensor
    known_tokens: Tensor
    text_places: Tensor
    """(N,) positions of the real tokens among the K * L held: texts differ in length,
    and nothing is computed for the slots between."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.register_buffer("query_tokens", torch.zeros(0, 1, self.text_dim))
        self.register_buffer("known_tokens", torch.zeros(0, 1, dtype=torch.bool))
        places = torch.zeros(0, dtype=torch.long)
        self.register_buffer("text_places", places, persistent=False)

    def adaptation(self, experience: Any) -> None:
        """Learn the queries of an experience; in training mode only.

        :param experience: has ``queries_in_this_experience``, or is part of one that
            has; the texts of its ``shown_queries``, if it has any, are held too.
        :raises TypeError: it has not.
        :raises ValueError: token features are none, or of another width than the
            model's.
        """
        if not self.training:
            return
        experience = whole_experience(experience)
        queries = getattr(experience, "queries_in_this_experience", None)
        if queries is None:
            raise TypeError(
                "expected an experience with queries_in_this_experience, as the "
                f"streams of vilco_mq() have, but got {type(experience).__name__}; "
                "Avalanche's own builders make none with queries, and its "
                "benchmark_with_validation_stream drops them: build the benchmark with "
                "valid_share=0.2 instead"
            )
        self.learn_queries(queries)
        self.hold_texts(getattr(experience, "shown_queries", ()))

    def learn_queries(self, queries: Sequence[LearnableQuery]) -> None:
        """Have a row of the head and a text for each query.

        :param queries: queries; those learnt are left as they are.
        :raises ValueError: token features are none, or of another width than the
            model's.
        """
        self.hold_texts(queries)
        self.heads.cls.teach([query.class_index for query in queries])

    def hold_texts(self, queries: Sequence[LearnableQuery]) -> None:
        """Have a text for each query.

        The text of a query that is not learnt matters to clips that are shown it only.

        :param queries: queries; texts that are held are left as they are.
        :raises ValueError: token features are none, or of another width than the
            model's.
        """
        held = self.known_tokens.any(dim=1).nonzero().flatten().tolist()
        new = [query for query in queries if query.class_index not in held]
        if not new:
            return
        for query in new:
            if query.tokens.shape[1:] != (self.text_dim,) or not len(query.tokens):
                raise ValueError(
                    f"expected (L > 0, {self.text_dim}) token features for class index "
                    f"{query.class_index} but got {tuple(query.tokens.shape)}: build "
                    "the model with text_dim=benchmark.text_dim"
                )
        self._resize(
            max(query.class_index for query in new) + 1,
            max(len(query.tokens) for query in new),
        )
        for query in new:
            length = len(query.tokens)
            self.query_tokens[query.class_index, :length] = query.tokens
            self.known_tokens[query.class_index, :length] = True
        self.text_places = _places(self.known_tokens)

    def _resize(self, n_texts: int, n_tokens: int) -> None:
        n_held, length = self.known_tokens.shape
        more = (0, max(n_tokens - length, 0), 0, max(n_texts - n_held, 0))
        self.query_tokens = nn.functional.pad(self.query_tokens, (0, 0, *more))
        self.known_tokens = nn.functional.pad(self.known_tokens, more)

    def query_embeddings(self, experience: Any) -> Tensor:
        """(K, C) mean tokens of the queries that an experience brings.

        :param experience: has ``queries_in_this_experience``, or is part of one.
        """
        experience = whole_experience(experience)
        queries = getattr(experience, "queries_in_this_experience", ())
        means = [query.tokens.mean(dim=0) for query in queries]
        return torch.stack(means) if means else torch.zeros(0, self.text_dim)

    def find_prompts(self, memory: PromptMemory) -> PromptSelection:
        """Find the prompts of each query that has a text.

        :param memory: the model's.
        """
        has_text = self.known_tokens.any(dim=1)
        return memory(masked_mean(self.query_tokens, self.known_tokens), has_text)

    def text_of(self, clips: ClipBatch) -> QueryText:
        """Encode the texts of the queries; see the module for which clips see which.

        :param clips: a batch.
        """
        tokens = self.text(self.query_tokens, self.known_tokens, self.text_places)
        # (B or 1, K) -> (B or 1, N + 1), the last, for none, always seen
        seen = self._shown(clips)[:, self.text_places // self.known_tokens.shape[1]]
        mask = nn.functional.pad(seen, (0, 1), value=True)
        return QueryText(tokens, mask, self._summaries(tokens[0, :-1]))

    def prompts_of(self, memory: PromptMemory, clips: ClipBatch) -> QueryText:
        """Encode the union of the prompts that the clips' queries find.

        :param memory: the model's.
        :param clips: a batch.
        """
        tokens, embeddings = self.encoded_prompts(memory)
        found = self.find_prompts(memory)
        used = (self._shown(clips).float() @ found.chosen.float()) > 0
        return QueryText(
            tokens,
            prompt_mask(used, memory.length),
            found.weights[: self.n_queries].to(embeddings) @ embeddings,
        )

    def _shown(self, clips: ClipBatch) -> Tensor:
        """(B or 1, K) texts that clips see: of all queries learnt, if none is said."""
        n_texts = len(self.known_tokens)
        if clips.shown is not None:
            return clips.shown[:, :n_texts]
        more = n_texts - self.n_queries
        return nn.functional.pad(self.taught_queries, (0, more))[None]

    def _summaries(self, embeddings: Tensor) -> Tensor:
        """(K, D) mean embedding of each query's tokens, of (N, D)."""
        learnt = slice(self.n_queries)
        # (N, D) -> (K, L, D)
        rows = spread(embeddings, self.text_places, self.known_tokens.shape)
        return masked_mean(rows[learnt], self.known_tokens[learnt])

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, *args: Any
    ) -> None:
        stored = state_dict.get(f"{prefix}known_tokens")
        if stored is not None:
            self._resize(*stored.shape)
            self.text_places = _places(stored).to(self.text_places.device)
        super()._load_from_state_dict(state_dict, prefix, *args)


def _places(valid: Tensor) -> Tensor:
    """(N,) positions of what is True."""
    return valid.flatten().nonzero().flatten()
