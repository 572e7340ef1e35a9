"""Words, events and questions of the generated natural-language queries.

An event has slots, each filled by a word. Sentences are phrases with slots, and each
word of a sentence knows which filler it stands for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from avalanche_vilco.benchmarks.embedded import words_of

Fillers: TypeAlias = dict[str, str]
"""Slot -> what fills it, such as ``"object" -> "mug"``."""
Meaning: TypeAlias = tuple[str, str] | None
"""Slot and filler that a word stands for; None: for itself alone."""


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


CATEGORIES: Mapping[str, tuple[str, ...]] = {
    "tool": _names("hammer screwdriver spanner saw drill ladder brush shovel"),
    "vessel": _names("bowl mug jug plate pan bottle bucket tray"),
    "food": _names("onion carrot lemon apple cucumber pepper egg melon"),
    "cloth": _names("towel shirt apron glove sock jacket napkin blanket"),
    "stationery": _names("book notebook pencil marker folder card magazine calendar"),
}
CATEGORY_OF = {noun: name for name, nouns in CATEGORIES.items() for noun in nouns}
VERBS: Mapping[str, tuple[str, str]] = {
    "wash": ("washed", "washing"),
    "wipe": ("wiped", "wiping"),
    "clean": ("cleaned", "cleaning"),
    "carry": ("carried", "carrying"),
    "measure": ("measured", "measuring"),
    "paint": ("painted", "painting"),
    "lift": ("lifted", "lifting"),
    "turn over": ("turned over", "turning over"),
    "inspect": ("inspected", "inspecting"),
    "drop": ("dropped", "dropping"),
    "shake": ("shook", "shaking"),
    "wrap": ("wrapped", "wrapping"),
    "pass around": ("passed around", "passing around"),
    "press": ("pressed", "pressing"),
    "hold up": ("held up", "holding up"),
    "mend": ("mended", "mending"),
    "weigh": ("weighed", "weighing"),
    "dry": ("dried", "drying"),
}
"""Base form -> past and gerund."""
_SWITCHED = _names("oven tap lamp heater radio fan kettle television")
_CLOSED = _names("door window gate freezer wardrobe hatch shutter safe")
VOCABULARY: Mapping[str, tuple[str, ...]] = {
    "object": tuple(CATEGORY_OF),
    "verb": tuple(VERBS),
    "container": _names(
        "drawer fridge cupboard basket box bin sink sack toolbox cabinet crate "
        "suitcase locker wheelbarrow"
    ),
    "place": _names(
        "table shelf bench floor chair counter rack windowsill stool doormat"
    ),
    "room": _names(
        "kitchen garage garden office bedroom hallway workshop shop yard balcony "
        "cellar library"
    ),
    "person": _names(
        "cashier neighbour colleague shopkeeper carpenter waiter teacher mechanic "
        "gardener librarian plumber baker"
    ),
    "own": _names("phone wallet watch bag cap charger laptop camera"),
    "device": _SWITCHED + _CLOSED,
    "attribute": _names("colour size shape brand material"),
    "state": _names("on off open closed"),
    "number": _names("two three four five six seven"),
    "value": _names("red blue round square small large wooden metal"),
}
"""Slot -> what can fill it."""
_LIKE = {"other": "object"}
"""Slots that another slot's words fill."""
_INFLECTED = {"objects": "object", "past": "verb", "gerund": "verb", "verbs": "verb"}
_MEANINGLESS = ("side", "guess", "number")
"""Slots whose words say nothing of what the event looks like."""
UNIQUE_SLOTS = ("object", "container", "person", "room", "own", "device", "verb")
"""No two events of one kind and clip share a filler of these slots, so that a question
that names one has one answer."""


@dataclass(frozen=True)
class EventKind:
    """A kind of event: what takes part in it, and what a narrator says."""

    slots: tuple[str, ...]
    sentence: str


