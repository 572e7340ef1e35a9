"""docs/strategies.md is run: each row's code, against the row's verdict."""

import inspect
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import avalanche.training.plugins as stock_plugins
import avalanche.training.storage_policy as stock_policies
import avalanche.training.supervised as stock_strategies
import pytest
import torch
from avalanche.core import BasePlugin
from avalanche.training.plugins import SupervisedPlugin
from avalanche.training.templates.base import BaseTemplate
from avalanche.training.utils import get_last_fc_layer
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR

from avalanche_vilco.training import storage_policy, strategies
from avalanche_vilco.training.kept import kept_by
from avalanche_vilco.training.plugins.rwalk import RWalkPlugin

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "strategies.md").read_text()
MEMORY_SIZE = 6
ABSTRACT = {
    "SupervisedPlugin",
    "ExemplarsBuffer",
    "BalancedExemplarsBuffer",
    "ExemplarsSelectionStrategy",
    "FeatureBasedExemplarsSelectionStrategy",
}


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    verdict: str
    in_use: str
    how: str

    @property
    def outcome(self) -> str:
        return self.verdict.split(",")[0]

    @property
    def is_ours(self) -> bool:
        return "(ours)" in self.name

    @property
    def errors(self) -> list[str]:
        return re.findall(r"`([^`]+)`", self.verdict)

    @property
    def evidence(self) -> list[str]:
        return re.findall(r"\*\*([^*]+)\*\*", self.in_use)

    @property
    def code(self) -> list[str]:
        return re.findall(r"`([^`]+)`", self.how)


def read_table(page: str, heading: str) -> list[list[str]]:
    """Cells of the rows of the table whose first row begins with a heading."""
    table = page[page.index(f"| {heading} |") :].split("\n\n")[0]
    lines = table.splitlines()[2:]
    return [[c.strip() for c in line.strip("|").split("|")] for line in lines]


ROWS = [Row(*cells) for cells in read_table(PAGE, "strategy or plugin")]
Weights = Mapping[str, Tensor]


class Witness(SupervisedPlugin):
    """Sees what the other plugins of a strategy do; stands before them."""

    def __init__(self, strategy: Any, clip_ids: list[str]) -> None:
        super().__init__()
        self.strategy = strategy
        self.clip_ids = clip_ids
        self.batches: dict[int, list[set[str]]] = defaultdict(list)
        self.terms: dict[str, dict[int, list[float]]] = {}
        self.dots: list[tuple[float, float]] = []
        self.learning_rates: dict[int, list[float]] = defaultdict(list)
        self.before: list[Weights] = []
        self.after: list[Weights] = []
        self.stored: list[set[str]] = []
        for plugin in strategy.plugins:
            if overrides(plugin, "before_backward"):
                plugin.before_backward = partial(self._loss_term, plugin)
            if overrides(plugin, "after_backward"):
                plugin.after_backward = partial(self._gradient, plugin)
        strategy.plugins.insert(0, self)

    def after_forward(self, strategy: Any, **kwargs: Any) -> None:
        experience = strategy.clock.train_exp_counter
        if len(self.before) == experience:
            self.before.append(weights_of(strategy.model))
        clips = {self.clip_ids[i] for i in strategy.mb_y.sample.tolist()}
        self.batches[experience].append(clips)
        self.learning_rates[experience].append(strategy.optimizer.param_groups[0]["lr"])

    def finish_experience(self) -> None:
        self.after.append(weights_of(self.strategy.model))
        kept = kept_by(self.strategy).samples
        self.stored.append({self.clip_ids[i] for i in kept})

    def _loss_term(self, plugin: Any, strategy: Any, **kwargs: Any) -> None:
        before = float(strategy.loss.detach())
        type(plugin).before_backward(plugin, strategy, **kwargs)
        terms = self.terms.setdefault(type(plugin).__name__, defaultdict(list))
        added = float(strategy.loss.detach()) - before
        terms[strategy.clock.train_exp_counter].append(added)

    def _gradient(self, plugin: Any, strategy: Any, **kwargs: Any) -> None:
        before = gradient_of(strategy.model)
        type(plugin).after_backward(plugin, strategy, **kwargs)
        reference = getattr(plugin, "G", getattr(plugin, "reference_gradients", None))
        if reference.numel():
            reference = nn.functional.normalize(reference.reshape(-1, len(before)))
            after = gradient_of(strategy.model)
            worst = [float((reference @ g / g.norm()).min()) for g in (before, after)]
            self.dots.append((worst[0], worst[1]))


