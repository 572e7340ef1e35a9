import json
import math
import warnings

import numpy as np
import pytest
import torch
from avalanche.benchmarks import CLScenario, EagerCLStream
from avalanche.benchmarks.scenarios.dataset_scenario import DatasetExperience
from avalanche.benchmarks.scenarios.online import (
    split_continuous_linear_decay_stream,
    split_online_stream,
)
from avalanche.benchmarks.utils import DataAttribute, TaskLabels
from avalanche.benchmarks.utils.classification_dataset import (
    TaskAwareSupervisedClassificationDataset,
)
from avalanche.core import SupervisedPlugin
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.supervised import JointTraining, Naive
from hypothesis import given, settings
from hypothesis import strategies as st

from avalanche_vilco.evaluation.matrix import TaskMatrix
from avalanche_vilco.evaluation.metrics.continual import (
    average_performance_metrics,
    backward_forgetting_metrics,
    task_matrix_metrics,
)
from avalanche_vilco.evaluation.metrics.recall import recall_metrics

N_CLIPS = 4
NAME = "Recall@1x_tIoU0.5"


class Moments:
    """One window per clip, clip n of an experience at n * 10 seconds."""

    def __init__(self, segments_sec, labels):
        self.segments_sec = segments_sec
        self.labels = labels
        self.scores = (labels >= 0).float()

    def __len__(self):
        return len(self.labels)

    def to(self, *args, **kwargs):
        return self


class Clips(torch.utils.data.Dataset):
    def __init__(self, label, n):
        self.samples = [(clip, label) for clip in range(n)]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return self.samples[index]


def collate(samples):
    clips, labels, task_labels = (
        torch.tensor(column) for column in zip(*samples, strict=True)
    )
    starts = 10.0 * clips.double()
    windows = torch.stack([starts, starts + 5], dim=1).unsqueeze(1)
    return [clips.float(), Moments(windows, labels.unsqueeze(1)), task_labels]


