"""ViLCo-Bench, Moment Queries: which windows of a long clip show an action?

Tang et al., "ViLCo-Bench: VIdeo Language COntinual learning Benchmark", NeurIPS
2024 Datasets and Benchmarks, arXiv 2406.13123: 110 action categories of Ego4D in
five experiences of 22 queries.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from avalanche_vilco.benchmarks.manifest import (
    Category,
    SplitManifest,
    check_windows,
    make_manifest,
    manifest_split,
    parse_manifest,
    read_manifest,
)
from avalanche_vilco.benchmarks.protocols import (
    PROTOCOLS,
    Groups,
    Protocol,
    Split,
    Streams,
    count_split,
    count_streams,
    split_clips,
    stream_samples,
)
from avalanche_vilco.benchmarks.scenario import (
    Query,
    QueryExperience,
    QueryIncrementalScenario,
    experience_dataset,
)
from avalanche_vilco.benchmarks.split import balancing_targets, query_groups
from avalanche_vilco.benchmarks.vilco_mq.annotations import (
    MomentAnnotations,
    read_moment_annotations,
)
from avalanche_vilco.benchmarks.vilco_mq.deviations import with_deviations
from avalanche_vilco.benchmarks.vilco_mq.embedded import MINI_MQ_VERSION, mini_mq_root
from avalanche_vilco.benchmarks.vilco_mq.layout import (
    ANNOTATION_FILES,
    FEATURE_FOLDER,
    QUERY_TEXT_FILE,
    find_annotations,
)
from avalanche_vilco.benchmarks.vilco_mq.official import read_official_moments
from avalanche_vilco.benchmarks.vilco_mq.reference_metadata import (
    read_reference_metadata,
)
from avalanche_vilco.core.batch import collate_moments
from avalanche_vilco.core.errors import DataError
from avalanche_vilco.core.report import DataReport
from avalanche_vilco.data.features import (
    LENGTH_TOLERANCE_STEPS,
    CachedFeatures,
    FeatureSource,
    FeatureStore,
    open_features,
)
from avalanche_vilco.data.moments import MomentClip, MomentDataset, MomentSample
from avalanche_vilco.data.text.narrations import (
    ClipNarrations,
    NarrationStore,
    narration_files,
)
from avalanche_vilco.data.text.tokens import hashed_query_text, read_query_text

DATA_ROOT_VARIABLE = "AVALANCHE_VILCO_DATA"
EMBEDDED_CACHE_BYTES = 32 * 2**20
"""Holds the whole embedded default: its small files cost more to open than to read."""


def vilco_mq(
    dataset_root: Path | str | None = None,
    *,
    n_experiences: int = 5,
    protocol: str = "exclusive",
    order: str | Sequence[int] | None = None,
    seed: int | None = None,
    group_sizes: Sequence[int] | None = None,
    return_task_id: bool = False,
    annotations: Path | str | None = None,
    categories: Mapping[str, int] | Path | str | None = None,
    features: FeatureSource | None = None,
    features_of: str = "clips",
    features_per_sec: float | None = None,
    grid: int | None = None,
    query_text: Path | str | None = None,
    narrations: bool | NarrationStore = False,
    missing: str = "error",
    length_tolerance: float = LENGTH_TOLERANCE_STEPS,
    valid_share: float | None = None,
    manifest: SplitManifest | Mapping[str, Any] | Path | str | None = None,
    deviations: Sequence[str] = (),
) -> QueryIncrementalScenario:
    """Moment Queries of ViLCo-Bench as query-incremental streams.

    Streams: ``train``, ``valid`` and ``test``. On Ego4D, ``test`` is the annotation
    file's val subset, since the public test subset has no labels; ``valid`` is held
    out of train by parent video, so that nothing need be selected on ``test``.

    A sample is one clip with the windows of the queries of its experience. Protocols
    (``docs/protocols.md``) say which clips an experience has:

    - ``exclusive`` gives each clip to one experience (paper, section 3.2), keeping as
      many windows as it can; windows of other experiences' queries are left out and
      counted in ``benchmark.report``;
    - ``shared_clips`` lets a clip return in each experience that asks a query of it:
      no window is lost, a sample is a pair of clip and experience;
    - ``reference`` splits as the public code does, which loses 57 % of the windows and
      has no valid stream unless ``valid_share`` is passed.

    :param dataset_root: folder with the annotation file, or with Ego4D's own
        ``moments_*.json``, there or in ``annotations/``; ``features/``; and, if
        there, ``query_text.safetensors``. ``None`` takes the folder named by the
        environment variable ``AVALANCHE_VILCO_DATA`` where it is set, else the
        embedded generated default, whose results compare with nothing published.
    :param n_experiences: number of experiences; must divide the queries. If
        ``group_sizes`` are given they set it.
    :param protocol: ``"exclusive"``, ``"shared_clips"`` or ``"reference"``.
    :param order: order of learning: ``None`` is the order of category ids (with a
        seed: ``"queries"``), ``"queries"`` shuffles queries, ``"groups"`` shuffles
        the fixed groups, a sequence of category ids sets it.
    :param seed: seed of a shuffled order; train, valid and test share the order. A
        listed order takes none.
    :param group_sizes: queries of each experience, instead of equal sizes.
    :param return_task_id: label samples with their experience instead of 0.
    :param annotations: annotation file or folder, if not in ``dataset_root``.
    :param categories: for Ego4D's own files, category ids: see
        :func:`~avalanche_vilco.benchmarks.vilco_mq.official.read_official_moments`.
    :param features: where features are, if not in ``dataset_root/features``: a path,
        a store, or several to be concatenated on channels, as
        :func:`~avalanche_vilco.data.features.open_features` takes them.
    :param features_of: ``"clips"``, or ``"videos"`` if the source has whole parent
        videos, from which clips are cut.
    :param features_per_sec: for Ego4D's own files, steps of the features a second;
        default 1.8741513727840071.
    :param grid: resize the features of every clip to this many steps (the public code:
        1024).
    :param query_text: safetensors file of token features, label -> (L, C). Without
        one, each word has a fixed random vector: stated in ``benchmark.info``.
    :param narrations: have training samples carry sentences about their clips, for
        self-supervision: ``True`` reads them from ``dataset_root``, a store has them
        already. Evaluation never sees any.
    :param missing: ``"error"`` lists all clips without features and stops, ``"drop"``
        leaves them out and counts them.
    :param length_tolerance: accepted difference, in steps, between the features'
        length and duration x fps.
    :param valid_share: share of the training clips held out by parent video, in
        [0, 1); default 0.1, for ``reference`` 0.
    :param manifest: a published split: JSON file, its content, or the public code's
        metadata pickle. It sets protocol, groups, order and clips; the arguments for
        these keep their defaults.
    :param deviations: with the reference protocol, parts of the public recipe that concern
        the data: ``"clip_label_text"`` hands each clip its own ground-truth labels as
        text, at test too (``docs/reference_deviations.md``).
    :return: the benchmark, with ``queries``, ``report``, ``info`` and ``manifest()``.
    :raises FileNotFoundError: root, annotation file or features are absent.
    :raises DataError: the annotation, text or manifest file is damaged, or the
        manifest is of another annotation file or names unknown clips.
    :raises FeatureError: features are missing or damaged; lists all.
    :raises ValueError: an argument does not fit the data.
    """
    _check_choice("protocol", protocol, list(PROTOCOLS))
    _check_choice("missing", missing, ("error", "drop"))
    _check_choice("features_of", features_of, ("clips", "videos"))
    if valid_share is not None and not 0 <= valid_share < 1:
        raise ValueError(f"expected valid_share in [0, 1) but got {valid_share}")
    grouping = _Grouping(n_experiences, group_sizes, order, seed)
    pinned = None if manifest is None else _open_manifest(manifest)
    if pinned is not None:
        _check_left_out(pinned, protocol, grouping, valid_share)
    rule = PROTOCOLS[pinned.manifest.protocol if pinned else protocol]
    files = _find_files(dataset_root, annotations, features, query_text)
    read = _read_annotations(files.annotations, rule, categories, features_per_sec)
    store = _open_store(files.features, features_of, _annotated(read), grid)
    if files.source.startswith("embedded"):
        store = CachedFeatures(store, EMBEDDED_CACHE_BYTES)
    clips = _with_features(read, store, missing, length_tolerance)
    _check_subsets(files.annotations, clips)
    if pinned is not None:
        groups, split, source = _pinned_split(pinned, read, files.annotations)
    else:
        share = rule.valid_share if valid_share is None else valid_share
        groups, split, source = _new_split(read, clips, rule, grouping, share)
    queries = _queries(read, groups, files.query_text)
    streams = _streams(clips, split, groups, rule, read.report)
    _check_training(files.annotations, streams["train"])
    if pinned is not None:
        is_complete = len(clips) == len(_annotated(read))
        check_windows(pinned.manifest, streams, pinned.file, complete=is_complete)
    pin = make_manifest(
        streams,
        [[Category(q.label_id, q.name) for q in own] for own in queries],
        protocol=rule.name,
        files=read.report.files,
        source=source,
    )
    info = _info(files, read, rule, store, queries, return_task_id)
    told = _told(narrations, files.root, read)
    benchmark = _benchmark(
        streams, queries, store, read.report, info, pin, return_task_id, told
    )
    return with_deviations(benchmark, deviations)


def unlabelled_mq(
    dataset_root: Path | str | None = None,
    *,
    annotations: Path | str | None = None,
    categories: Mapping[str, int] | Path | str | None = None,
    features: FeatureSource | None = None,
    features_of: str = "clips",
    features_per_sec: float | None = None,
    grid: int | None = None,
    missing: str = "error",
    length_tolerance: float = LENGTH_TOLERANCE_STEPS,
) -> MomentDataset:
    """Clips of subset test: they can be answered, not scored.

    :param dataset_root: as in :func:`vilco_mq`; beside Ego4D's own files with
        ``moments_test_unannotated.json``.
    :return: samples without windows, in file order; labels of the subset, which the
        processed files do not have, are not looked at. Parameters as there.
    :raises FileNotFoundError: root, annotation file or features are absent.
    :raises DataError: the annotation file is damaged, or there are no such clips.
    :raises FeatureError: features are missing or damaged; lists all.
    """
    _check_choice("missing", missing, ("error", "drop"))
    _check_choice("features_of", features_of, ("clips", "videos"))
    files = _find_files(dataset_root, annotations, features, None)
    rule = PROTOCOLS["exclusive"]
    read = _read_annotations(files.annotations, rule, categories, features_per_sec)
    clips = [clip for clip in read.clips if clip.subset == "test"]
    if not clips:
        hint = "Ego4D's own are in moments_test_unannotated.json"
        raise DataError(files.annotations, "no clip of subset 'test'", hint=hint)
    store = _open_store(files.features, features_of, clips, grid)
    if missing == "drop":
        gone = set(store.missing(clip.clip_id for clip in clips))
        clips = [clip for clip in clips if clip.clip_id not in gone]
    expected = {c.clip_id: c.duration_sec * c.features_per_sec for c in clips}
    store.preflight(expected, tolerance=length_tolerance)
    nowhere = np.zeros((0, 2)), np.zeros(0, dtype=np.int64)
    samples = [MomentSample(clip, *nowhere, asked=()) for clip in clips]
    return MomentDataset(samples, store, len(read.label_names))


@dataclass(frozen=True)
class _Files:
    annotations: Path
    """Processed file, or folder of Ego4D's own files."""
    features: FeatureSource
    query_text: Path | None
    source: str
    root: Path | None


