"""Suppression in three loops: against a plain loop, each other, and rule by rule."""

import doctest
import math
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from avalanche_vilco.ops.nms import NMSRule, batched_nms, padded_nms, suppression

NAN = float("nan")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "nms.md"


def soft_nms(segments, scores, labels=None, *, backend="auto", **rule):
    return padded_nms(segments, scores, labels, NMSRule(**rule), backend=backend)


hard_nms = partial(soft_nms, method="hard", min_score=0.0)


def one_clip(rows, *, multiclass=True, voting_threshold=0.0, **rule):
    options = {"multiclass": multiclass, "voting_threshold": voting_threshold}
    return batched_nms(*clip(*rows), NMSRule(**rule), **options)


def clip(*rows):
    table = torch.tensor(rows).reshape(-1, 4)
    return table[:, :2], table[:, 2], table[:, 3].long()


@pytest.fixture(params=[soft_nms, hard_nms])
def nms(request, backend):
    return partial(request.param, backend=backend)


def plain_nms(segments, scores, labels, method, min_score, per_label):
    """One label after the other, all windows of each, then sorted by score."""
    kept, lower = [], LOWER[method]
    above, floor = (min_score, 0) if method == "hard" else (0, min_score)
    for label in set(labels.tolist()) - {-1}:
        left = [
            i for i in range(len(scores)) if labels[i] == label and scores[i] > above
        ]
        current, picks = {i: scores[i] for i in left}, []
        while left:
            best = max(left, key=lambda i: (current[i], -i))
            left.remove(best)
            picks.append((best, current[best]))
            for i in list(left):
                current[i] = current[i] * lower(plain_tiou(segments[i], segments[best]))
                if current[i] < floor or current[i] == 0:
                    left.remove(i)
        kept += picks[:per_label]
    return sorted(kept, key=lambda pick: (-pick[1], pick[0]))


LOWER = {
    "gaussian": lambda tiou: np.float32(np.exp(-(np.float64(tiou) ** 2) / 0.4)),
    "linear": lambda tiou: np.float32(1 - tiou if tiou >= np.float32(0.3) else 1),
    "vanilla": lambda tiou: np.float32(tiou < np.float32(0.3)),
    "hard": lambda tiou: np.float32(tiou < np.float32(0.3)),
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
@settings(max_examples=30)
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
        expected = plain_nms(*arguments, method, 0.1, per_label)[:limit]
        found = indices[clip] >= 0
        assert indices[clip][found].tolist() == [pick[0] for pick in expected]
        assert lowered[clip][found].tolist() == pytest.approx(
            [pick[1] for pick in expected], rel=1e-5
        )


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


def test_no_limit_keeps_all_that_are_left(nms):
    segments = torch.arange(600.0).reshape(1, 300, 2)
    indices, _ = nms(segments, torch.ones(1, 300), max_segments=None)
    assert indices.tolist() == [list(range(300))]


def test_candidates_that_cannot_be_right_are_never_picked(nms):
    nan, inf = float("nan"), float("inf")
    bad_windows = [[9.0, 0.0], [nan, 9.0], [0.0, inf], [-3e38, 3e38]]
    segments = torch.tensor([[[0.0, 9.0]] * 6 + bad_windows])
    scores = torch.tensor([[0.5, 0.0, -1.0, nan, inf] + [0.9] * 5])
    labels = torch.tensor([[0, 0, 0, 0, 0, -1, 0, 0, 0, 0]])
    indices, kept = nms(segments, scores, labels, max_segments=3)
    assert indices.tolist() == [[0, -1, -1]]
    assert kept.tolist() == [[0.5, 0.0, 0.0]]


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


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int64]
)
def test_other_types_are_read_as_float32(nms, dtype):
    segments, scores, labels = random_clips(4, 2, 60, 3)
    if dtype == torch.int64:
        scores, labels = scores * 9, labels.int()
    segments, scores = segments.to(dtype), scores.to(dtype)
    expected = nms(segments.float(), scores.float(), labels.long())
    indices, kept = nms(segments, scores, labels)
    assert kept.dtype == torch.float32 and indices.dtype == torch.int64
    assert torch.equal(indices, expected[0]) and torch.equal(kept, expected[1])


def test_whole_numbers_are_read_as_float32(nms):
    segments, scores = torch.tensor([[[0, 10], [0, 9]]]), torch.tensor([[1, 3]])
    labels = torch.zeros(1, 2, dtype=torch.int32)
    expected = nms(segments.float(), scores.float(), labels.long(), max_segments=2)
    indices, kept = nms(segments, scores, labels, max_segments=2)
    assert indices[0, 0] == 1
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
        ({"method": "cubic"}, "a method of gaussian, linear, vanilla, hard but got"),
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


