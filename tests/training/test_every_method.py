"""What every shipped strategy promises; each is trained once for all tests."""

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from avalanche.benchmarks.scenarios import CLExperience
from avalanche.benchmarks.utils import AvalancheDataset
from avalanche.core import SupervisedPlugin
from avalanche.training.plugins import EvaluationPlugin
from torch import Tensor, nn

from avalanche_vilco.core.batch import TensorBatch
from avalanche_vilco.models.output import point_grid
from avalanche_vilco.reports.results import weights_hash
from avalanche_vilco.training.checkpointing import save_checkpoint
from avalanche_vilco.training.kept import kept_by
from avalanche_vilco.training.strategies import STRATEGIES

SCRIPT = Path(__file__).with_name("resume_script.py")
WITH_MEMORY = [n for n in sorted(STRATEGIES) if "mem_size" in STRATEGIES[n].options]
METHODS = sorted(name for name, strategy in STRATEGIES.items() if not strategy.is_joint)


@pytest.fixture(scope="module")
def observed(small_root: Path, once: Any) -> Any:
    """What was seen of each method, by name."""

    def make(folder: Path) -> None:
        folder.mkdir()
        parts = SimpleNamespace(**runpy.run_path(str(SCRIPT)))
        found = {name: trained(name, parts, small_root, folder) for name in METHODS}
        for name, resumed in run_script(small_root, folder).items():
            found[name]["resumed"] = resumed
        (folder / "observed.json").write_text(json.dumps(found))

    return json.loads((once("every_method", make) / "observed.json").read_text())


def trained(name: str, parts: Any, root: Path, folder: Path) -> dict[str, Any]:
    """Train on three experiences, with a checkpoint after the second."""
    benchmark = parts.benchmark_of(root)
    strategy = parts.build(name, benchmark)
    counts = []
    for number, experience in enumerate(benchmark.train_stream):
        if number == 2:
            outputs = [evaluated(strategy, benchmark, size) for size in (1, 3)]
            save_checkpoint(strategy, folder / f"{name}.pkl")
        strategy.train(experience)
        counts.append(len(kept_by(strategy).samples))
    kept = kept_by(strategy)
    return {
        "weights": weights_hash(strategy.model),
        "difference": max(map(excess, *outputs)),
        "counts": counts,
        "sizes": [len(experience.dataset) for experience in benchmark.train_stream],
        "mem_size": parts.options_of(name).get("mem_size"),
        "kept": [sorted(kept.samples), kept.auxiliary_bytes],
        "reached": reached(strategy),
    }


def run_script(root: Path, folder: Path) -> dict[str, str]:
    command = [sys.executable, str(SCRIPT), str(root), str(folder), *METHODS]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, check=False
    )
    assert not done.returncode, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", METHODS)
def test_resumed_in_a_new_process_it_ends_with_the_weights_of_an_uninterrupted_run(
    name: str, observed: Any
) -> None:
    assert observed[name]["resumed"] == observed[name]["weights"]


@pytest.mark.parametrize("name", METHODS)
def test_predictions_do_not_depend_on_the_evaluation_batch(
    name: str, observed: Any
) -> None:
    assert observed[name]["difference"] <= 1e-5


def excess(one: Tensor, other: Tensor) -> float:
    """Largest difference, beyond rounding of large values."""
    return float(((one - other).abs() - 1e-4 * other.abs()).max())


def evaluated(strategy: Any, benchmark: Any, size: int) -> list[Tensor]:
    """Outputs on the test stream, one for each clip, without padding. Ranked windows
    may differ by more: rounding decides which of two equals suppresses the other."""

    class Keep(SupervisedPlugin):
        def after_eval_iteration(self, strategy: Any, **kwargs: Any) -> None:
            output, valid = strategy.mb_output, strategy.mb_y.valid
            grid = point_grid(output.shape[-1], valid.shape[1], output.device)
            for row, inside in zip(output, grid.valid(valid), strict=True):
                rows.append(row[:, inside].clone())

    rows: list[Tensor] = []
    keep = Keep()
    strategy.plugins.append(keep)
    strategy.eval_mb_size = size
    strategy.eval(benchmark.test_stream)
    strategy.plugins.remove(keep)
    return rows


@pytest.mark.parametrize("name", WITH_MEMORY)
def test_exemplars_are_train_samples_and_as_many_as_asked(
    name: str, observed: Any
) -> None:
    found, seen = observed[name], 0
    for size, count in zip(found["sizes"], found["counts"], strict=True):
        seen += size
        assert count == min(found["mem_size"], seen)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_says_all_that_it_keeps(name: str, observed: Any) -> None:
    assert observed[name]["kept"] == observed[name]["reached"]


def reached(strategy: Any) -> tuple[list[int], int]:
    """Samples and bytes of tensors that can be reached from plugins, by any way."""
    model = strategy.model
    installed = [
        part
        for name in ("prompt_memory", "narration_aligner")
        if (part := getattr(model, name, None)) is not None
    ]
    plugins = [p for p in strategy.plugins if not isinstance(p, EvaluationPlugin)]
    data = [getattr(strategy, name, None) for name in ("dataset", "_experiences")]
    seen = {id(strategy), id(model), id(strategy.optimizer)}
    seen |= set(map(id, [*model.parameters(), *model.buffers()]))
    seen -= {id(tensor) for part in installed for tensor in part.parameters()}
    samples: set[int] = set()
    n_bytes = 0
    queue: list[Any] = [*plugins, *data, *installed]
    while queue:
        thing = queue.pop()
        if id(thing) in seen or isinstance(thing, type):
            continue
        seen.add(id(thing))
        if isinstance(thing, TensorBatch):
            samples.update(thing.fields().get("sample", torch.empty(0)).tolist())
        elif isinstance(thing, AvalancheDataset):
            samples.update(thing.positions if len(thing) else ())
        elif isinstance(thing, Tensor):
            n_bytes += thing.numel() * thing.element_size()
        else:
            queue += inside(thing)
    return sorted(samples), n_bytes


def inside(thing: Any) -> Iterable[Any]:
    if isinstance(thing, CLExperience):
        return [thing.dataset]
    if isinstance(thing, nn.Module):
        return [*thing.parameters(), *thing.buffers()]
    if isinstance(thing, Mapping):
        return thing.values()
    if isinstance(thing, (list, tuple, set)):
        return thing
    return vars(thing).values() if hasattr(thing, "__dict__") else ()