def overrides(plugin: Any, callback: str) -> bool:
    own = getattr(type(plugin), callback, None)
    return own not in (None, getattr(SupervisedPlugin, callback))


def weights_of(model: nn.Module) -> Weights:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def gradient_of(model: nn.Module) -> Tensor:
    grads = (
        torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()
    )
    return torch.cat([grad.flatten() for grad in grads])


def equal(a: Weights, b: Weights) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@dataclass
class Run:
    """A strategy after its stream."""

    strategy: Any
    witness: Witness
    untrained: Weights
    experiences: list[set[str]]
    """Clips of each experience."""

    def seen(self, experience: int) -> set[str]:
        return set().union(*self.witness.batches[experience])

    def past(self, experience: int) -> set[str]:
        return set().union(*self.experiences[:experience])


STOCK = {**vars(stock_strategies), **vars(stock_plugins), **vars(stock_policies)}
OURS = {**vars(storage_policy), **vars(strategies), "RWalkPlugin": RWalkPlugin}


def run_code(
    code: list[str], parts: Callable[..., Any], benchmark: Any, is_ours: bool = False
) -> Run:
    """Train what a row says; names that stock has too are ours if ``is_ours``."""
    base = parts()
    untrained = weights_of(base["model"])
    names = {
        **({**STOCK, **OURS} if is_ours else {**OURS, **STOCK}),
        "StepLR": StepLR,
        "torch": torch,
        "base": base,
        "model": base["model"],
        "optimizer": base["optimizer"],
        "benchmark": benchmark,
    }
    strategy = names["strategy"] = eval(code[0], names)
    # Else each draw of a method would shift the order of later batches.
    strategy.train = partial(strategy.train, shuffle=False)
    clip_ids = [sample.clip.clip_id for sample in benchmark.datasets["train"].samples]
    witness = Witness(strategy, clip_ids)
    train = compile(
        code[1] if code[1:] else "strategy.train(experience)", "row", "eval"
    )
    in_turn = list(benchmark.train_stream) if "experience" in train.co_names else [None]
    for experience in in_turn:
        eval(train, {**names, "experience": experience})
        witness.finish_experience()
    strategy.eval(benchmark.test_stream)
    own = [set(experience.dataset.clip_ids) for experience in benchmark.train_stream]
    return Run(strategy, witness, untrained, own)


def own_samples(run: Run) -> None:
    assert [run.seen(e) for e in range(3)] == run.experiences
    assert not equal(run.witness.after[-1], run.untrained)


def all_samples(run: Run) -> None:
    last = max(run.witness.batches)
    assert run.seen(last) == run.past(3)


def memory(run: Run) -> None:
    for e, stored in enumerate(run.witness.stored):
        assert stored
        assert stored <= run.past(e + 1)
    assert run.witness.stored[-1] & run.past(2)


def memory_only(run: Run) -> None:
    memory(run)
    for e, stored in enumerate(run.witness.stored):
        assert run.seen(e) == stored
        assert len(stored) <= MEMORY_SIZE


def rehearsal(run: Run) -> None:
    for e in (1, 2):
        old = run.seen(e) & run.past(e)
        assert old
        assert old <= run.witness.stored[e - 1]
        assert len(run.witness.stored[e]) <= MEMORY_SIZE
        assert run.experiences[e] <= run.seen(e)


def penalty(run: Run) -> None:
    assert run.witness.terms
    for by_experience in run.witness.terms.values():
        assert not any(by_experience[0])
        for e in (1, 2):
            assert min(by_experience[e]) > -1e-5
            assert max(by_experience[e]) > 1e-5


def projection(run: Run) -> None:
    turned = [(before, after) for before, after in run.witness.dots if before < 0]
    assert turned
    assert all(after > before and after > -1e-2 for before, after in turned)


def frozen_weights(run: Run) -> None:
    for e in (1, 2):
        before, after = run.witness.before[e], run.witness.after[e]
        changed = {n for n in after if not torch.equal(before[n], after[n])}
        assert changed == {"heads.cls.weight", "heads.cls.bias"}


