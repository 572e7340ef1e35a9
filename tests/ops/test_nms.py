from functools import partial
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from avalanche_vilco.ops.nms import hard_nms, soft_nms

NEEDS_NUMBA = pytest.mark.skipif(
    find_spec("numba") is None, reason="needs numba: pip install avalanche-vilco[fast]"
)
BACKENDS = ["torch", "numpy", pytest.param("numba", marks=NEEDS_NUMBA)]


@pytest.fixture(params=BACKENDS)
def backend(request):
    return request.param


@pytest.fixture(params=[soft_nms, hard_nms])
def nms(request, backend):
    return partial(request.param, backend=backend)


def picks_of(result):
    (indices,), (scores,) = result
    found = indices >= 0
    assert not found.any() or found.nonzero().max() == found.sum() - 1
    assert (scores[~found] == 0).all()
    return indices[found].tolist(), scores[found]


def plain_nms(segments, scores, labels, lower, min_score, per_label):
    """One label after the other, all windows of each, then sorted by score."""
    kept = []
    for label in set(labels.tolist()) - {-1}:
        left = [i for i in range(len(scores)) if labels[i] == label and scores[i] > 0]
        current, picks = {i: scores[i] for i in left}, []
        while left:
            best = max(left, key=lambda i: (current[i], -i))
            left.remove(best)
            picks.append((best, current[best]))
            for i in list(left):
                current[i] = current[i] * lower(plain_tiou(segments[i], segments[best]))
                if current[i] < min_score or current[i] == 0:
                    left.remove(i)
        kept += picks[:per_label]
    return sorted(kept, key=lambda pick: (-pick[1], pick[0]))


LOWER = {
    "gaussian": lambda tiou: np.float32(np.exp(-(np.float64(tiou) ** 2) / 0.4)),
    "linear": lambda tiou: np.float32(1 - tiou if tiou >= np.float32(0.3) else 1),
    "vanilla": lambda tiou: np.float32(tiou < np.float32(0.3)),
}


def plain_tiou(a, b):
    tiny = np.float32(1e-6)
    overlap = max(np.float32(0), min(a[1], b[1]) - max(a[0], b[0]))
    return overlap / ((a[1] - a[0] + tiny) + (b[1] - b[0] + tiny) - overlap)


def random_clips(seed, n_clips, n, n_labels):
    draw = torch.Generator().manual_seed(seed)
    starts = torch.rand(n_clips, n, generator=draw) * 60
    lengths = torch.rand(n_clips, n, generator=draw) * 30
    labels = torch.randint(-1, n_labels, (n_clips, n), generator=draw)
    scores = torch.rand(n_clips, n, generator=draw)
    return torch.stack([starts, starts + lengths], dim=2), scores, labels


@pytest.mark.parametrize("method", LOWER)
@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(0, 40),
    n_labels=st.integers(1, 4),
    limit=st.integers(0, 50),
    per_label=st.none() | st.integers(0, 10),
)
def test_early_stop_equals_running_every_label_to_the_end(
    backend, method, seed, n, n_labels, limit, per_label
):
    segments, scores, labels = random_clips(seed, 2, n, n_labels)
    indices, lowered = soft_nms(
        *(segments, scores, labels),
        method=method,
        sigma=0.4,
        iou_threshold=0.3,
        min_score=0.1,
        max_segments=limit,
        max_per_label=per_label,
        backend=backend,
    )
    assert indices.shape == lowered.shape == (2, limit)
    for clip in range(2):
        arguments = segments[clip].numpy(), scores[clip].numpy(), labels[clip].numpy()
        expected = plain_nms(*arguments, LOWER[method], 0.1, per_label)[:limit]
        found = indices[clip] >= 0
        assert indices[clip][found].tolist() == [pick[0] for pick in expected]
        assert lowered[clip][found].tolist() == pytest.approx(
            [pick[1] for pick in expected], rel=1e-5
        )


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 40), threshold=st.floats(0.1, 0.9))
def test_hard_picks_of_a_label_do_not_reach_the_threshold_with_each_other(
    backend, seed, n, threshold
):
    segments, scores, labels = random_clips(seed, 1, n, 3)
    options = {"iou_threshold": threshold, "backend": backend}
    picks, kept = picks_of(hard_nms(segments, scores, labels, **options))
    assert kept.tolist() == sorted(kept.tolist(), reverse=True)
    windows = segments[0].numpy()
    for position, one in enumerate(picks):
        for other in picks[:position]:
            if labels[0, one] == labels[0, other]:
                assert plain_tiou(windows[one], windows[other]) < threshold + 1e-6


