"""What the loss asks of each anchor, and that decoding reads it back."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import DataLoader

from avalanche_vilco.core.visual_batch import TrackWindowTargets
from avalanche_vilco.models.anchors import (
    N_ANCHORS,
    anchor_boxes,
    to_boxes,
    to_deltas,
    within_reach,
)
from avalanche_vilco.models.frame_answers import best_of_frames
from avalanche_vilco.models.visual_losses import VisualQueryLoss
from avalanche_vilco.ops.boxes import box_iou

CPU = torch.device("cpu")


def answers(
    boxes: Tensor, *, present: Tensor | None = None, searched: Tensor | None = None
) -> TrackWindowTargets:
    """Windows whose answers are given as (B, T, 4) shares of a square of 100 pixels."""
    n, n_frames = boxes.shape[:2]
    valid = torch.ones(n, n_frames, dtype=torch.bool)
    numbers = torch.arange(n_frames).repeat(n, 1)
    present = valid if present is None else present
    return TrackWindowTargets(
        valid=valid,
        searched=valid if searched is None else searched,
        boxes=boxes * present[..., None],
        present=present,
        frame_numbers=numbers,
        square=torch.tensor([[100.0, 0.0, 0.0]], dtype=torch.float64).repeat(n, 1),
        track_boxes=(boxes * 100).double(),
        track_frames=numbers,
        query=torch.arange(n),
        query_frame=torch.full((n,), n_frames),
        sample=torch.arange(n),
    )


def blank(targets: TrackWindowTargets, *, side: int = 8, logit: float = 0.0) -> Tensor:
    """(B, 1 + 4, P): one logit everywhere, each box its anchor."""
    n, n_frames = targets.valid.shape
    output = torch.zeros(n, 5, n_frames * side * side * N_ANCHORS)
    output[:, 0] = logit
    return output


def slopes(
    output: Tensor, targets: TrackWindowTargets, **options: Any
) -> tuple[Tensor, Tensor]:
    """The loss, and its gradient (B, 1 + 4, T, P / T)."""
    output = output.clone().requires_grad_()
    loss = VisualQueryLoss(**options)(output, targets)
    loss.backward()
    assert output.grad is not None
    return loss.detach(), output.grad.unflatten(2, (targets.valid.shape[1], -1))


def positives(targets: TrackWindowTargets, *, side: int = 8) -> Tensor:
    """(B, T, P / T) bool, anchors whose logit the loss wants higher."""
    return slopes(blank(targets, side=side), targets)[1][:, 0] < 0


def focal(probability: float, weight: float) -> float:
    """Focal loss with gamma 2 of an anchor whose right answer has a probability."""
    return -weight * (1 - probability) ** 2 * math.log(probability)


PLACE = 7
SURE, REST = 1 / (1 + math.exp(-0.5)), 1 / (1 + math.exp(2.0))


def one_anchor(**options: Any) -> tuple[Tensor, Tensor]:
    """One frame of one place, whose answer is exactly one of its anchors. That one is
    0.1 widths off to the right; its logit is 0.5, the others' -2."""
    anchors = anchor_boxes(N_ANCHORS, 1, CPU)
    targets = answers(to_boxes(anchors[PLACE], torch.zeros(4)).view(1, 1, 4))
    output = blank(targets, side=1, logit=-2.0)
    output[0, :2, PLACE] = torch.tensor([0.5, 0.1])
    return slopes(output, targets, positive_iou=0.9, **options)


def test_loss_of_one_anchor_by_hand() -> None:
    loss, slope = one_anchor()
    apart = 0.1 - 0.1 / 2
    # Boxes of equal height side by side: their hull is their union.
    overlap = 1 - 0.9 / 1.1
    expected = focal(SURE, 0.75) + 11 * focal(1 - REST, 0.25) + apart + 0.3 * overlap
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    assert slope[0, 0, 0, PLACE] < 0 < slope[0, 1, 0, PLACE]
    slope[0, :, 0, PLACE] = 0
    assert (slope[0, 0] >= 0).all() and not slope[0, 1:].any()


@pytest.mark.parametrize(("kept", "expected"), [(1, 1), (4, 4), (11, 11), (50, 11)])
def test_hardest_negatives_by_hand(kept: int, expected: int) -> None:
    options = {"regression_weight": 0.0, "overlap_weight": 0.0}
    loss, slope = one_anchor(negatives_per_positive=kept, **options)
    by_hand = focal(SURE, 0.75) + expected * focal(1 - REST, 0.25)
    assert loss.item() == pytest.approx(by_hand, rel=1e-5)
    assert (slope[0, 0] > 0).sum() == expected


def test_negatives_of_the_highest_logits_are_the_hardest() -> None:
    box = torch.tensor([0.1, 0.1, 0.3, 0.3]).view(1, 1, 4)
    targets = answers(box)
    output = blank(targets)
    output[0, 0] = torch.randn(output.shape[2]).clamp(max=2)
    free = ~positives(targets)[0, 0]
    _, slope = slopes(output, targets, negatives_per_positive=2)
    n_positive = int((~free).sum())
    logits = output[0, 0].masked_fill(~free, -math.inf)
    expected = logits.topk(2 * n_positive).indices.sort().values
    assert (slope[0, 0, 0] > 0).nonzero().flatten().tolist() == expected.tolist()


