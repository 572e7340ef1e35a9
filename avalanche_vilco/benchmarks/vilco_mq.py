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

import numpy as np
from torch import Tensor

from avalanche_vilco.benchmarks.curation import (
    assign_clips,
    head_queries,
    held_out_parents,
    query_groups,
)
from avalanche_vilco.benchmarks.query_incremental import (
    Query,
    QueryExperience,
    QueryIncrementalBenchmark,
    experience_dataset,
)
from avalanche_vilco.data.batch import collate_moments
from avalanche_vilco.data.ego4d import (
    MomentAnnotations,
    MomentClip,
    read_moment_annotations,
)
from avalanche_vilco.data.errors import DataError
from avalanche_vilco.data.features import LENGTH_TOLERANCE_STEPS, FeatureFolder
from avalanche_vilco.data.mini import MINI_MQ_VERSION, mini_mq_root
from avalanche_vilco.data.moments import MomentDataset, MomentSample
from avalanche_vilco.data.report import DataReport
from avalanche_vilco.data.text import hashed_query_text, read_query_text

ANNOTATION_FILES = ("ego4d_clip_annotations_v2.json", "ego4d_clip_annotations.json")
QUERY_TEXT_FILE = "query_text.safetensors"
VALID_SHARE = 0.1
PROTOCOLS = ("exclusive",)
PROTOCOL_VERSION = "1"
DATA_ROOT_VARIABLE = "AVALANCHE_VILCO_DATA"


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
    features: Path | str | None = None,
    query_text: Path | str | None = None,
    missing: str = "error",
    length_tolerance: float = LENGTH_TOLERANCE_STEPS,
    valid_share: float = VALID_SHARE,
) -> QueryIncrementalBenchmark:
    """Moment Queries of ViLCo-Bench as query-incremental streams.

    Streams: ``train``, ``valid`` and ``test``. On Ego4D, ``test`` is the annotation
    file's val subset, since the public test subset has no labels; ``valid`` is held
    out of train by parent video, so that nothing need be selected on ``test``.

    A sample is one clip with the windows of the queries of its experience. The
    default protocol ``exclusive`` gives each clip to one experience (paper, section
    3.2), keeping as many windows as it can; windows of other experiences' queries
    are left out and counted in ``benchmark.report``.

    :param dataset_root: folder with the annotation file, ``features/`` and, if
        there, ``query_text.safetensors``. ``None`` takes the folder named by the
        environment variable ``AVALANCHE_VILCO_DATA`` where it is set, else the
        embedded generated default, whose results compare with nothing published.
    :param n_experiences: number of experiences; must divide the queries.
    :param protocol: ``"exclusive"``.
    :param order: order of learning: ``None`` is the order of category ids (with a
        seed: ``"queries"``), ``"queries"`` shuffles queries, ``"groups"`` shuffles
        the fixed groups, a sequence of category ids sets it.
    :param seed: seed of a shuffled order; train, valid and test share the order.
    :param group_sizes: queries of each experience, instead of equal sizes.
    :param return_task_id: label samples with their experience instead of 0.
    :param annotations: annotation file, if not in ``dataset_root``.
    :param features: folder of per-clip files, if not ``dataset_root/features``.
    :param query_text: safetensors file of token features, label -> (L, C). Without
        one, each word has a fixed random vector: stated in ``benchmark.info``.
    :param missing: ``"error"`` lists all clips without a feature file and stops,
        ``"drop"`` leaves them out and counts them.
    :param length_tolerance: accepted difference, in steps, between a feature file's
        length and duration x fps.
    :param valid_share: share of the training clips held out, in [0, 1).
    :return: the benchmark, with ``queries``, ``report`` and ``info``.
    :raises FileNotFoundError: root, annotation file or feature folder is absent.
    :raises DataError: the annotation or text file is damaged.
    :raises FeatureError: feature files are missing or damaged; lists all.
    :raises ValueError: an argument does not fit the data.
    """
    _check_choice("protocol", protocol, PROTOCOLS)
    _check_choice("missing", missing, ("error", "drop"))
    if not 0 <= valid_share < 1:
        raise ValueError(f"expected valid_share in [0, 1) but got {valid_share}")
    files = _find_files(dataset_root, annotations, features, query_text)
    read = read_moment_annotations(files.annotations)
    groups = query_groups(
        list(read.label_names),
        n_experiences=n_experiences,
        group_sizes=group_sizes,
        order=order,
        seed=seed,
    )
    store = FeatureFolder(files.features)
    clips = _with_features(read, store, missing, length_tolerance)
    _check_subsets(files.annotations, clips)
    queries = _queries(read, groups, files.query_text)
    streams = _exclusive_streams(clips, groups, valid_share, read.report)
    _check_training(files.annotations, streams["train"])
    return _benchmark(
        streams, queries, store, read.report, files, protocol, return_task_id
    )


