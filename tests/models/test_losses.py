"""Point assignment and the two terms of the criterion."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F
from torchvision.ops import sigmoid_focal_loss as torchvision_focal_loss

from avalanche_vilco.benchmarks.vilco_mq.annotations import read_moment_annotations
from avalanche_vilco.core.batch import MomentTargets, collate_moments
from avalanche_vilco.data.moments import MomentDataset, MomentSample
from avalanche_vilco.models.decoding import MomentDecoder
from avalanche_vilco.models.losses import (
    MomentLoss,
    assign_points,
    distance_iou_loss,
    narration_contrast,
    sigmoid_focal_loss,
)
from avalanche_vilco.models.output import (
    OFFSET_LOW,
    OFFSET_SPAN,
    n_points,
    pack_output,
    point_grid,
)
from avalanche_vilco.ops.segments import tiou

CPU = torch.device("cpu")


def _grid(targets: MomentTargets, levels: int):
    n_steps = targets.valid.shape[1]
    return point_grid(n_points(n_steps, levels), n_steps, CPU)


class LoopAssignment:
    """ActionFormer's rule, one clip and one point at a time, in plain Python."""

    def __init__(self, length: int, windows: Sequence, n_queries: int, grid) -> None:
        self.points = list(
            zip(
                grid.steps.tolist(),
                grid.strides.tolist(),
                grid.reach.tolist(),
                strict=True,
            )
        )
        self.length = length
        known = [w for w in windows if 0 <= w[2] < n_queries]
        candidates: list[list] = [[] for _ in self.points]
        for window in known:
            for i in self._answering(window):
                candidates[i].append(window)
        self.classes = [self._winners(own) for own in candidates]
        """Channels of each point."""
        self.window = [
            min(own, key=lambda w: w[1] - w[0]) if own else None for own in candidates
        ]
        """The shortest window of each point."""
        self.candidates = candidates

    def _answering(self, window) -> list[int]:
        start, end, _ = window
        places = range(len(self.points))
        valid = [i for i in places if self.points[i][0] < self.length]
        own = [i for i in valid if self._fits(start, end, *self.points[i])]
        if own:
            return own
        finest = [i for i in valid if self.points[i][1] == 1]
        return [min(finest, key=lambda i: abs(start + end - 2 * self.points[i][0]))]

    @staticmethod
    def _fits(start, end, step, stride, reach) -> bool:
        left, right = step - start, end - step
        return (
            min(left, right) > 0
            and abs(start + end - 2 * step) / 2 <= 1.5 * stride
            and reach[0] <= max(left, right) <= reach[1]
        )

    @staticmethod
    def _winners(own) -> set[int]:
        shortest = min((w[1] - w[0] for w in own), default=0)
        return {w[2] for w in own if w[1] - w[0] <= shortest + 1e-3}


# Sixteenths are exact in float32, so that no comparison hangs on a rounding.
_SIXTEENTHS = st.integers(-8, 70 * 16).map(lambda n: n / 16)


@st.composite
def _clip(draw) -> tuple[int, list]:
    length = draw(st.integers(1, 70))
    pairs = draw(
        st.lists(st.tuples(_SIXTEENTHS, _SIXTEENTHS, st.integers(0, 4)), max_size=6)
    )
    windows = [(min(a, b), max(a, b), c) for a, b, c in pairs if a != b]
    return length, [w for w in windows if w[0] < length - 0.5]


@settings(max_examples=60)
@given(clips=st.lists(_clip(), min_size=1, max_size=3), levels=st.integers(1, 6))
def test_assignment_is_the_rule_in_plain_python(clips, levels, moment_targets) -> None:
    n_queries = 4
    targets = moment_targets(*zip(*clips, strict=True), n_queries=5)
    grid = _grid(targets, levels)
    ours = assign_points(grid, targets, n_queries)
    for row, (length, windows) in enumerate(clips):
        loop = LoopAssignment(length, windows, n_queries, grid)
        classes = [set(c.nonzero().flatten().tolist()) for c in ours.classes[row].T]
        assert classes == loop.classes
        assert ours.positive[row].tolist() == [bool(c) for c in loop.classes]
        _check_offsets(ours.offsets[row], loop, grid)


