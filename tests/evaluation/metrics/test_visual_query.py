from types import SimpleNamespace

import pytest
import torch

from avalanche_vilco.evaluation.functional import Tracks, visual_query_scores
from avalanche_vilco.evaluation.functional.visual_query import flat_summary
from avalanche_vilco.evaluation.metrics.visual_query import (
    VisualQueryMetrics,
    visual_query_metrics,
)


def batch_of(seed, n_queries, per_query=2):
    """Predictions and targets of random tracks of squares that drift."""
    draw = torch.Generator().manual_seed(seed)

    def tracks(n, firsts):
        lengths = torch.randint(1, 9, (n,), generator=draw)
        owners = torch.arange(n).repeat_interleave(lengths)
        within = torch.cat([torch.arange(int(length)) for length in lengths])
        corner = torch.rand(n, 2, generator=draw, dtype=torch.float64) * 20
        side = torch.randint(20, 300, (n, 1), generator=draw).double()
        boxes = torch.cat([corner, corner + side], dim=1)[owners]
        return Tracks(boxes, firsts[owners] + within, owners)

    n = n_queries * per_query
    first = torch.randint(0, 30, (n_queries,), generator=draw)
    queries = torch.arange(n_queries).repeat_interleave(per_query)
    predictions = SimpleNamespace(
        tracks=tracks(n, first[queries] + torch.randint(-2, 3, (n,), generator=draw)),
        scores=torch.rand(n, generator=draw),
        queries=queries,
    )
    return predictions, SimpleNamespace(
        tracks=tracks(n_queries, first), n_queries=n_queries
    )


def joined(batches):
    """One batch of several."""
    n_tracks = n_queries = 0
    columns = []
    for predictions, targets in batches:
        given, asked = predictions.tracks, targets.tracks
        columns.append(
            (
                *given[:2],
                given.owners + n_tracks,
                predictions.scores,
                predictions.queries + n_queries,
                *asked[:2],
                asked.owners + n_queries,
            )
        )
        n_tracks += len(predictions.scores)
        n_queries += targets.n_queries
    rows = [torch.cat(column) for column in zip(*columns, strict=True)]
    return Tracks(*rows[:3]), rows[3], rows[4], Tracks(*rows[5:]), n_queries


@pytest.mark.parametrize("reference", [None, "ego4d", "vilco"])
def test_any_split_into_batches_gives_the_numbers_of_all_queries(reference):
    batches = [batch_of(seed, n) for seed, n in enumerate((3, 11, 1, 20))]
    expected = flat_summary(visual_query_scores(*joined(batches), reference=reference))
    metric = VisualQueryMetrics(reference=reference)
    for batch in batches:
        metric.update(*batch)
    values = metric.compute()
    assert list(values) == metric.names
    assert values == pytest.approx(expected, nan_ok=True)
    assert 0 < values["stAP25"] < values["tAP25"] < 1


def test_states_of_two_processes_add_up():
    batches = [batch_of(seed, 6) for seed in range(2)]
    whole, first, second = (VisualQueryMetrics() for _ in range(3))
    for batch in batches:
        whole.update(*batch)
    first.update(*batches[0])
    second.update(*batches[1])
    for name in ("n_queries", "n_frames", "n_recovered", "n_success", "n_broken"):
        total = getattr(first, name) + getattr(second, name)
        assert torch.equal(total, getattr(whole, name))
    assert {each.n_queries for each in whole.by_size().values()} >= {12}


def test_a_broken_track_is_refused_when_the_numbers_are_asked_for():
    predictions, targets = batch_of(0, 4)
    frames = predictions.tracks.frames.clone()
    frames[predictions.tracks.owners == 0] *= 3
    predictions.tracks = predictions.tracks._replace(frames=frames)
    metric = VisualQueryMetrics()
    metric.update(predictions, targets)
    with pytest.raises(ValueError, match="tracks with gaps or repeated frames"):
        metric.compute()


def test_plugins_emit_floats_per_experience_and_stream(strategy_of, evaluate):
    strategy, stream = strategy_of(1)
    batch = batch_of(0, 5)
    emitted = evaluate(strategy, visual_query_metrics(), [(stream[0], [batch])])
    expected = visual_query_scores(*joined([batch]))["all"].summary()
    for name, value in expected.items():
        assert emitted[f"{name}_Stream/eval_phase/test_stream"] == pytest.approx(value)
        key = f"{name}_Exp/eval_phase/test_stream/Task000/Exp000"
        assert emitted[key] == pytest.approx(value)