# Few starts, lengths and scores, so that windows, scores and tIoU tie.
FEW = st.tuples(
    st.integers(0, 12),
    st.integers(-1, 8),
    st.sampled_from([0.0, 0.25, 0.5, 0.5000001, 1.0, float("nan")]),
    st.integers(-1, 3),
)
MANY = st.tuples(
    st.floats(0, 100, width=32),
    st.floats(0, 50, width=32),
    st.floats(0, 1, width=32),
    st.integers(-1, 3),
)
OPTIONS = st.fixed_dictionaries(
    {
        "iou_threshold": st.sampled_from([0.0, 0.25, 0.5, 1.0]) | st.floats(0, 1),
        "min_score": st.sampled_from([0.0, 0.25, 0.4]),
        "max_segments": st.none() | st.integers(0, 30),
        "max_per_label": st.none() | st.integers(0, 4),
    }
)


def clips_of(rows):
    table = torch.tensor(rows, dtype=torch.float64).reshape(1, -1, 4)
    segments = torch.stack([table[..., 0], table[..., 0] + table[..., 1]], dim=2)
    # The second clip is the first the other way round, with fewer labels.
    segments = torch.cat([segments, segments.flip(1)])
    scores = torch.cat([table[..., 2], table[..., 2].flip(1)])
    labels = torch.cat([table[..., 3], table[..., 3].flip(1).clamp(max=1)]).long()
    return segments, scores, labels


def assert_all_equal(arguments, **options):
    indices, scores = soft_nms(*arguments, **options, backend="torch")
    assert not scores.isnan().any()
    for backend in ("numpy", "numba") if find_spec("numba") else ("numpy",):
        found = soft_nms(*arguments, **options, backend=backend)
        assert found[0].tolist() == indices.tolist()
        torch.testing.assert_close(found[1], scores, rtol=2e-7, atol=0)


@pytest.mark.parametrize("method", LOWER)
@settings(max_examples=80)
@given(
    rows=st.lists(FEW, max_size=20) | st.lists(MANY, max_size=20),
    options=OPTIONS,
    sigma=st.floats(0.01, 4),
)
def test_all_loops_pick_the_same(method, rows, options, sigma):
    assert_all_equal(clips_of(rows), method=method, sigma=sigma, **options)


@pytest.mark.parametrize(("n", "n_labels"), [(3000, 1), (3000, 40), (3000, 3000)])
def test_picks_are_the_same_at_the_size_of_a_clip(n, n_labels):
    draw = torch.Generator().manual_seed(n_labels)
    starts = torch.rand(2, n, generator=draw) * 480
    lengths = torch.rand(2, n, generator=draw) * 60
    segments = torch.stack([starts, starts + lengths], dim=2)
    scores = torch.rand(2, n, generator=draw)
    labels = torch.randint(n_labels, (2, n), generator=draw)
    assert_all_equal((segments, scores, labels), sigma=0.99, min_score=1e-4)


def test_numpy_picks_where_numba_is_absent(monkeypatch):
    monkeypatch.setattr(suppression, "_kernels", lambda: None)
    arguments = torch.tensor([[[0.0, 1.0]]]), torch.tensor([[0.5]])
    assert soft_nms(*arguments, max_segments=1)[0].tolist() == [[0]]
    with pytest.raises(ImportError, match=r"pip install 'avalanche-vilco\[fast\]'"):
        soft_nms(*arguments, backend="numba")


def test_code_is_compiled_where_no_folder_can_keep_it(monkeypatch):
    pytest.importorskip("numba")
    from avalanche_vilco.ops.nms import numba_loop

    compile_one = numba_loop.njit

    def refuse_to_keep(*, cache=False, **options):
        if cache:
            raise RuntimeError("no locator available")
        return compile_one(**options)

    monkeypatch.setattr(numba_loop, "njit", refuse_to_keep)
    assert numba_loop.compiled(lambda x: x + 1)(1) == 2


def test_what_is_kept_of_a_clip_is_what_the_padded_form_points_at():
    rows = (0, 9, 0.9, 4), (0, 8, 0.8, 4), (0, 7, 0.7, 1)
    segments, scores, labels = clip(*rows)
    indices, lowered = soft_nms(
        segments[None], scores[None], labels[None], max_segments=2
    )
    kept = one_clip(rows, max_segments=2)
    assert kept.indices.tolist() == indices[0].tolist()
    assert torch.equal(kept.scores, lowered[0])
    assert torch.equal(kept.segments, segments[kept.indices])
    assert torch.equal(kept.labels, labels[kept.indices])


