import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from avalanche_vilco.ops.segments import pairwise_tiou, tiou

any_float = st.floats(allow_nan=True, allow_infinity=True)
any_window = st.tuples(any_float, any_float)
proper_window = st.tuples(st.floats(0, 500), st.floats(0.01, 300)).map(
    lambda start_length: (start_length[0], start_length[0] + start_length[1])
)


def window(*values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ((0.0, 10.0), (0.0, 10.0), 1.0),
        ((0.0, 10.0), (0.0, 5.0), 0.5),
        ((0.0, 10.0), (5.0, 15.0), 5 / 15),
        ((0.0, 10.0), (2.0, 4.0), 0.2),
        ((0.0, 10.0), (10.0, 20.0), 0.0),
        ((0.0, 10.0), (30.0, 40.0), 0.0),
    ],
)
def test_hand_computed_values(a, b, expected):
    assert tiou(window(*a), window(*b)).item() == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize(
    "degenerate",
    [(5.0, 5.0), (8.0, 2.0), (math.nan, 6.0), (5.0, math.inf), (-math.inf, math.inf)],
)
def test_degenerate_windows_overlap_nothing_not_even_themselves(degenerate):
    pair = torch.stack([window(*degenerate), window(0.0, 10.0)])
    assert pairwise_tiou(pair, pair).tolist() == [[0.0, 0.0], [0.0, 1.0]]


@given(any_window, any_window)
def test_any_pair_of_numbers_gives_a_value_between_0_and_1(a, b):
    value = tiou(window(*a), window(*b)).item()
    assert 0.0 <= value <= 1.0


@given(proper_window)
def test_a_window_is_exactly_equal_to_itself(a):
    assert tiou(window(*a), window(*a)).item() == 1.0


@given(proper_window, proper_window)
def test_value_is_overlap_over_union_of_lengths(a, b):
    overlap = max(0.0, min(a[1], b[1]) - max(a[0], b[0]))
    union = (a[1] - a[0]) + (b[1] - b[0]) - overlap
    assert tiou(window(*a), window(*b)).item() == pytest.approx(overlap / union)


@given(st.lists(proper_window, min_size=1, max_size=4), st.lists(any_window))
def test_pairs_equal_the_aligned_function(a, b):
    a_windows = torch.tensor(a, dtype=torch.float64).reshape(-1, 2)
    b_windows = torch.tensor(b, dtype=torch.float64).reshape(-1, 2)
    table = pairwise_tiou(a_windows, b_windows)
    assert table.shape == (len(a), len(b))
    for i, one in enumerate(a_windows):
        for j, other in enumerate(b_windows):
            assert table[i, j] == tiou(one, other)


def test_leading_dimensions_broadcast():
    a, b = torch.rand(3, 1, 4, 2).sort().values, torch.rand(5, 6, 2).sort().values
    table = pairwise_tiou(a, b)
    assert table.shape == (3, 5, 4, 6)
    assert table[2, 4, 1, 3] == tiou(a[2, 0, 1], b[4, 3])


def test_gradients_are_finite_beside_degenerate_windows():
    a = torch.tensor([[0.0, 4.0], [3.0, 3.0]], requires_grad=True)
    b = torch.tensor([[1.0, 5.0], [3.0, 3.0]])
    tiou(a, b).sum().backward()
    assert a.grad is not None and a.grad.isfinite().all() and a.grad[0].abs().sum() > 0


def test_a_wrong_shape_is_named():
    with pytest.raises(ValueError, match=r"expected b of shape .* got \(4, 3\)"):
        tiou(torch.zeros(4, 2), torch.zeros(4, 3))
