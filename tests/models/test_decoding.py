"""From outputs to ranked windows."""

import pytest
import torch
from torch import Tensor

from avalanche_vilco.core.batch import MomentTargets
from avalanche_vilco.models.decoding import (
    MomentDecoder,
    MomentPredictions,
    _stable_topk,
)
from avalanche_vilco.models.output import n_points, pack_output, point_grid
from avalanche_vilco.ops.timeline import grid_to_seconds, seconds_to_grid

CPU = torch.device("cpu")
EGO4D_FPS = 1.8741513727840071


def _silent(targets: MomentTargets, n_queries: int = 3, levels: int = 4) -> Tensor:
    """(B, K + 2, P) of which no point says anything."""
    points = n_points(targets.valid.shape[1], levels)
    output = torch.zeros(len(targets), n_queries + 2, points)
    output[:, :n_queries] = -20.0
    output[:, n_queries:] = 2.0
    return output


def _random(targets: MomentTargets, n_queries: int = 3, levels: int = 4) -> Tensor:
    n_steps = targets.valid.shape[1]
    points = n_points(n_steps, levels)
    grid = point_grid(points, n_steps, CPU)
    return pack_output(
        2 * torch.randn(len(targets), n_queries, points),
        4 * torch.rand(len(targets), 2, points) - 0.5,
        grid.valid(targets.valid),
    )


def _equal(a: MomentPredictions, b: MomentPredictions) -> bool:
    return all(torch.equal(x, b.fields()[name]) for name, x in a.fields().items())


@pytest.mark.parametrize("max_windows", [1, 7, 200, 2000])
def test_predictions_are_ranked_windows_inside_the_clip(
    max_windows, moment_targets
) -> None:
    targets = moment_targets([1, 20, 64], features_per_sec=1.9)
    found = MomentDecoder(max_windows=max_windows)(_random(targets), targets)
    scores, labels, windows = found.scores, found.labels, found.segments_sec
    assert scores.shape == labels.shape == windows.shape[:2] == (3, max_windows)
    assert (scores.dtype, labels.dtype) == (torch.float32, torch.int64)
    assert windows.dtype == torch.float64
    assert (scores.diff(dim=1) <= 0).all()
    assert scores.max() <= 1 and scores.min() >= 0
    filled = labels >= 0
    assert filled.any(dim=1).all()
    assert labels.max() < 3 and labels.min() >= -1
    assert (scores[filled] > 0).all()
    assert not scores[~filled].any() and not windows[~filled].any()
    assert (windows >= 0).all()
    assert (windows[..., 1] <= targets.duration_sec[:, None]).all()
    assert (windows[..., 1] > windows[..., 0])[filled].all()


def test_one_point_gives_the_window_it_says(moment_targets) -> None:
    targets = moment_targets([64], features_per_sec=2.0)
    output = _silent(targets)
    place = 64 + 32 + 5  # level 2, step 20
    output[0, 1, place] = 3.0
    output[0, -2:, place] = torch.tensor([1.5, 2.25])
    found = MomentDecoder()(output, targets)
    wanted = grid_to_seconds(torch.tensor([20 - 6.0, 20 + 9.0]).double(), 2.0)
    assert found.labels[0].tolist() == [1] + [-1] * 199
    assert found.scores[0, 0].item() == pytest.approx(torch.tensor(3.0).sigmoid())
    assert torch.equal(found.segments_sec[0, 0], wanted)


def test_peak_late_in_a_clip_comes_back_in_place(moment_targets) -> None:
    """A feature rate rounded from 1.8741 to 1.875 would already be 0.2 s off."""
    targets = moment_targets([900], features_per_sec=EGO4D_FPS)
    output = _silent(targets, levels=10)
    step = round(seconds_to_grid(470.0, EGO4D_FPS))
    output[0, 0, step] = 5.0
    output[0, -2:, step] = 3.0
    window = MomentDecoder()(output, targets).segments_sec[0, 0]
    assert abs(window.mean().item() - 470.0) <= 0.5 / EGO4D_FPS
    exact = grid_to_seconds(float(step), EGO4D_FPS)
    assert window.mean().item() == pytest.approx(exact, abs=1e-9)


def test_equal_scores_rank_by_query_then_from_fine_to_coarse(moment_targets) -> None:
    targets = moment_targets([64])
    output = _silent(targets)
    output[:, -2:] = 0.4
    places = [3, 40, 64 + 7, 64 + 32 + 8, 64 + 32 + 16 + 6]
    for channel in (2, 0):
        output[0, channel, places] = 1.0
    grid = point_grid(output.shape[-1], 64, CPU)
    found = MomentDecoder()(output, targets)
    centres = found.segments_sec[0, :10].mean(-1) - 0.5
    assert found.labels[0, :10].tolist() == [0] * 5 + [2] * 5
    assert centres.tolist() == grid.steps[places].tolist() * 2


@pytest.mark.parametrize("max_candidates", [1, 50, 100])
def test_equal_scores_are_cut_off_in_order(max_candidates, moment_targets) -> None:
    targets = moment_targets([64, 64])
    output = _silent(targets)
    output[:, :3] = 1.0
    output[:, -2:] = 0.25
    found = MomentDecoder(max_candidates=max_candidates)(output, targets)
    kept = found.labels >= 0
    assert kept.sum(dim=1).tolist() == [max_candidates] * 2
    assert (found.labels[kept] == 0).all()
    first = found.segments_sec[:, : min(max_candidates, 64)].mean(-1) - 0.5
    assert (first[:, 1:].diff(dim=1) > 0).all()
    assert _equal(found[:1], found[1:])


