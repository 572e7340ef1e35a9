"""The task matrix ``p[i, j]`` and every continual number that follows from it.

``p[i, j]`` is the score on task ``j`` after training task ``i``: rows are time.
Indices start at 0, scores are in [0, 1] and higher is better. All numbers here are
percentages only in :meth:`TaskMatrix.to_text`.
"""

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from avalanche_vilco.core.tables import percent

ORIENTATION = (
    "p[i][j]: row i = after training experience i, column j = evaluated on experience j"
)

Weights = Literal["plain", "cumulative"] | Sequence[float] | NDArray[np.float64]

Number = Literal[
    "average",
    "backward_forgetting",
    "maximum_forgetting",
    "forward_transfer",
    "grand_average",
    "last",
    "transfer",
    "retention",
]

_OF_WHOLE = ("forward_transfer", "grand_average", "last", "transfer", "retention")

_Cells = list[tuple[int, int]]

# Row of a cell that holds the score before any training.
BASELINE = -1

# Column of a reason that is not one of a cell.
NO_TASK = -1


class TaskMatrix:
    """Scores on every task after training every task.

    A cell is NaN until recorded; :meth:`why` tells for each NaN cell what is
    missing. A number derived from a cell that is NaN is NaN, except that a task
    excluded with :meth:`exclude` takes no part in any mean.

    >>> matrix = TaskMatrix(2)
    >>> matrix.record(0, 0, 0.9)
    >>> matrix.record(1, 0, 0.6)
    >>> matrix.record(1, 1, 0.8)
    >>> round(matrix.average(), 3), round(matrix.backward_forgetting(), 3)
    (0.7, 0.3)

    :param n_experiences: number of tasks, rows and columns, >= 1.
    :raises ValueError: if ``n_experiences`` is below 1.
    """

    def __init__(self, n_experiences: int) -> None:
        if n_experiences < 1:
            raise ValueError(f"expected n_experiences >= 1 but got {n_experiences}")
        shape = (n_experiences, n_experiences)
        self._p: NDArray[np.float64] = np.full(shape, np.nan)
        self._baseline: NDArray[np.float64] = np.full(n_experiences, np.nan)
        self._reasons: dict[tuple[int, int], str] = {}
        self._excluded: dict[int, str] = {}

    @property
    def n_experiences(self) -> int:
        """Number of tasks."""
        return len(self._p)

    @property
    def values(self) -> NDArray[np.float64]:
        """Copy of the scores, ``(n_experiences, n_experiences)``, rows are time."""
        return self._p.copy()

    @property
    def baseline(self) -> NDArray[np.float64]:
        """Copy of the scores before any training, ``(n_experiences,)``."""
        return self._baseline.copy()

    @property
    def last_row(self) -> int | None:
        """Last row that holds a score, None if there is none."""
        rows = np.flatnonzero(~np.isnan(self._p).all(axis=1))
        return int(rows[-1]) if rows.size else None

    @property
    def excluded(self) -> dict[int, str]:
        """Tasks that take no part in any mean, with the reason."""
        return dict(self._excluded)

    def __getitem__(self, cell: tuple[int, int]) -> float:
        self._check_cell(*cell)
        return float(self._p[cell])

    def record(self, i: int, j: int, value: float) -> None:
        """Set the score on task j after training task i.

        :param i: task trained last.
        :param j: task evaluated.
        :param value: score in [0, 1].
        :raises IndexError: if there is no such task.
        :raises ValueError: if the score is outside [0, 1] or NaN.
        """
        self._check_cell(i, j)
        _check_score(f"p[{i}, {j}]", value)
        self._p[i, j] = value
        self._reasons.pop((i, j), None)
        self._excluded.pop(j, None)

    def record_baseline(self, j: int, value: float) -> None:
        """Set the score on task j before any training, for forward transfer.

        :param j: task evaluated.
        :param value: score in [0, 1].
        :raises IndexError: if there is no such task.
        :raises ValueError: if the score is outside [0, 1] or NaN.
        """
        self._check_cell(j, j)
        _check_score(f"a baseline[{j}]", value)
        self._baseline[j] = value

    def leave_empty(self, i: int, j: int, reason: str) -> None:
        """Say why there is no score on task j after training task i.

        :param i: task trained last.
        :param j: task evaluated.
        :param reason: shown to whoever asks for the cell.
        :raises IndexError: if there is no such task.
        """
        self._check_cell(i, j)
        self._p[i, j] = np.nan
        self._reasons[i, j] = reason

    def clear_row(self, i: int) -> None:
        """Forget what was recorded after training task i.

        :param i: task trained again.
        :raises IndexError: if there is no such task.
        """
        self._check_cell(i, 0)
        self._p[i] = np.nan
        self._reasons = {
            cell: why for cell, why in self._reasons.items() if cell[0] != i
        }

    def exclude(self, j: int, reason: str) -> None:
        """Take a task that cannot have scores, such as an empty one, out of all means.

        Recording a score on the task takes it in again.

        :param j: task.
        :param reason: shown to whoever asks for its cells.
        :raises IndexError: if there is no such task.
        """
        self._check_cell(j, j)
        self._p[:, j] = np.nan
        self._excluded[j] = reason

    def why(self, i: int, j: int) -> str | None:
        """Reason why a cell is NaN, None if it holds a score.

        :param i: task trained last.
        :param j: task evaluated.
        :return: the reason.
        :raises IndexError: if there is no such task.
        """
        self._check_cell(i, j)
        if not np.isnan(self._p[i, j]):
            return None
        never = f"experience {j} was not evaluated after training experience {i}"
        return self._excluded.get(j) or self._reasons.get((i, j), never)

    def missing(
        self, i: int | None = None, *, number: Number | None = None
    ) -> dict[tuple[int, int], str]:
        """NaN cells that keep a number of row i from being computed.

        :param i: row; the last one with a score by default. The numbers of the whole
            matrix do not depend on it.
        :param number: the number, by the name of its method; average and backward
            forgetting by default.
        :return: reason by cell (i, j), with row -1 for scores before any training and
            column -1 where no task is left to take the mean over, as for backward
            forgetting in row 0; empty if the number can be computed.
        :raises IndexError: if there is no such row.
        :raises ValueError: if there is no such number.
        """
        row = self._row(i)
        if row < 0:
            return {(0, 0): "no score has been recorded"}
        names: tuple[Number, ...] = ("backward_forgetting", "average")
        reasons: dict[tuple[int, int], str | None] = {}
        for name in names if number is None else (number,):
            needed = self._needed(name, row)
            reasons.update({cell: self._why(cell) for cell in needed})
            if not needed:
                where = "" if name in _OF_WHOLE else f" in row {row}"
                left_out = "".join(
                    f"; {j} is left out: {why}" for j, why in self._excluded.items()
                )
                reasons[row, NO_TASK] = (
                    f"no experience counts for {name}{where}{left_out}"
                )
        return {cell: why for cell, why in reasons.items() if why is not None}

    def average(self, i: int | None = None, *, weights: Weights = "plain") -> float:
        """Average score on the tasks learnt so far, P_i = mean over j <= i of p[i, j].

        :param i: row; the last one with a score by default.
        :param weights: "plain" for equal weights, "cumulative" for weights 1, 2, 3,
            ... (the public code weighs a task by the queries seen when it was learnt;
            this is the case of equally many a task), or one number >= 0 per task.
        :return: score in [0, 1], NaN if a cell is missing.
        :raises IndexError: if there is no such row.
        :raises ValueError: if the weights do not fit.
        """
        row = self._row(i)
        return self._mean(self._p[row], self._tasks(row + 1), weights)

    def backward_forgetting(
        self, i: int | None = None, *, weights: Weights = "plain"
    ) -> float:
        """Score lost on earlier tasks, BwF_i = mean over j < i of p[j, j] - p[i, j].

        Positive means forgotten, negative means that learning later tasks helped.

        :param i: row; the last one with a score by default.
        :param weights: as in :meth:`average`.
        :return: difference in [-1, 1]; NaN if a cell is missing and in row 0, where
            there is no earlier task.
        :raises IndexError: if there is no such row.
        :raises ValueError: if the weights do not fit.
        """
        row = self._row(i)
        drops = np.diagonal(self._p) - self._p[row]
        return self._mean(drops, self._tasks(row), weights)

    def backward_transfer(
        self, i: int | None = None, *, weights: Weights = "plain"
    ) -> float:
        """Backward transfer, BWT_i = -BwF_i.

        :param i: row; the last one with a score by default.
        :param weights: as in :meth:`average`.
        :return: difference in [-1, 1], NaN where :meth:`backward_forgetting` is.
        """
        return 0.0 - self.backward_forgetting(i, weights=weights)

    def maximum_forgetting(
        self, i: int | None = None, *, weights: Weights = "plain"
    ) -> float:
        """Score lost on earlier tasks since its best.

        Mean over j < i of max over j <= l < i of p[l, j] - p[i, j].

        :param i: row; the last one with a score by default.
        :param weights: as in :meth:`average`.
        :return: difference in [-1, 1], at least backward forgetting; NaN if a cell is
            missing and in row 0.
        :raises IndexError: if there is no such row.
        :raises ValueError: if the weights do not fit.
        """
        row = self._row(i)
        drops = np.full(self.n_experiences, np.nan)
        for j in range(row):
            # Cells that are NaN spoil the maximum, as they should.
            drops[j] = self._p[j:row, j].max() - self._p[row, j]
        return self._mean(drops, self._tasks(row), weights)

    def forward_transfer(self, *, weights: Weights = "plain") -> float:
        """What earlier tasks add before a task is learnt.

        Mean over j >= 1 of p[j-1, j] - baseline[j]. It takes an evaluation before any
        training: :meth:`record_baseline`.

        :param weights: as in :meth:`average`.
        :return: difference in [-1, 1]; NaN if a cell or a baseline is missing and with
            one task.
        :raises ValueError: if the weights do not fit.
        """
        gains = np.full(self.n_experiences, np.nan)
        gains[1:] = np.diagonal(self._p, offset=1) - self._baseline[1:]
        tasks = [j for j in self._tasks(self.n_experiences) if j > 0]
        return self._mean(gains, tasks, weights)

    def grand_average(self) -> float:
        """Mean of the whole matrix, "Avg" of open-domain continual learning.

        :return: score in [0, 1], NaN if a cell is missing.
        """
        return self._mean_of_columns(lambda column, j: column)

    def last(self) -> float:
        """Mean of the last row, "Last" of open-domain continual learning.

        :return: score in [0, 1], NaN if a cell is missing.
        """
        return self._mean_of_columns(lambda column, j: column[-1:])

    def transfer(self) -> float:
        """Zero-shot score on tasks not learnt yet, "Transfer" of open-domain learning.

        Mean over j >= 1 of the mean over i < j of p[i, j]; the first task has none.

        :return: score in [0, 1]; NaN if a cell is missing and with one task.
        """
        return self._mean_of_columns(lambda column, j: column[:j], start=1)

    def retention(self) -> float:
        """Mean over tasks of the mean score from learning on, higher is better.

        Open-domain continual learning calls it "Forgetting", though nothing is
        subtracted: mean over j of the mean over i >= j of p[i, j].

        :return: score in [0, 1], NaN if a cell is missing.
        """
        return self._mean_of_columns(lambda column, j: column[j:])

    def vclimb(self, *, weights: Weights = "plain") -> dict[str, float]:
        """The two numbers of vCLIMB after the last row with a score.

        :param weights: "plain" for the formulas of the paper; its code weighs tasks by
            their number of classes, to be given here.
        :return: "Acc", which is :meth:`average`, and "BWF", which is
            :meth:`backward_forgetting`.
        """
        return {
            "Acc": self.average(weights=weights),
            "BWF": self.backward_forgetting(weights=weights),
        }

    def open_domain(self) -> dict[str, float]:
        """The numbers of open-domain continual learning, all tasks weighing the same.

        :return: "Avg", "Last", "Transfer" and "Retention".
        """
        return {
            "Avg": self.grand_average(),
            "Last": self.last(),
            "Transfer": self.transfer(),
            "Retention": self.retention(),
        }

    def to_dict(self) -> dict[str, Any]:
        """Everything in the matrix as JSON types, NaN as null.

        :return: what :meth:`from_dict` reads.
        """
        return {
            "orientation": ORIENTATION,
            "n_experiences": self.n_experiences,
            "p": [[number_or_none(value) for value in row] for row in self._p.tolist()],
            "baseline": [number_or_none(value) for value in self._baseline.tolist()],
            "empty": [
                {"i": i, "j": j, "reason": reason}
                for (i, j), reason in sorted(self._reasons.items())
            ],
            "excluded": [
                {"j": j, "reason": reason}
                for j, reason in sorted(self._excluded.items())
            ],
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "TaskMatrix":
        """Build a matrix from what :meth:`to_dict` gave.

        :param content: the dictionary, possibly through JSON.
        :return: an equal matrix.
        :raises ValueError: if the orientation is another one, the matrix is not
            square or a score is out of range.
        """
        if content["orientation"] != ORIENTATION:
            raise ValueError(
                f"expected orientation {ORIENTATION!r} but got "
                f"{content['orientation']!r}"
            )
        rows = content["p"]
        matrix = cls(content["n_experiences"])
        if [len(row) for row in rows] != [matrix.n_experiences] * matrix.n_experiences:
            raise ValueError(
                f"expected {matrix.n_experiences} rows of {matrix.n_experiences} "
                f"scores but got rows of {[len(row) for row in rows]}"
            )
        for cell, value in np.ndenumerate(np.array(rows, dtype=np.float64)):
            if not np.isnan(value):
                matrix.record(cell[0], cell[1], float(value))
        for j, value in enumerate(content.get("baseline", [])):
            if value is not None:
                matrix.record_baseline(j, float(value))
        for entry in content["empty"]:
            matrix.leave_empty(entry["i"], entry["j"], entry["reason"])
        for entry in content["excluded"]:
            matrix.exclude(entry["j"], entry["reason"])
        return matrix

    def to_text(self, *, weights: Weights = "plain") -> str:
        """The scores with P_i and BwF_i as a table in percent.

        :param weights: of the tasks in both, as in :meth:`average`.
        :return: lines of equal width, then one line per excluded task and one for
            weights that are not plain; a cell without score is a dash.
        :raises ValueError: if the weights do not fit.
        """
        tasks = range(self.n_experiences)
        header = ["after", *(f"on {j}" for j in tasks), "P_i", "BwF_i (+ = forgot)"]
        rows = [header]
        for i in tasks:
            average = self.average(i, weights=weights)
            forgetting = self.backward_forgetting(i, weights=weights)
            numbers = [*self._p[i].tolist(), average, forgetting]
            rows.append([str(i), *map(percent, numbers)])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        table = ["  ".join(map(str.rjust, row, widths)) for row in rows]
        title = "p[i, j] in %: row = after training i, column = evaluated on j"
        notes = [f"not in the means: {j} ({why})" for j, why in self._excluded.items()]
        values = _as_weights(weights, self.n_experiences)
        if (values != values[0]).any():
            listed = ", ".join(f"{value:g}" for value in values)
            notes.append(f"P_i and BwF_i weigh the experiences by {listed}")
        return "\n".join([title, *table, *notes])

    def _row(self, i: int | None) -> int:
        """Row asked for, or the last with a score; -1, which has no tasks: none has."""
        if i is not None:
            self._check_cell(i, 0)
            return i
        return -1 if self.last_row is None else self.last_row

    def _needed(self, number: Number, row: int) -> _Cells:
        """Cells that a number is computed from."""
        n = self.n_experiences
        tasks, earlier = self._tasks(row + 1), self._tasks(row)
        later = [j for j in self._tasks(n) if j > 0]
        cells: dict[Number, _Cells] = {
            "average": [(row, j) for j in tasks],
            "backward_forgetting": [(i, j) for j in earlier for i in (j, row)],
            "maximum_forgetting": [(i, j) for j in earlier for i in range(j, row + 1)],
            "forward_transfer": [(i, j) for j in later for i in (BASELINE, j - 1)],
            "grand_average": [(i, j) for j in self._tasks(n) for i in range(n)],
            "last": [(n - 1, j) for j in self._tasks(n)],
            "transfer": [(i, j) for j in later for i in range(j)],
            "retention": [(i, j) for j in self._tasks(n) for i in range(j, n)],
        }
        if number not in cells:
            raise ValueError(f"expected number of {list(cells)} but got {number!r}")
        return cells[number]

    def _why(self, cell: tuple[int, int]) -> str | None:
        i, j = cell
        if i != BASELINE:
            return self.why(i, j)
        if not np.isnan(self._baseline[j]):
            return None
        return (
            f"experience {j} was not evaluated before any training; evaluate the "
            "stream first and record_baseline"
        )

    def _mean_of_columns(
        self,
        part: Callable[[NDArray[np.float64], int], NDArray[np.float64]],
        start: int = 0,
    ) -> float:
        tasks = [j for j in self._tasks(self.n_experiences) if j >= start]
        means = [part(self._p[:, j], j).mean() for j in tasks]
        return float(np.mean(means)) if means else math.nan

    def _tasks(self, stop: int) -> list[int]:
        return [j for j in range(stop) if j not in self._excluded]

    def _mean(
        self, values: NDArray[np.float64], tasks: list[int], weights: Weights
    ) -> float:
        chosen = _as_weights(weights, self.n_experiences)[tasks]
        if not chosen.sum() > 0:
            return math.nan
        return float((values[tasks] * chosen).sum() / chosen.sum())

    def _check_cell(self, i: int, j: int) -> None:
        if not (0 <= i < self.n_experiences and 0 <= j < self.n_experiences):
            raise IndexError(
                f"expected experiences in 0..{self.n_experiences - 1} "
                f"but got p[{i}, {j}]"
            )


def matrices_csv(matrices: Mapping[str, TaskMatrix]) -> str:
    """All matrices in long form as CSV text, scores in [0, 1] with every digit.

    :param matrices: matrix by metric name.
    :return: metric, after training i, on experience j, value; a line per cell, where
        an empty one has no value and a reason.
    """
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(["metric", "after_training", "evaluated_on", "value", "reason"])
    for name, matrix in matrices.items():
        for (i, j), value in np.ndenumerate(matrix.values):
            reason = matrix.why(i, j)
            shown = repr(float(value)) if reason is None else ""
            writer.writerow([name, i, j, shown, reason or ""])
    return table.getvalue()


def _check_score(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"expected {name} in [0, 1] but got {value}")


def _as_weights(weights: Weights, n_experiences: int) -> NDArray[np.float64]:
    if isinstance(weights, str):
        if weights == "plain":
            return np.ones(n_experiences)
        if weights == "cumulative":
            return np.arange(1.0, n_experiences + 1)
        raise ValueError(
            f"expected weights 'plain', 'cumulative' or numbers but got {weights!r}"
        )
    given = np.asarray(weights, dtype=np.float64)
    if given.shape != (n_experiences,) or not (np.isfinite(given) & (given >= 0)).all():
        raise ValueError(
            f"expected {n_experiences} finite weights >= 0 but got {given.tolist()}"
        )
    return given


def number_or_none(value: float) -> float | None:
    """JSON form of a number, null for NaN."""
    return None if math.isnan(value) else value
