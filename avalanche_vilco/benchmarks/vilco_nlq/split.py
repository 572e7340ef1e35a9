"""Questions as items, their templates, and the protocols."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from avalanche_vilco.benchmarks.items import Item, query_items, whole_clips
from avalanche_vilco.benchmarks.manifest import SplitManifest
from avalanche_vilco.benchmarks.protocols import (
    Protocol,
    place_by_category,
    protocol_table,
)
from avalanche_vilco.benchmarks.split import Division, SplitRules, held_out_parents
from avalanche_vilco.benchmarks.vilco_nlq.annotations import (
    LanguageAnnotations,
    LanguageQuery,
    QueryClip,
)
from avalanche_vilco.benchmarks.vilco_nlq.templates import (
    NLQ_TEMPLATES,
    TemplateClassifier,
    nearest_template,
)
from avalanche_vilco.core.report import DataReport

SMALL_DATA_TEST_SHARE = 0.3
"""Share of the val file's clips that make the test stream in small-data mode."""

_APART = "no template, kept apart"

NLQ_PROTOCOLS = protocol_table(
    Protocol(name="exclusive_queries", place=place_by_category, shares_clips=True),
    Protocol(
        name="reference",
        place=place_by_category,
        shares_clips=True,
        reads_raw=True,
        valid_share=0.0,
        # Questions whose template is told by their words follow the others.
        sort_key=lambda item: item.record.is_template_guessed,
    ),
)
"""Protocols by name."""

NLQ_RULES = SplitRules(
    benchmark="vilco_nlq",
    protocols=NLQ_PROTOCOLS,
    noun="questions",
    units=("queries", "windows"),
)


@dataclass(frozen=True, kw_only=True)
class NLQDivision(Division):
    """How questions are divided; templates are the categories."""

    protocol: str = "exclusive_queries"
    n_experiences: int = len(NLQ_TEMPLATES)
    small_data: bool = False
    """Whether the val file makes all streams."""

    def provenance(self) -> dict[str, Any]:
        """What manifests say of how a split was made."""
        return {**super().provenance(), "small_data": self.small_data}


def question_items(
    queries: Iterable[LanguageQuery], clips: Mapping[str, QueryClip]
) -> list[Item]:
    """Questions as items; the template is the only category.

    :param queries: annotated questions of train and val.
    :param clips: their clips.
    """
    return query_items(
        queries, clips, lambda q: () if q.template is None else (q.template,)
    )


def with_small_test_stream(items: Sequence[Item]) -> list[Item]:
    """Items of the val file, of which a share of the parents stays val.

    :param items: of the val file alone.
    :return: the others are of train.
    """
    clips = whole_clips(items)
    tested = held_out_parents(clips, [0] * len(clips), SMALL_DATA_TEST_SHARE)
    return [
        replace(item, subset="val" if item.video_id in tested else "train")
        for item in items
    ]


# --- Templates ------------------------------------------------------------------------


def templated_queries(
    read: LanguageAnnotations,
    untemplated: Literal["nearest", "apart"],
    manifest: SplitManifest | None,
) -> tuple[list[LanguageQuery], str]:
    """Questions with their templates, and where these come from.

    :param read: annotations; their report gets the counts.
    :param untemplated: see :func:`assign_templates`.
    :param manifest: names the questions, and gives those of an experience with one
        template this one.
    """
    needs_words = manifest is None or any(len(group) > 1 for group in manifest.groups)
    queries, source = list(read.queries), "manifest"
    if needs_words:
        queries = assign_templates(
            queries,
            untemplated=untemplated,
            predict=read.subsets_without_templates,
            report=read.report,
        )
        guessed = read.subsets_without_templates
        source = "predicted" if guessed else "annotation files"
    if manifest is None:
        return queries, source
    named = _named_queries(queries, manifest)
    for unit in NLQ_RULES.units:
        tally = read.report.stage("manifest", unit)
        tally.kept = len(named)
        tally.reject("not in the manifest", len(queries) - len(named))
    return named, source


def _named_queries(
    queries: Iterable[LanguageQuery], manifest: SplitManifest
) -> list[LanguageQuery]:
    group_of = {
        query_id: group
        for experiences in manifest.streams.values()
        for ids, group in zip(experiences, manifest.groups, strict=True)
        for query_id in ids
    }
    named = []
    for query in queries:
        group = group_of.get(query.query_id)
        if group is None:
            continue
        if len(group) == 1 and query.template != group[0].label_id:
            template = group[0].label_id
            query = replace(query, template=template, is_template_guessed=True)
        named.append(query)
    return named


def assign_templates(
    queries: Sequence[LanguageQuery],
    *,
    untemplated: Literal["nearest", "apart"] = "nearest",
    predict: Collection[str] = (),
    report: DataReport | None = None,
) -> list[LanguageQuery]:
    """Give queries without template one, or leave them out.

    :param queries: of all subsets.
    :param untemplated: ``"nearest"``: the template with the nearest words (public
        rule); ``"apart"``: left out, counted.
    :param predict: subsets of flattened files, which name no template: a classifier
        that is fitted on the other subsets' queries predicts them all.
    :param report: where to count, as stage ``templates``.
    :return: queries that have a template, in the order given.
    :raises ValueError: there is nothing to fit the classifier on.
    """
    report = report or DataReport()
    tally = report.stage("templates", "queries")
    predicted = _predicted(queries, predict)
    assigned: list[LanguageQuery] = []
    for query in queries:
        template = query.template
        if template is not None:
            tally.kept += 1
            assigned.append(query)
            continue
        if query.query_id in predicted:
            tally.change(f"{query.subset}: template predicted from the words")
            template = predicted[query.query_id]
        elif untemplated == "nearest":
            tally.change("no template, given the one with the nearest words")
            template = nearest_template(query.text)
        else:
            tally.reject(_APART)
            continue
        assigned.append(replace(query, template=template, is_template_guessed=True))
    windows = report.stage("templates", "windows")
    windows.kept = len(assigned)
    windows.reject(_APART, len(queries) - len(assigned))
    return assigned


def _predicted(
    queries: Sequence[LanguageQuery], subsets: Collection[str]
) -> dict[str, int]:
    asked = [query for query in queries if query.subset in subsets]
    if not asked:
        return {}
    known = {
        query.text: query.template for query in queries if query.template is not None
    }
    if not known:
        raise ValueError(
            f"no query names a template, so none can be predicted for {list(subsets)}: "
            "pass Ego4D's own file (nlq_train.json, nlq_val.json) of a subset"
        )
    guesses = TemplateClassifier(list(known), list(known.values()))(
        [query.text for query in asked]
    )
    return {q.query_id: guess for q, guess in zip(asked, guesses, strict=True)}