@dataclass(frozen=True)
class _Pinned:
    manifest: SplitManifest
    file: Path | str


@dataclass(frozen=True)
class _Grouping:
    """Arguments of :func:`query_groups`."""

    n_experiences: int = 5
    group_sizes: Sequence[int] | None = None
    order: str | Sequence[int] | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        sizes, n = self.group_sizes, self.n_experiences
        # Left at its default, the number is not a wish.
        if sizes is not None and n not in (_Grouping.n_experiences, len(sizes)):
            raise ValueError(
                f"group_sizes {list(sizes)} make {len(sizes)} experiences, but "
                f"n_experiences is {n}: leave one out"
            )


def _check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"expected {name} in {list(choices)} but got {value!r}")


def _open_manifest(manifest: SplitManifest | Mapping[str, Any] | Path | str) -> _Pinned:
    if isinstance(manifest, SplitManifest):
        return _Pinned(parse_manifest(manifest.to_dict()), "manifest")
    if isinstance(manifest, Mapping):
        return _Pinned(parse_manifest(dict(manifest)), "manifest")
    path = Path(manifest).expanduser()
    if path.suffix in (".pkl", ".pickle"):
        return _Pinned(read_reference_metadata(path), path)
    return _Pinned(read_manifest(path), path)


def _check_left_out(
    pinned: _Pinned, protocol: str, grouping: _Grouping, valid_share: float | None
) -> None:
    """Refuse arguments that a manifest sets, unless they are left at defaults."""
    given = [
        name
        for name, value in vars(grouping).items()
        if value != getattr(_Grouping, name)
    ]
    if protocol not in ("exclusive", pinned.manifest.protocol):
        given.append("protocol")
    if valid_share is not None:
        given.append("valid_share")
    if given:
        raise ValueError(
            f"{pinned.file} sets {', '.join(sorted(given))} already: leave them out"
        )


