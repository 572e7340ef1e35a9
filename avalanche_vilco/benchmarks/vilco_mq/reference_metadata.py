"""The public code's metadata pickle becomes a manifest.

``ego4d_mq_query_incremental_22_all.pkl`` holds ``{"train": {task: T}, "val": {task:
T}}``, T = ``{"dict_db": [clip, ...], "label_dict": {name: id}, "ori_label_dict": the
same}``, clip = ``{"id", "fps", "duration", "segments" (N, 2) float32, "labels",
"parent_video_id", "parent_start_sec", "parent_end_sec", "segmentation_labels"
(seconds, categories) float32, "subset"}``. Nearly all of its 373 MB are
``segmentation_labels``, which training does not use: they are dropped on reading.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from avalanche_vilco.benchmarks.items import Item
from avalanche_vilco.benchmarks.manifest import Category, SplitManifest, make_manifest
from avalanche_vilco.benchmarks.protocols import kept_windows
from avalanche_vilco.benchmarks.split import Split
from avalanche_vilco.benchmarks.vilco_mq.split import MQ_PROTOCOLS, MQ_RULES
from avalanche_vilco.core.errors import DataError
from avalanche_vilco.core.files import sha256_of
from avalanche_vilco.core.schema import check_plain_id, convert
from avalanche_vilco.core.untrusted import load_untrusted

_STREAMS = {"train": "train", "val": "test"}
_HINT = "expected the metadata that the public split script writes"


class _Metadata(msgspec.Struct):
    train: dict[Any, Any]
    val: dict[Any, Any]


class _Task(msgspec.Struct):
    dict_db: list[Any]
    label_dict: dict[str, Any]


class _Clip(msgspec.Struct):
    id: str
    segments: Any
    labels: list[Any]


def read_reference_metadata(path: Path | str) -> SplitManifest:
    """Read the public code's metadata as a manifest of protocol ``reference``.

    It says nothing of the annotation file it was made from, so the manifest has no
    hashes; clips, categories and numbers of windows are compared when it is used.

    :param path: the pickle; only arrays, tensors and builtins are read from it.
    :return: groups, clips and windows of each experience; no clip in ``valid``.
    :raises FileNotFoundError: no such file.
    :raises DataError: it asks for other objects, is truncated, or has another
        structure; names the field.
    """
    path = Path(path)
    raw = convert(load_untrusted(path), _Metadata, path, hint=_HINT)
    train, val = (_tasks(path, getattr(raw, subset), subset) for subset in _STREAMS)
    if len(val) != len(train):
        problem = f"train has {len(train)} tasks, val {len(val)}"
        raise DataError(path, problem, field="val", hint=_HINT)
    groups = [
        _group(path, n, *tasks) for n, tasks in enumerate(zip(train, val, strict=True))
    ]
    streams: dict[str, list[list[Item]]] = {"valid": [[] for _ in groups]}
    for (subset, stream), tasks in zip(_STREAMS.items(), (train, val), strict=True):
        streams[stream] = [
            list(_items(path, f"{subset}[{number}]", task, groups[number]))
            for number, task in enumerate(tasks)
        ]
    split = Split(
        # The windows are those that the public script has kept.
        replace(MQ_PROTOCOLS["reference"], keeps=kept_windows),
        [[category.label_id for category in group] for group in groups],
        streams,
        {"file": path.name, "sha256": sha256_of(path)},
    )
    categories = {category.label_id: category for category in chain(*groups)}
    return make_manifest(split, categories, MQ_RULES, {})


def _tasks(path: Path, tasks: dict[Any, Any], subset: str) -> list[_Task]:
    numbers = sorted(key for key in tasks if type(key) is int)
    if not tasks or numbers != list(range(len(tasks))):
        problem = f"expected tasks 0, 1, ... but got {list(tasks)[:10]}"
        raise DataError(path, problem, field=subset, hint=_HINT)
    return [
        convert(tasks[n], _Task, path, hint=_HINT, within=f"{subset}[{n}]")
        for n in numbers
    ]


def _group(path: Path, number: int, train: _Task, val: _Task) -> list[Category]:
    """Categories of a task, by id; train and val must agree."""
    for subset, task in (("train", train), ("val", val)):
        for name, label_id in task.label_dict.items():
            if not _is_id(label_id):
                problem = f"expected name: id but got {name!r}: {label_id!r}"
                field = f"{subset}[{number}].label_dict"
                raise DataError(path, problem, field=field, hint=_HINT)
    if train.label_dict != val.label_dict:
        problem = "train and val have different categories"
        raise DataError(path, problem, field=f"val[{number}].label_dict", hint=_HINT)
    ids = sorted((int(label_id), name) for name, label_id in train.label_dict.items())
    return [Category(label_id, name) for label_id, name in ids]


def _is_id(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _items(
    path: Path, within: str, task: _Task, group: Sequence[Category]
) -> Iterator[Item]:
    known = {category.label_id for category in group}
    for i, raw in enumerate(task.dict_db):
        field = f"{within}.dict_db[{i}]"
        clip = convert(raw, _Clip, path, hint=_HINT, within=field)
        check_plain_id(path, clip.id)
        expected, found = (len(clip.labels), 2), getattr(clip.segments, "shape", None)
        if found != expected:
            problem = f"expected an array {expected}, a row a label, but got "
            problem += str(found or type(clip.segments).__name__)
            raise DataError(path, problem, field=f"{field}.segments", hint=_HINT)
        for label in clip.labels:
            if not _is_id(label) or int(label) not in known:
                problem = f"expected a category of the task but got {label!r}"
                raise DataError(path, problem, field=f"{field}.labels", hint=_HINT)
        yield Item(clip.id, clip.id, "", "", tuple(map(int, clip.labels)))
