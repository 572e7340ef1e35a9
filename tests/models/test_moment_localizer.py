"""The localiser: clips do not touch each other, text counts, heads only grow."""

import io
from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from avalanche.models.dynamic_optimizers import update_optimizer
from torch import Tensor

from avalanche_vilco import vilco_mq_tiny
from avalanche_vilco.core.batch import ClipBatch
from avalanche_vilco.models.localizer import PRIOR_PROBABILITY, GrowingHead
from avalanche_vilco.models.losses import MomentLoss
from avalanche_vilco.models.moment_localizer import MomentLocalizer
from avalanche_vilco.models.output import (
    OFFSET_LOW,
    OFFSET_SPAN,
    n_points,
    point_grid,
    query_logits,
    regression,
)

LENGTHS = [1, 2, 5, 33, 64, 65, 90]
BF16 = {"device_type": "cpu", "dtype": torch.bfloat16}


def _valid_points(output: Tensor, valid: Tensor, row: int) -> Tensor:
    """(K + 2, P) columns of the clip's own points, fine to coarse."""
    grid = point_grid(output.shape[-1], valid.shape[1], output.device)
    return output[row][:, grid.valid(valid)[row]]


def _with_tokens(model: MomentLocalizer, tokens: Tensor) -> MomentLocalizer:
    other = deepcopy(model)
    other.query_tokens = torch.where(other.known_tokens[..., None], tokens, 0.0)
    return other


def _experience(*queries, **more):
    return SimpleNamespace(queries_in_this_experience=queries, **more)


def _showing(clips: ClipBatch, *channels: list[int], n_queries: int) -> ClipBatch:
    """Clips that see the texts of these channels only."""
    shown = torch.zeros(len(clips), n_queries, dtype=torch.bool)
    for row, own in zip(shown, channels, strict=True):
        row[own] = True
    return ClipBatch(**{**clips.fields(), "shown": shown})


@pytest.mark.parametrize(
    "order", [[3], [0, 6, 4], [6, 5, 4, 3, 2, 1, 0], [2, 0, 6, 1, 5, 3, 4]]
)
def test_a_clip_in_a_batch_is_the_clip_alone(
    order, localizer, clip_batch, moment_targets
):
    model = localizer()
    lengths = [LENGTHS[i] for i in order]
    clips, targets = clip_batch(lengths, seeds=order), moment_targets(lengths)
    output = model(clips)
    found = model.decode(output, targets)
    for row, (i, length) in enumerate(zip(order, lengths, strict=True)):
        alone = clip_batch([length], seeds=[i])
        alone_output = model(alone)
        torch.testing.assert_close(
            _valid_points(output, clips.valid, row),
            _valid_points(alone_output, alone.valid, 0),
            atol=1e-5,
            rtol=1e-5,
        )
        wanted = model.decode(alone_output, moment_targets([length]))
        torch.testing.assert_close(
            found.scores[row], wanted.scores[0], atol=1e-5, rtol=0
        )
        # Windows whose scores differ by a rounding may change places.
        assert found.labels[row].sort().values.equal(wanted.labels[0].sort().values)
        torch.testing.assert_close(
            found.segments_sec[row].sum(0),
            wanted.segments_sec[0].sum(0),
            atol=1e-4,
            rtol=1e-5,
        )


def test_what_lies_beyond_a_clips_end_does_not_matter(localizer, clip_batch):
    model, clips = localizer(), clip_batch([1, 40, 64])
    garbage = 1e3 * torch.randn_like(clips.features)
    dirty = ClipBatch(
        features=torch.where(clips.valid[..., None], clips.features, garbage),
        valid=clips.valid,
    )
    torch.testing.assert_close(model(dirty), model(clips), atol=1e-6, rtol=0)


def test_points_beyond_a_clips_end_are_zero(localizer, clip_batch):
    model, clips = localizer(), clip_batch([1, 40, 64])
    output = model(clips)
    inside = point_grid(output.shape[-1], 64, output.device).valid(clips.valid)
    assert not output.masked_fill(inside[:, None], 0).any()
    assert output.transpose(1, 2)[inside].all()


