"""ViLCo-Bench, Natural Language Queries: which window of a clip answers a question?

Tang et al., "ViLCo-Bench: VIdeo Language COntinual learning Benchmark", NeurIPS
2024 Datasets and Benchmarks, arXiv 2406.13123: 13 question templates of Ego4D, each an
experience.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from avalanche_vilco.benchmarks.manifest import SplitManifest
from avalanche_vilco.benchmarks.protocols import STREAMS
from avalanche_vilco.benchmarks.scenario import (
    Query,
    QueryExperience,
    QueryIncrementalScenario,
    experience_dataset,
)
from avalanche_vilco.benchmarks.split import held_out_parents, query_groups
from avalanche_vilco.benchmarks.vilco_mq.generator import (
    DATA_ROOT_VARIABLE,
    EMBEDDED_CACHE_BYTES,
)
from avalanche_vilco.benchmarks.vilco_mq.layout import FEATURE_FOLDER
from avalanche_vilco.benchmarks.vilco_nlq.annotations import (
    OFFICIAL_NLQ_FILES,
    LanguageAnnotations,
    LanguageQuery,
    QueryClip,
    find_nlq_files,
    read_language_queries,
    read_unlabelled_queries,
)
from avalanche_vilco.benchmarks.vilco_nlq.dataset import (
    FEATURES_PER_SEC,
    NLQ_TEXT_FILE,
    QueryDataset,
    TextSource,
    asked_clips,
    open_query_tokens,
    query_sample,
)
from avalanche_vilco.benchmarks.vilco_nlq.embedded import (
    MINI_NLQ_VERSION,
    mini_nlq_root,
)
from avalanche_vilco.benchmarks.vilco_nlq.manifest import (
    BENCHMARK,
    NLQ_PROTOCOLS,
    SMALL_DATA,
    NLQProtocol,
    make_nlq_manifest,
    manifest_questions,
    open_nlq_manifest,
)
from avalanche_vilco.benchmarks.vilco_nlq.templates import (
    NLQ_TEMPLATES,
    UNTEMPLATED_RULES,
    assign_templates,
    template_id,
)
from avalanche_vilco.core.batch import collate_queries
from avalanche_vilco.core.errors import DataError
from avalanche_vilco.core.report import DataReport
from avalanche_vilco.data.features import (
    LENGTH_TOLERANCE_STEPS,
    CachedFeatures,
    FeatureSource,
    FeatureStore,
    open_features,
)
from avalanche_vilco.data.moments import MomentClip
from avalanche_vilco.data.text.narrations import (
    ClipNarrations,
    NarrationStore,
    narration_files,
)
from avalanche_vilco.data.text.tokens import TokenSource

SMALL_DATA_TEST_SHARE = 0.3
"""Share of the val file's clips that make the test stream in small-data mode."""

AnnotationSource = Path | str | Mapping[str, Path | str]
"""A folder, or subset -> file."""


