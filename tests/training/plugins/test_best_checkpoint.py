"""The best epoch of an experience is what training leaves behind."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from avalanche.training.plugins import EWCPlugin, SupervisedPlugin
from torch import Tensor, nn

from avalanche_vilco.benchmarks.vilco_mq.generator import vilco_mq
from avalanche_vilco.evaluation.metrics.continual import TaskMatrixMetric
from avalanche_vilco.evaluation.metrics.recall import MomentRecall
from avalanche_vilco.experiments.chance import scores_of
from avalanche_vilco.training.checkpointing import load_checkpoint, save_checkpoint
from avalanche_vilco.training.plugins.best_checkpoint import BestCheckpointPlugin
from avalanche_vilco.training.strategies import (
    LocalizationJoint,
    LocalizationNaive,
    LocalizationReplay,
)

Parts = Callable[..., dict[str, Any]]


class Scripted:
    """A metric whose values are given: one for each experience scored."""

    def __init__(self, values: Sequence[float]) -> None:
        self.values = list(values)
        self.n_scored = 0
        self.n_clips: list[int] = []

    def reset(self) -> None:
        pass

    def update(self, predictions: Any, targets: Any) -> None:
        self.n_clips.append(len(targets))

    def compute(self) -> dict[str, float]:
        value = self.values[self.n_scored % len(self.values)]
        self.n_scored += 1
        return {"score": value}


class Watch(SupervisedPlugin):
    """Weights after each epoch, and when training on the experience has ended."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs: list[list[Tensor]] = []
        self.end: list[Tensor] = []
        self.modes: list[set[bool]] = []

    def after_training_epoch(self, strategy: Any, **kwargs: Any) -> None:
        self.epochs.append(weights(strategy.model))
        self.modes.append({module.training for module in strategy.model.modules()})

    def after_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        self.end = weights(strategy.model)


def weights(model: nn.Module) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in model.state_dict().values()]


