"""Metrics as a CSV file; task matrices as text, CSV and figures in TensorBoard.

Avalanche's loggers take single numbers; a matrix is more than its averages. Its
``CSVLogger`` takes accuracy and loss alone.
"""

from __future__ import annotations

import csv
import sys
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np
from avalanche.evaluation.metric_results import AlternativeValues
from avalanche.logging import BaseLogger, TensorboardLogger

from avalanche_vilco.core.files import write_atomically
from avalanche_vilco.core.tables import percent
from avalanche_vilco.evaluation.matrix import TaskMatrix, Weights, matrices_csv
from avalanche_vilco.evaluation.metrics.continual import TaskMatrixMetric

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch.utils.tensorboard import SummaryWriter

_Named = tuple[str, TaskMatrix, TaskMatrixMetric]


class MetricCSVLogger(BaseLogger):
    """Writes every number that a metric emits as a line ``name,iteration,value``.

    :param csv_file: file to write, anew with the first number; one that comes out of a
        checkpoint goes on where it was.
    """

    def __init__(self, csv_file: Path | str) -> None:
        super().__init__()
        self._csv_file, self._is_begun = Path(csv_file), False

    def log_single_metric(self, name: str, value: Any, x_plot: int) -> None:
        """Append a number; pictures and the like are left out."""
        if isinstance(value, AlternativeValues):
            value = value.best_supported_value(float, int)
        if not isinstance(value, (float, int)):
            return
        self._csv_file.parent.mkdir(parents=True, exist_ok=True)
        with self._csv_file.open("a" if self._is_begun else "w", newline="") as file:
            header = [] if self._is_begun else [("name", "iteration", "value")]
            csv.writer(file).writerows([*header, (name, x_plot, value)])
        self._is_begun = True


class TaskMatrixLogger(BaseLogger):
    """Shows the matrices of every :class:`TaskMatrixMetric` in the evaluator.

    It does so at the end of each evaluation of the stream that fills them; other
    evaluations, and those before any training, change no matrix and show none.

    .. code-block:: python

        EvaluationPlugin(task_matrix_metrics(), loggers=[TaskMatrixLogger()])

    A matrix is named by its metric, ``Recall@1x_tIoU0.5``, with the stream appended
    where two streams have one of that name.

    :param file: where to print, the terminal by default.
    :param csv_file: file to keep up to date with all matrices, as
        :func:`~avalanche_vilco.evaluation.matrix.matrices_csv` writes them;
        ``matrices.csv`` is what a results folder has.
    :param tensorboard: where to draw heat maps, one per matrix and evaluation.
    :param names: metrics to print and draw; all by default. The CSV file holds all.
    """

    def __init__(
        self,
        file: TextIO | None = None,
        *,
        csv_file: Path | str | None = None,
        tensorboard: TensorboardLogger | SummaryWriter | None = None,
        names: Collection[str] | None = None,
    ) -> None:
        super().__init__()
        self._file = file
        self._csv_file = None if csv_file is None else Path(csv_file)
        self._tensorboard = tensorboard
        self._names = None if names is None else frozenset(names)

    def after_eval(self, strategy: Any, metric_values: Any, **kwargs: Any) -> None:
        """Show the matrices that the evaluation filled."""
        found = list(_matrices(strategy.evaluator.metrics))
        experience = strategy.experience
        stream = None if experience is None else experience.origin_stream.name
        filled = [each for each in found if each[2].stream == stream]
        if not filled:
            return
        for name, matrix, metric in filled:
            if self._names is None or name.partition("/")[0] in self._names:
                self._show(name, matrix, metric, strategy.clock.train_iterations)
        if self._csv_file is not None:
            text = matrices_csv({name: matrix for name, matrix, _ in found})
            write_atomically(self._csv_file, text)

    def _show(
        self, name: str, matrix: TaskMatrix, metric: TaskMatrixMetric, step: int
    ) -> None:
        text = matrix.to_text(weights=metric.weights)
        print(f"{name}\n{text}", file=self._file or sys.stdout, flush=True)
        if self._tensorboard is not None:
            writer = getattr(self._tensorboard, "writer", self._tensorboard)
            figure = matrix_figure(matrix, name, weights=metric.weights)
            writer.add_figure(f"TaskMatrix/{name}", figure, global_step=step)

    def __getstate__(self) -> dict[str, Any]:
        """State for checkpoints: an open file or writer stays behind, as its place."""
        state = dict(self.__dict__)
        if self._file is not None:
            state["_file"] = self._file.name
        place = getattr(self._tensorboard, "log_dir", None)
        if place is not None:
            state["_tensorboard"] = str(place)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if isinstance(self._file, str):
            standard = {"<stdout>": sys.stdout, "<stderr>": sys.stderr}
            self._file = standard.get(self._file) or open(self._file, "a")  # noqa: SIM115
        if isinstance(self._tensorboard, str):
            self._tensorboard = TensorboardLogger(self._tensorboard)


def matrix_figure(
    matrix: TaskMatrix, title: str = "", *, weights: Weights = "plain"
) -> Figure:
    """Heat map of a matrix in percent, rows being time.

    :param matrix: what to draw; cells without score stay white.
    :param title: shown above P_i and BwF_i of the last row.
    :param weights: of the experiences in both.
    :return: a matplotlib figure that no window manager knows of.
    """
    from matplotlib.figure import Figure

    width, height = matrix.n_experiences, matrix.n_steps
    size = (1.5 + 0.6 * width, 1.7 + 0.6 * height)
    figure = Figure(figsize=size, layout="constrained")
    panel = figure.subplots()
    values = 100 * matrix.values
    panel.imshow(np.ma.masked_invalid(values), cmap="viridis", vmin=0, vmax=100)
    for (i, j), value in np.ndenumerate(values):
        if not np.isnan(value):
            colour = "black" if value > 65 else "white"
            panel.text(j, i, f"{value:.0f}", ha="center", va="center", color=colour)
    average = percent(matrix.average(weights=weights))
    forgotten = percent(matrix.backward_forgetting(weights=weights))
    panel.set_title(f"{title}\nP {average}, BwF {forgotten}", fontsize=9)
    panel.set_xlabel("evaluated on experience")
    panel.set_ylabel("after training on experience")
    panel.set_xticks(range(width))
    panel.set_yticks(range(height), matrix.step_labels)
    return figure


def _matrices(metrics: Collection[Any]) -> Iterator[_Named]:
    """All matrices under names that differ."""
    holders = [metric for metric in metrics if isinstance(metric, TaskMatrixMetric)]
    n_of_name = Counter(name for metric in holders for name in metric.matrices)
    for metric in holders:
        for name, matrix in metric.matrices.items():
            suffix = f"/{metric.stream}_stream" if n_of_name[name] > 1 else ""
            yield name + suffix, matrix, metric
