"""Anchors, and what regression channels say of them."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from avalanche_vilco.models.anchors import (
    ANCHOR_RATIOS,
    ANCHOR_SIZES,
    MAX_LOG_SCALE,
    MAX_SHIFT,
    N_ANCHORS,
    anchor_boxes,
    bounded_deltas,
    to_boxes,
    to_deltas,
    within_reach,
)

CPU = torch.device("cpu")
BOUNDS = torch.tensor([MAX_SHIFT, MAX_SHIFT, MAX_LOG_SCALE, MAX_LOG_SCALE])
REAL = st.floats(allow_nan=False, allow_infinity=False, width=32)


def grid(side: int) -> Tensor:
    """(rows, columns, anchors of a place, 4)."""
    anchors = anchor_boxes(side * side * N_ANCHORS, 1, CPU)
    return anchors.view(side, side, N_ANCHORS, 4)


def test_anchors_lie_row_by_row_around_the_centres_of_their_places() -> None:
    anchors = grid(4)
    centres = torch.tensor([0.125, 0.375, 0.625, 0.875])
    torch.testing.assert_close(anchors[2, :, 5, 0], centres)
    torch.testing.assert_close(anchors[:, 3, 7, 1], centres)
    assert (anchors[1, ..., 1] == 0.375).all()


def test_anchors_have_all_areas_and_ratios() -> None:
    width, height = grid(1)[0, 0, :, 2:].unbind(-1)
    found = {
        (round(float((w * h).sqrt() * 448)), round(float(h / w), 3))
        for w, h in zip(width, height, strict=True)
    }
    assert found == {(s, r) for s in (16, 32, 64, 128) for r in (0.5, 1.0, 2.0)}
    assert len(found) == len(ANCHOR_SIZES) * len(ANCHOR_RATIOS) == N_ANCHORS


@given(st.integers(1, 16), st.integers(1, 30))
@settings(max_examples=25)
def test_grid_follows_from_points_and_frames(side: int, n_frames: int) -> None:
    n_points = n_frames * side * side * N_ANCHORS
    anchors = anchor_boxes(n_points, n_frames, CPU)
    assert len(anchors) * n_frames == n_points
    torch.testing.assert_close(anchors, grid(side).flatten(0, 2))


@pytest.mark.parametrize(
    ("n_points", "n_frames"),
    [(0, 1), (N_ANCHORS, 0), (2 * N_ANCHORS, 1), (5 * N_ANCHORS, 5 * 4), (47, 1)]
    + [(4 * N_ANCHORS * 30 + 1, 30), (4 * N_ANCHORS * 30, 29)],
)
def test_points_that_are_no_square_grid_are_an_error(
    n_points: int, n_frames: int
) -> None:
    with pytest.raises(ValueError, match=rf"{n_points} points.*{n_frames} frames"):
        anchor_boxes(n_points, n_frames, CPU)


def test_anchors_first_asked_for_in_evaluation_serve_training() -> None:
    side = 13  # A grid that no other test asks for: what is tested is the first time.
    with torch.inference_mode():
        anchors = grid(side)
    deltas = torch.zeros_like(anchors).requires_grad_()
    to_boxes(anchors, deltas).sum().backward()
    assert deltas.grad is not None and deltas.grad.any()


@given(st.integers(0, 4 * N_ANCHORS - 1), st.lists(REAL, min_size=4, max_size=4))
@settings(max_examples=100)
def test_channels_and_boxes_are_inverse(place: int, raw: list[float]) -> None:
    anchor = grid(2).flatten(0, 2)[place].double()
    deltas = bounded_deltas(torch.tensor(raw).double())
    box = to_boxes(anchor, deltas)
    torch.testing.assert_close(to_deltas(anchor, box), deltas, atol=1e-9, rtol=1e-9)
    again = to_boxes(anchor, to_deltas(anchor, box))
    torch.testing.assert_close(again, box, atol=1e-9, rtol=1e-9)


def test_channels_count_in_widths_and_heights_of_the_anchor() -> None:
    anchor = torch.tensor([0.5, 0.5, 0.1, 0.2])
    box = to_boxes(anchor, torch.tensor([1.0, -0.5, math.log(2.0), math.log(0.5)]))
    # Centre (0.6, 0.4), 0.2 wide and 0.1 high.
    torch.testing.assert_close(box, torch.tensor([0.5, 0.35, 0.7, 0.45]))


@given(st.lists(REAL, min_size=4, max_size=4))
@settings(max_examples=100)
def test_no_number_gives_a_reversed_or_empty_box(raw: list[float]) -> None:
    boxes = to_boxes(grid(16), bounded_deltas(torch.tensor(raw)))
    assert (boxes[..., 2:] > boxes[..., :2]).all()


@given(st.lists(REAL, min_size=4, max_size=4))
@settings(max_examples=100)
def test_channels_stay_within_their_bounds(raw: list[float]) -> None:
    assert (bounded_deltas(torch.tensor(raw)).abs() <= BOUNDS).all()


def test_small_numbers_are_channels_as_they_are() -> None:
    small = torch.tensor([0.03, -0.02, 0.01, -0.04])
    torch.testing.assert_close(bounded_deltas(small), small, atol=2e-5, rtol=0)


def test_larger_numbers_are_larger_channels() -> None:
    raw = torch.linspace(-5, 5, 101)[:, None].expand(-1, 4)
    assert (bounded_deltas(raw).diff(dim=0) > 0).all()


@given(st.lists(st.floats(0, 1, width=32), min_size=4, max_size=4))
@settings(max_examples=100)
def test_wanted_channels_of_any_box_are_finite_and_within_bounds(
    numbers: list[float],
) -> None:
    box = torch.tensor(numbers)
    corners = torch.cat([torch.minimum(box[:2], box[2:]), box.view(2, 2).amax(0)])
    wanted = to_deltas(grid(4), corners)
    assert wanted.isfinite().all() and (wanted.abs() <= BOUNDS).all()


@pytest.mark.parametrize(
    ("box", "expected"),
    [
        ([0.41, 0.31, 0.79, 0.69], True),
        ([0.39, 0.31, 0.81, 0.69], False),  # More than four times as wide.
        ([0.588, 0.45, 0.612, 0.55], False),  # Less than a quarter as wide.
        ([0.70, 0.45, 0.79, 0.55], True),
        ([0.71, 0.45, 0.81, 0.55], False),  # 1.6 widths away.
    ],
)
def test_anchor_reaches_boxes_within_its_bounds(
    box: list[float], expected: bool
) -> None:
    anchor = torch.tensor([0.6, 0.5, 0.1, 0.1])
    wanted = torch.tensor(box)
    assert bool(within_reach(anchor, wanted)) is expected
    back = to_boxes(anchor, to_deltas(anchor, wanted))
    assert torch.allclose(back, wanted, atol=1e-6) is expected
