"""Groups of object titles, which experiences ask for.

The public split script is not reproducible: its shuffle has no seed and the order that
it shuffles depends on the hash seed of the process. Here the groups follow from a seed,
and a manifest pins a split down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import csr_array, vstack
from sklearn.cluster import SpectralCoclustering

from avalanche_vilco.benchmarks.items import Item, whole_clips
from avalanche_vilco.benchmarks.protocols import BALANCE_SLACK

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

    Titles of train and val, of train alone and of val alone are divided each by
    themselves, so that every experience has its part of all three, and equal numbers
    of titles up to one of each kind.

    :param items: queries of train and val, with the key of the title as category.
    :param n_experiences: number of groups.
    :param seed: of the shuffle.
    :param grouping: ``"shuffled"`` deals titles at random, frequent ones first;
        ``"together"`` puts titles together that are asked for in the same clips, so
        that more queries are left when each clip has one experience.
    :return: titles of each experience, in alphabetical order.
    :raises ValueError: no such grouping, or fewer titles than experiences.
    """
    if grouping not in GROUPINGS:
        raise ValueError(f"expected grouping in {list(GROUPINGS)} but got {grouping!r}")
    table = _Table.of(items)
    if not 1 <= n_experiences <= len(table.titles):
        raise ValueError(
            f"expected n_experiences in 1..{len(table.titles)}, the number of titles, "
            f"but got {n_experiences}"
        )
    group = _dealt_titles(table, n_experiences, np.random.default_rng(seed))
    # One group holds all titles; the clustering wants two at least.
    if grouping == "together" and n_experiences > 1:
        starts = [group]
        if min(table.counts.shape) > n_experiences:
            clustering = SpectralCoclustering(n_experiences, random_state=seed)
            rows = clustering.fit(table.counts).row_labels_
            starts.append(_near_clips(table, rows, group, n_experiences))
        found = [_gathered_titles(table, start, n_experiences) for start in starts]
        group = max(found, key=lambda one: one[1])[0]
    return [
        [table.titles[i] for i in np.flatnonzero(group == g)]
        for g in range(n_experiences)
    ]


@dataclass(frozen=True, eq=False)
class _Table:
    """How often each title is asked in each clip."""

    titles: list[str]
    """In alphabetical order."""
    kinds: NDArray[np.int64]
    """(titles,) 0 for titles of both subsets, 1 of train alone, 2 of val alone."""
    counts: csr_array
    """(clips, titles) queries; train clips first."""
    n_train: int

    @staticmethod
    def of(items: Sequence[Item]) -> _Table:
        clips = sorted(whole_clips(items), key=lambda clip: clip.subset != "train")
        titles = sorted({str(title) for clip in clips for title in clip.categories})
        column = {title: i for i, title in enumerate(titles)}
        rows = [row for row, clip in enumerate(clips) for _ in clip.categories]
        columns = [column[str(title)] for clip in clips for title in clip.categories]
        shape = (len(clips), len(titles))
        counts = csr_array((np.ones(len(rows)), (rows, columns)), shape=shape)
        n_train = sum(clip.subset == "train" for clip in clips)
        in_train, in_val = (
            np.asarray(part.sum(axis=0)).ravel() > 0
            for part in (counts[:n_train], counts[n_train:])
        )
        kinds = np.where(in_train & in_val, 0, np.where(in_train, 1, 2))
        return _Table(titles, kinds, counts, n_train)


def _dealt_titles(
    table: _Table, n_groups: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """(titles,) group of each; each round of dealing goes round the groups anew."""
    group = np.full(len(table.titles), -1, dtype=np.int64)
    frequency = np.asarray(table.counts.sum(axis=0)).ravel()
    for kind in range(3):
        titles = rng.permutation(np.flatnonzero(table.kinds == kind))
        titles = titles[np.argsort(-frequency[titles], kind="stable")]
        rounds = -(-len(titles) // n_groups)
        dealt = [rng.permutation(n_groups) for _ in range(rounds)]
        if dealt:
            group[titles] = np.concatenate(dealt)[: len(titles)]
    return group


def _gathered_titles(
    table: _Table, group: NDArray[np.int64], n_groups: int
) -> tuple[NDArray[np.int64], float]:
    """Give clips to groups, and titles to where their clips are, in turn.

    That goes on as long as more queries are kept.

    :return: (titles,) group of each, and how many queries are kept.
    """
    best, kept = group, -1.0
    for _ in range(_ROUNDS):
        # (clips, groups) queries of each clip that each group asks.
        asked = np.asarray(table.counts @ _one_hot(group, n_groups))
        parts = asked[: table.n_train], asked[table.n_train :]
        chosen = np.concatenate([balanced_assignment(part) for part in parts])
        now = float(asked[np.arange(len(chosen)), chosen][chosen >= 0].sum())
        if now <= kept:
            break
        best, kept = group, now
        group = _near_clips(table, chosen, group, n_groups)
    return best, kept


def _near_clips(
    table: _Table,
    chosen: NDArray[np.int64],
    group: NDArray[np.int64],
    n_groups: int,
) -> NDArray[np.int64]:
    """(titles,) group of each: where most of the clips are that ask for it.

    Groups get equal numbers of titles of each kind.

    :param chosen: (clips,) group of each clip, -1 for none.
    :param group: (titles,) group so far; it stays where it makes no difference.
    """
    near = table.counts.T @ _one_hot(chosen, n_groups)
    near[np.arange(len(group)), group] += _TIE
    moved = group.copy()
    for kind in range(3):
        titles = np.flatnonzero(table.kinds == kind)
        if len(titles):
            most = -(-len(titles) // n_groups)
            moved[titles] = _best_columns(1 + near[titles], most)
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