def _find_files(
    root: Path | str | None,
    annotations: Path | str | None,
    features: FeatureSource | None,
    query_text: Path | str | None,
) -> _Files:
    if root is None and annotations is None:
        root = os.environ.get(DATA_ROOT_VARIABLE) or None
    source = "user data"
    if root is None and annotations is None:
        root, source = mini_mq_root(), f"embedded generated v{MINI_MQ_VERSION}"
    base = Path(root).expanduser() if root is not None else None
    if base is not None and not base.is_dir():
        raise FileNotFoundError(
            f"no data folder at {base}; vilco_mq() without arguments uses the "
            "embedded default"
        )
    text = Path(query_text).expanduser() if query_text else None
    if text is None and base is not None and (base / QUERY_TEXT_FILE).is_file():
        text = base / QUERY_TEXT_FILE
    return _Files(
        _annotation_source(base, annotations),
        _feature_source(base, features),
        text,
        source,
        base,
    )


def _annotation_source(base: Path | None, annotations: Path | str | None) -> Path:
    """The processed file, or else the folder of Ego4D's own files."""
    if annotations is not None:
        chosen = Path(annotations).expanduser()
        if not chosen.is_dir():
            return chosen
        base = chosen
    assert base is not None
    found = find_annotations(base)
    if found is not None:
        return found
    raise FileNotFoundError(
        f"no annotation file in {base}: expected one of {', '.join(ANNOTATION_FILES)} "
        "there or in its folder annotations/; or pass annotations=FILE"
    )