def reset_weights(run: Run) -> None:
    for start in run.witness.before:
        same = [n for n in start if not n.startswith("heads.cls.")]
        assert all(torch.equal(start[name], run.untrained[name]) for name in same)


def reset_head(run: Run) -> None:
    assert all(not start["heads.cls.weight"].any() for start in run.witness.before)


def learning_rate(run: Run) -> None:
    for rates in run.witness.learning_rates.values():
        assert rates == sorted(rates, reverse=True)
        assert rates[-1] < rates[0]


def early_stop(run: Run) -> None:
    assert any(run.seen(e) < own for e, own in enumerate(run.experiences)), (
        "each experience was read to its end"
    )


def evaluation(run: Run) -> None:
    history = run.strategy.evaluator.get_all_metrics()
    values = history["Recall@1x_tIoU0.5_Stream/eval_phase/valid_stream"][1]
    assert len(values) > len(run.experiences)


def held_out(run: Run) -> None:
    (plugin,) = (p for p in run.strategy.plugins if hasattr(p, "held_out"))
    aside = set(plugin.held_out.buffer.clip_ids)
    assert aside
    assert not aside & set().union(*(run.seen(e) for e in range(3)))


def correction(run: Run) -> None:
    (plugin,) = (p for p in run.strategy.plugins if hasattr(p, "bias_layers"))
    layers = list(plugin.bias_layers)
    assert [layer.clss.tolist() for layer in layers] == [[3], [4, 5]]
    assert all(abs(float(layer.beta)) > 1e-3 for layer in layers)


EVIDENCE: Mapping[str, Callable[[Run], None]] = {
    "own samples": own_samples,
    "all samples": all_samples,
    "memory": memory,
    "memory only": memory_only,
    "rehearsal": rehearsal,
    "penalty": penalty,
    "projection": projection,
    "held out": held_out,
    "correction": correction,
    "frozen weights": frozen_weights,
    "reset weights": reset_weights,
    "reset head": reset_head,
    "learning rate": learning_rate,
    "early stop": early_stop,
    "evaluation": evaluation,
}
AS_NAIVE = {"own samples", "evaluation"}
"""Evidence of rows whose weights are Naive's by intent."""


@pytest.fixture(scope="module")
def naive_weights() -> dict[str, list[Weights]]:
    return {}


@pytest.fixture
def naive(
    naive_weights: dict[str, list[Weights]], parts: Callable[..., Any], benchmark: Any
) -> list[Weights]:
    """Naive's weights after each experience, trained once."""
    if "naive" not in naive_weights:
        run = run_code(["Naive(**base)"], parts, benchmark)
        naive_weights["naive"] = run.witness.after
    return naive_weights["naive"]


def rows_that(outcome: str) -> Any:
    rows = [row for row in ROWS if row.outcome == outcome]
    return pytest.mark.parametrize("row", rows, ids=lambda row: row.name)


@rows_that("works")
def test_row_works(
    row: Row, parts: Callable[..., Any], benchmark: Any, naive: list[Weights]
) -> None:
    run = run_code(row.code, parts, benchmark, row.is_ours)
    for weights in run.witness.after[1:] or run.witness.after:
        assert all(torch.isfinite(value).all() for value in weights.values())
    same = equal(run.witness.after[-1], naive[-1])
    assert same == (not AS_NAIVE.isdisjoint(row.evidence))
    for word in row.evidence:
        EVIDENCE[word](run)


@rows_that("no effect")
def test_row_has_no_effect(
    row: Row, parts: Callable[..., Any], benchmark: Any, naive: list[Weights]
) -> None:
    run = run_code(row.code, parts, benchmark, row.is_ours)
    assert all(map(equal, run.witness.after, naive))


@rows_that("refused")
def test_row_is_refused(row: Row, parts: Callable[..., Any], benchmark: Any) -> None:
    with pytest.raises(Exception) as caught:
        run_code(row.code, parts, benchmark, row.is_ours)
    said = f"{type(caught.value).__name__}: {caught.value}"
    assert any(error in said for error in row.errors), said


def test_every_row_can_be_checked() -> None:
    assert {row.outcome for row in ROWS} == {"works", "no effect", "refused"}
    for row in ROWS:
        assert row.code, row
        assert bool(row.evidence) == (row.outcome == "works"), row
        assert set(row.evidence) <= set(EVIDENCE), row
        assert bool(row.errors) >= (row.outcome == "refused"), row
        assert row.outcome == "works" or ", because " in row.verdict, row
    assert len({row.name for row in ROWS}) == len(ROWS)


