"""A small generated set of natural-language queries: the package's embedded default.

It stands in for the licensed data, in the same on-disk layout, so that the same
readers, benchmarks and metrics run on it. Clips hold events; a question names some
parts of an event and asks for another, so that the words are needed to tell which of
the clip's events answers it (see ``docs/mini_nlq.md``). It is drawn from a fixed seed
on first use, cached, and frozen: a change to what it contains needs a new
``MiniNLQConfig.version``. Scores on it say nothing about scores on the real data.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save as to_safetensors

from avalanche_vilco.benchmarks.embedded import (
    SUBSETS,
    Array,
    EmbeddedConfig,
    Narration,
    Record,
    coverage,
    draw_uid,
    folder_sha256,
    require_at_least_one,
    slow_noise,
    token_features,
    unit,
    unit_noise,
    words_of,
    write_narrations,
)
from avalanche_vilco.benchmarks.sources import FEATURE_FOLDER
from avalanche_vilco.benchmarks.vilco_nlq.dataset import FEATURES_PER_SEC
from avalanche_vilco.benchmarks.vilco_nlq.grammar import (
    BEFORE_AFTER,
    CATEGORIES,
    CATEGORY_OF,
    EVENT_KINDS,
    QUESTION_FORMS,
    UNIQUE_SLOTS,
    VOCABULARY,
    Fillers,
    Meaning,
    state_words,
    worded,
)
from avalanche_vilco.benchmarks.vilco_nlq.layout import (
    NLQ_TEXT_FILE,
    OFFICIAL_NLQ_FILES,
)
from avalanche_vilco.benchmarks.vilco_nlq.templates import NLQ_TEMPLATES
from avalanche_vilco.core.files import sha256_of
from avalanche_vilco.data.text.narrations import NARRATION_FEATURE_FILE, NARRATION_FILE

__all__ = ["MINI_NLQ", "MiniNLQConfig"]

_WORLD, _PLAN, _LAYOUT, _FEATURES, _TEXT, _NARRATION = range(6)
_FRAMES_PER_SEC = 30
_MIN_WINDOW_SEC = 0.35
_LONGEST_SHARE = 0.25
_FORM_PREFIX = "Query Text: "
_HASHED_FILES = (*OFFICIAL_NLQ_FILES.values(), NLQ_TEXT_FILE, NARRATION_FILE)


@dataclass(frozen=True)
class MiniNLQConfig(EmbeddedConfig):
    """Everything that the generated data depend on; the defaults are frozen.

    :param seed: seed of all streams.
    :param n_train: train clips, at least 1.
    :param n_val: validation clips, at least 1.
    :param n_test: clips whose questions have no window.
    :param queries_per_clip: mean number of questions of a clip, at least 1.
    :param min_train_queries: questions of every template dealt to train clips, at
        least; where a clip has no word left for one, it is dropped.
    :param min_val_queries: the same for validation.
    :param n_scenarios: places that clips play in, each with its own background.
    :param clip_sec: shortest and longest clip, seconds.
    :param features_per_sec: steps of the features a second.
    :param median_window_sec: median length of a window, seconds.
    :param feature_width: channels C of a clip's features.
    :param text_width: channels of a question's token features.
    :param narration_width: channels of a narration's token features.
    :param noise: standard deviation of the background in one channel; an event adds a
        vector of length between one and two.
    """

    name = "mini_nlq"
    version = "1"
    seed: int = 907
    n_train: int = 240
    n_val: int = 64
    n_test: int = 6
    queries_per_clip: float = 10.0
    min_train_queries: int = 60
    min_val_queries: int = 20
    n_scenarios: int = 4
    clip_sec: tuple[float, float] = (90.0, 180.0)
    features_per_sec: float = FEATURES_PER_SEC
    median_window_sec: float = 4.0
    feature_width: int = 48
    text_width: int = 48
    narration_width: int = 512
    noise: float = 0.2

    def __post_init__(self) -> None:
        counts = ("n_train", "n_val", "n_scenarios", "feature_width", "text_width")
        require_at_least_one(self, *counts)
        if not self.queries_per_clip >= 1:
            raise ValueError(
                f"expected queries_per_clip >= 1 but got {self.queries_per_clip}"
            )
        shortest, longest = self.clip_sec
        if not 20 <= shortest <= longest:
            raise ValueError(
                "expected clip_sec with 20 <= shortest <= longest "
                f"but got {self.clip_sec}"
            )

    def generate(self, folder: Path) -> Path:
        """Write the data into a folder, always the same for the same knobs."""
        world = _draw_world(self)
        clips = {
            subset: [_draw_clip(self, plan) for plan in _plan_subset(self, subset)]
            for subset in SUBSETS
        }
        (folder / FEATURE_FOLDER).mkdir(parents=True, exist_ok=True)
        tokens: dict[str, NDArray[np.float16]] = {}
        for subset, members in clips.items():
            content = _official_file(self, world, subset, members, tokens)
            path = folder / OFFICIAL_NLQ_FILES[subset]
            path.write_text(json.dumps(content), encoding="utf-8")
            for clip in members:
                features = _features(self, world, clip).astype(np.float16)
                path = folder / FEATURE_FOLDER / f"{clip.uid}.pt"
                torch.save(torch.from_numpy(features), path)
        (folder / NLQ_TEXT_FILE).write_bytes(to_safetensors(tokens))
        narrations = (_narrate(self, world, clip) for clip in clips["train"])
        write_narrations(folder, chain.from_iterable(narrations))
        self.write_manifest(
            folder,
            clips=Counter(clip.plan.subset for clip in chain(*clips.values())),
            queries=sum(len(clip.questions) for clip in chain(*clips.values())),
        )
        return folder

    def contents(self, folder: Path) -> dict[str, Any]:
        """Hashes of the files, the size of the narrations' features."""
        return {
            "features_sha256": folder_sha256(folder / FEATURE_FOLDER),
            "sha256": {name: sha256_of(folder / name) for name in _HASHED_FILES},
            "bytes": (folder / NARRATION_FEATURE_FILE).stat().st_size,
        }


