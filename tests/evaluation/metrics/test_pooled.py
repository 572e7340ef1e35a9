"""States grow with the predictions kept, not with their padding."""

from types import SimpleNamespace

import pytest
import torch

from avalanche_vilco.evaluation.functional import Tracks
from avalanche_vilco.evaluation.metrics import pooled
from avalanche_vilco.evaluation.metrics.detection import MomentDetectionMAP
from avalanche_vilco.evaluation.metrics.visual_query import VisualQueryMetrics


def moments(n, n_real, seed):
    """Windows of one clip, all but the first ``n_real`` padding."""
    draw = torch.Generator().manual_seed(seed)
    starts = torch.rand(1, n, generator=draw, dtype=torch.float64) * 10
    labels = torch.randint(0, 3, (1, n), generator=draw)
    labels[:, n_real:] = -1
    return SimpleNamespace(
        segments_sec=torch.stack([starts, starts + 10], dim=2),
        labels=labels,
        scores=torch.rand(1, n, generator=draw),
    )


def filled(n_batches=40, n=50, n_real=4):
    metric = MomentDetectionMAP()
    most = 0
    for seed in range(n_batches):
        metric.update(moments(n, n_real, seed), moments(6, 3, 1000 + seed))
        most = max(most, sum(map(len, metric.labels)))
    return metric, most


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Numbers of rows count as unknown, and patience is short."""
    monkeypatch.setattr(pooled, "_counts_without_waiting", lambda rows: False)
    monkeypatch.setattr(pooled, "_PATIENCE", 200)


def test_on_the_cpu_padding_never_enters_a_state():
    metric, most = filled()
    assert most == 40 * 4
    assert sum(map(len, metric.target_labels)) == 40 * 3


def test_elsewhere_padding_stays_bounded_and_changes_no_number(as_on_a_gpu):
    metric, most = filled()
    assert 40 * 4 < most <= 2 * 40 * 4 + 200 + 50
    assert {len(s) for s in (metric.scores, metric.hits)} == {len(metric.labels)}


def test_both_ways_give_the_same_numbers(request):
    expected = filled()[0].compute()
    request.getfixturevalue("as_on_a_gpu")
    assert filled()[0].compute() == expected
    assert 0 < expected["mAP_tIoU0.5"] < expected["mAP_tIoU0.1"] < 1


def test_the_host_waits_a_logarithmic_number_of_times(as_on_a_gpu, monkeypatch):
    n_drops = []
    drop = pooled.PooledMetric._drop_padding
    monkeypatch.setattr(
        pooled.PooledMetric,
        "_drop_padding",
        lambda *a, **k: n_drops.append(drop(*a, **k)),
    )
    filled(n_batches=300, n=10, n_real=10)
    assert 2 <= len(n_drops) <= 2 * 5


def test_answers_that_are_padding_never_enter_a_state():
    owners = torch.arange(4).repeat_interleave(2)
    frames = torch.arange(2).repeat(4)
    boxes = torch.tensor([[0.0, 0.0, 10.0, 10.0]]).repeat(8, 1)
    predictions = SimpleNamespace(
        tracks=Tracks(boxes, frames, owners),
        scores=torch.tensor([0.9, 0.8, 0.7, 0.6]),
        queries=torch.tensor([0, -1, 1, -1]),
    )
    targets = SimpleNamespace(
        tracks=Tracks(boxes[:4], frames[:4], owners[:4]), n_queries=2
    )
    metric = VisualQueryMetrics()
    metric.update(predictions, targets)
    assert {len(getattr(metric, name)[0]) for name in ("scores", "tube")} == {2}
    assert metric.compute()["stAP"] == 1.0