def test_a_tiou_at_the_threshold_is_suppressed(backend):
    """Windows apart have a tIoU of 0, the only value that no rounding moves."""
    segments, scores = torch.tensor([[[0.0, 1.0], [5.0, 6.0]]]), torch.ones(1, 2)
    nms = partial(hard_nms, segments, scores, backend=backend)
    assert nms(iou_threshold=0.0)[0][0, :2].tolist() == [0, -1]
    assert nms(iou_threshold=0.1)[0][0, :2].tolist() == [0, 1]


def test_linear_suppression_starts_at_the_threshold(backend):
    """Lengths of 2e6 and 1e6 swallow the 1e-6: a tIoU of exactly one half."""
    segments = torch.tensor([[[0.0, 2e6], [0.0, 1e6]]])
    linear = partial(soft_nms, method="linear", min_score=0.0, backend=backend)
    nms = partial(linear, segments, torch.tensor([[1.0, 0.5]]), max_segments=2)
    assert nms(iou_threshold=0.5)[1].tolist() == [[1.0, 0.25]]
    assert nms(iou_threshold=0.51)[1].tolist() == [[1.0, 0.5]]


def test_soft_and_hard_treat_min_score_differently(backend):
    """Soft: the best window stays whatever its score. Hard: above it, not at it."""
    segments = torch.tensor([[[0.0, 1.0], [5.0, 6.0], [7.0, 8.0]]])
    options = {"min_score": 0.5, "max_segments": 3, "backend": backend}
    low, at = torch.tensor([[0.2, 0.3, 0.1]]), torch.tensor([[0.6, 0.5, 0.4]])
    assert soft_nms(segments, low, **options)[0].tolist() == [[1, -1, -1]]
    assert soft_nms(segments, at, **options)[0].tolist() == [[0, 1, -1]]
    assert hard_nms(segments, low, **options)[0].tolist() == [[-1, -1, -1]]
    assert hard_nms(segments, at, **options)[0].tolist() == [[0, -1, -1]]


def test_a_label_has_at_most_its_share_of_the_picks(nms):
    segments = torch.arange(12.0).reshape(1, 6, 2)
    scores, labels = (
        torch.linspace(0.9, 0.4, 6)[None],
        torch.tensor([[0] * 4 + [7] * 2]),
    )
    picks = partial(nms, segments, scores, labels, max_segments=6)
    assert picks(max_per_label=2)[0].tolist() == [[0, 1, 4, 5, -1, -1]]
    assert picks(max_per_label=0)[0].tolist() == [[-1] * 6]
    assert picks(max_per_label=2, max_segments=3)[0].tolist() == [[0, 1, 4]]


def test_no_limit_keeps_all_that_are_left(nms):
    segments = torch.arange(600.0).reshape(1, 300, 2)
    indices, _ = nms(segments, torch.ones(1, 300), max_segments=None)
    assert indices.tolist() == [list(range(300))]


def test_each_clip_of_a_batch_is_treated_as_if_alone(nms):
    segments, scores, labels = random_clips(3, 4, 50, 3)
    indices, kept = nms(segments, scores, labels, max_segments=20)
    for clip in range(4):
        alone = slice(clip, clip + 1)
        expected = nms(segments[alone], scores[alone], labels[alone], max_segments=20)
        assert torch.equal(indices[alone], expected[0])
        assert torch.equal(kept[alone], expected[1])


def test_candidates_need_no_sorting_before_the_cut(nms):
    segments = torch.tensor([[[0.0, 1.0], [5.0, 6.0]]])
    indices, scores = nms(segments, torch.tensor([[0.1, 0.9]]), max_segments=1)
    assert indices.tolist() == [[1]]
    assert scores.tolist() == pytest.approx(np.array([[0.9]]))


