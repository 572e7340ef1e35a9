"""Query-incremental streams: each experience brings new queries.

Experiences know their queries and carry what Avalanche's plugins look for: task
labels, the timeline of classes, a settable dataset and links to stream and
benchmark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from avalanche.benchmarks import CLScenario, EagerCLStream
from avalanche.benchmarks.scenarios.dataset_scenario import DatasetExperience
from avalanche.benchmarks.utils import (
    AvalancheDataset,
    DataAttribute,
    TaskLabels,
)
from avalanche.benchmarks.utils.classification_dataset import (
    TaskAwareSupervisedClassificationDataset,
)
from torch import Tensor
from torch.utils.data import Dataset

from avalanche_vilco.benchmarks.manifest import SplitManifest, write_manifest
from avalanche_vilco.core.report import DataReport


@dataclass(frozen=True, eq=False)
class Query:
    """A query that a stream teaches."""

    class_index: int
    """Position in the order of learning, and the query's channel in the output."""
    label_id: int
    """Category id in the annotation file."""
    name: str
    """Name in the annotation file's spelling."""
    tokens: Tensor
    """(L, C) token features of the query's text."""


class QueryExperience(DatasetExperience):
    """An experience that brings queries.

    ``classes_*`` are output channels, as Avalanche's plugins expect of classes;
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

    @property
    def task_label(self) -> int:
        """The one task label of the experience."""
        return self.task_labels[0]

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


def experience_dataset(
    data: Dataset[Any],
    indices: Sequence[int],
    *,
    groups: Sequence[int],
    clip_ids: Sequence[str],
    task_label: int,
    collate_fn: Callable[..., Any],
    class_indices: Sequence[Sequence[int]] | None = None,
) -> AvalancheDataset:
    """A view of a stream's samples as Avalanche's plugins want it.

    :param data: samples of the whole stream, shared by all experiences.
    :param indices: the samples of this experience; these follow them into buffers as
        the attribute ``positions``, which says which sample it is.
    :param groups: for each of these samples the integer that class-balanced
        buffers group by.
    :param clip_ids: for each of these samples its clip; follows it into buffers as
        the attribute ``clip_ids``, so that what a memory holds can be told without
        reading it.
    :param task_label: task label of the samples; always attached, since without
        one Avalanche's training loader ignores the collate function.
    :param collate_fn: makes mini-batches; survives subsets, buffers and workers.
    :param class_indices: for each of these samples the queries with a window in it,
        which follow it as the attribute ``class_indices``, for memories with slots for
        each query; ``None`` takes its group alone.
    """
    view = torch.utils.data.Subset(data, list(indices))
    answered = [[group] for group in groups] if class_indices is None else class_indices
    return TaskAwareSupervisedClassificationDataset(
        [view],
        data_attributes=[
            DataAttribute(list(groups), "targets"),
            DataAttribute(list(clip_ids), "clip_ids"),
            DataAttribute(list(indices), "positions"),
            DataAttribute([tuple(own) for own in answered], "class_indices"),
            # Avalanche's ConstantSequence cannot be empty.
            TaskLabels([task_label] * len(view)),
        ],
        collate_fn=collate_fn,
    )


class QueryIncrementalScenario(CLScenario):
    """A scenario of query-incremental streams.

    :param streams: stream name -> experiences, in order.
    :param queries: all queries in order of learning.
    :param datasets: stream name -> the dataset of all its experiences: a
        ``MomentDataset``, ``QueryDataset`` or ``VisualDataset``.
    :param info: what a results file must say of the data (protocol, versions...).
    :param report: what was read, kept and rejected.
    :param manifest: what the split is, if it can be published.
    """

    def __init__(
        self,
        streams: Mapping[str, Sequence[QueryExperience]],
        *,
        queries: Sequence[Query],
        datasets: Mapping[str, Any],
        info: Mapping[str, Any],
        report: DataReport,
        manifest: SplitManifest | None = None,
    ) -> None:
        super().__init__(
            [EagerCLStream(name, list(exps)) for name, exps in streams.items()]
        )
        self.queries = tuple(queries)
        """Queries by output channel."""
        self.datasets: dict[str, Any] = dict(datasets)
        """Samples of each whole stream, in the order of its experiences: moments,
        or, of visual queries, windows of frames."""
        self.info = dict(info)
        """Protocol, version and sizes, for results files."""
        self.report = report
        """Counts of what was read, kept, changed and rejected."""
        self._manifest = manifest
        for stream in self.streams.values():
            stream.benchmark = self

    def manifest(self) -> dict[str, Any]:
        """What the split is: clip ids, groups, protocol, versions and file hashes.

        The generator takes it back: ``vilco_mq(root, manifest=...)``.

        :raises ValueError: the benchmark was built without one.
        """
        return self._published().to_dict()

    def write_manifest(self, path: Path | str) -> None:
        """Write :meth:`manifest` as JSON.

        :param path: file to write.
        :raises ValueError: the benchmark was built without one.
        """
        write_manifest(self._published(), path)

    def _published(self) -> SplitManifest:
        if self._manifest is None:
            raise ValueError("this benchmark was built without a manifest")
        return self._manifest

    @property
    def n_experiences(self) -> int:
        """Number of experiences of each stream."""
        return len(self.train_stream)

    @property
    def n_classes(self) -> int:
        """Number of queries."""
        return len(self.queries)

    @property
    def classes_order(self) -> list[int]:
        """Original category id of each output channel."""
        return [query.label_id for query in self.queries]

    @property
    def n_classes_per_exp(self) -> list[int]:
        """Number of queries that each experience brings."""
        return [len(exp.classes_in_this_experience) for exp in self.train_stream]

    @property
    def text_dim(self) -> int:
        """Width of the queries' token features."""
        return int(self.queries[0].tokens.shape[-1])
