"""A small generated Moment-Queries data set: the package's embedded default.

It stands in for the licensed data, in the same on-disk layout, so that the same
readers, benchmarks and metrics run on it. It is made to be *like* the real annotation
file (see ``docs/mini_mq.md`` for both sets of statistics), drawn from a fixed seed on
first use, cached, and frozen: a change to what it contains needs a new
``MiniMQConfig.version``. Scores on it say nothing about scores on the real data.
"""

from __future__ import annotations

import json
import re
import uuid
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
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
    read_packaged,
    require_at_least_one,
    slow_noise,
    token_features,
    unit,
    unit_noise,
    words_of,
    write_narrations,
)
from avalanche_vilco.benchmarks.sources import FEATURE_FOLDER
from avalanche_vilco.benchmarks.vilco_mq.layout import ANNOTATION_FILE, QUERY_TEXT_FILE
from avalanche_vilco.core.files import sha256_of
from avalanche_vilco.data.text.narrations import NARRATION_FEATURE_FILE, NARRATION_FILE

__all__ = ["MINI_MQ", "MINI_MQ_CATEGORIES", "MiniMQConfig"]


@dataclass(frozen=True)
class _Names:
    """The content of ``embedded.yaml``."""

    categories: tuple[tuple[str, ...], ...]
    distractors: tuple[str, ...]


_NAMES = read_packaged(__file__, "embedded.yaml", _Names)
MINI_MQ_CATEGORIES: tuple[tuple[str, ...], ...] = _NAMES.categories
"""Raw category names, one tuple for each group (a scenario such as the kitchen)."""
_DISTRACTOR_SENTENCES = _NAMES.distractors
_GROUP_WEIGHTS = (0.28, 0.22, 0.19, 0.17, 0.14)
_WORLD, _PLAN, _LAYOUT, _FEATURES, _NARRATION = range(5)
_MIN_WINDOW_SEC = 0.601
_SIZED_FILES = (
    ANNOTATION_FILE,
    QUERY_TEXT_FILE,
    NARRATION_FILE,
    NARRATION_FEATURE_FILE,
)