@pytest.mark.parametrize("n_steps", [1, 31, 32, 33])
def test_output_has_the_points_of_its_pyramid(n_steps, localizer, clip_batch):
    output = localizer()(clip_batch([n_steps]))
    assert output.shape == (1, 4 + 2, n_points(n_steps, 6))
    offsets = regression(output)
    assert offsets.min() > OFFSET_LOW
    assert offsets.max() < OFFSET_LOW + OFFSET_SPAN


def test_form_does_not_depend_on_the_mode(localizer, clip_batch):
    model, clips = localizer(), clip_batch([20, 9])
    assert torch.equal(model.train()(clips), model.eval()(clips))


def test_levels_do_not_see_their_neighbours_in_the_heads(localizer):
    heads = localizer().heads
    levels = [torch.randn(2, n, 48) for n in (8, 4, 2)]
    masks = [torch.ones(2, n) > 0 for n in (8, 4, 2)]
    heads.scale.data.fill_(1.0)
    summaries = torch.randn(4, 48)
    logits, offsets, valid = heads(levels, masks, summaries)
    assert logits.shape == (2, 4, 14) and offsets.shape == (2, 2, 14)
    assert valid.all()
    start = 0
    for level, mask in zip(levels, masks, strict=True):
        own = slice(start, start + level.shape[1])
        own_logits, own_offsets, _ = heads([level], [mask], summaries)
        torch.testing.assert_close(logits[..., own], own_logits, atol=1e-5, rtol=0)
        torch.testing.assert_close(offsets[..., own], own_offsets, atol=1e-5, rtol=0)
        start = own.stop


def test_nothing_waits_for_the_device(localizer, clip_batch, moment_targets):
    """Meta tensors have no values: looking at one raises."""
    model = localizer().to("meta").train()
    clips = clip_batch([40, 64]).to("meta")
    targets = moment_targets([40, 64], [[(2, 9, 0)], [(3, 5, 1)]]).to("meta")
    output = model(clips)
    MomentLoss()(output, targets).backward()
    found = model.decode(output, targets)
    assert found.device.type == "meta"
    assert all(p.grad is not None for p in model.parameters())


def test_clip_embeddings_are_means_over_the_clip_and_pass_the_hook_point(
    localizer, clip_batch
):
    model, seen = localizer(), []
    model.pooled.register_forward_hook(lambda _, __, code: seen.append(code))
    codes = model.clip_embeddings(clip_batch([5, 64], seeds=[3, 4]))
    alone = model.clip_embeddings(clip_batch([5], seeds=[3]))
    assert codes.shape == (2, 48)
    assert seen[0] is codes
    torch.testing.assert_close(codes[:1], alone, atol=1e-5, rtol=0)


def test_text_reaches_the_logits_and_windows_of_every_clip(localizer, clip_batch):
    model, clips = localizer(), clip_batch([1, 40, 64])
    other = _with_tokens(model, torch.randn_like(model.query_tokens))
    before, after = model(clips), other(clips)
    change = (query_logits(before) - query_logits(after)).abs()
    assert (change.amax(dim=(1, 2)) > 1e-3).all()
    assert not torch.equal(regression(before), regression(after))


def test_swapped_texts_swap_what_tells_two_queries_apart(
    localizer, text_query, clip_batch
):
    """With equal head rows a query's logit is its text's alone."""
    model, clips = localizer(0), clip_batch([40, 64])
    texts = [text_query(0).tokens, text_query(1).tokens]
    swapped = deepcopy(model)
    model.learn_queries([text_query(0), text_query(1)])
    swapped.learn_queries(
        [
            replace(text_query(0), tokens=texts[1]),
            replace(text_query(1), tokens=texts[0]),
        ]
    )
    logits, other = query_logits(model(clips)), query_logits(swapped(clips))
    assert (logits[:, 0] - logits[:, 1]).abs().max() > 1e-3
    torch.testing.assert_close(other, logits.flip(1), atol=1e-5, rtol=0)


def test_a_new_query_leaves_the_codes_of_the_others(localizer, text_query, clip_batch):
    model = localizer(3)
    known = model.known_tokens.clone()
    before = model.text_of(clip_batch([8])).tokens[0, :-1]
    model.learn_queries([text_query(3, 9), text_query(4, 1)])
    after = model.text_of(clip_batch([8])).tokens[0, :-1]
    # Tokens follow each other by query, real ones only.
    new, old = after[: len(before)], before
    assert len(before) == known.sum()
    # The sums of attention are longer by masked terms: equal but for the rounding.
    torch.testing.assert_close(new, old, atol=2e-6, rtol=0)