def _check_offsets(offsets: Tensor, loop: LoopAssignment, grid) -> None:
    low, high = OFFSET_LOW, OFFSET_LOW + OFFSET_SPAN
    for i, own in enumerate(loop.candidates):
        if not own:
            continue
        step, stride = grid.steps[i].item(), grid.strides[i].item()
        length = loop.window[i][1] - loop.window[i][0]
        wanted = [
            [min(max(d / stride, low), high) for d in (step - w[0], w[1] - step)]
            for w in own
            if w[1] - w[0] == length
        ]
        assert offsets[:, i].tolist() in wanted


def test_window_between_two_points_gets_the_nearest_one(moment_targets) -> None:
    targets = moment_targets([16], [[(4.1, 4.3, 2)]])
    grid = _grid(targets, 4)
    wanted = assign_points(grid, targets, 4)
    assert wanted.positive[0].nonzero().flatten().tolist() == [4]
    assert wanted.classes[0, :, 4].tolist() == [0, 0, 1, 0]
    torch.testing.assert_close(wanted.offsets[0, :, 4], torch.tensor([-0.1, 0.3]))


def test_windows_of_equal_length_share_a_point(moment_targets) -> None:
    targets = moment_targets([32], [[(4, 9, 0), (4.0005, 9, 1), (4, 9.2, 3)]])
    wanted = assign_points(_grid(targets, 1), targets, 4)
    assert wanted.classes[0, :, 6].tolist() == [1, 1, 0, 0]


def test_clip_shorter_than_the_coarsest_stride_has_targets(moment_targets) -> None:
    targets = moment_targets([1], [[(-0.5, 0.5, 0)]])
    wanted = assign_points(_grid(targets, 10), targets, 4)
    assert wanted.positive[0].nonzero().flatten().tolist() == [0]


def _real_targets(clips, store) -> MomentTargets:
    """Channels are numbered within each clip, which has 14 categories at most."""
    store.preflight({c.clip_id: c.duration_sec * c.features_per_sec for c in clips})
    samples = [
        MomentSample(
            clip,
            clip.windows_sec,
            np.unique(clip.label_ids, return_inverse=True)[1],
            asked=tuple(range(14)),
        )
        for clip in clips
    ]
    return collate_moments(list(MomentDataset(samples, store, 14)))[1]


def _owns_a_point(targets: MomentTargets, wanted, grid) -> Tensor:
    """(B, N) whether some point says exactly this window, of this query."""
    strides, steps = grid.strides, grid.steps
    ends = torch.stack(
        [
            steps - wanted.offsets[:, 0] * strides,
            steps + wanted.offsets[:, 1] * strides,
        ],
        dim=-1,
    )
    gap = (targets.segments[:, :, None] - ends[:, None]).abs().amax(-1)
    channels = targets.labels.clamp(min=0)[..., None].expand(-1, -1, len(steps))
    says = wanted.classes.gather(1, channels) > 0
    return ((gap < 1e-3) & says).any(-1) & (targets.labels >= 0)


def test_perfect_regressor_finds_every_real_window_that_owns_a_point(
    shared_dir, noise_features
) -> None:
    """Of Ego4D's 4,288 validation windows (110 categories at once) 517 own no point,
    since shorter windows hold all of theirs; 71 of these are not even met at tIoU
    0.5 by another window of their query."""
    path = shared_dir / "data/ego4d_mq/ego4d_clip_annotations_v2.json"
    annotations = read_moment_annotations(path)
    clips = [c for c in annotations.clips if c.subset == "val"]
    decoder = MomentDecoder(max_candidates=250, max_windows=200)
    overlaps, owned = [], []
    for first in range(0, len(clips), 32):
        targets = _real_targets(clips[first : first + 32], noise_features())
        grid = _grid(targets, 10)
        wanted = assign_points(grid, targets, 14)
        output = pack_output(
            20 * wanted.classes - 10, wanted.offsets, grid.valid(targets.valid)
        )
        found = decoder(output, targets)
        overlap = tiou(targets.segments_sec[:, :, None], found.segments_sec[:, None])
        overlap *= targets.labels[:, :, None] == found.labels[:, None]
        real = targets.labels >= 0
        overlaps.append(overlap.amax(-1)[real])
        owned.append(_owns_a_point(targets, wanted, grid)[real])
    best, owns = torch.cat(overlaps), torch.cat(owned)
    assert best[owns].min() > 0.99
    assert (len(best), int((~owns).sum()), int((best <= 0.5).sum())) == (4288, 517, 71)


