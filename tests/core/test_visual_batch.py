"""Batches of visual queries behave like the other batches."""

import pytest
import torch

from avalanche_vilco.core.visual_batch import (
    TrackWindowTargets,
    VisualQueryBatch,
    collate_visual,
)


def sample(n_track: int = 2, narrated: bool = False, dtype=torch.uint8):
    shape = (3, 8, 8) if dtype == torch.uint8 else (5, 2, 2)
    inputs = {
        "frames": torch.ones(4, *shape, dtype=dtype),
        "valid": torch.tensor([True, True, True, False]),
        "crop": torch.ones(shape, dtype=dtype),
    }
    if narrated:
        inputs["narrations"] = torch.ones(1, 6)
        inputs["narrated"] = torch.tensor([[0.0, 1.0]])
        inputs["sentences"] = torch.tensor([7])
    targets = {
        "valid": inputs["valid"],
        "searched": inputs["valid"],
        "boxes": torch.rand(4, 4),
        "present": inputs["valid"],
        "frame_numbers": torch.tensor([3, 4, 5, -1]),
        "square": torch.tensor([8.0, 0.0, 1.0], dtype=torch.float64),
        "track_boxes": torch.ones(n_track, 4, dtype=torch.float64),
        "track_frames": torch.arange(n_track),
        "query": torch.tensor(n_track),
        "query_frame": torch.tensor(9),
        "sample": torch.tensor(n_track),
    }
    return inputs, targets, 0


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16])
def test_dtypes_of_pixels_and_embeddings_survive_collate_move_and_concatenation(dtype):
    batch, targets, labels = collate_visual([sample(dtype=dtype)] * 2)
    assert isinstance(batch, VisualQueryBatch)
    assert isinstance(targets, TrackWindowTargets)
    assert labels.tolist() == [0, 0]
    assert batch.frames.dtype == batch.crop.dtype == dtype
    joined = torch.cat([batch, batch.to("cpu", torch.float32)[0]])
    assert joined.frames.dtype == dtype and len(joined) == joined.size(0) == 3
    assert targets.square.dtype == targets.track_boxes.dtype == torch.float64


def test_tracks_of_unequal_length_are_padded_with_frame_minus_one():
    _, targets, _ = collate_visual([sample(1), sample(3)])
    assert targets.track_frames.tolist() == [[0, -1, -1], [0, 1, 2]]
    assert targets.track_boxes.shape == (2, 3, 4)
    assert targets.query.tolist() == [1, 3]
    joined = torch.cat([targets[0], collate_visual([sample(5)])[1]])
    assert joined.track_frames[0].tolist() == [0, -1, -1, -1, -1]


def test_samples_without_a_title_have_number_minus_one_beside_those_with_one():
    batch, _, _ = collate_visual([sample(), sample(narrated=True)])
    assert batch.sentences is not None and batch.sentences.tolist() == [[-1], [7]]
    assert collate_visual([sample()])[0].narrations is None


def test_a_field_that_is_missing_is_named():
    inputs, _, _ = sample()
    with pytest.raises(TypeError, match="crop"):
        VisualQueryBatch(frames=inputs["frames"], valid=inputs["valid"])
