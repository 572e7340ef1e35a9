"""What is there, missing or damaged in a root of Natural Language Queries."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from avalanche_vilco.benchmarks.examination import (
    AnnotatedSubsets,
    examine_parts,
    read_subsets,
)
from avalanche_vilco.benchmarks.vilco_nlq.annotations import (
    read_language_queries,
    read_unlabelled_queries,
)
from avalanche_vilco.benchmarks.vilco_nlq.dataset import FEATURES_PER_SEC
from avalanche_vilco.benchmarks.vilco_nlq.layout import NLQ_TEXT_FILE, find_nlq_files
from avalanche_vilco.core.diagnosis import COPY_AGAIN, Diagnosis
from avalanche_vilco.core.errors import DataError
from avalanche_vilco.data.text.tokens import QueryTokens


def examine(root: Path, diagnosis: Diagnosis) -> None:
    """Examine annotations, features, token features of questions, and narrations.

    :param root: a folder.
    :param diagnosis: gets counts and findings.
    """
    readers = (find_nlq_files, read_language_queries, read_unlabelled_queries)
    found = read_subsets(diagnosis, root, readers, "queries", FEATURES_PER_SEC)
    examine_parts(
        *(root, diagnosis, found.clips, found.known, root / NLQ_TEXT_FILE),
        partial(_examine_query_text, diagnosis, found),
    )


def _examine_query_text(
    diagnosis: Diagnosis, found: AnnotatedSubsets, path: Path
) -> None:
    store = QueryTokens(path)
    wanted = [query.query_id for query in found.queries]
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
