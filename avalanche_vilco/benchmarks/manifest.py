"""A published split: which clips each experience has, in a small JSON file.

Protocols compute splits; a manifest pins one down, with the hashes of the files it
was made from, so that another package version or another machine has the same
streams or an error that says what differs.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from avalanche_vilco.benchmarks.protocols import PROTOCOLS, STREAMS, Split, Streams
from avalanche_vilco.benchmarks.vilco_mq.annotations import MomentAnnotations
from avalanche_vilco.core.errors import DataError
from avalanche_vilco.core.files import write_atomically
from avalanche_vilco.core.schema import convert, decode_json_object
from avalanche_vilco.data.moments import MomentClip

MANIFEST_FORMAT = "avalanche_vilco split"
MANIFEST_VERSION = 1

_SUBSETS = {"train": "train", "valid": "train", "test": "val"}
_LISTED = 10
_HINT = "a manifest is what benchmark.write_manifest(path) writes"


class Category(msgspec.Struct, frozen=True):
    """A category as the annotation file has it."""

    label_id: int
    name: str


class SplitManifest(msgspec.Struct, kw_only=True):
    """What a split is. Lists of experiences are in order of learning."""

    format: str
    format_version: int
    benchmark: str
    protocol: str
    protocol_version: str
    package_version: str
    files: dict[str, str]
    """Annotation file -> SHA-256; empty if the split came without them."""
    groups: list[list[Category]]
    """Categories of each experience, in order of learning."""
    streams: dict[str, list[list[str]]]
    """Stream -> experiences -> clip uids, in order."""
    windows: dict[str, list[int]]
    """Stream -> windows of each experience."""
    source: dict[str, Any] = {}
    """How the split was made: order, seed, shares; or the file it was read from."""

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return msgspec.to_builtins(self)


def package_version() -> str:
    """Version of this package."""
    # By name: the package's index of lazy imports names modules above this one.
    version: str = import_module("avalanche_vilco").__version__
    return version


def make_manifest(
    streams: Streams,
    groups: Sequence[Sequence[Category]],
    *,
    protocol: str,
    files: Mapping[str, str],
    source: Mapping[str, Any],
    benchmark: str = "vilco_mq",
) -> SplitManifest:
    """Describe a split.

    :param streams: samples by stream and experience.
    :param groups: categories of each experience, in order of learning.
    :param protocol: name of the protocol.
    :param files: annotation file -> SHA-256.
    :param source: how it was made.
    :param benchmark: name of the benchmark.
    """
    return SplitManifest(
        format=MANIFEST_FORMAT,
        format_version=MANIFEST_VERSION,
        benchmark=benchmark,
        protocol=protocol,
        protocol_version=PROTOCOLS[protocol].version,
        package_version=package_version(),
        files=dict(files),
        groups=[list(group) for group in groups],
        streams={
            name: [[s.clip.clip_id for s in own] for own in experiences]
            for name, experiences in streams.items()
        },
        windows=window_counts(streams),
        source=dict(source),
    )


def window_counts(streams: Streams) -> dict[str, list[int]]:
    """Stream -> windows of each experience.

    :param streams: samples by stream and experience.
    """
    return {
        name: [sum(len(s.class_indices) for s in own) for own in experiences]
        for name, experiences in streams.items()
    }


def write_manifest(manifest: SplitManifest, path: Path | str) -> None:
    """Write a manifest; a file of that name is replaced whole.

    :param manifest: what to write.
    :param path: file to write, JSON.
    """
    text = json.dumps(manifest.to_dict(), ensure_ascii=False, indent=1)
    write_atomically(Path(path), text + "\n")


def read_manifest(path: Path | str) -> SplitManifest:
    """Read and validate a manifest.

    :param path: JSON file.
    :raises FileNotFoundError: no such file.
    :raises DataError: not JSON, truncated, not a manifest, of another version, or it
        contradicts itself; names the field.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no manifest at {path}")
    raw = decode_json_object(path, path.read_bytes(), hint=_HINT)
    return parse_manifest(raw, path)


def parse_manifest(raw: Any, file: Path | str = "manifest") -> SplitManifest:
    """Validate the JSON form of a manifest.

    :param raw: what :meth:`SplitManifest.to_dict` gives.
    :param file: named in errors.
    :raises DataError: as :func:`read_manifest`.
    """
    manifest = convert(raw, SplitManifest, file, hint=_HINT)
    check_manifest(manifest, file)
    return manifest