def vilco_nlq(
    dataset_root: Path | str | None = None,
    *,
    protocol: str = "exclusive_queries",
    order: str | Sequence[int | str] | None = None,
    seed: int | None = None,
    group_sizes: Sequence[int] | None = None,
    return_task_id: bool = False,
    annotations: AnnotationSource | None = None,
    small_data: bool = False,
    untemplated: str = "nearest",
    features: FeatureSource | None = None,
    features_of: str = "clips",
    features_per_sec: float = FEATURES_PER_SEC,
    grid: int | None = None,
    query_text: TextSource | None = None,
    text_model: Path | str | None = None,
    narrations: bool | NarrationStore = False,
    missing: str = "error",
    length_tolerance: float = LENGTH_TOLERANCE_STEPS,
    valid_share: float | None = None,
    manifest: SplitManifest | Mapping[str, Any] | Path | str | None = None,
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
    :param order: order of learning: ``None`` is the fixed order, the paper's (with a
        seed: ``"queries"``), ``"queries"`` shuffles templates, ``"groups"`` shuffles
        experiences, a sequence of template ids or names sets it.
    :param seed: seed of a shuffled order. A listed order takes none.
    :param group_sizes: templates of each experience, instead of one.
    :param return_task_id: label samples with their experience instead of 0.
    :param annotations: folder, or subset (``"train"``, ``"val"``) -> file, if not in
        ``dataset_root``.
    :param small_data: where the train file or its features are not at hand: make all
        streams of the val file, three tenths of its clips, by parent video, for test.
    :param untemplated: what becomes of questions without template: ``"nearest"`` gives
        them to the template with the nearest words (public rule), ``"apart"`` leaves
        them out, counted. A flattened train file names no template at all: they are
        predicted, see :func:`~avalanche_vilco.benchmarks.vilco_nlq.templates.assign_templates`, and
        ``benchmark.info["templates"]`` says ``"predicted"``.
    :param features: where features are, if not in ``dataset_root/features``; anything
        that :func:`~avalanche_vilco.data.features.open_features` takes.
    :param features_of: ``"clips"``, or ``"videos"`` if the source has whole parent
        videos, from which clips are cut.
    :param features_per_sec: steps of the features a second; default that of the public
        features, a step every 16.043 frames at 30 frames a second.
    :param grid: resize the features of every clip to this many steps.
    :param query_text: store of token features by query id, or several (public code has
        one for each subset): safetensors file, LMDB, or folder of ``<query_id>.pt``.
        Without one, each word has a fixed random vector: stated in ``benchmark.info``.
    :param text_model: instead, folder of a local CLIP model; its features are computed
        once and kept in the cache.
    :param narrations: have training samples carry sentences about their clips, as in
        :func:`~avalanche_vilco.benchmarks.vilco_mq.generator.vilco_mq`.
    :param missing: ``"error"`` lists all clips without features and stops, ``"drop"``
        leaves their questions out and counts them.
    :param length_tolerance: accepted difference, in steps, between the features' length
        and duration x rate.
    :param valid_share: share of the training clips held out by parent video, in
        [0, 1); default 0.1, for ``reference`` 0.
    :param manifest: a published split: JSON file, its content, or the public code's
        metadata pickle. It sets protocol, templates, order and questions; the arguments
        for these keep their defaults.
    :return: the benchmark, with ``queries`` (the templates), ``moments``, ``report``,
        ``info`` and ``manifest()``.
    :raises FileNotFoundError: root, annotation files or features are absent.
    :raises DataError: annotations, text or manifest are damaged, train and val share a
        parent video, or an experience has no training question.
    :raises FeatureError: features are missing or damaged; lists all.
    :raises ValueError: an argument does not fit the data.
    """
    _check_choice("protocol", protocol, list(NLQ_PROTOCOLS))
    _check_choice("untemplated", untemplated, UNTEMPLATED_RULES)
    _check_choice("missing", missing, ("error", "drop"))
    _check_choice("features_of", features_of, ("clips", "videos"))
    _check_numbers(valid_share, features_per_sec)
    pinned = None if manifest is None else open_nlq_manifest(manifest)
    if pinned is not None:
        given = (order, seed, group_sizes, valid_share, small_data or None)
        _check_left_out(pinned, protocol, given)
        protocol = pinned[0].protocol
        small_data = bool(pinned[0].source.get(SMALL_DATA))
    rule = NLQ_PROTOCOLS[protocol]
    files = _find_files(dataset_root, annotations, features, query_text, text_model)
    read = _read(files, rule, small_data)
    store = _open_store(files, features_of, read, features_per_sec, grid)
    if pinned is None:
        groups = _groups(order, seed, group_sizes)
        queries, templates = _templated(read, untemplated)
    else:
        groups = [[c.label_id for c in group] for group in pinned[0].groups]
        queries, templates = _pinned_queries(pinned, read, groups, untemplated)
    queries = _with_features(queries, store, missing, read.report)
    clips = asked_clips(read.clips.values(), queries, features_per_sec)
    _preflight(queries, clips, store, length_tolerance)
    if pinned is None:
        share = rule.valid_share if valid_share is None else valid_share
        split = _new_split(queries, clips, groups, rule, share, small_data)
        made = _made(order, seed, share, small_data)
    else:
        split, made = _pinned_split(pinned[0], queries), pinned[0].source
    _count(split, rule, read.report)
    _check_training(read, split["train"])
    tokens = open_query_tokens(queries, files.text, text_model=text_model)
    pin = make_nlq_manifest(
        split, groups, protocol=rule, files=read.report.files, source=made
    )
    data = _datasets(
        split, groups, clips, store, tokens, _told(narrations, files.root, read)
    )
    experiences, templates_learnt = _experiences(
        data, split, groups, tokens.width, return_task_id
    )
    info = {
        **_info(files, read, rule, templates, groups),
        "data_mode": "val file split by video" if small_data else "train and val files",
        "untemplated": untemplated,
        "feature_dim": store.width,
        "text_dim": tokens.width,
        "features_per_sec": features_per_sec,
        "task_labels": "experience" if return_task_id else "0",
    }
    return QueryIncrementalScenario(
        experiences,
        queries=templates_learnt,
        datasets=data,
        info=info,
        report=read.report,
        manifest=pin,
    )


def unlabelled_nlq(
    dataset_root: Path | str | None = None,
    *,
    annotations: Path | str | None = None,
    features: FeatureSource | None = None,
    features_of: str = "clips",
    features_per_sec: float = FEATURES_PER_SEC,
    grid: int | None = None,
    query_text: TextSource | None = None,
    text_model: Path | str | None = None,
    missing: str = "error",
    length_tolerance: float = LENGTH_TOLERANCE_STEPS,
) -> QueryDataset:
    """Questions of the unannotated test file: they can be answered, not scored.

    :param dataset_root: as in :func:`vilco_nlq`, with ``nlq_test_unannotated.json``.
    :param annotations: the file, if not in ``dataset_root``.
    :return: samples without windows, in file order; other parameters as there.
    :raises FileNotFoundError: root, annotation file or features are absent.
    :raises DataError: annotations or text are damaged.
    :raises FeatureError: features are missing or damaged; lists all.
    """
    _check_choice("missing", missing, ("error", "drop"))
    _check_choice("features_of", features_of, ("clips", "videos"))
    _check_numbers(None, features_per_sec)
    source = None if annotations is None else {"test": annotations}
    files = _find_files(dataset_root, source, features, query_text, text_model)
    read = read_unlabelled_queries(_annotation_files(files, ("test",))["test"])
    store = _open_store(files, features_of, read, features_per_sec, grid)
    queries = _with_features(read.queries, store, missing, read.report)
    clips = asked_clips(read.clips.values(), (), features_per_sec)
    _preflight(queries, clips, store, length_tolerance)
    tokens = open_query_tokens(queries, files.text, text_model=text_model)
    samples = [query_sample(query, clips[query.clip_id], -1) for query in queries]
    return QueryDataset(samples, store, tokens)


def _check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"expected {name} in {list(choices)} but got {value!r}")


def _check_numbers(valid_share: float | None, features_per_sec: float) -> None:
    if valid_share is not None and not 0 <= valid_share < 1:
        raise ValueError(f"expected valid_share in [0, 1) but got {valid_share}")
    if not 0 < features_per_sec < float("inf"):
        raise ValueError(
            f"expected a positive features_per_sec but got {features_per_sec}"
        )


def _check_left_out(
    pinned: tuple[SplitManifest, Path | str], protocol: str, given: Sequence[Any]
) -> None:
    """Refuse arguments that a manifest sets, unless they are left at defaults."""
    names = ("order", "seed", "group_sizes", "valid_share", "small_data")
    set_twice = [n for n, value in zip(names, given, strict=True) if value is not None]
    if protocol not in ("exclusive_queries", pinned[0].protocol):
        set_twice.append("protocol")
    if set_twice:
        raise ValueError(
            f"{pinned[1]} sets {', '.join(sorted(set_twice))} already: leave them out"
        )


# --- Files ----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Files:
    root: Path | None
    annotations: AnnotationSource
    features: FeatureSource
    text: TextSource | None
    text_name: str
    source: str
    """What to call the data."""


def _find_files(
    root: Path | str | None,
    annotations: AnnotationSource | None,
    features: FeatureSource | None,
    query_text: TextSource | None,
    text_model: Path | str | None,
) -> _Files:
    if root is None and annotations is None:
        root = os.environ.get(DATA_ROOT_VARIABLE) or None
    source = "user data"
    if root is None and annotations is None:
        root, source = mini_nlq_root(), f"embedded generated v{MINI_NLQ_VERSION}"
    base = None if root is None else Path(root).expanduser()
    if base is not None and not base.is_dir():
        raise FileNotFoundError(
            f"no data folder at {base}; vilco_nlq() without arguments uses the "
            "embedded default"
        )
    if features is None:
        if base is None:
            raise FileNotFoundError("pass features=FOLDER with one file a clip")
        features = base / FEATURE_FOLDER
    if query_text is None and text_model is None and base is not None:
        stored = base / NLQ_TEXT_FILE
        query_text = stored if stored.is_file() else None
    places = base if annotations is None else annotations
    assert places is not None
    name = _text_name(query_text, text_model)
    return _Files(base, places, features, query_text, name, source)


def _text_name(source: TextSource | None, text_model: Path | str | None) -> str:
    if text_model is not None:
        return f"CLIP {Path(text_model).name}"
    if source is None:
        return "hashed words"
    paths = [source] if isinstance(source, (str, Path)) else source
    return ", ".join(Path(path).name for path in paths)


def _annotation_files(files: _Files, subsets: Sequence[str]) -> dict[str, Path]:
    """Annotation file of each subset."""
    found: dict[str, Path] = {}
    places = "the files that annotations names"
    if isinstance(files.annotations, Mapping):
        given = files.annotations.items()
        found = {subset: Path(path).expanduser() for subset, path in given}
    else:
        base = Path(files.annotations).expanduser()
        places = f"{base} or its folder annotations/"
        for folder in (base / "annotations", base):
            found.update(find_nlq_files(folder))
    for subset in subsets:
        if subset not in found:
            hint = "; small_data=True makes do with val" if subset == "train" else ""
            raise FileNotFoundError(
                f"no {subset} annotations in {places}: expected "
                f"{OFFICIAL_NLQ_FILES[subset]}{hint}"
            )
    return {subset: found[subset] for subset in subsets}


def _read(files: _Files, rule: NLQProtocol, small_data: bool) -> LanguageAnnotations:
    subsets = ("val",) if small_data else ("train", "val")
    read = read_language_queries(
        _annotation_files(files, subsets),
        windows=rule.windows,
        strip_prefixes=rule.strips_prefixes,
    )
    parents: dict[str, set[str]] = {"train": set(), "val": set()}
    for clip in read.clips.values():
        parents[clip.subset].add(clip.video_id)
    shared = sorted(parents["train"] & parents["val"])
    if shared:
        problem = f"{len(shared)} parent videos are in train as well: "
        hint = "scores on a video seen in training mean nothing: mend the split"
        raise DataError(read.files["val"], problem + ", ".join(shared[:10]), hint=hint)
    return read


def _open_store(
    files: _Files,
    features_of: str,
    read: LanguageAnnotations,
    features_per_sec: float,
    grid: int | None,
) -> FeatureStore:
    cuts = None
    if features_of == "videos":
        cuts = {
            clip.clip_id: _cut(clip, features_per_sec) for clip in read.clips.values()
        }
    store = open_features(files.features, cuts=cuts, grid=grid)
    if files.source.startswith("embedded"):
        return CachedFeatures(store, EMBEDDED_CACHE_BYTES)
    return store


def _cut(clip: QueryClip, features_per_sec: float) -> tuple[str, float, float, float]:
    start = clip.video_start_sec
    if start is None:
        raise ValueError(
            "features_of='videos' needs Ego4D's own files, which say where in its "
            f"video a clip starts; that of {clip.clip_id} is unknown"
        )
    return clip.video_id, start, start + clip.duration_sec, features_per_sec


def _told(
    narrations: bool | NarrationStore, root: Path | None, read: LanguageAnnotations
) -> ClipNarrations | None:
    """Sentences about the clips; those of other clips are counted."""
    if narrations is False:
        return None
    if narrations is True:
        if root is None:
            raise FileNotFoundError(
                "narrations=True reads them from dataset_root: pass one, or pass "
                "narrations=NarrationStore(...)"
            )
        durations = {clip.clip_id: clip.duration_sec for clip in read.clips.values()}
        sentences, features = narration_files(root)
        narrations = NarrationStore(sentences, features, durations_sec=durations)
        read.report.include(narrations.report)
    return ClipNarrations(narrations)


def _with_features(
    queries: Sequence[LanguageQuery],
    store: FeatureStore,
    missing: str,
    report: DataReport,
) -> list[LanguageQuery]:
    """Questions of clips that have features; with ``missing="error"`` all, and the
    check of the files lists what is not there.
    """
    if missing == "error":
        return list(queries)
    gone = set(store.missing(dict.fromkeys(query.clip_id for query in queries)))
    present = [query for query in queries if query.clip_id not in gone]
    _tally(report, "features", present, len(queries), "no feature file")
    clips = report.stage("features", "clips")
    clips.kept = len({query.clip_id for query in present})
    clips.reject("no feature file", len(gone))
    return present


def _tally(
    report: DataReport,
    stage: str,
    kept: Sequence[LanguageQuery],
    n_read: int,
    reason: str,
) -> None:
    """Count questions, and their windows, of which each has one."""
    for unit in ("queries", "windows"):
        tally = report.stage(stage, unit)
        tally.kept = len(kept)
        tally.reject(reason, n_read - len(kept))


def _preflight(
    queries: Iterable[LanguageQuery],
    clips: Mapping[str, MomentClip],
    store: FeatureStore,
    tolerance: float,
) -> None:
    asked = dict.fromkeys(query.clip_id for query in queries)
    expected = {i: clips[i].duration_sec * clips[i].features_per_sec for i in asked}
    store.preflight(expected, tolerance=tolerance)


# --- Splits ---------------------------------------------------------------------------


def _groups(
    order: str | Sequence[int | str] | None,
    seed: int | None,
    group_sizes: Sequence[int] | None,
) -> list[list[int]]:
    listed: str | list[int] | None
    listed = order if order is None or isinstance(order, str) else _ids(order)
    return query_groups(
        range(len(NLQ_TEMPLATES)),
        n_experiences=len(NLQ_TEMPLATES),
        group_sizes=group_sizes,
        order=listed,
        seed=seed,
    )


def _ids(order: Iterable[int | str]) -> list[int]:
    return [template_id(one) if isinstance(one, str) else int(one) for one in order]


def _made(
    order: str | Sequence[int | str] | None,
    seed: int | None,
    valid_share: float,
    small_data: bool,
) -> dict[str, Any]:
    """How a split was made."""
    listed = order if order is None or isinstance(order, str) else _ids(order)
    return {
        "order": listed,
        "seed": seed,
        "valid_share": valid_share,
        SMALL_DATA: small_data,
    }


def _templated(
    read: LanguageAnnotations, untemplated: str
) -> tuple[list[LanguageQuery], str]:
    """Questions with their templates, and where these come from."""
    queries = assign_templates(
        read.queries,
        untemplated=untemplated,
        predict=read.subsets_without_templates,
        report=read.report,
    )
    source = "predicted" if read.subsets_without_templates else "annotation files"
    return queries, source


def _pinned_queries(
    pinned: tuple[SplitManifest, Path | str],
    read: LanguageAnnotations,
    groups: Sequence[Sequence[int]],
    untemplated: str,
) -> tuple[list[LanguageQuery], str]:
    """Questions that a manifest names, with the templates that it gives them."""
    named = manifest_questions(pinned[0], read, pinned[1])
    source = "manifest"
    known: dict[str, int] = {}
    if any(len(group) > 1 for group in groups):
        queries, source = _templated(read, untemplated)
        known = {q.query_id: q.template for q in queries if q.template is not None}
    chosen = [
        _pinned_query(query, group, known, pinned[1])
        for experiences in named.values()
        for own, group in zip(experiences, groups, strict=True)
        for query in own
    ]
    _tally(read.report, "manifest", chosen, len(read.queries), "not in the manifest")
    return chosen, source


def _pinned_query(
    query: LanguageQuery,
    group: Sequence[int],
    known: Mapping[str, int],
    file: Path | str,
) -> LanguageQuery:
    template = group[0] if len(group) == 1 else known.get(query.query_id)
    if template not in group:
        problem = f"its template {template} is not of its experience, {list(group)}"
        raise DataError(file, problem, record=query.query_id, field="streams")
    is_guessed = query.template != template
    return replace(query, template=template, is_template_guessed=is_guessed)


def _pinned_split(
    manifest: SplitManifest, queries: Iterable[LanguageQuery]
) -> dict[str, list[list[LanguageQuery]]]:
    """The manifest's streams, of the questions whose clips have features."""
    there = {query.query_id: query for query in queries}
    return {
        name: [[there[i] for i in ids if i in there] for ids in experiences]
        for name, experiences in manifest.streams.items()
    }