def equal(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def train(
    parts: Parts,
    experiences: Sequence[Any],
    *plugins: Any,
    epochs: int = 6,
    kind: Any = LocalizationNaive,
    **options: Any,
) -> Any:
    strategy = kind(**parts(plugins=list(plugins), train_epochs=epochs), **options)
    torch.manual_seed(1)
    for experience in experiences:
        strategy.train(experience)
    return strategy


@pytest.mark.parametrize(
    ("values", "best"),
    [
        ([0.1, 0.4, 0.2, 0.3], 3),
        ([0.4, 0.1, 0.2, 0.3], 2),
        ([0.1, 0.2, 0.3, 0.4], 5),
        ([0.3, 0.3, 0.3, 0.2], 2),
    ],
    ids=["middle", "first", "last", "ties"],
)
def test_the_best_epoch_is_restored(parts, benchmark, values, best) -> None:
    plugin, watch = BestCheckpointPlugin(metric=Scripted(values)), Watch()
    train(parts, benchmark.train_stream[:1], plugin, watch)
    assert plugin.chosen == [best]
    assert plugin.scores == [dict(zip(range(2, 6), values, strict=True))]
    assert equal(watch.end, watch.epochs[best])
    assert not any(equal(watch.end, e) for i, e in enumerate(watch.epochs) if i != best)


def test_scores_are_those_of_the_model_on_the_stream_so_far(parts, benchmark) -> None:
    plugin = BestCheckpointPlugin("test")
    strategy = train(parts, benchmark.train_stream[:2], plugin, epochs=3)
    # Restored weights have the best score, on both experiences.
    recall = MomentRecall(k=(1,), tiou=(0.5,))
    expected = []
    for experience in benchmark.test_stream[:2]:
        data = benchmark.datasets["test"].subset(experience.dataset.positions)
        expected += scores_of(strategy.model, data, [recall]).values()
    best = max(plugin.scores[1].values())
    assert best == pytest.approx(sum(expected) / len(expected))


def test_only_experiences_so_far_are_scored(parts, benchmark) -> None:
    metric = Scripted([0.5])
    plugin = BestCheckpointPlugin("test", metric=metric)
    sizes = [len(experience.dataset) for experience in benchmark.test_stream]
    train(parts, benchmark.train_stream[:1], plugin, epochs=1)
    assert sum(metric.n_clips) == sizes[0]
    metric.n_clips.clear()
    train(parts, benchmark.train_stream[1:2], plugin, epochs=1)
    assert sum(metric.n_clips) == sum(sizes[:2])


def test_training_goes_on_as_without_the_plugin(parts, benchmark) -> None:
    # The model of the last epoch is kept each time, so all weights must be equal.
    rising = BestCheckpointPlugin(metric=Scripted([i / 100 for i in range(100)]))
    options = {"kind": LocalizationReplay, "mem_size": 4, "epochs": 3}
    selected = train(parts, benchmark.train_stream[:2], rising, **options)
    state = torch.get_rng_state()
    plain = train(parts, benchmark.train_stream[:2], **options)
    assert equal(weights(selected.model), weights(plain.model))
    assert torch.equal(torch.get_rng_state(), state)


def test_scoring_leaves_modes_and_the_task_matrix_alone(parts, benchmark) -> None:
    watch = Watch()
    strategy = train(
        parts, benchmark.train_stream[:1], BestCheckpointPlugin("test"), watch
    )
    assert watch.modes == [{True}] * 6
    (matrix,) = (
        m for m in strategy.evaluator.metrics if isinstance(m, TaskMatrixMetric)
    )
    assert matrix.matrices == {}


def test_a_part_held_in_evaluation_mode_stays_there(parts, benchmark) -> None:
    class Freeze(SupervisedPlugin):
        def before_training_epoch(self, strategy: Any, **kwargs: Any) -> None:
            strategy.model.stem.eval()

    watch = Watch()
    train(parts, benchmark.train_stream[:1], BestCheckpointPlugin(), Freeze(), watch)
    assert watch.modes == [{True, False}] * 6


def test_importances_are_measured_on_the_restored_weights(parts, benchmark) -> None:
    plugin = BestCheckpointPlugin(metric=Scripted([0.9, 0.1, 0.1, 0.1]))
    ewc, watch = EWCPlugin(ewc_lambda=1.0), Watch()
    train(parts, benchmark.train_stream[:1], plugin, ewc, watch)
    saved = ewc.saved_params[0]
    names = [name for name, _ in parts()["model"].named_parameters()]
    assert saved.keys() == set(names)
    kept = dict(zip(parts()["model"].state_dict(), watch.epochs[2], strict=True))
    for name in ("stem.projection.weight", "heads.match.weight"):
        assert torch.equal(saved[name].data, kept[name])


def test_without_scores_the_last_epoch_stays(parts, benchmark) -> None:
    plugin, watch = BestCheckpointPlugin(metric=Scripted([float("nan")])), Watch()
    train(parts, benchmark.train_stream[:1], plugin, watch)
    assert plugin.chosen == [None]
    assert equal(watch.end, watch.epochs[-1])


def test_no_copy_of_weights_outlives_the_experience(parts, benchmark) -> None:
    plugin = BestCheckpointPlugin(metric=Scripted([0.5]))
    train(parts, benchmark.train_stream[:1], plugin, epochs=1)
    assert plugin._weights is None


def test_joint_training_is_scored_on_all_experiences(parts, benchmark) -> None:
    metric = Scripted([0.5])
    plugin = BestCheckpointPlugin("test", metric=metric)
    strategy = LocalizationJoint(**parts(plugins=[plugin]))
    strategy.train(benchmark.train_stream)
    assert sum(metric.n_clips) == sum(len(e.dataset) for e in benchmark.test_stream)


def test_a_saved_run_goes_on_with_its_choices(parts, benchmark, tmp_path: Path) -> None:
    whole = train(parts, benchmark.train_stream[:2], BestCheckpointPlugin())
    first = train(parts, benchmark.train_stream[:1], BestCheckpointPlugin())
    save_checkpoint(first, tmp_path / "saved")
    fresh = LocalizationNaive(**parts(plugins=[BestCheckpointPlugin()], train_epochs=6))
    resumed, _ = load_checkpoint(fresh, tmp_path / "saved")
    resumed.train(benchmark.train_stream[1])
    assert equal(weights(resumed.model), weights(whole.model))
    assert resumed.plugins[0].chosen == whole.plugins[0].chosen
    assert len(resumed.plugins[0].chosen) == 2


def test_a_stream_without_samples_is_refused(parts, small_root: Path) -> None:
    benchmark = vilco_mq(small_root, per_exp_classes=(3, 1, 2), valid_share=0.0)
    with pytest.raises(ValueError, match="but got none in stream 'valid'"):
        train(parts, benchmark.train_stream[:1], BestCheckpointPlugin("valid"))