def check_manifest(manifest: SplitManifest, file: Path | str) -> None:
    """Refuse a manifest that this package cannot follow, or that contradicts itself.

    :param manifest: to check.
    :param file: named in errors.
    :raises DataError: names the field.
    """
    expected = {
        "format": MANIFEST_FORMAT,
        "format_version": MANIFEST_VERSION,
        "benchmark": "vilco_mq",
    }
    check_fields(manifest, expected, file, hint=_HINT)
    _check_protocol(manifest, file)
    _check_groups(manifest, file)
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
    _check_repeats(manifest, file)


def _check_protocol(manifest: SplitManifest, file: Path | str) -> None:
    if manifest.protocol not in PROTOCOLS:
        problem = f"expected one of {', '.join(PROTOCOLS)} but got "
        problem += repr(manifest.protocol)
        raise DataError(file, problem, field="protocol")
    ours = PROTOCOLS[manifest.protocol].version
    if manifest.protocol_version != ours:
        problem = f"this package has version {ours!r} of protocol "
        problem += f"{manifest.protocol}, not {manifest.protocol_version!r}"
        hint = f"avalanche-vilco {manifest.package_version} wrote it: install that"
        raise DataError(file, problem, field="protocol_version", hint=hint)


def _check_groups(manifest: SplitManifest, file: Path | str) -> None:
    ids = Counter(c.label_id for group in manifest.groups for c in group)
    twice = sorted(label_id for label_id, count in ids.items() if count > 1)
    if twice:
        problem = f"the category ids {twice} occur twice"
        raise DataError(file, problem, field="groups")
    if not ids or not all(manifest.groups):
        problem = f"expected a category in each group but got {manifest.groups}"
        raise DataError(file, problem, field="groups")


def _check_repeats(manifest: SplitManifest, file: Path | str) -> None:
    shares = PROTOCOLS[manifest.protocol].shares_clips
    home: dict[str, tuple[str, int]] = {}
    for name, experiences in manifest.streams.items():
        for e, clip_ids in enumerate(experiences):
            seen: set[str] = set()
            for i, clip_id in enumerate(clip_ids):
                first = home.setdefault(clip_id, (name, e))
                is_new = first == (name, e) and clip_id not in seen
                seen.add(clip_id)
                if not is_new and not (shares and first[0] == name and first[1] < e):
                    spot = f"streams.{name}[{e}][{i}]"
                    problem = f"the clip {clip_id} is in {first[0]}[{first[1]}] already"
                    raise DataError(file, problem, field=spot)


def manifest_split(
    manifest: SplitManifest,
    read: MomentAnnotations,
    paths: Mapping[str, Path],
    file: Path | str = "manifest",
) -> Split:
    """The clips that a manifest names.

    :param manifest: a valid manifest.
    :param read: the annotations.
    :param paths: name -> path of each annotation file, for errors.
    :param file: the manifest's file, for errors.
    :return: stream -> experiences -> clips, in the manifest's order.
    :raises DataError: an annotation file is not the one that the manifest was made
        from, categories differ, clips are unknown (lists them by stream), or belong
        to another subset.
    """
    check_source_files(manifest, read.report.files, paths, file)
    _check_categories(manifest, read, file)
    clips = {clip.clip_id: clip for clip in read.clips}
    _check_known(manifest, clips, file)
    _check_subsets(manifest, clips, file)
    return {
        name: [[clips[clip_id] for clip_id in own] for own in experiences]
        for name, experiences in manifest.streams.items()
    }


def _check_categories(
    manifest: SplitManifest, read: MomentAnnotations, file: Path | str
) -> None:
    ours = dict(read.label_names)
    theirs = {c.label_id: c.name for group in manifest.groups for c in group}
    differ = sorted(set(ours.items()) ^ set(theirs.items()))
    if differ:
        shown = ", ".join(f"{i} {name!r}" for i, name in differ[:_LISTED])
        problem = f"{len(differ)} categories are not the same as in the annotations: "
        raise DataError(file, problem + shown, field="groups")


def _check_known(
    manifest: SplitManifest, clips: Mapping[str, MomentClip], file: Path | str
) -> None:
    unknown = {
        name: [c for own in experiences for c in own if c not in clips]
        for name, experiences in manifest.streams.items()
    }
    count = sum(map(len, unknown.values()))
    if count:
        lines = [f"  {name}: {', '.join(ids)}" for name, ids in unknown.items() if ids]
        problem = f"{count} clips are not in the annotations:\n" + "\n".join(lines)
        raise DataError(file, problem, field="streams")


