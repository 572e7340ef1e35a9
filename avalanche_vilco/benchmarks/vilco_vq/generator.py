"""ViLCo-Bench, Visual Queries: tracks that show where an object was last seen.

Tang et al., "ViLCo-Bench: VIdeo Language COntinual learning Benchmark", NeurIPS
2024 Datasets and Benchmarks, arXiv 2406.13123: five experiences by object title.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from msgspec import Meta

from avalanche_vilco.benchmarks.items import Item, drop_clips
from avalanche_vilco.benchmarks.manifest import (
    ManifestSource,
    make_manifest,
    open_manifest,
)
from avalanche_vilco.benchmarks.scenario import (
    QueryIncrementalScenario,
    query_scenario,
)
from avalanche_vilco.benchmarks.sources import checked_sources
from avalanche_vilco.benchmarks.split import Split, check_training, count_split
from avalanche_vilco.benchmarks.vilco_vq.clip_videos import (
    check_clip_videos,
    clip_faults,
)
from avalanche_vilco.benchmarks.vilco_vq.dataset import (
    TitleNarrations,
    VisualDataset,
    VisualSample,
    evaluation_starts,
)
from avalanche_vilco.benchmarks.vilco_vq.reference_metadata import read_vq_metadata
from avalanche_vilco.benchmarks.vilco_vq.sources import (
    VisualFiles,
    VQSources,
    read_visual_files,
)
from avalanche_vilco.benchmarks.vilco_vq.split import (
    VQ_RULES,
    VQDivision,
    count_titles,
    divide_queries,
    follow_queries,
    title_categories,
    title_items,
    titles_of,
)
from avalanche_vilco.benchmarks.vilco_vq.title_groups import N_EXPERIENCES
from avalanche_vilco.data.media.video import UnsupportedVideo


def vilco_vq(
    dataset_root: Path | str | None = None,
    *,
    protocol: str = "exclusive",
    n_experiences: Annotated[int, Meta(ge=1)] = N_EXPERIENCES,
    grouping: Literal["together", "shuffled"] = "together",
    fixed_class_order: Literal["groups"] | Sequence[int] | None = None,
    seed: Annotated[int, Meta(ge=0)] = 0,
    return_task_id: bool = False,
    valid_share: Annotated[float, Meta(ge=0, lt=1)] | None = None,
    manifest: ManifestSource | None = None,
    sources: VQSources | Mapping[str, Any] | None = None,
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
        :func:`~avalanche_vilco.benchmarks.vilco_vq.title_groups.title_groups`.
    :param fixed_class_order: order of learning: ``None`` is that of the groups,
        ``"groups"`` shuffles it, a sequence of group numbers sets it.
    :param seed: of the groups, and of a shuffled order.
    :param return_task_id: label samples with their experience instead of 0.
    :param valid_share: share of the training clips held out by parent video, in
        [0, 1); default 0.1.
    :param manifest: a published split: JSON file, its content, or the public code's
        metadata pickle. It sets protocol, groups, order and queries; the arguments for
        these keep their defaults.
    :param sources: where files lie and how they are read:
        :class:`~avalanche_vilco.benchmarks.vilco_vq.sources.VQSources`, or a mapping of
        its fields.
    :return: the scenario, with ``queries`` (the titles), ``datasets``, ``report``,
        ``info`` and ``manifest()``.
    :raises FileNotFoundError: root or annotation files are absent.
    :raises DataError: annotations or manifest are damaged, train and val share a parent
        video, or an experience has no training query.
    :raises VideoError: videos are missing, damaged or not read as they are; lists all.
    :raises ValueError: an argument does not fit the data.
    """
    chosen = checked_sources(VQSources, sources)
    division = VQDivision(
        protocol=VQ_RULES.protocol(protocol).name,
        n_experiences=n_experiences,
        grouping=grouping,
        fixed_class_order=fixed_class_order,
        seed=seed,
        valid_share=valid_share,
    )
    files = read_visual_files(dataset_root, chosen)
    read = files.annotations
    items = title_items(read.queries, read.clips)
    if manifest is None:
        split = divide_queries(items, division)
    else:
        read_public = partial(
            read_vq_metadata, queries=items, digests=files.report.files
        )
        pinned = open_manifest(manifest, VQ_RULES, division, read_public=read_public)
        split = follow_queries(items, pinned, files)
    count_split(items, split, VQ_RULES, files.report)
    # Which videos are there changes nothing in how the other queries are divided.
    members = list(chain.from_iterable(chain(*split.streams.values())))
    split = split.only(_with_videos(members, files, chosen))
    check_training(split, VQ_RULES, files.train_path)
    count_titles(items, split, files.report)
    taught = titles_of(items, "train")
    datasets, sizes = _datasets(split, taught, files, chosen)
    return _scenario(split, taught, datasets, sizes, files, return_task_id)


