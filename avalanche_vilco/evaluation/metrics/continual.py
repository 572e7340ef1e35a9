"""The task matrix of a metric, filled while a strategy trains and evaluates."""

import math
from collections.abc import Collection, Sequence
from typing import Any, Literal

from avalanche.evaluation.metric_results import MetricValue

from avalanche_vilco.core.experiences import whole_experience
from avalanche_vilco.evaluation.functional.recall import Budget
from avalanche_vilco.evaluation.matrix import TaskMatrix, Weights
from avalanche_vilco.evaluation.metrics.emission import (
    EvaluationMetric,
    MetricState,
    start_anew,
    values_of,
)
from avalanche_vilco.evaluation.metrics.recall import MomentRecall
from avalanche_vilco.evaluation.metrics.strategy import (
    decoded,
    metric_value,
    n_experiences_of,
    release_decoded,
    trained_experiences,
)

Future = Literal["nan", "value"]
Emission = Literal["average", "forgetting"]

_AVERAGE: tuple[Emission, ...] = ("average",)
_FORGETTING: tuple[Emission, ...] = ("forgetting",)


class TaskMatrixMetric(EvaluationMetric[dict[str, TaskMatrix]]):
    """One :class:`~avalanche_vilco.evaluation.matrix.TaskMatrix` per value of a metric.

    Row i describes the model that the i-th training left behind, whichever experience
    it was on; the matrix holds what each has taught. Evaluations of one stream fill
    the row, whichever other streams are evaluated, and the last one wins. A training
    iteration empties it, so that scores of a half-trained model (``eval_every``) never
    outlive the next iteration, while the evaluation after the last one stays.
    Evaluations before any training are left out.

    Several experiences trained at once (``JointTraining``) are one step and have one
    row. So have parts of an experience (online streams) that follow each other, and an
    experience whose training broke off and began again. A whole experience that is
    trained again is a step of its own.

    At the end of an evaluation, ``AverageRecall@1x_tIoU0.5`` (P_i) and
    ``BwF_Recall@1x_tIoU0.5`` (BwF_i, lower is better) are emitted, unless a cell they
    need is empty: ``matrices[...].missing()`` then tells which and why.

    :param state: the state to fill in each evaluated experience;
        :class:`MomentRecall` or another one whose values are in [0, 1].
    :param n_experiences: size of the matrices; the length of the evaluated stream by
        default.
    :param stream: name of the stream that fills the matrices.
    :param future: "nan" leaves scores on experiences that no step has taught empty,
        because a model that learns its queries one experience at a time has no output
        for them yet; "value" records them, for models that can transfer.
    :param emit: which numbers are emitted.
    :param weights: weights of the tasks in both, see
        :meth:`~avalanche_vilco.evaluation.matrix.TaskMatrix.average`.
    :raises ValueError: if ``future`` or ``emit`` is none of its options.
    """

    def __init__(
        self,
        state: MetricState,
        *,
        n_experiences: int | None = None,
        stream: str = "test",
        future: Future = "nan",
        emit: Collection[Emission] = _AVERAGE + _FORGETTING,
        weights: Weights = "plain",
    ) -> None:
        super().__init__()
        if future not in ("nan", "value"):
            raise ValueError(f"expected future 'nan' or 'value' but got {future!r}")
        if not set(emit) <= {"average", "forgetting"}:
            raise ValueError(
                f"expected emit within 'average', 'forgetting' but got {emit}"
            )
        self._state = state
        self._n_experiences = n_experiences
        self.stream = stream
        """Name of the stream that fills the matrices."""
        self._future = future
        self._emit = emit
        self.weights = weights
        """Weights of the tasks in both numbers."""
        self.matrices: dict[str, TaskMatrix] = {}
        """Matrix by name of the value; empty before an evaluation that counts."""
        self._steps: list[frozenset[int]] = []
        # Whether the next training may go on with the last step, and is on a part.
        self._is_interrupted = self._is_in_parts = False
        self._may_hold_scores = False

    def reset(self) -> None:
        """Forget the hits of the current experience; the matrices stay."""
        self._state.reset()

    def result(self) -> dict[str, TaskMatrix]:
        """The matrices filled so far.

        :return: matrix by name of the value.
        """
        return self.matrices

    def before_training_exp(self, strategy: Any) -> None:
        """Begin a step, or go on with the last one."""
        taught = frozenset(
            int(each.current_experience) for each in trained_experiences(strategy)
        )
        experience = strategy.experience
        is_part = whole_experience(experience) is not experience
        is_first = not is_part or getattr(experience, "is_first_subexp", False)
        goes_on = self._is_in_parts and not is_first
        if self._steps[-1:] != [taught] or not (goes_on or self._is_interrupted):
            self._steps.append(taught)
        self._is_interrupted, self._is_in_parts = True, is_part
        self._may_hold_scores = True

    def after_training_exp(self, strategy: Any) -> None:
        """End the training."""
        self._is_interrupted = False

    def before_training_iteration(self, strategy: Any) -> None:
        """Empty the row, whose scores are those of another model from here on."""
        row = len(self._steps) - 1
        if self._may_hold_scores:
            for matrix in self.matrices.values():
                if row < matrix.n_steps:
                    matrix.clear_row(row)
            self._may_hold_scores = False

    def before_eval_exp(self, strategy: Any) -> None:
        """Start a new experience."""
        start_anew(self._state, strategy)
        cell = self._cell(strategy)
        if cell is not None:
            self._prepare(cell[1], strategy.experience.origin_stream)

    def after_eval_iteration(self, strategy: Any) -> None:
        """Count the hits of the current mini-batch."""
        cell = self._cell(strategy)
        if cell is not None and not self._is_unlearnt(cell[1]):
            self._state.update(*decoded(strategy))

    def after_eval_exp(self, strategy: Any) -> None:
        """Fill the cell of the experience just evaluated."""
        release_decoded(strategy)
        cell = self._cell(strategy)
        if cell is not None:
            self._fill(*cell)

    def after_eval(self, strategy: Any) -> list[MetricValue]:
        """Emit average and forgetting of the current row."""
        super().after_eval(strategy)
        cell = self._cell(strategy)
        if cell is None:
            return []
        return [
            metric_value(self, name, value, strategy, experience=False)
            for name, value in self._summary(cell[0]).items()
            if not math.isnan(value)
        ]

    def __str__(self) -> str:
        return "TaskMatrix"

    def _cell(self, strategy: Any) -> tuple[int, int] | None:
        """Row and column of the current evaluation, None if it does not count."""
        experience = strategy.experience
        if not self._steps or experience is None:
            return None
        if experience.origin_stream.name != self.stream:
            return None
        return len(self._steps) - 1, experience.current_experience

    def _is_unlearnt(self, column: int) -> bool:
        is_taught = any(column in step for step in self._steps)
        return self._future == "nan" and not is_taught

    def _prepare(self, column: int, stream: Any) -> None:
        if self._n_experiences is None:
            self._n_experiences = n_experiences_of(stream)
        last = max(column, *map(max, self._steps))
        size = _checked_size(self._n_experiences, last)
        if not self.matrices:
            names = self._state.names
            self.matrices = {name: TaskMatrix(size, taught=()) for name in names}
        for matrix in self.matrices.values():
            for step in self._steps[matrix.n_steps :]:
                matrix.add_step(step)

    def _fill(self, row: int, column: int) -> None:
        self._may_hold_scores = True
        if self._is_unlearnt(column):
            reason = f"queries of experience {column} are not learnt yet after "
            for matrix in self.matrices.values():
                matrix.leave_empty(row, column, reason + matrix.step_name(row))
            return
        values = values_of(self._state)
        for name, matrix in self.matrices.items():
            value = values[name]
            if math.isnan(value):
                matrix.exclude(column, f"experience {column} has no ground truth")
            else:
                matrix.record(row, column, value)

    def _summary(self, row: int) -> dict[str, float]:
        values = {}
        for name, matrix in self.matrices.items():
            if "average" in self._emit:
                average = matrix.average(row, weights=self.weights)
                values[f"Average{name}"] = average
            if "forgetting" in self._emit:
                forgetting = matrix.backward_forgetting(row, weights=self.weights)
                values[f"BwF_{name}"] = forgetting
        return values


