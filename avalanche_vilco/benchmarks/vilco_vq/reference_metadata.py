"""The public code's metadata pickle of visual queries becomes a manifest.

It holds ``{"train": {task: {"dict_db": [item, ...]}}, "val": the same}``; an item has
``annotation_uid`` and the whole query set as ``labels``, but not its number, so that it
is looked up by title, query frame and crop frame.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from avalanche_vilco.benchmarks.items import Item
from avalanche_vilco.benchmarks.manifest import SplitManifest, make_manifest
from avalanche_vilco.benchmarks.split import Split
from avalanche_vilco.benchmarks.vilco_vq.annotations import title_key
from avalanche_vilco.benchmarks.vilco_vq.split import (
    VQ_PROTOCOLS,
    VQ_RULES,
    title_categories,
    titles_of,
)
from avalanche_vilco.core.errors import DataError
from avalanche_vilco.core.files import sha256_of
from avalanche_vilco.core.untrusted import load_untrusted

_HINT = "expected the metadata that the public split script writes"


def read_vq_metadata(
    path: Path | str, queries: Sequence[Item], digests: Mapping[str, str]
) -> SplitManifest:
    """Read the public code's metadata as a manifest of protocol ``reference``.

    What the annotations' reader leaves out, such as query sets that are not valid, is
    left out here too; ``source["left_out"]`` counts it.

    :param path: the pickle; only arrays, tensors and builtins are read from it.
    :param queries: queries of train and val.
    :param digests: annotation file -> SHA-256.
    :return: tasks in ascending order; nothing in ``valid``.
    :raises FileNotFoundError: no such file.
    :raises DataError: it asks for other objects, is truncated, has another structure,
        or names an annotation that the files do not have.
    """
    path = Path(path)
    raw = load_untrusted(path)
    parts = {subset: _part(path, raw, subset) for subset in ("train", "val")}
    tasks = sorted(set(parts["train"]) | set(parts["val"]), key=str)
    found = {
        subset: [_found_queries(path, part.get(task, []), queries) for task in tasks]
        for subset, part in parts.items()
    }
    train, test = ([members for members, _ in found[name]] for name in parts)
    groups = [
        sorted({item.record.title_key for item in chain(first, second)})
        for first, second in zip(train, test, strict=True)
    ]
    n_left_out = sum(n for experiences in found.values() for _, n in experiences)
    split = Split(
        VQ_PROTOCOLS["reference"],
        groups,
        {"train": train, "valid": [[] for _ in tasks], "test": test},
        {"file": path.name, "sha256": sha256_of(path), "left_out": n_left_out},
    )
    categories = title_categories(groups, titles_of(queries, "train"))
    return make_manifest(split, categories, VQ_RULES, digests)


def _part(path: Path, raw: Any, subset: str) -> dict[Any, list[Any]]:
    """Task -> items of the pickle."""
    part = raw.get(subset) if isinstance(raw, dict) else None
    if not isinstance(part, dict) or not part:
        problem = 'expected {task: {"dict_db": [item, ...]}}'
        raise DataError(path, problem, field=subset, hint=_HINT)
    found = {}
    for task, content in part.items():
        listed = content.get("dict_db") if isinstance(content, dict) else None
        if not isinstance(listed, list):
            problem = f"expected a list of items but got a {type(listed).__name__}"
            field = f"{subset}[{task!r}].dict_db"
            raise DataError(path, problem, field=field, hint=_HINT)
        found[task] = listed
    return found


def _found_queries(
    path: Path, listed: Sequence[Any], queries: Iterable[Item]
) -> tuple[list[Item], int]:
    """Queries that entries of the pickle stand for, and how many stand for none."""
    by_content: dict[Any, list[Item]] = defaultdict(list)
    for item in queries:
        one = item.record
        content = (one.title_key, one.query_frame, one.crop.frame)
        by_content[one.annotation_uid, content].append(item)
    found, n_left_out = [], 0
    for i, entry in enumerate(listed):
        try:
            labels = entry["labels"]
            content = (
                title_key(labels["object_title"] or ""),
                labels["query_frame"],
                (labels["visual_crop"] or {}).get("frame_number"),
            )
            alike = by_content.get((entry["annotation_uid"], content), [])
        except (KeyError, TypeError, AttributeError) as error:
            problem = f"expected an item with its query set as labels: {error!r}"
            field = f"dict_db[{i}]"
            raise DataError(path, problem, field=field, hint=_HINT) from None
        if alike:
            found.append(alike.pop(0))
        else:
            n_left_out += 1
    if listed and not found:
        problem = "none of the items is in the annotations"
        raise DataError(path, problem, hint="take the files that it was made from")
    return found, n_left_out
