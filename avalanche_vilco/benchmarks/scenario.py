"""Query-incremental streams: each experience brings new queries.

Experiences know their queries and carry what Avalanche's plugins look for: task
labels, the timeline of classes, a settable dataset and links to stream and
benchmark.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, count
from pathlib import Path
from typing import Any

import torch
from avalanche.benchmarks import CLScenario, EagerCLStream
from avalanche.benchmarks.scenarios.dataset_scenario import DatasetExperience
from avalanche.benchmarks.scenarios.online import OnlineCLExperience
from avalanche.benchmarks.utils import AvalancheDataset, DataAttribute, TaskLabels
from avalanche.benchmarks.utils.classification_dataset import (
    TaskAwareSupervisedClassificationDataset,
)
from torch import Tensor

from avalanche_vilco.benchmarks.manifest import Category, SplitManifest
from avalanche_vilco.benchmarks.split import Split, balancing_targets
from avalanche_vilco.core.files import write_atomically
from avalanche_vilco.core.report import DataReport
from avalanche_vilco.training import checkpointing as checkpointing


@dataclass(frozen=True, eq=False)
class Query:
    """A query that a stream teaches."""

    class_index: int
    """Position in the order of learning, and the query's channel in the output."""
    label_id: int
    """Category id in the annotation file."""
    name: str
    """Name in the annotation file's spelling."""
    tokens: Tensor = field(repr=False)
    """(L, C) token features of the query's text."""


def learnt_queries(
    groups: Sequence[Sequence[Category]],
    tokens: Callable[[str], Tensor],
    *,
    first: int = 0,
) -> list[list[Query]]:
    """Queries of each experience, numbered in order of learning.

    :param groups: categories of each experience.
    :param tokens: gives the token features of a name.
    :param first: number of the first.
    """
    index = count(first)
    return [
        [Query(next(index), c.label_id, c.name, tokens(c.name)) for c in group]
        for group in groups
    ]


class QueryExperience(DatasetExperience):
    """An experience that brings queries.

    ``classes_*`` are class indices, as Avalanche's plugins expect of classes;
    :attr:`queries_in_this_experience` has names and original ids.
    """

    def __init__(
        self,
        *,
        dataset: AvalancheDataset,
        current_experience: int,
        groups: Sequence[Sequence[Query]],
        task_label: int,
    ) -> None:
        super().__init__(dataset=dataset, current_experience=current_experience)
        now, past = groups[current_experience], groups[:current_experience]
        future = groups[current_experience + 1 :]
        self.queries_in_this_experience: tuple[Query, ...] = tuple(now)
        """Queries first asked in this experience."""
        self.previous_queries: tuple[Query, ...] = tuple(chain(*past))
        """Queries of earlier experiences."""
        self.shown_queries: tuple[Query, ...] = ()
        """Queries whose texts clips may show before they are learnt; none outside the
        reference protocol."""
        self.classes_in_this_experience = [query.class_index for query in now]
        self.previous_classes = {query.class_index for query in self.previous_queries}
        self.classes_seen_so_far = self.previous_classes.union(
            self.classes_in_this_experience
        )
        self.future_classes = {query.class_index for query in chain(*future)}
        # Not read from the dataset: an experience without clips has its label too.
        self.task_labels = [task_label]
        self.task_label = task_label
        """The one task label of the experience."""

    @property
    def dataset(self) -> AvalancheDataset:
        """Samples of the experience."""
        return self._dataset

    @dataset.setter
    def dataset(self, dataset: AvalancheDataset) -> None:
        self._dataset = dataset

    @property
    def benchmark(self) -> CLScenario:
        """The benchmark that the experience belongs to."""
        return self.origin_stream.benchmark

    def __repr__(self) -> str:
        # Strategies have copies that hide the stream.
        with self.no_attribute_masking():
            number, stream = self._current_experience, self._origin_stream
        place = f"{number} of {stream.name}_stream" if stream is not None else number
        names = [query.name for query in self.queries_in_this_experience]
        shown = ", ".join([*map(repr, names[:3]), *["..."] * (len(names) > 3)])
        samples = _counted(self.dataset)
        return f"QueryExperience({place}: {len(names)} queries [{shown}], {samples})"


class _PartLabels:
    """Task labels of parts of our experiences, which ``split_online_stream`` drops.

    Without any, Avalanche's training loader ignores the collate function. Other
    experiences are left as they are: without labels, or with those they are given.
    """

    def __get__(self, part: Any, owner: type) -> list[int]:
        if part is not None:
            with part.no_attribute_masking():
                if isinstance(part.origin_experience, QueryExperience):
                    return part.origin_experience.task_labels
        raise AttributeError("task_labels")


OnlineCLExperience.task_labels = _PartLabels()


