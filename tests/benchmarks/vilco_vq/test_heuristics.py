"""The script of the two answers that learn nothing."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from avalanche_vilco.benchmarks.vilco_vq.embedded import MiniVQConfig

SCRIPT = Path(__file__).resolve().parents[3] / "benchmarks/vilco_vq/heuristics.py"


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("vq_heuristics", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_place_with_the_colours_of_the_crop_is_found(script: Any) -> None:
    pictures = torch.full((2, 3, 12, 16), 20, dtype=torch.uint8)
    pictures[1, 0, 4:8, 6:11] = 250
    bins = script.color_bins(pictures)
    histogram = torch.zeros(script.LEVELS**3)
    histogram[bins[1, 5, 7]] = 1.0
    sums = script.integrals(bins, histogram)
    shared, places = script.best_places(sums, histogram[histogram > 0], 4, 5)
    assert shared.tolist() == [0, 1]
    assert places[1].tolist() == [6, 4, 11, 8]


@pytest.mark.slow
def test_table_has_both_heuristics_on_all_queries_of_the_stream(
    script: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = MiniVQConfig(n_train=12, n_val=4, n_test=1).generate(tmp_path / "vq")
    script.main(["--root", str(root)])
    first, _, _, *rows = capsys.readouterr().out.splitlines()
    assert first.startswith("stream test: ")
    names = [row.split(" | ")[0].strip("| ") for row in rows]
    assert names == [
        *("last frames, all queries", "last frames, mean over tasks"),
        *("colours, all queries", "colours, mean over tasks"),
    ]
    success = [float(row.split(" | ")[5]) for row in rows]
    assert success[2] > success[0]