def test_hard_negatives_are_those_of_the_whole_batch() -> None:
    """A window without answer may give them all."""
    boxes = torch.tensor([0.1, 0.1, 0.3, 0.3]).repeat(2, 1, 1)
    targets = answers(boxes, present=torch.tensor([[True], [False]]))
    output = blank(targets, logit=-5.0)
    output[1, 0] = 1.0
    _, slope = slopes(output, targets, negatives_per_positive=1)
    assert (slope[1, 0] > 0).sum() == positives(targets).sum()
    assert not (slope[0, 0] > 0).any()


def test_loss_is_a_mean_over_positive_anchors() -> None:
    boxes = torch.rand(2, 3, 2).repeat(1, 1, 2) * 0.5
    boxes[..., 2:] += 0.2
    targets = answers(boxes)
    output = torch.randn(blank(targets).shape)
    once = VisualQueryLoss()(output, targets)
    twice = VisualQueryLoss()(output.repeat(2, 1, 1), torch.cat([targets, targets]))
    torch.testing.assert_close(once, twice)


def test_anchors_that_overlap_enough_are_positive() -> None:
    box = torch.tensor([0.2, 0.25, 0.45, 0.6])
    targets = answers(box.view(1, 1, 4))
    anchors = anchor_boxes(64 * N_ANCHORS, 1, CPU)
    overlap = box_iou(to_boxes(anchors, torch.zeros(4)), box)
    assert torch.equal(positives(targets)[0, 0], overlap >= 0.2)
    assert 1 < int((overlap >= 0.2).sum()) < 100


def test_frames_from_the_query_frame_on_do_not_count() -> None:
    boxes = torch.tensor([0.1, 0.1, 0.3, 0.3]).repeat(1, 4, 1)
    searched = torch.tensor([[True, True, False, False]])
    targets = answers(boxes, searched=searched)
    output = torch.randn(blank(targets).shape)
    loss, slope = slopes(output, targets)
    assert not slope[:, :, 2:].any() and slope[:, :, :2].any()
    frames = output.view(1, 5, 4, -1)
    frames[:, :, 2:] = torch.randn_like(frames[:, :, 2:]) * 9
    for options in ({}, {"negatives_per_positive": 3}):
        first_two = answers(boxes[:, :2])
        alone = slopes(frames[:, :, :2].flatten(2), first_two, **options)[0]
        torch.testing.assert_close(slopes(output, targets, **options)[0], alone)
    torch.testing.assert_close(slopes(output, targets)[0], loss)


def test_frames_without_the_answer_have_no_positive() -> None:
    boxes = torch.tensor([0.1, 0.1, 0.3, 0.3]).repeat(1, 3, 1)
    present = torch.tensor([[True, False, True]])
    found = positives(answers(boxes, present=present)).any(dim=2)
    assert torch.equal(found, present)


SHARE = st.floats(0, 1)
EXTENT = st.floats(0.004, 1)


@given(
    st.lists(st.tuples(SHARE, SHARE, EXTENT, EXTENT), min_size=1, max_size=4),
    st.sampled_from([4, 8, 16]),
)
@settings(max_examples=60)
def test_each_frame_with_an_answer_has_a_positive(
    drawn: list[tuple[float, float, float, float]], side: int
) -> None:
    """However thin or small: from 0.004, or 2 of 448 pixels."""
    numbers = torch.tensor(drawn)
    size = numbers[:, 2:]
    corner = numbers[:, :2] * (1 - size)
    targets = answers(torch.cat([corner, corner + size], dim=1)[None])
    assert positives(targets, side=side).any(dim=2).all()


@pytest.mark.parametrize("kept", [None, 3])
def test_window_without_answer_has_finite_loss_and_gradient(kept: int | None) -> None:
    targets = answers(torch.zeros(2, 3, 4), present=torch.zeros(2, 3, dtype=torch.bool))
    loss, slope = slopes(blank(targets), targets, negatives_per_positive=kept)
    assert loss.isfinite() and loss > 0
    assert slope.isfinite().all() and not slope[:, 1:].any()
    assert (slope[:, 0] >= 0).all() and slope[:, 0].any()


def test_windows_behind_the_query_frame_cost_nothing() -> None:
    boxes = torch.tensor([0.1, 0.1, 0.3, 0.3]).repeat(1, 3, 1)
    targets = answers(boxes, searched=torch.zeros(1, 3, dtype=torch.bool))
    loss, slope = slopes(blank(targets), targets)
    assert loss == 0 and not slope.any()


@pytest.mark.parametrize("kept", [None, 3])
@pytest.mark.parametrize(
    "box", [[0.3, 0.3, 0.3, 0.3], [0.3, 0.1, 0.3, 0.6], [0.0] * 4, [0.9, 0.9, 0.8, 0.8]]
)
def test_boxes_without_area_leave_no_nan(box: list[float], kept: int | None) -> None:
    whole = torch.tensor([0.1, 0.1, 0.3, 0.3])
    targets = answers(torch.stack([torch.tensor(box), whole])[None])
    output = torch.randn(blank(targets).shape)
    loss, slope = slopes(output, targets, negatives_per_positive=kept)
    assert loss.isfinite() and slope.isfinite().all()
    assert positives(targets).any(dim=2).tolist() == [[False, True]]


