"""The public code's metadata pickle of language queries becomes a manifest.

It holds ``{"train": {template: [query, ...]}, "val": the same}``, a query being a line
of the flattened file with ``query_template`` added, in which templates that a query got
by its words stay ``None``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from avalanche_vilco.benchmarks.items import Item
from avalanche_vilco.benchmarks.manifest import Category, SplitManifest, make_manifest
from avalanche_vilco.benchmarks.split import Split
from avalanche_vilco.benchmarks.vilco_nlq.split import NLQ_PROTOCOLS, NLQ_RULES
from avalanche_vilco.benchmarks.vilco_nlq.templates import NLQ_TEMPLATES, template_id
from avalanche_vilco.core.errors import DataError
from avalanche_vilco.core.files import sha256_of
from avalanche_vilco.core.untrusted import load_untrusted

_HINT = "expected the metadata that the public split script writes"


def read_nlq_metadata(path: Path | str) -> SplitManifest:
    """Read the public code's metadata as a manifest of protocol ``reference``.

    It says nothing of the annotation files it was made from, so the manifest has no
    hashes; questions are looked up when it is used.

    :param path: the pickle; only arrays, tensors and builtins are read from it.
    :return: templates in the order of the train part; nothing in ``valid``.
    :raises FileNotFoundError: no such file.
    :raises DataError: it asks for other objects, is truncated, or has another
        structure; names the field.
    """
    path = Path(path)
    raw = load_untrusted(path)
    parts = {subset: _part(path, raw, subset) for subset in ("train", "val")}
    order = list(parts["train"])
    streams: dict[str, list[list[Item]]] = {
        "train": [parts["train"][i] for i in order],
        "valid": [[] for _ in order],
        "test": [parts["val"].get(i, []) for i in order],
    }
    provenance = {"file": path.name, "sha256": sha256_of(path)}
    groups = [[i] for i in order]
    split = Split(NLQ_PROTOCOLS["reference"], groups, streams, provenance)
    categories = {i: Category(i, NLQ_TEMPLATES[i]) for i in order}
    return make_manifest(split, categories, NLQ_RULES, {})


def _part(path: Path, raw: Any, subset: str) -> dict[int, list[Item]]:
    """Template id -> questions, in the order of the file."""
    part = raw.get(subset) if isinstance(raw, dict) else None
    if not isinstance(part, dict) or not part:
        problem = "expected {template: [query, ...]}"
        raise DataError(path, problem, field=subset, hint=_HINT)
    questions: dict[int, list[Item]] = {}
    for name, items in part.items():
        field = f"{subset}[{name!r}]"
        try:
            template = template_id(str(name))
        except ValueError as error:
            raise DataError(path, str(error), field=field, hint=_HINT) from None
        members = questions.setdefault(template, [])
        if not isinstance(items, list):
            problem = f"expected a list of queries but got a {type(items).__name__}"
            raise DataError(path, problem, field=field, hint=_HINT)
        for i, item in enumerate(items):
            query_id = item.get("query_id") if isinstance(item, dict) else None
            if not isinstance(query_id, str):
                problem = f"expected a query with its query_id but got {item!r:.80}"
                raise DataError(path, problem, field=f"{field}[{i}]", hint=_HINT)
            members.append(Item(query_id, query_id, "", "", (template,)))
    return questions
