"""The registry of benchmarks, and that the values lead to what they name."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from avalanche_vilco.benchmarks.spec import (
    Benchmark,
    benchmark_names,
    find_benchmark,
    read_recipe,
)
from avalanche_vilco.core.errors import DataError
from avalanche_vilco.models.anchors import TRACK_REGRESSION_CHANNELS
from avalanche_vilco.models.output import MOMENT_REGRESSION_CHANNELS

OURS = ("vilco_mq", "vilco_nlq", "vilco_vq")


@pytest.fixture(params=OURS)
def benchmark(request: pytest.FixtureRequest) -> Benchmark:
    return find_benchmark(request.param)


def test_all_of_a_benchmark_is_where_the_value_says(benchmark: Benchmark) -> None:
    assert "dataset_root" in inspect.signature(benchmark.build).parameters
    assert benchmark.unlabelled is not None and benchmark.embedded_root is not None
    assert "dataset_root" in inspect.signature(benchmark.unlabelled).parameters
    assert "cache_dir" in inspect.signature(benchmark.embedded_root).parameters
    for name, builder in benchmark.models.items():
        assert inspect.unwrap(builder).__name__ == name
    assert benchmark.recipe.hyperparameters["model"] in benchmark.models
    names = [name for state in benchmark.metrics() for name in state.names]
    assert len(set(names)) == len(names)
    chosen_by = benchmark.selection_metric or benchmark.main_metric
    assert {benchmark.main_metric, chosen_by} <= set(names)
    assert benchmark.criterion() is not None


def test_regression_channels_are_those_of_the_models() -> None:
    moments, tracks = MOMENT_REGRESSION_CHANNELS, TRACK_REGRESSION_CHANNELS
    found = [find_benchmark(name).n_regression for name in OURS]
    assert found == [moments, moments, tracks]


def test_a_value_costs_no_avalanche() -> None:
    code = (
        "import sys; from avalanche_vilco.benchmarks.spec import find_benchmark; "
        f"[find_benchmark(name) for name in {OURS}]; "
        "print({'avalanche', 'torch'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("set()", "")


def test_unknown_name_is_answered_with_close_ones() -> None:
    assert set(OURS) <= set(benchmark_names())
    with pytest.raises(ValueError, match="Did you mean vilco_mq or vilco_nlq"):
        find_benchmark("vilco_mlq")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("hyperparameters: {epochs: 0}", "hyperparameters.epochs"),
        ("hyperparameters: {epochs: 1}", "field 'hyperparameters.batch_size': missing"),
        ("hyperparameters: [", "not valid YAML"),
    ],
)
def test_damaged_recipe_is_named(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "recipe.yaml").write_text(text)
    with pytest.raises(DataError, match=problem):
        read_recipe(tmp_path / "recipe.yaml")