def test_every_check_has_a_row() -> None:
    assert {word for row in ROWS for word in row.evidence} == set(EVIDENCE)


def test_page_covers_all_that_avalanche_offers() -> None:
    offered = {
        name
        for module, kinds in (
            (stock_strategies, (BaseTemplate,)),
            (stock_plugins, (BasePlugin,)),
            (
                stock_policies,
                (
                    stock_policies.ExemplarsBuffer,
                    stock_policies.ExemplarsSelectionStrategy,
                ),
            ),
        )
        for name, value in vars(module).items()
        if inspect.isclass(value)
        and issubclass(value, kinds)
        and not name.startswith("_")
    }
    missing = {n for n in offered - ABSTRACT if not re.search(rf"\b{n}\b", PAGE)}
    assert not missing


def test_page_covers_all_our_strategies_that_differ_from_stock() -> None:
    own_init = {
        name
        for name, value in vars(strategies).items()
        if name.startswith("Localization")
        and len(vars(value).keys() & {"model_adaptation"})
    }
    assert own_init
    assert all(re.search(rf"\b{name}\b", PAGE) for name in own_init)


def test_page_lists_all_names_with_their_options() -> None:
    expected = [
        [
            f"`{name}`",
            strategy.help.rstrip("."),
            ", ".join(f"`{key}={value!r}`" for key, value in strategy.options.items()),
        ]
        for name, strategy in strategies.STRATEGIES.items()
    ]
    assert read_table(PAGE, "name") == expected


def test_a_penalty_that_is_switched_off_is_noticed(
    parts: Callable[..., Any], benchmark: Any, naive: list[Weights]
) -> None:
    run = run_code(["EWC(**base, ewc_lambda=0)"], parts, benchmark)
    assert equal(run.witness.after[-1], naive[-1])
    with pytest.raises(AssertionError):
        penalty(run)


def test_cwr_star_left_to_search_takes_a_layer_that_is_not_the_head(
    parts: Callable[..., Any],
) -> None:
    assert get_last_fc_layer(parts()["model"])[0] == "heads.match"


def test_lwf_and_cwr_star_reach_the_channels_of_class_balancing_targets_only(
    parts: Callable[..., Any], benchmark: Any
) -> None:
    first = benchmark.train_stream[0]
    others = [i for i, t in enumerate(first.dataset.targets) if t != 1]
    first.dataset = first.dataset.subset(others)
    covered = {int(t) for e in benchmark.train_stream for t in e.dataset.targets}
    assert 1 not in covered
    lwf = run_code(["LwF(**base, alpha=1, temperature=2)"], parts, benchmark)
    taught = lwf.strategy.plugins[1].lwf.prev_classes_by_task[0]
    assert taught == covered
    cwr = run_code(['CWRStar(**base, cwr_layer_name="heads.cls")'], parts, benchmark)
    rows = cwr.witness.after[-1]["heads.cls.weight"].flatten(1).any(dim=1)
    assert set(rows.nonzero().flatten().tolist()) == covered


def test_lwf_has_nothing_to_hold_after_a_single_query(
    parts: Callable[..., Any], benchmark: Any
) -> None:
    strategy = strategies.LocalizationLwF(**parts(), alpha=1, temperature=2)
    strategy.train(benchmark.train_stream[1])
    witness = Witness(
        strategy, [s.clip.clip_id for s in benchmark.datasets["train"].samples]
    )
    strategy.train(benchmark.train_stream[2])
    assert not any(witness.terms["LwFPlugin"][1])


def test_evaluating_ahead_leaks_queries_into_stock_gdumb_only(
    parts: Callable[..., Any], benchmark: Any
) -> None:
    channels = {}
    for name in ("GDumb", "LocalizationGDumb"):
        cls = getattr(stock_strategies, name, None) or getattr(strategies, name)
        strategy = cls(**parts(), mem_size=MEMORY_SIZE)
        strategy.train(benchmark.train_stream[0])
        strategy.eval(benchmark.test_stream)
        strategy.train(benchmark.train_stream[1])
        channels[name] = strategy.model.n_queries
    assert channels == {"GDumb": 6, "LocalizationGDumb": 4}