@dataclass(frozen=True)
class MiniMQConfig(EmbeddedConfig):
    """Everything that the generated data depend on; the defaults are frozen.

    :param seed: seed of all streams.
    :param n_train: train clips, at least 1.
    :param n_val: validation clips, at least 1.
    :param n_test: clips without annotations.
    :param n_groups: groups (scenarios) of categories, 1 to 5.
    :param group_size: categories in a group, 1 to 10; group ``t`` owns the label ids
        ``group_size * t`` to ``group_size * (t + 1) - 1``.
    :param min_train_clips: train clips that every category appears in at least (all of
        them when there are fewer).
    :param min_val_clips: the same for validation clips.
    :param clip_sec: shortest and longest clip, seconds.
    :param full_length_share: share of clips that have the longest duration, [0, 1].
    :param fps: features a second.
    :param median_window_sec: median length of a window before clipping, seconds.
    :param mean_labels: mean number of distinct labels of a clip.
    :param feature_width: channels C of a clip's features.
    :param text_width: channels of a query's token features.
    :param narration_width: channels of a narration's token features.
    :param noise: standard deviation of the background in one channel; an event adds a
        vector of length about one.
    """

    name = "mini_mq"
    version = "2"
    seed: int = 613
    n_train: int = 360
    n_val: int = 120
    n_test: int = 8
    n_groups: int = 5
    group_size: int = 10
    min_train_clips: int = 4
    min_val_clips: int = 2
    clip_sec: tuple[float, float] = (182.0, 480.0)
    full_length_share: float = 0.8
    fps: float = 30 / 64
    median_window_sec: float = 8.7
    mean_labels: float = 4.4
    feature_width: int = 32
    text_width: int = 48
    narration_width: int = 512
    noise: float = 0.2

    def __post_init__(self) -> None:
        most = {
            "n_groups": len(MINI_MQ_CATEGORIES),
            "group_size": len(MINI_MQ_CATEGORIES[0]),
        }
        for name, limit in most.items():
            value = getattr(self, name)
            if not 1 <= value <= limit:
                raise ValueError(f"expected {name} in [1, {limit}] but got {value}")
        require_at_least_one(self, "n_train", "n_val", "feature_width", "text_width")
        shortest, longest = self.clip_sec
        if not 2 <= shortest <= longest:
            raise ValueError(
                "expected clip_sec with 2 <= shortest <= longest "
                f"but got {self.clip_sec}"
            )

    def generate(self, folder: Path) -> Path:
        """Write the data into a folder, always the same for the same knobs."""
        world = _draw_world(self)
        plans = [plan for subset in SUBSETS for plan in _plan_subset(self, subset)]
        clips = [_draw_clip(self, world, plan) for plan in plans]
        # In the order of their ids subsets and scenarios mix, as in the real file.
        clips.sort(key=lambda clip: clip.uid)
        (folder / FEATURE_FOLDER).mkdir(parents=True, exist_ok=True)
        records = {clip.uid: clip.record(self) for clip in clips}
        (folder / ANNOTATION_FILE).write_text(json.dumps(records), encoding="utf-8")
        for clip in clips:
            features = torch.from_numpy(_features(self, world, clip).astype(np.float16))
            torch.save(features, folder / FEATURE_FOLDER / f"{clip.uid}.pt")
        text = to_safetensors(_query_text(self, world))
        (folder / QUERY_TEXT_FILE).write_bytes(text)
        narrated = [clip for clip in clips if clip.plan.subset == "train"]
        write_narrations(
            folder, chain.from_iterable(_narrate(self, world, one) for one in narrated)
        )
        self.write_manifest(
            folder,
            clips=Counter(record["subset"] for record in records.values()),
            windows=sum(len(record["annotations"]) for record in records.values()),
        )
        return folder

    def contents(self, folder: Path) -> dict[str, Any]:
        """Hashes of annotations and features, sizes of the other files."""
        return {
            "annotation_sha256": sha256_of(folder / ANNOTATION_FILE),
            "features_sha256": folder_sha256(folder / FEATURE_FOLDER),
            "bytes": {name: (folder / name).stat().st_size for name in _SIZED_FILES},
        }

    @property
    def n_categories(self) -> int:
        """Categories of all groups together."""
        return self.n_groups * self.group_size

    @property
    def labels(self) -> tuple[str, ...]:
        """Raw label names, indexed by label id."""
        groups = MINI_MQ_CATEGORIES[: self.n_groups]
        return tuple(name for group in groups for name in group[: self.group_size])


MINI_MQ = MiniMQConfig()
"""The embedded default: ``MINI_MQ.root()`` is its folder, a Moment-Queries root."""


# --- What the world looks like: shared by all clips ---------------------------------


@dataclass(frozen=True)
class _World:
    """Fixed vectors and frequencies that every clip is drawn from."""

    label_weights: Array  # (K,), sums to 1 in each group
    length_offsets: Array  # (K,), a category's typical length in units of spread
    prototypes: Array  # (K, C), unit length
    start_cues: Array  # (K, C)
    end_cues: Array  # (K, C)
    distractors: Array  # (D, C), unit length
    backgrounds: Array  # (groups, C)
    gains: Array  # (groups, C)
    text_map: Array  # (C, C_text)
    narration_map: Array  # (C, C_narration)


