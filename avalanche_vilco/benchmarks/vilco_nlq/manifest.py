"""Published splits of natural-language queries: manifests, and the public metadata.

A manifest has the form of :mod:`avalanche_vilco.benchmarks.manifest`; its streams list
query ids instead of clips, and its categories are the 13 templates.

The public code's pickle holds ``{"train": {template: [query, ...]}, "val": the same}``,
a query being a line of the flattened file with ``query_template`` added, in which
templates that a query got by its words stay ``None``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from avalanche_vilco.benchmarks.manifest import (
    MANIFEST_FORMAT,
    MANIFEST_VERSION,
    Category,
    SplitManifest,
    check_fields,
    check_query_streams,
    check_source_files,
    package_version,
)
from avalanche_vilco.benchmarks.vilco_nlq.annotations import (
    LanguageAnnotations,
    LanguageQuery,
)
from avalanche_vilco.benchmarks.vilco_nlq.templates import NLQ_TEMPLATES, template_id
from avalanche_vilco.core.errors import DataError
from avalanche_vilco.core.files import sha256_of
from avalanche_vilco.core.schema import convert, decode_json_object
from avalanche_vilco.core.untrusted import load_untrusted

BENCHMARK = "vilco_nlq"
SMALL_DATA = "small_data"
"""Key of a manifest's source: whether one file makes all streams."""

QuerySplit: TypeAlias = Mapping[str, Sequence[Sequence[LanguageQuery]]]
"""Stream -> experiences -> questions."""

_HINT = "a manifest is what benchmark.write_manifest(path) writes"
_PICKLE_HINT = "expected the metadata that the public split script writes"
_LISTED = 10


@dataclass(frozen=True)
class NLQProtocol:
    """How questions are read and divided."""

    name: str
    version: str
    """Changes with what the streams hold; travels into results and manifests."""
    windows: str
    """How windows are read: ``"clipped"`` or ``"raw"``."""
    strips_prefixes: bool
    """Whether prefixes of the annotation form are taken from the text."""
    valid_share: float
    """Share of the training clips that the valid stream holds by default."""
    guessed_last: bool
    """Whether questions whose template is told by their words follow the others."""


EXCLUSIVE_QUERIES = NLQProtocol("exclusive_queries", "1", "clipped", True, 0.1, False)
REFERENCE = NLQProtocol("reference", "1", "raw", False, 0.0, True)
NLQ_PROTOCOLS: Mapping[str, NLQProtocol] = {
    protocol.name: protocol for protocol in (EXCLUSIVE_QUERIES, REFERENCE)
}
"""Protocols by name."""


def make_nlq_manifest(
    split: QuerySplit,
    groups: Sequence[Sequence[int]],
    *,
    protocol: NLQProtocol,
    files: Mapping[str, str],
    source: Mapping[str, Any],
) -> SplitManifest:
    """Describe a split.

    :param split: questions by stream and experience.
    :param groups: template ids of each experience, in order of learning.
    :param protocol: the rule.
    :param files: annotation file -> SHA-256.
    :param source: how it was made.
    """
    return SplitManifest(
        format=MANIFEST_FORMAT,
        format_version=MANIFEST_VERSION,
        benchmark=BENCHMARK,
        protocol=protocol.name,
        protocol_version=protocol.version,
        package_version=package_version(),
        files=dict(files),
        groups=[[Category(i, NLQ_TEMPLATES[i]) for i in group] for group in groups],
        streams={
            name: [[query.query_id for query in own] for own in experiences]
            for name, experiences in split.items()
        },
        windows={
            name: [len(own) for own in experiences]
            for name, experiences in split.items()
        },
        source=dict(source),
    )


def open_nlq_manifest(
    manifest: SplitManifest | Mapping[str, Any] | Path | str,
) -> tuple[SplitManifest, Path | str]:
    """A valid manifest, and its name for errors.

    :param manifest: itself, its JSON form, a JSON file or the public pickle.
    :raises FileNotFoundError: no such file.
    :raises DataError: not a manifest of this benchmark, of another version, or it
        contradicts itself; names the field.
    """
    name: Path | str = "manifest"
    if isinstance(manifest, (Path, str)):
        name = Path(manifest).expanduser()
        if name.suffix in (".pkl", ".pickle"):
            return read_nlq_metadata(name), name
        if not name.is_file():
            raise FileNotFoundError(f"no manifest at {name}")
        manifest = decode_json_object(name, name.read_bytes(), hint=_HINT)
    if isinstance(manifest, SplitManifest):
        manifest = manifest.to_dict()
    parsed = convert(dict(manifest), SplitManifest, name, hint=_HINT)
    check_nlq_manifest(parsed, name)
    return parsed, name


