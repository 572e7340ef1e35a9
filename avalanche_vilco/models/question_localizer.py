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
from avalanche_vilco.models.prompt_memory import PromptMemory, mean_token

MAX_SPREAD_QUESTIONS = 64


class QuestionLocalizer(PyramidLocalizer):
    """Localises what answers the question that comes with a clip.

    :param stem: video branch.
    :param text: text branch.
    :param pyramid: cross-modal encoder.
    :param heads: classification and regression; gets its one row here.
    :param decoder: turns outputs into ranked windows.
    """

    needs_words = True

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
        heads.cls.grow(1)

    def query_embeddings(self, experience: Any) -> Tensor:
        """(K, C) mean tokens of some of an experience's questions, evenly spread.

        :param experience: its dataset holds samples with questions.
        """
        data = experience.dataset
        n_questions = min(len(data), MAX_SPREAD_QUESTIONS)
        spots = torch.linspace(0, len(data) - 1, n_questions).round().long().tolist()
        means = [data[spot][0]["tokens"].mean(dim=0) for spot in spots]
        return torch.stack(means) if means else torch.zeros(0, self.text_dim)

    def shown_text(self, clips: QueryClipBatch) -> ShownText:
        """Each clip's own question.

        :param clips: with ``tokens`` (B, L, C) and ``valid_tokens`` (B, L).
        """
        memory = self.prompt_memory
        if memory is None:
            return self._words(clips)
        prompts = self._prompts(memory, clips)
        return prompts if memory.replaces_words else beside(prompts, self._words(clips))

    def _words(self, clips: QueryClipBatch) -> ShownText:
        codes = self.text.encode(clips.tokens, clips.valid_tokens)
        none = self.text.null_token.to(codes.dtype).expand(len(codes), 1, -1)
        summaries = mean_token(codes, clips.valid_tokens)[:, None]
        seen = F.pad(clips.valid_tokens, (0, 1), value=True)
        return ShownText(torch.cat([codes, none], dim=1), seen, summaries)

    def _prompts(self, memory: PromptMemory, clips: QueryClipBatch) -> ShownText:
        tokens, codes = self.encoded_prompts(memory)
        found = memory(mean_token(clips.tokens, clips.valid_tokens))
        summaries = found.weights.to(codes) @ codes
        return ShownText(
            tokens, seen_prompts(found.chosen, memory.length), summaries[:, None]
        )
