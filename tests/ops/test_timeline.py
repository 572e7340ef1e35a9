import doctest

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from avalanche_vilco.ops import timeline
from avalanche_vilco.ops.timeline import grid_to_seconds, seconds_to_grid

rates = st.floats(0.1, 60.0)
strides = st.floats(0.5, 64.0)
windows = st.floats(0.0, 128.0)


def test_examples_in_the_documentation_hold():
    assert doctest.testmod(timeline).failed == 0
    assert doctest.testmod(timeline).attempted == 4


@pytest.mark.parametrize(("seconds", "grid"), [(2.0, 0.0), (0.0, -1.0), (4.0, 1.0)])
def test_strided_features_stand_at_the_middle_of_their_window(seconds, grid):
    assert seconds_to_grid(seconds, 1.0, stride_frames=2.0, window_frames=4.0) == grid
    assert grid_to_seconds(grid, 1.0, stride_frames=2.0, window_frames=4.0) == seconds


def test_mq_annotations_use_a_half_step_offset():
    assert seconds_to_grid(10.0, fps=1.5) == 14.5


@given(st.floats(-10.0, 1300.0), rates, strides, windows)
def test_decoding_inverts_encoding(seconds, fps, stride, window):
    grid = seconds_to_grid(seconds, fps, stride, window)
    assert grid_to_seconds(grid, fps, stride, window) == pytest.approx(
        seconds, abs=1e-9
    )


@given(st.floats(-10.0, 3000.0), rates, strides, windows)
def test_encoding_inverts_decoding(grid, fps, stride, window):
    seconds = grid_to_seconds(grid, fps, stride, window)
    assert seconds_to_grid(seconds, fps, stride, window) == pytest.approx(
        grid, abs=1e-9
    )


def test_each_clip_of_a_batch_has_its_own_rate():
    seconds = torch.tensor([[[0.0, 4.0]], [[0.0, 4.0]]], dtype=torch.float64)
    fps = torch.tensor([1.0, 2.0], dtype=torch.float64).view(2, 1, 1)
    grid = seconds_to_grid(seconds, fps)
    assert grid.tolist() == [[[-0.5, 3.5]], [[-0.5, 7.5]]]
    assert torch.equal(grid_to_seconds(grid, fps), seconds)


def test_float64_survives_a_float32_grid():
    grid = torch.zeros(1, 3, dtype=torch.float32)
    fps = torch.ones(1, 1, dtype=torch.float64)
    assert grid_to_seconds(grid, fps).dtype == torch.float64


@pytest.mark.parametrize("name", ["fps", "stride_frames"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
@pytest.mark.parametrize("convert", [seconds_to_grid, grid_to_seconds])
def test_a_rate_that_is_not_positive_is_refused(convert, name, value):
    arguments = {"fps": 1.0, name: value}
    with pytest.raises(ValueError, match=f"expected {name} > 0 but got"):
        convert(1.0, **arguments)