class QueryStream(EagerCLStream):
    """A stream that says what is in it."""

    def __repr__(self) -> str:
        n_samples = sum(len(experience.dataset) for experience in self)
        return f"QueryStream({self.name}: {len(self)} experiences, {n_samples} samples)"


class ExperienceDataset(TaskAwareSupervisedClassificationDataset):
    """Samples of an experience, or some of them, with their attributes."""

    def __init__(self, datasets: Sequence[Any], **options: Any) -> None:
        super().__init__(datasets, **options)
        # Parts and unions are made by calling the class.
        self.source = getattr(datasets[0], "source", None)
        """The data set of the whole stream."""

    def __repr__(self) -> str:
        return f"ExperienceDataset({_counted(self)})"


def _counted(data: Any) -> str:
    # A union with what has no such attribute has lost it.
    clips = getattr(data, "clip_ids", None)
    return f"{len(data)} samples" + (f" of {len(set(clips))} clips" if clips else "")


def experience_dataset(
    data: Any,
    indices: Sequence[int],
    *,
    class_indices: Sequence[Sequence[int]],
    task_label: int,
) -> AvalancheDataset:
    """A view of a stream's samples as Avalanche's plugins want it.

    Attributes follow samples into buffers: ``targets``, the integer that class-balanced
    buffers group by; ``class_indices``, for memories with slots for each query;
    ``clip_ids``, which say what a memory holds without reading it; and
    ``positions``, which say which sample of ``data`` it is.

    :param data: samples of the whole stream, shared by all experiences; has
        ``samples``, each with its ``clip``, and ``collate_fn``, which makes
        mini-batches and survives subsets, buffers and workers.
    :param indices: the samples of this experience.
    :param class_indices: for each of these samples the queries with a window in it.
    :param task_label: task label of the samples; always attached, since without
        one Avalanche's training loader ignores the collate function.
    """
    view = torch.utils.data.Subset(data, list(indices))
    clip_ids = [data.samples[i].clip.clip_id for i in indices]
    dataset = ExperienceDataset(
        [view],
        data_attributes=[
            DataAttribute(balancing_targets(class_indices), "targets"),
            DataAttribute(clip_ids, "clip_ids"),
            DataAttribute(list(indices), "positions"),
            DataAttribute(list(map(tuple, class_indices)), "class_indices"),
            # Avalanche's ConstantSequence cannot be empty.
            TaskLabels([task_label] * len(view)),
        ],
        collate_fn=data.collate_fn,
    )
    dataset.source = data
    return dataset


def query_streams(
    datasets: Mapping[str, Any],
    sizes: Mapping[str, Sequence[int]],
    groups: Sequence[Sequence[Query]],
    *,
    class_indices: Callable[[Any], Sequence[int]],
    return_task_id: bool,
) -> dict[str, list[QueryExperience]]:
    """Experiences of datasets that hold them one after the other.

    :param datasets: stream -> samples of all its experiences, in order.
    :param sizes: stream -> number of samples of each experience.
    :param groups: queries that each experience brings.
    :param class_indices: gives the queries with a window in a sample.
    :param return_task_id: label samples with their experience instead of 0.
    """
    streams: dict[str, list[QueryExperience]] = {}
    for name, data in datasets.items():
        ends = accumulate(sizes[name])
        streams[name] = []
        for e, (end, size) in enumerate(zip(ends, sizes[name], strict=True)):
            indices = range(end - size, end)
            task_label = e if return_task_id else 0
            dataset = experience_dataset(
                data,
                indices,
                class_indices=[class_indices(data.samples[i]) for i in indices],
                task_label=task_label,
            )
            streams[name].append(
                QueryExperience(
                    dataset=dataset,
                    current_experience=e,
                    groups=groups,
                    task_label=task_label,
                )
            )
    return streams