def _feature_source(base: Path | None, features: FeatureSource | None) -> FeatureSource:
    if features is not None:
        return features
    if base is None:
        raise FileNotFoundError("pass features=FOLDER with one file a clip")
    return base / FEATURE_FOLDER


def _read_annotations(
    path: Path,
    rule: Protocol,
    categories: Mapping[str, int] | Path | str | None,
    features_per_sec: float | None,
) -> MomentAnnotations:
    if path.is_dir():
        read = read_official_moments(
            path,
            categories=categories,
            features_per_sec=features_per_sec,
            windows=rule.windows,
        )
        if rule.name == "reference" and read.label_id_source == "alphabetical":
            raise ValueError(
                f"protocol 'reference' needs the public category ids, which {path} "
                "does not state: pass categories=FILE"
            )
        return read
    given = {"categories": categories, "features_per_sec": features_per_sec}
    for name, value in given.items():
        if value is not None:
            raise ValueError(f"{path} states {name} itself: leave the argument out")
    return read_moment_annotations(path, windows=rule.windows)


def _open_store(
    source: FeatureSource,
    features_of: str,
    clips: Sequence[MomentClip],
    grid: int | None,
) -> FeatureStore:
    if features_of == "clips":
        return open_features(source, grid=grid)
    unknown = [c.clip_id for c in clips if c.video_start_sec is None]
    if unknown:
        raise ValueError(
            f"features_of='videos' needs parent_start_sec of {len(unknown)} clips, "
            f"of {unknown[0]} first"
        )
    return open_features(source, cuts=dict(map(_cut, clips)), grid=grid)


