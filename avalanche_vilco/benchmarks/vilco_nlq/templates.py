"""The 13 question templates of Natural Language Queries, and who belongs to which.

Annotation files name a query's template, but not all of them: a few of the official
files' queries have none, and the flattened files have none at all. Here are the
template list, its spellings, and two rules that give a query a template by its words.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from avalanche_vilco.core.report import DataReport

if TYPE_CHECKING:
    from avalanche_vilco.benchmarks.vilco_nlq.annotations import LanguageQuery

NLQ_TEMPLATES: tuple[str, ...] = (
    "Objects: What did I put in X?",
    "Place: Where did I put X?",
    "Objects: Where is object X before / after event Y?",
    "People: When did I talk to or interact with person with role X?",
    "Objects: How many X\u2019s? (quantity question)",
    "Objects: State of an object",
    "Objects: Where is object X?",
    "Objects: In what location did I see object X ?",
    "Objects: What X did I Y?",
    "Objects: What X is Y?",
    "Objects: Where is my object X?",
    "People: Who did I interact with when I did activity X?",
    "People: Who did I talk to in location X?",
)
"""Exactly as Ego4D's files spell them, in the paper's order (appendix B), which is the
fixed order of learning. A template's place in it is its id."""

UNTEMPLATED_RULES = ("nearest", "apart")
"""What becomes of a query without template where others have one: it goes to the
template with the nearest words, or to none."""

_STAGE = "templates"
_APART = "no template, kept apart"


def template_id(name: str) -> int:
    """Id of a template in any spelling: capitals, blanks, the form of the apostrophe,
    a slash's blanks and a question mark at the end do not count.

    >>> template_id("objects: how many X's? (quantity question)")
    4
    >>> template_id("Objects: Where is object X before/after event Y?")
    2

    :param name: spelling of a file or of the paper.
    :raises ValueError: no such template; names the close ones.
    """
    try:
        return _IDS[_key(name)]
    except KeyError:
        close = difflib.get_close_matches(name, NLQ_TEMPLATES, n=3, cutoff=0.4)
        meant = f"did you mean {close}?" if close else f"there are {NLQ_TEMPLATES}"
        raise ValueError(
            f"expected one of the 13 templates but got {name!r}; {meant}"
        ) from None


def _key(name: str) -> str:
    plain = name.replace("\u2019", "'").replace("/", " / ").replace("?", " ?")
    return " ".join(plain.lower().split()).removesuffix(" ?")


_IDS: Mapping[str, int] = {_key(name): i for i, name in enumerate(NLQ_TEMPLATES)}


def nearest_template(text: str, templates: Sequence[str] = NLQ_TEMPLATES) -> int:
    """Place of the template that shares most words with a question (public rule).

    Words of the question and of the templates are weighed by TF-IDF, fitted on these
    few sentences alone; the largest cosine wins, the last template where several are
    equal, as when no word is shared.

    :param text: the question.
    :param templates: names.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    weights = TfidfVectorizer().fit_transform([text, *templates])
    cosines = (weights[1:] @ weights[0].T).toarray()[:, 0]
    return int(len(cosines) - 1 - cosines[::-1].argmax())


class TemplateClassifier:
    """Tells a question's template by its words: a linear classifier on TF-IDF of one to
    three words and of two to five characters.

    :param texts: questions.
    :param templates: template id of each, at least two different ones.
    :raises ValueError: fewer than two templates.
    """

    def __init__(self, texts: Sequence[str], templates: Sequence[int]) -> None:
        if len(set(templates)) < 2:
            raise ValueError(
                "expected questions of at least 2 templates but got "
                f"{len(texts)} of {len(set(templates))}"
            )
        self._model = _pipeline().fit(list(texts), list(templates))

    def __call__(self, texts: Sequence[str]) -> list[int]:
        """Template id of each question.

        :param texts: questions.
        """
        if not texts:
            return []
        return [int(i) for i in self._model.predict(list(texts))]


def _pipeline() -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import make_pipeline, make_union
    from sklearn.svm import LinearSVC

    words = TfidfVectorizer(
        ngram_range=(1, 3), sublinear_tf=True, token_pattern=r"[^\s?.,!]+"
    )
    characters = TfidfVectorizer(
        analyzer="char_wb", ngram_range=(2, 5), sublinear_tf=True
    )
    return make_pipeline(make_union(words, characters), LinearSVC(random_state=0))


def grouped_accuracy(
    texts: Sequence[str],
    templates: Sequence[int],
    groups: Sequence[str],
    n_folds: int = 5,
) -> float:
    """Cross-validated accuracy of :class:`TemplateClassifier`, in [0, 1].

    :param texts: questions.
    :param templates: template id of each.
    :param groups: parent video of each; a fold has all questions of a video or none.
    :param n_folds: number of folds.
    """
    from sklearn.model_selection import GroupKFold

    folds = GroupKFold(n_folds).split(texts, templates, groups)
    hits = []
    for train, test in folds:
        model = TemplateClassifier(
            [texts[i] for i in train], [templates[i] for i in train]
        )
        guesses = model([texts[i] for i in test])
        hits += [guess == templates[i] for guess, i in zip(guesses, test, strict=True)]
    return float(np.mean(hits))


def assign_templates(
    queries: Sequence[LanguageQuery],
    *,
    untemplated: str = "nearest",
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
    :raises ValueError: no such rule, or there is nothing to fit the classifier on.
    """
    if untemplated not in UNTEMPLATED_RULES:
        raise ValueError(
            f"expected untemplated in {list(UNTEMPLATED_RULES)} but got {untemplated!r}"
        )
    report = report or DataReport()
    tally = report.stage(_STAGE, "queries")
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
    windows = report.stage(_STAGE, "windows")
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