class Answers(torch.nn.Module):
    """Finds the first ``n_right[label]`` clips of each label."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.n_right = {}

    def forward(self, x):
        return x * self.weight

    def decode(self, output, targets):
        clips = targets.segments_sec[..., 0] / 10
        n_right = torch.tensor(
            [[self.n_right.get(label.item(), 0)] for label in targets.labels]
        )
        labels = targets.labels.masked_fill(clips >= n_right, -1)
        return Moments(targets.segments_sec, labels)


def benchmark_of(sizes=(N_CLIPS, N_CLIPS, N_CLIPS)):
    def stream(name, sizes):
        experiences = []
        for label, n in enumerate(sizes):
            data = TaskAwareSupervisedClassificationDataset(
                [Clips(label, n)],
                data_attributes=[
                    DataAttribute([label] * n, "targets"),
                    TaskLabels([0] * n),
                ],
                collate_fn=collate,
            )
            experiences.append(DatasetExperience(dataset=data))
        return EagerCLStream(name, experiences)

    return CLScenario([stream("train", [N_CLIPS] * len(sizes)), stream("test", sizes)])


def strategy_of(metrics, strategy_class=Naive, **options):
    model = Answers()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return strategy_class(
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            criterion=lambda output, targets: output.sum(),
            train_mb_size=2,
            eval_mb_size=3,
            evaluator=EvaluationPlugin(*metrics, loggers=None),
            **options,
        )


def rows_of(metric):
    """Rows of the matrix in clips found out of four, None for NaN."""
    return [
        [None if math.isnan(value) else value * N_CLIPS for value in row]
        for row in metric.matrices[NAME].values.tolist()
    ]


SKILLS = [{0: 4, 1: 1}, {0: 2, 1: 3}, {0: 1, 1: 4, 2: 2}]
"""Clips found per label after each experience."""

TAUGHT = [[4, None, None], [2, 3, None], [1, 4, 2]]


def run(metric, benchmark, *, stream="test_stream", n=3):
    """Train and evaluate as SKILLS say; values by name of every evaluation."""
    strategy = strategy_of([metric])
    results = []
    for experience in benchmark.train_stream[:n]:
        strategy.train(experience)
        strategy.model.n_right = SKILLS[experience.current_experience]
        results.append(strategy.eval(getattr(benchmark, stream)))
    return strategy, results


@pytest.fixture(scope="module")
def benchmark():
    return benchmark_of()


def test_rows_are_experiences_trained_and_columns_experiences_evaluated(benchmark):
    (metric,) = task_matrix_metrics()
    run(metric, benchmark)
    assert rows_of(metric) == TAUGHT
    assert sorted(metric.matrices) == [
        *("Recall@1x_tIoU0.3", "Recall@1x_tIoU0.5", "Recall@1x_tIoUmean"),
        *("Recall@5x_tIoU0.3", "Recall@5x_tIoU0.5", "Recall@5x_tIoUmean"),
    ]


def test_average_and_forgetting_are_emitted_as_floats(benchmark):
    (metric,) = task_matrix_metrics(k=(1,), tiou=(0.5,))
    _, (first, second, third) = run(metric, benchmark)
    average = f"Average{NAME}/eval_phase/test_stream"
    forgetting = f"BwF_{NAME}/eval_phase/test_stream"
    assert first[average] == 1.0
    assert forgetting not in first
    assert second[average] == pytest.approx((2 + 3) / 2 / N_CLIPS)
    assert second[forgetting] == pytest.approx((4 - 2) / N_CLIPS)
    assert third[average] == pytest.approx((1 + 4 + 2) / 3 / N_CLIPS)
    assert third[forgetting] == pytest.approx((3 - 1) / 2 / N_CLIPS)
    assert type(third[average]) is type(third[forgetting]) is float
    assert set(third) == {
        *(average, forgetting),
        *(average.replace("0.5", "mean"), forgetting.replace("0.5", "mean")),
    }


def test_experiences_to_come_are_left_empty_with_a_reason(benchmark):
    (metric,) = task_matrix_metrics()
    run(metric, benchmark)
    expected = "queries of experience 2 are not learnt yet after experience 0"
    assert metric.matrices[NAME].why(0, 2) == expected


def test_experiences_to_come_are_scored_on_demand(benchmark):
    (metric,) = task_matrix_metrics(future="value")
    run(metric, benchmark)
    assert rows_of(metric) == [[4, 1, 0], [2, 3, 0], [1, 4, 2]]


def test_evaluating_another_stream_never_touches_the_matrix(benchmark):
    (metric,) = task_matrix_metrics()
    strategy, _ = run(metric, benchmark)
    strategy.model.n_right = {}
    result = strategy.eval(benchmark.train_stream)
    assert rows_of(metric) == TAUGHT
    assert not any("train_stream" in name for name in result)


def test_the_stream_that_fills_the_matrix_can_be_chosen(benchmark):
    (metric,) = task_matrix_metrics(stream="train")
    run(metric, benchmark, stream="train_stream")
    assert rows_of(metric) == TAUGHT


def test_the_last_evaluation_after_training_wins(benchmark):
    (metric,) = task_matrix_metrics()
    strategy, _ = run(metric, benchmark)
    strategy.model.n_right = {0: 3, 1: 3, 2: 3}
    strategy.eval(benchmark.test_stream)
    assert rows_of(metric) == [*TAUGHT[:2], [3, 3, 3]]


def test_partial_evaluations_fill_a_row_together(benchmark):
    (metric,) = task_matrix_metrics()
    strategy, _ = run(metric, benchmark, n=1)
    strategy.train(benchmark.train_stream[1])
    strategy.model.n_right = SKILLS[1]
    partial = strategy.eval(benchmark.test_stream[1:2])
    assert metric.matrices[NAME].missing() == {
        (1, 0): "experience 0 was not evaluated after training experience 1"
    }
    assert f"BwF_{NAME}/eval_phase/test_stream" not in partial
    whole = strategy.eval(benchmark.test_stream[0])
    assert whole[f"BwF_{NAME}/eval_phase/test_stream"] == 0.5


def test_an_experience_trained_again_is_a_step_of_its_own(benchmark):
    (metric,) = task_matrix_metrics()
    strategy, _ = run(metric, benchmark, n=2)
    strategy.train(benchmark.train_stream[1])
    strategy.eval(benchmark.test_stream[1])
    assert rows_of(metric) == [*TAUGHT[:2], [None, 3, None]]
    assert metric.matrices[NAME].taught == ({0}, {1}, {1})


def test_training_that_broke_off_and_began_again_is_one_step(benchmark):
    class Breaks(SupervisedPlugin):
        def after_training_iteration(self, strategy, **kwargs):
            strategy.plugins.remove(self)
            raise KeyboardInterrupt

    (metric,) = task_matrix_metrics()
    strategy, _ = run(metric, benchmark, n=1)
    strategy.plugins.insert(0, Breaks())
    with pytest.raises(KeyboardInterrupt):
        strategy.train(benchmark.train_stream[1])
    strategy.train(benchmark.train_stream[1])
    strategy.model.n_right = SKILLS[1]
    strategy.eval(benchmark.test_stream)
    assert rows_of(metric) == TAUGHT[:2]


def test_rows_are_what_was_learnt_in_the_order_of_learning(benchmark):
    """Train 1, then 0: a mean over the two learnt, and nothing forgotten of 1."""
    (metric,) = task_matrix_metrics(k=(1,), tiou=(0.5,))
    strategy = strategy_of([metric])
    for index, skills in ((1, {0: 3, 1: 2, 2: 4}), (0, {0: 4, 1: 2, 2: 4})):
        strategy.train(benchmark.train_stream[index])
        strategy.model.n_right = skills
        result = strategy.eval(benchmark.test_stream)
    assert rows_of(metric) == [[None, 2, None], [4, 2, None]]
    assert result[f"Average{NAME}/eval_phase/test_stream"] == (4 + 2) / 2 / N_CLIPS
    assert result[f"BwF_{NAME}/eval_phase/test_stream"] == 0.0
    matrix = metric.matrices[NAME]
    assert matrix.why(0, 0) == (
        "queries of experience 0 are not learnt yet after experience 1 (step 0)"
    )


def test_evaluation_before_training_fills_no_row(benchmark):
    (metric,) = task_matrix_metrics()
    strategy = strategy_of([metric])
    assert strategy.eval(benchmark.test_stream) == {}
    assert metric.matrices == {}


class Learns(SupervisedPlugin):
    """Finds one clip more of every label after each epoch."""

    def after_training_epoch(self, strategy, **kwargs):
        right = strategy.model.n_right
        strategy.model.n_right = {label: right.get(label, 0) + 1 for label in range(3)}


@pytest.mark.parametrize("eval_every", [0, 1, 2])
def test_only_the_periodic_evaluation_after_the_last_epoch_remains(
    benchmark, eval_every
):
    (metric,) = task_matrix_metrics(future="value")
    strategy = strategy_of(
        [metric], train_epochs=3, eval_every=eval_every, plugins=[Learns()]
    )
    strategy.train(benchmark.train_stream[0], eval_streams=[benchmark.test_stream])
    assert rows_of(metric)[0] == [3, 3, 3]


class Observes(SupervisedPlugin):
    """Notes the rows of a metric after every training iteration."""

    def __init__(self, metric):
        super().__init__()
        self.metric = metric
        self.rows = []

    def after_training_iteration(self, strategy, **kwargs):
        self.rows.append(rows_of(self.metric) if self.metric.matrices else None)


def test_scores_of_a_half_trained_model_do_not_outlive_the_next_iteration(benchmark):
    (metric,) = task_matrix_metrics()
    observer = Observes(metric)
    strategy = strategy_of([metric], train_epochs=2, eval_every=1, plugins=[observer])
    strategy.train(benchmark.train_stream[0], eval_streams=[benchmark.test_stream])
    nothing = [[None] * 3]
    assert observer.rows == [None, None, nothing, nothing]


def test_periodic_evaluation_leaves_the_rows_before_alone(benchmark):
    (metric,) = task_matrix_metrics()
    strategy, _ = run(metric, benchmark, n=1)
    strategy.plugins.append(Learns())
    strategy.train(benchmark.train_stream[1], eval_streams=[benchmark.test_stream])
    strategy.eval(benchmark.test_stream)
    assert rows_of(metric)[:2] == [TAUGHT[0], [4, 2, None]]


def test_joint_training_is_one_step_that_teaches_all(benchmark):
    (metric,) = task_matrix_metrics()
    strategy = strategy_of([metric], JointTraining)
    strategy.train(benchmark.train_stream)
    strategy.model.n_right = {0: 4, 1: 2, 2: 3}
    result = strategy.eval(benchmark.test_stream)
    assert rows_of(metric) == [[4, 2, 3]]
    assert metric.matrices[NAME].taught == ({0, 1, 2},)
    name = f"Average{NAME}/eval_phase/test_stream"
    assert result[name] == pytest.approx(3 / N_CLIPS)
    assert f"BwF_{NAME}/eval_phase/test_stream" not in result


@pytest.mark.parametrize("has_boundaries", [False, True])
def test_parts_of_an_experience_fill_one_row(benchmark, has_boundaries):
    (metric,) = task_matrix_metrics()
    strategy = strategy_of([metric])
    for experience in split_online_stream(
        benchmark.train_stream, 2, access_task_boundaries=has_boundaries
    ):
        strategy.train(experience)
        index = experience.origin_experience.current_experience
        strategy.model.n_right = SKILLS[index]
        strategy.eval(benchmark.test_stream)
    assert rows_of(metric) == TAUGHT


def test_parts_of_several_experiences_at_once_are_refused(benchmark):
    stream = split_continuous_linear_decay_stream(
        benchmark.train_stream, 2, iters_per_virtual_epoch=2, beta=3, shuffle=True
    )
    with pytest.raises(ValueError, match="split the stream with split_online_stream"):
        strategy_of(task_matrix_metrics()).train(next(iter(stream)))


one = st.integers(0, 2)
lessons = st.one_of(
    st.tuples(st.sampled_from(["whole", "parts"]), one.map(lambda j: [j])),
    st.tuples(st.just("joint"), st.sets(one, min_size=1).map(sorted)),
)
skills = st.lists(st.integers(0, N_CLIPS), min_size=3, max_size=3)


def numbers_of(p, taught, i):
    """P_i, BwF_i and maximum forgetting by their definitions, None where undefined."""
    learnt = set().union(*taught[: i + 1])
    lost, most = [], []
    for j in set().union(*taught[:i]) - taught[i]:
        lessons = [step for step in range(i) if j in taught[step]]
        lost.append(p[lessons[-1]][j] - p[i][j])
        most.append(max(p[step][j] for step in range(lessons[0], i)) - p[i][j])
    means = [sum(v) / len(v) if v else None for v in (lost, most)]
    return [sum(p[i][j] for j in learnt) / len(learnt), *means]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(lessons, skills), min_size=1, max_size=6))
def test_any_sequence_of_steps_has_the_numbers_of_the_definitions(sequence):
    benchmark = benchmark_of()
    (metric,) = task_matrix_metrics(k=(1,), tiou=(0.5,))
    naive = strategy_of([metric])
    for (kind, numbers), found in sequence:
        experiences = [benchmark.train_stream[j] for j in numbers]
        if kind == "joint":
            strategy_of([metric], JointTraining).train(experiences)
        else:
            whole = kind == "whole"
            naive.train(experiences if whole else split_online_stream(experiences, 3))
        naive.model.n_right = dict(enumerate(found))
        naive.eval(benchmark.test_stream)
    taught = [set(numbers) for (_, numbers), _ in sequence]
    p = [[n / N_CLIPS for n in found] for _, found in sequence]
    matrix = metric.matrices[NAME]
    assert [set(step) for step in matrix.taught] == taught
    for i, row in enumerate(matrix.values):
        known = set(np.flatnonzero(~np.isnan(row)))
        assert known == set().union(*taught[: i + 1])
        ours = (
            matrix.average(i),
            matrix.backward_forgetting(i),
            matrix.maximum_forgetting(i),
        )
        for value, expected in zip(ours, numbers_of(p, taught, i), strict=True):
            if expected is None:
                assert math.isnan(value)
            else:
                assert value == pytest.approx(expected)
    again = TaskMatrix.from_dict(json.loads(json.dumps(matrix.to_dict())))
    assert again.to_dict() == matrix.to_dict()
    assert again.to_text() == matrix.to_text()


def test_an_experience_beyond_the_matrix_is_an_error(benchmark):
    (metric,) = task_matrix_metrics(n_experiences=2)
    with pytest.raises(
        ValueError, match=r"expected experiences below 2, .* trained or evaluated 2"
    ):
        run(metric, benchmark)


def test_training_more_experiences_than_are_evaluated_is_an_error(benchmark):
    (metric,) = task_matrix_metrics()
    strategy, _ = run(metric, benchmark_of((N_CLIPS,)), n=1)
    strategy.train(benchmark.train_stream[2])
    with pytest.raises(
        ValueError, match=r"expected experiences below 1, .* trained or evaluated 2"
    ):
        strategy.eval(benchmark_of((N_CLIPS,)).test_stream)


def test_an_experience_without_clips_has_a_reason_and_is_left_out_of_means():
    (metric,) = task_matrix_metrics()
    _, results = run(metric, benchmark_of((N_CLIPS, 0, N_CLIPS)))
    assert rows_of(metric) == [[4, None, None], [2, None, None], [1, None, 2]]
    matrix = metric.matrices[NAME]
    assert matrix.why(2, 1) == "experience 1 has no ground truth"
    assert matrix.average() == pytest.approx((1 + 2) / 2 / N_CLIPS)
    forgetting = results[2][f"BwF_{NAME}/eval_phase/test_stream"]
    assert forgetting == pytest.approx((4 - 1) / N_CLIPS)


def test_named_helpers_emit_one_number_each(benchmark):
    for helper, prefix in [
        (average_performance_metrics, "AverageRecall@"),
        (backward_forgetting_metrics, "BwF_Recall@"),
    ]:
        (metric,) = helper(k=(1,))
        _, results = run(metric, benchmark)
        assert results[-1] and all(name.startswith(prefix) for name in results[-1])
        assert rows_of(metric) == TAUGHT


def test_weights_reach_the_emitted_numbers(benchmark):
    (metric,) = task_matrix_metrics(weights="cumulative")
    _, results = run(metric, benchmark)
    expected = (1 * 1 + 2 * 4 + 3 * 2) / 6 / N_CLIPS
    assert results[-1][f"Average{NAME}/eval_phase/test_stream"] == pytest.approx(
        expected
    )


def test_all_metrics_share_one_evaluator(benchmark):
    (metric,) = task_matrix_metrics(k=(1,), tiou=(0.5,))
    strategy = strategy_of([metric, recall_metrics(k=(1,), tiou=(0.5,))])
    strategy.train(benchmark.train_stream[0])
    strategy.model.n_right = SKILLS[0]
    result = strategy.eval(benchmark.test_stream)
    assert result[f"{NAME}_Exp/eval_phase/test_stream/Exp001"] == 0.25
    assert result[f"{NAME}_Stream/eval_phase/test_stream"] == pytest.approx(5 / 12)
    assert rows_of(metric)[0] == TAUGHT[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"future": "zero"}, "expected future 'nan' or 'value' but got 'zero'"),
        ({"emit": ("mean",)}, "expected emit within 'average', 'forgetting'"),
        ({"k": (0,)}, "expected k of at least one number"),
    ],
)
def test_wrong_options_are_refused_before_training(options, message):
    with pytest.raises(ValueError, match=message):
        task_matrix_metrics(**options)
