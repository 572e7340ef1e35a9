"""Methods on visual queries: each does what it says, with one query logit."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from avalanche.core import SupervisedPlugin
from avalanche.training import supervised as stock
from avalanche.training.determinism.rng_manager import RNGManager

from avalanche_vilco import vilco_vq_tiny
from avalanche_vilco.benchmarks.vilco_vq.generator import vilco_vq
from avalanche_vilco.models.visual_losses import VisualQueryLoss
from avalanche_vilco.reports.memory import memory_figures
from avalanche_vilco.training.strategies import STRATEGIES
from avalanche_vilco.training.templates import track_evaluator

SMALL = {"mem_size": 6, "patterns_per_exp": 3, "sample_size": 1, "n_prompts": 6}
N_EPOCHS = 4
SAMPLES = 6
"""Of each experience."""
TRAINED = {"prompt_mode": "prepend", "n_regression": 4}
PROJECTED = ("gem", "agem")
"""They change a gradient only where it would undo what was learnt."""


class Contrary(VisualQueryLoss):
    """Has the second experience unlearn, so that its gradients oppose those of the
    first.

    :param n_first: samples of the first experience in the stream.
    """

    def __init__(self, n_first: int) -> None:
        super().__init__()
        self.n_first = n_first

    def forward(self, output: torch.Tensor, targets: Any) -> torch.Tensor:
        loss = super().forward(output, targets)
        return loss if bool((targets.sample < self.n_first).all()) else -loss


@pytest.fixture(scope="module")
def root(vq_root: Path) -> Path:
    return vq_root


def visual_queries(root: Path) -> Any:
    benchmark = vilco_vq(
        root,
        n_experiences=2,
        sources={"image_size": 64, "n_frames": 6, "narrations": True},
    )
    for experience in benchmark.train_stream:
        experience.dataset = experience.dataset.subset(range(SAMPLES))
    return benchmark


@pytest.fixture
def benchmark(root: Path) -> Any:
    return visual_queries(root)


def parts(benchmark: Any, **changes: Any) -> dict[str, Any]:
    """Arguments of a strategy, always with the same initial weights."""
    RNGManager.set_random_seeds(0)
    model = vilco_vq_tiny(image_size=benchmark.info["image_size"])
    return {
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-2),
        "criterion": VisualQueryLoss(),
        "evaluator": track_evaluator(),
        "train_mb_size": 4,
        "eval_mb_size": 8,
        **changes,
    }


def trained(strategy: Any, benchmark: Any, is_joint: bool = False) -> Any:
    stream = benchmark.train_stream
    for step in [stream] if is_joint else stream:
        strategy.train(step, shuffle=False)
    return strategy


def learnt(name: str, benchmark: Any, **changes: Any) -> Any:
    """A strategy of ours after its stream."""
    recipe = STRATEGIES[name]
    known = [*recipe.options, recipe.regression_argument]
    own = {k: v for k, v in {**SMALL, **TRAINED}.items() if k in known}
    settings = {**recipe.options, **own, **changes}
    strategy = recipe.build(**parts(benchmark, **settings))
    return trained(strategy, benchmark, recipe.is_joint)


def weights(strategy: Any) -> torch.Tensor:
    common = dict(strategy.model.named_parameters())
    left_out = ("prompt", "narration")
    return torch.cat(
        [
            weight.detach().flatten()
            for name, weight in sorted(common.items())
            if not name.startswith(left_out)
        ]
    )


class Windows(SupervisedPlugin):
    """First frame of each training sample, epoch by epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs: list[dict[int, int]] = []

    def before_training_epoch(self, strategy: Any, **kwargs: Any) -> None:
        self.epochs.append({})

    def after_training_iteration(self, strategy: Any, **kwargs: Any) -> None:
        starts = strategy.mb_y.frame_numbers[:, 0].tolist()
        samples = strategy.mb_y.sample.tolist()
        self.epochs[-1].update(zip(samples, starts, strict=True))


