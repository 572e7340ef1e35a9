"""Working through clips and boxes piece by piece changes no number."""

import pytest
import torch

from avalanche_vilco.evaluation.functional import (
    Tracks,
    detection_hits,
    recall_hits,
    visual_query_hits,
)
from avalanche_vilco.evaluation.functional import pairs as pairs_module
from avalanche_vilco.evaluation.functional import visual_query as tracks_module
from avalanche_vilco.evaluation.functional.order import by_number

REFERENCES = (None, "ego4d", "actionformer", "vilco")


def moments(n_clips=9, n=40, n_targets=5, n_labels=4):
    draw = torch.Generator().manual_seed(0)

    def windows(count):
        starts = torch.rand(n_clips, count, generator=draw, dtype=torch.float64) * 20
        lengths = torch.rand(n_clips, count, generator=draw, dtype=torch.float64) * 20
        return torch.stack([starts, starts + lengths], dim=2)

    def labels(count):
        return torch.randint(-1, n_labels, (n_clips, count), generator=draw)

    scores = torch.randint(0, 30, (n_clips, n), generator=draw).float()
    return windows(n), scores, labels(n), windows(n_targets), labels(n_targets)


@pytest.mark.parametrize("reference", REFERENCES)
@pytest.mark.parametrize("function", [detection_hits, recall_hits])
def test_clips_may_be_compared_a_few_at_a_time(monkeypatch, function, reference):
    whole = function(*moments(), reference=reference)
    monkeypatch.setattr(pairs_module, "_PIECE", 100)
    calls = []
    pairs_of = pairs_module.pairs_of
    for module in ("detection", "recall"):
        monkeypatch.setattr(
            f"avalanche_vilco.evaluation.functional.{module}.pairs_of",
            lambda *labels: calls.append(len(labels[0])) or pairs_of(*labels),
        )
    assert torch.equal(function(*moments(), reference=reference), whole)
    assert calls == [2, 2, 2, 2, 1]
    assert whole.any() and not whole.all()


def shuffled_tracks(n_tracks, seed):
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 9, (n_tracks,), generator=draw)
    owners = torch.arange(n_tracks).repeat_interleave(lengths)
    frames = torch.cat([torch.arange(3, 3 + int(length)) for length in lengths])
    corner = torch.rand(len(owners), 2, generator=draw, dtype=torch.float64) * 20
    order = torch.randperm(len(owners), generator=draw)
    boxes = torch.cat([corner, corner + 100], dim=1)
    return Tracks(boxes[order], frames[order], owners[order])


def test_boxes_may_be_compared_a_few_at_a_time(monkeypatch):
    arguments = (
        shuffled_tracks(12, 0),
        torch.linspace(0, 1, 12),
        torch.arange(12) % 7 - 1,
        shuffled_tracks(6, 1),
        6,
    )
    whole = visual_query_hits(*arguments)
    monkeypatch.setattr(tracks_module, "_PIECE", 5)
    parts = visual_query_hits(*arguments)
    assert whole.n_recovered.sum() > 0 and whole.tube.any()
    for one, other in zip(whole, parts, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    "span", [(-(1 << 15), (1 << 15) - 1), (-40_000, 40_000), (0, 1 << 40)]
)
def test_numbers_of_any_width_sort_stably(span):
    draw = torch.Generator().manual_seed(0)
    values = torch.randint(span[0], span[1] + 1, (50,), generator=draw)
    values = torch.cat([values, torch.tensor(span), values])
    rows = torch.stack([values, values.flip(0)])
    expected = [sorted(range(len(r)), key=r.__getitem__) for r in rows.tolist()]
    assert by_number(rows).tolist() == expected
    assert by_number(values).tolist() == expected[0]
    assert by_number(values[:0]).tolist() == []
