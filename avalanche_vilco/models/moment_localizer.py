"""Text-conditioned localiser of moments.

The queries are those learnt so far, the same for every clip, in training and in
evaluation: no model sees which queries a clip answers, unless a batch says which
texts it shows (``ClipBatch.shown``), as the reference protocol may.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from avalanche_vilco.core.batch import ClipBatch
from avalanche_vilco.models.decoding import MomentDecoder
from avalanche_vilco.models.localizer import (
    FeaturePyramid,
    MomentHeads,
    PyramidLocalizer,
    ShownText,
    TextBranch,
    VideoStem,
    beside,
    seen_prompts,
)
from avalanche_vilco.models.prompt_memory import (
    PromptMemory,
    PromptSelection,
    mean_token,
)


class LearnableQuery(Protocol):
    """What the model needs to know of a query to learn it."""

    @property
    def class_index(self) -> int:
        """Its output channel."""

    @property
    def tokens(self) -> Tensor:
        """(L, C) token features of its text."""


class MomentLocalizer(PyramidLocalizer):
    """Localises the moments of all queries learnt so far.

    :param stem: video branch.
    :param text: text branch.
    :param pyramid: cross-modal encoder.
    :param heads: classification and regression.
    :param decoder: turns outputs into ranked windows.
    """

    query_tokens: Tensor
    known_tokens: Tensor

    def __init__(
        self,
        *,
        stem: VideoStem,
        text: TextBranch,
        pyramid: FeaturePyramid,
        heads: MomentHeads,
        decoder: MomentDecoder,
    ) -> None:
        super().__init__(
            stem=stem, text=text, pyramid=pyramid, heads=heads, decoder=decoder
        )
        width = self.text_dim
        self.register_buffer("query_tokens", torch.zeros(0, 1, width))
        self.register_buffer("known_tokens", torch.zeros(0, 1, dtype=torch.bool))

    def adaptation(self, experience: Any) -> None:
        """Learn the text of new queries and grow the head; in training mode only.

        :param experience: has ``queries_in_this_experience``; the texts of its
            ``shown_queries``, if it has any, are read too.
        :raises TypeError: it has not.
        :raises ValueError: token features are none, or of another width than the
            model's.
        """
        if not self.training:
            return
        queries = getattr(experience, "queries_in_this_experience", None)
        if queries is None:
            raise TypeError(
                "expected an experience with queries_in_this_experience, as the "
                f"streams of vilco_mq() have, but got {type(experience).__name__}"
            )
        self.learn_queries(queries)
        self.read_queries(getattr(experience, "shown_queries", ()))

    def learn_queries(self, queries: Sequence[LearnableQuery]) -> None:
        """Have a channel and a text for each query.

        :param queries: queries; those already known are left as they are.
        :raises ValueError: token features are none, or of another width than the
            model's.
        """
        self.read_queries(queries)
        self.heads.cls.grow(
            max((query.class_index + 1 for query in queries), default=0)
        )

    def read_queries(self, queries: Sequence[LearnableQuery]) -> None:
        """Have a text for each query; one without a channel is seen only with clips
        that show it.

        :param queries: queries; those already read are left as they are.
        :raises ValueError: token features are none, or of another width than the
            model's.
        """
        new = [query for query in queries if not self._has_read(query.class_index)]
        if not new:
            return
        width = self.query_tokens.shape[2]
        for query in new:
            if query.tokens.shape[1:] != (width,) or not len(query.tokens):
                raise ValueError(
                    f"expected (L > 0, {width}) token features for query channel "
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

    def _has_read(self, channel: int) -> bool:
        n_texts = len(self.known_tokens)
        return channel < n_texts and bool(self.known_tokens[channel].any())

    def _resize(self, n_texts: int, n_tokens: int) -> None:
        have, length = self.known_tokens.shape
        more = (0, max(n_tokens - length, 0), 0, max(n_texts - have, 0))
        self.query_tokens = nn.functional.pad(self.query_tokens, (0, 0, *more))
        self.known_tokens = nn.functional.pad(self.known_tokens, more)

    def query_embeddings(self, experience: Any) -> Tensor:
        """(K, C) mean tokens of the queries that an experience brings.

        :param experience: has ``queries_in_this_experience``.
        """
        queries = getattr(experience, "queries_in_this_experience", ())
        means = [query.tokens.mean(dim=0) for query in queries]
        return torch.stack(means) if means else torch.zeros(0, self.text_dim)

    def find_prompts(self) -> PromptSelection:
        """The prompts of each query learnt so far.

        :raises ValueError: the model has no prompt memory.
        """
        if self.prompt_memory is None:
            raise ValueError("expected a model with prompts: see install_prompts")
        return self._selection(self.prompt_memory, self.n_queries)

    def _selection(self, memory: PromptMemory, n_queries: int) -> PromptSelection:
        tokens, known = self.query_tokens[:n_queries], self.known_tokens[:n_queries]
        return memory(mean_token(tokens, known))

    def shown_text(self, clips: ClipBatch) -> ShownText:
        """The queries learnt so far, the same for every clip, but for clips that say
        which they see; see the class.
        """
        memory, shown = self.prompt_memory, clips.shown
        if memory is None:
            return self._words(shown)
        prompts = self._prompts(memory, shown)
        return prompts if memory.replaces_words else beside(prompts, self._words(shown))

    def _words(self, shown: Tensor | None) -> ShownText:
        """The texts of the queries themselves."""
        tokens, valid = self.text(self.query_tokens, self.known_tokens)
        return ShownText(tokens, self._seen(valid, shown), self._summaries(tokens))

    def _prompts(self, memory: PromptMemory, shown: Tensor | None) -> ShownText:
        """The union of the prompts that the clips' queries have found."""
        tokens, codes = self.encoded_prompts(memory)
        found = self._selection(memory, len(self.known_tokens))
        chosen = found.chosen & self.known_tokens.any(dim=1, keepdim=True)
        if shown is None:
            used = chosen[: self.n_queries].any(dim=0, keepdim=True)
        else:
            used = (shown[:, : len(chosen)].float() @ chosen.float()) > 0
        return ShownText(
            tokens,
            seen_prompts(used, memory.length),
            found.weights[: self.n_queries].to(codes) @ codes,
        )

    def _seen(self, valid_tokens: Tensor, shown: Tensor | None) -> Tensor:
        """(B or 1, K * L + 1) mask of the tokens that each clip sees, the last, which
        stands for none of the queries, always among them.
        """
        n_texts, length = self.known_tokens.shape
        if shown is None and n_texts == self.n_queries:
            return valid_tokens
        if shown is None:
            texts = torch.arange(n_texts, device=valid_tokens.device)
            shown = (texts < self.n_queries)[None]
        shown = shown[:, :n_texts].repeat_interleave(length, dim=1)
        more = valid_tokens.shape[1] - shown.shape[1]
        return valid_tokens & nn.functional.pad(shown, (0, more), value=True)

    def _summaries(self, tokens: Tensor) -> Tensor:
        """(K, D) mean code of each query's tokens."""
        if not self.n_queries:
            return tokens.new_zeros(0, tokens.shape[2])
        codes = tokens[0, :-1].unflatten(0, self.known_tokens.shape)[: self.n_queries]
        return mean_token(codes, self.known_tokens[: self.n_queries])

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, *args: Any
    ) -> None:
        stored = state_dict.get(f"{prefix}known_tokens")
        if stored is not None:
            self._resize(*stored.shape)
            rows = state_dict.get(f"{prefix}heads.cls.weight", stored)
            self.heads.cls.grow(len(rows))
        super()._load_from_state_dict(state_dict, prefix, *args)
