"""The public code's metadata pickle becomes a manifest.

``ego4d_mq_query_incremental_22_all.pkl`` holds ``{"train": {task: T}, "val": {task:
T}}``, T = ``{"dict_db": [clip, ...], "label_dict": {name: id}, "ori_label_dict": the
same}``, clip = ``{"id", "fps", "duration", "segments" (N, 2) float32, "labels",
"parent_video_id", "parent_start_sec", "parent_end_sec", "segmentation_labels"
(seconds, categories) float32, "subset"}``. Nearly all of its 373 MB are
``segmentation_labels``, which training does not use: they are dropped on reading.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from avalanche_vilco.benchmarks.manifest import (
    Category,
    SplitManifest,
    package_version,
)
from avalanche_vilco.benchmarks.vilco_mq.split import MQ_PROTOCOLS
from avalanche_vilco.core.errors import DataError
from avalanche_vilco.core.files import sha256_of
from avalanche_vilco.core.schema import check_plain_id
from avalanche_vilco.core.untrusted import load_untrusted

_STREAMS = {"train": "train", "val": "test"}
_HINT = "expected the metadata that the public split script writes"


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
    raw = load_untrusted(path, tensors="drop")
    tasks = {subset: _tasks(path, raw, subset) for subset in _STREAMS}
    n_tasks = len(tasks["train"])
    if len(tasks["val"]) != n_tasks:
        problem = f"train has {n_tasks} tasks, val {len(tasks['val'])}"
        raise DataError(path, problem, field="val", hint=_HINT)
    groups = [_group(path, tasks, number) for number in range(n_tasks)]
    streams: dict[str, list[list[str]]] = {"valid": [[] for _ in groups]}
    windows = {"valid": [0] * n_tasks}
    for subset, stream in _STREAMS.items():
        streams[stream], windows[stream] = [], []
        for number, task in enumerate(tasks[subset]):
            clips = list(_clips(path, f"{subset}[{number}]", task, groups[number]))
            streams[stream].append([clip_id for clip_id, _ in clips])
            windows[stream].append(sum(count for _, count in clips))
    return SplitManifest(
        benchmark="vilco_mq",
        protocol="reference",
        protocol_version=MQ_PROTOCOLS["reference"].version,
        package_version=package_version(),
        files={},
        groups=groups,
        streams=streams,
        windows=windows,
        source={"file": path.name, "sha256": sha256_of(path)},
    )


def _get(path: Path, spot: str, raw: Any, key: str, kind: type) -> Any:
    """A value of a dict, of the type that it should have."""
    if not isinstance(raw, dict):
        problem = f"expected a dict but got a {type(raw).__name__}"
        raise DataError(path, problem, field=spot, hint=_HINT)
    spot = f"{spot}.{key}" if spot else key
    if key not in raw:
        raise DataError(path, "is missing", field=spot, hint=_HINT)
    if not isinstance(raw[key], kind):
        found = type(raw[key]).__name__
        problem = f"expected a {kind.__name__} but got a {found}"
        raise DataError(path, problem, field=spot, hint=_HINT)
    return raw[key]


def _tasks(path: Path, raw: Any, subset: str) -> list[Any]:
    tasks = _get(path, "", raw, subset, dict)
    numbers = sorted(key for key in tasks if type(key) is int)
    if not tasks or numbers != list(range(len(tasks))):
        problem = f"expected tasks 0, 1, ... but got {list(tasks)[:10]}"
        raise DataError(path, problem, field=subset, hint=_HINT)
    return [tasks[number] for number in numbers]


def _group(
    path: Path, tasks: Mapping[str, Sequence[Any]], number: int
) -> list[Category]:
    """Categories of a task, by id; train and val must agree."""
    groups = {}
    for subset in _STREAMS:
        spot = f"{subset}[{number}]"
        labels = _get(path, spot, tasks[subset][number], "label_dict", dict)
        for name, label_id in labels.items():
            if not isinstance(name, str) or not _is_id(label_id):
                problem = f"expected name: id but got {name!r}: {label_id!r}"
                raise DataError(path, problem, field=f"{spot}.label_dict", hint=_HINT)
        groups[subset] = {int(label_id): name for name, label_id in labels.items()}
    if groups["train"] != groups["val"]:
        problem = "train and val have different categories"
        raise DataError(path, problem, field=f"val[{number}].label_dict", hint=_HINT)
    return [Category(i, name) for i, name in sorted(groups["train"].items())]


def _is_id(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _clips(
    path: Path, spot: str, task: Any, group: Sequence[Category]
) -> Iterator[tuple[str, int]]:
    """Uid and number of windows of a task's clips."""
    known = {category.label_id for category in group}
    for i, clip in enumerate(_get(path, spot, task, "dict_db", list)):
        own = f"{spot}.dict_db[{i}]"
        clip_id = _get(path, own, clip, "id", str)
        check_plain_id(path, clip_id)
        segments = _get(path, own, clip, "segments", np.ndarray)
        labels = _get(path, own, clip, "labels", list)
        if segments.shape != (len(labels), 2):
            problem = f"expected ({len(labels)}, 2), a row a label, but got "
            problem += f"{segments.shape}"
            raise DataError(path, problem, field=f"{own}.segments", hint=_HINT)
        for label in labels:
            if not _is_id(label) or int(label) not in known:
                problem = f"expected a category of the task but got {label!r}"
                raise DataError(path, problem, field=f"{own}.labels", hint=_HINT)
        yield clip_id, len(labels)