def test_unlearnt_channels_do_not_disturb_the_others(localizer, text_query, clip_batch):
    model, clips = localizer(0), clip_batch([40, 9])
    late = deepcopy(model)
    model.learn_queries([text_query(0)])
    late.learn_queries([replace(text_query(0), class_index=3)])
    output, late_output = model(clips), late(clips)
    assert late.n_queries == 4
    assert torch.isfinite(late_output).all()
    torch.testing.assert_close(late_output[:, 3:], output, atol=1e-6, rtol=0)


def test_queries_learnt_out_of_order_end_up_the_same(localizer, text_query, clip_batch):
    model, clips = localizer(0), clip_batch([40])
    shuffled = deepcopy(model)
    queries = [text_query(i, 2 + i) for i in range(5)]
    model.learn_queries(queries)
    for i in (3, 0, 4, 2, 1):
        shuffled.learn_queries([queries[i]])
    assert torch.equal(shuffled.query_tokens, model.query_tokens)
    assert torch.equal(shuffled.known_tokens, model.known_tokens)
    assert torch.equal(shuffled(clips), model(clips))


def test_old_head_rows_are_bit_equal_after_growth(localizer, text_query):
    model = localizer(2)
    weight, bias = (p.detach().clone() for p in model.heads.cls.parameters())
    rest = {n: p for n, p in model.named_parameters() if "heads.cls." not in n}
    model.train().adaptation(_experience(*(text_query(i) for i in range(2, 5))))
    head = model.heads.cls
    assert head.out_channels == model.n_queries == 5
    assert torch.equal(head.weight[:2], weight)
    assert torch.equal(head.bias[:2], bias)
    assert not head.weight[2:].any()
    assert torch.allclose(head.bias[2:].sigmoid(), torch.tensor(PRIOR_PROBABILITY))
    assert all(p is rest[n] for n, p in model.named_parameters() if n in rest)


def test_growing_draws_no_random_number(localizer, text_query):
    model = localizer()
    state = torch.get_rng_state()
    model.learn_queries([text_query(9)])
    assert torch.equal(torch.get_rng_state(), state)


def test_growing_to_fewer_rows_changes_nothing():
    head = GrowingHead(16)
    head.grow(3)
    weight = head.weight
    head.grow(2)
    assert head.weight is weight and head.out_channels == 3


def test_model_grows_in_training_mode_only(localizer, text_query):
    model = localizer(2)
    model.eval().adaptation(_experience(text_query(2)))
    assert model.n_queries == 2
    model.train().adaptation(_experience(text_query(2)))
    assert model.n_queries == 3


def test_learning_a_query_again_changes_nothing(localizer, text_query):
    model = localizer(3).train()
    weight, tokens = model.heads.cls.weight, model.query_tokens
    model.adaptation(_experience(text_query(1, seed=50)))
    assert model.heads.cls.weight is weight
    assert model.query_tokens is tokens


def test_experience_without_queries_is_refused_in_training(localizer):
    model = localizer()
    model.eval().adaptation(object())
    with pytest.raises(TypeError, match=r"queries_in_this_experience.* got object"):
        model.train().adaptation(object())


@pytest.mark.parametrize("shape", [(3, 13), (0, 12), (12,), (2, 3, 12), ()])
def test_tokens_that_do_not_fit_are_refused_and_nothing_learnt(
    shape, localizer, text_query
):
    model = localizer(2)
    wrong = replace(text_query(3), tokens=torch.zeros(shape))
    with pytest.raises(ValueError, match=r"expected \(L > 0, 12\) .* class index 3"):
        model.learn_queries([text_query(2), wrong])
    assert model.n_queries == 2


def test_model_without_queries_runs(localizer, clip_batch, moment_targets):
    model, clips = localizer(0), clip_batch([40, 9])
    targets = moment_targets([40, 9], [[(3, 9, 0)], []])
    output = model(clips)
    assert output.shape == (2, 2, n_points(40, 6))
    loss = MomentLoss()(output, targets)
    loss.backward()
    assert loss == 0
    found = model.decode(output, targets)
    assert (found.labels == -1).all() and not found.scores.any()


