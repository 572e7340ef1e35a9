"""Suppression of one clip: labels apart or together, voting."""

import math

import pytest
import torch

from avalanche_vilco.ops.nms import batched_nms, soft_nms, voting

NAN = float("nan")


def clip(*rows):
    table = torch.tensor(rows).reshape(-1, 4)
    return table[:, :2], table[:, 2], table[:, 3].long()


def test_what_is_kept_is_what_the_padded_form_points_at():
    segments, scores, labels = clip((0, 9, 0.9, 4), (0, 8, 0.8, 4), (0, 7, 0.7, 1))
    indices, lowered = soft_nms(
        segments[None], scores[None], labels[None], max_segments=2
    )
    kept = batched_nms(segments, scores, labels, max_segments=2)
    assert kept.indices.tolist() == indices[0].tolist()
    assert torch.equal(kept.scores, lowered[0])
    assert torch.equal(kept.segments, segments[kept.indices])
    assert torch.equal(kept.labels, labels[kept.indices])


def test_without_multiclass_labels_suppress_each_other():
    windows = clip((0, 10, 0.9, 0), (0, 10, 0.8, 1), (0, 10, 0.7, -1))
    options = {"method": "hard", "iou_threshold": 0.5}
    assert batched_nms(*windows, **options).labels.tolist() == [0, 1]
    kept = batched_nms(*windows, **options, multiclass=False)
    assert kept.labels.tolist() == [0]


def test_without_multiclass_all_count_as_one_label():
    windows = clip((0, 1, 0.9, 0), (2, 3, 0.8, 1), (4, 5, 0.7, 2))
    kept = batched_nms(*windows, max_per_label=2, multiclass=False)
    assert kept.indices.tolist() == [0, 1]
    assert batched_nms(*windows, max_per_label=2).indices.tolist() == [0, 1, 2]


def test_votes_weigh_score_times_tiou_and_come_from_all_labels():
    windows = clip((0, 10, 0.8, 0), (0, 8, 0.5, 1), (0, 2, 0.9, 0))
    options = {"max_segments": 3, "multiclass": False, "voting_threshold": 0.5}
    kept = batched_nms(*windows, **options)
    place = kept.indices.tolist().index(0)
    # Votes: 0.8 * 1.0 for [0, 10] and 0.5 * 0.8 for [0, 8].
    assert kept.segments[place].tolist() == pytest.approx([0.0, 11.2 / 1.2])


def test_a_tiou_at_the_voting_threshold_votes():
    windows = clip((0, 10, 0.8, 0), (0, 5, 0.4, 0))
    options = {"max_segments": 1, "multiclass": False}
    at = batched_nms(*windows, voting_threshold=0.5, **options)
    # Votes: 0.8 * 1.0 for [0, 10] and 0.4 * 0.5 for [0, 5].
    assert at.segments.tolist() == [pytest.approx([0.0, 9.0])]
    above = batched_nms(*windows, voting_threshold=0.51, **options)
    assert above.segments.tolist() == [[0.0, 10.0]]


def test_with_multiclass_nothing_votes():
    windows = clip((0, 10, 0.8, 0), (0, 8, 0.5, 0))
    kept = batched_nms(*windows, voting_threshold=0.5)
    assert torch.equal(kept.segments, windows[0][kept.indices])


def test_windows_that_are_never_picked_have_no_vote():
    good = (0, 10, 0.8, 0)
    bad = (0, 9, NAN, 0), (NAN, 9, 0.5, 0), (0, 9, 0.5, -1), (9, 0, 0.5, 0)
    options = {"multiclass": False, "voting_threshold": 0.5}
    assert batched_nms(*clip(good, *bad), **options).segments.tolist() == [[0.0, 10.0]]


def test_windows_below_the_score_of_hard_suppression_still_vote():
    """They are candidates of the public code's vote, though not of its picks."""
    windows = clip((0, 10, 0.8, 0), (0, 8, 0.5, 0))
    options = {"method": "hard", "min_score": 0.6, "multiclass": False}
    kept = batched_nms(*windows, voting_threshold=0.5, **options)
    assert kept.indices.tolist() == [0]
    assert kept.segments[0, 1].item() == pytest.approx(11.2 / 1.2)


def test_votes_do_not_depend_on_how_many_are_counted_at_once(monkeypatch):
    draw = torch.Generator().manual_seed(0)
    starts = torch.rand(90, generator=draw) * 60
    windows = torch.stack([starts, starts + 30 * torch.rand(90, generator=draw)], 1)
    arguments = windows, torch.rand(90, generator=draw), torch.zeros(90).long()
    options = {"multiclass": False, "voting_threshold": 0.5}
    expected = batched_nms(*arguments, **options)
    monkeypatch.setattr(voting, "_PAIRS_AT_ONCE", 200)
    found = batched_nms(*arguments, **options)
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
        batched_nms(*clip((0, 1, 0.5, 0)), voting_threshold=threshold)


def test_a_batch_of_clips_is_refused():
    with pytest.raises(ValueError, match=r"shape \(N, 2\) but got \(1, 4, 2\)"):
        batched_nms(torch.zeros(1, 4, 2), torch.zeros(1, 4), torch.zeros(1, 4).long())
