"""The one pair of maps between clip seconds and the feature grid.

A feature vector covers ``window_frames`` frames, the next one starts
``stride_frames`` later, and grid step ``g`` stands at the middle of its window::

    grid = (seconds * fps - window_frames / 2) / stride_frames

Targets and predictions go through the same two functions, so that decoding an
encoded window gives that window back.
"""

from typing import TypeVar

from torch import Tensor

Number = TypeVar("Number", float, Tensor)


def seconds_to_grid(
    seconds: Number,
    fps: float | Tensor,
    stride_frames: float | Tensor = 1.0,
    window_frames: float | Tensor = 1.0,
) -> Number:
    """Map clip seconds to positions on the feature grid.

    All arguments may be floats or tensors that broadcast against each other, such
    as windows ``(B, N, 2)`` with a rate per clip ``(B, 1, 1)``. Pass float64: a
    float32 second is off by 3e-5 s at the end of an eight-minute clip.

    >>> seconds_to_grid(2.0, fps=1.0, stride_frames=2.0, window_frames=4.0)
    0.0
    >>> seconds_to_grid(0.0, fps=1.0, stride_frames=2.0, window_frames=4.0)
    -1.0

    :param seconds: time since the start of the clip, in seconds.
    :param fps: frames per second of the numbering that the strides count, > 0.
    :param stride_frames: frames between the starts of consecutive features, > 0.
    :param window_frames: frames that one feature covers, >= 0.
    :return: position in grid steps, in the broadcast shape; negative before the
        middle of the first window.
    :raises ValueError: if a rate or stride given as a number is not positive.
    """
    _check_positive("fps", fps)
    _check_positive("stride_frames", stride_frames)
    # Tensors among the other arguments come with a tensor here.
    grid = (seconds * fps - 0.5 * window_frames) / stride_frames
    return grid  # type: ignore[return-value]


def grid_to_seconds(
    grid: Number,
    fps: float | Tensor,
    stride_frames: float | Tensor = 1.0,
    window_frames: float | Tensor = 1.0,
) -> Number:
    """Map positions on the feature grid to clip seconds.

    The inverse of :func:`seconds_to_grid`, with the same arguments.

    >>> grid_to_seconds(0.0, fps=1.0, stride_frames=2.0, window_frames=4.0)
    2.0
    >>> grid_to_seconds(-1.0, fps=1.0, stride_frames=2.0, window_frames=4.0)
    0.0

    :param grid: position in grid steps.
    :return: time since the start of the clip, in seconds, in the broadcast shape.
    :raises ValueError: as :func:`seconds_to_grid` does.
    """
    _check_positive("fps", fps)
    _check_positive("stride_frames", stride_frames)
    seconds = (grid * stride_frames + 0.5 * window_frames) / fps
    return seconds  # type: ignore[return-value]


def _check_positive(name: str, value: float | Tensor) -> None:
    # Tensors are not checked: looking at their values waits for the device.
    if not isinstance(value, Tensor) and not value > 0:
        raise ValueError(f"expected {name} > 0 but got {value}")
