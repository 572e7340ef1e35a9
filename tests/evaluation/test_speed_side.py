"""The slow side of ``benchmarks/speed/metrics.py`` computes what it is timed for."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from avalanche_vilco.evaluation.functional import (
    detection_ap,
    moment_recall,
    visual_query_scores,
)

SPEED = Path(__file__).resolve().parents[2] / "benchmarks" / "speed"


@pytest.fixture(scope="module")
def speed():
    """The script, which finds ``plain`` beside it."""
    pytest.importorskip("pandas", reason="the official algorithms walk data frames")
    names = ("metrics", "plain")
    sys.path.insert(0, str(SPEED))
    try:
        yield importlib.import_module("metrics")
    finally:
        sys.path.remove(str(SPEED))
        for name in names:
            sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("check", "n_expected"), [("check_map", 32), ("check_recall", 33)]
)
def test_plain_windows_equal_the_recorded_outputs(speed, shared_dir, check, n_expected):
    files = sorted((shared_dir / "oracles/mq").glob("case_*.json"))
    cases = [speed.json.loads(file.read_text()) for file in files]
    assert sum(map(getattr(speed, check), cases)) == n_expected


def test_plain_tracks_equal_the_recorded_outputs(speed, shared_dir):
    files = sorted((shared_dir / "oracles/vq2d").glob("*.json"))
    assert sum(map(speed.check_tracks, files)) == 27


def test_a_wrong_number_is_noticed(speed, shared_dir):
    case = speed.json.loads((shared_dir / "oracles/mq/case_01.json").read_text())
    case["expected"]["official_detection"]["mAP"][0] += 1e-6
    with pytest.raises(AssertionError):
        speed.check_map(case)


def test_both_sides_agree_on_the_windows_that_are_timed(speed):
    moments = speed.draw_moments(1_000, 5)
    frames = speed.as_frames(moments)
    ours = detection_ap(*moments, reference="ego4d").mean_ap
    by_hand = speed.plain.detection_ap(*frames).mean(axis=0)
    assert by_hand == pytest.approx(ours.tolist(), abs=1e-9)
    assert 0 < by_hand[-1] < by_hand[0] < 1
    recall = moment_recall(*moments, k=(1, 2, 3, 4, 5), tiou=(0.3, 0.5, 0.7))
    by_hand = speed.plain.moment_recall(*speed.as_rows(*frames))
    np.testing.assert_allclose(by_hand, recall.T.numpy(), atol=1e-9)


def test_both_sides_agree_on_the_tracks_that_are_timed(speed):
    targets, predictions = speed.draw_tracks(40)
    _, more = speed.draw_tracks(40, seed=1)
    predictions = [a + b for a, b in zip(predictions, more, strict=True)]
    tracks = speed.as_tracks(targets, predictions)
    ours = visual_query_scores(*tracks, reference="ego4d")["all"]
    for mine, theirs in zip(
        ours[1:], speed.plain.query_scores(targets, predictions), strict=True
    ):
        assert list(mine) == pytest.approx(theirs, abs=1e-9)
    assert 0 < ours.tube_ap[1] < ours.temporal_ap[0] < 1


def test_the_drawn_predictions_have_no_ties(speed):
    scores = speed.draw_moments(2_000, 5)[1]
    assert len(torch.unique(scores)) == scores.numel()
