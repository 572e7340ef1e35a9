"""Prompts found by keys."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from avalanche_vilco import vilco_mq_tiny
from avalanche_vilco.models.blocks import masked_mean
from avalanche_vilco.models.output import query_logits
from avalanche_vilco.models.prompt_memory import PromptMemory, install_prompts


def three_keys(top_n: int, temperature: float = 1.0) -> PromptMemory:
    memory = PromptMemory(n_prompts=3, width=2, top_n=top_n, temperature=temperature)
    with torch.no_grad():
        memory.keys.copy_(torch.tensor([[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0]]))
    return memory


def test_query_finds_the_keys_nearest_in_angle() -> None:
    found = three_keys(top_n=2)(torch.tensor([[3.0, 4.0], [-5.0, 0.0]]))
    assert found.similarity[0].tolist() == pytest.approx([0.6, 0.8, -0.6])
    assert found.chosen.tolist() == [[True, True, False], [False, True, True]]


def test_prompts_are_weighted_by_a_softmax_over_the_cosines_of_the_keys_found() -> None:
    found = three_keys(top_n=2, temperature=0.5)(torch.tensor([[3.0, 4.0]]))
    share = 1 / (1 + torch.tensor((0.6 - 0.8) / 0.5).exp())
    assert found.weights[0].tolist() == pytest.approx(
        [1 - float(share), float(share), 0]
    )


def test_pull_is_the_mean_gap_to_the_keys_found() -> None:
    memory = three_keys(top_n=1)
    found = memory(torch.tensor([[3.0, 4.0], [-5.0, 0.0]]))
    assert float(memory.pull(found)) == pytest.approx((0.2 + 0.0) / 2)


@given(st.integers(1, 6), st.integers(0, 5), st.integers(0, 99))
@settings(max_examples=25)
def test_each_query_finds_n_prompts_whatever_the_others_ask(
    top_n: int, n_others: int, seed: int
) -> None:
    memory = PromptMemory(n_prompts=6, width=5, top_n=top_n, seed=seed)
    draw = torch.Generator().manual_seed(seed)
    queries = torch.randn(1 + n_others, 5, generator=draw)
    found, alone = memory(queries), memory(queries[:1])
    assert (found.chosen.sum(1) == top_n).all()
    torch.testing.assert_close(found.weights[:1], alone.weights)
    torch.testing.assert_close(found.weights.sum(1), torch.ones(1 + n_others))


def test_spread_keys_tell_queries_in_a_narrow_cone_apart() -> None:
    draw = torch.Generator().manual_seed(0)
    queries = torch.ones(12, 16) + 0.05 * torch.randn(12, 16, generator=draw)
    memory = PromptMemory(n_prompts=8, width=16, top_n=2)
    alike = memory(queries).chosen.unique(dim=0)
    memory.spread_keys(queries)
    assert len(memory(queries).chosen.unique(dim=0)) > max(4, len(alike))


def test_prompts_start_equal_for_equal_seeds_and_draw_nothing_from_torch() -> None:
    state = torch.get_rng_state()
    one, two = PromptMemory(width=4, seed=3), PromptMemory(width=4, seed=3)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(one.keys, two.keys) and torch.equal(one.prompts, two.prompts)
    assert not torch.equal(one.keys, PromptMemory(width=4, seed=4).keys)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_n": 0}, r"expected top_n in \[1, 10\] but got 0"),
        ({"top_n": 11}, "top_n"),
        ({"length": 0}, "length of at least 1"),
        ({"mode": "append"}, "'append'"),
        ({"temperature": 0.0}, "temperature > 0"),
    ],
)
def test_parameters_out_of_range_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PromptMemory(width=4, **options)


def test_masked_mean_leaves_padding_out() -> None:
    tokens = torch.tensor([[[2.0], [4.0], [9.0]], [[5.0], [5.0], [5.0]]])
    valid = torch.tensor([[True, True, False], [False, False, False]])
    assert masked_mean(tokens, valid).tolist() == [[3.0], [0.0]]


@pytest.fixture
def tiny_model():
    return lambda: vilco_mq_tiny(feature_dim=8, text_dim=12)


@pytest.fixture(params=["replace", "prepend"])
def prompted(request, tiny_model, text_query):
    queries = [text_query(channel) for channel in range(4)]
    model = tiny_model()
    embeddings = torch.stack([query.tokens.mean(0) for query in queries])
    install_prompts(model, embeddings, n_prompts=6, top_n=2, mode=request.param)
    model.learn_queries(queries)
    with torch.no_grad():
        # Untrained rows answer nothing, so all differences come from the texts.
        model.heads.match.weight.mul_(20)
    return model


def test_keys_and_prompts_learn_from_the_output(prompted, clip_batch) -> None:
    prompted.train()
    query_logits(prompted(clip_batch([40, 25]))).square().sum().backward()
    memory = prompted.prompt_memory
    used = prompted.find_prompts(prompted.prompt_memory).chosen.any(0)
    assert (memory.keys.grad.abs().sum(1) > 0).tolist() == used.tolist()
    assert (memory.prompts.grad.abs().sum((1, 2)) > 0).tolist() == used.tolist()


def test_another_text_changes_the_logits(prompted, clip_batch) -> None:
    clips = clip_batch([40])
    before = query_logits(prompted.eval()(clips))
    with torch.no_grad():
        prompted.query_tokens.copy_(prompted.query_tokens.flip(0))
    after = query_logits(prompted(clips))
    assert (before - after).abs().max() > 1e-4


def test_words_reach_the_encoder_only_beside_prompts(prompted, clip_batch) -> None:
    widths: list[int] = []
    prompted.pyramid.register_forward_pre_hook(
        lambda _, inputs: widths.append(inputs[2].shape[1])
    )
    prompted(clip_batch([20]))
    n_prompt_tokens = 6 * 4
    n_words = prompted.known_tokens.numel()
    beside = n_words if prompted.prompt_memory.mode == "prepend" else 0
    assert widths == [n_prompt_tokens + beside + 1]


def test_clip_that_shows_its_queries_sees_their_prompts_only(
    prompted, clip_batch
) -> None:
    clips = clip_batch([20, 20])
    clips.shown = torch.tensor([[True, False, False, False], [True, True, True, True]])
    text = prompted.query_text(clips)
    found = prompted.find_prompts(prompted.prompt_memory).chosen.repeat_interleave(
        4, dim=1
    )
    seen = text.mask[:, : 6 * 4]
    assert torch.equal(seen[0], found[0])
    assert torch.equal(seen[1], found.any(0))


def test_prompts_survive_copies_and_files(prompted, clip_batch, tiny_model) -> None:
    clips = clip_batch([30])
    expected = prompted.eval()(clips)
    assert torch.equal(copy.deepcopy(prompted)(clips), expected)
    other = tiny_model()
    memory = prompted.prompt_memory
    install_prompts(other, n_prompts=6, top_n=2, mode=memory.mode, seed=9)
    other.load_state_dict(prompted.state_dict())
    assert torch.equal(other.eval()(clips), expected)


def test_other_weights_are_those_of_a_model_without_prompts(tiny_model) -> None:
    torch.manual_seed(0)
    plain = tiny_model()
    torch.manual_seed(0)
    prompted = tiny_model()
    install_prompts(prompted)
    ours = prompted.state_dict()
    assert all(torch.equal(ours[key], v) for key, v in plain.state_dict().items())


def test_model_that_cannot_hold_prompts_is_refused() -> None:
    with pytest.raises(TypeError, match="but got Linear"):
        install_prompts(torch.nn.Linear(2, 2))