def unlabelled_vq(
    dataset_root: Path | str | None = None,
    *,
    sources: VQSources | Mapping[str, Any] | None = None,
) -> VisualDataset:
    """Queries of the unannotated test file: they can be answered, not scored.

    :param dataset_root: as in :func:`vilco_vq`, with ``vq_test_unannotated.json``.
    :param sources: as there; a path as ``annotations`` is this file or its folder.
    :return: windows of queries without track, in file order.
    :raises FileNotFoundError: root or annotation file are absent.
    :raises DataError: annotations are damaged.
    :raises VideoError: videos are missing, damaged or not read as they are; lists all.
    """
    chosen = checked_sources(VQSources, sources)
    files = read_visual_files(dataset_root, chosen, is_labelled=False)
    read = files.annotations
    items = _with_videos(title_items(read.queries, read.clips), files, chosen)
    return VisualDataset(
        _samples(items, files, {}, chosen.n_frames),
        files.pictures,
        queries=[item.record for item in items],
        n_frames=chosen.n_frames,
    )


def _with_videos(
    items: Sequence[Item], files: VisualFiles, sources: VQSources
) -> list[Item]:
    """The queries whose clips have a sound video; with ``missing="error"`` all."""
    queries, read = [item.record for item in items], files.annotations
    videos = files.pictures.videos
    if sources.missing == "error":
        check_clip_videos(queries, read.clips, videos)
        return list(items)
    faults = clip_faults(queries, read.clips, videos)
    reasons = {
        clip_id: "the video cannot be read as it is"
        if any(isinstance(fault, UnsupportedVideo) for fault in of_clip)
        else "the video is damaged, or of another clip"
        for clip_id, of_clip in faults.items()
    }
    reasons.update(dict.fromkeys(videos.missing(faults), "no video file"))
    units = VQ_RULES.units
    return drop_clips(items, reasons, files.report, stage="videos", units=units)


def _samples(
    items: Sequence[Item],
    files: VisualFiles,
    title_index: Mapping[str, int],
    n_frames: int,
    *,
    is_train: bool = False,
) -> list[VisualSample]:
    """A sample a query for training, else the windows that cover what is searched."""
    clips = files.annotations.clips
    return [
        VisualSample(
            query=item.record,
            clip=clips[item.clip_id],
            start=start,
            title_index=title_index.get(item.record.title_key, -1),
        )
        for item in items
        for start in (
            [None] if is_train else evaluation_starts(item.record.query_frame, n_frames)
        )
    ]


def _datasets(
    split: Split, taught: AbstractSet[Any], files: VisualFiles, sources: VQSources
) -> tuple[dict[str, VisualDataset], dict[str, list[int]]]:
    """Datasets of the streams, and how many samples each experience has."""
    # Titles of val alone have the last numbers: none that is taught depends on them.
    order = sorted(chain(*split.groups), key=lambda title: title not in taught)
    index = {title: i for i, title in enumerate(order)}
    datasets: dict[str, VisualDataset] = {}
    sizes: dict[str, list[int]] = {}
    for name, parts in split.streams.items():
        is_train = name == "train"
        samples = [
            _samples(members, files, index, sources.n_frames, is_train=is_train)
            for members in parts
        ]
        sizes[name] = list(map(len, samples))
        queries = [item.record for item in chain(*parts)]
        narrations = None
        if sources.narrations and is_train:
            narrations = TitleNarrations(queries, files.annotations.clips)
        datasets[name] = VisualDataset(
            list(chain(*samples)),
            files.pictures,
            queries=queries,
            n_frames=sources.n_frames,
            augment=sources.augment and is_train,
            draw_seed=sources.draw_seed,
            narrations=narrations,
        )
    return datasets, sizes


def _scenario(
    split: Split,
    taught: AbstractSet[Any],
    datasets: Mapping[str, VisualDataset],
    sizes: Mapping[str, Sequence[int]],
    files: VisualFiles,
    return_task_id: bool,
) -> QueryIncrementalScenario:
    train = datasets["train"]
    manifest = make_manifest(
        split, title_categories(split.groups, taught), VQ_RULES, files.report.files
    )
    # A title is shown to no model that localises: each query brings its crop.
    no_tokens = torch.zeros(0, 1)
    of_val_alone = sum(title not in taught for title in chain(*split.groups))
    return query_scenario(
        split,
        manifest,
        datasets,
        sizes=sizes,
        tokens=lambda title: no_tokens,
        class_indices=lambda sample: [sample.title_index],
        return_task_id=return_task_id,
        info={
            "data": files.root.description,
            "grouping": split.provenance.get("grouping"),
            "group_seed": split.provenance.get("seed"),
            "image_size": train.image_size,
            "crop_size": train.pictures.crop_size,
            "window": train.n_frames,
            "draw_seed": train.draw_seed,
            "backend": train.pictures.videos.backend,
            "augment": train.augment,
            **({"titles_of_val_alone": of_val_alone} if of_val_alone else {}),
        },
        report=files.report,
        taught=taught,
    )
