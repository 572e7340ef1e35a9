"""Distances from a teacher, by hand."""

from math import log

import pytest
import torch
from torch import Tensor, nn

from avalanche_vilco.training.distillation import (
    frozen_copy,
    logit_distillation,
    regression_distillation,
)

LOG3 = log(3)


def points(*values: float) -> Tensor:
    """(1, K, 1): one point with these channels."""
    return torch.tensor(values)[None, :, None]


def test_two_classes_by_hand() -> None:
    # Teacher says 3/4 and 1/2, student 1/2 and 3/4.
    term = logit_distillation(
        points(0.0, LOG3), points(LOG3, 0.0), torch.ones(1, 1, dtype=torch.bool)
    )
    expected = log(2) - 0.5 * log(0.75) - 0.5 * log(0.25)
    assert float(term) == pytest.approx(expected)


def test_temperature_softens_both_and_keeps_the_size_of_gradients() -> None:
    logits = points(0.0, 2 * LOG3).requires_grad_()
    valid = torch.ones(1, 1, dtype=torch.bool)
    term = logit_distillation(logits, points(2 * LOG3, 0.0), valid, temperature=2.0)
    expected = log(2) - 0.5 * log(0.75) - 0.5 * log(0.25)
    assert float(term.detach()) == pytest.approx(4 * expected)
    (slope,) = torch.autograd.grad(term, logits)
    # T * (student - teacher)
    assert slope.flatten().tolist() == pytest.approx([2 * -0.25, 2 * 0.25])


def test_agreement_has_no_slope() -> None:
    logits = torch.randn(2, 3, 5, requires_grad=True)
    valid = torch.ones(2, 5, dtype=torch.bool)
    term = logit_distillation(logits, logits.detach(), valid, temperature=3.0)
    (slope,) = torch.autograd.grad(term, logits)
    assert slope.abs().max() < 1e-6


def test_new_channels_and_padding_are_free() -> None:
    logits = torch.randn(2, 3, 4, requires_grad=True)
    valid = torch.tensor([[True] * 4, [True, True, False, False]])
    (slope,) = torch.autograd.grad(
        logit_distillation(logits, torch.randn(2, 2, 4), valid), logits
    )
    assert not slope[:, 2].any()
    assert not slope[1, :, 2:].any()
    assert slope[0, :2].all()
    assert slope[1, :2, :2].all()


def test_term_is_a_mean_over_points_whatever_the_padding() -> None:
    logits, taught = torch.randn(1, 2, 3), torch.randn(1, 2, 3)
    valid = torch.ones(1, 3, dtype=torch.bool)
    alone = logit_distillation(logits, taught, valid)
    padded = [torch.cat([x, torch.zeros(1, 2, 5)], dim=2) for x in (logits, taught)]
    longer = torch.cat([valid, torch.zeros(1, 5, dtype=torch.bool)], dim=1)
    assert float(logit_distillation(*padded, longer)) == pytest.approx(float(alone))
    twice = [x.repeat(2, 1, 1) for x in (logits, taught)]
    assert float(logit_distillation(*twice, valid.repeat(2, 1))) == pytest.approx(
        float(alone)
    )


def test_regression_counts_by_confidence() -> None:
    ours = torch.tensor([[[1.0, 5.0], [0.5, 5.0]]])
    taught = torch.zeros(1, 2, 2)
    # Smooth L1: 1 - 1/2 and 0.5^2 / 2 at the first point, 4.5 twice at the second.
    for confidence, expected in ([1.0, 0.0], 0.625), ([0.3, 0.1], 0.75 * 0.625 + 2.25):
        term = regression_distillation(ours, taught, torch.tensor([confidence]))
        assert float(term) == pytest.approx(expected)


def test_regression_of_a_teacher_sure_of_nothing_is_zero_not_nan() -> None:
    term = regression_distillation(
        torch.ones(1, 2, 3), torch.zeros(1, 2, 3), torch.zeros(1, 3)
    )
    assert float(term) == 0


def test_teacher_is_a_copy_that_stays() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    teacher = frozen_copy(model)
    assert model.training
    assert not any(module.training for module in teacher.modules())
    assert all(p.requires_grad for p in model.parameters())
    assert not any(p.requires_grad for p in teacher.parameters())
    before = teacher[0].weight.clone()
    with torch.no_grad():
        model[0].weight += 1
    assert torch.equal(teacher[0].weight, before)