ViLCoMQ = vilco_mq
"""The name in Avalanche's own style."""


@dataclass(frozen=True)
class _Files:
    annotations: Path
    features: Path
    query_text: Path | None
    source: str


def _check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"expected {name} in {list(choices)} but got {value!r}")


def _find_files(
    root: Path | str | None,
    annotations: Path | str | None,
    features: Path | str | None,
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
    text = Path(query_text) if query_text else base / QUERY_TEXT_FILE if base else None
    if query_text is None and text is not None and not text.is_file():
        text = None
    return _Files(
        _annotation_file(base, annotations),
        _feature_folder(base, features),
        text,
        source,
    )


def _annotation_file(base: Path | None, annotations: Path | str | None) -> Path:
    if annotations is not None:
        return Path(annotations).expanduser()
    assert base is not None
    for folder in (base, base / "annotations"):
        for name in ANNOTATION_FILES:
            if (folder / name).is_file():
                return folder / name
    raise FileNotFoundError(
        f"no annotation file in {base}: expected {' or '.join(ANNOTATION_FILES)} "
        "there or in its folder annotations/; or pass annotations=FILE"
    )


def _feature_folder(base: Path | None, features: Path | str | None) -> Path:
    if features is not None:
        return Path(features).expanduser()
    if base is None:
        raise FileNotFoundError("pass features=FOLDER with one file a clip")
    return base / "features"


def _with_features(
    read: MomentAnnotations, store: FeatureFolder, missing: str, tolerance: float
) -> list[MomentClip]:
    clips = [clip for clip in read.clips if len(clip.windows_sec)]
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


def _check_subsets(path: Path, clips: Sequence[MomentClip]) -> None:
    for subset in ("train", "val"):
        if not any(clip.subset == subset for clip in clips):
            problem = f"no clip of subset {subset!r} has a usable window and features"
            hint = "train and val make the streams, test has no labels"
            raise DataError(path, problem, hint=hint)


def _queries(
    read: MomentAnnotations, groups: Sequence[Sequence[int]], text: Path | None
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


_Streams = Mapping[str, list[list[MomentSample]]]


def _exclusive_streams(
    clips: Sequence[MomentClip],
    groups: Sequence[Sequence[int]],
    valid_share: float,
    report: DataReport,
) -> _Streams:
    channels = {label: i for i, label in enumerate(x for g in groups for x in g)}
    streams: dict[str, list[list[MomentSample]]] = {}
    for subset in ("train", "val"):
        members = [clip for clip in clips if clip.subset == subset]
        home = assign_clips(members, groups)
        held = held_out_parents(members, home, valid_share if subset == "train" else 0)
        for name in ("train", "valid") if subset == "train" else ("test",):
            streams[name] = [
                [
                    _sample(clip, group, channels)
                    for clip, place in zip(members, home, strict=True)
                    if place == e and (clip.video_id in held) == (name == "valid")
                ]
                for e, group in enumerate(groups)
            ]
        _count_partition(members, home, groups, report)
    _count_streams(streams, report)
    return streams


def _check_training(path: Path, experiences: Sequence[Sequence[MomentSample]]) -> None:
    empty = [e for e, samples in enumerate(experiences) if not samples]
    if empty:
        problem = f"no training clip asks for the queries of experiences {empty}"
        hint = "choose fewer experiences, another order or other group_sizes"
        raise DataError(path, problem, hint=hint)


def _sample(
    clip: MomentClip, group: Sequence[int], channels: Mapping[int, int]
) -> MomentSample:
    asked = np.isin(clip.label_ids, group)
    windows = clip.windows_sec[asked]
    labels = [channels[label] for label in clip.label_ids[asked].tolist()]
    own_channels = np.array(labels, dtype=np.int64)
    windows.setflags(write=False)
    own_channels.setflags(write=False)
    return MomentSample(
        clip, windows, own_channels, tuple(sorted(channels[label] for label in group))
    )


def _count_partition(
    clips: Sequence[MomentClip],
    home: np.ndarray,
    groups: Sequence[Sequence[int]],
    report: DataReport,
) -> None:
    windows = report.stage("protocol exclusive", "windows")
    members = report.stage("protocol exclusive", "clips")
    for clip, experience in zip(clips, home, strict=True):
        total = len(clip.label_ids)
        if experience < 0:
            members.reject("no place in an experience that asks for it")
            windows.reject("the clip has no place", total)
            continue
        kept = int(np.isin(clip.label_ids, groups[experience]).sum())
        members.kept += 1
        windows.kept += kept
        windows.reject("query of another experience than the clip's", total - kept)


def _count_streams(streams: _Streams, report: DataReport) -> None:
    windows = report.stage("protocol exclusive", "windows")
    clips = report.stage("protocol exclusive", "clips")
    for name, experiences in streams.items():
        samples = [sample for experience in experiences for sample in experience]
        windows.note(f"in stream {name}", sum(len(s.channels) for s in samples))
        clips.note(f"in stream {name}", len(samples))


def _benchmark(
    streams: _Streams,
    queries: Sequence[Sequence[Query]],
    store: FeatureFolder,
    report: DataReport,
    files: _Files,
    protocol: str,
    return_task_id: bool,
) -> QueryIncrementalBenchmark:
    every_query = [query for group in queries for query in group]
    experiences, moments = {}, {}
    for name, members in streams.items():
        samples = [sample for experience in members for sample in experience]
        data = moments[name] = MomentDataset(samples, store, len(every_query))
        ends = np.cumsum([len(experience) for experience in members]).tolist()
        experiences[name] = [
            _experience(data, range(end - len(own), end), e, queries, return_task_id)
            for e, (own, end) in enumerate(zip(members, ends, strict=True))
        ]
    info = {
        "benchmark": "vilco_mq",
        "protocol": protocol,
        "protocol_version": PROTOCOL_VERSION,
        "data": files.source,
        "comparable_with_paper": False,
        "uses_ground_truth_at_test": False,
        "query_text": files.query_text.name if files.query_text else "hashed words",
        "feature_dim": store.width,
        "task_labels": "experience" if return_task_id else "0",
        "queries_per_experience": [len(group) for group in queries],
        "order": [query.label_id for query in every_query],
    }
    return QueryIncrementalBenchmark(
        experiences, queries=every_query, moments=moments, info=info, report=report
    )


def _experience(
    data: MomentDataset,
    indices: range,
    experience: int,
    queries: Sequence[Sequence[Query]],
    return_task_id: bool,
) -> QueryExperience:
    asked = [sorted(set(data.samples[i].channels.tolist())) for i in indices]
    task_label = experience if return_task_id else 0
    dataset = experience_dataset(
        data,
        indices,
        groups=head_queries(asked),
        clip_ids=[data.samples[i].clip.clip_id for i in indices],
        task_label=task_label,
        collate_fn=collate_moments,
    )
    return QueryExperience(
        dataset=dataset,
        current_experience=experience,
        groups=queries,
        task_label=task_label,
    )