MINI_NLQ = MiniNLQConfig()
"""The embedded default: ``MINI_NLQ.root()`` is its folder, a data root."""


# --- What the world looks like: shared by all clips -----------------------------------


@dataclass(frozen=True)
class _World:
    """Fixed vectors that every clip is drawn from."""

    kinds: Mapping[str, Array]  # (C,) each, unit length
    fillers: Mapping[tuple[str, str], Array]  # (slot, filler) -> (C,), unit length
    backgrounds: Array  # (scenarios, C)
    gains: Array  # (scenarios, C)
    text_map: Array  # (C, C_text)
    narration_map: Array  # (C, C_narration)


def _draw_world(config: MiniNLQConfig) -> _World:
    rng = config.stream(_WORLD)
    width = config.feature_width
    fillers = {
        (slot, name): unit_noise(rng, width)
        for slot, names in VOCABULARY.items()
        for name in names
    }
    for category, nouns in CATEGORIES.items():
        shared = unit_noise(rng, width)
        fillers["category", category] = shared
        for noun in nouns:
            single = fillers["object", noun]
            fillers["object", noun] = unit(0.4**0.5 * shared + 0.6**0.5 * single)
    text_map = rng.standard_normal((width, config.text_width))
    narration_map = rng.standard_normal((width, config.narration_width))
    return _World(
        kinds={kind: unit_noise(rng, width) for kind in EVENT_KINDS},
        fillers=fillers,
        backgrounds=0.8 * unit_noise(rng, config.n_scenarios, width),
        gains=np.exp(0.15 * rng.standard_normal((config.n_scenarios, width))),
        text_map=text_map / config.text_width**0.5,
        narration_map=narration_map / config.narration_width**0.5,
    )


