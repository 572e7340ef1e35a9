import math
from dataclasses import replace

import pytest
import torch

from avalanche_vilco.evaluation.functional import moment_recall
from avalanche_vilco.evaluation.metrics.recall import MomentRecall, recall_metrics
from avalanche_vilco.evaluation.metrics.strategy import decoded


def test_any_split_into_batches_gives_the_recall_of_all_clips(random_moments):
    predictions, targets = random_moments(9, 20, 0), random_moments(9, 6, 1)
    expected = moment_recall(*predictions.arguments(targets))
    for size in (1, 2, 9):
        metric = MomentRecall()
        for start in range(0, 9, size):
            clips = slice(start, start + size)
            metric.update(predictions[clips], targets[clips])
        values = metric.compute()
        assert values["Recall@1x_tIoU0.3"] == pytest.approx(expected[0, 0].item())
        assert values["Recall@5x_tIoU0.5"] == pytest.approx(expected[1, 1].item())


def test_values_are_floats_named_by_budget_with_the_mean_over_thresholds(
    random_moments,
):
    predictions, targets = random_moments(4, 20, 0), random_moments(4, 6, 1)
    metric = MomentRecall(k=(1,), tiou=(0.3, 0.5, 0.75), budget="fixed")
    metric.update(predictions, targets)
    values = metric.compute()
    assert all(type(value) is float for value in values.values())
    levels = [values.pop(f"Recall@1_tIoU{level}") for level in ("0.3", "0.5", "0.75")]
    assert levels[0] > levels[1] > levels[2]
    assert values == {"Recall@1_tIoUmean": pytest.approx(sum(levels) / 3)}
    assert MomentRecall().names == [
        *("Recall@1x_tIoU0.3", "Recall@1x_tIoU0.5", "Recall@1x_tIoUmean"),
        *("Recall@5x_tIoU0.3", "Recall@5x_tIoU0.5", "Recall@5x_tIoUmean"),
    ]


def test_states_of_two_processes_add_up(random_moments):
    predictions, targets = random_moments(6, 20, 0), random_moments(6, 6, 1)
    whole, first, second = MomentRecall(), MomentRecall(), MomentRecall()
    whole.update(predictions, targets)
    first.update(predictions[:2], targets[:2])
    second.update(predictions[2:], targets[2:])
    assert torch.equal(first.hits + second.hits, whole.hits)
    assert torch.equal(first.total + second.total, whole.total)
    assert whole._reductions["hits"] is whole._reductions["total"] is torch_sum()


def torch_sum():
    from torchmetrics.utilities.data import dim_zero_sum

    return dim_zero_sum


def test_states_follow_the_predictions_to_their_device(random_moments):
    metric = MomentRecall()
    moments = random_moments(2, 3, 0)
    there = replace(moments, **{n: v.to("meta") for n, v in vars(moments).items()})
    metric.update(there, there)
    assert metric.hits.device.type == metric.total.device.type == "meta"


def test_counting_never_waits_for_the_device(random_moments):
    """The meta device has no values: reading one raises."""
    there = random_moments(2, 3, 0)
    there = replace(there, **{n: v.to("meta") for n, v in vars(there).items()})
    metric = MomentRecall(k=(1, 2, 5), tiou=(0.1, 0.5))
    metric.update(there, there)
    with pytest.raises(NotImplementedError):
        metric.compute()


def test_no_ground_truth_gives_no_number(random_moments):
    predictions, targets = random_moments(2, 3, 0), random_moments(2, 3, 1)
    targets.labels.fill_(-1)
    metric = MomentRecall()
    metric.update(predictions, targets)
    assert all(math.isnan(value) for value in metric.compute().values())


def test_reset_starts_from_nothing(random_moments):
    metric = MomentRecall(k=(1,), tiou=(0.3,))
    moments = random_moments(3, 4, 0)
    metric.update(random_moments(3, 4, 1), moments)
    metric.reset()
    metric.update(moments, moments)
    assert metric.compute()["Recall@1x_tIoU0.3"] == 1.0


def test_wrong_options_are_refused_before_any_evaluation():
    with pytest.raises(ValueError, match="expected tiou"):
        recall_metrics(tiou=(30,))


