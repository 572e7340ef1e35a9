"""One question a clip, one logit, attention to near steps."""

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from avalanche_vilco import vilco_nlq_base, vilco_nlq_tiny
from avalanche_vilco.core.batch import QueryClipBatch
from avalanche_vilco.models.blocks import ConvSelfAttention
from avalanche_vilco.models.losses import MomentLoss
from avalanche_vilco.models.output import point_grid
from avalanche_vilco.models.prompt_memory import install_prompts


def asked(lengths: list[int], n_tokens: list[int], seed: int = 0) -> QueryClipBatch:
    draw = torch.Generator().manual_seed(seed)
    clips = [torch.randn(n, 8, generator=draw) for n in lengths]
    tokens = [torch.randn(n, 12, generator=draw) for n in n_tokens]
    return QueryClipBatch(
        features=pad_sequence(clips, True),
        valid=pad_sequence([torch.ones(n).bool() for n in lengths], True),
        tokens=pad_sequence(tokens, True),
        valid_tokens=pad_sequence([torch.ones(n).bool() for n in n_tokens], True),
    )


@pytest.fixture(params=[None, "replace", "prepend"])
def model(request):
    torch.manual_seed(0)
    model = vilco_nlq_tiny(feature_dim=8, text_dim=12)
    if request.param:
        install_prompts(model, torch.randn(9, 12), top_n=2, mode=request.param)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model.eval()


def points(output: Tensor, clips: QueryClipBatch) -> list[Tensor]:
    grid = point_grid(output.shape[-1], clips.valid.shape[1], output.device)
    own = grid.valid(clips.valid)
    return [row[:, kept] for row, kept in zip(output, own, strict=True)]


@pytest.mark.parametrize("n_words", [1, 200])
def test_output_has_one_logit_and_two_distances(model, n_words):
    output = model(asked([40, 65], [n_words, 3]))
    assert output.shape[:2] == (2, 3) and output.isfinite().all()


def test_answer_depends_on_the_clip_and_its_question_alone(model):
    clips = asked([40, 65, 33], [4, 1, 9])
    together = points(model(clips), clips)
    for i, expected in enumerate(together):
        alone = clips[i]
        n, words = int(alone.valid.sum()), int(alone.valid_tokens.sum())
        alone.features, alone.valid = alone.features[:, :n], alone.valid[:, :n]
        alone.tokens = alone.tokens[:, :words]
        alone.valid_tokens = alone.valid_tokens[:, :words]
        torch.testing.assert_close(
            points(model(alone), alone)[0], expected, rtol=1e-4, atol=1e-5
        )


def test_another_question_changes_the_answer(model):
    clips = asked([40], [5])
    before = model(clips)
    clips.tokens = clips.tokens.flip(2)
    assert (model(clips) - before).abs().max() > 1e-4


def test_every_parameter_learns(moment_targets):
    torch.manual_seed(0)
    model = vilco_nlq_tiny(feature_dim=8, text_dim=12).train()
    targets = moment_targets([40, 64], [[(3, 9, 0)], [(20.1, 20.3, 0)]], n_queries=1)
    clips = asked([40, 64], [5, 2])
    # The head's one row starts at zero, so its trunk learns from the second step on.
    for parameter in model.heads.cls.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    MomentLoss()(model(clips), targets).backward()
    dead = [
        n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()
    ]
    assert dead == []


def test_experience_adds_no_channel(model):
    model.train().adaptation(object())
    assert model.n_queries == 1


@pytest.mark.parametrize("n_steps", [1, 7, 31, 32, 33, 100])
@pytest.mark.parametrize("span", [1, 9, 41])
@pytest.mark.parametrize("stride", [1, 2])
def test_a_span_is_attention_with_far_steps_hidden(n_steps, span, stride):
    torch.manual_seed(0)
    near = ConvSelfAttention(8, 2, stride=stride, span=span)
    n_steps += n_steps % stride
    x = torch.randn(2, n_steps, 8)
    valid = torch.arange(n_steps) < torch.tensor([[n_steps], [max(1, n_steps // 2)]])
    out = valid[:, ::stride]
    query, key, value = near.query_key_value(near.norm(near.conv(x, valid))).chunk(
        3, -1
    )
    steps = torch.arange(out.shape[1])
    seen = ((steps[:, None] - steps).abs() <= span // 2) & out[:, None]
    heads = [
        part.unflatten(-1, (2, -1)).transpose(1, 2) for part in (query, key, value)
    ]
    scores = heads[0] @ heads[1].mT / 4**0.5
    weights = scores.masked_fill(~seen[:, None], -1e9).softmax(-1)
    expected = near.out((weights @ heads[2]).transpose(1, 2).flatten(2))
    torch.testing.assert_close(near(x, valid, out)[out], expected[out])


def test_an_even_span_is_refused():
    with pytest.raises(ValueError, match="odd span of at least 1 but got 8"):
        ConvSelfAttention(8, 2, span=8)


def test_public_size_is_what_it_says():
    with torch.device("meta"):
        model = vilco_nlq_base()
    n_parameters = sum(p.numel() for p in model.parameters())
    # The public model has 30 M, of other blocks at the same sizes.
    assert 20e6 < n_parameters < 45e6