def test_experiences_not_learnt_can_be_evaluated(localizer, clip_batch, moment_targets):
    model, clips = localizer(2), clip_batch([40, 64])
    targets = moment_targets([40, 64], [[(3, 9, 3)], [(30, 40, 2)]], n_queries=6)
    output = model(clips)
    assert MomentLoss()(output, targets).isfinite()
    assert model.decode(output, targets).labels.max() < 2


def _loss(model, clips, targets):
    return MomentLoss()(model(clips), targets)


def test_optimizer_state_of_unchanged_parameters_survives_growth(
    localizer, clip_batch, moment_targets, text_query
):
    model, clips = localizer(2).train(), clip_batch([40, 9])
    targets = moment_targets([40, 9], [[(3, 9, 0)], [(2, 4, 1)]])
    optimizer = torch.optim.Adam(model.parameters())
    optimized = update_optimizer(optimizer, dict(model.named_parameters()))
    _loss(model, clips, targets).backward()
    optimizer.step()
    before = {
        n: optimizer.state[p]["exp_avg"].clone() for n, p in model.named_parameters()
    }
    model.adaptation(_experience(text_query(2)))
    update_optimizer(optimizer, dict(model.named_parameters()), optimized)
    grown = {"heads.cls.weight", "heads.cls.bias"}
    for name, parameter in model.named_parameters():
        state = optimizer.state[parameter]
        assert (not state) if name in grown else state["exp_avg"].equal(before[name])
    optimizer.zero_grad()
    _loss(model, clips, targets).backward()
    optimizer.step()
    owned = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert owned == {id(p) for p in model.parameters()}


def test_model_can_be_copied_after_a_backward_pass(
    localizer, clip_batch, moment_targets
):
    model, clips = localizer().train(), clip_batch([40])
    _loss(model, clips, moment_targets([40], [[(3, 9, 0)]])).backward()
    model.clip_embeddings(clips)
    assert torch.equal(deepcopy(model)(clips), model(clips))


def test_weights_load_into_a_model_without_queries(localizer, clip_batch):
    model, clips = localizer(), clip_batch([40, 9])
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    fresh = vilco_mq_tiny(feature_dim=8, text_dim=12).eval()
    fresh.load_state_dict(torch.load(file, weights_only=True))
    assert fresh.n_queries == 4
    assert torch.equal(fresh(clips), model(clips))
    fresh.learn_queries([SimpleNamespace(class_index=4, tokens=torch.randn(2, 12))])
    assert fresh(clips).shape[1] == 5 + 2


def test_weights_of_fewer_queries_are_refused(localizer):
    with pytest.raises(RuntimeError, match="size mismatch"):
        localizer(5).load_state_dict(localizer(2).state_dict())


def test_half_precision_is_finite_and_close(localizer, clip_batch, moment_targets):
    model, clips = localizer().train(), clip_batch([40, 64])
    targets = moment_targets([40, 64], [[(3, 9, 0)], [(30, 40, 2)]])
    exact = model(clips)
    with torch.autocast(**BF16):
        output = model(clips)
        loss = MomentLoss()(output, targets)
    loss.backward()
    assert loss.dtype == torch.float32
    assert all(
        p.grad is not None and p.grad.isfinite().all() for p in model.parameters()
    )
    assert loss.item() == pytest.approx(MomentLoss()(exact, targets).item(), rel=0.03)
    assert (output.float() - exact).abs().max() < 0.15
    with torch.autocast(**BF16):
        found = model.decode(output, targets)
    assert found.segments_sec.dtype == torch.float64
    assert found.segments_sec.isfinite().all()


def test_traced_model_gives_equal_outputs(localizer, clip_batch):
    model, clips = localizer(), clip_batch([40, 64])
    traced = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(traced(clips), model(clips), atol=1e-6, rtol=0)


@pytest.mark.slow
def test_compiled_model_gives_equal_outputs_after_growth(
    localizer, clip_batch, text_query
):
    cpp_builder = pytest.importorskip("torch._inductor.cpp_builder")
    try:
        cpp_builder.get_cpp_compiler()
    except Exception as error:
        pytest.skip(f"torch.compile needs a C++ compiler: {error}")
    model, clips = localizer(), clip_batch([40, 64])
    compiled = torch.compile(model)
    torch.testing.assert_close(compiled(clips), model(clips), atol=1e-4, rtol=1e-4)
    model.learn_queries([text_query(4)])
    torch.testing.assert_close(compiled(clips), model(clips), atol=1e-4, rtol=1e-4)


