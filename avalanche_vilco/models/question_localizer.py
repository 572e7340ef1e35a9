"""Text-conditioned localiser of the answer to one question.

A question comes with each clip: nothing is learnt by heart of it, the head has one
logit, and questions of templates not yet learnt get an answer too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from avalanche_vilco.core.batch import QueryClipBatch
from avalanche_vilco.models.blocks import masked_mean
from avalanche_vilco.models.localizer import PyramidLocalizer, QueryText, prompt_mask
from avalanche_vilco.models.prompt_memory import PromptMemory

MAX_SPREAD_QUESTIONS = 64


class QuestionLocalizer(PyramidLocalizer):
    """Localises what answers the question that comes with a clip.

    :param parts: of :class:`~avalanche_vilco.models.localizer.PyramidLocalizer`; the
        heads get their one row here.
    """

    needs_text = True

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.heads.cls.grow(1)

    def query_embeddings(self, experience: Any) -> Tensor:
        """(K, C) mean tokens of some of an experience's questions, evenly spread.

        :param experience: its dataset holds samples with questions.
        """
        data = experience.dataset
        n_questions = min(len(data), MAX_SPREAD_QUESTIONS)
        indices = torch.linspace(0, len(data) - 1, n_questions).round().long().tolist()
        means = [data[index][0]["tokens"].mean(dim=0) for index in indices]
        return torch.stack(means) if means else torch.zeros(0, self.text_dim)

    def text_of(self, clips: QueryClipBatch) -> QueryText:
        """Encode each clip's own question.

        :param clips: with ``tokens`` (B, L, C) and ``valid_tokens`` (B, L).
        """
        # (B, L, C) -> (B, L, D)
        embeddings = self.text.encode(clips.tokens, clips.valid_tokens)
        none = self.text.null_token.to(embeddings.dtype)
        none = none.expand(len(embeddings), 1, -1)
        summaries = masked_mean(embeddings, clips.valid_tokens)[:, None]
        mask = F.pad(clips.valid_tokens, (0, 1), value=True)
        return QueryText(torch.cat([embeddings, none], dim=1), mask, summaries)

    def prompts_of(self, memory: PromptMemory, clips: QueryClipBatch) -> QueryText:
        """Encode the prompts that each clip's question finds.

        :param memory: the model's.
        :param clips: as for :meth:`text_of`.
        """
        tokens, embeddings = self.encoded_prompts(memory)
        found = memory(masked_mean(clips.tokens, clips.valid_tokens))
        summaries = found.weights.to(embeddings) @ embeddings
        mask = prompt_mask(found.chosen, memory.length)
        return QueryText(tokens, mask, summaries[:, None])