def check_nlq_manifest(manifest: SplitManifest, file: Path | str) -> None:
    """Refuse a manifest that cannot be followed, or that contradicts itself.

    :param manifest: to check.
    :param file: named in errors.
    :raises DataError: names the field.
    """
    rule = NLQ_PROTOCOLS.get(manifest.protocol)
    expected = {
        "format": MANIFEST_FORMAT,
        "format_version": MANIFEST_VERSION,
        "benchmark": BENCHMARK,
        "protocol": manifest.protocol if rule else " or ".join(NLQ_PROTOCOLS),
        "protocol_version": rule.version if rule else manifest.protocol_version,
    }
    check_fields(manifest, expected, file, hint=_HINT)
    ids = [category.label_id for group in manifest.groups for category in group]
    if sorted(ids) != list(range(len(NLQ_TEMPLATES))) or not all(manifest.groups):
        problem = f"expected each of the 13 templates once but got ids {ids}"
        raise DataError(file, problem, field="groups")
    for category in (c for group in manifest.groups for c in group):
        if category.name != NLQ_TEMPLATES[category.label_id]:
            problem = f"template {category.label_id} is "
            problem += f"{NLQ_TEMPLATES[category.label_id]!r}, not {category.name!r}"
            raise DataError(file, problem, field="groups")
    check_query_streams(manifest, file, noun="questions")


def manifest_questions(
    manifest: SplitManifest, read: LanguageAnnotations, file: Path | str
) -> dict[str, list[list[LanguageQuery]]]:
    """The questions that a manifest names.

    :param manifest: a valid manifest.
    :param read: the annotations.
    :param file: the manifest's file, for errors.
    :return: stream -> experiences -> questions, in the manifest's order.
    :raises DataError: an annotation file is not the one that the manifest was made
        from, questions are unknown, or belong to another subset.
    """
    check_source_files(
        manifest,
        read.report.files,
        {path.name: path for path in read.files.values()},
        file,
    )
    known = {query.query_id: query for query in read.queries}
    named = [i for own in manifest.streams.values() for ids in own for i in ids]
    gone = [query_id for query_id in named if query_id not in known]
    if gone:
        problem = f"{len(gone)} questions are not in the annotations: "
        raise DataError(file, problem + ", ".join(gone[:_LISTED]), field="streams")
    is_small = bool(manifest.source.get(SMALL_DATA))
    for name, experiences in manifest.streams.items():
        wanted = "val" if name == "test" or is_small else "train"
        for query_id in (i for ids in experiences for i in ids):
            if known[query_id].subset != wanted:
                problem = f"{query_id} is of subset {known[query_id].subset!r}, but "
                problem += f"stream {name} takes questions of {wanted!r}"
                raise DataError(file, problem, field=f"streams.{name}")
    return {
        name: [[known[query_id] for query_id in ids] for ids in experiences]
        for name, experiences in manifest.streams.items()
    }


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
    raw = load_untrusted(path, tensors="drop")
    parts = {subset: _part(path, raw, subset) for subset in ("train", "val")}
    order = list(parts["train"])
    streams: dict[str, list[list[str]]] = {
        "train": [parts["train"][i] for i in order],
        "valid": [[] for _ in order],
        "test": [parts["val"].get(i, []) for i in order],
    }
    manifest = SplitManifest(
        format=MANIFEST_FORMAT,
        format_version=MANIFEST_VERSION,
        benchmark=BENCHMARK,
        protocol=REFERENCE.name,
        protocol_version=REFERENCE.version,
        package_version=package_version(),
        files={},
        groups=[[Category(i, NLQ_TEMPLATES[i])] for i in order],
        streams=streams,
        windows={name: [len(ids) for ids in own] for name, own in streams.items()},
        source={"file": path.name, "sha256": sha256_of(path)},
    )
    check_nlq_manifest(manifest, path)
    return manifest


def _part(path: Path, raw: Any, subset: str) -> dict[int, list[str]]:
    """Template id -> query ids, in the order of the file."""
    part = raw.get(subset) if isinstance(raw, dict) else None
    if not isinstance(part, dict) or not part:
        problem = "expected {template: [query, ...]}"
        raise DataError(path, problem, field=subset, hint=_PICKLE_HINT)
    questions: dict[int, list[str]] = {}
    for name, items in part.items():
        spot = f"{subset}[{name!r}]"
        try:
            own = questions.setdefault(template_id(str(name)), [])
        except ValueError as error:
            raise DataError(path, str(error), field=spot, hint=_PICKLE_HINT) from None
        if not isinstance(items, list):
            problem = f"expected a list of queries but got a {type(items).__name__}"
            raise DataError(path, problem, field=spot, hint=_PICKLE_HINT)
        for i, item in enumerate(items):
            query_id = item.get("query_id") if isinstance(item, dict) else None
            if not isinstance(query_id, str):
                problem = f"expected a query with its query_id but got {item!r:.80}"
                raise DataError(path, problem, field=f"{spot}[{i}]", hint=_PICKLE_HINT)
            own.append(query_id)
    return questions
