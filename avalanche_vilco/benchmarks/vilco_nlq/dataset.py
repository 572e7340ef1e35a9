"""Natural-language-query samples: one clip with one question asked of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch

from avalanche_vilco.benchmarks.vilco_nlq.annotations import LanguageQuery, QueryClip
from avalanche_vilco.core.batch import collate_queries
from avalanche_vilco.core.errors import DataError
from avalanche_vilco.data.features import FeatureStore
from avalanche_vilco.data.moments import (
    FLOAT32_BYTES,
    MomentClip,
    MomentDataset,
    MomentSample,
    Sample,
    read_only,
)
from avalanche_vilco.data.text.narrations import ClipNarrations
from avalanche_vilco.data.text.tokens import (
    HashedTokens,
    JoinedTokens,
    QueryTokens,
    TextTokens,
    TokenSource,
)

FEATURES_PER_SEC = 30 / 16.043
"""Rate of the public features: a step every 16.043 frames of 30 frames a second."""
QUERY_INDEX = 0
"""The only class index of the output: the question is asked, not learnt."""

TextSource: TypeAlias = Path | str | Sequence[Path | str]
"""A store of token features, or several, each with some of the queries."""


@dataclass(frozen=True, eq=False, kw_only=True)
class QuerySample(MomentSample):
    """One clip and one question, with the window that answers it.

    Its window is of class index 0, the only one asked.
    """

    query: LanguageQuery
    template: int
    """Place of its template in the order of learning, -1 where it has none."""


class QueryDataset(MomentDataset):
    """Samples of one stream; features and tokens are read on access.

    :param samples: samples in stream order.
    :param store: where clips' features are read.
    :param tokens: where the questions' token features are read.
    :param narrations: sentences that come with the clips; for training alone.
    """

    collate_fn = staticmethod(collate_queries)
    samples: tuple[QuerySample, ...]

    def __init__(
        self,
        samples: Sequence[QuerySample],
        store: FeatureStore,
        tokens: TokenSource,
        narrations: ClipNarrations | None = None,
    ) -> None:
        super().__init__(samples, store, QUERY_INDEX + 1, narrations)
        self.tokens = tokens

    def __getitem__(self, index: int) -> Sample:
        """Inputs and targets of a sample.

        Dicts of unbatched tensors as in
        :class:`~avalanche_vilco.core.batch.QueryClipBatch` and
        :class:`~avalanche_vilco.core.batch.MomentTargets`.
        """
        inputs, targets = super().__getitem__(index)
        tokens = self.tokens.read(self.samples[index].query.query_id)
        inputs["tokens"] = tokens
        inputs["valid_tokens"] = torch.ones(len(tokens), dtype=torch.bool)
        return inputs, targets

    def exemplar_bytes(self, positions: Sequence[int]) -> int:
        """Of clips as of moment queries, and of each question its token features."""
        ids = [self.samples[i].query.query_id for i in positions]
        numbers = sum(self.tokens.read(query_id).numel() for query_id in ids)
        return super().exemplar_bytes(positions) + FLOAT32_BYTES * numbers


def feature_clip(clip: QueryClip, features_per_sec: float) -> MomentClip:
    """A clip as datasets read it.

    :param clip: of the annotations.
    :param features_per_sec: steps of its features a second.
    """
    return MomentClip(
        clip.clip_id,
        clip.video_id,
        clip.subset,
        clip.duration_sec,
        features_per_sec,
        video_start_sec=clip.video_start_sec,
    )


def query_sample(query: LanguageQuery, clip: MomentClip, template: int) -> QuerySample:
    """A question as a sample.

    :param query: the question.
    :param clip: its clip.
    :param template: place of its template in the order of learning.
    """
    windows = [] if query.window_sec is None else [query.window_sec]
    return QuerySample(
        clip,
        read_only(windows, np.float64, -1, 2),
        read_only([QUERY_INDEX] * len(windows), np.int64, -1),
        (QUERY_INDEX,),
        query=query,
        template=template,
    )


def open_query_tokens(
    queries: Sequence[LanguageQuery],
    source: TextSource | None = None,
    *,
    text_model: Path | str | None = None,
    cache: Path | str | None = None,
) -> TokenSource:
    """Token features of questions: stored, computed by CLIP, or hashed words.

    :param queries: the questions that will be read.
    :param source: store or stores by query id, see
        :class:`~avalanche_vilco.data.text.tokens.QueryTokens`.
    :param text_model: instead of a store, folder of a local CLIP model, as
        :func:`~avalanche_vilco.data.text.clip_text.clip_query_text` takes it.
    :param cache: where computed features are kept; default in the user's cache folder.
    :return: features by query id; without store and model a fixed vector a word.
    :raises ValueError: both a store and a model, or stores of several widths.
    :raises FileNotFoundError: no such store or model.
    :raises DataError: a store lacks questions, or it or the model is damaged.
    """
    if source is not None and text_model is not None:
        raise ValueError("expected query_text or text_model but got both")
    texts = {query.query_id: query.text for query in queries}
    if text_model is not None:
        from avalanche_vilco.data.text.clip_text import clip_query_text

        features = clip_query_text(texts.values(), text_model, prompt="{}", cache=cache)
        return TextTokens(texts, features)
    if source is None:
        return HashedTokens(texts)
    paths = [source] if isinstance(source, (str, Path)) else list(source)
    stores = [QueryTokens(Path(path).expanduser()) for path in paths]
    tokens: TokenSource = stores[0] if len(stores) == 1 else JoinedTokens(stores)
    missing = tokens.missing(texts)
    if missing:
        problem = f"no text for {len(missing)} of {len(texts)} questions, such as "
        hint = "write one (L, C) entry for each query id"
        names = ", ".join(str(path) for path in paths)
        raise DataError(names, problem + ", ".join(missing[:10]), hint=hint)
    return tokens
