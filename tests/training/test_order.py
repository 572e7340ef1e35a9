"""Experiences in another order than that of the stream."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from avalanche_vilco.models.losses import MomentLoss
from avalanche_vilco.models.output import UNTAUGHT, query_logits
from avalanche_vilco.training import strategies
from avalanche_vilco.training.passes import batches_of

Parts = Callable[..., dict[str, Any]]
MEMORY = {"mem_size": 6}
METHODS: dict[str, dict[str, Any]] = {
    "LocalizationNaive": {},
    "LocalizationReplay": {**MEMORY, "unit": "class_slots"},
    "LocalizationICaRL": {**MEMORY, "nearest_mean": True},
    "LocalizationBiC": {**MEMORY, "val_share": 0.4},
    "LocalizationDenseDistillation": {},
    "LocalizationLwF": {"alpha": 1.0, "temperature": 2.0},
    "LocalizationMAS": {},
    "ViLCo": {**MEMORY, "ssl_weight": 0.0, "pull_weight": 0.1},
}


def outputs(strategy: Any, data: Any) -> list[torch.Tensor]:
    strategy.model.eval()
    with torch.no_grad():
        return [strategy.model(inputs) for inputs, _ in batches_of(data, strategy)]


@pytest.mark.parametrize("name", METHODS)
def test_untaught_queries_are_silent_in_any_order(
    name: str, parts: Parts, benchmark: Any
) -> None:
    """Queries 0 to 2 are experience 0's, 3 is 1's, 4 and 5 are 2's: 2, then 0."""
    strategy = getattr(strategies, name)(**parts(), **METHODS[name])
    strategy.train(benchmark.train_stream[2])
    strategy.eval(benchmark.test_stream)
    assert strategy.model.taught_queries.tolist() == [False] * 4 + [True] * 2
    data = benchmark.test_stream[0].dataset
    for inputs, targets in batches_of(data, strategy):
        found = strategy.model.decode(strategy.model(inputs), targets)
        assert set(found.labels.unique().tolist()) <= {-1, 4, 5}
    strategy.train(benchmark.train_stream[0])
    strategy.eval(benchmark.test_stream)
    logits = torch.cat([query_logits(o)[..., 0] for o in outputs(strategy, data)])
    assert (logits[:, 3] == UNTAUGHT).all()
    assert (logits[:, [0, 1, 2, 4, 5]] > -50).all() and logits.isfinite().all()
    (metric,) = (m for m in strategy.evaluator.metrics if hasattr(m, "matrices"))
    for matrix in metric.matrices.values():
        assert matrix.taught == ({2}, {0})
        assert 0 <= matrix.average() <= 1
        assert -1 <= matrix.backward_forgetting() <= 1


def test_bic_corrects_the_queries_that_are_new(parts: Parts, benchmark: Any) -> None:
    strategy = strategies.LocalizationBiC(**parts(), mem_size=6, val_share=0.5)
    for number in (2, 0, 1):
        strategy.train(benchmark.train_stream[number])
    plugin = strategy.plugins[0]
    corrected = [layer.clss.tolist() for layer in plugin.bias_layers]
    assert corrected == [[0, 1, 2], [3]]
    assert plugin.old_share == 5 / 6


def test_a_teacher_holds_what_it_was_taught_alone(parts: Parts, benchmark: Any) -> None:
    strategy = strategies.LocalizationDenseDistillation(**parts())
    strategy.train(benchmark.train_stream[2])
    (plugin,) = (p for p in strategy.plugins if hasattr(p, "penalty"))
    strategy.model.learn_queries(benchmark.queries[:3])
    inputs, _ = next(batches_of(benchmark.train_stream[0].dataset, strategy))
    output = strategy.model(inputs).detach().requires_grad_()
    plugin.penalty(output, plugin.teacher(inputs)).backward()
    assert not output.grad[:, :4].any() and output.grad[:, 4:].any()


@pytest.mark.parametrize("negatives", ["asked", "seen"])
def test_windows_and_negatives_of_untaught_queries_do_not_count(
    negatives: str, parts: Parts, benchmark: Any
) -> None:
    """As where the head ends before them: their channels take no part in the loss."""
    model = parts()["model"]
    model.learn_queries(benchmark.queries[4:])
    data = benchmark.train_stream[0].dataset
    inputs, targets = data.collate_fn([data[0], data[1]])[:2]
    output = model(inputs).detach().requires_grad_()
    loss = MomentLoss(negatives=negatives)(output, targets)
    loss.backward()
    assert not output.grad[:, :4].any()
    targets.labels.fill_(-1)
    assert torch.equal(loss, MomentLoss(negatives=negatives)(output, targets))


def test_what_was_taught_survives_saved_weights(parts: Parts, benchmark: Any) -> None:
    model, other = parts()["model"], parts()["model"]
    model.learn_queries(benchmark.queries[4:])
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.taught_queries, model.taught_queries)
    data = benchmark.train_stream[0].dataset
    inputs = data.collate_fn([data[0], data[1]])[0]
    assert torch.equal(other.eval()(inputs), model.eval()(inputs))
    model.learn_queries(benchmark.queries[:4])
    assert not any("taught" in name for name in model.state_dict())
    other.load_state_dict(model.state_dict())
    assert other.taught_queries.all()


def test_texts_of_untaught_queries_are_not_seen(parts: Parts, benchmark: Any) -> None:
    model = parts()["model"].eval()
    model.learn_queries(benchmark.queries[4:])
    data = benchmark.train_stream[0].dataset
    inputs = data.collate_fn([data[0], data[1]])[0]
    before = model(inputs)
    model.hold_texts(benchmark.queries[:4])
    assert torch.equal(model(inputs)[:, :4], before[:, :4])
    torch.testing.assert_close(model(inputs), before, atol=1e-6, rtol=0)
