"""ViLCo-Bench, Moment Queries: windows of a long clip that show an action.

Tang et al., "ViLCo-Bench: VIdeo Language COntinual learning Benchmark", NeurIPS
2024 Datasets and Benchmarks, arXiv 2406.13123: 110 action categories of Ego4D in
five experiences of 22 queries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from avalanche_vilco.benchmarks.items import Item, drop_clips
from avalanche_vilco.benchmarks.manifest import (
    ManifestSource,
    SplitManifest,
    open_manifest,
    settle_split,
)
from avalanche_vilco.benchmarks.scenario import (
    QueryIncrementalScenario,
    query_scenario,
)
from avalanche_vilco.benchmarks.sources import (
    checked_sources,
    open_clip_features,
    open_narrations,
)
from avalanche_vilco.benchmarks.spec import AtLeastOne
from avalanche_vilco.benchmarks.split import Division, Split
from avalanche_vilco.benchmarks.vilco_mq.annotations import MomentAnnotations
from avalanche_vilco.benchmarks.vilco_mq.reference_metadata import (
    read_reference_metadata,
)
from avalanche_vilco.benchmarks.vilco_mq.sources import (
    MomentFiles,
    MQSources,
    read_moment_files,
)
from avalanche_vilco.benchmarks.vilco_mq.split import (
    MQ_PROTOCOLS,
    MQ_RULES,
    moment_items,
    moment_samples,
    taught_items,
)
from avalanche_vilco.core.errors import DataError, SettingError
from avalanche_vilco.data.features import FeatureStore
from avalanche_vilco.data.moments import MomentClip, MomentDataset, MomentSample
from avalanche_vilco.data.text.tokens import hashed_query_text, read_query_text


def vilco_mq(
    dataset_root: Path | str | None = None,
    *,
    protocol: str = "exclusive",
    n_experiences: Annotated[int, Meta(ge=1)] = 5,
    per_exp_classes: Sequence[AtLeastOne] | None = None,
    fixed_class_order: Literal["queries", "groups"] | Sequence[int] | None = None,
    seed: Annotated[int, Meta(ge=0)] | None = None,
    return_task_id: bool = False,
    valid_share: Annotated[float, Meta(ge=0, lt=1)] | None = None,
    manifest: ManifestSource | None = None,
    sources: MQSources | Mapping[str, Any] | None = None,
) -> QueryIncrementalScenario:
    """Moment Queries of ViLCo-Bench as query-incremental streams.

    Streams: ``train``, ``valid`` and ``test``. On Ego4D, ``test`` is the annotation
    file's val subset, since the public test subset has no labels; ``valid`` is held
    out of train by parent video, so that nothing need be selected on ``test``.

    A sample is one clip with the windows of the queries of its experience. Protocols
    (``docs/protocols.md``) say which clips an experience has:

    - ``exclusive`` gives each clip to one experience (paper, section 3.2), keeping as
      many windows as it can; windows of other experiences' queries are left out and
      counted in ``scenario.report``;
    - ``shared_clips`` lets a clip return in each experience that asks a query of it:
      no window is lost, a sample is a pair of clip and experience;
    - ``reference`` splits as the public code does, which loses 57 % of the windows and
      has no valid stream unless ``valid_share`` is passed.

    :param dataset_root: folder with the annotation file, or with Ego4D's own
        ``moments_*.json``, there or in ``annotations/``; ``features/``; and, if
        there, ``query_text.safetensors``. ``None`` takes the folder named by the
        environment variable ``AVALANCHE_VILCO_DATA`` where it is set, else the
        embedded generated default, whose results compare with nothing published.
    :param protocol: ``"exclusive"``, ``"shared_clips"`` or ``"reference"``.
    :param n_experiences: number of experiences; must divide the queries. If
        ``per_exp_classes`` are given they set it.
    :param per_exp_classes: queries of each experience, instead of equal numbers.
    :param fixed_class_order: order of learning: ``None`` is the order of category ids
        (with a seed: ``"queries"``), ``"queries"`` shuffles queries, ``"groups"``
        shuffles the fixed groups, a sequence of category ids sets it.
    :param seed: seed of a shuffled order; train, valid and test share the order. A
        listed order takes none.
    :param return_task_id: label samples with their experience instead of 0.
    :param valid_share: share of the training clips held out by parent video, in
        [0, 1); default 0.1, for ``reference`` 0.
    :param manifest: a published split: JSON file, its content, or the public code's
        metadata pickle. It sets protocol, groups, order and clips; the arguments for
        these keep their defaults.
    :param sources: where files lie and how they are read:
        :class:`~avalanche_vilco.benchmarks.vilco_mq.sources.MQSources`, or a mapping
        of its fields.
    :return: the scenario, with ``queries``, ``report``, ``info`` and ``manifest()``.
    :raises FileNotFoundError: root, annotation file or features are absent.
    :raises DataError: the annotation, text or manifest file is damaged, or the
        manifest is of another annotation file or names unknown clips.
    :raises FeatureError: features are missing or damaged; lists all.
    :raises ValueError: an argument does not fit the data.
    """
    chosen = checked_sources(MQSources, sources)
    division = Division(
        protocol=MQ_RULES.protocol(protocol).name,
        n_experiences=n_experiences,
        per_exp_classes=per_exp_classes,
        fixed_class_order=fixed_class_order,
        seed=seed,
        valid_share=valid_share,
    )
    pinned = None
    if manifest is not None:
        pinned = open_manifest(
            manifest, MQ_RULES, division, read_public=read_reference_metadata
        )
        protocol = pinned.manifest.protocol
    if chosen.clip_label_text and protocol != "reference":
        raise SettingError(
            "expected protocol 'reference' for the deviation 'clip_label_text' but got "
            f"{protocol!r}"
        )
    files = read_moment_files(dataset_root, chosen, MQ_PROTOCOLS[protocol])
    read = files.annotations
    items, names = _streamed_items(read), dict(read.label_names)
    # The public code takes its queries from all files together.
    if protocol != "reference":
        items, names = taught_items(items, names, read.report)
    clips = {item.clip_id: item.record for item in items}
    store, present = open_clip_features(items, clips, chosen, files, MQ_RULES.units)
    _check_subsets(present, files.train_path)
    try:
        split, settled = settle_split(
            items, present, division, pinned, MQ_RULES, names=names, files=files
        )
    except ValueError as error:
        if len(names) == len(read.label_names) or isinstance(error, DataError):
            raise
        gone = {i: name for i, name in read.label_names.items() if i not in names}
        raise ValueError(f"{error}; no train clip has {gone}: left out") from None
    datasets = _datasets(split, store, files, chosen)
    return _scenario(split, settled, datasets, files, chosen, return_task_id)


def unlabelled_mq(
    dataset_root: Path | str | None = None,
    *,
    sources: MQSources | Mapping[str, Any] | None = None,
) -> MomentDataset:
    """Clips of subset test: they can be answered, not scored.

    :param dataset_root: as in :func:`vilco_mq`; beside Ego4D's own files with
        ``moments_test_unannotated.json``.
    :param sources: as there.
    :return: samples without windows, in file order; labels of the subset, which the
        processed files do not have, are not looked at.
    :raises FileNotFoundError: root, annotation file or features are absent.
    :raises DataError: the annotation file is damaged, or there are no such clips.
    :raises FeatureError: features are missing or damaged; lists all.
    """
    chosen = checked_sources(MQSources, sources)
    files = read_moment_files(dataset_root, chosen, MQ_PROTOCOLS["exclusive"])
    read = files.annotations
    clips = [clip for clip in read.clips if clip.subset == "test"]
    if not clips:
        hint = "Ego4D's own are in moments_test_unannotated.json"
        raise DataError(files.train_path, "no clip of subset 'test'", hint=hint)
    items, by_id = moment_items(clips), {clip.clip_id: clip for clip in clips}
    store, present = open_clip_features(items, by_id, chosen, files, MQ_RULES.units)
    nothing = MomentClip("", "", "test", 0.0, 0.0)
    samples = [
        MomentSample(item.record, nothing.windows_sec, nothing.label_ids, asked=())
        for item in present
    ]
    return MomentDataset(samples, store, len(read.label_names))


def _streamed_items(read: MomentAnnotations) -> list[Item]:
    """Annotated clips of train and val; labelled ones of subset test are counted."""
    items = moment_items(clip for clip in read.clips if len(clip.windows_sec))
    reason = "labelled clips of subset test, of no stream"
    unused = {item.clip_id: reason for item in items if item.subset == "test"}
    if not unused:
        return items
    return drop_clips(items, unused, read.report, stage="subsets", units=MQ_RULES.units)


def _check_subsets(items: Iterable[Item], path: Path) -> None:
    subsets = {item.subset for item in items}
    for subset in ("train", "val"):
        if subset not in subsets:
            problem = f"no clip of subset {subset!r} has a usable window and features"
            hint = "train and val make the streams, test has no labels"
            raise DataError(path, problem, hint=hint)


def _datasets(
    split: Split, store: FeatureStore, files: MomentFiles, sources: MQSources
) -> dict[str, MomentDataset]:
    read, n_queries = files.annotations, sum(map(len, split.groups))
    samples = moment_samples(split, clip_label_text=sources.clip_label_text)
    narrations = open_narrations(sources, files, read.clips)
    if sources.clip_label_text:
        stage = "query text of clip_label_text (uses ground truth at test: yes)"
        tally = read.report.stage(stage, "samples")
        for name, members in samples.items():
            tally.kept += len(members)
            tally.note(f"in stream {name}", len(members))
    return {
        name: MomentDataset(
            members,
            store,
            n_queries,
            narrations if name == "train" else None,
        )
        for name, members in samples.items()
    }


def _scenario(
    split: Split,
    manifest: SplitManifest,
    datasets: Mapping[str, MomentDataset],
    files: MomentFiles,
    sources: MQSources,
    return_task_id: bool,
) -> QueryIncrementalScenario:
    names = [category.name for category in chain(*manifest.groups)]
    untaught = sorted({*files.annotations.label_names.values()}.difference(names))
    left_out = {"left_out_categories": untaught} if untaught else {}
    manifest.source.update(left_out)
    if files.query_text is None:
        text, tokens = "hashed words", hashed_query_text(names)
    else:
        text, tokens = files.query_text.name, read_query_text(files.query_text, names)
    deviations = ["clip_label_text"] if sources.clip_label_text else []
    scenario = query_scenario(
        split,
        manifest,
        datasets,
        tokens=tokens.__getitem__,
        class_indices=lambda sample: sorted(set(sample.class_indices.tolist())),
        return_task_id=return_task_id,
        info={
            "data": files.root.description,
            "uses_ground_truth_at_test": bool(deviations),
            "category_ids": files.annotations.label_id_source,
            "query_text": text + (", each clip's own labels" if deviations else ""),
            "feature_dim": datasets["train"].store.width,
            "deviations": deviations,
            **left_out,
        },
        report=files.annotations.report,
    )
    if sources.clip_label_text:
        for experience in chain(*scenario.streams.values()):
            experience.shown_queries = scenario.queries
    return scenario