def test_each_experience_and_the_stream_get_avalanche_names(
    random_moments, strategy_of, evaluate
):
    strategy, stream = strategy_of()
    right, wrong = random_moments(2, 3, 0), random_moments(6, 3, 1)
    nothing = replace(wrong, labels=torch.full_like(wrong.labels, -1))
    emitted = evaluate(
        strategy,
        recall_metrics(k=(1,), tiou=(0.5,)),
        [(stream[0], [(right, right)]), (stream[1], [(nothing, wrong)])],
    )
    n_right, n_wrong = (right.labels >= 0).sum(), (wrong.labels >= 0).sum()
    share = (n_right / (n_right + n_wrong)).item()
    assert emitted == {
        "Recall@1x_tIoU0.5_Exp/eval_phase/test_stream/Task000/Exp000": 1.0,
        "Recall@1x_tIoUmean_Exp/eval_phase/test_stream/Task000/Exp000": 1.0,
        "Recall@1x_tIoU0.5_Exp/eval_phase/test_stream/Task001/Exp001": 0.0,
        "Recall@1x_tIoUmean_Exp/eval_phase/test_stream/Task001/Exp001": 0.0,
        "Recall@1x_tIoU0.5_Stream/eval_phase/test_stream": pytest.approx(share),
        "Recall@1x_tIoUmean_Stream/eval_phase/test_stream": pytest.approx(share),
    }


def test_a_stream_value_says_which_part_of_the_stream_it_covers(
    random_moments, strategy_of, evaluate
):
    strategy, stream = strategy_of(n_experiences=3)
    moments = random_moments(2, 3, 0)
    metrics = recall_metrics(k=(1,), tiou=(0.5,), experience=False)
    every = [(experience, [(moments, moments)]) for experience in stream]
    emitted = evaluate(strategy, metrics, every)
    assert "Recall@1x_tIoU0.5_Stream/eval_phase/test_stream" in emitted
    emitted = evaluate(strategy, metrics, every[:1])
    assert "Recall@1x_tIoU0.5_Stream_1of3/eval_phase/test_stream" in emitted


def test_an_experience_without_batches_gets_nan(strategy_of, evaluate):
    strategy, stream = strategy_of(n_experiences=1)
    stream[0].task_labels = []
    emitted = evaluate(strategy, recall_metrics(k=(1,), tiou=(0.5,)), [(stream[0], [])])
    assert "Recall@1x_tIoU0.5_Exp/eval_phase/test_stream/Exp000" in emitted
    assert all(map(math.isnan, emitted.values()))


def test_levels_that_are_not_asked_for_are_left_out():
    assert [str(metric) for metric in recall_metrics(stream=False)] == ["Recall_Exp"]
    assert [str(m) for m in recall_metrics(experience=False)] == ["Recall_Stream"]


def test_a_batch_is_decoded_once_for_all_metrics_and_then_released(
    random_moments, strategy_of, evaluate
):
    strategy, stream = strategy_of(n_experiences=1)
    kept = set(vars(strategy))
    batches = [(random_moments(2, 3, seed), random_moments(2, 3, 9)) for seed in (0, 1)]
    evaluate(strategy, recall_metrics() + recall_metrics(), [(stream[0], batches)])
    assert strategy.model.n_decoded == 2
    assert set(vars(strategy)) == kept


def test_targets_without_an_output_channel_are_missed(
    random_moments, strategy_of, evaluate
):
    strategy, stream = strategy_of(n_experiences=1)
    predictions, targets = random_moments(2, 3, 0), random_moments(2, 3, 0)
    targets.labels = targets.labels + 25 * (targets.labels >= 0)
    metrics = recall_metrics(k=(5,), tiou=(0.3,))
    emitted = evaluate(strategy, metrics, [(stream[0], [(predictions, targets)])])
    assert set(emitted.values()) == {0.0}


def test_a_model_that_cannot_decode_is_told_what_to_define(strategy_of):
    strategy, _ = strategy_of()
    strategy.model = torch.nn.Linear(1, 1)
    with pytest.raises(TypeError, match=r"decode\(output, targets\) .* got Linear"):
        decoded(strategy)
