"""What an experience in training is part of."""

from __future__ import annotations

from typing import Any


def whole_experience(experience: Any) -> Any:
    """The stream's experience: online streams have parts of one.

    :param experience: an experience, or a part that ``split_online_stream`` made.
    :raises ValueError: a part of several experiences, which teaches none of them.
    """
    whole = getattr(experience, "origin_experience", experience)
    if whole is None:
        raise ValueError(
            "expected parts of one experience each but got one of several: split the "
            "stream with split_online_stream, not split_continuous_linear_decay_stream"
        )
    return whole