def _check_subsets(
    manifest: SplitManifest, clips: Mapping[str, MomentClip], file: Path | str
) -> None:
    for name, experiences in manifest.streams.items():
        for e, own in enumerate(experiences):
            for i, clip_id in enumerate(own):
                subset = clips[clip_id].subset
                if subset != _SUBSETS[name]:
                    problem = f"the clip {clip_id} is of subset {subset!r}, but stream "
                    problem += f"{name} takes clips of {_SUBSETS[name]!r}"
                    raise DataError(file, problem, field=f"streams.{name}[{e}][{i}]")


def check_windows(
    manifest: SplitManifest,
    streams: Streams,
    file: Path | str,
    *,
    complete: bool = True,
) -> None:
    """Refuse streams that do not hold what a manifest says.

    :param manifest: a valid manifest.
    :param streams: samples made from it.
    :param file: the manifest's file, for errors.
    :param complete: whether no clip was left out for want of features; else only
        samples without a window are refused.
    :raises DataError: names the stream and experience.
    """
    for name, experiences in streams.items():
        for e, samples in enumerate(experiences):
            empty = [s.clip.clip_id for s in samples if not len(s.class_indices)]
            if empty:
                problem = f"no window of this experience's queries in clips {empty}"
                raise DataError(file, problem, field=f"streams.{name}[{e}]")
    if not complete:
        return
    for name, counts in window_counts(streams).items():
        for e, count in enumerate(counts):
            wanted = manifest.windows[name][e]
            if count != wanted:
                problem = f"expected {wanted} windows but the annotations give {count}"
                raise DataError(file, problem, field=f"windows.{name}[{e}]")


def check_fields(
    manifest: SplitManifest, expected: Mapping[str, Any], file: Path | str, *, hint: str
) -> None:
    """Refuse a manifest of another format, version or benchmark.

    :param manifest: to check.
    :param expected: field -> the only value it may have.
    :param file: named in errors.
    :param hint: what to do.
    :raises DataError: names the field.
    """
    for field, value in expected.items():
        found = getattr(manifest, field)
        if found != value:
            problem = f"expected {value!r} but got {found!r}"
            raise DataError(file, problem, field=field, hint=hint)


def check_query_streams(
    manifest: SplitManifest, file: Path | str, *, noun: str = "queries"
) -> None:
    """Refuse streams whose members are queries and that contradict the manifest.

    :param manifest: its streams hold query ids, each in one place, its windows their
        numbers.
    :param file: named in errors.
    :param noun: what errors call the members.
    :raises DataError: names the field.
    """
    if set(manifest.streams) != set(STREAMS):
        problem = f"expected {', '.join(STREAMS)} but got {', '.join(manifest.streams)}"
        raise DataError(file, problem, field="streams")
    for name, experiences in manifest.streams.items():
        sizes = [len(own) for own in experiences]
        if len(sizes) != len(manifest.groups):
            problem = f"expected {len(manifest.groups)} experiences, as groups has, "
            problem += f"but got {len(sizes)}"
            raise DataError(file, problem, field=f"streams.{name}")
        if manifest.windows.get(name) != sizes:
            problem = f"expected {sizes}, the numbers of {noun}, but got "
            problem += str(manifest.windows.get(name))
            raise DataError(file, problem, field=f"windows.{name}")
    members = chain.from_iterable(chain.from_iterable(manifest.streams.values()))
    twice = [member for member, count in Counter(members).items() if count > 1]
    if twice:
        problem = f"{len(twice)} {noun} occur twice: {', '.join(twice[:_LISTED])}"
        raise DataError(file, problem, field="streams")


def check_source_files(
    manifest: SplitManifest,
    digests: Mapping[str, str],
    paths: Mapping[str, Path],
    file: Path | str,
) -> None:
    """Refuse annotation files that a manifest was not made from.

    :param manifest: without file hashes it goes with any.
    :param digests: file name -> SHA-256 of what was read.
    :param paths: file name -> place, for errors.
    :param file: the manifest, named in errors.
    :raises DataError: names the annotation file.
    """
    for name, digest in digests.items():
        if manifest.files and digest not in manifest.files.values():
            expected = manifest.files.get(name) or ", ".join(manifest.files.values())
            problem = f"is not the file that {file} was made from: its SHA-256 is "
            problem += f"{digest}, expected {expected}"
            hint = "take the file of the same version, or make a new split"
            raise DataError(paths.get(name, name), problem, hint=hint)