# --- Which clips there are ------------------------------------------------------------


@dataclass(frozen=True)
class _ClipPlan:
    """A clip before its content is drawn."""

    subset: str
    index: int
    video_id: str
    scenario: int
    duration: float
    video_start_sec: float
    templates: tuple[int, ...] = ()

    def rng(self, config: MiniNLQConfig, purpose: int) -> np.random.Generator:
        return config.stream(purpose, SUBSETS.index(self.subset), self.index)


def _plan_subset(config: MiniNLQConfig, subset: str) -> list[_ClipPlan]:
    rng = config.stream(_PLAN, SUBSETS.index(subset))
    plans: list[_ClipPlan] = []
    while len(plans) < config.clip_count(subset):
        video_id, scenario = draw_uid(rng), int(rng.integers(config.n_scenarios))
        start = 0.0
        for _ in range(1 + int(rng.random() < 0.37)):
            length = float(np.floor(rng.uniform(*config.clip_sec) * 8) / 8)
            plans.append(
                _ClipPlan(subset, len(plans), video_id, scenario, length, start)
            )
            start += length + float(np.floor(rng.uniform(0, 60) * 8) / 8)
    return _deal_templates(config, plans[: config.clip_count(subset)], rng)


def _deal_templates(
    config: MiniNLQConfig, plans: Sequence[_ClipPlan], rng: np.random.Generator
) -> list[_ClipPlan]:
    """Give clips the templates of their questions, in the real data's shares.

    Each template comes at least as often as the smallest experience needs.
    """
    if not plans:
        return []
    n_queries = round(config.queries_per_clip * len(plans))
    least = {"train": config.min_train_queries, "val": config.min_val_queries}
    shares = np.array([form.share for form in QUESTION_FORMS])
    counts = np.maximum(
        np.round(shares / shares.sum() * n_queries), least.get(plans[0].subset, 1)
    ).astype(int)
    deck = rng.permutation(np.repeat(np.arange(len(QUESTION_FORMS)), counts))
    # Clips differ in how many questions they have, as in the real data.
    weights = rng.gamma(3.0, size=len(plans)) + 0.3
    homes = rng.choice(len(plans), size=len(deck), p=weights / weights.sum())
    # Every clip has a question.
    homes[: len(plans)] = np.arange(len(plans))
    return [
        replace(plan, templates=tuple(int(t) for t in deck[homes == i]))
        for i, plan in enumerate(plans)
    ]


# --- What happens in a clip -----------------------------------------------------------


@dataclass(frozen=True)
class _Event:
    """Something that happens in a clip, asked for or not."""

    kind: str
    fillers: Fillers
    start: float
    end: float


@dataclass(frozen=True)
class _Question:
    """A question about a clip and the window that answers it."""

    template: int
    text: str
    meanings: tuple[Meaning, ...]
    """For each word the slot and filler it stands for."""
    fillers: Fillers
    window: tuple[float, float]


@dataclass
class _Story:
    """A clip while it is drawn."""

    plan: _ClipPlan
    rng: np.random.Generator
    median_window_sec: float
    events: list[_Event] = field(default_factory=list)
    used: set[tuple[str, str, str]] = field(default_factory=set)

    def fill(self, kind: str, slots: Iterable[str]) -> Fillers | None:
        """Fillers that no other event of the kind has, ``None`` if none are left."""
        fillers: Fillers = {}
        for slot in slots:
            free = [
                name
                for name in VOCABULARY[slot]
                if slot not in UNIQUE_SLOTS or (kind, slot, name) not in self.used
            ]
            if not free:
                return None
            fillers[slot] = free[int(self.rng.integers(len(free)))]
        return fillers

    def add(self, kind: str, fillers: Fillers, start: float, length: float) -> _Event:
        self.used.update((kind, slot, name) for slot, name in fillers.items())
        event = _Event(kind, fillers, start, start + length)
        self.events.append(event)
        return event

    def draw_length(self) -> float:
        """Log length is split-normal with a longer upper side."""
        z = float(self.rng.standard_normal())
        length = self.median_window_sec * float(np.exp((1.15 if z > 0 else 0.95) * z))
        return min(max(length, _MIN_WINDOW_SEC), _LONGEST_SHARE * self.plan.duration)

    def find_room(self, length: float) -> float:
        """Start of the least occupied of some random places."""
        starts = self.rng.uniform(0, self.plan.duration - length, 12)
        return float(min(starts, key=lambda start: self._overlap(start, length)))

    def _overlap(self, start: float, length: float) -> float:
        end = start + length
        return sum(max(0.0, min(end, e.end) - max(start, e.start)) for e in self.events)


