"""Groups of object titles, which experiences ask for.

The public split script is not reproducible: its shuffle has no seed and the order that
it shuffles depends on the hash seed of the process. Here the groups follow from a seed,
and a manifest pins a split down.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import csr_array, vstack
from sklearn.cluster import SpectralCoclustering

from avalanche_vilco.benchmarks.items import Item, whole_clips
from avalanche_vilco.benchmarks.protocols import BALANCE_SLACK
from avalanche_vilco.core.errors import SettingError
from avalanche_vilco.core.random import seeded_stream

N_EXPERIENCES = 5
GROUPINGS = ("together", "shuffled")

_ROUNDS = 20
_TIE = 1e-3


def title_groups(
    items: Sequence[Item],
    *,
    n_experiences: int = N_EXPERIENCES,
    seed: int = 0,
    grouping: str = "together",
) -> list[list[str]]:
    """Divide object titles over experiences.

    One seed gives one division; between versions of SciPy and scikit-learn
    ``"together"`` may differ, so that a published result needs its manifest.

    Titles of train are divided by train alone, so that nothing in val changes what is
    trained on. Titles that are in val alone are then divided by themselves, each group
    getting its part, with ``"together"`` to where most of the val clips are that ask
    for them. Each group has equal numbers of both kinds up to one.

    :param items: queries of train and val, with the key of the title as category.
    :param n_experiences: number of groups.
    :param seed: of the shuffle.
    :param grouping: ``"shuffled"`` deals titles at random, frequent ones first;
        ``"together"`` puts titles together that are asked for in the same clips, so
        that more queries are left when each clip has one experience.
    :return: titles of each experience, those of train before those of val alone, both
        in alphabetical order.
    :raises ValueError: no such grouping, or fewer titles in train than experiences.
    """
    if grouping not in GROUPINGS:
        raise ValueError(f"expected grouping in {list(GROUPINGS)} but got {grouping!r}")
    clips = whole_clips(items)
    train, val = (
        _Table.of([clip for clip in clips if clip.subset == subset])
        for subset in ("train", "val")
    )
    n_titles = len(train.titles)
    if not 1 <= n_experiences <= n_titles:
        raise SettingError(
            f"expected n_experiences in 1..{n_titles}, the number of titles in train, "
            f"but got {n_experiences}"
        )
    grouped = partial(_grouped_titles, n=n_experiences, seed=seed, grouping=grouping)
    known = grouped(train, {})
    everything = {**known, **grouped(val, known)}
    groups: list[list[str]] = [[] for _ in range(n_experiences)]
    for title, group in everything.items():
        groups[group].append(title)
    return groups


@dataclass(frozen=True, eq=False)
class _Table:
    """How often each title is asked in each clip of a subset."""

    titles: list[str]
    """In alphabetical order."""
    counts: csr_array
    """(clips, titles) queries."""

    @staticmethod
    def of(clips: Sequence[Item]) -> _Table:
        titles = sorted({str(title) for clip in clips for title in clip.categories})
        column = {title: i for i, title in enumerate(titles)}
        rows = [row for row, clip in enumerate(clips) for _ in clip.categories]
        columns = [column[str(title)] for clip in clips for title in clip.categories]
        shape = (len(clips), len(titles))
        return _Table(titles, csr_array((np.ones(len(rows)), (rows, columns)), shape))


def _grouped_titles(
    table: _Table, known: Mapping[str, int], *, n: int, seed: int, grouping: str
) -> dict[str, int]:
    """Group of each title of a subset that has none yet, in alphabetical order.

    :param known: groups that stay.
    """
    held = np.array([known.get(title, -1) for title in table.titles], dtype=np.int64)
    free = np.flatnonzero(held < 0)
    if not len(free):
        return {}
    group = _dealt_titles(table, held, free, n, seeded_stream(seed, bool(known)))
    # One group holds all titles; the clustering wants two at least.
    if grouping == "together" and n > 1:
        starts = [group]
        if not known and min(table.counts.shape) > n:
            clustering = SpectralCoclustering(n, random_state=seed)
            rows = clustering.fit(table.counts).row_labels_
            starts.append(_near_clips(table, rows, group, free, n))
        found = [_gathered_titles(table, start, free, n) for start in starts]
        group = max(found, key=lambda one: one[1])[0]
    return {table.titles[i]: int(group[i]) for i in free}


def _dealt_titles(
    table: _Table,
    held: NDArray[np.int64],
    free: NDArray[np.int64],
    n_groups: int,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """(titles,) group of each; each round of dealing goes round the groups anew."""
    group = held.copy()
    frequency = np.asarray(table.counts.sum(axis=0)).ravel()
    titles = rng.permutation(free)
    titles = titles[np.argsort(-frequency[titles], kind="stable")]
    rounds = -(-len(titles) // n_groups)
    dealt = [rng.permutation(n_groups) for _ in range(rounds)]
    group[titles] = np.concatenate(dealt)[: len(titles)]
    return group


def _gathered_titles(
    table: _Table, group: NDArray[np.int64], free: NDArray[np.int64], n_groups: int
) -> tuple[NDArray[np.int64], float]:
    """Give clips to groups, and free titles to where their clips are, in turn.

    That goes on as long as more queries are kept.

    :return: (titles,) group of each, and how many queries are kept.
    """
    best, kept = group, -1.0
    for _ in range(_ROUNDS):
        # (clips, groups) queries of each clip that each group asks.
        asked = np.asarray(table.counts @ _one_hot(group, n_groups))
        chosen = balanced_assignment(asked)
        now = float(asked[np.arange(len(chosen)), chosen][chosen >= 0].sum())
        if now <= kept:
            break
        best, kept = group, now
        group = _near_clips(table, chosen, group, free, n_groups)
    return best, kept


def _near_clips(
    table: _Table,
    chosen: NDArray[np.int64],
    group: NDArray[np.int64],
    free: NDArray[np.int64],
    n_groups: int,
) -> NDArray[np.int64]:
    """(titles,) group of each: where most of the clips are that ask for it.

    Groups get equal numbers of free titles; the others stay.

    :param chosen: (clips,) group of each clip, -1 for none.
    :param group: (titles,) group so far; it stays where it makes no difference.
    """
    near = table.counts.T @ _one_hot(chosen, n_groups)
    near[np.arange(len(group)), group] += _TIE
    moved = group.copy()
    moved[free] = _best_columns(1 + near[free], -(-len(free) // n_groups))
    return moved


def _one_hot(group: NDArray[np.int64], n_groups: int) -> NDArray[np.float64]:
    return (group[:, None] == np.arange(n_groups)).astype(np.float64)


def balanced_assignment(asked: NDArray[np.float64]) -> NDArray[np.int64]:
    """Give each clip to one experience, so that most queries are kept.

    An experience gets at most 1.5 times its share of the clips
    (:data:`~avalanche_vilco.benchmarks.protocols.BALANCE_SLACK`), and at least its
    share divided by that where as many clips ask for its titles; never one that it
    asks nothing of.

    :param asked: (clips, experiences) queries of each clip that each experience asks.
    :return: (clips,) experience, -1 for none.
    """
    n_clips, n_groups = asked.shape
    if not n_clips:
        return np.empty(0, dtype=np.int64)
    most = int(np.ceil(BALANCE_SLACK * n_clips / n_groups))
    least = max(1, int(n_clips / n_groups / BALANCE_SLACK))
    return _best_columns(asked, most, least)


def _best_columns(
    gains: NDArray[np.float64], most: int, least: int = 0
) -> NDArray[np.int64]:
    """Column of each row, -1 for none, of greatest total gain.

    Cells without gain are not taken. Each column has ``least`` to ``most`` rows, or,
    where that cannot be, 0 to ``most``. The linear program has whole solutions, as all
    transport problems do.
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
        return _best_columns(gains, most)
    share = solved.x.reshape(n_rows, n_columns)
    column = share.argmax(axis=1)
    return np.where(share[np.arange(n_rows), column] > 0.5, column, -1)