def _new_split(
    queries: Sequence[LanguageQuery],
    clips: Mapping[str, MomentClip],
    groups: Sequence[Sequence[int]],
    rule: NLQProtocol,
    valid_share: float,
    small_data: bool,
) -> dict[str, list[list[LanguageQuery]]]:
    asked = [clip for clip in clips.values() if len(clip.label_ids)]
    if small_data:
        tested = _held_out(asked, SMALL_DATA_TEST_SHARE)
    else:
        tested = frozenset(clip.video_id for clip in asked if clip.subset == "val")
    train = [clip for clip in asked if clip.video_id not in tested]
    held = _held_out(train, valid_share)
    home = {template: e for e, group in enumerate(groups) for template in group}
    split: dict[str, list[list[LanguageQuery]]]
    split = {name: [[] for _ in groups] for name in STREAMS}
    for query in queries:
        video = clips[query.clip_id].video_id
        name = "test" if video in tested else "valid" if video in held else "train"
        assert query.template is not None
        split[name][home[query.template]].append(query)
    if rule.guessed_last:
        for own in (own for experiences in split.values() for own in experiences):
            own.sort(key=lambda query: query.is_template_guessed)
    return split


def _held_out(clips: Sequence[MomentClip], share: float) -> frozenset[str]:
    """Parent videos by a hash of their uid, but half of each template's clips stay."""
    return held_out_parents(clips, np.zeros(len(clips), dtype=np.int64), share)


