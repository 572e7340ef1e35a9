"""A published split: which items each experience has, in a small JSON file.

Protocols compute splits; a manifest pins one down, with the hashes of the files it
was made from, so that another package version or another machine has the same
streams or an error that says what differs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from avalanche_vilco.benchmarks.items import Item
from avalanche_vilco.benchmarks.protocols import STREAMS, Protocol
from avalanche_vilco.benchmarks.sources import DataFiles
from avalanche_vilco.benchmarks.split import (
    Division,
    Split,
    SplitRules,
    check_training,
    count_split,
    divide,
)
from avalanche_vilco.core.errors import DataError
from avalanche_vilco.core.files import read_content
from avalanche_vilco.core.schema import convert, decode_json_object

MANIFEST_FORMAT = "avalanche_vilco split"
MANIFEST_VERSION = 1
STREAM_SUBSETS = {"train": "train", "valid": "train", "test": "val"}
"""Subset that each stream takes its items of."""
PICKLES = (".pkl", ".pickle")

_LISTED = 10
_HINT = "a manifest is what benchmark.write_manifest(path) writes"


class Category(msgspec.Struct, frozen=True):
    """A category as the annotation file has it."""

    label_id: int
    name: str


class SplitManifest(msgspec.Struct, kw_only=True):
    """What a split is. Lists of experiences are in order of learning."""

    format: str = MANIFEST_FORMAT
    format_version: int = MANIFEST_VERSION
    benchmark: str
    protocol: str
    protocol_version: str
    package_version: str
    files: dict[str, str]
    """Annotation file -> SHA-256; empty if the split came without them."""
    groups: list[list[Category]]
    """Categories of each experience, in order of learning."""
    streams: dict[str, list[list[str]]]
    """Stream -> experiences -> ids of items, in order."""
    windows: dict[str, list[int]]
    """Stream -> windows of each experience."""
    source: dict[str, Any] = {}
    """How the split was made: order, seed, shares; or the file it was read from."""

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return msgspec.to_builtins(self)


ManifestSource: TypeAlias = SplitManifest | Mapping[str, Any] | Path | str
"""A manifest, its JSON form, a JSON file, or the public code's metadata pickle."""


@dataclass(frozen=True)
class Pinned:
    """A valid manifest, and its name for errors."""

    manifest: SplitManifest
    file: Path | str


def package_version() -> str:
    """Version of this package."""
    return metadata.version("avalanche-vilco")


# --- Write ----------------------------------------------------------------------------


def make_manifest(
    split: Split,
    categories: Mapping[Any, Category],
    rules: SplitRules,
    files: Mapping[str, str],
) -> SplitManifest:
    """Describe a split.

    :param split: items by stream and experience.
    :param categories: what items' categories are, for those that the split has.
    :param rules: of the benchmark.
    :param files: annotation file -> SHA-256.
    """
    return SplitManifest(
        benchmark=rules.benchmark,
        protocol=split.protocol.name,
        protocol_version=split.protocol.version,
        package_version=package_version(),
        files=dict(files),
        groups=[[categories[one] for one in group] for group in split.groups],
        streams={
            name: [[item.item_id for item in members] for members in parts]
            for name, parts in split.streams.items()
        },
        windows=split.window_counts(),
        source=dict(split.provenance),
    )


# --- Read -----------------------------------------------------------------------------


def open_manifest(
    source: ManifestSource,
    rules: SplitRules,
    division: Division | None = None,
    *,
    read_public: Callable[[Path], SplitManifest] | None = None,
) -> Pinned:
    """Read and validate a manifest.

    :param source: itself, its JSON form, a JSON file or the public code's pickle.
    :param rules: of the benchmark.
    :param division: the user's arguments that the manifest sets; they must be left at
        their defaults.
    :param read_public: reads the pickle.
    :raises FileNotFoundError: no such file.
    :raises DataError: not JSON, truncated, not a manifest of this benchmark, of another
        version, or it contradicts itself; names the field.
    :raises ValueError: an argument is set twice.
    """
    file: Path | str = "manifest"
    if isinstance(source, (Path, str)):
        file = Path(source).expanduser()
        if read_public is not None and file.suffix in PICKLES:
            source = read_public(file)
        elif not file.is_file():
            raise FileNotFoundError(f"no manifest at {file}")
        else:
            source = decode_json_object(file, read_content(file), hint=_HINT)
    raw = source.to_dict() if isinstance(source, SplitManifest) else dict(source)
    # The form needs its name and version even where the type has a default.
    raw = {"format": None, "format_version": None, **raw}
    manifest = convert(raw, SplitManifest, file, hint=_HINT)
    _check_manifest(manifest, rules, file)
    if division is not None:
        division.check_left_out(file, manifest.protocol)
    return Pinned(manifest, file)