def task_matrix_metrics(
    *,
    k: Sequence[int] = (1, 5),
    tiou: Sequence[float] = (0.3, 0.5),
    budget: Budget = "per_gt",
    **options: Any,
) -> list[TaskMatrixMetric]:
    """Plugin that fills task matrices of moment recall and logs P_i and BwF_i.

    :param k: numbers of predictions to look at.
    :param tiou: thresholds in (0, 1].
    :param budget: "per_gt" for Ego4D's R@kx, "fixed" for R@k.
    :param options: of :class:`TaskMatrixMetric`.
    :return: one :class:`TaskMatrixMetric`, as a list for ``EvaluationPlugin``.
    :raises ValueError: if an option is out of range.
    """
    return [TaskMatrixMetric(MomentRecall(k=k, tiou=tiou, budget=budget), **options)]


def average_performance_metrics(**options: Any) -> list[TaskMatrixMetric]:
    """Plugin that logs the average recall P_i only.

    :param options: as for :func:`task_matrix_metrics`, without ``emit``.
    :return: one :class:`TaskMatrixMetric`, as a list for ``EvaluationPlugin``.
    """
    return task_matrix_metrics(emit=_AVERAGE, **options)


def backward_forgetting_metrics(**options: Any) -> list[TaskMatrixMetric]:
    """Plugin that logs backward forgetting BwF_i of the recall only.

    :param options: as for :func:`task_matrix_metrics`, without ``emit``.
    :return: one :class:`TaskMatrixMetric`, as a list for ``EvaluationPlugin``.
    """
    return task_matrix_metrics(emit=_FORGETTING, **options)


def _checked_size(size: int | None, last: int) -> int:
    if size is None:
        raise ValueError(
            "expected n_experiences to be given, because the evaluated stream has no "
            "length"
        )
    if last >= size:
        raise ValueError(
            f"expected experiences below {size}, the size of the matrix, but trained "
            f"or evaluated {last}; evaluate a stream with one experience per trained "
            "one or pass n_experiences"
        )
    return size
