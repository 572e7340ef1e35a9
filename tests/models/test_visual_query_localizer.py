"""A crop is sought in the frames of a window, and the output says where."""

import copy
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from avalanche_vilco import vilco_vq_base, vilco_vq_tiny
from avalanche_vilco.core.visual_batch import TrackWindowTargets, VisualQueryBatch
from avalanche_vilco.models.anchors import MAX_LOG_SCALE, MAX_SHIFT, N_ANCHORS
from avalanche_vilco.models.localizer import PRIOR_PROBABILITY
from avalanche_vilco.models.output import query_logits, regression
from avalanche_vilco.models.prompt_memory import install_prompts
from avalanche_vilco.models.visual_losses import VisualQueryLoss
from avalanche_vilco.models.visual_query_localizer import (
    MAX_SPREAD_CROPS,
    NearbyFrames,
    TrackHeads,
    VisualQueryLocalizer,
)

SIDE, PLACES = 64, 4 * 4
N_FRAMES = 7


def window(
    lengths: Sequence[int], *, n_frames: int = N_FRAMES, side: int = SIDE, seed: int = 0
) -> VisualQueryBatch:
    """Coarse noise; frames behind a clip's end are zero."""
    draw = torch.Generator().manual_seed(seed)
    valid = torch.arange(n_frames) < torch.tensor(lengths)[:, None]
    noise = torch.rand(len(lengths), 1 + n_frames, 3, 8, 8, generator=draw)
    large = F.interpolate(noise.flatten(0, 1), side, mode="nearest") * 255
    pixels = large.byte().view(len(lengths), 1 + n_frames, 3, side, side)
    frames = pixels[:, 1:] * valid[..., None, None, None]
    return VisualQueryBatch(frames=frames, valid=valid, crop=pixels[:, 0].clone())


def targets_of(batch: VisualQueryBatch) -> TrackWindowTargets:
    """An answer in the first three frames of each window."""
    n, n_frames = batch.valid.shape
    present = batch.valid & (torch.arange(n_frames) < 3)
    box = torch.tensor([0.3, 0.4, 0.5, 0.7])
    numbers = torch.arange(n_frames).repeat(n, 1)
    return TrackWindowTargets(
        valid=batch.valid,
        searched=batch.valid,
        boxes=box * present[..., None],
        present=present,
        frame_numbers=numbers.masked_fill(~batch.valid, -1),
        square=torch.tensor([[SIDE, 0.0, 0.0]], dtype=torch.float64).repeat(n, 1),
        track_boxes=torch.zeros(n, 0, 4, dtype=torch.float64),
        track_frames=torch.zeros(n, 0, dtype=torch.long),
        query=torch.arange(n),
        query_frame=torch.full((n,), n_frames),
        sample=torch.arange(n),
    )


def tiny(*, prompts: bool = False, moved: bool = True) -> VisualQueryLocalizer:
    """Every parameter moved off its initial value, unless said otherwise."""
    torch.manual_seed(0)
    model = vilco_vq_tiny(image_size=SIDE)
    if prompts:
        install_prompts(model, torch.randn(9, model.text_dim), top_n=2, mode="prepend")
    if moved:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
    return model.eval()


@pytest.fixture(params=[False, True], ids=["plain", "prompts"])
def model(request: pytest.FixtureRequest) -> VisualQueryLocalizer:
    return tiny(prompts=request.param)


def by_frames(output: Tensor, n_frames: int = N_FRAMES) -> Tensor:
    """(B, 1 + 4, P) -> (B, T, 1 + 4, P / T)."""
    return output.unflatten(2, (n_frames, -1)).transpose(1, 2)


def with_codes(
    model: VisualQueryLocalizer, batch: VisualQueryBatch, dtype: torch.dtype
) -> VisualQueryBatch:
    codes = model.backbone(batch.frames.flatten(0, 1))
    return VisualQueryBatch(
        frames=codes.unflatten(0, batch.valid.shape).to(dtype),
        valid=batch.valid,
        crop=model.backbone(batch.crop).to(dtype),
    )


