"""The 13 question templates of Natural Language Queries.

Annotation files name a query's template, but not all of them: a few of the official
files' queries have none, and the flattened files have none at all. Here are the
template list, its spellings, and two rules that tell a template by a question's words.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

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


def template_id(name: str) -> int:
    """Id of a template in any spelling.

    Capitals, blanks, the form of the apostrophe, a slash's blanks and a question mark
    at the end do not count.

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
    """Tells a question's template by its words.

    A linear classifier on TF-IDF of one to three words and of two to five characters.

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