@pytest.mark.parametrize("k", [1, 100, 400, 500])
def test_top_scores_are_those_of_a_stable_sort(k) -> None:
    scores = (20 * torch.rand(3, 400)).floor() / 20
    scores[1] = torch.rand(400) ** 30
    best, index = scores.sort(dim=1, descending=True, stable=True)
    ours = _stable_topk(scores, k)
    assert torch.equal(ours[0], best[:, :k]) and torch.equal(ours[1], index[:, :k])


def test_candidates_score_above_the_threshold(moment_targets) -> None:
    targets = moment_targets([64])
    output = _silent(targets)
    output[0, 0, 3], output[0, 1, 40] = 0.01, -0.01
    found = MomentDecoder(score_threshold=0.5)(output, targets)
    assert found.labels[0, :2].tolist() == [0, -1]


def test_suppression_lowers_repeats_of_a_query_only(moment_targets) -> None:
    targets = moment_targets([64])
    output = _silent(targets)
    output[0, 0, [10, 11]] = 2.0
    output[0, 1, 10] = 1.0
    output[0, -2:, :64] = 5.0
    found = MomentDecoder(sigma=0.5)(output, targets)
    best, other = torch.tensor([2.0, 1.0]).sigmoid().tolist()
    decay = torch.tensor(-((9 / 11) ** 2) / 0.5).exp().item()
    assert found.labels[0, :3].tolist() == [0, 1, 0]
    assert found.scores[0, :3].tolist() == pytest.approx([best, other, best * decay])


def test_only_the_geometry_of_the_targets_is_used(moment_targets) -> None:
    targets = moment_targets([64, 20], [[(3, 9, 0)], [(2, 4, 1)]])
    output = _random(targets)
    other = moment_targets([64, 20], [[(9, 30, 2), (0, 1, 1)], []], asked=[[], [3]])
    decoder = MomentDecoder()
    assert _equal(decoder(output, targets), decoder(output, other))


def test_points_beyond_the_clip_are_never_windows(moment_targets) -> None:
    targets = moment_targets([64, 20])
    output = _silent(targets)
    grid = point_grid(output.shape[-1], 64, CPU)
    output[1, :3, ~grid.valid(targets.valid)[1]] = 9.0
    assert (MomentDecoder()(output, targets).labels == -1).all()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(("row", "lost"), [(1, 1), (-2, [0, 1, 2]), (-1, [0, 1, 2])])
def test_what_is_not_finite_is_dropped(value, row, lost, moment_targets) -> None:
    """A logit goes alone, an offset with all logits of its point."""
    targets = moment_targets([64])
    output = _random(targets)
    spoilt, low = output.clone(), output.clone()
    spoilt[0, row, :100] = value
    low[0, lost, :100] = -50.0
    decoder = MomentDecoder(max_candidates=60)
    assert _equal(decoder(spoilt, targets), decoder(low, targets))


def test_output_without_any_finite_value_has_no_window(moment_targets) -> None:
    targets = moment_targets([64])
    output = torch.full_like(_random(targets), float("nan"))
    found = MomentDecoder()(output, targets)
    assert (found.labels == -1).all() and not found.segments_sec.any()


@pytest.mark.parametrize("offsets", [(-0.25, -0.25), (-0.25, 0.25), (70.0, -6.0)])
def test_reversed_and_empty_windows_are_dropped(offsets, moment_targets) -> None:
    targets = moment_targets([64])
    output = _silent(targets)
    output[0, 0, [5, 6]] = 3.0
    output[0, -2:, 5] = torch.tensor(offsets)
    found = MomentDecoder()(output, targets)
    assert (found.labels[0] >= 0).sum() == 1
    assert found.segments_sec[0, 0].mean() == 6.5


def test_window_of_a_negative_offset_lies_beside_its_point(moment_targets) -> None:
    targets = moment_targets([16])
    output = _silent(targets)
    output[0, 2, 4] = 3.0
    output[0, -2:, 4] = torch.tensor([-0.1, 0.3])
    window = MomentDecoder()(output, targets).segments_sec[0, 0] - 0.5
    torch.testing.assert_close(window, torch.tensor([4.1, 4.3]).double())


def test_clips_are_decoded_as_if_alone(moment_targets) -> None:
    targets = moment_targets([64, 64, 64])
    output = _random(targets)
    decoder = MomentDecoder()
    together = decoder(output, targets)
    for row in range(3):
        alone = decoder(output[row : row + 1], targets[row : row + 1])
        assert _equal(together[row : row + 1], alone)


def test_decoding_keeps_no_graph_and_changes_nothing(moment_targets) -> None:
    targets = moment_targets([64])
    output = _random(targets).requires_grad_()
    before = output.detach().clone()
    found = MomentDecoder()(output, targets)
    assert not found.segments_sec.requires_grad and not found.scores.requires_grad
    assert torch.equal(output, before)


def test_half_precision_outputs_are_read(moment_targets) -> None:
    targets = moment_targets([64])
    output = _random(targets).bfloat16()
    decoder = MomentDecoder()
    assert _equal(decoder(output, targets), decoder(output.float(), targets))


def test_predictions_of_unequal_batches_concatenate(moment_targets) -> None:
    targets = moment_targets([64])
    output = _random(targets)
    parts = [MomentDecoder(max_windows=n)(output, targets) for n in (5, 9)]
    both = torch.cat(parts)
    assert len(both) == 2 and both.labels.shape == (2, 9)
    assert both.labels[0, 5:].tolist() == [-1] * 4
