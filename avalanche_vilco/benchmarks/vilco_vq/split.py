"""Query sets as items, and the protocols."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from avalanche_vilco.benchmarks.items import Item, query_items
from avalanche_vilco.benchmarks.manifest import (
    Category,
    Pinned,
    check_source_files,
    follow_manifest,
)
from avalanche_vilco.benchmarks.protocols import (
    Groups,
    Protocol,
    place_by_category,
    place_exclusively,
    protocol_table,
)
from avalanche_vilco.benchmarks.sources import DataFiles
from avalanche_vilco.benchmarks.split import Division, Split, SplitRules, split_items
from avalanche_vilco.benchmarks.vilco_vq.annotations import (
    VisualClip,
    VisualQuery,
    title_key,
)
from avalanche_vilco.benchmarks.vilco_vq.title_groups import (
    N_EXPERIENCES,
    balanced_assignment,
    title_groups,
)
from avalanche_vilco.core.errors import SettingError
from avalanche_vilco.core.report import DataReport


def _assign_clips(clips: Sequence[Item], groups: Groups) -> NDArray[np.int64]:
    """Give each clip to one experience, so that most queries are kept."""
    experience = {title: e for e, group in enumerate(groups) for title in group}
    asked = np.zeros((len(clips), len(groups)))
    for row, clip in enumerate(clips):
        for title in clip.categories:
            asked[row, experience[title]] += 1
    return balanced_assignment(asked)


def _lost_queries(
    item: Item, experiences: Sequence[int], groups: Groups, *, has_place: bool
) -> dict[str, int]:
    reason = "its title is of another experience than the clip"
    if not has_place:
        reason = "the clip has no place in a balanced split"
    return {reason: int(not experiences)}


def _unlisted_queries(
    item: Item, experiences: Sequence[int], groups: Groups, *, has_place: bool
) -> dict[str, int]:
    return {"not in the manifest": int(not experiences)}


# Titles do not hold a video back from valid: an object is told by its crop, and most
# titles are in few clips.
VQ_PROTOCOLS = protocol_table(
    Protocol(
        name="exclusive",
        place=place_exclusively(_assign_clips),
        valid_of_each=True,
        losses=_lost_queries,
    ),
    Protocol(
        name="shared_clips",
        place=place_by_category,
        shares_clips=True,
        valid_of_each=True,
        losses=_lost_queries,
    ),
    # What a public pickle holds; it cannot be made here, because the script that makes
    # it gives another split each time, in which some clips are in two experiences.
    Protocol(
        name="reference",
        place=place_by_category,
        shares_clips=True,
        valid_share=0.0,
    ),
)
"""Protocols by name."""

VQ_RULES = SplitRules(
    benchmark="vilco_vq",
    protocols=VQ_PROTOCOLS,
    noun="queries",
    units=("query sets",),
    key=lambda label_id, name: title_key(name),
    empty_hint="choose fewer experiences; are videos missing?",
)


@dataclass(frozen=True, kw_only=True)
class VQDivision(Division):
    """How queries are divided; titles are the categories."""

    n_experiences: int = N_EXPERIENCES
    seed: int | None = 0
    grouping: str = "together"
    """See :func:`~avalanche_vilco.benchmarks.vilco_vq.title_groups.title_groups`."""

    def group_order(self) -> list[int]:
        """Groups in order of learning.

        :raises ValueError: the order is not one of the groups.
        """
        order, numbers = self.fixed_class_order, range(self.n_experiences)
        if order is None:
            return list(numbers)
        if order == "groups":
            return np.random.default_rng(self.seed).permutation(numbers).tolist()
        if isinstance(order, str) or sorted(order) != list(numbers):
            raise SettingError(
                "expected fixed_class_order 'groups' or each of "
                f"0..{self.n_experiences - 1} once but got {order!r}"
            )
        return list(order)

    def provenance(self) -> dict[str, Any]:
        """What manifests say of how a split was made."""
        return {**super().provenance(), "grouping": self.grouping}


def title_items(
    queries: Iterable[VisualQuery], clips: Mapping[str, VisualClip]
) -> list[Item]:
    """Query sets as items; the key of the title is the only category.

    :param queries: annotated queries of train and val.
    :param clips: their clips.
    """
    return query_items(queries, clips, lambda query: (query.title_key,))


def divide_queries(items: Sequence[Item], division: VQDivision) -> Split:
    """Divide queries over streams and experiences.

    :param items: queries of train and val, in file order.
    :param division: what the user asks for.
    :raises ValueError: the protocol cannot be made here, or the division does not fit
        the titles.
    """
    protocol = VQ_RULES.protocol(division.protocol)
    if protocol.name == "reference":
        raise SettingError("protocol 'reference' comes from the public pickle alone")
    order = division.group_order()
    groups = title_groups(
        items,
        n_experiences=division.n_experiences,
        seed=division.seed or 0,
        grouping=division.grouping,
    )
    split = split_items(
        items, [groups[i] for i in order], protocol, division.valid_share
    )
    of_val_alone = len(titles_of(items, "val") - titles_of(items, "train"))
    counts = {"titles_of_val_alone": of_val_alone} if of_val_alone else {}
    provenance = {**division.provenance(), **split.provenance, **counts}
    return replace(split, provenance=provenance)


def follow_queries(items: Sequence[Item], pinned: Pinned, files: DataFiles) -> Split:
    """The split that a manifest names.

    :param items: queries of train and val.
    :param pinned: a valid manifest.
    :param files: what was read.
    :raises DataError: the manifest is of other data.
    """
    check_source_files(pinned, files.report.files, files.paths)
    split = follow_manifest(pinned, items, VQ_RULES)
    return replace(split, protocol=replace(split.protocol, losses=_unlisted_queries))


def titles_of(items: Iterable[Item], subset: str) -> set[Any]:
    """Titles that queries of a subset ask for.

    :param items: queries of train and val.
    :param subset: ``"train"`` or ``"val"``.
    """
    return {title for i in items if i.subset == subset for title in i.categories}


def count_titles(items: Sequence[Item], split: Split, report: DataReport) -> None:
    """Count titles that are in val alone, which no training query asks for.

    :param items: queries of train and val.
    :param split: where they are.
    :param report: where to count, as stage ``titles``.
    """
    taught = titles_of(items, "train")
    unknown = set(chain(*split.groups)) - taught
    if not unknown:
        return
    tally = report.stage("titles", "titles")
    tally.kept = len(taught)
    tally.change(
        "in val alone: never taught, divided after those of train", len(unknown)
    )
    asked = [i for i in chain(*split.streams["test"]) if unknown & {*i.categories}]
    tally.note("queries of stream test that ask for a title of val alone", len(asked))


def title_categories(groups: Groups, taught: Collection[Any]) -> dict[Any, Category]:
    """Titles as a manifest has them, with numbers in alphabetical order.

    :param groups: titles of each experience.
    :param taught: titles of train, which come before the others.
    """
    titles = sorted(chain(*groups), key=lambda title: (title not in taught, title))
    return {title: Category(i, title) for i, title in enumerate(titles)}