class Scenario(CLScenario):
    """Streams of experiences with the data that they are made of.

    :param streams: stream name -> experiences, in order.
    :param datasets: stream name -> the dataset of all its experiences, in order.
    :param info: what a results file must say of the data (protocol, versions...).
    :param report: what was read, kept and rejected.
    :param manifest: what the split is, if it can be published.
    """

    def __init__(
        self,
        streams: Mapping[str, Sequence[Any]],
        *,
        datasets: Mapping[str, Any],
        info: Mapping[str, Any],
        report: DataReport,
        manifest: SplitManifest | None = None,
    ) -> None:
        super().__init__(
            [QueryStream(name, list(exps)) for name, exps in streams.items()]
        )
        self.datasets: dict[str, Any] = dict(datasets)
        """Samples of each whole stream, in the order of its experiences."""
        self.info = dict(info)
        """Protocol, version and sizes, for results files."""
        self.report = report
        """Counts of what was read, kept, changed and rejected."""
        self._manifest = manifest
        for stream in self.streams.values():
            stream.benchmark = self

    def __repr__(self) -> str:
        queries = f"{len(getattr(self, 'queries', ()))} queries"
        what = (self.info.get("benchmark", "?"), queries, *self.streams.values())
        return f"{type(self).__name__}({', '.join(map(str, what))})"

    def manifest(self) -> dict[str, Any]:
        """What the split is: item ids, groups, protocol, versions and file hashes.

        The generator takes it back: ``vilco_mq(root, manifest=...)``.

        :raises ValueError: the benchmark was built without one.
        """
        if self._manifest is None:
            raise ValueError("this benchmark was built without a manifest")
        return self._manifest.to_dict()

    def write_manifest(self, path: Path | str) -> None:
        """Write :meth:`manifest` as JSON.

        :param path: file to write; one of that name is replaced whole.
        :raises ValueError: the benchmark was built without one.
        """
        text = json.dumps(self.manifest(), ensure_ascii=False, indent=1)
        write_atomically(Path(path), text + "\n")

    @property
    def n_experiences(self) -> int:
        """Number of experiences of each stream."""
        return len(self.train_stream)


class QueryIncrementalScenario(Scenario):
    """A scenario in which each experience brings new queries.

    :param streams: stream name -> experiences, in order.
    :param queries: all queries in order of learning.
    :param settings: as of :class:`Scenario`.
    """

    def __init__(
        self,
        streams: Mapping[str, Sequence[QueryExperience]],
        *,
        queries: Sequence[Query],
        **settings: Any,
    ) -> None:
        super().__init__(streams, **settings)
        self.queries = tuple(queries)
        """Queries by class index."""

    @property
    def n_classes(self) -> int:
        """Number of queries."""
        return len(self.queries)

    @property
    def classes_order(self) -> list[int]:
        """Original category id of each class index."""
        return [query.label_id for query in self.queries]

    @property
    def n_classes_per_exp(self) -> list[int]:
        """Number of queries that each experience brings."""
        return [len(exp.classes_in_this_experience) for exp in self.train_stream]

    @property
    def text_dim(self) -> int:
        """Width of the queries' token features."""
        return int(self.queries[0].tokens.shape[-1])


def query_scenario(
    split: Split,
    manifest: SplitManifest,
    datasets: Mapping[str, Any],
    *,
    sizes: Mapping[str, Sequence[int]] | None = None,
    tokens: Callable[[str], Tensor],
    class_indices: Callable[[Any], Sequence[int]],
    return_task_id: bool,
    info: Mapping[str, Any],
    report: DataReport,
    taught: Collection[Any] | None = None,
) -> QueryIncrementalScenario:
    """The scenario of a split, where each category is a query.

    :param split: the split.
    :param manifest: of the split.
    :param datasets: samples of each stream, experience after experience.
    :param sizes: samples of each experience; default its items.
    :param tokens: see :func:`learnt_queries`.
    :param class_indices: see :func:`query_streams`.
    :param return_task_id: label samples with their experience instead of 0.
    :param info: what results say besides.
    :param report: what was read, kept and rejected.
    :param taught: keys of the split's categories that training has; None: all. The
        others are the last queries, of experiences of ``test`` alone.
    """
    is_taught = {key: taught is None or key in taught for key in chain(*split.groups)}
    known, others = (
        [
            [c for key, c in zip(*both, strict=True) if is_taught[key] is wanted]
            for both in zip(split.groups, manifest.groups, strict=True)
        ]
        for wanted in (True, False)
    )
    groups = learnt_queries(known, tokens)
    # Numbered last: what is taught depends on nothing that only test has.
    untaught = learnt_queries(others, tokens, first=sum(map(len, groups)))
    asked = [[*both[0], *both[1]] for both in zip(groups, untaught, strict=True)]
    streams: dict[str, list[QueryExperience]] = {}
    for name, data in datasets.items():
        streams |= query_streams(
            {name: data},
            split.sizes() if sizes is None else sizes,
            asked if name == "test" else groups,
            class_indices=class_indices,
            return_task_id=return_task_id,
        )
    common = {
        "benchmark": manifest.benchmark,
        "protocol": manifest.protocol,
        "protocol_version": manifest.protocol_version,
        "queries_per_experience": list(map(len, known)),
        "order": [key for key, is_known in is_taught.items() if is_known],
        "comparable_with_paper": False,
        "uses_ground_truth_at_test": False,
        "task_labels": "experience" if return_task_id else "0",
    }
    return QueryIncrementalScenario(
        streams,
        queries=[*chain(*groups), *chain(*untaught)],
        datasets=datasets,
        info={**common, **info},
        report=report,
        manifest=manifest,
    )