@dataclass(frozen=True)
class _Clip:
    plan: _ClipPlan
    uid: str
    source_uid: str
    events: tuple[_Event, ...]
    questions: tuple[_Question, ...]


def _draw_clip(config: MiniNLQConfig, plan: _ClipPlan) -> _Clip:
    rng = plan.rng(config, _LAYOUT)
    uid, source_uid = draw_uid(rng), draw_uid(rng)
    story = _Story(plan, rng, config.median_window_sec)
    questions = []
    # Blocks of several events first, while there is room.
    for template in sorted(plan.templates, key=lambda t: t != BEFORE_AFTER):
        asked = _stage(story, template)
        if asked is not None:
            questions.append(_ask(story, template, *asked))
    for _ in range(rng.poisson(5.0)):
        kind = list(EVENT_KINDS)[int(rng.integers(len(EVENT_KINDS)))]
        fillers = story.fill(kind, EVENT_KINDS[kind].slots)
        if fillers is not None:
            length = story.draw_length()
            story.add(kind, fillers, story.find_room(length), length)
    order = rng.permutation(len(questions))
    return _Clip(
        plan, uid, source_uid, tuple(story.events), tuple(questions[i] for i in order)
    )


def _stage(story: _Story, template: int) -> tuple[_Event, Fillers] | None:
    """Let happen what a question of a template asks for."""
    if template == BEFORE_AFTER:
        return _stage_before_after(story)
    kind = QUESTION_FORMS[template].kind
    fillers = story.fill(kind, EVENT_KINDS[kind].slots)
    if fillers is None:
        return None
    length = story.draw_length()
    return story.add(kind, fillers, story.find_room(length), length), fillers


def _stage_before_after(story: _Story) -> tuple[_Event, Fillers] | None:
    """An object is seen twice, before and after something is done."""
    seen = story.fill("sight", ("object", "place"))
    done = story.fill("act", ("verb", "object"))
    if seen is None or done is None:
        return None
    lengths = [min(story.draw_length(), story.plan.duration / 8) for _ in range(3)]
    gaps = story.rng.uniform(0.3, 2.0, 2)
    start = story.find_room(sum(lengths) + float(gaps.sum()))
    middle = start + lengths[0] + float(gaps[0])
    last = middle + lengths[1] + float(gaps[1])
    places = VOCABULARY["place"]
    moved = {**seen, "place": places[int(story.rng.integers(len(places)))]}
    before = story.add("sight", seen, start, lengths[0])
    story.add("act", done, middle, lengths[1])
    after = story.add("sight", moved, last, lengths[2])
    is_before = bool(story.rng.random() < 0.5)
    words = {
        "object": seen["object"],
        "verb": done["verb"],
        "other": done["object"],
        "side": "before" if is_before else "after",
    }
    return (before if is_before else after), words