def test_output_has_one_logit_and_four_numbers_for_each_anchor(model):
    batch = window([7, 4])
    output = model(batch)
    assert output.shape == (2, 5, N_FRAMES * PLACES * N_ANCHORS)
    assert output.isfinite().all()


@pytest.mark.parametrize("radius", [0, 1, 2])
def test_a_frame_matters_to_the_frames_within_reach_alone(radius):
    model = tiny()
    block = NearbyFrames(dim=48, n_heads=4, radius=radius, dropout=0.0)
    model.encoder.blocks[0] = block
    batch = window([7])
    before = by_frames(model(batch))
    batch.frames[0, 2] = batch.frames[0, 2].flip(-1)
    gap = (by_frames(model(batch)) - before).abs().amax(dim=(0, 2, 3))
    within = (torch.arange(N_FRAMES) - 2).abs() <= radius
    assert (gap[within] > 1e-5).all()
    assert (gap[~within] == 0).all()


def test_heads_go_through_rows_columns_and_anchors():
    heads = TrackHeads(dim=2, head_dim=2, n_doublings=0, n_convs=0)
    with torch.no_grad():
        for head in (heads.cls, heads.reg):
            head.weight.zero_()
            head.bias.copy_(torch.arange(len(head.bias)))
            # Half of the first channel of the place itself.
            head.weight[:, 0, 1, 1] = 0.5
    place = torch.arange(12.0).view(3, 4) * 1000
    logits, deltas = heads(torch.stack([place, torch.zeros(3, 4)])[None])
    row, column, anchor = 1, 2, 5
    spot = (row * 4 + column) * N_ANCHORS + anchor
    assert logits[0, spot] == place[row, column] / 2 + anchor
    assert (deltas[0, spot] - place[row, column] / 2).tolist() == [20, 21, 22, 23]


def test_regression_channels_are_bounded(model):
    with torch.no_grad():
        model.heads.reg.weight.mul_(1000)
    shift, scale = regression(model(window([7])), 4).abs().amax(dim=(0, 2)).view(2, 2)
    assert shift.tolist() == pytest.approx([MAX_SHIFT] * 2)
    assert scale.tolist() == pytest.approx([MAX_LOG_SCALE] * 2)


def test_untrained_model_says_that_nothing_is_there():
    chances = query_logits(tiny(moved=False)(window([7])), 4).sigmoid()
    assert chances.mean().item() == pytest.approx(PRIOR_PROBABILITY, rel=0.2)


def test_frames_that_are_not_there_are_zero(model):
    there = by_frames(model(window([7, 4]))).ne(0).any(dim=2)
    assert there.all(dim=2).tolist() == [[True] * 7, [True] * 4 + [False] * 3]
    assert not there[1, 4:].any()


def test_what_lies_behind_a_clips_end_changes_nothing(model):
    batch = window([7, 4])
    before = model(batch)
    batch.frames[1, 4:] = 200
    torch.testing.assert_close(model(batch), before, atol=0, rtol=0)
    shorter = batch[1]
    shorter.frames, shorter.valid = shorter.frames[:, :4], shorter.valid[:, :4]
    torch.testing.assert_close(
        by_frames(model(shorter), 4)[0], by_frames(before)[1, :4], atol=1e-5, rtol=1e-4
    )


def test_answer_depends_on_the_window_and_its_crop_alone(model):
    batch = window([7, 3, 5])
    alone = torch.cat([model(batch[i]) for i in range(3)])
    torch.testing.assert_close(alone, model(batch), atol=1e-5, rtol=1e-4)


def test_another_crop_changes_the_answer_of_its_own_window_alone(model):
    batch = window([7, 7])
    before = model(batch)
    batch.crop[1] = batch.crop[0]
    gap = (model(batch) - before).abs().amax(dim=(1, 2))
    assert gap[0] < 1e-5 and gap[1] > 1e-3


