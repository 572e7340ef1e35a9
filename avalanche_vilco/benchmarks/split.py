"""The split engine: items are divided over streams and experiences.

How a benchmark uses it (``vilco_mq/split.py`` is the shortest example):

1. It makes an :class:`~avalanche_vilco.benchmarks.items.Item` of each record and says
   in a :class:`SplitRules` what its protocols are and what its items are called.
2. It gathers the user's wishes in a :class:`Division`.
3. :func:`divide` makes a :class:`Split` of items, or
   :func:`~avalanche_vilco.benchmarks.manifest.follow_manifest` the one that a manifest
   pins down; where experiences are not groups of listed categories,
   :func:`split_items` takes any groups.
4. Items whose data are missing are left out (:func:`drop_clips
   <avalanche_vilco.benchmarks.items.drop_clips>`, :meth:`Split.only`), before or after
   the split as the protocol says; :func:`count_split` counts what is kept,
   :func:`check_training` refuses an empty experience.
5. :func:`~avalanche_vilco.benchmarks.manifest.make_manifest` describes the split.

The benchmark then makes samples of ``split.streams`` and nothing else of it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching

from avalanche_vilco.benchmarks.items import Item, whole_clips
from avalanche_vilco.benchmarks.protocols import STREAMS, Groups, Protocol
from avalanche_vilco.core.errors import DataError, SettingError
from avalanche_vilco.core.registry import look_up
from avalanche_vilco.core.report import DataReport


@dataclass(frozen=True, kw_only=True)
class SplitRules:
    """How a benchmark divides its items, and what it calls them."""

    benchmark: str
    protocols: Mapping[str, Protocol]
    noun: str
    """What errors call items: ``"clips"`` if an item is a whole clip."""
    units: tuple[str, ...]
    """What reports call the windows of items; the first is noted for each stream."""
    key: Callable[[int, str], Hashable] = lambda label_id, name: label_id
    """Category of items that a manifest's category stands for."""
    empty_hint: str = (
        "choose fewer experiences, another order, or put their queries together with "
        "others (per_exp_classes)"
    )
    """What to do if an experience has nothing to train on."""

    def protocol(self, name: str) -> Protocol:
        """A protocol by name.

        :raises ValueError: there is none; names the close ones.
        """
        found: Protocol = look_up("protocol", name, self.protocols)
        return found

    def repeats_items(self, protocol: Protocol) -> bool:
        """Whether an item may be in several experiences.

        :param protocol: the rule.
        """
        return self.noun == "clips" and protocol.shares_clips


@dataclass(frozen=True, kw_only=True)
class Division:
    """The arguments of a generator that a manifest says too.

    :raises ValueError: an argument is out of range, or two contradict each other.
    """

    protocol: str = "exclusive"
    n_experiences: int = 5
    per_exp_classes: Sequence[int] | None = None
    fixed_class_order: str | Sequence[int] | None = None
    seed: int | None = None
    valid_share: float | None = None

    def __post_init__(self) -> None:
        share, sizes = self.valid_share, self.per_exp_classes
        if share is not None and not 0 <= share < 1:
            raise SettingError(f"expected valid_share in [0, 1) but got {share}")
        # Left at its default, the number is not a wish.
        if sizes is not None and self.n_experiences not in (
            type(self).n_experiences,
            len(sizes),
        ):
            raise SettingError(
                f"per_exp_classes {list(sizes)} make {len(sizes)} experiences, but "
                f"n_experiences is {self.n_experiences}: leave one out"
            )

    def check_left_out(self, file: Path | str, protocol: str) -> None:
        """Refuse what a manifest sets, unless it is left at its default.

        :param file: the manifest.
        :param protocol: of the manifest.
        :raises ValueError: names the arguments.
        """
        twice = [f.name for f in fields(self) if getattr(self, f.name) != f.default]
        if "protocol" in twice and self.protocol == protocol:
            twice.remove("protocol")
        if twice:
            raise SettingError(
                f"{file} sets {', '.join(sorted(twice))} already: leave them out"
            )

    def provenance(self) -> dict[str, Any]:
        """What manifests say of how a split was made."""
        order = self.fixed_class_order
        listed = order if order is None or isinstance(order, str) else list(order)
        return {"order": listed, "seed": self.seed}


