"""What an experience is part of."""

from __future__ import annotations

from typing import Any


def whole_experience(experience: Any) -> Any:
    """The stream's experience: online streams have parts of one."""
    return getattr(experience, "origin_experience", None) or experience


def stream_dataset(experience: Any) -> Any:
    """The benchmark's data set that an experience's samples are of, if it has one.

    :param experience: of a stream of a benchmark of ours, or a part of one.
    """
    stream = getattr(whole_experience(experience), "origin_stream", None)
    benchmark = getattr(stream, "benchmark", None)
    datasets = getattr(benchmark, "datasets", {})
    return datasets.get(getattr(stream, "name", None))
