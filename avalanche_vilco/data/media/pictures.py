"""Pictures as models take them: squares with black around, crops, changes at random.

A frame is fitted into a square and lies in its middle; boxes are shares of the square,
(x1, y1, x2, y2).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate


def padded_square(frame_size: tuple[int, int]) -> tuple[float, float, float]:
    """The square around a frame, which is in its middle.

    >>> padded_square((1080, 1920))
    (1920.0, 0.0, 420.0)

    :param frame_size: height and width in pixels.
    :return: length of the square's sides, and pixels left of the frame and above it.
    """
    height, width = frame_size
    length = float(max(height, width))
    return length, (length - width) / 2, (length - height) / 2


def square_boxes(
    relative: NDArray[np.float64], frame_size: tuple[int, int]
) -> NDArray[np.float64]:
    """Boxes as shares of the padded square.

    :param relative: (N, 4) as shares of the frame's width and height.
    :param frame_size: height and width of the frame.
    :return: (N, 4), in [0, 1] where the boxes lie inside the frame.
    """
    height, width = frame_size
    length, left, top = padded_square(frame_size)
    boxes = relative * np.array([width, height, width, height])
    shares: NDArray[np.float64] = (boxes + np.array([left, top, left, top])) / length
    return shares


def squared(pictures: Tensor, size: int) -> Tensor:
    """Pictures in the middle of black squares.

    :param pictures: (N, 3, h, w) uint8, h and w at most ``size``.
    :param size: pixels.
    :return: (N, 3, size, size) uint8.
    """
    height, width = pictures.shape[2:]
    top, left = (size - height) // 2, (size - width) // 2
    squares = pictures.new_zeros(len(pictures), 3, size, size)
    squares[:, :, top : top + height, left : left + width] = pictures
    return squares


def cut_crop(picture: Tensor, box: NDArray[np.float64], size: int) -> Tensor:
    """A box, enlarged to a square around its centre, clipped to the picture, resized.

    :param picture: (3, h, w) uint8.
    :param box: (4,) as shares of the picture's width and height.
    :param size: pixels of the result.
    :return: (3, size, size) uint8; not to scale where the square was clipped.
    """
    height, width = picture.shape[1:]
    x1, y1, x2, y2 = box * np.array([width, height, width, height])
    reach = max(x2 - x1, y2 - y1) / 2
    left, right = _pixel_span((x1 + x2) / 2, reach, width)
    top, bottom = _pixel_span((y1 + y2) / 2, reach, height)
    part = picture[None, :, top:bottom, left:right]
    return interpolate(part, (size, size), mode="bilinear", antialias=True)[0]


def _pixel_span(centre: float, reach: float, size: int) -> tuple[int, int]:
    """First pixel and the one behind the last; at least one pixel."""
    low = min(max(round(centre - reach), 0), size - 1)
    return low, min(max(round(centre + reach), low + 1), size)


@lru_cache(maxsize=8)
def _augmentations(image_size: int) -> tuple[Any, Any]:
    """Changes of colour, and of geometry."""
    from torchvision.transforms import v2

    colours = v2.ColorJitter(brightness=0.4, contrast=0.4, saturation=0.3)
    cut_out = v2.RandomResizedCrop(
        image_size, scale=(0.66, 1.0), ratio=(0.8, 1.2), antialias=True
    )
    return colours, v2.Compose([v2.RandomHorizontalFlip(0.5), cut_out])


def augmented(
    pictures: Tensor, boxes: Tensor, image_size: int, rng: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """Pictures changed all alike: colours, mirroring, a cut-out.

    :param pictures: (N, 3, h, w) uint8, fitted but not padded.
    :param boxes: (N, 4) as shares of the padded square; without area: none.
    :param image_size: pixels S of the square.
    :param rng: what is drawn depends on its state alone.
    :return: (N, 3, S, S) uint8, and boxes; those that have left are without area.
    """
    from torchvision import tv_tensors

    colours, geometry = _augmentations(image_size)
    corners = tv_tensors.BoundingBoxes(
        boxes * image_size, format="XYXY", canvas_size=(image_size, image_size)
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**63)))
        squares = tv_tensors.Video(squared(colours(pictures), image_size))
        squares, corners = geometry(squares, corners)
    return squares.as_subclass(Tensor), (corners / image_size).as_subclass(Tensor)
