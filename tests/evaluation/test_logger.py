"""A stock strategy shows its task matrices."""

import csv
import io
import warnings
from types import SimpleNamespace

import dill
import pytest
import torch
from avalanche.evaluation.metrics import loss_metrics
from avalanche.logging import CSVLogger, InteractiveLogger, TensorboardLogger
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.supervised import Naive
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

from avalanche_vilco import MomentLoss, vilco_mq, vilco_mq_tiny
from avalanche_vilco.evaluation import TaskMatrix, task_matrix_metrics
from avalanche_vilco.evaluation.logger import (
    MetricCSVLogger,
    TaskMatrixLogger,
    matrix_figure,
)
from avalanche_vilco.evaluation.matrix import matrices_csv
from avalanche_vilco.evaluation.metrics.strategy import check_loggers

NAME = "Recall@1x_tIoU0.5"


@pytest.fixture(scope="module")
def benchmark(mq_root):
    return vilco_mq(mq_root)


def train_two(benchmark, metrics, loggers):
    """A stock strategy after two experiences, evaluated after each."""
    torch.manual_seed(0)
    model = vilco_mq_tiny()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        strategy = Naive(
            model=model,
            optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
            criterion=MomentLoss(),
            train_mb_size=4,
            eval_mb_size=8,
            evaluator=EvaluationPlugin(*metrics, loggers=loggers),
        )
        for experience in benchmark.train_stream[:2]:
            strategy.train(experience)
            strategy.eval(benchmark.test_stream)
    return strategy


@pytest.fixture(scope="module")
def logged(benchmark, tmp_path_factory):
    """Matrix metric, printed text and folder of a run with all kinds of output."""
    folder = tmp_path_factory.mktemp("logs")
    text, (metric,) = io.StringIO(), task_matrix_metrics(k=(1, 5), tiou=(0.5,))
    tensorboard = TensorboardLogger(folder / "board")
    logger = TaskMatrixLogger(
        text,
        csv_file=folder / "new" / "matrices.csv",
        tensorboard=tensorboard,
        names=[NAME],
    )
    others = MetricCSVLogger(folder / "new" / "all.csv"), InteractiveLogger()
    strategy = train_two(benchmark, [metric], [logger, tensorboard, *others])
    tensorboard.writer.flush()
    return metric, text, folder, strategy, logger


def test_the_matrix_is_printed_after_each_evaluation(logged):
    metric, text, *_ = logged
    printed = text.getvalue()
    assert printed.count(f"{NAME}\np[i, j] in %") == 2
    assert printed.endswith(f"{NAME}\n{metric.matrices[NAME].to_text()}\n")
    assert "Recall@5x" not in printed


def test_the_csv_file_holds_all_matrices_with_reasons(logged):
    metric, _, folder, *_ = logged
    text = (folder / "new" / "matrices.csv").read_text()
    assert text == matrices_csv(metric.matrices)
    rows = list(csv.DictReader(io.StringIO(text)))
    assert {row["metric"] for row in rows} == set(metric.matrices)
    assert "not learnt yet" in rows[1]["reason"] and rows[1]["value"] == ""


def test_every_value_is_a_line_of_the_csv_file(logged):
    folder, strategy = logged[2:4]
    rows = list(csv.DictReader((folder / "new" / "all.csv").open()))
    got = {}
    for row in rows:
        got.setdefault(row["name"], []).append(float(row["value"]))
    history = strategy.evaluator.get_all_metrics()
    assert got == {name: values for name, (_, values) in history.items()}
    assert any(value for values in got.values() for value in values)


def test_a_csv_file_begins_anew_but_goes_on_from_a_checkpoint(tmp_path):
    for _ in range(2):
        logger = MetricCSVLogger(tmp_path / "all.csv")
        logger.log_single_metric("a", 0.5, 1)
        logger.log_single_metric("picture", object(), 1)
    MetricCSVLogger(tmp_path / "all.csv")
    dill.loads(dill.dumps(logger)).log_single_metric("b", 2, 3)
    assert (tmp_path / "all.csv").read_text().split() == [
        "name,iteration,value",
        "a,1,0.5",
        "b,3,2",
    ]


def test_avalanches_csv_file_beside_a_loss_is_warned_of(tmp_path):
    csv_logger = CSVLogger(str(tmp_path))
    metrics = [*task_matrix_metrics(), *loss_metrics(epoch=True)]
    strategy = SimpleNamespace(evaluator=EvaluationPlugin(*metrics, loggers=csv_logger))
    with pytest.warns(UserWarning, match=r"pass loggers=\[MetricCSVLogger"):
        check_loggers(strategy)
    csv_logger.close()