def test_half_precision_output_gives_a_float32_loss() -> None:
    targets = answers(torch.tensor([0.1, 0.1, 0.3, 0.3]).view(1, 1, 4))
    output = torch.randn(blank(targets).shape)
    loss = VisualQueryLoss()(output.bfloat16(), targets)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(
        VisualQueryLoss()(output, targets).item(), rel=0.02
    )


def perfect(targets: TrackWindowTargets, *, side: int) -> Tensor:
    """What the loss asks for: sure at its positive anchors whose channels reach the
    answer, unsure elsewhere."""
    n_frames = targets.valid.shape[1]
    anchors = anchor_boxes(n_frames * side**2 * N_ANCHORS, n_frames, CPU)
    boxes = targets.boxes[:, :, None]
    deltas = to_deltas(anchors, boxes)
    wanted = positives(targets, side=side) & within_reach(anchors, boxes)
    deltas = deltas * wanted[..., None]
    logits = torch.where(wanted, 9.0, -9.0)
    packed = torch.cat([logits[..., None], deltas], dim=-1)
    return packed.flatten(1, 2).transpose(1, 2)


def overlap_in_pixels(output: Tensor, targets: TrackWindowTargets) -> Tensor:
    """IoU of the answer with the annotated track, of each of its frames in the window
    that is searched."""
    found = best_of_frames(output, targets)
    rows, frames = (targets.present & targets.searched).nonzero(as_tuple=True)
    number = targets.frame_numbers[rows, frames]
    place = (targets.track_frames[rows] == number[:, None]).float().argmax(dim=1)
    assert (targets.track_frames[rows, place] == number).all()
    assert (found.scores[rows, frames] > 0).all()
    return box_iou(found.boxes[rows, frames], targets.track_boxes[rows, place])


def test_best_anchor_is_one_that_reaches_the_box() -> None:
    """A small box in a corner: the anchor that overlaps it most is too large."""
    box = torch.tensor([0.0, 0.0, 0.033, 0.066])
    anchors = anchor_boxes(64 * N_ANCHORS, 1, CPU)
    overlap = box_iou(to_boxes(anchors, torch.zeros(4)), box)
    reached = within_reach(anchors, box)
    assert not reached[overlap.argmax()]
    expected = int((overlap * reached).argmax())
    found = positives(answers(box.view(1, 1, 4)))
    assert found.flatten().nonzero().flatten().tolist() == [expected]


@given(
    st.lists(
        st.tuples(SHARE, SHARE, st.floats(0.5, 6.0), st.floats(0.5, 2.0)),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from([8, 16]),
)
@settings(max_examples=40)
def test_perfect_regressor_gives_random_tracks_back(
    drawn: list[tuple[float, float, float, float]], side: int
) -> None:
    """Of boxes from half a place's size on."""
    numbers = torch.tensor(drawn)
    ratio = numbers[:, 3:].sqrt()
    size = numbers[:, 2:3] / side * torch.cat([ratio, 1 / ratio], dim=1)
    size = size.clamp(max=1)
    corner = numbers[:, :2] * (1 - size)
    targets = answers(torch.cat([corner, corner + size], dim=1)[None])
    output = perfect(targets, side=side)
    assert overlap_in_pixels(output, targets).min() > 0.99


@pytest.fixture(scope="module")
def embedded_targets(tmp_path_factory: pytest.TempPathFactory) -> TrackWindowTargets:
    """Training windows of a few clips as the embedded default has them, in its size."""
    from avalanche_vilco.benchmarks.vilco_vq.embedded import MiniVQConfig
    from avalanche_vilco.benchmarks.vilco_vq.generator import vilco_vq

    root = MiniVQConfig(n_train=4, n_val=2, n_test=0, clip_frames=(72, 76)).generate(
        tmp_path_factory.mktemp("data") / "vq"
    )
    scenario = vilco_vq(
        root, n_experiences=2, valid_share=0.0, sources={"image_size": 128}
    )
    data = scenario.datasets["train"]
    loader = DataLoader(data, batch_size=len(data), collate_fn=data.collate_fn)
    return next(iter(loader))[1]


def test_perfect_regressor_gives_annotated_tracks_back(
    embedded_targets: TrackWindowTargets,
) -> None:
    output = perfect(embedded_targets, side=8)
    overlap = overlap_in_pixels(output, embedded_targets)
    assert len(overlap) > 50
    assert overlap.min() > 0.99


def test_perfect_regressor_costs_little(embedded_targets: TrackWindowTargets) -> None:
    """What is left: wide boxes that an anchor overlaps but cannot reach."""
    best = VisualQueryLoss()(perfect(embedded_targets, side=8), embedded_targets)
    idle = VisualQueryLoss()(blank(embedded_targets, logit=-5.0), embedded_targets)
    assert best < 0.05 * idle