def test_prompts_change_the_answer():
    model, batch = tiny(prompts=True), window([7])
    with_prompts = model(batch)
    with torch.no_grad():
        model.prompt_memory.prompts.mul_(-1)
    changed = model(batch)
    model.prompt_memory = None
    outputs = [with_prompts, changed, model(batch)]
    for i in range(3):
        assert (outputs[i] - outputs[i - 1]).abs().max() > 1e-4


def test_prompts_that_a_crop_did_not_find_change_nothing():
    model, batch = tiny(prompts=True), window([7])
    crops = model.backbone(batch.crop).mean(dim=(2, 3))
    memory = model.prompt_memory
    lost = ~memory(crops).chosen[0]
    before = model(batch)
    with torch.no_grad():
        memory.prompts[lost] += 1
    assert lost.sum() == 8
    torch.testing.assert_close(model(batch), before, atol=1e-6, rtol=0)


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 0), (torch.float16, 0.01)])
def test_codes_of_pixels_give_what_the_pixels_give(model, dtype, atol):
    batch = window([7, 4])
    codes = with_codes(model, batch, dtype)
    assert codes.frames.dtype == dtype
    torch.testing.assert_close(model(codes), model(batch), atol=atol, rtol=0)


def test_codes_may_be_zero_in_frames_that_are_not_there(model):
    """As they come from a store, where padding is not what black pixels give."""
    batch = window([7, 4])
    codes = with_codes(model, batch, torch.float32)
    codes.frames[1, 4:] = 0
    torch.testing.assert_close(model(codes), model(batch), atol=1e-6, rtol=0)


def test_reduced_precision_gives_nearly_the_same(model):
    batch = window([7, 4])
    exact = model(batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = model(batch)
    loss = VisualQueryLoss()
    targets = targets_of(batch)
    assert rough.isfinite().all() and (rough.float() - exact).abs().max() < 0.2
    assert loss(rough, targets).item() == pytest.approx(
        loss(exact, targets).item(), rel=0.05
    )


@pytest.mark.parametrize("prompts", [False, True])
def test_every_parameter_learns_from_the_first_batch(prompts):
    model, batch = tiny(prompts=prompts, moved=False).train(), window([7, 4])
    VisualQueryLoss()(model(batch), targets_of(batch)).backward()
    # What rounding alone moves is below: a softmax is blind to a common shift.
    dead = [
        name
        for name, p in model.named_parameters()
        if p.grad is None or not p.grad.norm() > 1e-7
    ]
    assert dead == []
    if prompts:
        learnt = {name for name, _ in model.named_parameters()}
        assert {"prompt_memory.prompts", "prompt_memory.keys"} <= learnt


def test_gradients_are_finite_where_frames_are_not_there(model):
    batch = window([7, 1])
    model.train()(batch).square().sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def scenes(n: int) -> tuple[VisualQueryBatch, TrackWindowTargets]:
    """Each crop is a patch that lies somewhere in the first three frames."""
    batch = window([4] * n, n_frames=4)
    targets = targets_of(batch)
    batch.frames //= 4
    draw = torch.Generator().manual_seed(1)
    corners = torch.randint(0, SIDE - 16, (n, 2), generator=draw).tolist()
    for i, (left, top) in enumerate(corners):
        patch = F.interpolate(batch.crop[i : i + 1], (16, 16), mode="nearest")[0]
        batch.frames[i, :3, :, top : top + 16, left : left + 16] = patch
        box = torch.tensor([left, top, left + 16, top + 16]) / SIDE
        targets.boxes[i, :3] = box
    return batch, targets


def test_short_training_halves_the_loss():
    model = tiny(moved=False).train()
    batch, targets = scenes(8)
    batch = with_codes(model, batch, torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = VisualQueryLoss()(model(batch), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-3:]) / 3 < losses[0] / 2


def test_backbone_is_no_part_of_what_is_trained():
    model = tiny()
    names = {name.split(".")[0] for name, _ in model.named_parameters()}
    assert names == {"stem", "correspondence", "encoder", "heads"}
    assert not any(part.training for part in model.train().backbone.modules())
    assert model.stem.training


def test_parameter_counts_are_known():
    def counts(model: VisualQueryLocalizer) -> tuple[int, int]:
        frozen = sum(b.numel() for b in model.backbone.vit.buffers())
        return sum(p.numel() for p in model.parameters()), frozen

    assert counts(vilco_vq_tiny()) == (161_852, 78_848)
    with torch.device("meta"):
        assert counts(vilco_vq_base(weights="random")) == (10_081_084, 86_314_752)


def test_copy_learns_apart_and_shares_the_backbone():
    model, batch = tiny(), window([7])
    twin = copy.deepcopy(model)
    before = model(batch)
    assert torch.equal(twin(batch), before)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert twin.backbone is model.backbone
    assert torch.equal(model(batch), before)


def test_state_dict_brings_the_whole_model():
    model, other, batch = tiny(), tiny(), window([7])
    with torch.no_grad():
        for tensor in (*other.parameters(), other.backbone.mean):
            tensor.add_(1)
    assert not torch.allclose(other(batch), model(batch), atol=1e-3)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(batch), model(batch))


