"""ViLCo-Bench, Visual Queries: when and where was an object last seen?

Tang et al., "ViLCo-Bench: VIdeo Language COntinual learning Benchmark", NeurIPS
2024 Datasets and Benchmarks, arXiv 2406.13123: five experiences by object title.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from avalanche_vilco.benchmarks.manifest import SplitManifest
from avalanche_vilco.benchmarks.scenario import (
    Query,
    QueryExperience,
    QueryIncrementalScenario,
    experience_dataset,
)
from avalanche_vilco.benchmarks.sources import DATA_ROOT_VARIABLE
from avalanche_vilco.benchmarks.vilco_vq.annotations import (
    CLIP_FOLDER,
    OFFICIAL_VQ_FILES,
    VisualAnnotations,
    VisualQuery,
    check_clip_videos,
    find_vq_files,
    read_unlabelled_visual_queries,
    read_visual_queries,
    title_key,
)
from avalanche_vilco.benchmarks.vilco_vq.curation import (
    BENCHMARK,
    N_EXPERIENCES,
    VQ_PROTOCOLS,
    TitleGroups,
    VisualSplit,
    VQProtocol,
    make_vq_manifest,
    manifest_split,
    read_vq_manifest,
    read_vq_metadata,
    split_visual_queries,
    title_groups,
)
from avalanche_vilco.benchmarks.vilco_vq.dataset import (
    WINDOW_FRAMES,
    TitleNarrations,
    VisualDataset,
    VisualSample,
    evaluation_starts,
)
from avalanche_vilco.benchmarks.vilco_vq.embedded import (
    MINI_VQ_VERSION,
    MiniVQConfig,
    mini_vq_root,
)
from avalanche_vilco.core.errors import DataError
from avalanche_vilco.core.report import DataReport
from avalanche_vilco.data.media.video import VideoError, VideoFolder

SIDE_PIXELS = 448
"""Side of the square pictures of real clips."""

AnnotationSource: TypeAlias = Path | str | Mapping[str, Path | str]
"""A folder, or subset -> file."""
EMBEDDED_CROP_PIXELS = 32
"""Side of a crop of the embedded default."""
ManifestSource: TypeAlias = SplitManifest | Mapping[str, Any] | Path | str


def vilco_vq(
    dataset_root: Path | str | None = None,
    *,
    protocol: str = "exclusive",
    n_experiences: int = N_EXPERIENCES,
    grouping: str = "together",
    seed: int = 0,
    order: str | Sequence[int] | None = None,
    return_task_id: bool = False,
    annotations: AnnotationSource | None = None,
    videos: Path | str | None = None,
    backend: str = "auto",
    image_size: int | None = None,
    crop_size: int | None = None,
    n_frames: int = WINDOW_FRAMES,
    augment: bool | None = None,
    draw_seed: int = 0,
    narrations: bool = False,
    missing: str = "error",
    valid_share: float | None = None,
    manifest: ManifestSource | None = None,
) -> QueryIncrementalScenario:
    """Visual Queries of ViLCo-Bench as query-incremental streams.

    Streams: ``train``, ``valid`` and ``test``, each with five experiences, one for each
    group of object titles, in the same order. On Ego4D, ``test`` is the val file, since
    the test file has no tracks; ``valid`` is held out of train by parent video, so that
    nothing need be selected on ``test``. No parent video is in train and test.

    A training sample is one clip with one query, and a window of frames around the
    response track that is drawn anew at each access. Samples of ``valid`` and ``test``
    are windows: those of a query cover all frames before its query frame. The object is
    shown as a crop, an input: the model has one query logit, and experiences not yet
    learnt can be evaluated.

    :param dataset_root: folder with ``vq_train.json`` and ``vq_val.json``, there or in
        ``annotations/``, and ``clips/<clip uid>.mp4``. ``None`` takes the folder named
        by the environment variable ``AVALANCHE_VILCO_DATA`` where it is set, else the
        embedded generated default, whose results compare with nothing published.
    :param protocol: ``"exclusive"``: each clip belongs to one experience and its other
        queries are left out, counted; ``"shared_clips"``: no query is left out.
    :param n_experiences: number of groups of titles.
    :param grouping: how titles are grouped, see
        :func:`~avalanche_vilco.benchmarks.vilco_vq.curation.title_groups`.
    :param seed: of the groups, and of a shuffled order.
    :param order: order of learning: ``None`` is that of the groups, ``"groups"``
        shuffles it, a sequence of group numbers sets it.
    :param return_task_id: label samples with their experience instead of 0.
    :param annotations: folder, or subset (``"train"``, ``"val"``) -> file, if not in
        ``dataset_root``.
    :param videos: folder of the clips, if not ``dataset_root/clips``.
    :param backend: decoder, see :func:`~avalanche_vilco.data.media.video.open_video`.
    :param image_size: pixels of the square that frames are fitted into; default 448,
        for the embedded default 128.
    :param crop_size: pixels of the square that a crop is scaled to; default
        ``image_size``, as in VQLoC; for the embedded default 32, about the size of its objects in a
        frame, since its backbone does not know one texture in two sizes.
    :param n_frames: frames of a window.
    :param augment: change training windows at random (colours, mirroring, a cut-out),
        all frames of a window alike; default no.
    :param draw_seed: seed of what is drawn for training samples.
    :param narrations: have training samples carry the object's title, as ViLCo's
        self-supervision takes it.
    :param missing: ``"error"`` lists all clips whose video is missing, damaged or
        another one, and stops; ``"drop"`` leaves their queries out and counts them.
    :param valid_share: share of the training clips held out by parent video, in
        [0, 1); default 0.1.
    :param manifest: a published split: JSON file, its content, or the public code's
        metadata pickle. It sets protocol, groups, order and queries; the arguments for
        these keep their defaults.
    :return: the benchmark, with ``queries`` (the titles), ``moments`` (the datasets),
        ``report``, ``info`` and ``manifest()``.
    :raises FileNotFoundError: root or annotation files are absent.
    :raises DataError: annotations or manifest are damaged, train and val share a parent
        video, or an experience has no training query.
    :raises VideoError: videos are missing or damaged; lists all.
    :raises ValueError: an argument does not fit the data.
    """
    _check_choice("protocol", protocol, list(VQ_PROTOCOLS))
    _check_choice("missing", missing, ("error", "drop"))
    given = _Choice(protocol, n_experiences, grouping, seed, order, valid_share)
    files = _find_files(dataset_root, annotations, videos, (image_size, crop_size))
    folder = VideoFolder(files.videos, backend=backend)
    read = read_visual_queries(_annotation_files(files, ("train", "val")))
    divided = (
        _divided(read, given) if manifest is None else _pinned(manifest, read, given)
    )
    split = _with_videos(divided.split, read, folder, missing)
    _check_training(read, split["train"])
    pin = make_vq_manifest(
        split,
        divided.groups,
        protocol=divided.protocol,
        report=read.report,
        source=divided.source,
    )
    told = None
    if narrations:
        told = TitleNarrations(chain(*split["train"]), read.clips)
    data = {
        name: VisualDataset(
            _samples(split[name], divided.groups, read, name, n_frames),
            folder,
            files.image_size,
            crop_size=files.crop_size,
            queries=list(chain(*split[name])),
            n_frames=n_frames,
            augment=bool(augment) and name == "train",
            draw_seed=draw_seed,
            narrations=told if name == "train" else None,
        )
        for name in split
    }
    experiences, titles = _experiences(data, divided.groups, return_task_id)
    info = {
        **_info(files, divided, data["train"]),
        "augment": bool(augment),
        "task_labels": "experience" if return_task_id else "0",
    }
    return QueryIncrementalScenario(
        experiences,
        queries=titles,
        datasets=data,
        info=info,
        report=read.report,
        manifest=pin,
    )


def unlabelled_vq(
    dataset_root: Path | str | None = None,
    *,
    annotations: Path | str | None = None,
    videos: Path | str | None = None,
    backend: str = "auto",
    image_size: int | None = None,
    crop_size: int | None = None,
    n_frames: int = WINDOW_FRAMES,
    missing: str = "error",
) -> VisualDataset:
    """Queries of the unannotated test file: they can be answered, not scored.

    :param dataset_root: as in :func:`vilco_vq`, with ``vq_test_unannotated.json``.
    :param annotations: the file, if not in ``dataset_root``.
    :return: windows of queries without track, in file order; other parameters as there.
    :raises FileNotFoundError: root or annotation file are absent.
    :raises DataError: annotations are damaged.
    :raises VideoError: videos are missing or damaged; lists all.
    """
    _check_choice("missing", missing, ("error", "drop"))
    source = None if annotations is None else {"test": annotations}
    files = _find_files(dataset_root, source, videos, (image_size, crop_size))
    folder = VideoFolder(files.videos, backend=backend)
    path = _annotation_files(files, ("test",))["test"]
    read = read_unlabelled_visual_queries(path)
    split = _with_videos({"test": [read.queries]}, read, folder, missing)
    queries = split["test"][0]
    samples = [one for q in queries for one in _windows(q, read, -1, n_frames)]
    return VisualDataset(
        samples,
        folder,
        files.image_size,
        crop_size=files.crop_size,
        queries=queries,
        n_frames=n_frames,
    )


def _check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"expected {name} in {list(choices)} but got {value!r}")


# --- Files ----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Files:
    annotations: AnnotationSource
    videos: Path
    image_size: int
    crop_size: int
    source: str
    """What to call the data."""


def _find_files(
    root: Path | str | None,
    annotations: AnnotationSource | None,
    videos: Path | str | None,
    sizes: tuple[int | None, int | None],
) -> _Files:
    """Files, and the sizes of frames and crops that suit them where none is given."""
    if root is None and annotations is None:
        root = os.environ.get(DATA_ROOT_VARIABLE) or None
    usual: tuple[int, int | None] = (SIDE_PIXELS, None)
    source = "user data"
    if root is None and annotations is None:
        root, source = mini_vq_root(), f"embedded generated v{MINI_VQ_VERSION}"
        usual = (max(MiniVQConfig().frame_size), EMBEDDED_CROP_PIXELS)
    base = None if root is None else Path(root).expanduser()
    if base is not None and not base.is_dir():
        raise FileNotFoundError(
            f"no data folder at {base}; vilco_vq() without arguments uses the "
            "embedded default"
        )
    places = base if annotations is None else annotations
    if videos is None and base is not None:
        videos = base / CLIP_FOLDER
    if videos is None or places is None:
        raise FileNotFoundError("pass videos=FOLDER with <clip uid>.mp4 for each clip")
    image_size = usual[0] if sizes[0] is None else sizes[0]
    crop_size = usual[1] if sizes[1] is None else sizes[1]
    return _Files(
        places,
        Path(videos).expanduser(),
        image_size,
        image_size if crop_size is None else crop_size,
        source,
    )


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
            found.update(find_vq_files(folder))
    for subset in subsets:
        if subset not in found:
            raise FileNotFoundError(
                f"no {subset} annotations in {places}: expected "
                f"{OFFICIAL_VQ_FILES[subset]}"
            )
    return {subset: found[subset] for subset in subsets}


def _with_videos(
    split: VisualSplit, read: VisualAnnotations, videos: VideoFolder, missing: str
) -> dict[str, list[list[VisualQuery]]]:
    """The queries whose clips have a sound video. Which videos are there changes
    nothing in how the other queries are divided.
    """
    own = [query for experiences in split.values() for query in chain(*experiences)]
    if missing == "error":
        check_clip_videos(_about(own, read), videos)
        return {name: [list(qs) for qs in parts] for name, parts in split.items()}
    faults = _video_faults(own, read, videos)
    _count_videos(own, faults, read.report)
    return {
        name: [[q for q in part if q.clip_id not in faults] for part in experiences]
        for name, experiences in split.items()
    }


def _about(
    queries: Sequence[VisualQuery], read: VisualAnnotations
) -> VisualAnnotations:
    """Annotations of some of the queries."""
    used = {query.clip_id for query in queries}
    clips = {clip_id: clip for clip_id, clip in read.clips.items() if clip_id in used}
    return replace(read, clips=clips, queries=tuple(queries))


def _video_faults(
    queries: Sequence[VisualQuery], read: VisualAnnotations, videos: VideoFolder
) -> dict[str, str]:
    """Clip -> why its video cannot be used."""
    asked: dict[str, list[VisualQuery]] = {}
    for query in queries:
        asked.setdefault(query.clip_id, []).append(query)
    faults = dict.fromkeys(videos.missing(asked), "no video file")
    for clip_id, own in asked.items():
        if clip_id not in faults:
            try:
                check_clip_videos(_about(own, read), videos)
            except VideoError:
                faults[clip_id] = "the video is damaged, or of another clip"
    return faults


def _count_videos(
    queries: Sequence[VisualQuery], faults: Mapping[str, str], report: DataReport
) -> None:
    sets, clips = (report.stage("videos", unit) for unit in ("query sets", "clips"))
    for query in queries:
        if query.clip_id in faults:
            sets.reject(faults[query.clip_id])
        else:
            sets.kept += 1
    for reason in faults.values():
        clips.reject(reason)
    clips.kept += len({query.clip_id for query in queries} - set(faults))


# --- Splits ---------------------------------------------------------------------------


@dataclass(frozen=True)
class _Choice:
    """Arguments that say how queries are divided, which a manifest says too."""

    protocol: str = "exclusive"
    n_experiences: int = N_EXPERIENCES
    grouping: str = "together"
    seed: int = 0
    order: str | Sequence[int] | None = None
    valid_share: float | None = None


@dataclass(frozen=True)
class _Divided:
    split: VisualSplit
    groups: TitleGroups
    protocol: VQProtocol
    source: Mapping[str, Any]


def _divided(read: VisualAnnotations, given: _Choice) -> _Divided:
    rule = VQ_PROTOCOLS[given.protocol]
    groups = title_groups(
        read,
        n_experiences=given.n_experiences,
        seed=given.seed,
        grouping=given.grouping,
    )
    groups = [groups[i] for i in _order(given)]
    share = rule.valid_share if given.valid_share is None else given.valid_share
    split = split_visual_queries(read, groups, rule, valid_share=share)
    order = given.order
    source = {
        "seed": given.seed,
        "grouping": given.grouping,
        "order": order if order is None or isinstance(order, str) else list(order),
        "valid_share": share,
    }
    return _Divided(split, groups, rule, source)


def _order(given: _Choice) -> list[int]:
    numbers = range(given.n_experiences)
    if given.order is None:
        return list(numbers)
    if isinstance(given.order, str):
        _check_choice("order", given.order, ("groups",))
        return np.random.default_rng(given.seed).permutation(numbers).tolist()
    if sorted(given.order) != list(numbers):
        raise ValueError(
            f"expected order to have each of 0..{given.n_experiences - 1} once but got "
            f"{list(given.order)}"
        )
    return list(given.order)


def _pinned(
    manifest: ManifestSource, read: VisualAnnotations, given: _Choice
) -> _Divided:
    """What a manifest or the public pickle says."""
    name: Path | str = "manifest"
    if isinstance(manifest, (Path, str)):
        name = Path(manifest).expanduser()
    if isinstance(name, Path) and name.suffix in (".pkl", ".pickle"):
        pinned = read_vq_metadata(name, read)
    else:
        pinned = read_vq_manifest(manifest)
    usual = _Choice(protocol=given.protocol)
    set_twice = [n for n, v in vars(given).items() if v != getattr(usual, n)]
    if given.protocol not in ("exclusive", pinned.protocol):
        set_twice.append("protocol")
    if set_twice:
        raise ValueError(
            f"{name} sets {', '.join(sorted(set_twice))} already: leave them out"
        )
    return _Divided(
        manifest_split(pinned, read, name),
        [[title_key(title.name) for title in group] for group in pinned.groups],
        VQ_PROTOCOLS[pinned.protocol],
        pinned.source,
    )


def _check_training(
    read: VisualAnnotations, experiences: Sequence[Sequence[VisualQuery]]
) -> None:
    empty = [e for e, own in enumerate(experiences) if not own]
    if empty:
        problem = f"no training query of the titles of experiences {empty}"
        raise DataError(read.files["train"], problem, hint="are videos missing?")


# --- Streams --------------------------------------------------------------------------


def _info(files: _Files, divided: _Divided, train: VisualDataset) -> dict[str, Any]:
    return {
        "benchmark": BENCHMARK,
        "protocol": divided.protocol.name,
        "protocol_version": divided.protocol.version,
        "data": files.source,
        "comparable_with_paper": False,
        "uses_ground_truth_at_test": False,
        "queries_per_experience": [len(group) for group in divided.groups],
        "order": [title for group in divided.groups for title in group],
        "grouping": divided.source.get("grouping"),
        "group_seed": divided.source.get("seed"),
        "image_size": train.image_size,
        "crop_size": train.pictures.crop_size,
        "window": train.n_frames,
        "draw_seed": train.draw_seed,
        "backend": train.videos.backend,
    }


def _samples(
    experiences: Sequence[Sequence[VisualQuery]],
    groups: TitleGroups,
    read: VisualAnnotations,
    stream: str,
    n_frames: int,
) -> list[VisualSample]:
    """Samples of a whole stream, experience after experience."""
    place = {title: i for i, title in enumerate(chain(*groups))}
    samples: list[VisualSample] = []
    for query in chain(*experiences):
        group = place[title_key(query.title)]
        if stream == "train":
            clip = read.clips[query.clip_id]
            samples.append(
                VisualSample(query=query, clip=clip, start=None, group=group)
            )
        else:
            samples += _windows(query, read, group, n_frames)
    return samples


def _windows(
    query: VisualQuery, read: VisualAnnotations, group: int, n_frames: int
) -> Iterable[VisualSample]:
    clip = read.clips[query.clip_id]
    return [
        VisualSample(query=query, clip=clip, start=start, group=group)
        for start in evaluation_starts(query.query_frame, n_frames)
    ]


def _experiences(
    data: Mapping[str, VisualDataset], groups: TitleGroups, return_task_id: bool
) -> tuple[dict[str, list[QueryExperience]], list[Query]]:
    """Experiences of each stream, and the titles in order of learning."""
    titles = list(chain(*groups))
    ids = {title: i for i, title in enumerate(sorted(titles))}
    # A title is shown to no model that localises: each query brings its crop.
    no_tokens = torch.zeros(0, 1)
    learnt = [Query(i, ids[t], t, no_tokens) for i, t in enumerate(titles)]
    ends = np.cumsum([len(group) for group in groups]).tolist()
    queries = [learnt[end - len(g) : end] for g, end in zip(groups, ends, strict=True)]
    home = [e for e, group in enumerate(groups) for _ in group]
    experiences = {}
    for name, dataset in data.items():
        members: list[list[int]] = [[] for _ in groups]
        for i, sample in enumerate(dataset.samples):
            members[home[sample.group]].append(i)
        experiences[name] = [
            _experience(dataset, own, e, queries, e if return_task_id else 0)
            for e, own in enumerate(members)
        ]
    return experiences, learnt


def _experience(
    data: VisualDataset,
    indices: Sequence[int],
    experience: int,
    queries: Sequence[Sequence[Query]],
    task_label: int,
) -> QueryExperience:
    dataset = experience_dataset(
        data,
        indices,
        class_indices=[[data.samples[i].group] for i in indices],
        task_label=task_label,
    )
    return QueryExperience(
        dataset=dataset,
        current_experience=experience,
        groups=queries,
        task_label=task_label,
    )
