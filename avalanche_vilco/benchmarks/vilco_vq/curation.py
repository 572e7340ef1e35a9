"""How visual queries are divided over experiences and streams.

Each experience asks for a group of object titles. The public split script is not
reproducible: its shuffle has no seed and the order that it shuffles depends on the hash
seed of the process. Here the groups follow from a seed, and a manifest pins a split
down.

``python -m avalanche_vilco.benchmarks.vilco_vq.curation FOLDER`` prints what is kept of the
official files in a folder.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import csr_array, vstack
from sklearn.cluster import SpectralCoclustering

from avalanche_vilco.benchmarks.items import Item
from avalanche_vilco.benchmarks.manifest import (
    MANIFEST_FORMAT,
    MANIFEST_VERSION,
    Category,
    Pinned,
    SplitManifest,
    check_source_files,
    package_version,
)
from avalanche_vilco.benchmarks.protocols import BALANCE_SLACK, STREAMS
from avalanche_vilco.benchmarks.split import held_out_parents
from avalanche_vilco.benchmarks.vilco_vq.annotations import (
    VisualAnnotations,
    VisualQuery,
    find_vq_files,
    read_visual_queries,
    title_key,
)
from avalanche_vilco.core.errors import DataError
from avalanche_vilco.core.files import sha256_of
from avalanche_vilco.core.report import DataReport
from avalanche_vilco.core.schema import convert, decode_json_object
from avalanche_vilco.core.tables import table
from avalanche_vilco.core.untrusted import load_untrusted

BENCHMARK = "vilco_vq"
N_EXPERIENCES = 5
GROUPINGS = ("together", "shuffled")

TitleGroups: TypeAlias = list[list[str]]
"""Keys of the titles of each experience, in order of learning."""
VisualSplit: TypeAlias = Mapping[str, Sequence[Sequence[VisualQuery]]]
"""Stream -> experiences -> queries, in file order."""

_SUBSETS = {"train": "train", "valid": "train", "test": "val"}
_ROUNDS = 20
_TIE = 1e-3
_LISTED = 10
_HINT = "a manifest is what write_manifest writes"
_PICKLE_HINT = "expected the metadata that the public split script writes"


@dataclass(frozen=True)
class VQProtocol:
    """How queries are divided."""

    name: str
    version: str
    """Changes with what the streams hold; travels into results and manifests."""
    shares_clips: bool
    """Whether a clip may be in several experiences."""
    valid_share: float
    """Share of the training clips that the valid stream holds by default."""


EXCLUSIVE = VQProtocol("exclusive", "1", False, 0.1)
SHARED_CLIPS = VQProtocol("shared_clips", "1", True, 0.1)
REFERENCE = VQProtocol("reference", "1", True, 0.0)
"""What a public pickle holds; it cannot be made here, because the script that makes it
gives another split each time, in which some clips are in two experiences."""
VQ_PROTOCOLS: Mapping[str, VQProtocol] = {
    protocol.name: protocol for protocol in (EXCLUSIVE, SHARED_CLIPS, REFERENCE)
}
"""Protocols by name."""


# --- Groups of titles -----------------------------------------------------------------


def title_groups(
    read: VisualAnnotations,
    *,
    n_experiences: int = N_EXPERIENCES,
    seed: int = 0,
    grouping: str = "together",
) -> TitleGroups:
    """Divide object titles over experiences.

    One seed gives one division; between versions of SciPy and scikit-learn
    ``"together"`` may differ, so that a published result needs its manifest.

    Titles of train and val, of train alone and of val alone are divided each by
    themselves, so that every experience has its part of all three, and equal numbers
    of titles up to one of each kind.

    :param read: annotations of train and val.
    :param n_experiences: number of groups.
    :param seed: of the shuffle.
    :param grouping: ``"shuffled"`` deals titles at random, frequent ones first;
        ``"together"`` puts titles together that are asked for in the same clips, so
        that more queries are left when each clip has one experience.
    :return: keys of the titles of each experience (see
        :func:`~avalanche_vilco.benchmarks.vilco_vq.annotations.title_key`), in alphabetical order.
    :raises ValueError: no such grouping, or fewer titles than experiences.
    """
    if grouping not in GROUPINGS:
        raise ValueError(f"expected grouping in {list(GROUPINGS)} but got {grouping!r}")
    table = _Table.of(read)
    if not 1 <= n_experiences <= len(table.titles):
        raise ValueError(
            f"expected n_experiences in 1..{len(table.titles)}, the number of titles, "
            f"but got {n_experiences}"
        )
    rng = np.random.default_rng(seed)
    group = _dealt(table, n_experiences, rng)
    # One group holds all titles; the clustering wants two at least.
    if grouping == "together" and n_experiences > 1:
        starts = [group, _co_clustered(table, group, n_experiences, seed)]
        found = [_gathered(table, start, n_experiences) for start in starts]
        group = max(found, key=lambda one: one[1])[0]
    return [
        [
            title
            for title, own in zip(table.titles, group.tolist(), strict=True)
            if own == g
        ]
        for g in range(n_experiences)
    ]


@dataclass(frozen=True, eq=False)
class _Table:
    """How often each title is asked in each clip."""

    titles: list[str]
    """Keys, in alphabetical order."""
    kinds: NDArray[np.int64]
    """(titles,) 0 for titles of both subsets, 1 of train alone, 2 of val alone."""
    counts: csr_array
    """(clips, titles) queries; train clips first."""
    n_train: int

    @staticmethod
    def of(read: VisualAnnotations) -> _Table:
        keys = [title_key(query.title) for query in read.queries]
        titles = sorted(set(keys))
        place = {title: i for i, title in enumerate(titles)}
        clips = sorted(read.clips.values(), key=lambda clip: clip.subset != "train")
        row = {clip.clip_id: i for i, clip in enumerate(clips)}
        rows = [row[query.clip_id] for query in read.queries]
        columns = [place[key] for key in keys]
        shape = (len(clips), len(titles))
        counts = csr_array((np.ones(len(rows)), (rows, columns)), shape=shape)
        n_train = sum(clip.subset == "train" for clip in clips)
        in_train, in_val = (
            np.asarray(part.sum(axis=0)).ravel() > 0
            for part in (counts[:n_train], counts[n_train:])
        )
        kinds = np.where(in_train & in_val, 0, np.where(in_train, 1, 2))
        return _Table(titles, kinds, counts, n_train)


def _dealt(table: _Table, n_groups: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """(titles,) group of each; each round of dealing goes round the groups anew."""
    group = np.full(len(table.titles), -1, dtype=np.int64)
    frequency = np.asarray(table.counts.sum(axis=0)).ravel()
    for kind in range(3):
        own = rng.permutation(np.flatnonzero(table.kinds == kind))
        own = own[np.argsort(-frequency[own], kind="stable")]
        rounds = -(-len(own) // n_groups)
        seats = [rng.permutation(n_groups) for _ in range(rounds)]
        if seats:
            group[own] = np.concatenate(seats)[: len(own)]
    return group


def _gathered(
    table: _Table, group: NDArray[np.int64], n_groups: int
) -> tuple[NDArray[np.int64], float]:
    """Give clips to groups and titles to where their clips are, in turn, as long as
    more queries are kept: groups, and how many queries that are.
    """
    best, kept = group, -1.0
    for _ in range(_ROUNDS):
        asked = _asked_of_groups(table, group, n_groups)
        homes = np.concatenate(
            [clip_homes(asked[: table.n_train]), clip_homes(asked[table.n_train :])]
        )
        now = float(asked[np.arange(len(homes)), homes][homes >= 0].sum())
        if now <= kept:
            break
        best, kept = group, now
        group = _near_clips(table, homes, group, n_groups)
    return best, kept


def _co_clustered(
    table: _Table, group: NDArray[np.int64], n_groups: int, seed: int
) -> NDArray[np.int64]:
    """(titles,) group of each by spectral co-clustering of clips and titles."""
    if min(table.counts.shape) <= n_groups:
        return group
    clusters = SpectralCoclustering(n_groups, random_state=seed).fit(table.counts)
    return _near_clips(table, clusters.row_labels_, group, n_groups)


def _near_clips(
    table: _Table,
    homes: NDArray[np.int64],
    group: NDArray[np.int64],
    n_groups: int,
) -> NDArray[np.int64]:
    """(titles,) group of each: where most of the clips are that ask for it, in equal
    numbers of titles of each kind.

    :param homes: (clips,) group of each clip, -1 for none.
    :param group: (titles,) group so far; it stays where it makes no difference.
    """
    one_hot = (homes[:, None] == np.arange(n_groups)).astype(np.float64)
    near = table.counts.T @ one_hot
    near[np.arange(len(group)), group] += _TIE
    moved = group.copy()
    for kind in range(3):
        own = np.flatnonzero(table.kinds == kind)
        if len(own):
            moved[own] = _assigned(1 + near[own], -(-len(own) // n_groups))
    return moved


def _asked_of_groups(
    table: _Table, group: NDArray[np.int64], n_groups: int
) -> NDArray[np.float64]:
    """(clips, groups) queries of each clip that each group asks."""
    one_hot = (group[:, None] == np.arange(n_groups)).astype(np.float64)
    return np.asarray(table.counts @ one_hot)


def clip_homes(asked: NDArray[np.float64]) -> NDArray[np.int64]:
    """Give each clip to one experience, so that most queries are kept.

    An experience gets at most 1.5 times its share of the clips
    (:data:`~avalanche_vilco.benchmarks.protocols.BALANCE_SLACK`), and at least its share
    divided by that where as many clips ask for its titles; never one that it asks
    nothing of.

    :param asked: (clips, experiences) queries of each clip that each experience asks.
    :return: (clips,) experience, -1 for none.
    """
    n_clips, n_groups = asked.shape
    if not n_clips:
        return np.empty(0, dtype=np.int64)
    most = int(np.ceil(BALANCE_SLACK * n_clips / n_groups))
    least = max(1, int(n_clips / n_groups / BALANCE_SLACK))
    return _assigned(asked, most, least)


def _assigned(
    gains: NDArray[np.float64], most: int, least: int = 0
) -> NDArray[np.int64]:
    """Column of each row, -1 for none, of greatest total gain; cells without gain are
    not taken. Each column has ``least`` to ``most`` rows, or, where that cannot be, 0
    to ``most``.

    The linear program has whole solutions, as all transport problems do.
    """
    n_rows, n_columns = gains.shape
    cells = np.arange(n_rows * n_columns)
    ones = np.ones(len(cells))
    each_row = csr_array((ones, (cells // n_columns, cells)))
    each_column = csr_array((ones, (cells % n_columns, cells)))
    solved = linprog(
        -gains.ravel(),
        A_ub=vstack([each_row, each_column, -each_column]),
        b_ub=np.repeat([1.0, most, -least], [n_rows, n_columns, n_columns]),
        bounds=np.stack([np.zeros(len(cells)), gains.ravel() > 0], axis=1),
        method="highs-ds",
    )
    if not solved.success and least:
        return _assigned(gains, most)
    share = solved.x.reshape(n_rows, n_columns)
    column = share.argmax(axis=1)
    return np.where(share[np.arange(n_rows), column] > 0.5, column, -1)


# --- Split ----------------------------------------------------------------------------


def split_visual_queries(
    read: VisualAnnotations,
    groups: Sequence[Sequence[str]],
    protocol: VQProtocol = EXCLUSIVE,
    *,
    valid_share: float | None = None,
) -> dict[str, list[list[VisualQuery]]]:
    """Divide queries over streams and experiences, and count them in the report.

    ``test`` is the val file; ``valid`` is held out of train by parent video, chosen by
    a hash of its uid.

    :param read: annotations of train and val.
    :param groups: keys of the titles of each experience, in order of learning.
    :param protocol: ``EXCLUSIVE`` gives each clip to one experience, and the clip's
        other queries are left out; ``SHARED_CLIPS`` leaves out nothing.
    :param valid_share: share of the training clips for ``valid``, in [0, 1); default
        the protocol's.
    :return: stream -> experiences -> queries in file order.
    :raises ValueError: the protocol cannot be made here, a share is out of range, or
        the groups do not hold each title once.
    :raises DataError: a parent video is in train and val, or an experience has no
        training query.
    """
    share = protocol.valid_share if valid_share is None else valid_share
    if not 0 <= share < 1:
        raise ValueError(f"expected valid_share in [0, 1) but got {share}")
    if protocol is REFERENCE:
        raise ValueError("protocol 'reference' comes from the public pickle alone")
    _check_parents(read)
    home = _title_homes(read, groups)
    places = _clip_places(read, home, len(groups), protocol)
    held = _held_out(read, places, share)
    split: dict[str, list[list[VisualQuery]]]
    split = {name: [[] for _ in groups] for name in STREAMS}
    for query in read.queries:
        experience = home[title_key(query.title)]
        if places.get(query.clip_id, experience) == experience:
            is_held = read.clips[query.clip_id].video_id in held
            name = "test" if query.subset == "val" else "valid" if is_held else "train"
            split[name][experience].append(query)
    empty = [e for e, own in enumerate(split["train"]) if not own]
    if empty:
        problem = f"no training query of the titles of experiences {empty}"
        raise DataError(_train_file(read), problem, hint="choose fewer experiences")
    count_split(read, split, protocol, places)
    return split


def _train_file(read: VisualAnnotations) -> Path:
    return read.files.get("train", next(iter(read.files.values())))


def _check_parents(read: VisualAnnotations) -> None:
    parents: dict[str, set[str]] = defaultdict(set)
    for clip in read.clips.values():
        parents[clip.subset].add(clip.video_id)
    shared = sorted(parents["train"] & parents["val"])
    if shared:
        problem = f"{len(shared)} parent videos are in val as well: "
        problem += ", ".join(shared[:_LISTED])
        hint = "scores on a video seen in training mean nothing: mend the split"
        raise DataError(_train_file(read), problem, hint=hint)


def _title_homes(
    read: VisualAnnotations, groups: Sequence[Sequence[str]]
) -> dict[str, int]:
    """Experience of each title."""
    listed = Counter(title for group in groups for title in group)
    known = {title_key(query.title) for query in read.queries}
    faults = {
        "missing": sorted(known - set(listed)),
        "unknown": sorted(set(listed) - known),
        "twice": sorted(title for title, n in listed.items() if n > 1),
    }
    if any(faults.values()):
        told = "; ".join(f"{k} {v[:_LISTED]}" for k, v in faults.items() if v)
        raise ValueError(f"expected groups to hold each title once but got {told}")
    return {title: e for e, group in enumerate(groups) for title in group}


def _clip_places(
    read: VisualAnnotations,
    home: Mapping[str, int],
    n_experiences: int,
    protocol: VQProtocol,
) -> dict[str, int]:
    """Experience of each clip, -1 for none; empty if clips have as many as they ask."""
    places: dict[str, int] = {}
    if protocol.shares_clips:
        return places
    for subset in ("train", "val"):
        rows = [clip_id for clip_id, c in read.clips.items() if c.subset == subset]
        row = {clip_id: i for i, clip_id in enumerate(rows)}
        asked = np.zeros((len(rows), n_experiences))
        for query in read.queries:
            if query.subset == subset:
                asked[row[query.clip_id], home[title_key(query.title)]] += 1
        places.update(zip(rows, clip_homes(asked).tolist(), strict=True))
    return places


def _held_out(
    read: VisualAnnotations, places: Mapping[str, int], share: float
) -> frozenset[str]:
    """Parent videos of the valid stream, a share of each experience. Titles do not hold
    a video back: an object is told by its crop, and most titles are in few clips.
    """
    members: dict[int, list[Item]] = defaultdict(list)
    for clip in read.clips.values():
        if clip.subset == "train" and places.get(clip.clip_id, 0) >= 0:
            item = Item(clip.clip_id, clip.clip_id, clip.video_id, clip.subset, ())
            members[places.get(clip.clip_id, 0)].append(item)
    held = (held_out_parents(own, [0] * len(own), share) for own in members.values())
    return frozenset(chain(*held))


def count_split(
    read: VisualAnnotations,
    split: VisualSplit,
    protocol: VQProtocol,
    places: Mapping[str, int] | None = None,
) -> None:
    """Count what a protocol keeps, as stage ``protocol <name>`` of the report.

    :param read: the annotations; their report gets the counts.
    :param split: stream -> experiences -> queries.
    :param protocol: the rule.
    :param places: experience of each clip, -1 for none, where clips have one.
    """
    stage = f"protocol {protocol.name}"
    sets, clips = (read.report.stage(stage, unit) for unit in ("query sets", "clips"))
    kept_clips: set[str] = set()
    for name, experiences in split.items():
        own = [query for experience in experiences for query in experience]
        used = {query.clip_id for query in own}
        sets.kept += len(own)
        sets.note(f"in stream {name}", len(own))
        clips.note(f"in stream {name}", len(used))
        kept_clips |= used
    n_placeless = sum(
        (places or {}).get(query.clip_id, 0) < 0 for query in read.queries
    )
    lost = len(read.queries) - sets.kept
    other = "its title is of another experience than the clip"
    sets.reject("the clip has no place in a balanced split", n_placeless)
    sets.reject("not in the manifest" if places is None else other, lost - n_placeless)
    clips.kept = len(kept_clips)
    clips.reject("no query in a stream", len(read.clips) - len(kept_clips))


# --- Manifests ------------------------------------------------------------------------


def make_vq_manifest(
    split: VisualSplit,
    groups: Sequence[Sequence[str]],
    *,
    protocol: VQProtocol,
    report: DataReport,
    source: Mapping[str, Any],
) -> SplitManifest:
    """Describe a split; :func:`~avalanche_vilco.benchmarks.manifest.write_manifest`
    writes it.

    :param split: queries by stream and experience.
    :param groups: keys of the titles of each experience.
    :param protocol: the rule.
    :param report: report of the annotations, with the files' hashes.
    :param source: how it was made: seed, grouping, share of valid.
    """
    ids = {title: i for i, title in enumerate(sorted(t for g in groups for t in g))}
    return SplitManifest(
        format=MANIFEST_FORMAT,
        format_version=MANIFEST_VERSION,
        benchmark=BENCHMARK,
        protocol=protocol.name,
        protocol_version=protocol.version,
        package_version=package_version(),
        files=dict(report.files),
        groups=[[Category(ids[title], title) for title in group] for group in groups],
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


def read_vq_manifest(
    manifest: SplitManifest | Mapping[str, Any] | Path | str,
) -> SplitManifest:
    """Read and validate a manifest.

    :param manifest: itself, its JSON form, or a JSON file.
    :raises FileNotFoundError: no such file.
    :raises DataError: not a manifest of this benchmark, of another version, or it
        contradicts itself; names the field.
    """
    name: Path | str = "manifest"
    if isinstance(manifest, (Path, str)):
        name = Path(manifest).expanduser()
        if not name.is_file():
            raise FileNotFoundError(f"no manifest at {name}")
        manifest = decode_json_object(name, name.read_bytes(), hint=_HINT)
    if isinstance(manifest, SplitManifest):
        manifest = manifest.to_dict()
    parsed = convert(dict(manifest), SplitManifest, name, hint=_HINT)
    _check_manifest(parsed, name)
    return parsed


def _check_manifest(manifest: SplitManifest, file: Path | str) -> None:
    rule = VQ_PROTOCOLS.get(manifest.protocol)
    expected = {
        "format": MANIFEST_FORMAT,
        "format_version": MANIFEST_VERSION,
        "benchmark": BENCHMARK,
        "protocol": manifest.protocol if rule else " or ".join(VQ_PROTOCOLS),
        "protocol_version": rule.version if rule else manifest.protocol_version,
    }
    _check_fields(manifest, expected, file, hint=_HINT)
    titles = Counter(title_key(c.name) for group in manifest.groups for c in group)
    twice = [title for title, count in titles.items() if count > 1]
    if twice or not all(manifest.groups) or not titles:
        problem = f"expected each title in one group but got {twice[:_LISTED]} twice"
        raise DataError(file, problem, field="groups")
    _check_query_streams(manifest, file)


def _check_fields(
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


def _check_query_streams(
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


def manifest_split(
    manifest: SplitManifest, read: VisualAnnotations, file: Path | str = "manifest"
) -> dict[str, list[list[VisualQuery]]]:
    """The queries that a manifest names, counted in the report.

    :param manifest: a valid manifest.
    :param read: the annotations.
    :param file: the manifest's file, for errors.
    :return: stream -> experiences -> queries, in the manifest's order.
    :raises DataError: an annotation file is not the one that the manifest was made
        from, queries are unknown, belong to another subset or to another group's
        titles, or a clip has two experiences against the protocol.
    """
    check_source_files(
        Pinned(manifest, file),
        read.report.files,
        {path.name: path for path in read.files.values()},
    )
    known = {query.query_id: query for query in read.queries}
    named = [i for own in manifest.streams.values() for ids in own for i in ids]
    gone = [query_id for query_id in named if query_id not in known]
    if gone:
        problem = f"{len(gone)} queries are not in the annotations: "
        raise DataError(file, problem + ", ".join(gone[:_LISTED]), field="streams")
    split = {
        name: [[known[i] for i in ids] for ids in experiences]
        for name, experiences in manifest.streams.items()
    }
    _check_members(manifest, split, file)
    count_split(read, split, VQ_PROTOCOLS[manifest.protocol])
    return split


def _check_members(
    manifest: SplitManifest, split: VisualSplit, file: Path | str
) -> None:
    groups = [{title_key(c.name) for c in group} for group in manifest.groups]
    shares = VQ_PROTOCOLS[manifest.protocol].shares_clips
    home: dict[str, int] = {}
    for name, experiences in split.items():
        for e, own in enumerate(experiences):
            for query in own:
                fault = None
                if query.subset != _SUBSETS[name]:
                    fault = f"is of subset {query.subset!r}, not {_SUBSETS[name]!r}"
                elif title_key(query.title) not in groups[e]:
                    fault = f"asks for {query.title!r}, which is not of its group"
                elif home.setdefault(query.clip_id, e) != e and not shares:
                    fault = f"is of clip {query.clip_id}, which experience "
                    fault += f"{home[query.clip_id]} has"
                if fault is not None:
                    spot = f"streams.{name}[{e}]"
                    raise DataError(file, f"{query.query_id} {fault}", field=spot)


# --- The public code's pickle ---------------------------------------------------------


def read_vq_metadata(path: Path | str, read: VisualAnnotations) -> SplitManifest:
    """Read the public code's metadata as a manifest of protocol ``reference``.

    The pickle holds ``{"train": {task: {"dict_db": [item, ...]}}, "val": the same}``;
    an item has ``annotation_uid`` and the whole query set as ``labels``, but not its
    number, so that it is looked up by title, query frame and crop frame. Items that
    the annotations' reader leaves out, such as query sets that are not valid, are left
    out here too; ``source["left_out"]`` counts them.

    :param path: the pickle; only arrays, tensors and builtins are read from it.
    :param read: annotations of train and val.
    :return: tasks in ascending order; nothing in ``valid``.
    :raises FileNotFoundError: no such file.
    :raises DataError: it asks for other objects, is truncated, has another structure,
        or names an annotation that the files do not have.
    """
    path = Path(path)
    raw = load_untrusted(path, tensors="drop")
    parts = {subset: _part(path, raw, subset) for subset in ("train", "val")}
    tasks = sorted(set(parts["train"]) | set(parts["val"]), key=str)
    found = {
        subset: [_found(path, part.get(task, []), read) for task in tasks]
        for subset, part in parts.items()
    }
    split: dict[str, list[list[VisualQuery]]] = {
        "train": [queries for queries, _ in found["train"]],
        "valid": [[] for _ in tasks],
        "test": [queries for queries, _ in found["val"]],
    }
    groups = [
        sorted({title_key(q.title) for own in (train, test) for q in own})
        for train, test in zip(split["train"], split["test"], strict=True)
    ]
    n_left_out = sum(n for own in found.values() for _, n in own)
    manifest = make_vq_manifest(
        split,
        groups,
        protocol=REFERENCE,
        report=read.report,
        source={
            "file": path.name,
            "sha256": sha256_of(path),
            "left_out": n_left_out,
        },
    )
    _check_manifest(manifest, path)
    return manifest


def _part(path: Path, raw: Any, subset: str) -> dict[Any, list[Any]]:
    """Task -> items."""
    part = raw.get(subset) if isinstance(raw, dict) else None
    if not isinstance(part, dict) or not part:
        problem = 'expected {task: {"dict_db": [item, ...]}}'
        raise DataError(path, problem, field=subset, hint=_PICKLE_HINT)
    items = {}
    for task, content in part.items():
        own = content.get("dict_db") if isinstance(content, dict) else None
        if not isinstance(own, list):
            problem = f"expected a list of items but got a {type(own).__name__}"
            spot = f"{subset}[{task!r}].dict_db"
            raise DataError(path, problem, field=spot, hint=_PICKLE_HINT)
        items[task] = own
    return items


def _found(
    path: Path, items: Iterable[Any], read: VisualAnnotations
) -> tuple[list[VisualQuery], int]:
    """Queries that items stand for, and how many items stand for none."""
    by_content: dict[Any, list[VisualQuery]] = defaultdict(list)
    for query in read.queries:
        known = (title_key(query.title), query.query_frame, query.crop.frame)
        by_content[query.annotation_uid, known].append(query)
    queries, n_left_out = [], 0
    for i, item in enumerate(items):
        try:
            labels = item["labels"]
            content = (
                title_key(labels["object_title"] or ""),
                labels["query_frame"],
                (labels["visual_crop"] or {}).get("frame_number"),
            )
            own = by_content.get((item["annotation_uid"], content), [])
        except (KeyError, TypeError, AttributeError) as error:
            problem = f"expected an item with its query set as labels: {error!r}"
            spot = f"dict_db[{i}]"
            raise DataError(path, problem, field=spot, hint=_PICKLE_HINT) from None
        if own:
            queries.append(own.pop(0))
        else:
            n_left_out += 1
    if items and not queries:
        problem = "none of the items is in the annotations"
        raise DataError(path, problem, hint="take the files that it was made from")
    return queries, n_left_out


# --- What is kept ---------------------------------------------------------------------


def split_table(split: VisualSplit, read: VisualAnnotations) -> str:
    """A Markdown table with a row for each experience and one for all.

    :param split: stream -> experiences -> queries.
    :param read: the annotations.
    """
    n_experiences = len(next(iter(split.values())))
    head = [f"{name}: queries / titles / clips / hours" for name in split]
    lines = {str(e): [e] for e in range(n_experiences)}
    lines["all"] = list(range(n_experiences))
    rows = [
        [label, *(_cell(queries, chosen, read) for queries in split.values())]
        for label, chosen in lines.items()
    ]
    return table(["experience", *head], rows)


def _cell(
    experiences: Sequence[Sequence[VisualQuery]],
    chosen: Sequence[int],
    read: VisualAnnotations,
) -> str:
    queries = [query for e in chosen for query in experiences[e]]
    titles = {title_key(query.title) for query in queries}
    clips = {query.clip_id for query in queries}
    hours = sum(read.clips[clip_id].duration_sec for clip_id in clips) / 3600
    return f"{len(queries):,} / {len(titles):,} / {len(clips):,} / {hours:.2f}"


def kept_share(split: VisualSplit, read: VisualAnnotations) -> float:
    """Share of the usable queries that are in a stream, in [0, 1].

    :param split: stream -> experiences -> queries.
    :param read: the annotations.
    """
    kept = sum(len(own) for experiences in split.values() for own in experiences)
    return kept / len(read.queries)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what each grouping and protocol keeps of official files.

    :param arguments: command-line arguments; those of the process if not given.
    :return: exit status.
    """
    parser = argparse.ArgumentParser(
        prog="python -m avalanche_vilco.benchmarks.vilco_vq.curation",
        description="Print what is kept of vq_train.json and vq_val.json.",
    )
    parser.add_argument("folder", metavar="FOLDER", help="folder with both files")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    files = find_vq_files(Path(options.folder))
    wanted = {s: path for s, path in files.items() if s != "test"}
    try:
        read = read_visual_queries(wanted)
        for grouping in GROUPINGS:
            groups = title_groups(read, seed=options.seed, grouping=grouping)
            split = split_visual_queries(read, groups)
            share = kept_share(split, read)
            print(f"## exclusive, titles {grouping}: {share:.1%} of the queries\n")
            print(split_table(split, read) + "\n")
    except (FileNotFoundError, ValueError) as error:
        parser.exit(1, f"error: {error}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
