"""What an experience is part of."""

from __future__ import annotations

from typing import Any

from avalanche_vilco.core.experiences import whole_experience


def stream_dataset(experience: Any) -> Any:
    """The benchmark's data set that an experience's samples are of, if it has one."""
    stream = getattr(whole_experience(experience), "origin_stream", None)
    benchmark = getattr(stream, "benchmark", None)
    datasets = getattr(benchmark, "datasets", {})
    return datasets.get(getattr(stream, "name", None))