def test_a_figure_per_evaluation_reaches_tensorboard(logged):
    folder = logged[2]
    events = EventAccumulator(str(folder / "board"))
    events.Reload()
    assert events.Tags()["images"] == [f"TaskMatrix/{NAME}"]
    steps = [image.step for image in events.Images(f"TaskMatrix/{NAME}")]
    assert len(steps) == 2 and steps[0] < steps[1]


def test_other_streams_show_no_matrix(logged, benchmark):
    _, text, _, strategy, _ = logged
    before = text.getvalue()
    strategy.eval(benchmark.train_stream[:1])
    assert text.getvalue() == before


def test_nothing_is_shown_before_training(benchmark, capsys):
    strategy = train_two(benchmark, task_matrix_metrics(), [TaskMatrixLogger()])
    text = capsys.readouterr().out
    assert text.count("Recall@1x_tIoU0.3\np[i, j]") == 2
    model = vilco_mq_tiny()
    fresh = Naive(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        criterion=MomentLoss(),
        evaluator=EvaluationPlugin(
            task_matrix_metrics(), loggers=strategy.evaluator.loggers
        ),
    )
    fresh.eval(benchmark.test_stream[:1])
    assert "p[i, j]" not in capsys.readouterr().out


def test_matrices_of_two_streams_keep_apart(benchmark, tmp_path):
    metrics = task_matrix_metrics(k=(1,)) + task_matrix_metrics(k=(1,), stream="valid")
    text = io.StringIO()
    logger = TaskMatrixLogger(text, csv_file=tmp_path / "m.csv", names=[NAME])
    strategy = train_two(benchmark, metrics, [logger])
    strategy.eval(benchmark.valid_stream)
    strategy.eval(benchmark.test_stream)
    names = {line.split(",")[0] for line in (tmp_path / "m.csv").open()} - {"metric"}
    assert f"{NAME}/test_stream" in names and f"{NAME}/valid_stream" in names
    assert f"{NAME}/valid_stream\n" in text.getvalue()


def test_weights_of_the_metric_are_those_of_the_text(benchmark):
    metrics, text = task_matrix_metrics(weights="cumulative"), io.StringIO()
    train_two(benchmark, metrics, [TaskMatrixLogger(text)])
    assert "P_i and BwF_i weigh the experiences by 1, 2, 3" in text.getvalue()


def test_a_logger_survives_a_checkpoint(tmp_path, capsys):
    with (tmp_path / "log.txt").open("a") as file:
        writer = SummaryWriter(tmp_path / "board")
        logger = TaskMatrixLogger(file, tensorboard=writer)
        again = dill.loads(dill.dumps(logger))
    writer.close()
    matrix = TaskMatrix(1)
    matrix.record(0, 0, 0.5)
    (metric,) = task_matrix_metrics()
    again._show("after", matrix, metric, 3)
    again._tensorboard.writer.close()
    assert (tmp_path / "log.txt").read_text().startswith("after\n")
    events = EventAccumulator(str(tmp_path / "board"))
    events.Reload()
    assert events.Images("TaskMatrix/after")[0].step == 3
    terminal = dill.loads(dill.dumps(TaskMatrixLogger()))
    terminal._show("here", matrix, metric, 0)
    assert capsys.readouterr().out.startswith("here\n")


def test_the_figure_shows_scores_in_percent_and_leaves_empty_cells_blank():
    matrix = TaskMatrix(2)
    matrix.record(0, 0, 0.9)
    matrix.record(1, 0, 0.5)
    matrix.record(1, 1, 0.25)
    figure = matrix_figure(matrix, "recall")
    (panel,) = figure.axes
    cells = {text.get_position(): text.get_text() for text in panel.texts}
    assert cells == {(0, 0): "90", (0, 1): "50", (1, 1): "25"}
    assert panel.get_title() == "recall\nP 37.5, BwF 40.0"
    (weighted,) = matrix_figure(matrix, weights=[3, 1]).axes
    assert weighted.get_title() == "\nP 43.8, BwF 40.0"
    (early,) = matrix_figure(TaskMatrix(2)).axes
    assert early.get_title() == "\nP -, BwF -"
    assert panel.images[0].get_array().mask.tolist() == [[False, True], [False, False]]