def _count(
    split: Mapping[str, Sequence[Sequence[LanguageQuery]]],
    rule: NLQProtocol,
    report: DataReport,
) -> None:
    """Count what each stream holds; no question is lost here."""
    stage = f"protocol {rule.name}"
    queries, windows = report.stage(stage, "queries"), report.stage(stage, "windows")
    clips = report.stage(stage, "clips")
    for name, experiences in split.items():
        own = [query for experience in experiences for query in experience]
        n_clips = len({query.clip_id for query in own})
        queries.kept += len(own)
        windows.kept += len(own)
        clips.kept += n_clips
        queries.note(f"in stream {name}", len(own))
        clips.note(f"in stream {name}", n_clips)


def _check_training(
    read: LanguageAnnotations, experiences: Sequence[Sequence[LanguageQuery]]
) -> None:
    empty = [e for e, own in enumerate(experiences) if not own]
    if empty:
        file = read.files.get("train", read.files["val"])
        problem = f"no training question of the templates of experiences {empty}"
        hint = "put them into one experience with others: group_sizes"
        raise DataError(file, problem, hint=hint)


# --- Streams --------------------------------------------------------------------------


def _info(
    files: _Files,
    read: LanguageAnnotations,
    rule: NLQProtocol,
    templates: str,
    groups: Sequence[Sequence[int]],
) -> dict[str, Any]:
    return {
        "benchmark": BENCHMARK,
        "protocol": rule.name,
        "protocol_version": rule.version,
        "data": files.source,
        "comparable_with_paper": False,
        "uses_ground_truth_at_test": False,
        "templates": templates,
        "parent_videos": "clips stand in" if read.subsets_without_videos else "known",
        "query_text": files.text_name,
        "queries_per_experience": [len(group) for group in groups],
        "order": [template for group in groups for template in group],
    }