def _ask(story: _Story, template: int, event: _Event, fillers: Fillers) -> _Question:
    phrases = QUESTION_FORMS[template].phrases
    phrase = phrases[int(story.rng.integers(len(phrases)))]
    if "device" in fillers:
        options = state_words(fillers["device"])
        fillers = {**fillers, "guess": options[int(story.rng.integers(2))]}
    if "object" in fillers:
        fillers = {**fillers, "category": CATEGORY_OF[fillers["object"]]}
    text, meanings = worded(phrase, fillers)
    return _Question(template, text, meanings, fillers, _window(story, event))


def _window(story: _Story, event: _Event) -> tuple[float, float]:
    """An annotator's window: near the event, now and then a little over the end."""
    length = event.end - event.start
    spread = min(0.05 * length, 0.3)
    shift = np.clip(story.rng.laplace(0, spread, 2), -0.2 * length, 0.2 * length)
    start = max(0.0, event.start + float(shift[0]))
    end = event.end + float(shift[1])
    if end > story.plan.duration:
        end = story.plan.duration + min(end - story.plan.duration, 0.05)
    return round(start, 5), round(max(end, start + _MIN_WINDOW_SEC), 5)


# --- Text -----------------------------------------------------------------------------


def _tokens(
    world: _World,
    text: str,
    meanings: Sequence[Meaning],
    to_text: Array,
    rng: np.random.Generator,
) -> Array:
    """One token a word: the word, what it stands for, and noise; (L, C)."""
    nothing = np.zeros(len(to_text))
    looks = [nothing if one is None else world.fillers[one] for one in meanings]
    # A word's look is as long as the word's own vector.
    return token_features(words_of(text), np.stack(looks) @ to_text / 0.6, rng)


# --- Features -------------------------------------------------------------------------


def _features(config: MiniNLQConfig, world: _World, clip: _Clip) -> Array:
    """Features of a clip.

    :return: (T, C), T = round(duration * rate); step ``i`` covers the seconds from
        ``i / rate`` to ``(i + 1) / rate``.
    """
    rng = clip.plan.rng(config, _FEATURES)
    steps = max(1, round(clip.plan.duration * config.features_per_sec))
    out = slow_noise(steps, config.feature_width, config.noise, rng)
    out += world.backgrounds[clip.plan.scenario]
    for event in clip.events:
        look = world.kinds[event.kind].copy()
        for slot, filler in event.fillers.items():
            look += world.fillers[slot, filler]
        # However many take part, an event stands out as much.
        look *= 1.6 / len(event.fillers) ** 0.5
        appearance = 0.8 * unit_noise(rng, config.feature_width)
        strength = float(np.exp(0.25 * rng.standard_normal()))
        wobble = rng.normal(1, 0.2, steps)
        covered = coverage(event.start, event.end, steps, config.features_per_sec)
        out += (strength * wobble * covered)[:, None] * (look + appearance)
    out *= world.gains[clip.plan.scenario]
    return out


# --- Files ----------------------------------------------------------------------------


def _official_file(
    config: MiniNLQConfig,
    world: _World,
    subset: str,
    clips: Sequence[_Clip],
    tokens: dict[str, NDArray[np.float16]],
) -> Record:
    videos: dict[str, Record] = {}
    for clip in clips:
        video = videos.setdefault(
            clip.plan.video_id,
            {"video_uid": clip.plan.video_id, "split": subset, "clips": []},
        )
        video["clips"].append(_clip_record(config, world, clip, tokens))
    return {
        "version": "2.0",
        "date": "generated",
        "description": f"generated natural-language queries ({subset})",
        "metadata": "",
        "videos": list(videos.values()),
    }