def test_showing_all_texts_is_showing_none_in_particular(localizer, clip_batch):
    model, clips = localizer(), clip_batch([20, 33, 64])
    everything = _showing(clips, *[[0, 1, 2, 3]] * 3, n_queries=4)
    torch.testing.assert_close(model(everything), model(clips), atol=1e-6, rtol=0)


@pytest.mark.parametrize("channel", range(4))
def test_only_texts_that_a_clip_is_shown_matter_to_it(channel, localizer, clip_batch):
    model = localizer()
    clips = _showing(clip_batch([20, 33]), [0, 1], [2, 3], n_queries=4)
    tokens = model.query_tokens.clone()
    tokens[channel] = torch.randn_like(tokens[channel])
    before, after = model(clips), _with_tokens(model, tokens)(clips)
    sees = 0 if channel < 2 else 1
    # The changed query's own channel reads its text for every clip.
    others = [c for c in range(6) if c != channel]
    assert not torch.allclose(before[sees, others], after[sees, others], atol=1e-4)
    torch.testing.assert_close(
        before[1 - sees, others], after[1 - sees, others], atol=1e-6, rtol=0
    )


def test_a_clip_may_show_no_text_at_all(localizer, clip_batch):
    output = localizer()(_showing(clip_batch([20, 33]), [], [], n_queries=4))
    assert output.isfinite().all()


def test_texts_read_before_they_are_learnt_wait_for_clips_that_show_them(
    localizer, clip_batch, text_query
):
    model, clips = localizer(), clip_batch([20, 33])
    reader = deepcopy(model)
    reader.hold_texts([text_query(channel, 5) for channel in range(7)])
    assert reader.n_queries == model.n_queries == 4
    torch.testing.assert_close(reader(clips), model(clips), atol=1e-6, rtol=1e-6)
    known = _showing(clips, [0, 1], [2], n_queries=7)
    future = _showing(clips, [0, 1, 6], [2, 4], n_queries=7)
    torch.testing.assert_close(
        reader(known),
        model(_showing(clips, [0, 1], [2], n_queries=4)),
        atol=1e-6,
        rtol=1e-6,
    )
    assert reader(future).shape == model(clips).shape
    assert not torch.allclose(reader(future), reader(known), atol=1e-4)


def test_adaptation_reads_the_texts_an_experience_shows(localizer, text_query):
    model = localizer(2).train()
    future = [text_query(channel) for channel in range(5)]
    model.adaptation(_experience(text_query(2), shown_queries=future))
    assert (model.n_queries, len(model.query_tokens)) == (3, 5)
    assert torch.equal(model.query_tokens[4, :3], future[4].tokens)
    model.adaptation(_experience(text_query(3), text_query(4)))
    assert (model.n_queries, len(model.query_tokens)) == (5, 5)


def test_weights_with_texts_not_learnt_yet_load_into_a_new_model(
    localizer, clip_batch, text_query
):
    model = localizer(3)
    model.hold_texts([text_query(channel) for channel in range(6)])
    other = localizer(0, seed=1)
    other.load_state_dict(model.state_dict())
    clips = _showing(clip_batch([20, 33]), [0, 5], [4], n_queries=6)
    assert other.n_queries == 3
    assert torch.equal(other(clips), model(clips))


def test_bf16_rounds_products_and_leaves_weights_gradients_and_output_float32(
    localizer, clip_batch
):
    model, clips = localizer().train(), clip_batch([20, 33])
    exact = model(clips)
    model.precision = "bf16"
    rounded = model(clips)
    rounded.square().mean().backward()
    assert rounded.dtype == torch.float32
    assert not torch.equal(rounded, exact)
    torch.testing.assert_close(rounded, exact, atol=0.1, rtol=0.05)
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert {g.dtype for g in gradients} == {torch.float32}
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert deepcopy(model).precision == "bf16"
    model.precision = "float32"
    assert torch.equal(model(clips), exact)