def _datasets(
    split: Mapping[str, Sequence[Sequence[LanguageQuery]]],
    groups: Sequence[Sequence[int]],
    clips: Mapping[str, MomentClip],
    store: FeatureStore,
    tokens: TokenSource,
    told: ClipNarrations | None,
) -> dict[str, QueryDataset]:
    """Samples of each whole stream, experience after experience."""
    ordered = [template for group in groups for template in group]
    place = {template: i for i, template in enumerate(ordered)}
    datasets = {}
    for name, experiences in split.items():
        samples = [
            query_sample(query, clips[query.clip_id], place[query.template])
            for own in experiences
            for query in own
            if query.template is not None
        ]
        sentences = told if name == "train" else None
        datasets[name] = QueryDataset(samples, store, tokens, sentences)
    return datasets


def _experiences(
    data: Mapping[str, QueryDataset],
    split: Mapping[str, Sequence[Sequence[LanguageQuery]]],
    groups: Sequence[Sequence[int]],
    text_dim: int,
    return_task_id: bool,
) -> tuple[dict[str, list[QueryExperience]], list[Query]]:
    """Experiences of each stream, and the templates in order of learning."""
    # A template has no text of its own: each question brings its tokens.
    no_tokens = torch.zeros(0, text_dim)
    places = iter(range(len(NLQ_TEMPLATES)))
    queries = [
        [Query(next(places), i, NLQ_TEMPLATES[i], no_tokens) for i in group]
        for group in groups
    ]
    experiences = {}
    for name, members in split.items():
        ends = np.cumsum([len(own) for own in members]).tolist()
        experiences[name] = [
            _experience(data[name], range(end - len(own), end), e, queries, label)
            for e, (own, end) in enumerate(zip(members, ends, strict=True))
            for label in [e if return_task_id else 0]
        ]
    return experiences, [query for group in queries for query in group]


def _experience(
    data: QueryDataset,
    indices: range,
    experience: int,
    queries: Sequence[Sequence[Query]],
    task_label: int,
) -> QueryExperience:
    own = [data.samples[i] for i in indices]
    dataset = experience_dataset(
        data,
        indices,
        groups=[sample.template for sample in own],
        clip_ids=[sample.clip.clip_id for sample in own],
        task_label=task_label,
        collate_fn=collate_queries,
    )
    return QueryExperience(
        dataset=dataset,
        current_experience=experience,
        groups=queries,
        task_label=task_label,
    )
