"""Blocks see nothing beyond a clip's end."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from avalanche_vilco.models.blocks import (
    CrossAttention,
    CrossModalBlock,
    MaskedConv1d,
    TextBlock,
    sinusoid_positions,
)

CLOSE = {"atol": 1e-5, "rtol": 0.0}


def _mask(*lengths: int, n_steps: int) -> Tensor:
    return torch.arange(n_steps) < torch.tensor(lengths)[:, None]


def _with_garbage(x: Tensor, valid: Tensor) -> Tensor:
    return torch.where(valid[..., None], x, 100 * torch.randn_like(x))


@pytest.mark.parametrize("stride", [1, 2])
def test_conv_is_torchs_on_a_whole_clip(stride: int) -> None:
    conv = MaskedConv1d(4, 6, stride=stride)
    x = torch.randn(2, 8, 4)
    wanted = F.conv1d(
        x.transpose(1, 2), conv.weight, conv.bias, padding=1, stride=stride
    )
    ours = conv(x, torch.ones(2, 8) > 0)
    torch.testing.assert_close(ours, wanted.transpose(1, 2))


@pytest.mark.parametrize("length", [1, 5, 6, 7])
def test_conv_sees_zeros_beyond_the_end(length: int) -> None:
    conv, x = MaskedConv1d(4, 4), torch.randn(1, 8, 4)
    valid = _mask(length, n_steps=8)
    alone = conv(x[:, :length], valid[:, :length])
    torch.testing.assert_close(
        conv(_with_garbage(x, valid), valid)[:, :length], alone, **CLOSE
    )


@pytest.mark.parametrize("n_steps", [1, 2, 7, 8])
@pytest.mark.parametrize("stride", [1, 2])
def test_block_output_and_mask_agree(n_steps: int, stride: int) -> None:
    block = CrossModalBlock(8, 2, stride=stride)
    valid = _mask(n_steps, max(1, n_steps // 2), n_steps=n_steps)
    x, mask = block(
        torch.randn(2, n_steps, 8), valid, torch.randn(1, 3, 8), torch.ones(1, 3) > 0
    )
    assert x.shape == (2, math.ceil(n_steps / stride), 8)
    assert mask.tolist() == valid[:, ::stride].tolist()
    assert not x[~mask].any()


@pytest.mark.parametrize("length", [1, 2, 5, 8])
@pytest.mark.parametrize("stride", [1, 2])
def test_block_treats_a_padded_clip_as_the_clip_alone(length: int, stride: int) -> None:
    block = CrossModalBlock(8, 2, stride=stride)
    # All negative: a pool that took padding for zeros would show.
    x = -torch.rand(1, 16, 8) - 1
    tokens, known = torch.randn(1, 3, 8), torch.ones(1, 3) > 0
    valid = _mask(length, n_steps=16)
    padded, mask = block(_with_garbage(x, valid), valid, tokens, known)
    alone, _ = block(x[:, :length], valid[:, :length], tokens, known)
    torch.testing.assert_close(padded[mask], alone[0], **CLOSE)


def test_tokens_shared_by_the_batch_act_like_copies() -> None:
    attention = CrossAttention(8, 2)
    x, tokens = torch.randn(3, 5, 8), torch.randn(1, 4, 8)
    known = _mask(3, n_steps=4)
    shared = attention(x, tokens, known)
    copies = attention(x, tokens.expand(3, -1, -1), known.expand(3, -1))
    torch.testing.assert_close(shared, copies, **CLOSE)


def test_masked_tokens_are_not_looked_at() -> None:
    attention, x = CrossAttention(8, 2), torch.randn(2, 5, 8)
    tokens, known = torch.randn(1, 4, 8), _mask(2, n_steps=4)
    torch.testing.assert_close(
        attention(x, _with_garbage(tokens, known), known),
        attention(x, tokens[:, :2], known[:, :2]),
        **CLOSE,
    )


def test_attention_is_torchs_multi_head_attention() -> None:
    ours, theirs = CrossAttention(8, 2), nn.MultiheadAttention(8, 2, batch_first=True)
    theirs.in_proj_weight.data = torch.cat([ours.query.weight, ours.key_value.weight])
    theirs.in_proj_bias.data = torch.cat([ours.query.bias, ours.key_value.bias])
    theirs.out_proj.load_state_dict(ours.out.state_dict())
    x, tokens, known = (
        torch.randn(2, 5, 8),
        torch.randn(2, 4, 8),
        _mask(4, 2, n_steps=4),
    )
    wanted, _ = theirs(x, tokens, tokens, key_padding_mask=~known)
    torch.testing.assert_close(ours(x, tokens, known), wanted, atol=1e-5, rtol=1e-5)


def test_text_block_encodes_each_query_by_itself() -> None:
    block, x = TextBlock(8, 2), torch.randn(3, 4, 8)
    known = _mask(4, 2, 1, n_steps=4)
    together = block(_with_garbage(x, known), known)
    for row, length in enumerate((4, 2, 1)):
        alone = block(x[row : row + 1, :length], torch.ones(1, length) > 0)
        torch.testing.assert_close(together[row, :length], alone[0], **CLOSE)


@pytest.mark.parametrize("stride", [1, 2])
def test_every_parameter_of_a_block_learns(stride: int) -> None:
    block = CrossModalBlock(8, 2, stride=stride)
    x, _ = block(
        torch.randn(2, 8, 8),
        _mask(8, 5, n_steps=8),
        torch.randn(1, 3, 8),
        torch.ones(1, 3) > 0,
    )
    (x * torch.randn_like(x)).sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in block.parameters())


def test_position_code_is_the_sinusoid_of_the_step() -> None:
    code = sinusoid_positions(900, 16, torch.device("cpu"))
    assert code.shape == (900, 16)
    assert code.abs().max() <= 1
    for step, pair in ((0, 0), (7, 0), (7, 3), (899, 7)):
        angle = step / 10000 ** (2 * pair / 16)
        assert code[step, 2 * pair].item() == pytest.approx(math.sin(angle), abs=1e-3)
        assert code[step, 2 * pair + 1].item() == pytest.approx(
            math.cos(angle), abs=1e-3
        )
    assert len(code.unique(dim=0)) == 900


@pytest.mark.parametrize("n_texts", [1, 2])
@pytest.mark.parametrize("n_tokens", [3, 7])
def test_few_tokens_are_attended_to_as_many_are(n_texts: int, n_tokens: int) -> None:
    # Two heads of four channels: three tokens are few, seven are not.
    attention = CrossAttention(8, 2).double()
    x = torch.randn(2, 5, 8, dtype=torch.float64, requires_grad=True)
    tokens = torch.randn(n_texts, n_tokens, 8, dtype=torch.float64, requires_grad=True)
    valid = torch.arange(n_tokens) < torch.tensor([[2], [3]])[:n_texts]
    query, key, value = (
        part.unflatten(-1, (2, 4)).transpose(1, 2)
        for part in (attention.query(x), *attention.key_value(tokens).chunk(2, -1))
    )
    scores = query @ key.mT / 2
    weights = scores.masked_fill(~valid[:, None, None], -torch.inf).softmax(-1)
    wanted = attention.out((weights @ value).transpose(1, 2).flatten(2))
    ours = attention(x, tokens, valid)
    torch.testing.assert_close(ours, wanted, rtol=0, atol=1e-9)
    inputs = (x, tokens, *attention.parameters())
    slope = torch.randn_like(wanted)
    for one, other in zip(
        torch.autograd.grad(ours, inputs, slope),
        torch.autograd.grad(wanted, inputs, slope),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)