def test_candidates_that_cannot_be_right_are_never_picked(nms):
    nan, inf = float("nan"), float("inf")
    bad_windows = [[9.0, 0.0], [nan, 9.0], [0.0, inf], [-3e38, 3e38]]
    segments = torch.tensor([[[0.0, 9.0]] * 6 + bad_windows])
    scores = torch.tensor([[0.5, 0.0, -1.0, nan, inf] + [0.9] * 5])
    labels = torch.tensor([[0, 0, 0, 0, 0, -1, 0, 0, 0, 0]])
    indices, kept = nms(segments, scores, labels, max_segments=3)
    assert indices.tolist() == [[0, -1, -1]]
    assert kept.tolist() == [[0.5, 0.0, 0.0]]


def test_ties_go_to_the_lowest_index(nms):
    segments = torch.tensor([[[0.0, 1.0], [10.0, 11.0], [20.0, 21.0]]])
    indices, _ = nms(segments, torch.full((1, 3), 0.5), max_segments=3)
    assert indices.tolist() == [[0, 1, 2]]


def test_ties_between_labels_go_to_the_lowest_index(nms):
    segments = torch.tensor([[[0.0, 1.0], [10.0, 11.0], [20.0, 21.0], [30.0, 31.0]]])
    labels = torch.tensor([[5, 2, 5, 0]])
    indices, _ = nms(segments, torch.full((1, 4), 0.5), labels, max_segments=4)
    assert indices.tolist() == [[0, 1, 2, 3]]


def test_windows_of_length_zero_overlap_nothing(nms):
    segments = torch.tensor([[[5.0, 5.0], [5.0, 5.0], [0.0, 10.0]]])
    indices, kept = nms(segments, torch.tensor([[0.9, 0.8, 0.7]]), max_segments=3)
    assert indices.tolist() == [[0, 1, 2]]
    assert kept.tolist() == pytest.approx(np.array([[0.9, 0.8, 0.7]]))


def test_lengths_up_to_the_end_of_float32_give_no_nan(nms):
    segments = torch.tensor([[[0.0, 3e38], [0.0, 3e38], [-3e38, -2e38], [2e38, 3e38]]])
    indices, kept = nms(segments, torch.tensor([[0.9, 0.8, 0.7, 0.6]]), max_segments=4)
    assert kept.isfinite().all()
    assert indices[0, 0] == 0
    assert (kept[indices >= 0] > 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_float_types_are_read_as_float32(nms, dtype):
    segments, scores, labels = random_clips(4, 2, 60, 3)
    segments, scores = segments.to(dtype), scores.to(dtype)
    expected = nms(segments.float(), scores.float(), labels)
    indices, kept = nms(segments, scores, labels)
    assert kept.dtype == torch.float32 and indices.dtype == torch.int64
    assert torch.equal(indices, expected[0]) and torch.equal(kept, expected[1])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_whole_numbers_are_read_as_float32(nms, dtype):
    segments = torch.tensor([[[0, 10], [0, 9], [20, 30]]], dtype=dtype)
    scores = torch.tensor([[1, 3, 2]], dtype=dtype)
    labels = torch.zeros(1, 3, dtype=torch.int32)
    expected = nms(segments.float(), scores.float(), labels.long(), max_segments=3)
    indices, kept = nms(segments, scores, labels, max_segments=3)
    assert indices[0, :2].tolist() == [1, 2]
    assert torch.equal(indices, expected[0]) and torch.equal(kept, expected[1])


def test_labels_may_be_any_integers(nms):
    segments, scores, labels = random_clips(6, 3, 50, 4)
    wide = torch.where(labels < 0, labels, labels * 2**60 + 3)
    expected, found = nms(segments, scores, labels), nms(segments, scores, wide)
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])


def test_values_that_require_gradients_or_a_stride_are_read_alike(nms):
    segments, scores, labels = random_clips(7, 2, 30, 3)
    strided = segments.repeat_interleave(2, dim=1)[:, ::2].requires_grad_()
    found = nms(strided, scores.clone().requires_grad_(), labels.t().contiguous().t())
    expected = nms(segments, scores, labels)
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])
    assert not found[1].requires_grad


