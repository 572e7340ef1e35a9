"""What an experience is part of."""

from __future__ import annotations

from typing import Any

from avalanche_vilco.core.experiences import whole_experience


def stream_dataset(experience: Any) -> Any:
    """The benchmark's data set that an experience's samples are of, if it has one."""
    # Streams that Avalanche's helpers make anew have no benchmark.
    source = getattr(getattr(experience, "dataset", None), "source", None)
    if source is not None:
        return source
    stream = getattr(whole_experience(experience), "origin_stream", None)
    datasets = getattr(getattr(stream, "benchmark", None), "datasets", {})
    return datasets.get(getattr(stream, "name", None))