def test_without_multiclass_all_count_as_one_label():
    near = (0, 10, 0.9, 0), (0, 10, 0.8, 1), (0, 10, 0.7, -1)
    assert one_clip(near, method="hard").labels.tolist() == [0, 1]
    assert one_clip(near, method="hard", multiclass=False).labels.tolist() == [0]
    apart = (0, 1, 0.9, 0), (2, 3, 0.8, 1), (4, 5, 0.7, 2)
    kept = one_clip(apart, max_per_label=2, multiclass=False)
    assert kept.indices.tolist() == [0, 1]
    assert one_clip(apart, max_per_label=2).indices.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("others", "threshold", "expected"),
    [
        # Votes: 0.8 * 1.0 for [0, 10] and 0.5 * 0.8 for [0, 8], of another label.
        ([(0, 8, 0.5, 1), (0, 2, 0.9, 0)], 0.5, 11.2 / 1.2),
        # Votes: 0.8 * 1.0 for [0, 10] and 0.4 * 0.5 for [0, 5], at the threshold.
        ([(0, 5, 0.4, 0)], 0.5, 9.0),
        ([(0, 5, 0.4, 0)], 0.51, 10.0),
        # Never picked, never voting.
        (
            [(0, 9, NAN, 0), (NAN, 9, 0.5, 0), (0, 9, 0.5, -1), (9, 0, 0.5, 0)],
            0.5,
            10.0,
        ),
    ],
)
def test_votes_weigh_score_times_tiou(others, threshold, expected):
    rows = (0, 10, 0.8, 0), *others
    kept = one_clip(rows, multiclass=False, voting_threshold=threshold)
    place = kept.indices.tolist().index(0)
    assert kept.segments[place].tolist() == pytest.approx([0.0, expected])


def test_with_multiclass_nothing_votes():
    rows = (0, 10, 0.8, 0), (0, 8, 0.5, 0)
    kept = one_clip(rows, voting_threshold=0.5)
    assert torch.equal(kept.segments, clip(*rows)[0][kept.indices])


def test_windows_below_the_score_of_hard_suppression_still_vote():
    """They are candidates of the public code's vote, though not of its picks."""
    rows = (0, 10, 0.8, 0), (0, 8, 0.5, 0)
    options = {"method": "hard", "min_score": 0.6, "multiclass": False}
    kept = one_clip(rows, voting_threshold=0.5, **options)
    assert kept.indices.tolist() == [0]
    assert kept.segments[0, 1].item() == pytest.approx(11.2 / 1.2)


def test_votes_do_not_depend_on_how_many_are_counted_at_once(monkeypatch):
    segments, scores, labels = (part[0] for part in random_clips(0, 1, 90, 1))
    options = {"multiclass": False, "voting_threshold": 0.5}
    expected = batched_nms(segments, scores, labels, **options)
    monkeypatch.setattr(suppression, "_PAIRS_AT_ONCE", 200)
    found = batched_nms(segments, scores, labels, **options)
    torch.testing.assert_close(found.segments, expected.segments)


@pytest.mark.parametrize("multiclass", [True, False])
def test_no_candidates_leave_nothing(multiclass):
    windows = torch.zeros(0, 2), torch.zeros(0), torch.zeros(0).long()
    options = {"multiclass": multiclass, "voting_threshold": 0.5}
    kept = batched_nms(*windows, **options)
    assert [tuple(values.shape) for values in kept] == [(0, 2), (0,), (0,), (0,)]


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (torch.float64, torch.float64),
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.int64, torch.float32),
    ],
)
@pytest.mark.parametrize("multiclass", [True, False])
def test_windows_come_back_in_the_type_that_holds_them(dtype, expected, multiclass):
    windows = torch.tensor([[0, 10], [0, 9]], dtype=dtype)
    scores, labels = torch.tensor([0.9, 0.8]), torch.tensor([0, 0])
    options = {"multiclass": multiclass, "voting_threshold": 0.95}
    kept = batched_nms(windows, scores, labels, **options)
    assert kept.segments.dtype == expected
    assert kept.segments.tolist() == [[0, 10], [0, 9]]


@pytest.mark.parametrize("threshold", [-0.1, 1.1, math.nan])
def test_a_voting_threshold_outside_0_to_1_is_refused(threshold):
    with pytest.raises(ValueError, match=r"voting_threshold in \[0, 1\] but got"):
        one_clip([(0, 1, 0.5, 0)], voting_threshold=threshold)


def test_a_batch_of_clips_is_refused():
    with pytest.raises(ValueError, match=r"shape \(N, 2\) but got \(1, 4, 2\)"):
        batched_nms(torch.zeros(1, 4, 2), torch.zeros(1, 4), torch.zeros(1, 4).long())


def test_the_examples_of_the_page_hold():
    result = doctest.testfile(str(PAGE), module_relative=False)
    assert result.attempted > 5
    assert result.failed == 0