@pytest.mark.parametrize(("alpha", "gamma"), [(0.25, 2.0), (0.5, 0.0), (0.9, 1.5)])
def test_focal_loss_is_torchvisions(alpha, gamma) -> None:
    logits = 8 * torch.randn(4, 5, 30)
    targets = (torch.rand(4, 5, 30) < 0.2).float()
    torch.testing.assert_close(
        sigmoid_focal_loss(logits, targets, alpha=alpha, gamma=gamma),
        torchvision_focal_loss(logits, targets, alpha=alpha, gamma=gamma),
    )


@pytest.mark.parametrize(
    ("predicted", "wanted", "loss"),
    [
        ((2.0, 3.0), (2.0, 3.0), 0.0),
        ((1.0, 1.0), (2.0, 2.0), 0.5),
        ((2.0, 1.0), (1.0, 2.0), 1 - 2 / 4 + (1 / 4) ** 2),
        ((0.0, 4.0), (0.0, 2.0), 1 - 2 / 4 + (1 / 4) ** 2),
        ((-0.25, 0.5), (0.5, -0.25), 1 + 0.5 / 1.0 + (0.75 / 1.0) ** 2),
        ((-0.5, 1.5), (-0.25, 0.5), 1 - 0.0 / 1.25 + (0.625 / 1.25) ** 2),
        ((-0.5, 1.5), (-0.25, 1.0), 1 - 0.5 / 1.25 + (0.375 / 1.25) ** 2),
        ((-0.5, -0.5), (1.0, 1.0), 1 + 1.0 / 2.0),
    ],
)
def test_iou_loss_by_hand(predicted, wanted, loss) -> None:
    ours = distance_iou_loss(torch.tensor(predicted), torch.tensor(wanted))
    assert ours.item() == pytest.approx(loss, abs=1e-6)


def test_iou_loss_and_its_slope_are_finite_over_all_offsets() -> None:
    ends = torch.linspace(OFFSET_LOW, OFFSET_LOW + OFFSET_SPAN, 33)
    windows = torch.cartesian_prod(ends, ends)
    predicted = windows[:, None].expand(-1, len(windows), -1).clone().requires_grad_()
    proper = windows[windows.sum(-1) > 0]
    loss = distance_iou_loss(predicted[:, : len(proper)], proper)
    loss.sum().backward()
    assert loss.min() >= 0
    assert loss.isfinite().all()
    assert predicted.grad is not None and predicted.grad.isfinite().all()


@pytest.mark.parametrize("wanted", [(0.5, 0.5), (2.0, 2.0), (-0.2, 0.4), (0.1, 7.0)])
@pytest.mark.parametrize("start", [(-0.4, -0.4), (-0.3, 0.1), (0.2, -0.45), (9.0, 9.0)])
def test_descent_reaches_the_window_from_reversed_ones_too(start, wanted) -> None:
    offsets = torch.tensor(start, requires_grad=True)
    optimizer = torch.optim.Adam([offsets], lr=0.05)
    for _ in range(1000):
        optimizer.zero_grad()
        distance_iou_loss(offsets, torch.tensor(wanted)).backward()
        optimizer.step()
    assert torch.allclose(offsets, torch.tensor(wanted), atol=0.1)


