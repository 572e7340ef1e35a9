import math

import pytest
import torch

from avalanche_vilco.evaluation.functional import detection_map
from avalanche_vilco.evaluation.metrics.continual import TaskMatrixMetric
from avalanche_vilco.evaluation.metrics.detection import (
    MomentDetectionMAP,
    detection_map_metrics,
)


@pytest.mark.parametrize("reference", [None, "ego4d", "vilco"])
@pytest.mark.parametrize("size", [1, 4, 9])
def test_any_split_into_batches_gives_the_map_of_all_clips(
    size, reference, random_moments
):
    predictions, targets = random_moments(9, 30, 0), random_moments(9, 6, 1)
    expected = detection_map(*predictions.arguments(targets), reference=reference)
    metric = MomentDetectionMAP(reference=reference)
    for start in range(0, 9, size):
        clips = slice(start, start + size)
        metric.update(predictions[clips], targets[clips])
    *levels, mean = metric.compute().values()
    assert levels == pytest.approx(expected.tolist())
    assert mean == pytest.approx(expected.mean().item())
    assert levels[0] > levels[-1] > 0


def test_values_are_floats_named_by_threshold(random_moments):
    metric = MomentDetectionMAP(tiou=(0.5, 0.75))
    metric.update(random_moments(3, 9, 0), random_moments(3, 4, 1))
    values = metric.compute()
    assert (
        list(values) == metric.names == ["mAP_tIoU0.5", "mAP_tIoU0.75", "mAP_tIoUmean"]
    )
    assert all(type(value) is float for value in values.values())


def test_states_hold_no_padding_and_no_windows(random_moments):
    predictions, targets = random_moments(8, 50, 0), random_moments(8, 4, 1)
    metric = MomentDetectionMAP()
    metric.update(predictions, targets)
    n_kept = int((predictions.labels >= 0).sum())
    assert n_kept < predictions.labels.numel()
    lists = {name for name, default in metric._defaults.items() if default == []}
    assert lists == {"scores", "labels", "hits", "target_labels"}
    assert (
        sum(default.numel() for default in metric._defaults.values() if default != [])
        == 1
    )
    assert [len(metric.scores[0]), len(metric.labels[0])] == [n_kept, n_kept]
    assert metric.hits[0].shape == (n_kept, 5) and metric.hits[0].dtype == torch.bool


def test_without_ground_truth_the_value_is_unknown(random_moments):
    predictions = random_moments(2, 5, 0)
    metric = MomentDetectionMAP()
    metric.update(predictions, random_moments(2, 0, 1))
    assert all(map(math.isnan, metric.compute().values()))


def test_a_reference_that_needs_the_whole_data_set_is_refused():
    with pytest.raises(ValueError, match="renumbers the labels of a whole data set"):
        MomentDetectionMAP(reference="actionformer")
    with pytest.raises(ValueError, match=r"expected tiou of at least one"):
        detection_map_metrics(tiou=())


def test_experience_and_stream_values_are_emitted(
    random_moments, strategy_of, evaluate
):
    strategy, stream = strategy_of(2)
    parts = [(random_moments(4, 30, i), random_moments(4, 6, 9 + i)) for i in range(2)]
    emitted = evaluate(
        strategy,
        detection_map_metrics(tiou=[0.5]),
        [(exp, [part]) for exp, part in zip(stream, parts, strict=True)],
    )
    first = detection_map(*parts[0][0].arguments(parts[0][1]), tiou=[0.5]).item()
    name = "mAP_tIoU0.5_Exp/eval_phase/test_stream/Task000/Exp000"
    assert emitted[name] == pytest.approx(first)
    columns = zip(*(p.arguments(t) for p, t in parts), strict=True)
    together = detection_map(*map(torch.cat, columns), tiou=[0.5]).item()
    name = "mAP_tIoU0.5_Stream/eval_phase/test_stream"
    assert emitted[name] == pytest.approx(together)


def test_a_partly_evaluated_stream_says_how_much(random_moments, strategy_of, evaluate):
    strategy, stream = strategy_of(3)
    part = random_moments(4, 30, 0), random_moments(4, 6, 1)
    plugins = detection_map_metrics(tiou=[0.5], experience=False)
    emitted = evaluate(strategy, plugins, [(stream[0], [part])])
    assert list(emitted) == [
        "mAP_tIoU0.5_Stream_1of3/eval_phase/test_stream",
        "mAP_tIoUmean_Stream_1of3/eval_phase/test_stream",
    ]


def test_a_task_matrix_can_hold_map(random_moments, strategy_of, evaluate):
    strategy, stream = strategy_of(2)
    matrix = TaskMatrixMetric(MomentDetectionMAP(tiou=[0.5]))
    part = random_moments(4, 30, 0), random_moments(4, 6, 1)
    expected = detection_map(*part[0].arguments(part[1]), tiou=[0.5]).item()
    strategy.experience = stream[0]
    matrix.before_training_exp(strategy)
    emitted = evaluate(strategy, [matrix], [(stream[0], [part])])
    assert matrix.matrices["mAP_tIoU0.5"][0, 0] == pytest.approx(expected)
    assert any(name.startswith("AveragemAP_tIoU0.5") for name in emitted)