EVENT_KINDS: Mapping[str, EventKind] = {
    "store": EventKind(
        ("object", "container"), "C puts the {object} in the {container}"
    ),
    "put": EventKind(("object", "place"), "C puts the {object} on the {place}"),
    "sight": EventKind(("object", "place"), "C sees the {object} on the {place}"),
    "own": EventKind(("own", "place"), "C sees the {own} on the {place}"),
    "glimpse": EventKind(("object", "room"), "C sees the {object} in the {room}"),
    "group": EventKind(("object", "number"), "C looks at {number} {objects}"),
    "state": EventKind(("device", "state"), "C leaves the {device} {state}"),
    "look": EventKind(
        ("object", "attribute", "value"), "C looks at the {attribute} of the {object}"
    ),
    "act": EventKind(("verb", "object"), "C {verbs} the {object}"),
    "company": EventKind(("verb", "object", "person"), "C {verbs} the {object}"),
    "talk": EventKind(("person", "room"), "C talks to the {person}"),
}


@dataclass(frozen=True)
class QuestionForm:
    """How questions of one template are made."""

    kind: str
    """Kind of the event that answers."""
    key: str
    """The slot that tells which event is meant."""
    phrases: tuple[str, ...]
    share: float
    """Share of the questions, as in the real train data (estimated)."""


QUESTION_FORMS: tuple[QuestionForm, ...] = (
    QuestionForm(
        "store",
        "container",
        (
            "What did I put in the {container}?",
            "What did I place in the {container}?",
            "what did I keep inside the {container}?",
        ),
        0.109,
    ),
    QuestionForm(
        "put",
        "object",
        (
            "Where did I put the {object}?",
            "where did I place the {object}?",
            "Where did I leave the {object}?",
        ),
        0.152,
    ),
    QuestionForm(
        "sight",
        "object",
        (
            "Where was the {object} {side} I {past} the {other}?",
            "where was the {object} just {side} I {past} the {other}?",
        ),
        0.156,
    ),
    QuestionForm(
        "talk",
        "person",
        (
            "When did I talk to the {person}?",
            "When did I speak with the {person}?",
            "when did I interact with the {person}?",
        ),
        0.008,
    ),
    QuestionForm(
        "group",
        "object",
        (
            "How many {objects} did I see?",
            "How many {objects} were there?",
            "how many {objects} did I count?",
        ),
        0.095,
    ),
    QuestionForm(
        "state",
        "device",
        (
            "Did I leave the {device} {guess}?",
            "Is the {device} {guess}?",
            "was the {device} left {guess}?",
        ),
        0.055,
    ),
    QuestionForm(
        "sight",
        "object",
        (
            "Where is the {object}?",
            "Where was the {object}?",
            "where can the {object} be found?",
        ),
        0.134,
    ),
    QuestionForm(
        "glimpse",
        "object",
        (
            "In what location did I see the {object}?",
            "In which room did I last see the {object}?",
            "in what place did I notice the {object}?",
        ),
        0.082,
    ),
    QuestionForm(
        "act",
        "verb",
        ("What {category} did I {verb}?", "Which {category} did I {verb}?"),
        0.072,
    ),
    QuestionForm(
        "look",
        "object",
        (
            "What {attribute} is the {object}?",
            "What is the {attribute} of the {object}?",
            "what {attribute} was the {object} that I looked at?",
        ),
        0.074,
    ),
    QuestionForm(
        "own",
        "own",
        ("Where is my {own}?", "where was my {own}?", "Where did I see my {own}?"),
        0.019,
    ),
    QuestionForm(
        "company",
        "verb",
        (
            "Who did I interact with when I was {gerund} the {object}?",
            "Who was with me while I {past} the {object}?",
        ),
        0.025,
    ),
    QuestionForm(
        "talk",
        "room",
        (
            "Who did I talk to in the {room}?",
            "Who did I meet in the {room}?",
            "who did I greet in the {room}?",
        ),
        0.019,
    ),
)
"""In the order of :data:`~avalanche_vilco.benchmarks.vilco_nlq.templates.NLQ_TEMPLATES`."""

BEFORE_AFTER = 2
"""The template whose event is told by another one beside it."""


def state_words(device: str) -> tuple[str, str]:
    """The two states that a question about a device may suppose."""
    return ("on", "off") if device in _SWITCHED else ("open", "closed")


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