def _draw_world(config: MiniMQConfig) -> _World:
    rng = config.stream(_WORLD)
    n, width = config.n_categories, config.feature_width
    # Frequencies are long-tailed in each group, in no order of the label ids.
    tail = np.arange(1.0, config.group_size + 1) ** -1.2
    tail /= tail.sum()
    prototypes = _draw_prototypes(config, rng)
    cues = [unit_noise(rng, width) for _ in range(2)]
    own_cues = [0.7 * unit_noise(rng, n, width) for _ in range(2)]
    near = rng.integers(n, size=len(_DISTRACTOR_SENTENCES))
    elsewhere = unit_noise(rng, len(near), width)
    text_map = rng.standard_normal((width, config.text_width))
    narration_map = rng.standard_normal((width, config.narration_width))
    return _World(
        label_weights=np.concatenate(
            [rng.permutation(tail) for _ in range(config.n_groups)]
        ),
        length_offsets=0.5 * rng.standard_normal(n),
        prototypes=prototypes,
        start_cues=unit(cues[0] + own_cues[0]),
        end_cues=unit(cues[1] + own_cues[1]),
        distractors=unit(prototypes[near] + elsewhere),
        backgrounds=0.8 * unit_noise(rng, config.n_groups, width),
        gains=np.exp(0.2 * rng.standard_normal((config.n_groups, width))),
        text_map=text_map / config.text_width**0.5,
        narration_map=narration_map / config.narration_width**0.5,
    )


def _draw_prototypes(config: MiniMQConfig, rng: np.random.Generator) -> Array:
    """Unit vectors in which one category of each group shares a component.

    Confusable pairs across groups are what makes learning a later group disturb an
    earlier one.
    """
    shared = unit_noise(rng, config.group_size, config.feature_width)
    single = unit_noise(rng, config.n_categories, config.feature_width)
    family = np.concatenate(
        [rng.permutation(config.group_size) for _ in range(config.n_groups)]
    )
    return unit(0.45**0.5 * shared[family] + 0.55**0.5 * single)


def _group_weights(config: MiniMQConfig) -> Array:
    weights = np.array(_GROUP_WEIGHTS[: config.n_groups])
    weights /= weights.sum()
    return weights


# --- Which clips there are ----------------------------------------------------------


@dataclass(frozen=True)
class _ClipPlan:
    """A clip before its content is drawn."""

    subset: str
    index: int
    video_id: str
    scenario: int
    duration: float
    parent_start_sec: float
    v_duration: float
    required: tuple[int, ...]  # labels it must contain, so that none is absent

    def rng(self, config: MiniMQConfig, purpose: int) -> np.random.Generator:
        return config.stream(purpose, SUBSETS.index(self.subset), self.index)


def _plan_subset(config: MiniMQConfig, subset: str) -> list[_ClipPlan]:
    plans: list[_ClipPlan] = []
    scenario_counts = np.zeros(config.n_groups)
    n_parents = 0
    while len(plans) < config.clip_count(subset):
        rng = config.stream(_PLAN, SUBSETS.index(subset), n_parents)
        n_clips = 1 + int(rng.choice(3, p=(0.62, 0.27, 0.11)))
        n_clips = min(n_clips, config.clip_count(subset) - len(plans))
        deficit = _group_weights(config) * (len(plans) + n_clips) - scenario_counts
        scenario = int(deficit.argmax())
        plans += _plan_parent(config, subset, len(plans), n_clips, scenario, rng)
        scenario_counts[scenario] += n_clips
        n_parents += 1
    return _require_labels(config, subset, plans)


def _plan_parent(
    config: MiniMQConfig,
    subset: str,
    first_index: int,
    n_clips: int,
    scenario: int,
    rng: np.random.Generator,
) -> list[_ClipPlan]:
    """Lay 1 to 3 clips one after the other in a parent video.

    Times are multiples of 1/8 s, so that duration = end - start holds exactly.
    """
    video_id = draw_uid(rng)
    shortest, longest = config.clip_sec
    full = rng.random(n_clips) < config.full_length_share
    lengths = np.where(full, longest, rng.uniform(shortest, longest, n_clips))
    durations = np.floor(lengths * 8) / 8
    gaps = np.floor(rng.uniform(0, 30, n_clips + 1) * 8) / 8
    gaps[0] *= rng.random() < 0.5
    starts = np.cumsum(gaps[:-1]) + np.cumsum(durations) - durations
    v_duration = float(starts[-1] + durations[-1] + gaps[-1])
    return [
        _ClipPlan(
            subset,
            first_index + i,
            video_id,
            scenario,
            float(durations[i]),
            float(starts[i]),
            v_duration,
            required=(),
        )
        for i in range(n_clips)
    ]


