"""The lower bound's encoder: the levels of the pyramid, and nothing that attends."""

import torch
from torch import nn

from avalanche_vilco import vilco_mq_tiny
from avalanche_vilco.benchmarks.vilco_mq.models import (
    vilco_mq_base_lower,
    vilco_mq_tiny_lower,
)
from avalanche_vilco.models.blocks import ConvSelfAttention, CrossAttention, TextBlock
from avalanche_vilco.models.localizer import FeaturePyramid
from avalanche_vilco.models.losses import MomentLoss
from avalanche_vilco.models.pooled_pyramid import PooledPyramid


def test_levels_and_masks_are_those_of_the_full_pyramid() -> None:
    full = FeaturePyramid(dim=8, n_heads=2, n_stem_blocks=1, n_levels=4, dropout=0.0)
    pooled = PooledPyramid(dim=8, n_levels=4)
    x, valid = torch.randn(2, 16, 8), torch.arange(16) < torch.tensor([[16], [9]])
    tokens, seen = torch.randn(1, 3, 8), torch.ones(1, 3, dtype=torch.bool)
    levels, masks = pooled(x, valid, tokens, seen)
    theirs, their_masks = full(x, valid, tokens, seen)
    assert [level.shape for level in levels] == [level.shape for level in theirs]
    assert all(map(torch.equal, masks, their_masks))


def test_a_level_is_the_maximum_of_the_valid_steps_below() -> None:
    pooled = PooledPyramid(dim=2, n_levels=3)
    pooled.norms = nn.ModuleList(nn.Identity() for _ in range(3))
    x = torch.tensor([5.0, 1.0, 2.0, 7.0, 9.0, 9.0, 9.0, 9.0])[None, :, None].expand(
        1, 8, 2
    )
    valid = torch.arange(8)[None] < 4
    levels, masks = pooled(x, valid, torch.zeros(1, 1, 2), torch.ones(1, 1).bool())
    assert levels[1][0, :, 0].tolist() == [5.0, 7.0, 0.0, 0.0]
    assert levels[2][0, :, 0].tolist() == [7.0, 0.0]
    assert masks[2].tolist() == [[True, False]]


def test_nothing_in_the_lower_bound_attends() -> None:
    attention = (ConvSelfAttention, CrossAttention, TextBlock)
    assert any(isinstance(part, attention) for part in vilco_mq_tiny().modules())
    for make in (vilco_mq_tiny_lower, vilco_mq_base_lower):
        with torch.device("meta"):
            model = make()
        assert not any(isinstance(part, attention) for part in model.modules())
        assert not model.heads.cls_convs and not model.heads.reg_convs


def test_the_lower_bound_is_small() -> None:
    def count(model: nn.Module) -> int:
        return sum(p.numel() for p in model.parameters() if p.requires_grad)

    assert count(vilco_mq_tiny_lower()) < 0.1 * count(vilco_mq_tiny())


def test_every_parameter_that_learns_gets_a_gradient(
    text_query, clip_batch, moment_targets
) -> None:
    model = vilco_mq_tiny_lower(feature_dim=8, text_dim=12).train()
    model.learn_queries([text_query(i, width=12) for i in range(3)])
    clips = clip_batch([64, 32], width=8)
    windows = [[(2, 9, 0), (3, 62, 1)], [(4.1, 4.3, 2)]]
    targets = moment_targets([64, 32], windows, n_queries=3)
    MomentLoss()(model(clips), targets).backward()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None and parameter.grad.any(), name
        else:
            assert name == "text.null_token"


def test_steps_see_no_farther_than_convolutions_and_pools(
    text_query, clip_batch
) -> None:
    model = vilco_mq_tiny_lower(feature_dim=8, text_dim=12).train()
    model.learn_queries([text_query(0, width=12)])
    with torch.no_grad():
        model.heads.cls.weight.normal_()
    model.eval()
    clips = clip_batch([64], width=8)
    before = model(clips)
    clips.features[0, 60] += 10.0
    after = model(clips)
    # The finest level's steps that are farther than two convolutions from step 60.
    assert torch.equal(before[..., :58], after[..., :58])
    assert not torch.equal(before[..., 60], after[..., 60])