def _check_manifest(
    manifest: SplitManifest, rules: SplitRules, file: Path | str
) -> None:
    """Refuse a manifest that this package cannot follow, or that contradicts itself."""
    for field, value in (
        ("format", MANIFEST_FORMAT),
        ("format_version", MANIFEST_VERSION),
        ("benchmark", rules.benchmark),
    ):
        found = getattr(manifest, field)
        if found != value:
            problem = f"expected {value!r} but got {found!r}"
            raise DataError(file, problem, field=field, hint=_HINT)
    protocol = _checked_protocol(manifest, rules, file)
    _check_categories(manifest, rules, file)
    for field, streams in (
        ("streams", manifest.streams),
        ("windows", manifest.windows),
    ):
        if set(streams) != set(STREAMS):
            problem = f"expected {', '.join(STREAMS)} but got {', '.join(streams)}"
            raise DataError(file, problem, field=field)
        for name, experiences in streams.items():
            if len(experiences) != len(manifest.groups):
                problem = f"expected {len(manifest.groups)} experiences, as groups "
                problem += f"has, but got {len(experiences)}"
                raise DataError(file, problem, field=f"{field}.{name}")
    _check_repeats(manifest, rules, protocol, file)


def _checked_protocol(
    manifest: SplitManifest, rules: SplitRules, file: Path | str
) -> Protocol:
    protocol = rules.protocols.get(manifest.protocol)
    if protocol is None:
        problem = f"expected one of {', '.join(rules.protocols)} but got "
        problem += repr(manifest.protocol)
        raise DataError(file, problem, field="protocol")
    if manifest.protocol_version != protocol.version:
        problem = f"this package has version {protocol.version!r} of protocol "
        problem += f"{protocol.name}, not {manifest.protocol_version!r}"
        hint = f"avalanche-vilco {manifest.package_version} wrote it: install that"
        raise DataError(file, problem, field="protocol_version", hint=hint)
    return protocol


def _check_categories(
    manifest: SplitManifest, rules: SplitRules, file: Path | str
) -> None:
    listed = list(chain(*manifest.groups))
    ids = Counter(category.label_id for category in listed)
    names = Counter(category.name for category in listed)
    keys = Counter(rules.key(category.label_id, category.name) for category in listed)
    for what, counts in (
        ("category ids", ids),
        ("categories", names),
        ("categories", keys),
    ):
        twice = [value for value, count in counts.items() if count > 1]
        if twice:
            problem = f"the {what} {twice[:_LISTED]} occur twice"
            raise DataError(file, problem, field="groups")
    if not listed or not all(manifest.groups):
        problem = f"expected a category in each group but got {manifest.groups}"
        raise DataError(file, problem, field="groups")


def _check_repeats(
    manifest: SplitManifest, rules: SplitRules, protocol: Protocol, file: Path | str
) -> None:
    places: dict[str, list[tuple[str, int]]] = {}
    for name, experiences in manifest.streams.items():
        for e, item_ids in enumerate(experiences):
            for item_id in item_ids:
                places.setdefault(item_id, []).append((name, e))
    repeats = rules.repeats_items(protocol)
    for item_id, found in places.items():
        is_one_stream = len({name for name, _ in found}) == 1
        if len(found) > len(set(found)) or (
            len(found) > 1 and not (repeats and is_one_stream)
        ):
            (first, e), (again, later) = found[:2]
            problem = f"{item_id} is in {first}[{e}] already"
            raise DataError(file, problem, field=f"streams.{again}[{later}]")


# --- Follow ---------------------------------------------------------------------------


def follow_manifest(
    pinned: Pinned,
    items: Iterable[Item],
    rules: SplitRules,
    *,
    names: Mapping[int, str] | None = None,
    subsets: Mapping[str, str] | None = None,
) -> Split:
    """The split that a manifest names.

    :param pinned: a valid manifest.
    :param items: all annotated items, those without features too.
    :param rules: of the benchmark.
    :param names: category id -> name of all categories in the annotations, where a
        split has all of them.
    :param subsets: stream -> subset that it takes its items of; default
        :data:`STREAM_SUBSETS`.
    :return: items in the manifest's order.
    :raises DataError: categories differ, items are unknown (lists them by stream),
        belong to another subset or experience, or windows are not as many.
    """
    manifest, file = pinned.manifest, pinned.file
    if names is not None:
        _compare_categories(manifest, names, file)
    known = {item.item_id: item for item in items}
    _check_known(manifest, known, rules, file)
    groups = [
        [rules.key(one.label_id, one.name) for one in group]
        for group in manifest.groups
    ]
    split = Split(
        rules.protocols[manifest.protocol],
        groups,
        {
            name: [[known[item_id] for item_id in ids] for ids in experiences]
            for name, experiences in manifest.streams.items()
        },
        manifest.source,
    )
    _check_items(split, file, subsets or STREAM_SUBSETS)
    _compare_windows(split, manifest, file)
    return split


