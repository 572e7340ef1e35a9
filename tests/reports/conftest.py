"""Real runs to report on, and what becomes of them when a part is another."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from avalanche_vilco.reports.runs import Run, run_of


@pytest.fixture(scope="session")
def outputs(finished_runs: Path) -> Path:
    """Folder with finished runs, ``<strategy>/seed<seed>``; read only."""
    return finished_runs


@pytest.fixture
def raw(outputs: Path) -> Callable[..., dict[str, Any]]:
    """Content of a run's results file, to be changed."""

    def load(strategy: str = "naive", seed: int = 0) -> dict[str, Any]:
        path = outputs / strategy / f"seed{seed}" / "results.json"
        return copy.deepcopy(json.loads(path.read_text()))

    return load


@pytest.fixture
def a_run(raw: Callable[..., dict[str, Any]]) -> Callable[..., Run]:
    """A run with changed configuration, memory or other parts of its file."""

    def make(
        strategy: str = "naive",
        seed: int = 0,
        *,
        config: dict[str, Any] | None = None,
        memory: dict[str, Any] | None = None,
        **parts: Any,
    ) -> Run:
        content = raw(strategy, min(seed, 1 if strategy != "upper_bound" else 0))
        content["config"].update(config or {}, seed=seed)
        content["memory"].update(memory or {})
        return run_of({**content, **parts}, f"{strategy}/seed{seed}")

    return make
