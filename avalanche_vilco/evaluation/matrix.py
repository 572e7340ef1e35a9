"""The task matrix ``p[i, j]`` and every continual number that follows from it.

``p[i, j]`` is the score on task ``j`` after step ``i`` of learning: rows are time.
Which tasks a step has taught is recorded beside it; usually step ``i`` teaches task
``i``. Indices start at 0, scores are in [0, 1] and higher is better. All numbers here
are percentages only in :meth:`TaskMatrix.to_text`.
"""

import csv
import io
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from avalanche_vilco.core.tables import percent

ORIENTATION = (
    "p[i][j]: row i = after training step i, column j = evaluated on experience j"
)
_OLD_ORIENTATION = ORIENTATION.replace("step", "experience")
"""Of files in which step i taught experience i."""

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

# Row of a cell that holds the score before any training.
BASELINE = -1

# Column of a reason that is not one of a cell.
NO_TASK = -1


class TaskMatrix:
    """Scores on every task after each step of learning.

    Steps are rows, in the order in which they happened; which tasks each has
    :attr:`taught` is recorded, and every number follows from it. Without more, step i
    teaches task i. Others teach tasks in another order or again, several at once
    (joint training), or not all of them.

    A cell is NaN until recorded; :meth:`why` tells for each NaN cell what is
    missing. A number derived from a cell that is NaN is NaN, except that a task
    excluded with :meth:`exclude` takes no part in any mean.

    >>> matrix = TaskMatrix(2)
    >>> matrix.record(0, 0, 0.9)
    >>> matrix.record(1, 0, 0.6)
    >>> matrix.record(1, 1, 0.8)
    >>> round(matrix.average(), 3), round(matrix.backward_forgetting(), 3)
    (0.7, 0.3)

    :param n_experiences: number of tasks, one column each, >= 1.
    :param taught: the tasks that each step has taught; more come by :meth:`add_step`.
    :raises ValueError: if ``n_experiences`` is below 1, or a step teaches nothing.
    :raises IndexError: if there is no such task.
    """

    def __init__(
        self, n_experiences: int, *, taught: Iterable[Collection[int]] | None = None
    ) -> None:
        if n_experiences < 1:
            raise ValueError(f"expected n_experiences >= 1 but got {n_experiences}")
        self._p: NDArray[np.float64] = np.empty((0, n_experiences))
        self._taught: list[frozenset[int]] = []
        self._baseline: NDArray[np.float64] = np.full(n_experiences, np.nan)
        self._reasons: dict[tuple[int, int], str] = {}
        self._excluded: dict[int, str] = {}
        in_turn = ([i] for i in range(n_experiences))
        for experiences in in_turn if taught is None else taught:
            self.add_step(experiences)

    def add_step(self, taught: Collection[int]) -> int:
        """Add a row for a step of learning.

        :param taught: the tasks that it teaches.
        :return: the row.
        :raises ValueError: if there are none.
        :raises IndexError: if there is no such task.
        """
        if not taught:
            raise ValueError("expected a step to teach at least one experience")
        for j in taught:
            self._check(j)
        self._taught.append(frozenset(taught))
        self._p = np.vstack([self._p, np.full(self.n_experiences, np.nan)])
        return self.n_steps - 1

    @property
    def n_experiences(self) -> int:
        """Number of tasks, the columns."""
        return len(self._baseline)

    @property
    def n_steps(self) -> int:
        """Number of steps of learning, the rows."""
        return len(self._p)

    @property
    def taught(self) -> tuple[frozenset[int], ...]:
        """Tasks that each step has taught."""
        return tuple(self._taught)

    @property
    def step_labels(self) -> list[str]:
        """Number of each row, with what the step taught where that is another."""
        listed = ("+".join(map(str, sorted(step))) for step in self._taught)
        return [f"{i}: {t}" if t != str(i) else t for i, t in enumerate(listed)]

    def step_name(self, i: int) -> str:
        """What a step taught, as in "experience 1" or "experiences 0, 2 (step 3)".

        :param i: step.
        """
        step = self._taught[i]
        listed = ", ".join(map(str, sorted(step)))
        which = "" if step == {i} else f" (step {i})"
        return f"experience{'s' if len(step) > 1 else ''} {listed}{which}"

    @property
    def values(self) -> NDArray[np.float64]:
        """Copy of the scores, ``(n_steps, n_experiences)``, rows are time."""
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
        self._check(*cell[::-1])
        return float(self._p[cell])

    def record(self, i: int, j: int, value: float) -> None:
        """Set the score on task j after step i.

        :param i: step.
        :param j: task evaluated.
        :param value: score in [0, 1].
        :raises IndexError: if there is no such cell.
        :raises ValueError: if the score is outside [0, 1] or NaN.
        """
        self._check(j, i)
        _check_score(f"p[{i}, {j}]", value)
        self._p[i, j] = value
        self._reasons.pop((i, j), None)
        self._excluded.pop(j, None)

    def record_baseline(self, j: int, value: float) -> None:
        """Set the score on task j before any training, for forward transfer.

        :param j: task evaluated.
        :param value: score in [0, 1].
        :raises IndexError: if there is no such cell.
        :raises ValueError: if the score is outside [0, 1] or NaN.
        """
        self._check(j)
        _check_score(f"a baseline[{j}]", value)
        self._baseline[j] = value

    def leave_empty(self, i: int, j: int, reason: str) -> None:
        """Say why there is no score on task j after step i.

        :param i: step.
        :param j: task evaluated.
        :param reason: shown to whoever asks for the cell.
        :raises IndexError: if there is no such task.
        """
        self._check(j, i)
        self._p[i, j] = np.nan
        self._reasons[i, j] = reason

    def clear_row(self, i: int) -> None:
        """Forget what was recorded after step i.

        :param i: step.
        :raises IndexError: if there is no such task.
        """
        self._check(0, i)
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
        self._check(j)
        self._p[:, j] = np.nan
        self._excluded[j] = reason

    def why(self, i: int, j: int) -> str | None:
        """Reason why a cell is NaN, None if it holds a score.

        :param i: step.
        :param j: task evaluated.
        :return: the reason.
        :raises IndexError: if there is no such task.
        """
        self._check(j, i)
        if not np.isnan(self._p[i, j]):
            return None
        never = f"experience {j} was not evaluated after training {self.step_name(i)}"
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
            cells = ((i, j) for j, steps in needed.items() for i in steps)
            reasons.update({cell: self._why(cell) for cell in cells})
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
        """Average score on the tasks learnt so far, P_i.

        Mean of p[i, j] over the tasks j that steps up to i have taught: j <= i where
        step i teaches task i.

        :param i: row; the last one with a score by default.
        :param weights: "plain" for equal weights, "cumulative" for weights 1, 2, 3,
            ... (the public code weighs a task by the queries seen when it was learnt;
            this is the case of equally many a task), or one number >= 0 per task.
        :return: score in [0, 1], NaN if a cell is missing.
        :raises IndexError: if there is no such row.
        :raises ValueError: if the weights do not fit.
        """
        return self._mean("average", i, lambda s: s[0], weights)

    def backward_forgetting(
        self, i: int | None = None, *, weights: Weights = "plain"
    ) -> float:
        """Score lost on earlier tasks, BwF_i.

        Mean over the tasks j taught before step i, and not by it, of p[l, j] - p[i, j],
        where l is the last step before i that taught j. Where step i teaches task i
        this is the mean over j < i of p[j, j] - p[i, j]. A task taught again is
        measured from its latest lesson, because that is the score there is to lose,
        and not in the step that teaches it, which shows learning and no forgetting.
        Positive means forgotten, negative means that learning later tasks helped.

        :param i: row; the last one with a score by default.
        :param weights: as in :meth:`average`.
        :return: difference in [-1, 1]; NaN if a cell is missing and where there is no
            earlier task, as in row 0.
        """
        return self._mean("backward_forgetting", i, lambda s: s[0] - s[-1], weights)

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
        """Score lost on earlier tasks since their best.

        Mean over the tasks j taught before step i, and not by it, of the best p[l, j]
        from the first step that taught j to the one before i, less p[i, j].

        :param i: row; the last one with a score by default.
        :param weights: as in :meth:`average`.
        :return: difference in [-1, 1], at least backward forgetting; NaN if a cell is
            missing and in row 0.
        """
        # Cells that are NaN spoil the maximum, as they should.
        return self._mean(
            "maximum_forgetting", i, lambda s: s[:-1].max() - s[-1], weights
        )

    def forward_transfer(self, *, weights: Weights = "plain") -> float:
        """What earlier tasks add before a task is learnt.

        Mean of p[f - 1, j] - baseline[j] over the tasks j that are first taught by a
        step f >= 1. It takes an evaluation before any training:
        :meth:`record_baseline`.

        :param weights: as in :meth:`average`.
        :return: difference in [-1, 1]; NaN if a cell or a baseline is missing and with
            one step.
        """
        return self._mean("forward_transfer", None, lambda s: s[1] - s[0], weights)

    def grand_average(self) -> float:
        """Mean of the whole matrix, "Avg" of open-domain continual learning.

        :return: score in [0, 1], NaN if a cell is missing.
        """
        return self._mean("grand_average", None, np.mean)

    def last(self) -> float:
        """Mean of the last row, "Last" of open-domain continual learning.

        :return: score in [0, 1], NaN if a cell is missing.
        """
        return self._mean("last", None, np.mean)

    def transfer(self) -> float:
        """Zero-shot score on tasks not learnt yet, "Transfer" of open-domain learning.

        Mean over tasks of the mean score before the first step that teaches the task;
        what step 0 teaches has none.

        :return: score in [0, 1]; NaN if a cell is missing and with one task.
        """
        return self._mean("transfer", None, np.mean)

    def retention(self) -> float:
        """Mean over tasks of the mean score from learning on, higher is better.

        Open-domain continual learning calls it "Forgetting", though nothing is
        subtracted. A task is learnt in the first step that teaches it; one that none
        teaches has no part in it.

        :return: score in [0, 1], NaN if a cell is missing.
        """
        return self._mean("retention", None, np.mean)

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
        empty, excluded = sorted(self._reasons.items()), sorted(self._excluded.items())
        return {
            "orientation": ORIENTATION,
            "n_experiences": self.n_experiences,
            "taught": [sorted(step) for step in self._taught],
            "p": [[number_or_none(value) for value in row] for row in self._p.tolist()],
            "baseline": [number_or_none(value) for value in self._baseline.tolist()],
            "empty": [{"i": i, "j": j, "reason": why} for (i, j), why in empty],
            "excluded": [{"j": j, "reason": why} for j, why in excluded],
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "TaskMatrix":
        """Build a matrix from what :meth:`to_dict` gave.

        :param content: the dictionary, possibly through JSON.
        :return: an equal matrix.
        :raises ValueError: if the orientation is another one, rows are not as many as
            steps or of another length, or a score is out of range.
        """
        if content["orientation"] not in (ORIENTATION, _OLD_ORIENTATION):
            raise ValueError(
                f"expected orientation {ORIENTATION!r} but got "
                f"{content['orientation']!r}"
            )
        rows = content["p"]
        matrix = cls(content["n_experiences"], taught=content.get("taught"))
        if [len(row) for row in rows] != [matrix.n_experiences] * matrix.n_steps:
            raise ValueError(
                f"expected {matrix.n_steps} rows of {matrix.n_experiences} scores but "
                f"got rows of {[len(row) for row in rows]}"
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
        labels = self.step_labels
        rows = [header]
        for i, label in enumerate(labels):
            average = self.average(i, weights=weights)
            forgetting = self.backward_forgetting(i, weights=weights)
            numbers = [*self._p[i].tolist(), average, forgetting]
            rows.append([label, *map(percent, numbers)])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        table = ["  ".join(map(str.rjust, row, widths)) for row in rows]
        step = "step i: what it taught" if any(":" in each for each in labels) else "i"
        title = f"p[i, j] in %: row = after training {step}, column = evaluated on j"
        notes = [f"not in the means: {j} ({why})" for j, why in self._excluded.items()]
        values = self._weights(weights)
        if (values != values[0]).any():
            listed = ", ".join(f"{value:g}" for value in values)
            notes.append(f"P_i and BwF_i weigh the experiences by {listed}")
        return "\n".join([title, *table, *notes])

    def _row(self, i: int | None) -> int:
        """Row asked for, or the last with a score; -1, which has no tasks: none has."""
        if i is not None:
            self._check(0, i)
            return i
        return -1 if self.last_row is None else self.last_row

    def _needed(self, number: Number, row: int) -> dict[int, list[int]]:
        """Steps whose scores a number is computed from, by the task that counts."""
        if number not in get_args(Number):
            known = list(get_args(Number))
            raise ValueError(f"expected number of {known} but got {number!r}")
        n, found = self.n_steps, dict[int, list[int]]()
        for j in range(self.n_experiences):
            lessons = [i for i, step in enumerate(self._taught) if j in step]
            first, before = min(lessons, default=n), [i for i in lessons if i < row]
            is_earlier = bool(before) and row not in lessons
            steps: dict[Number, Sequence[int]] = {
                "average": [row] if first <= row else [],
                "backward_forgetting": [before[-1], row] if is_earlier else [],
                "maximum_forgetting": range(first, row + 1) if is_earlier else [],
                "forward_transfer": [BASELINE, first - 1] if 0 < first < n else [],
                "grand_average": range(n),
                "last": range(n)[-1:],
                "transfer": range(first),
                "retention": range(first, n),
            }
            if steps[number] and j not in self._excluded:
                found[j] = list(steps[number])
        return found

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

    def _mean(
        self,
        number: Number,
        i: int | None,
        value: Callable[[NDArray[np.float64]], Any],
        weights: Weights = "plain",
    ) -> float:
        """Mean over the tasks that count of a value of their scores."""
        needed = self._needed(number, self._row(i))
        chosen = self._weights(weights)[list(needed)]
        if not chosen.sum() > 0:
            return math.nan
        # The baseline comes last, where its row, -1, finds it.
        p = np.vstack([self._p, self._baseline])
        values = np.array([value(p[steps, j]) for j, steps in needed.items()])
        return float((values * chosen).sum() / chosen.sum())

    def _weights(self, weights: Weights) -> NDArray[np.float64]:
        n = self.n_experiences
        if isinstance(weights, str):
            if weights == "plain":
                return np.ones(n)
            if weights == "cumulative":
                found, seen = np.ones(n), set[int]()
                # Tasks that no step has taught yet would follow in turn.
                for step in (*self._taught, *({j} for j in range(n))):
                    new, seen = step - seen, seen | step
                    found[list(new)] = len(seen)
                return found
            raise ValueError(
                f"expected weights 'plain', 'cumulative' or numbers but got {weights!r}"
            )
        given = np.asarray(weights, dtype=np.float64)
        if given.shape != (n,) or not (np.isfinite(given) & (given >= 0)).all():
            raise ValueError(
                f"expected {n} finite weights >= 0 but got {given.tolist()}"
            )
        return given

    def _check(self, j: int, i: int | None = None) -> None:
        named = (i, self.n_steps, "steps"), (j, self.n_experiences, "experiences")
        for at, size, name in named:
            if at is not None and not 0 <= at < size:
                raise IndexError(f"expected {name} in 0..{size - 1} but got {at}")


def matrices_csv(matrices: Mapping[str, TaskMatrix]) -> str:
    """All matrices in long form as CSV text, scores in [0, 1] with every digit.

    :param matrices: matrix by metric name.
    :return: metric, after step i, on experience j, value, reason, what step i taught;
        a line per cell, where an empty one has no value and a reason.
    """
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    columns = ("metric", "after_training", "evaluated_on", "value", "reason", "taught")
    writer.writerow(columns)
    for name, matrix in matrices.items():
        for (i, j), value in np.ndenumerate(matrix.values):
            reason = matrix.why(i, j)
            shown = repr(float(value)) if reason is None else ""
            taught = "+".join(map(str, sorted(matrix.taught[i])))
            writer.writerow([name, i, j, shown, reason or "", taught])
    return table.getvalue()


def _check_score(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"expected {name} in [0, 1] but got {value}")


def number_or_none(value: float) -> float | None:
    """JSON form of a number, null for NaN."""
    return None if math.isnan(value) else value
