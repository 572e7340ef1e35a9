"""What is there, missing or damaged in a root of Natural Language Queries."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from avalanche_vilco.benchmarks.examination import (
    Claims,
    KnownClip,
    clip_ids_in,
    examine_features,
    examine_narrations,
    is_deep_enough,
    read_subsets,
)
from avalanche_vilco.benchmarks.vilco_mq.layout import FEATURE_FOLDER
from avalanche_vilco.benchmarks.vilco_nlq.annotations import (
    LanguageAnnotations,
    find_nlq_files,
    read_language_queries,
    read_unlabelled_queries,
)
from avalanche_vilco.benchmarks.vilco_nlq.dataset import FEATURES_PER_SEC, NLQ_TEXT_FILE
from avalanche_vilco.core.diagnosis import COPY_AGAIN, Diagnosis
from avalanche_vilco.core.errors import DataError
from avalanche_vilco.data.text.narrations import narration_files
from avalanche_vilco.data.text.tokens import QueryTokens


def examine(
    root: Path,
    diagnosis: Diagnosis,
    claims: Claims,
    *,
    deep: bool | None = None,
    annotations: Path | None = None,
    features: Path | None = None,
    query_text: Path | None = None,
    narrations: Path | None = None,
    narration_features: Path | None = None,
) -> None:
    """Examine annotations, features, token features of questions, and narrations.

    :param root: a folder.
    :param diagnosis: gets counts and findings.
    :param claims: gets the files that belong to a clip.
    :param deep: read every value, not only headers; None: if they are few.
    :param annotations: folder, if not the root; likewise the others.
    """
    sentences, embeddings = narration_files(root)
    features = features or root / FEATURE_FOLDER
    text = query_text or root / NLQ_TEXT_FILE
    sentences = narrations or sentences
    embeddings = narration_features or embeddings
    diagnosis.is_deep = is_deep_enough(deep, (features, text, embeddings))
    *parts, files = read_subsets(
        diagnosis,
        annotations or root,
        find_nlq_files,
        read_language_queries,
        read_unlabelled_queries,
    )
    read = [one for one in parts if one is not None]
    clips = None if parts[0] is None else _clips(read)
    known = {clip.clip_id for clip in clips or ()}
    if clips is not None:
        known |= clip_ids_in(p for p in files.values() if p.suffix != ".jsonl")
        _count(diagnosis, read)
    with diagnosis.guard("features", features):
        examine_features(diagnosis, features, clips, known, claims)
    with diagnosis.guard("query text", text):
        _examine_query_text(diagnosis, text, read)
    with diagnosis.guard("narrations", sentences):
        examine_narrations(diagnosis, sentences, embeddings, clips, frozenset(known))


def _clips(read: Sequence[LanguageAnnotations]) -> list[KnownClip]:
    return [
        KnownClip(
            clip.clip_id,
            clip.subset,
            clip.duration_sec,
            clip.duration_sec * FEATURES_PER_SEC,
            clip.subset != "test",
        )
        for one in read
        for clip in one.clips.values()
    ]


def _count(diagnosis: Diagnosis, read: Sequence[LanguageAnnotations]) -> None:
    tallies = [one.report.stage("annotations", "queries") for one in read]
    subsets = [query.subset for one in read for query in one.queries]
    counts = {name: subsets.count(name) for name in ("train", "val", "test")}
    diagnosis.counts["annotations"] = {
        **{f"{name} questions": n for name, n in counts.items()},
        "clips": sum(len(one.clips) for one in read),
        "questions rejected": sum(t.read - t.passed_on for t in tallies),
    }


def _examine_query_text(
    diagnosis: Diagnosis, path: Path, read: Sequence[LanguageAnnotations]
) -> None:
    if not path.exists():
        remedy = "without it each word has a fixed random vector; see docs/data.md"
        diagnosis.note("query text", path, "no query text", remedy)
        return
    store = QueryTokens(path)
    wanted = [query.query_id for one in read for query in one.queries]
    missing = store.missing(wanted)
    diagnosis.counts["query text"] = {
        "questions": len(wanted) - len(missing),
        "width": store.width,
    }
    if missing:
        problem = f"{len(missing)} questions have no text"
        remedy = "write one (L, C) entry for each question"
        diagnosis.fault("query text", path, problem, remedy, missing)
    for query_id in sorted(set(wanted) - set(missing)) if diagnosis.is_deep else ():
        try:
            store.read(query_id)
        except DataError as error:
            diagnosis.add_error("query text", error, COPY_AGAIN)