@dataclass(frozen=True, eq=False)
class Split:
    """Items of each experience of each stream."""

    protocol: Protocol
    groups: Groups
    """Categories of each experience, in order of learning."""
    streams: Mapping[str, list[list[Item]]]
    """Stream -> experiences -> items."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """How it was made: order, seed, shares; or the file it was read from."""

    def only(self, items: Iterable[Item]) -> Split:
        """The same split without items that are not among these.

        :param items: those to keep.
        """
        kept = {item.item_id for item in items}
        streams = {
            name: [[one for one in members if one.item_id in kept] for members in parts]
            for name, parts in self.streams.items()
        }
        return replace(self, streams=streams)

    def sizes(self) -> dict[str, list[int]]:
        """Stream -> items of each experience."""
        return {name: list(map(len, parts)) for name, parts in self.streams.items()}

    def window_counts(self) -> dict[str, list[int]]:
        """Stream -> windows of each experience."""
        return {
            name: [
                sum(int(self.protocol.keeps(item, group).sum()) for item in members)
                for members, group in zip(parts, self.groups, strict=True)
            ]
            for name, parts in self.streams.items()
        }


# --- Categories over experiences ------------------------------------------------------


def query_groups(
    label_ids: Sequence[int],
    *,
    n_experiences: int,
    per_exp_classes: Sequence[int] | None = None,
    fixed_class_order: str | Sequence[int] | None = None,
    seed: int | None = None,
) -> list[list[int]]:
    """Divide categories over experiences.

    :param label_ids: category ids, ascending: the fixed order.
    :param n_experiences: number of experiences; must divide the categories unless
        per_exp_classes is given.
    :param per_exp_classes: categories of each experience, summing up to all.
    :param fixed_class_order: ``None`` is the fixed order, or ``"queries"`` if a seed
        is given; ``"queries"`` shuffles categories, ``"groups"`` keeps the fixed
        groups and shuffles their order; a sequence lists all categories in order of
        learning.
    :param seed: seed of a shuffled order; a listed order takes none.
    :return: category ids of each experience.
    :raises ValueError: sizes or order do not fit; says what would.
    """
    order = fixed_class_order
    order = "queries" if order is None and seed is not None else order
    sizes = _sizes(len(label_ids), n_experiences, per_exp_classes)
    rng = np.random.default_rng(seed)
    ordered = list(label_ids)
    shuffle = order if isinstance(order, str) else None
    if shuffle is not None:
        if shuffle not in ("queries", "groups"):
            raise SettingError(
                "expected fixed_class_order 'queries', 'groups' or a list of ids but "
                f"got {order!r}"
            )
        if seed is None:
            raise SettingError(
                f"fixed_class_order {order!r} needs a seed: pass seed=0, 1, ..."
            )
    elif order is not None:
        ordered = _explicit_order(label_ids, order)
        if seed is not None:
            raise SettingError(f"a listed order is not shuffled: leave seed={seed} out")
    if shuffle == "queries":
        ordered = rng.permutation(ordered).tolist()
    ends = np.cumsum(sizes).tolist()
    groups = [ordered[end - size : end] for size, end in zip(sizes, ends, strict=True)]
    if shuffle == "groups":
        groups = [groups[i] for i in rng.permutation(len(groups)).tolist()]
    return groups


def _sizes(
    n_queries: int, n_experiences: int, sizes: Sequence[int] | None
) -> list[int]:
    if sizes is not None:
        if sum(sizes) != n_queries or min(sizes, default=0) < 1:
            raise SettingError(
                f"expected per_exp_classes of at least 1 that sum up to {n_queries} "
                f"but got {list(sizes)}"
            )
        return list(sizes)
    if not 1 <= n_experiences <= n_queries or n_queries % n_experiences:
        legal = [n for n in range(1, n_queries + 1) if n_queries % n == 0]
        raise SettingError(
            f"{n_queries} queries do not divide into {n_experiences} experiences: "
            f"choose n_experiences from {legal}, or pass per_exp_classes"
        )
    return [n_queries // n_experiences] * n_experiences


def _explicit_order(label_ids: Sequence[int], order: Sequence[int] | str) -> list[int]:
    ordered = [int(label_id) for label_id in order]
    if sorted(ordered) != sorted(label_ids):
        missing = sorted(set(label_ids) - set(ordered))
        unknown = sorted(set(ordered) - set(label_ids))
        raise SettingError(
            "expected fixed_class_order to list each category id once; "
            f"missing {missing}, unknown {unknown}"
        )
    return ordered


# --- Items over streams and experiences -----------------------------------------------


def divide(
    items: Sequence[Item],
    label_ids: Sequence[int],
    division: Division,
    rules: SplitRules,
) -> Split:
    """Divide items by a protocol, experiences being groups of categories.

    :param items: annotated items of train and val, in file order.
    :param label_ids: all categories, ascending.
    :param division: what the user asks for.
    :param rules: of the benchmark.
    :raises ValueError: sizes or order do not fit the categories.
    """
    groups = query_groups(
        label_ids,
        n_experiences=division.n_experiences,
        per_exp_classes=division.per_exp_classes,
        fixed_class_order=division.fixed_class_order,
        seed=division.seed,
    )
    split = split_items(
        items, groups, rules.protocol(division.protocol), division.valid_share
    )
    return replace(split, provenance={**division.provenance(), **split.provenance})


def split_items(
    items: Sequence[Item],
    groups: Groups,
    protocol: Protocol,
    valid_share: float | None = None,
) -> Split:
    """Divide items over streams and experiences.

    :param items: annotated items of train and val, in file order.
    :param groups: categories of each experience, in order of learning.
    :param protocol: the rule.
    :param valid_share: share of the training clips held out by parent video, in
        [0, 1); default the protocol's.
    :return: items in file order, unless the protocol orders them.
    :raises ValueError: the groups do not hold each category once.
    """
    share = protocol.valid_share if valid_share is None else valid_share
    _check_groups(items, groups)
    places = protocol.place(items, groups)
    held = _held_out(items, places, protocol, share)
    streams: dict[str, list[list[Item]]]
    streams = {name: [[] for _ in groups] for name in STREAMS}
    for item, experiences in zip(items, places, strict=True):
        is_held = item.video_id in held
        name = "test" if item.subset == "val" else "valid" if is_held else "train"
        for experience in experiences:
            streams[name][experience].append(item)
    if protocol.sort_key is not None:
        for members in chain(*streams.values()):
            members.sort(key=protocol.sort_key)
    return Split(protocol, groups, streams, {"valid_share": share})


def _check_groups(items: Iterable[Item], groups: Groups) -> None:
    listed = Counter(chain(*groups))
    known = set(chain.from_iterable(item.categories for item in items))
    missing = sorted(known - set(listed), key=str)
    twice = [category for category, count in listed.items() if count > 1]
    if missing or twice:
        raise ValueError(
            "expected groups to hold each category once but got "
            f"missing {missing[:10]}, twice {twice[:10]}"
        )


def _held_out(
    items: Sequence[Item],
    places: Sequence[Sequence[int]],
    protocol: Protocol,
    share: float,
) -> frozenset[str]:
    """Parent videos of the valid stream."""
    experience: dict[str, int] = {}
    for item, experiences in zip(items, places, strict=True):
        if experiences:
            experience[item.clip_id] = 0 if protocol.shares_clips else experiences[0]
    clips = whole_clips(item for item in items if item.subset == "train")
    placed = [clip for clip in clips if clip.clip_id in experience]
    chosen = [experience[clip.clip_id] for clip in placed]
    if not protocol.valid_of_each:
        return held_out_parents(placed, chosen, share)
    held: set[str] = set()
    for e in set(chosen):
        part = [
            replace(clip, categories=())
            for clip, experience_of_clip in zip(placed, chosen, strict=True)
            if experience_of_clip == e
        ]
        held |= held_out_parents(part, [e] * len(part), share)
    return frozenset(held)


def held_out_parents(
    clips: Sequence[Item], experiences: Sequence[int], share: float
) -> frozenset[str]:
    """Parent videos that make the valid stream, the same for every seed and order.

    Videos are taken by a hash of their uid until the share of clips is reached; one
    is left out where train would lose more than half, or the last, of the clips that
    have a category or belong to an experience. (The latter happens in tiny data only,
    where the order may then matter.)

    :param clips: whole clips of train.
    :param experiences: of each clip, -1 for none.
    :param share: share of clips to hold out, in [0, 1).
    :return: uids of the parents held out.
    """
    # One set a clip of what train must not run out of.
    by_parent: dict[str, list[set[tuple[str, Hashable]]]] = {}
    for clip, experience in zip(clips, experiences, strict=True):
        if experience >= 0:
            needs: set[tuple[str, Hashable]]
            needs = {("category", category) for category in clip.categories}
            needs.add(("experience", experience))
            by_parent.setdefault(clip.video_id, []).append(needs)
    left = Counter(chain(*chain(*by_parent.values())))
    wanted, taken = share * sum(map(len, by_parent.values())), 0
    held: set[str] = set()
    hashed = {parent: hashlib.sha256(parent.encode()).digest() for parent in by_parent}
    for parent in sorted(by_parent, key=hashed.__getitem__):
        n_clips = len(by_parent[parent])
        loss = Counter(chain(*by_parent[parent]))
        if taken + n_clips > wanted or any(
            left[need] - n < max(1, 0.5 * left[need]) for need, n in loss.items()
        ):
            continue
        left.subtract(loss)
        held.add(parent)
        taken += n_clips
    return frozenset(held)


def check_training(split: Split, rules: SplitRules, file: Path) -> None:
    """Refuse a split with an experience that has nothing to train on.

    :param split: a split.
    :param rules: of the benchmark.
    :param file: the train file, for errors.
    :raises DataError: names the experiences.
    """
    empty = [e for e, members in enumerate(split.streams["train"]) if not members]
    if empty:
        problem = f"no training {rules.noun} in experiences {empty}"
        raise DataError(file, problem, hint=rules.empty_hint)


def count_split(
    items: Iterable[Item], split: Split, rules: SplitRules, report: DataReport
) -> None:
    """Count what a split keeps of the items, and why it leaves the rest.

    :param items: all items that could have a place.
    :param split: where they are.
    :param rules: of the benchmark.
    :param report: where to count, as stage ``protocol <name>``.
    """
    stage = f"protocol {split.protocol.name}"
    tallies = [report.stage(stage, unit) for unit in rules.units]
    clips = report.stage(stage, "clips")
    places: dict[str, list[int]] = {}
    placed: set[str] = set()
    for parts in split.streams.values():
        for experience, members in enumerate(parts):
            for item in members:
                places.setdefault(item.item_id, []).append(experience)
                placed.add(item.clip_id)
    unplaced = set()
    for item in items:
        experiences, has_place = places.get(item.item_id, []), item.clip_id in placed
        losses = split.protocol.losses(
            item, experiences, split.groups, has_place=has_place
        )
        for tally in tallies:
            tally.kept += len(item.categories) - sum(losses.values())
            for reason, count in losses.items():
                tally.reject(reason, count)
        if not has_place:
            unplaced.add(item.clip_id)
    clips.kept = len(placed)
    clips.reject("no place in an experience that asks for it", len(unplaced))
    _note_streams(split, rules, report)


def _note_streams(split: Split, rules: SplitRules, report: DataReport) -> None:
    stage = f"protocol {split.protocol.name}"
    counts = split.window_counts()
    for name, parts in split.streams.items():
        clips = report.stage(stage, "clips")
        report.stage(stage, rules.units[0]).note(f"in stream {name}", sum(counts[name]))
        clips.note(f"in stream {name}", len({item.clip_id for item in chain(*parts)}))
        if rules.repeats_items(split.protocol):
            clips.note(f"samples in stream {name}", sum(map(len, parts)))


# --- Class-balanced buffers -----------------------------------------------------------


def balancing_targets(asked: Sequence[Sequence[int]]) -> list[int]:
    """One query for each sample, the integer that class-balanced buffers group by.

    Stock LwF and CWR* take these integers for output channels, so as many queries
    as can be are the target of some sample: a maximum matching first, and the rarest
    query for the samples that it leaves.

    :param asked: for each sample the class indices that have a window in it, not
        empty.
    :return: one of them for each sample.
    """
    counts = Counter(index for indices in asked for index in indices)
    targets = [min(indices, key=lambda c: (counts[c], c)) for indices in asked]
    if not counts:
        return targets
    rows = [row for row, indices in enumerate(asked) for _ in indices]
    columns = [index for indices in asked for index in indices]
    shape = (len(asked), max(columns) + 1)
    graph = csr_array((np.ones(len(rows)), (rows, columns)), shape=shape)
    matched = maximum_bipartite_matching(graph, perm_type="column")
    for row, index in enumerate(matched):
        if index >= 0:
            targets[row] = int(index)
    return targets
