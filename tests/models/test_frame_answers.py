import math

import pytest
import torch

from avalanche_vilco.core.visual_batch import TrackWindowTargets
from avalanche_vilco.models.anchors import anchor_boxes, to_boxes, to_deltas
from avalanche_vilco.models.frame_answers import FrameAnswers, best_of_frames

T, SIDE, N_ANCHORS = 3, 2, 12
P = T * SIDE * SIDE * N_ANCHORS


def window(**changed):
    """A frame of 80 x 60 pixels in a square of 80, with 10 pixels above and below."""
    fields = {
        "valid": torch.ones(1, T, dtype=torch.bool),
        "boxes": torch.zeros(1, T, 4),
        "present": torch.zeros(1, T, dtype=torch.bool),
        "searched": torch.tensor([[True, True, False]]),
        "frame_numbers": torch.tensor([[30, 31, 32]]),
        "square": torch.tensor([[80.0, 0.0, 10.0]], dtype=torch.float64),
        "track_boxes": torch.zeros(1, 0, 4, dtype=torch.float64),
        "track_frames": torch.zeros(1, 0, dtype=torch.long),
        "query": torch.tensor([7]),
        "query_frame": torch.tensor([32]),
        "sample": torch.tensor([0]),
    }
    return TrackWindowTargets(**{**fields, **changed})


def output_with(*boxes):
    """Output whose best anchor in frame t gives box t, in shares of the square."""
    anchors = anchor_boxes(P, T, torch.device("cpu"))
    output = torch.zeros(1, 5, P)
    output[0, 0] = torch.linspace(-6, -5, P)
    for frame, box in enumerate(boxes):
        within_reach = to_boxes(anchors, to_deltas(anchors, box))
        place = int((within_reach - box).abs().amax(dim=1).argmin())
        point = frame * len(anchors) + place
        output[0, 0, point] = 1.0 + frame
        output[0, 1:, point] = to_deltas(anchors[place], box)
    return output


BOXES = torch.tensor(
    [[0.2, 0.3, 0.3, 0.45], [0.6, 0.7, 0.8, 0.8], [0.2, 0.2, 0.3, 0.3]]
)


def test_best_anchor_of_each_frame_answers_in_pixels_of_the_frame():
    answers = best_of_frames(output_with(*BOXES), window())
    assert isinstance(answers, FrameAnswers)
    assert answers.scores.tolist() == [[1.0, 2.0, -math.inf]]
    expected = BOXES[:2].double() * 80 - torch.tensor([0, 10, 0, 10])
    torch.testing.assert_close(answers.boxes[0, :2], expected, atol=1e-4, rtol=0)
    assert answers.boxes.dtype == torch.float64
    assert answers.frame_numbers.tolist() == [[30, 31, 32]]
    assert (answers.query.item(), answers.query_frame.item()) == (7, 32)


def test_boxes_end_where_the_frame_does():
    """Black bars around the frame hold nothing that is annotated."""
    wide = torch.tensor([-0.1, 0.05, 0.2, 0.3])
    low = torch.tensor([0.8, 0.8, 1.1, 0.95])
    answers = best_of_frames(output_with(wide, low), window())
    found = answers.boxes[0, :2]
    assert found[0].tolist() == pytest.approx([0, 0, 16, 14], abs=1e-4)
    assert found[1].tolist() == pytest.approx([64, 54, 80, 60], abs=1e-4)


def test_anchors_that_are_not_finite_are_passed_over():
    output = output_with(*BOXES)
    broken = output.clone()
    broken[0, 0, int(output[0, 0, : P // T].argmax())] = math.nan
    broken[0, 2, P // T :] = math.inf
    answers = best_of_frames(broken, window())
    assert answers.scores[0, 0] < -5
    assert answers.scores[0, 1:].tolist() == [-math.inf, -math.inf]
    assert answers.boxes[0, 0].isfinite().all()


def test_windows_of_other_batches_join_with_padding():
    one = best_of_frames(output_with(*BOXES), window())
    short = one.map(lambda t: t[:, :2] if t.ndim > 1 else t)
    both = torch.cat([one, short])
    assert both.scores[1].tolist() == [1.0, 2.0, -math.inf]
    assert both.frame_numbers[1].tolist() == [30, 31, -1]