def _cut(clip: MomentClip) -> tuple[str, tuple[str, float, float, float]]:
    start = clip.video_start_sec or 0.0
    end = start + clip.duration_sec
    return clip.clip_id, (clip.video_id, start, end, clip.features_per_sec)


def _annotated(read: MomentAnnotations) -> list[MomentClip]:
    return [clip for clip in read.clips if clip.is_streamed]


def _with_features(
    read: MomentAnnotations, store: FeatureStore, missing: str, tolerance: float
) -> list[MomentClip]:
    clips = _annotated(read)
    _count_unused(read)
    stage = "features"
    if missing == "drop":
        gone = set(store.missing(clip.clip_id for clip in clips))
        dropped = [clip for clip in clips if clip.clip_id in gone]
        clips = [clip for clip in clips if clip.clip_id not in gone]
        windows = read.report.stage(stage, "windows")
        windows.reject("no feature file", sum(len(c.label_ids) for c in dropped))
        windows.kept = sum(len(clip.label_ids) for clip in clips)
        tally = read.report.stage(stage, "clips")
        tally.reject("no feature file", len(dropped))
        tally.kept = len(clips)
    expected = {c.clip_id: c.duration_sec * c.features_per_sec for c in clips}
    store.preflight(expected, tolerance=tolerance)
    return clips


def _count_unused(read: MomentAnnotations) -> None:
    unused = [c for c in read.clips if c.subset == "test" and len(c.windows_sec)]
    if not unused:
        return
    used, reason = _annotated(read), "labelled clips of subset test, of no stream"
    windows = read.report.stage("subsets", "windows")
    windows.reject(reason, sum(len(clip.label_ids) for clip in unused))
    windows.kept = sum(len(clip.label_ids) for clip in used)
    clips = read.report.stage("subsets", "clips")
    clips.reject(reason, len(unused))
    clips.kept = len(used)


def _check_subsets(path: Path, clips: Sequence[MomentClip]) -> None:
    for subset in ("train", "val"):
        if not any(clip.subset == subset for clip in clips):
            problem = f"no clip of subset {subset!r} has a usable window and features"
            hint = "train and val make the streams, test has no labels"
            raise DataError(path, problem, hint=hint)


def _new_split(
    read: MomentAnnotations,
    clips: Sequence[MomentClip],
    rule: Protocol,
    grouping: _Grouping,
    valid_share: float,
) -> tuple[Groups, Split, dict[str, Any]]:
    groups = query_groups(list(read.label_names), **vars(grouping))
    everyone = _annotated(read) if rule.splits_before_dropping else clips
    split = split_clips(everyone, groups, rule, valid_share)
    order = grouping.order
    listed = order if order is None or isinstance(order, str) else list(order)
    source = {"order": listed, "seed": grouping.seed, "valid_share": valid_share}
    return groups, split, source


def _pinned_split(
    pinned: _Pinned, read: MomentAnnotations, path: Path
) -> tuple[Groups, Split, dict[str, Any]]:
    folder = path if path.is_dir() else path.parent
    paths = {name: folder / name for name in read.report.files}
    split = manifest_split(pinned.manifest, read, paths, pinned.file)
    groups = [[c.label_id for c in group] for group in pinned.manifest.groups]
    return groups, split, pinned.manifest.source


def _streams(
    clips: Sequence[MomentClip],
    split: Split,
    groups: Groups,
    rule: Protocol,
    report: DataReport,
) -> Streams:
    """Samples of the clips that have features, counted."""
    there = {clip.clip_id for clip in clips}
    left = {
        name: [[c for c in own if c.clip_id in there] for own in experiences]
        for name, experiences in split.items()
    }
    streams = stream_samples(left, groups, rule)
    members = [clip for clip in clips if clip.subset != "test"]
    count_split(members, left, groups, rule, report)
    count_streams(streams, rule, report)
    return streams


