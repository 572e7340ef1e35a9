"""Pictures as models take them."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from avalanche_vilco.data.media.pictures import (
    augmented,
    cut_crop,
    padded_square,
    square_boxes,
    squared,
)


def shares(*corners: float) -> np.ndarray:
    """A box in pixels of a picture of 40 x 80 as shares of it."""
    return np.array(corners) / [80, 40, 80, 40]


@given(
    st.tuples(st.integers(2, 3000), st.integers(2, 3000)),
    st.lists(st.floats(0, 1), min_size=4, max_size=4),
)
@settings(max_examples=200)
def test_boxes_map_back_to_annotation_pixels(size, shares):
    relative = np.array([shares])
    height, width = size
    found = torch.from_numpy(square_boxes(relative, size)).float().double()
    length, left, top = padded_square(size)
    back = found.numpy() * length - np.array([left, top, left, top])
    assert (
        np.abs(back - relative * np.array([width, height, width, height])).max() < 0.01
    )
    assert found.min() >= 0 and found.max() <= 1


def test_a_picture_is_in_the_middle_of_black():
    picture = torch.full((1, 3, 6, 10), 9, dtype=torch.uint8)
    square = squared(picture, 10)
    assert square[0, 0, :, 0].tolist() == [0, 0, 9, 9, 9, 9, 9, 9, 0, 0]
    assert torch.equal(squared(square, 10), square)


def test_a_crop_is_a_square_around_the_box_clipped_to_the_picture():
    picture = torch.zeros(3, 40, 80, dtype=torch.uint8)
    picture[0] = torch.arange(80)
    picture[1] = torch.arange(40)[:, None]
    inner = cut_crop(picture, shares(20, 15, 40, 25), 20)
    assert inner.shape == (3, 20, 20)
    assert inner[0, 0].tolist() == list(range(20, 40))
    assert inner[1, :, 0].tolist() == list(range(10, 30))
    # 30 pixels wide at the left edge of the picture: 15 of them are there.
    edge = cut_crop(picture, shares(0, 5, 2, 35), 30)
    assert edge[1, :, 0].tolist() == list(range(5, 35))
    assert edge[0, 0, 0] == 0 and edge[0, 0, -1] == 15
    dot = cut_crop(picture, shares(79.9, 39.9, 80, 40), 4)
    assert dot[0].unique().tolist() == [79] and dot[1].unique().tolist() == [39]


def test_all_frames_of_a_window_are_changed_alike_and_boxes_follow():
    picture = torch.full((3, 96, 128), 20, dtype=torch.uint8)
    picture[:, 30:60, 40:80] = 240
    still = picture.expand(6, -1, -1, -1)
    size = (96, 128)
    relative = np.array([[40 / 128, 30 / 96, 80 / 128, 60 / 96]] * 6)
    boxes = torch.from_numpy(square_boxes(relative, size)).float()
    rng = np.random.default_rng(0)
    mirrored, brightness = 0, set()
    for _ in range(25):
        frames, moved = augmented(still, boxes, 128, rng)
        assert frames.dtype == torch.uint8 and frames.shape == (6, 3, 128, 128)
        assert type(frames) is type(moved) is torch.Tensor
        assert (frames == frames[:1]).all() and (moved == moved[:1]).all()
        assert moved.min() >= 0 and moved.max() <= 1
        grey = frames[0].float().mean(0)
        middle = (grey.max() + grey.min()) / 2
        rows, columns = np.nonzero((grey > middle).numpy())
        seen = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
        assert np.abs(moved[0].numpy() * 128 - seen).max() < 1.6
        mirrored += int(moved[0, [0, 2]].mean() * 128 > 68)
        brightness.add(round(grey.max().item()))
    assert len(brightness) > 5
    assert 0 < mirrored < 25