def test_experience_adds_no_channel(model):
    model.train().adaptation(object())
    assert model.n_queries == 1


def test_pictures_of_another_size_than_the_models_are_an_error():
    with pytest.raises(ValueError, match=r"4 x 4 places but got \(8, 8\).*one size"):
        tiny()(window([2], side=2 * SIDE, n_frames=2))


def test_answers_are_read_with_the_windows_geometry():
    batch = window([7, 4])
    targets = targets_of(batch)
    answers = tiny().decode(tiny()(batch), targets)
    assert answers.boxes.shape == (2, N_FRAMES, 4)
    assert torch.equal(answers.scores.isfinite(), targets.searched)
    assert answers.boxes.min() >= 0 and answers.boxes.max() <= SIDE


def test_codes_of_a_window_are_the_mean_of_its_frames(model):
    seen, kept = [], []
    model.pooled.register_forward_hook(lambda m, args, out: seen.append(out))
    model.narrated_module.register_forward_hook(lambda m, args, out: kept.append(out))
    codes = model.clip_embeddings(window([7, 4]))
    frames, valid = kept[0]
    assert frames.shape == (2, N_FRAMES, model.narrated_dim)
    assert valid.sum(dim=1).tolist() == [7, 4]
    expected = torch.stack([frames[0].mean(0), frames[1, :4].mean(0)])
    torch.testing.assert_close(codes, expected)
    assert torch.equal(seen[0], codes)


class Samples:
    """Samples with crops, and which of them were asked for."""

    def __init__(self, crops: Tensor) -> None:
        self.crops = crops
        self.asked: list[int] = []

    def __len__(self) -> int:
        return len(self.crops)

    def __getitem__(self, index: int) -> tuple[dict[str, Tensor], Any]:
        self.asked.append(index)
        return {"crop": self.crops[index]}, {}


@pytest.mark.parametrize("n_samples", [0, 3, MAX_SPREAD_CROPS + 40])
def test_crops_all_over_an_experience_tell_where_keys_start(n_samples):
    model = tiny()
    crops = window([1] * 3).crop.repeat(n_samples // 3 + 1, 1, 1, 1)[:n_samples]
    data = Samples(crops)
    found = model.query_embeddings(SimpleNamespace(dataset=data))
    assert len(data.asked) == len(found) == min(n_samples, MAX_SPREAD_CROPS)
    assert found.shape[1] == model.text_dim
    if not n_samples:
        return
    assert (data.asked[0], data.asked[-1]) == (0, n_samples - 1)
    codes = model.backbone(crops[data.asked]).mean(dim=(2, 3))
    torch.testing.assert_close(found, codes)


def test_codes_of_crops_tell_the_same_keys():
    model, crops = tiny(), window([1] * 3).crop
    codes = Samples(model.backbone(crops).half())
    torch.testing.assert_close(
        model.query_embeddings(SimpleNamespace(dataset=codes)),
        model.query_embeddings(SimpleNamespace(dataset=Samples(crops))),
        atol=1e-3,
        rtol=0,
    )
