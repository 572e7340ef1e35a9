"""States in a ``MetricCollection``, and numbers beyond 31 bits in them."""

from types import SimpleNamespace

import pytest
import torch
from torchmetrics import MetricCollection

from avalanche_vilco.evaluation.functional import Tracks
from avalanche_vilco.evaluation.metrics.detection import MomentDetectionMAP
from avalanche_vilco.evaluation.metrics.recall import MomentRecall
from avalanche_vilco.evaluation.metrics.response_track import ResponseTrackMetrics
from avalanche_vilco.evaluation.metrics.visual_query import VisualQueryMetrics
from avalanche_vilco.ops.response_track import PeakRule

LARGE = 2**32


def tracks(batch):
    """Two queries whose only track, or first of two, is right in the first batch."""
    shift = torch.tensor([0, 2, 0])[:, None] * batch
    frames = (torch.arange(6) + shift).flatten()
    owners = torch.arange(3).repeat_interleave(6)
    # Large by all rules.
    boxes = torch.tensor([[0.0, 0.0, 400.0, 500.0]], dtype=torch.float64).repeat(18, 1)
    boxes[6:12, 2] -= 250.0 * batch
    asked = Tracks(boxes[:12], torch.arange(6).repeat(2), owners[:12])
    return (
        SimpleNamespace(
            tracks=Tracks(boxes, frames, owners),
            scores=torch.tensor([0.5, 0.5, 0.5]),
            queries=torch.tensor([0, 1, 1]),
        ),
        SimpleNamespace(tracks=asked, n_queries=2),
    )


def frame_windows(batch):
    scores = torch.tensor([-4.0, 1.0, 1.0, 1.5, 2.0, 1.0, -4.0, -4.0])
    scores = torch.stack([scores, scores.roll(4 * batch)])
    frames, query = torch.arange(8).repeat(2, 1), torch.tensor([0, 1]) + 2 * batch
    boxes = torch.tensor([0.0, 0.0, 40.0, 50.0], dtype=torch.float64).expand(2, 8, 4)
    given = {"scores": scores, "boxes": boxes, "frame_numbers": frames, "query": query}
    asked = {"track_boxes": boxes[:, :4], "track_frames": frames[:, 2:6]}
    return (
        SimpleNamespace(**given, query_frame=torch.tensor([8, 8])),
        SimpleNamespace(**asked, query=query),
    )


KINDS = {
    MomentRecall: (
        *({"k": (2,)}, {"k": (2,), "budget": "fixed"}, {"k": (1,)}),
        *({"k": (2,), "tiou": (0.1, 0.5)}, {"k": (2,), "reference": "ego4d"}),
    ),
    MomentDetectionMAP: (
        {},
        {"tiou": (0.1, 0.2, 0.3, 0.4, 0.9)},
        {"reference": "ego4d"},
    ),
    VisualQueryMetrics: ({}, {"reference": "ego4d"}, {"reference": "vilco"}),
    ResponseTrackMetrics: (
        *({}, {"reference": "ego4d"}, {"rule": PeakRule.reference()}),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_metrics_that_differ_by_options_give_together_what_they_give_alone(
    kind, random_moments
):
    """The first batches are perfect: states that hold other things are equal then."""
    right = random_moments(3, 4, 0)
    batches = {
        VisualQueryMetrics: [tracks(0), tracks(1)],
        ResponseTrackMetrics: [frame_windows(0), frame_windows(1)],
    }.get(kind, [(right, right), (random_moments(9, 9, 1), random_moments(9, 5, 2))])
    options = [*KINDS[kind], KINDS[kind][0]]
    alone = [kind(**each) for each in options]
    together = MetricCollection({str(n): kind(**o) for n, o in enumerate(options)})
    for _ in range(2):
        for batch in [*batches, *batches[1:]]:
            together.update(*batch)
            together.compute()
            for n, metric in enumerate(alone):
                metric.update(*batch)
                got = {
                    name: str(value)
                    for name, value in together[str(n)].compute().items()
                }
                assert got == {k: str(v) for k, v in metric.compute().items()}
        together.reset()
        for metric in alone:
            metric.reset()
    assert len(together.compute_groups) == len(KINDS[kind])


def test_a_budget_of_its_own_counts_in_a_collection_too():
    window = torch.tensor([[[0.0, 10.0], [20.0, 30.0], [40.0, 50.0], [60.0, 70.0]]])
    labels = torch.zeros(1, 4, dtype=torch.long)
    scores = torch.tensor([[0.9, 0.8, 0.7, 0.6]])
    given = SimpleNamespace(segments_sec=window, scores=scores, labels=labels)
    first = SimpleNamespace(segments_sec=window[:, :2], labels=labels[:, :2])
    third = SimpleNamespace(segments_sec=window[:, 1:3], labels=labels[:, :2])
    both = MetricCollection([MomentRecall(k=(2,), tiou=(0.5,))])
    both.add_metrics({"fixed": MomentRecall(k=(2,), tiou=(0.5,), budget="fixed")})
    both.update(given, first)
    both.update(given, third)
    values = both.compute()
    assert values["Recall@2_tIoU0.5"] == 0.75
    assert values["Recall@2x_tIoU0.5"] == 1.0


def test_labels_beyond_31_bits_do_not_collide():
    windows = torch.tensor([[[0.0, 10.0], [20.0, 30.0]]], dtype=torch.float64)
    asked = SimpleNamespace(segments_sec=windows, labels=torch.tensor([[0, LARGE]]))
    given = SimpleNamespace(**vars(asked), scores=torch.tensor([[0.5, 0.9]]))
    metrics = MomentDetectionMAP(), MomentRecall(k=(1,), budget="fixed")
    for metric in metrics:
        metric.update(given, asked)
        assert set(metric.compute().values()) == {1.0}
    assert metrics[0].labels[0].tolist() == [0, LARGE]
    given.labels = torch.tensor([[-(2**31) + 2**32, 2**31 + LARGE]])
    metrics[0].reset()
    metrics[0].update(given, asked)
    assert set(metrics[0].compute().values()) == {0.0}


@pytest.mark.parametrize("far", [LARGE, -LARGE, 2**62])
def test_numbers_of_queries_and_frames_beyond_31_bits_count_or_are_refused(far):
    given, asked = frame_windows(0)
    expected, metric = ResponseTrackMetrics(), ResponseTrackMetrics()
    expected.update(given, asked)
    for side in (given, asked):
        side.query = torch.tensor([3, abs(far) + 3])
    metric.update(given, asked)
    assert metric.compute() == expected.compute()
    given.query_frame = torch.tensor([8, 2**62])
    metric.update(given, asked)
    with pytest.raises(ValueError, match=r"searched frames .* but got 2 queries of up"):
        metric.compute()

    given, asked = tracks(0)
    for side in (given, asked):
        boxes, frames, owners = side.tracks
        side.tracks = Tracks(boxes, frames + far, owners)
    metric = VisualQueryMetrics()
    metric.update(given, asked)
    if abs(far) == LARGE:
        assert metric.compute()["success"] == 1.0
    else:
        with pytest.raises(ValueError, match="consecutive frames"):
            metric.compute()