def _queries(
    read: MomentAnnotations, groups: Groups, text: Path | None
) -> list[list[Query]]:
    names = read.label_names
    tokens: Mapping[str, Tensor]
    if text is None:
        tokens = hashed_query_text(names.values())
    else:
        tokens = read_query_text(text, names.values())
    ordered = [label_id for group in groups for label_id in group]
    channel = {label_id: i for i, label_id in enumerate(ordered)}
    return [
        [Query(channel[i], i, names[i], tokens[names[i]]) for i in group]
        for group in groups
    ]


def _check_training(path: Path, experiences: Sequence[Sequence[MomentSample]]) -> None:
    empty = [e for e, samples in enumerate(experiences) if not samples]
    if empty:
        problem = f"no training clip asks for the queries of experiences {empty}"
        hint = "choose fewer experiences, another order or other group_sizes"
        raise DataError(path, problem, hint=hint)


def _told(
    narrations: bool | NarrationStore, root: Path | None, read: MomentAnnotations
) -> ClipNarrations | None:
    """Sentences about the annotated clips; those of other clips are counted."""
    if narrations is False:
        return None
    if narrations is True:
        if root is None:
            raise FileNotFoundError(
                "narrations=True reads them from dataset_root: pass one, or pass "
                "narrations=NarrationStore(...)"
            )
        durations = {clip.clip_id: clip.duration_sec for clip in read.clips}
        sentences, features = narration_files(root)
        narrations = NarrationStore(sentences, features, durations_sec=durations)
        read.report.include(narrations.report)
    return ClipNarrations(narrations)


def _info(
    files: _Files,
    read: MomentAnnotations,
    rule: Protocol,
    store: FeatureStore,
    queries: Sequence[Sequence[Query]],
    return_task_id: bool,
) -> dict[str, Any]:
    return {
        "benchmark": "vilco_mq",
        "protocol": rule.name,
        "protocol_version": rule.version,
        "data": files.source,
        "comparable_with_paper": False,
        "uses_ground_truth_at_test": False,
        "category_ids": read.label_id_source,
        "query_text": files.query_text.name if files.query_text else "hashed words",
        "feature_dim": store.width,
        "task_labels": "experience" if return_task_id else "0",
        "queries_per_experience": [len(group) for group in queries],
        "order": [query.label_id for group in queries for query in group],
    }


def _benchmark(
    streams: Streams,
    queries: Sequence[Sequence[Query]],
    store: FeatureStore,
    report: DataReport,
    info: Mapping[str, Any],
    manifest: SplitManifest,
    return_task_id: bool,
    told: ClipNarrations | None,
) -> QueryIncrementalScenario:
    every_query = [query for group in queries for query in group]
    experiences, moments = {}, {}
    for name, members in streams.items():
        samples = [sample for experience in members for sample in experience]
        sentences = told if name == "train" else None
        data = MomentDataset(samples, store, len(every_query), sentences)
        moments[name] = data
        ends = np.cumsum([len(experience) for experience in members]).tolist()
        experiences[name] = [
            _experience(data, range(end - len(own), end), e, queries, return_task_id)
            for e, (own, end) in enumerate(zip(members, ends, strict=True))
        ]
    return QueryIncrementalScenario(
        experiences,
        queries=every_query,
        datasets=moments,
        info=info,
        report=report,
        manifest=manifest,
    )


def _experience(
    data: MomentDataset,
    indices: range,
    experience: int,
    queries: Sequence[Sequence[Query]],
    return_task_id: bool,
) -> QueryExperience:
    asked = [sorted(set(data.samples[i].class_indices.tolist())) for i in indices]
    task_label = experience if return_task_id else 0
    dataset = experience_dataset(
        data,
        indices,
        groups=balancing_targets(asked),
        clip_ids=[data.samples[i].clip.clip_id for i in indices],
        class_indices=asked,
        task_label=task_label,
        collate_fn=collate_moments,
    )
    return QueryExperience(
        dataset=dataset,
        current_experience=experience,
        groups=queries,
        task_label=task_label,
    )