def _output(n_queries: int, targets: MomentTargets, levels: int = 4) -> Tensor:
    points = n_points(targets.valid.shape[1], levels)
    logits = torch.randn(len(targets), n_queries, points)
    offsets = 3 * torch.rand(len(targets), 2, points)
    grid = _grid(targets, levels)
    return pack_output(logits, offsets, grid.valid(targets.valid)).requires_grad_()


def _gradient(loss: MomentLoss, output: Tensor, targets: MomentTargets) -> Tensor:
    (gradient,) = torch.autograd.grad(loss(output, targets), output)
    return gradient


def test_loss_is_its_two_terms_over_the_positive_points(moment_targets) -> None:
    targets = moment_targets([32, 20], [[(2, 9, 0)], [(3, 5, 1), (4, 18, 3)]])
    output, grid = _output(4, targets), _grid(targets, 4)
    wanted = assign_points(grid, targets, 4)
    inside, positive = grid.valid(targets.valid)[:, None], wanted.positive
    focal = torchvision_focal_loss(output[:, :4], wanted.classes) * inside
    window = distance_iou_loss(
        output[:, 4:].transpose(1, 2)[positive],
        wanted.offsets.transpose(1, 2)[positive],
    )
    total = (focal.sum() + 0.7 * window.sum()) / positive.sum()
    ours = MomentLoss(regression_weight=0.7)(output, targets)
    torch.testing.assert_close(ours, total)


def test_channels_not_asked_of_a_clip_get_no_gradient(moment_targets) -> None:
    targets = moment_targets(
        [32, 20], [[(2, 9, 0)], [(3, 5, 2)]], asked=[[0, 1], [2, 3]]
    )
    output = _output(4, targets)
    asked = _gradient(MomentLoss(), output, targets)
    assert not asked[0, 2:4].any() and not asked[1, :2].any()
    assert asked[0, :2].any(dim=-1).all() and asked[1, 2:4].any(dim=-1).all()
    seen = _gradient(MomentLoss(negatives="seen"), output, targets)
    assert seen[:, :4].any(dim=-1).all()


def test_windows_of_channels_not_learnt_are_ignored(moment_targets) -> None:
    targets = moment_targets([32], [[(2, 9, 0), (12, 19, 5)]], n_queries=6)
    fewer = moment_targets([32], [[(2, 9, 0)]], n_queries=6)
    output = _output(3, targets)
    assert torch.equal(MomentLoss()(output, targets), MomentLoss()(output, fewer))


def test_points_beyond_the_clip_get_no_gradient(moment_targets) -> None:
    targets = moment_targets([32, 5], [[(2, 9, 0)], [(1, 4, 1)]])
    output = _output(4, targets)
    inside = _grid(targets, 4).valid(targets.valid)[:, None]
    assert not _gradient(MomentLoss(), output, targets).masked_fill(inside, 0).any()


@pytest.mark.parametrize("n_queries", [0, 3])
@pytest.mark.parametrize("windows", [[[], []], [[(2, 9, 5)], []]])
def test_batch_without_a_window_has_a_finite_loss(
    windows, n_queries, moment_targets
) -> None:
    targets = moment_targets([32, 5], windows, n_queries=6)
    output = _output(n_queries, targets)
    assert MomentLoss()(output, targets).isfinite()
    gradient = _gradient(MomentLoss(), output, targets)
    assert gradient.isfinite().all()
    assert not gradient[:, n_queries:].any()


def test_loss_does_not_depend_on_the_padding_of_the_batch(moment_targets) -> None:
    windows = [[(2, 9, 0)], [(1, 4, 1), (-0.4, 4.4, 2)]]
    targets = moment_targets([16, 5], windows)
    longer = moment_targets([16, 5, 64], [*windows, []])[:2]
    output = _output(4, targets).detach()
    wide = torch.full((2, 6, n_points(64, 4)), 3.0)
    for row in range(2):
        narrow_own = _grid(targets, 4).valid(targets.valid)[row]
        wide_own = _grid(longer, 4).valid(longer.valid)[row]
        wide[row][:, wide_own] = output[row][:, narrow_own]
    torch.testing.assert_close(
        MomentLoss()(wide, longer), MomentLoss()(output, targets)
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_loss_is_single_precision_under_half_outputs(dtype, moment_targets) -> None:
    targets = moment_targets([32, 5], [[(2, 9, 0)], [(1, 4, 1)]])
    output = _output(4, targets).detach().to(dtype).requires_grad_()
    loss = MomentLoss()(output, targets)
    loss.backward()
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, MomentLoss()(output.detach().float(), targets))
    assert output.grad is not None and output.grad.isfinite().all()


