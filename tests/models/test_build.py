"""Sizes, and that every parameter is there for something."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from avalanche_vilco import vilco_mq_base, vilco_mq_tiny
from avalanche_vilco.benchmarks.vilco_mq.models import BASE
from avalanche_vilco.models.build import localizer_parts
from avalanche_vilco.models.decoding import MomentDecoder
from avalanche_vilco.models.losses import MomentLoss
from avalanche_vilco.models.moment_localizer import MomentLocalizer

PUBLIC_MODEL = 441_127_078
"""Parameters of the public MQ model with 22 queries; 36.9 % of them never get a
gradient."""


def _count(model: MomentLocalizer) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _narrow_base() -> MomentLocalizer:
    """vilco_mq_base at width 32."""
    parts = localizer_parts(
        replace(BASE, dim=32), feature_dim=24, text_dim=20, decoder=MomentDecoder()
    )
    return MomentLocalizer(**parts)


def _train_step(
    model: MomentLocalizer, text_query, clip_batch, moment_targets, *, n_steps: int
) -> list[str]:
    """Parameters without a gradient after one backward pass."""
    width = model.text.projection.in_features
    model.train().learn_queries([text_query(i, width=width) for i in range(3)])
    lengths = [n_steps, n_steps // 2]
    clips = clip_batch(lengths, width=model.stem.projection.in_features)
    windows = [[(2, 9, 0), (3, n_steps - 2, 1)], [(4.1, 4.3, 2)]]
    targets = moment_targets(lengths, windows, n_queries=3)
    MomentLoss()(model(clips), targets).backward()
    return [
        name
        for name, p in model.named_parameters()
        if p.grad is None or not p.grad.any()
    ]


@pytest.mark.parametrize(
    "make", [lambda: vilco_mq_tiny(feature_dim=8, text_dim=12), _narrow_base]
)
@pytest.mark.parametrize("n_steps", [20, 64])
def test_every_parameter_learns_from_the_first_batch(
    make: Callable, n_steps, text_query, clip_batch, moment_targets
) -> None:
    dead = _train_step(make(), text_query, clip_batch, moment_targets, n_steps=n_steps)
    assert dead == []


@pytest.mark.slow
def test_every_parameter_of_the_paper_sized_model_learns(
    text_query, clip_batch, moment_targets
) -> None:
    model = vilco_mq_base()
    dead = _train_step(model, text_query, clip_batch, moment_targets, n_steps=64)
    assert dead == []


def test_parameter_counts_are_known() -> None:
    """The paper-sized model does with 53 % of the public one's parameters."""
    tiny = vilco_mq_tiny()
    assert _count(tiny) == 284_648
    with torch.device("meta"):
        base = vilco_mq_base()
        base.heads.cls.grow(22)
    assert _count(base) == 235_027_490 < 0.54 * PUBLIC_MODEL


def test_a_query_costs_one_row_of_the_head(text_query) -> None:
    model = vilco_mq_tiny(text_dim=12)
    before = _count(model)
    model.learn_queries([text_query(0)])
    assert _count(model) - before == 3 * 48 + 1


def test_levels_span_the_longest_clips() -> None:
    with torch.device("meta"):
        assert vilco_mq_base().pyramid.n_levels == 10
    assert vilco_mq_tiny().pyramid.n_levels == 6


def test_decoding_options_reach_the_decoder() -> None:
    assert vilco_mq_tiny(max_windows=7).decoder.max_windows == 7
    with torch.device("meta"):
        assert vilco_mq_base().decoder.max_candidates == 5000
        assert vilco_mq_base(max_candidates=9).decoder.max_candidates == 9


def test_unknown_options_are_refused() -> None:
    with pytest.raises(TypeError, match="max_window"):
        vilco_mq_tiny(max_window=7)