def _require_labels(
    config: MiniMQConfig, subset: str, plans: list[_ClipPlan]
) -> list[_ClipPlan]:
    """Hand every category to its minimum of clips, of its own scenario if possible."""
    wanted = {"train": config.min_train_clips, "val": config.min_val_clips}.get(subset)
    if wanted is None:
        return plans
    required: dict[int, list[int]] = defaultdict(list)
    for group in range(config.n_groups):
        scenario_clips = [plan.index for plan in plans if plan.scenario == group]
        pool = (
            scenario_clips
            if len(scenario_clips) >= wanted
            else [plan.index for plan in plans]
        )
        repeats = min(wanted, len(pool))
        for repeat in range(repeats):
            first = repeat * (len(pool) // repeats)
            for k in range(config.group_size):
                clip = pool[(first + k) % len(pool)]
                required[clip].append(group * config.group_size + k)
    return [replace(plan, required=tuple(required[plan.index])) for plan in plans]


# --- What happens in a clip ---------------------------------------------------------


@dataclass(frozen=True)
class _Event:
    """Something that happens in a clip, annotated or not.

    :param kind: label id, or ``-1 - d`` for distractor ``d``.
    :param copies: how many annotators marked it; 0 is a miss or a distractor.
    """

    kind: int
    start: float
    end: float
    copies: int
    is_last: bool = False


@dataclass(frozen=True)
class _Clip:
    plan: _ClipPlan
    uid: str
    events: tuple[_Event, ...]
    annotations: tuple[Record, ...]

    def record(self, config: MiniMQConfig) -> Record:
        plan = self.plan
        return {
            "video_id": plan.video_id,
            "clip_id": self.uid,
            "duration": plan.duration,
            "parent_start_sec": plan.parent_start_sec,
            "parent_end_sec": plan.parent_start_sec + plan.duration,
            "v_duration": plan.v_duration,
            "fps": config.fps,
            "annotations": [] if plan.subset == "test" else list(self.annotations),
            "subset": plan.subset,
        }


def _draw_clip(config: MiniMQConfig, world: _World, plan: _ClipPlan) -> _Clip:
    rng = plan.rng(config, _LAYOUT)
    uid = draw_uid(rng)
    events: list[_Event] = []
    for label in _draw_labels(config, world, plan, rng):
        events += _draw_events(config, world, plan, label, rng)
    for _ in range(rng.poisson(2.0)):
        kind = -1 - int(rng.integers(len(world.distractors)))
        events.append(_draw_event(config, plan, kind, 0.0, 0, rng))
    annotations = [
        item for event in events for item in _annotate(config, plan, event, rng)
    ]
    order = rng.permutation(len(annotations))
    return _Clip(plan, uid, tuple(events), tuple(annotations[i] for i in order))


def _draw_labels(
    config: MiniMQConfig, world: _World, plan: _ClipPlan, rng: np.random.Generator
) -> list[int]:
    """Distinct labels: most of the clip's scenario, the rest of other groups."""
    more = rng.negative_binomial(6, 6 / (5 + config.mean_labels))
    count = min(max(1 + int(more), len(plan.required)), 15, config.n_categories)
    n_home = max(1, int(rng.binomial(count, 0.6)))
    if count > 1 and rng.random() < 0.5:
        n_home = min(n_home, count - 1)
    group_of = np.arange(config.n_categories) // config.group_size
    is_home = group_of == plan.scenario
    weights = world.label_weights * _group_weights(config)[group_of]
    labels = list(plan.required)
    while len(labels) < count:
        wants_home = sum(bool(is_home[label]) for label in labels) < n_home
        allowed = weights * (is_home == wants_home)
        allowed[labels] = 0
        if not allowed.any():
            allowed = np.where(np.isin(np.arange(len(weights)), labels), 0, weights)
        labels.append(int(rng.choice(len(weights), p=allowed / allowed.sum())))
    return labels


def _draw_events(
    config: MiniMQConfig,
    world: _World,
    plan: _ClipPlan,
    label: int,
    rng: np.random.Generator,
) -> list[_Event]:
    """Instances of one label; the first is always annotated, or it would be absent."""
    offset = float(world.length_offsets[label])
    events = []
    for i in range(min(int(rng.geometric(0.78)), 12)):
        copies = 1 + int(rng.choice(3, p=(0.56, 0.24, 0.2)))
        is_missed = i > 0 and rng.random() < 0.12
        copies = 0 if is_missed else copies
        events.append(_draw_event(config, plan, label, offset, copies, rng))
    return events


def _draw_event(
    config: MiniMQConfig,
    plan: _ClipPlan,
    kind: int,
    length_offset: float,
    copies: int,
    rng: np.random.Generator,
) -> _Event:
    """Place an event; its log length is split-normal with a longer upper side."""
    z = length_offset + 0.87 * float(rng.standard_normal())
    spread = 1.9 if z > 0 else 1.38
    length = config.median_window_sec * float(np.exp(spread * z))
    length = min(max(length, _MIN_WINDOW_SEC), plan.duration)
    is_last = bool(rng.random() < 0.1) or length == plan.duration
    start = (
        plan.duration - length if is_last else rng.uniform(0, plan.duration - length)
    )
    return _Event(kind, float(start), float(start + length), copies, is_last)


def _annotate(
    config: MiniMQConfig, plan: _ClipPlan, event: _Event, rng: np.random.Generator
) -> list[Record]:
    """The windows that annotators drew for an event, a few of them twice."""
    windows = [_draw_window(plan, event, i > 0, rng) for i in range(event.copies)]
    if windows and rng.random() < 0.001:
        windows.append(list(windows[0]))
    return [
        {
            "segment": [start, end],
            "label": config.labels[event.kind],
            "label_id": event.kind,
            # As official scripts ask for it; the processed file has the segment alone.
            "start_time": start,
            "end_time": end,
        }
        for start, end in windows
    ]


def _draw_window(
    plan: _ClipPlan, event: _Event, is_second_opinion: bool, rng: np.random.Generator
) -> list[float]:
    length = event.end - event.start
    spread = min(0.12 * length, 15.0) if is_second_opinion else min(0.03 * length, 0.5)
    shift = np.clip(rng.laplace(0, spread, 2), -0.3 * length, 0.3 * length)
    start = max(0.0, event.start + float(shift[0]))
    end = min(plan.duration, event.end + float(shift[1]))
    if event.is_last:
        # Beyond the clip's end: often none, mostly a frame, rarely seconds.
        overhang = 0.0
        if rng.random() >= 0.45:
            is_long = rng.random() < 0.03
            overhang = rng.uniform(1, 7) if is_long else rng.exponential(0.025)
        end = min(plan.duration + float(overhang), start + plan.duration)
    end = max(end, start + _MIN_WINDOW_SEC)
    if end > plan.duration and not event.is_last:
        start, end = start - (end - plan.duration), plan.duration
    return [round(start, 5), round(end, 5)]


# --- What the clip's features look like ---------------------------------------------


def _features(config: MiniMQConfig, world: _World, clip: _Clip) -> Array:
    """Features of a clip.

    :return: (T, C), T = round(duration * fps); step ``i`` covers the seconds from
        ``i / fps`` to ``(i + 1) / fps``.
    """
    rng = clip.plan.rng(config, _FEATURES)
    steps = max(1, round(clip.plan.duration * config.fps))
    out = slow_noise(steps, config.feature_width, config.noise, rng)
    out += world.backgrounds[clip.plan.scenario]
    # Clips of one parent share a place, so they share this offset too.
    place = int(uuid.UUID(clip.plan.video_id)) % 2**32
    place_rng = config.stream(_FEATURES, len(SUBSETS), place)
    out += 0.4 * unit_noise(place_rng, out.shape[1])
    for event in clip.events:
        _add_event(config, world, event, out, rng)
    out *= world.gains[clip.plan.scenario]
    return out


def _add_event(
    config: MiniMQConfig,
    world: _World,
    event: _Event,
    out: Array,
    rng: np.random.Generator,
) -> None:
    """Add one instance to the features, in place; overlapping events add up."""
    table = world.prototypes if event.kind >= 0 else world.distractors
    row = event.kind if event.kind >= 0 else -1 - event.kind
    appearance = 0.6 * unit_noise(rng, out.shape[1])
    strength = float(np.exp(0.25 * rng.standard_normal()))
    wobble = rng.normal(1, 0.2, len(out))
    envelope = (
        strength * wobble * coverage(event.start, event.end, len(out), config.fps)
    )
    out += envelope[:, None] * (table[row] + appearance)
    if event.kind < 0:
        return
    half = 0.5 / config.fps
    for second, cues in ((event.start, world.start_cues), (event.end, world.end_cues)):
        pulse = coverage(second - half, second + half, len(out), config.fps)
        out += 0.6 * strength * pulse[:, None] * cues[row]


# --- Text ---------------------------------------------------------------------------


def _query_text(config: MiniMQConfig, world: _World) -> dict[str, NDArray[np.float32]]:
    meanings = world.prototypes @ world.text_map
    features: dict[str, NDArray[np.float32]] = {}
    for i, label in enumerate(config.labels):
        readable = label.strip('"').replace("_/_", " or ").replace("_", " ")
        rng = config.stream(_WORLD, 1, i)
        tokens = token_features(words_of(readable), meanings[i], rng)
        features[label] = tokens.astype(np.float32)
    return features


def _sentence(label: str, rng: np.random.Generator) -> str:
    """What a narrator says: "C peels a carrot" for "peel_/_grate_a_carrot"."""
    text = re.sub(r" \(.*\)", "", label.strip('"').replace("_", " "))
    text = re.sub(r"(\S+) / (\S+)", rf"\{1 + int(rng.integers(2))}", text)
    verb, _, rest = text.partition(" ")
    ending = "es" if verb.endswith(("s", "x", "ch", "sh")) else "s"
    return f"C {verb}{ending} {rest}"


def _narrate(config: MiniMQConfig, world: _World, clip: _Clip) -> list[Narration]:
    """Sentences for most events and for some distractors, in no order of time."""
    rng = clip.plan.rng(config, _NARRATION)
    narrations: list[Narration] = []
    for i in rng.permutation(len(clip.events)):
        event = clip.events[i]
        if rng.random() < (0.75 if event.kind >= 0 else 0.4):
            query_id = f"{clip.uid}_{len(narrations)}"
            narrations.append(_narrate_event(config, world, clip, event, query_id, rng))
    return narrations


def _narrate_event(
    config: MiniMQConfig,
    world: _World,
    clip: _Clip,
    event: _Event,
    query_id: str,
    rng: np.random.Generator,
) -> Narration:
    if event.kind >= 0:
        sentence = _sentence(config.labels[event.kind], rng)
        prototype = world.prototypes[event.kind]
    else:
        sentence = _DISTRACTOR_SENTENCES[-1 - event.kind]
        prototype = world.distractors[-1 - event.kind]
    length = min(event.end - event.start, float(rng.uniform(1.5, 5)))
    # Rounding may put the latest start just below the event's own.
    latest = max(event.start, event.end - length)
    start = rng.uniform(event.start, latest) + rng.normal(0, 0.3)
    start = min(max(0.0, float(start)), clip.plan.duration - length)
    record = {
        "video_id": clip.uid,
        "query_id": query_id,
        "timestamps": [[round(start, 5), round(start + length, 5)]],
        "query": sentence,
    }
    meaning = prototype @ world.narration_map
    tokens = token_features(words_of(sentence), meaning, rng)
    return record, tokens.astype(np.float16)