def settle_split(
    items: Sequence[Item],
    present: Sequence[Item],
    division: Division,
    pinned: Pinned | None,
    rules: SplitRules,
    *,
    names: Mapping[int, str],
    files: DataFiles,
    subsets: Mapping[str, str] | None = None,
) -> tuple[Split, SplitManifest]:
    """The split that a manifest names, else the one that the user asks for, counted.

    :param items: all annotated items.
    :param present: those whose data are there, which the split has.
    :param division: what the user asks for.
    :param pinned: the manifest, if there is one.
    :param rules: of the benchmark.
    :param names: category id -> name of all categories.
    :param files: where annotations lie; their report gets the counts.
    :param subsets: see :func:`follow_manifest`.
    :return: the split, and its manifest.
    :raises DataError: the manifest is of other data, or an experience has nothing to
        train on.
    :raises ValueError: the division does not fit the categories.
    """
    if pinned is not None:
        check_source_files(pinned, files.report.files, files.paths)
        split = follow_manifest(pinned, items, rules, names=names, subsets=subsets)
    else:
        protocol = rules.protocol(division.protocol)
        chosen = items if protocol.splits_before_dropping else present
        split = divide(chosen, sorted(names), division, rules)
    split = split.only(present)
    count_split(present, split, rules, files.report)
    check_training(split, rules, files.train_path)
    categories = {
        label_id: Category(label_id, name) for label_id, name in names.items()
    }
    return split, make_manifest(split, categories, rules, files.report.files)


def check_source_files(
    pinned: Pinned, digests: Mapping[str, str], paths: Mapping[str, Path]
) -> None:
    """Refuse annotation files that a manifest was not made from.

    :param pinned: without file hashes it goes with any.
    :param digests: file name -> SHA-256 of what was read.
    :param paths: file name -> place, for errors.
    :raises DataError: names the annotation file.
    """
    expected = pinned.manifest.files
    for name, digest in digests.items():
        if expected and digest not in expected.values():
            wanted = expected.get(name) or ", ".join(expected.values())
            problem = f"is not the file that {pinned.file} was made from: its SHA-256 "
            problem += f"is {digest}, expected {wanted}"
            hint = "take the file of the same version, or make a new split"
            raise DataError(paths.get(name, name), problem, hint=hint)


def _compare_categories(
    manifest: SplitManifest, names: Mapping[int, str], file: Path | str
) -> None:
    theirs = {c.label_id: c.name for group in manifest.groups for c in group}
    differ = sorted(set(names.items()) ^ set(theirs.items()))
    if differ:
        shown = ", ".join(f"{i} {name!r}" for i, name in differ[:_LISTED])
        problem = f"{len(differ)} categories are not the same as in the annotations: "
        raise DataError(file, problem + shown, field="groups")


def _check_known(
    manifest: SplitManifest,
    known: Mapping[str, Item],
    rules: SplitRules,
    file: Path | str,
) -> None:
    unknown = {
        name: [item_id for item_id in chain(*experiences) if item_id not in known]
        for name, experiences in manifest.streams.items()
    }
    count = sum(map(len, unknown.values()))
    if count:
        problem = f"{count} {rules.noun} are not in the annotations:"
        for name, ids in unknown.items():
            if ids:
                more = len(ids) - _LISTED
                problem += f"\n  {name}: {', '.join(ids[:_LISTED])}"
                problem += f" and {more} more" if more > 0 else ""
        raise DataError(file, problem, field="streams")


def _check_items(split: Split, file: Path | str, subsets: Mapping[str, str]) -> None:
    experience_of: dict[str, int] = {}
    for name, parts in split.streams.items():
        for e, members in enumerate(parts):
            for i, item in enumerate(members):
                first = experience_of.setdefault(item.clip_id, e)
                problem = None
                if item.subset != subsets[name]:
                    problem = f"is of subset {item.subset!r}, but stream {name} takes "
                    problem += repr(subsets[name])
                elif not split.protocol.keeps(item, split.groups[e]).any():
                    problem = "has no window of this experience's queries"
                elif first != e and not split.protocol.shares_clips:
                    problem = f"is of clip {item.clip_id}, which experience {first} has"
                if problem is not None:
                    field = f"streams.{name}[{e}][{i}]"
                    raise DataError(file, f"{item.item_id} {problem}", field=field)


def _compare_windows(split: Split, manifest: SplitManifest, file: Path | str) -> None:
    for name, counts in split.window_counts().items():
        for e, count in enumerate(counts):
            wanted = manifest.windows[name][e]
            if count != wanted:
                problem = f"expected {wanted} windows but the annotations give {count}"
                raise DataError(file, problem, field=f"windows.{name}[{e}]")
