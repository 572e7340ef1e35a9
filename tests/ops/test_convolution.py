"""The convolution of half the products is torch's."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from avalanche_vilco.ops.convolution import (
    convolve3,
    narrow_convolve3,
    saves_products,
)

SIZES = st.tuples(*(st.integers(1, high) for high in (3, 13, 4, 5)))


@given(SIZES, st.integers(0, 2**16))
@settings(max_examples=40, deadline=None)
def test_values_and_slopes_are_those_of_conv1d(
    sizes: tuple[int, int, int, int], seed: int
) -> None:
    n_clips, n_steps, n_in, n_out = sizes
    torch.manual_seed(seed)
    x = torch.randn(n_clips, n_steps, n_in, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(n_out, n_in, 3, dtype=torch.float64, requires_grad=True)
    slope = torch.randn(n_clips, n_steps, n_out, dtype=torch.float64)
    valid = torch.rand(n_clips, n_steps) < 0.7
    masked = (x * valid[..., None]).transpose(1, 2)
    wanted = F.conv1d(masked, weight, padding=1).transpose(1, 2)
    narrow = narrow_convolve3(x * valid[..., None], weight)
    torch.testing.assert_close(narrow, wanted, rtol=0, atol=1e-9)
    ours = convolve3(x, valid, weight)
    torch.testing.assert_close(ours, wanted, rtol=0, atol=1e-9)
    for one, other in zip(
        torch.autograd.grad(ours, (x, weight), slope),
        torch.autograd.grad(wanted, (x, weight), slope),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


def test_float32_stays_within_1e_5() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(2, 50, 256), torch.randn(256, 256, 3) / 768**0.5
    wanted = F.conv1d(x.transpose(1, 2), weight, padding=1).transpose(1, 2)
    ours = convolve3(x, torch.ones(2, 50, dtype=torch.bool), weight)
    torch.testing.assert_close(ours, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("x", "weight", "saves"),
    [
        (torch.zeros(1, 4, 256), torch.zeros(256, 256, 3), True),
        (torch.zeros(1, 4, 48), torch.zeros(48, 48, 3), False),
        (torch.zeros(1, 4, 256), torch.zeros(2, 256, 3), False),
        (torch.zeros(1, 4, 256).bfloat16(), torch.zeros(256, 256, 3), False),
    ],
)
def test_the_faster_form_is_chosen_by_size_and_type(
    x: torch.Tensor, weight: torch.Tensor, saves: bool
) -> None:
    assert saves_products(x, weight) == saves
