"""Words, events and questions of the generated natural-language queries.

An event has slots, each filled by a word. Sentences are phrases with slots, and each
word of a sentence knows which filler it stands for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from avalanche_vilco.benchmarks.embedded import read_packaged, words_of

Fillers: TypeAlias = dict[str, str]
"""Slot -> what fills it, such as ``"object" -> "mug"``."""
Meaning: TypeAlias = tuple[str, str] | None
"""Slot and filler that a word stands for; None: for itself alone."""


@dataclass(frozen=True)
class EventKind:
    """A kind of event: what takes part in it, and what a narrator says."""

    slots: tuple[str, ...]
    sentence: str


@dataclass(frozen=True)
class QuestionForm:
    """How questions of one template are made."""

    kind: str
    """Kind of the event that answers."""
    key: str
    """The slot that tells which event is meant."""
    share: float
    """Share of the questions, as in the real train data (estimated)."""
    phrases: tuple[str, ...]


@dataclass(frozen=True)
class Grammar:
    """The content of ``grammar.yaml``."""

    categories: dict[str, tuple[str, ...]]
    verbs: dict[str, tuple[str, str]]
    vocabulary: dict[str, tuple[str, ...]]
    switched: tuple[str, ...]
    events: dict[str, EventKind]
    questions: tuple[QuestionForm, ...]


_GRAMMAR = read_packaged(__file__, "grammar.yaml", Grammar)
CATEGORIES: Mapping[str, tuple[str, ...]] = _GRAMMAR.categories
CATEGORY_OF = {noun: name for name, nouns in CATEGORIES.items() for noun in nouns}
VERBS: Mapping[str, tuple[str, str]] = _GRAMMAR.verbs
"""Base form -> past and gerund."""
VOCABULARY: Mapping[str, tuple[str, ...]] = {
    "object": tuple(CATEGORY_OF),
    "verb": tuple(VERBS),
    **_GRAMMAR.vocabulary,
}
"""Slot -> what can fill it."""
EVENT_KINDS: Mapping[str, EventKind] = _GRAMMAR.events
QUESTION_FORMS: tuple[QuestionForm, ...] = _GRAMMAR.questions
"""In the order of ``NLQ_TEMPLATES``."""
_LIKE = {"other": "object"}
"""Slots that another slot's words fill."""
_INFLECTED = {"objects": "object", "past": "verb", "gerund": "verb", "verbs": "verb"}
_MEANINGLESS = ("side", "guess", "number")
"""Slots whose words say nothing of what the event looks like."""
UNIQUE_SLOTS = ("object", "container", "person", "room", "own", "device", "verb")
"""No two events of one kind and clip share a filler of these slots, so that a question
that names one has one answer."""
BEFORE_AFTER = 2
"""The template whose event is told by another one beside it."""


def state_words(device: str) -> tuple[str, str]:
    """The two states that a question about a device may suppose."""
    return ("on", "off") if device in _GRAMMAR.switched else ("open", "closed")


_PARTS = re.compile(r"\{(\w+)\}|([^{}]+)")


def worded(phrase: str, fillers: Fillers) -> tuple[str, tuple[Meaning, ...]]:
    """A sentence, and what each of its words stands for.

    >>> worded("What {category} did I {verb}?", {"category": "tool", "verb": "wash"})[0]
    'What tool did I wash?'

    :param phrase: text with slots.
    :param fillers: what fills them.
    """
    text = ""
    meanings: list[Meaning] = []
    for slot, plain in _PARTS.findall(phrase):
        base = _INFLECTED.get(slot, slot)
        piece = plain or _inflected(slot, fillers[base])
        meaning = None
        if slot and base not in _MEANINGLESS:
            meaning = (_LIKE.get(base, base), fillers[base])
        meanings += [meaning] * len(words_of(piece))
        text += piece
    return text, tuple(meanings)


def _inflected(slot: str, word: str) -> str:
    if slot == "objects":
        return _with_s(word)
    if slot == "past":
        return VERBS[word][0]
    if slot == "gerund":
        return VERBS[word][1]
    if slot == "verbs":
        verb, _, particle = word.partition(" ")
        return f"{_with_s(verb)} {particle}".strip()
    return word


def _with_s(word: str) -> str:
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + ("es" if word.endswith(("s", "x", "ch", "sh")) else "s")