@pytest.fixture(scope="module")
def naive(root: Path) -> Callable[..., torch.Tensor]:
    """Naive's final weights, by settings."""

    @cache
    def of(**settings: Any) -> torch.Tensor:
        return weights(learnt("naive", visual_queries(root), **settings))

    return of


METHODS = ["upper_bound", "mas", "gem", "vilco", "dense_distillation", "agem", "si"]


@pytest.mark.parametrize("name", METHODS)
def test_method_ends_with_finite_weights_other_than_naive_s(
    name: str, benchmark: Any, naive: Any
) -> None:
    settings: dict[str, Any] = {}
    if name in PROJECTED:
        first = benchmark.train_stream[0].dataset
        settings = {"criterion": Contrary(max(first.positions) + 1)}
    strategy = learnt(name, benchmark, **settings)
    found = weights(strategy)
    assert found.isfinite().all()
    assert not torch.equal(found, naive(**settings))
    kept = {"vilco": 6, "gem": 6, "agem": 6}.get(name, 0)
    assert memory_figures(strategy, benchmark).samples >= kept


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (stock.EWC, {"ewc_lambda": 1.0}),
        (stock.MAS, {}),
        (stock.Replay, {"mem_size": 4}),
        (stock.GEM, {"patterns_per_exp": 2}),
    ],
)
def test_stock_strategy_trains_and_is_scored_as_it_is(
    kind: Any, options: Any, benchmark: Any
) -> None:
    watch = Windows()
    strategy = trained(kind(**parts(benchmark, plugins=[watch]), **options), benchmark)
    assert weights(strategy).isfinite().all()
    earlier = set(benchmark.train_stream[0].dataset.positions)
    assert bool(earlier & set(watch.epochs[1])) == (kind is stock.Replay)
    found = strategy.eval(benchmark.test_stream)
    (name,) = [name for name in found if name.startswith("stAP25_Stream")]
    assert 0 <= found[name] <= 1


def test_ours_draws_a_window_for_each_epoch_and_stock_one_for_all(
    benchmark: Any,
) -> None:
    epochs = {}
    for kind in (STRATEGIES["naive"].build, stock.Naive):
        watch = Windows()
        settings = parts(benchmark, train_epochs=N_EPOCHS, plugins=[watch])
        trained(kind(**settings), benchmark)
        epochs[kind] = watch.epochs
        benchmark.datasets["train"].clock.set(0, 0)
    ours, plain = epochs.values()
    assert ours[0] == plain[0]
    for first in (0, N_EPOCHS):
        of_experience = slice(first, first + N_EPOCHS)
        assert any(each != ours[first] for each in ours[of_experience])
        assert all(each == plain[first] for each in plain[of_experience])


def test_vilco_without_its_parts_is_naive(benchmark: Any, naive: Any) -> None:
    off = {"long_term": False, "ssl_weight": 0.0, "mem_size": 0}
    assert torch.equal(weights(learnt("vilco", benchmark, **off)), naive())


def test_titles_teach_the_codes_of_the_frames_that_they_are_about(
    benchmark: Any, naive: Any
) -> None:
    alone = {"long_term": False, "ssl_weight": 1.0, "mem_size": 0}
    strategy = learnt("vilco", benchmark, **alone)
    assert not torch.equal(weights(strategy), naive())
    aligner = strategy.model.narration_aligner
    assert all(weight.grad.abs().sum() > 0 for weight in aligner.parameters())
    assert len(strategy.plugins[0].bank)
    assert not strategy.model.narrated_module._forward_hooks


def test_crops_choose_their_prompts_and_keys_learn(benchmark: Any) -> None:
    strategy = learnt("vilco", benchmark, ssl_weight=0.0, mem_size=0)
    memory = strategy.model.prompt_memory
    assert memory.keys.grad.abs().sum() > 0
    usage = torch.tensor(strategy.plugins[0].usage)
    assert torch.allclose(usage.sum(1), torch.ones(len(usage)))
    assert ((usage > 0).sum(1) > memory.top_n).any()