def _clip_record(
    config: MiniNLQConfig,
    world: _World,
    clip: _Clip,
    tokens: dict[str, NDArray[np.float16]],
) -> Record:
    plan, rng = clip.plan, clip.plan.rng(config, _TEXT)
    end = plan.video_start_sec + plan.duration
    return {
        "clip_uid": clip.uid,
        "source_clip_uid": clip.source_uid,
        "video_start_sec": plan.video_start_sec,
        "video_end_sec": end,
        "video_start_frame": round(plan.video_start_sec * _FRAMES_PER_SEC),
        "video_end_frame": round(end * _FRAMES_PER_SEC),
        "clip_start_sec": 0,
        "clip_end_sec": plan.duration,
        "clip_start_frame": 0,
        "clip_end_frame": round(plan.duration * _FRAMES_PER_SEC),
        "annotations": [
            _annotation(world, clip, questions, tokens, rng)
            for questions in _annotators(clip, rng)
        ],
    }


def _annotators(clip: _Clip, rng: np.random.Generator) -> list[list[_Question]]:
    """Two thirds of the clips have two annotators."""
    whole = list(clip.questions)
    if len(whole) < 2 or rng.random() < 0.34:
        return [whole]
    cut = int(rng.integers(1, len(whole)))
    return [whole[:cut], whole[cut:]]


def _annotation(
    world: _World,
    clip: _Clip,
    questions: Sequence[_Question],
    tokens: dict[str, NDArray[np.float16]],
    rng: np.random.Generator,
) -> Record:
    uid = draw_uid(rng)
    is_blank = bool(rng.random() < 0.004)
    records = [_blank_record(clip)] if is_blank else []
    for question in questions:
        content = _tokens(world, question.text, question.meanings, world.text_map, rng)
        tokens[f"{uid}_{len(records)}"] = content.astype(np.float16)
        records.append(_query_record(clip, question, rng))
    return {
        "language_queries": records,
        "annotation_uid": uid,
        "request_uid": draw_uid(rng),
    }


def _times(clip: _Clip, window: tuple[float, float]) -> Record:
    start, end = (clip.plan.video_start_sec + second for second in window)
    return {
        "clip_start_sec": window[0],
        "clip_end_sec": window[1],
        "video_start_sec": start,
        "video_end_sec": end,
        "video_start_frame": round(start * _FRAMES_PER_SEC),
        "video_end_frame": round(end * _FRAMES_PER_SEC),
    }


def _blank_record(clip: _Clip) -> Record:
    """What an annotator left unfinished."""
    if clip.plan.subset == "test":
        return {"query": ""}
    return {**_times(clip, (1.0, 2.0)), "raw_tags": []}


def _query_record(clip: _Clip, question: _Question, rng: np.random.Generator) -> Record:
    """A question as the official files hold it, with their untidiness.

    A tenth of val has a prefix of the form, some have blanks around, a few have no
    template.
    """
    has_prefix, has_blank, is_untemplated = rng.random(3) < (0.1, 0.07, 0.004)
    text = question.text + (" " if has_blank else "")
    if clip.plan.subset == "test":
        return {"query": text}
    if clip.plan.subset == "val" and has_prefix:
        text = _FORM_PREFIX + text
    template = NLQ_TEMPLATES[question.template]
    key = question.fillers[QUESTION_FORMS[question.template].key]
    return {
        **_times(clip, question.window),
        "template": None if is_untemplated else template,
        "query": text,
        "slot_x": key,
        "raw_tags": [template, text, key],
    }


def _narrate(config: MiniNLQConfig, world: _World, clip: _Clip) -> Iterator[Narration]:
    """Sentences for most events, in no order of time."""
    rng = clip.plan.rng(config, _NARRATION)
    for i in rng.permutation(len(clip.events)):
        if rng.random() >= 0.75:
            continue
        event = clip.events[i]
        sentence, meanings = worded(EVENT_KINDS[event.kind].sentence, event.fillers)
        tokens = _tokens(world, sentence, meanings, world.narration_map, rng)
        start = min(max(0.0, event.start + float(rng.normal(0, 0.3))), event.end)
        record = {
            "video_id": clip.uid,
            "timestamps": [[round(start, 5), round(event.end, 5)]],
            "query": sentence,
            "query_id": f"{clip.uid}_{i}",
        }
        yield record, tokens.astype(np.float16)
