"""ViLCo-Bench, Natural Language Queries: windows that answer questions.

Tang et al., "ViLCo-Bench: VIdeo Language COntinual learning Benchmark", NeurIPS
2024 Datasets and Benchmarks, arXiv 2406.13123: 13 question templates of Ego4D, each
an experience.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from msgspec import Meta

from avalanche_vilco.benchmarks.items import Item
from avalanche_vilco.benchmarks.manifest import (
    STREAM_SUBSETS,
    ManifestSource,
    SplitManifest,
    open_manifest,
    settle_split,
)
from avalanche_vilco.benchmarks.scenario import QueryIncrementalScenario, query_scenario
from avalanche_vilco.benchmarks.sources import (
    checked_sources,
    open_clip_features,
    open_narrations,
)
from avalanche_vilco.benchmarks.spec import AtLeastOne
from avalanche_vilco.benchmarks.split import Split
from avalanche_vilco.benchmarks.vilco_nlq.dataset import (
    QueryDataset,
    feature_clip,
    open_query_tokens,
    query_sample,
)
from avalanche_vilco.benchmarks.vilco_nlq.reference_metadata import read_nlq_metadata
from avalanche_vilco.benchmarks.vilco_nlq.sources import (
    NLQSources,
    QuestionFiles,
    read_question_files,
)
from avalanche_vilco.benchmarks.vilco_nlq.split import (
    NLQ_PROTOCOLS,
    NLQ_RULES,
    NLQDivision,
    question_items,
    templated_queries,
    with_small_test_stream,
)
from avalanche_vilco.benchmarks.vilco_nlq.templates import NLQ_TEMPLATES, template_id
from avalanche_vilco.data.features import FeatureStore
from avalanche_vilco.data.moments import MomentClip


def vilco_nlq(
    dataset_root: Path | str | None = None,
    *,
    protocol: str = "exclusive_queries",
    n_experiences: Annotated[int, Meta(ge=1)] = len(NLQ_TEMPLATES),
    per_exp_classes: Sequence[AtLeastOne] | None = None,
    fixed_class_order: Literal["queries", "groups"] | Sequence[int | str] | None = None,
    seed: Annotated[int, Meta(ge=0)] | None = None,
    return_task_id: bool = False,
    valid_share: Annotated[float, Meta(ge=0, lt=1)] | None = None,
    manifest: ManifestSource | None = None,
    sources: NLQSources | Mapping[str, Any] | None = None,
) -> QueryIncrementalScenario:
    """Natural Language Queries of ViLCo-Bench as query-incremental streams.

    Streams: ``train``, ``valid`` and ``test``, each with 13 experiences, one for each
    question template, in the same order. On Ego4D, ``test`` is the val file, since the
    test file has no windows; ``valid`` is held out of train by parent video, so that
    nothing need be selected on ``test``. No parent video is in train and test.

    A sample is one clip with one question and the window that answers it. The question
    is an input: the model has one query logit, and experiences not yet learnt can be
    evaluated. Protocols say which questions an experience has:

    - ``exclusive_queries`` gives every question to the experience of its template. (The
      paper's "each video is exclusive to one subset" cannot hold: 96 % of the val clips
      have questions of several templates.)
    - ``reference`` divides as the public split script does, to the question: windows
      and text as in the file, no valid stream, questions without template behind the
      others.

    :param dataset_root: folder with ``nlq_train.json`` and ``nlq_val.json``, or the
        flattened ``ego4d_nlq_{train,val}_v2.jsonl``, there or in ``annotations/``;
        ``features/``; and, if there, ``nlq_query_text.safetensors``. ``None`` takes the
        folder named by the environment variable ``AVALANCHE_VILCO_DATA`` where it is
        set, else the embedded generated default, whose results compare with nothing
        published.
    :param protocol: ``"exclusive_queries"`` or ``"reference"``.
    :param n_experiences: number of experiences; must divide the 13 templates. If
        ``per_exp_classes`` are given they set it.
    :param per_exp_classes: templates of each experience, instead of one.
    :param fixed_class_order: order of learning: ``None`` is the fixed order, the
        paper's (with a seed: ``"queries"``), ``"queries"`` shuffles templates,
        ``"groups"`` shuffles experiences, a sequence of template ids or names sets it.
    :param seed: seed of a shuffled order. A listed order takes none.
    :param return_task_id: label samples with their experience instead of 0.
    :param valid_share: share of the training clips held out by parent video, in
        [0, 1); default 0.1, for ``reference`` 0.
    :param manifest: a published split: JSON file, its content, or the public code's
        metadata pickle. It sets protocol, templates, order and questions; the arguments
        for these keep their defaults.
    :param sources: where files lie and how they are read:
        :class:`~avalanche_vilco.benchmarks.vilco_nlq.sources.NLQSources`, or a mapping
        of its fields.
    :return: the scenario, with ``queries`` (the templates), ``datasets``, ``report``,
        ``info`` and ``manifest()``.
    :raises FileNotFoundError: root, annotation files or features are absent.
    :raises DataError: annotations, text or manifest are damaged, train and val share a
        parent video, or an experience has no training question.
    :raises FeatureError: features are missing or damaged; lists all.
    :raises ValueError: an argument does not fit the data.
    """
    chosen = checked_sources(NLQSources, sources)
    division = NLQDivision(
        protocol=NLQ_RULES.protocol(protocol).name,
        n_experiences=n_experiences,
        per_exp_classes=per_exp_classes,
        fixed_class_order=_template_ids(fixed_class_order),
        seed=seed,
        valid_share=valid_share,
        small_data=chosen.small_data,
    )
    pinned = None
    if manifest is not None:
        pinned = open_manifest(
            manifest, NLQ_RULES, division, read_public=read_nlq_metadata
        )
        protocol = pinned.manifest.protocol
        small_data = bool(pinned.manifest.source.get("small_data"))
        chosen = replace(chosen, small_data=small_data)
    files = read_question_files(dataset_root, chosen, NLQ_PROTOCOLS[protocol])
    read = files.annotations
    queries, templates = templated_queries(
        read, chosen.untemplated, None if pinned is None else pinned.manifest
    )
    items = question_items(queries, read.clips)
    clips = _feature_clips(files, chosen)
    store, present = open_clip_features(items, clips, chosen, files, NLQ_RULES.units)
    split, settled = settle_split(
        items,
        with_small_test_stream(present) if chosen.small_data else present,
        division,
        pinned,
        NLQ_RULES,
        names=dict(enumerate(NLQ_TEMPLATES)),
        files=files,
        subsets=dict.fromkeys(STREAM_SUBSETS, "val") if chosen.small_data else None,
    )
    datasets = _datasets(split, present, clips, store, files, chosen)
    return _scenario(split, settled, datasets, files, chosen, templates, return_task_id)


def unlabelled_nlq(
    dataset_root: Path | str | None = None,
    *,
    sources: NLQSources | Mapping[str, Any] | None = None,
) -> QueryDataset:
    """Questions of the unannotated test file: they can be answered, not scored.

    :param dataset_root: as in :func:`vilco_nlq`, with ``nlq_test_unannotated.json``.
    :param sources: as there; a path as ``annotations`` is this file or its folder.
    :return: samples without windows, in file order.
    :raises FileNotFoundError: root, annotation file or features are absent.
    :raises DataError: annotations or text are damaged.
    :raises FeatureError: features are missing or damaged; lists all.
    """
    chosen = checked_sources(NLQSources, sources)
    files = read_question_files(dataset_root, chosen, None)
    read, clips = files.annotations, _feature_clips(files, chosen)
    items = question_items(read.queries, read.clips)
    store, present = open_clip_features(items, clips, chosen, files, NLQ_RULES.units)
    queries = [item.record for item in present]
    tokens = open_query_tokens(queries, files.query_text, text_model=chosen.text_model)
    samples = [query_sample(query, clips[query.clip_id], -1) for query in queries]
    return QueryDataset(samples, store, tokens)


def _template_ids(order: str | Sequence[int | str] | None) -> str | list[int] | None:
    if order is None or isinstance(order, str):
        return order
    return [template_id(one) if isinstance(one, str) else int(one) for one in order]


def _feature_clips(files: QuestionFiles, sources: NLQSources) -> dict[str, MomentClip]:
    rate = sources.features_per_sec
    read = files.annotations.clips
    return {clip_id: feature_clip(clip, rate) for clip_id, clip in read.items()}


def _datasets(
    split: Split,
    present: Sequence[Item],
    clips: Mapping[str, MomentClip],
    store: FeatureStore,
    files: QuestionFiles,
    sources: NLQSources,
) -> dict[str, QueryDataset]:
    queries = [item.record for item in present]
    tokens = open_query_tokens(queries, files.query_text, text_model=sources.text_model)
    narrations = open_narrations(sources, files, clips.values())
    index = {template: i for i, template in enumerate(chain(*split.groups))}
    return {
        name: QueryDataset(
            [
                query_sample(
                    item.record, clips[item.clip_id], index[item.record.template]
                )
                for item in chain(*parts)
            ],
            store,
            tokens,
            narrations if name == "train" else None,
        )
        for name, parts in split.streams.items()
    }


def _scenario(
    split: Split,
    manifest: SplitManifest,
    datasets: Mapping[str, QueryDataset],
    files: QuestionFiles,
    sources: NLQSources,
    templates: str,
    return_task_id: bool,
) -> QueryIncrementalScenario:
    read, train = files.annotations, datasets["train"]
    # A template has no text of its own: each question brings its tokens.
    no_tokens = torch.zeros(0, train.tokens.width)
    parents = "clips stand in" if read.subsets_without_videos else "known"
    mode = "val file split by video" if sources.small_data else "train and val files"
    return query_scenario(
        split,
        manifest,
        datasets,
        tokens=lambda name: no_tokens,
        class_indices=lambda sample: [sample.template],
        return_task_id=return_task_id,
        info={
            "data": files.root.description,
            "templates": templates,
            "parent_videos": parents,
            "query_text": files.text_name,
            "data_mode": mode,
            "untemplated": sources.untemplated,
            "feature_dim": train.store.width,
            "text_dim": train.tokens.width,
            "features_per_sec": sources.features_per_sec,
        },
        report=read.report,
    )
