"""Time Avalanche's penalties on weights beside a training step.

``python benchmarks/speed/penalties.py [--model base|tiny]`` prints a Markdown table of
CPU seconds, one thread: a step without a penalty (forward, loss, backward), and what
EWC and MAS add to it for one past experience: in the stock loop over tensors, and as
here, in one pass over the weights.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from avalanche.training.plugins import EWCPlugin, MASPlugin
from avalanche.training.utils import copy_params_dict
from torch import Tensor, nn

from avalanche_vilco import vilco_mq_base, vilco_mq_tiny
from avalanche_vilco.core.batch import ClipBatch, MomentTargets
from avalanche_vilco.models.losses import MomentLoss
from avalanche_vilco.training.plugins.consolidation import QuadraticPenalty

N_QUERIES, N_TOKENS = 22, 8


@dataclass(frozen=True)
class Query:
    """What a model learns of a query."""

    class_index: int
    tokens: Tensor


def build(name: str) -> Any:
    model: Any = {"base": vilco_mq_base, "tiny": vilco_mq_tiny}[name]()
    width = model.query_tokens.shape[2]
    model.learn_queries(
        [Query(i, torch.randn(N_TOKENS, width)) for i in range(N_QUERIES)]
    )
    return model.train()


def batch(model: Any, n_clips: int, n_steps: int) -> tuple[ClipBatch, MomentTargets]:
    """Clips of ``n_steps`` steps with five windows each."""
    valid = torch.ones(n_clips, n_steps, dtype=torch.bool)
    width = model.stem.projection.in_features
    starts = torch.rand(n_clips, 5, 1) * n_steps / 2
    windows = torch.cat([starts, starts + n_steps / 8], dim=2)
    seconds = torch.full((n_clips,), float(n_steps), dtype=torch.float64)
    clips = ClipBatch(features=torch.randn(n_clips, n_steps, width), valid=valid)
    targets = MomentTargets(
        valid=valid,
        segments=windows,
        segments_sec=windows.double(),
        labels=torch.arange(5).expand(n_clips, -1),
        asked=torch.ones(n_clips, N_QUERIES, dtype=torch.bool),
        duration_sec=seconds,
        features_per_sec=torch.ones(n_clips, dtype=torch.float64),
        sample=torch.arange(n_clips),
    )
    return clips, targets


def past(model: nn.Module) -> tuple[Any, Any]:
    """Weights of an earlier experience, and importances."""
    saved, importances = copy_params_dict(model), copy_params_dict(model)
    for weight, importance in zip(saved.values(), importances.values(), strict=True):
        weight.data = weight.data + 1e-3
        importance.data = importance.data.square()
    return saved, importances


def ewc(model: nn.Module, saved: Any, importances: Any) -> Callable[[], None]:
    plugin = EWCPlugin(ewc_lambda=1.0)
    plugin.saved_params[0], plugin.importances[0] = saved, importances
    return lambda: run_penalty(plugin, model)


def mas(model: nn.Module, saved: Any, importances: Any) -> Callable[[], None]:
    plugin = MASPlugin(lambda_reg=1.0)
    plugin.params, plugin.importance = dict(saved), dict(importances)
    return lambda: run_penalty(plugin, model)


def run_penalty(plugin: Any, model: nn.Module) -> None:
    clock = SimpleNamespace(train_exp_counter=1)
    loop = SimpleNamespace(
        model=model, clock=clock, device="cpu", loss=torch.tensor(1.0)
    )
    plugin.before_backward(loop)
    loop.loss.backward()


def ours(model: nn.Module, saved: Any, importances: Any) -> Callable[[], None]:
    """What both of ours do in a step, the loss's value included."""
    penalty = QuadraticPenalty()
    penalty.importances = {name: value.data for name, value in importances.items()}
    penalty.centres = {name: value.data for name, value in saved.items()}
    return lambda: penalty.pull(model, 1.0)


MAKERS = {"EWC, stock": ewc, "MAS, stock": mas, "EWC and MAS, ours": ours}


def cpu_seconds(work: Callable[[], None], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        begun = time.process_time()
        work()
        times.append(time.process_time() - begun)
    return statistics.median(times)


def step(model: Any, n_clips: int, n_steps: int) -> Callable[[], None]:
    (clips, targets), criterion = batch(model, n_clips, n_steps), MomentLoss()
    return lambda: criterion(model(clips), targets).backward()


def gradients_of(model: nn.Module, work: Callable[[], None]) -> list[Tensor]:
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    work()
    return [weight.grad.clone() for weight in model.parameters()]


def check(works: Sequence[Callable[[], None]], model: nn.Module) -> None:
    """All penalties have one gradient."""
    first, *others = (gradients_of(model, work) for work in works)
    for other in others:
        torch.testing.assert_close(other, first)


def rows(arguments: argparse.Namespace) -> Iterator[tuple[str, float]]:
    model = build(arguments.model)
    n_weights = sum(p.numel() for p in model.parameters())
    n_tensors = sum(1 for _ in model.parameters())
    print(f"{n_weights / 1e6:.1f} million weights in {n_tensors} tensors\n")
    work = step(model, arguments.clips, arguments.steps)
    work()
    yield "step", cpu_seconds(work, arguments.repeats)
    saved, importances = past(model)
    works = {name: make(model, saved, importances) for name, make in MAKERS.items()}
    if arguments.model == "tiny":
        check(list(works.values()), model)
    for weight in model.parameters():
        if weight.grad is None:
            weight.grad = torch.zeros_like(weight)
    for name, work in works.items():
        work()
        yield name, cpu_seconds(work, arguments.repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=["base", "tiny"], default="base")
    parser.add_argument("--clips", type=int, default=2)
    parser.add_argument("--steps", type=int, default=900, help="video steps of a clip")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    found = list(rows(arguments))
    print("| | CPU seconds | share of a step |\n|---|---|---|")
    whole = found[0][1]
    for name, seconds in found:
        print(f"| {name} | {seconds:.3g} | {100 * seconds / whole:.3g} % |")


if __name__ == "__main__":
    main()
