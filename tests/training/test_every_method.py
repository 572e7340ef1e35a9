"""What every shipped strategy promises."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from avalanche.core import SupervisedPlugin

from avalanche_vilco.models.output import point_grid
from avalanche_vilco.reports.memory import memory_figures
from avalanche_vilco.training.strategies import STRATEGIES

SCRIPT = Path(__file__).with_name("resume_script.py")
PARTS = runpy.run_path(str(SCRIPT))
WITH_MEMORY = [n for n in sorted(STRATEGIES) if "mem_size" in STRATEGIES[n].options]
METHODS = sorted(name for name, recipe in STRATEGIES.items() if not recipe.is_joint)


@pytest.fixture(scope="module")
def hashes(small_root: Path, once: Any) -> Any:
    """Final weights of runs in one process and of those resumed in another."""

    def make(folder: Path) -> None:
        folder.mkdir()
        found = [run_script(small_root, folder, part) for part in ("first", "rest")]
        (folder / "hashes.json").write_text(json.dumps(found))

    return json.loads((once("resumed", make) / "hashes.json").read_text())


def run_script(root: Path, folder: Path, part: str) -> dict[str, str]:
    command = [sys.executable, str(SCRIPT), str(root), str(folder), part, *METHODS]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, check=False
    )
    assert not done.returncode, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", METHODS)
def test_resumed_in_a_new_process_it_ends_with_the_weights_of_an_uninterrupted_run(
    name: str, hashes: Any
) -> None:
    whole, resumed = hashes
    assert resumed[name] == whole[name]


@pytest.mark.parametrize("name", METHODS)
def test_predictions_do_not_depend_on_the_evaluation_batch(
    name: str, small_root: Path
) -> None:
    benchmark = PARTS["benchmark_of"](small_root)
    strategy = PARTS["build"](name, benchmark)
    for experience in benchmark.train_stream[:2]:
        strategy.train(experience)
    outputs = {size: evaluated(strategy, benchmark, size) for size in (1, 3)}
    for one, other in zip(outputs[1], outputs[3], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def evaluated(strategy: Any, benchmark: Any, size: int) -> list[torch.Tensor]:
    """Outputs on the test stream, one for each clip, without padding. Ranked windows
    may differ by more: rounding decides which of two equals suppresses the other."""

    class Keep(SupervisedPlugin):
        def after_eval_iteration(self, strategy: Any, **kwargs: Any) -> None:
            output, valid = strategy.mb_output, strategy.mb_y.valid
            grid = point_grid(output.shape[-1], valid.shape[1], output.device)
            for row, own in zip(output, grid.valid(valid), strict=True):
                rows.append(row[:, own].clone())

    rows: list[torch.Tensor] = []
    keep = Keep()
    strategy.plugins.append(keep)
    strategy.eval_mb_size = size
    strategy.eval(benchmark.test_stream)
    strategy.plugins.remove(keep)
    return rows


@pytest.mark.parametrize("name", WITH_MEMORY)
def test_exemplars_are_train_samples_and_as_many_as_asked(
    name: str, small_root: Path
) -> None:
    benchmark = PARTS["benchmark_of"](small_root)
    strategy = PARTS["build"](name, benchmark)
    size = {**PARTS["SMALL"], **PARTS["OWN"].get(name, {})}["mem_size"]
    seen = 0
    for experience in benchmark.train_stream:
        strategy.train(experience)
        seen += len(experience.dataset)
        # memory_figures knows train samples alone and fails on any other.
        assert memory_figures(strategy, benchmark).samples == min(size, seen)