def test_windows_of_different_labels_do_not_suppress_each_other(nms):
    segments = torch.tensor([[[0.0, 10.0], [0.0, 10.0]]])
    scores = torch.tensor([[0.5, 0.4]])
    apart, kept = nms(segments, scores, torch.tensor([[0, 1]]), max_segments=2)
    assert apart.tolist() == [[0, 1]]
    assert torch.equal(kept, scores)
    _, lowered = nms(segments, scores, torch.tensor([[1, 1]]), max_segments=2)
    assert lowered[0, 1] < 0.4


def test_arguments_are_left_as_they_were(nms):
    arguments = random_clips(5, 2, 20, 3)
    copies = [argument.clone() for argument in arguments]
    nms(*arguments)
    for argument, copy in zip(arguments, copies, strict=True):
        assert torch.equal(argument, copy)


@pytest.mark.parametrize(("n", "limit"), [(0, 3), (4, 0), (0, 0)])
def test_nothing_to_pick_from_or_no_room_is_legal(nms, n, limit):
    segments, scores, labels = random_clips(0, 2, n, 2)
    indices, kept = nms(segments, scores, labels, max_segments=limit)
    assert indices.tolist() == [[-1] * limit] * 2
    assert kept.tolist() == [[0.0] * limit] * 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "cubic"}, "expected a method of gaussian, linear, vanilla but got"),
        ({"method": "hard"}, "expected a method of gaussian, linear, vanilla but got"),
        ({"backend": "jax"}, "a backend of auto, torch, numpy, numba but got 'jax'"),
        ({"sigma": 0.0}, "expected sigma > 0 but got 0.0"),
        ({"sigma": float("nan")}, "expected sigma > 0 but got nan"),
        ({"min_score": -1.0}, "expected min_score >= 0 but got -1.0"),
        ({"max_segments": -1}, "expected max_segments >= 0 but got -1; None keeps all"),
        ({"max_per_label": -1}, "expected max_per_label >= 0 but got -1"),
        ({"scores": torch.zeros(1, 3)}, r"expected scores of shape \(1, 4\) but got"),
        ({"segments": torch.zeros(4, 2)}, r"shape \(B, N, 2\) but got \(4, 2\)"),
        ({"scores": torch.zeros(1, 4, device="meta")}, "scores on cpu as the segments"),
    ],
)
def test_a_wrong_argument_is_named(change, message):
    arguments = {"segments": torch.zeros(1, 4, 2), "scores": torch.zeros(1, 4)}
    with pytest.raises(ValueError, match=message):
        soft_nms(**{**arguments, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"labels": torch.zeros(1, 4)},
            "expected integer labels but got torch.float32",
        ),
        ({"max_segments": 5.0}, "expected max_segments an int or None but got 5.0"),
        ({"max_per_label": True}, "expected max_per_label an int or None but got True"),
    ],
)
def test_a_wrong_type_is_named(change, message):
    with pytest.raises(TypeError, match=message):
        soft_nms(torch.zeros(1, 4, 2), torch.zeros(1, 4), **change)


def test_a_threshold_outside_0_to_1_is_refused():
    with pytest.raises(ValueError, match=r"iou_threshold in \[0, 1\] but got 1.5"):
        hard_nms(torch.zeros(1, 4, 2), torch.zeros(1, 4), iou_threshold=1.5)


@pytest.mark.parametrize("nms", [soft_nms, hard_nms])
@pytest.mark.parametrize("limits", [{}, {"max_per_label": 2}])
def test_picking_never_waits_for_the_device(nms, limits):
    """The meta device has no values: reading one raises."""
    arguments = [argument.to("meta") for argument in random_clips(0, 2, 20, 3)]
    indices, kept = nms(*arguments, max_segments=30, **limits)
    assert indices.shape == kept.shape == (2, 30)
    assert indices.device.type == kept.device.type == "meta"


@pytest.mark.parametrize("backend", ["numpy", "numba"])
def test_loops_on_the_cpu_refuse_other_devices(backend):
    arguments = [argument.to("meta") for argument in random_clips(0, 2, 20, 3)]
    with pytest.raises(ValueError, match=f"'{backend}' but got meta"):
        soft_nms(*arguments, backend=backend)