def test_extreme_logits_give_finite_losses(moment_targets) -> None:
    targets = moment_targets([32], [[(2, 9, 0)]])
    output = (1e4 * _output(4, targets).detach().sign()).requires_grad_()
    assert MomentLoss()(output, targets).isfinite()
    assert _gradient(MomentLoss(), output, targets).isfinite().all()


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`")
def test_criterion_traces_without_a_break(moment_targets) -> None:
    targets = moment_targets([32, 5], [[(2, 9, 0)], [(1, 4, 1)]])
    output = _output(4, targets)
    traced = torch.compile(MomentLoss(), backend="eager", fullgraph=True)
    torch.testing.assert_close(traced(output, targets), MomentLoss()(output, targets))


def test_unknown_negatives_are_refused() -> None:
    with pytest.raises(ValueError, match=r"'asked' or 'seen' but got 'all'"):
        MomentLoss(negatives="all")


def test_output_of_another_batch_is_refused(moment_targets) -> None:
    output = _output(4, moment_targets([32]))
    with pytest.raises(ValueError, match="same batch"):
        MomentLoss()(output, moment_targets([41]))


def test_contrast_of_two_orthogonal_pairs() -> None:
    pairs = torch.eye(2)
    loss = narration_contrast(pairs, pairs, torch.tensor([5, 6]), temperature=1.0)
    assert float(loss) == pytest.approx(2 * 0.3133, abs=1e-4)


def test_contrast_is_symmetric_info_nce() -> None:
    draw = torch.Generator().manual_seed(0)
    video, text = torch.randn(2, 5, 3, generator=draw)
    cosines = F.normalize(video, dim=1) @ F.normalize(text, dim=1).T / 0.3
    pairs = torch.arange(5)
    expected = F.cross_entropy(cosines, pairs) + F.cross_entropy(cosines.T, pairs)
    loss = narration_contrast(video, text, pairs, temperature=0.3)
    torch.testing.assert_close(loss, expected)


def test_places_without_a_sentence_change_nothing() -> None:
    draw = torch.Generator().manual_seed(0)
    video, text = torch.randn(2, 5, 3, generator=draw)
    told = torch.tensor([3, -1, 4, 5, -1])
    kept = told >= 0
    torch.testing.assert_close(
        narration_contrast(video, text, told),
        narration_contrast(video[kept], text[kept], told[kept]),
    )


def test_nothing_said_is_no_loss_and_has_slopes() -> None:
    video = torch.randn(2, 3, requires_grad=True)
    loss = narration_contrast(video, torch.randn(2, 3), torch.tensor([-1, -1]))
    loss.backward()
    assert float(loss) == 0 and video.grad is not None
    assert float(narration_contrast(video[:0], video[:0], torch.zeros(0))) == 0


def test_same_wording_is_no_negative_in_the_batch_or_in_store() -> None:
    draw = torch.Generator().manual_seed(0)
    video, text = torch.randn(2, 3, 4, generator=draw)
    twice = narration_contrast(
        video[[0, 0]], text[[0, 0]], torch.tensor([1, 1]), temperature=1.0
    )
    assert float(twice) == pytest.approx(0, abs=1e-6)
    for sentence in (1, 2):
        loss = narration_contrast(
            video[:1],
            text[:1],
            torch.tensor([1]),
            stored=text[:1],
            stored_sentences=torch.tensor([sentence]),
        )
        # One equal text among the negatives: the floor of the public code's own copies.
        expected = 0 if sentence == 1 else pytest.approx(math.log(2), abs=1e-5)
        assert float(loss) == expected
