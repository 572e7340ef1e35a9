"""BiC for localisation: held-out samples, corrections and shares of the loss."""

from collections.abc import Callable
from math import exp, log
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from avalanche.models.bic_model import BiasLayer
from torch import Tensor, nn

from avalanche_vilco.training.plugins.bic import BiCPlugin, fit_bias
from avalanche_vilco.training.strategies import LocalizationBiC

Parts = Callable[..., dict[str, Any]]
SIZES = {"mem_size": 10, "val_share": 0.4}


def numbers(layer: BiasLayer) -> tuple[float, float]:
    return float(layer.alpha), float(layer.beta)


def layer_of(channels: list[int], alpha: float, beta: float) -> BiasLayer:
    layer = BiasLayer(channels)
    with torch.no_grad():
        layer.alpha.fill_(alpha)
        layer.beta.fill_(beta)
    return layer.requires_grad_(False)


def clip_ids(data: Any) -> set[str]:
    return set(data.clip_ids) if len(data) else set()


def test_correction_of_two_queries_by_hand() -> None:
    plugin = BiCPlugin(10)
    output = torch.tensor([[[1.0, 0.0], [2.0, 0.0], [0.3, 0.0], [0.4, 0.0]]])
    assert plugin.corrected(output) is output
    plugin.bias_layers.append(layer_of([1], 0.5, -3.0))
    # The second point is padding.
    expected = [[[1.0, 0.0], [-2.0, 0.0], [0.3, 0.0], [0.4, 0.0]]]
    assert torch.allclose(plugin.corrected(output), torch.tensor(expected))


def test_each_correction_meets_its_own_channels() -> None:
    plugin = BiCPlugin(10)
    plugin.bias_layers.append(layer_of([1], 2.0, 0.0))
    plugin.bias_layers.append(layer_of([2, 3], 1.0, 5.0))
    corrected = plugin.corrected(torch.ones(1, 4 + 2, 1))
    assert corrected.flatten().tolist() == [1.0, 2.0, 6.0, 6.0, 1.0, 1.0]


PLAIN = {"alpha": 0.5, "gamma": 0.0}
"""Half the cross-entropy."""


def test_bias_of_two_queries_by_hand() -> None:
    # The new query's logit is 1 at four points, of which three are its own, so that it
    # should be log 3. Of all alpha + beta = log 3 the pull chooses the nearest to
    # (1, 0). What the old query says plays no part.
    logits = torch.tensor([[5.0, 1.0], [-5.0, 1.0], [0.0, 1.0], [9.0, 1.0]])
    wanted = torch.tensor([[0.0, 1.0], [0.0, 1.0], [1.0, 1.0], [1.0, 0.0]])
    layer = BiasLayer([1])
    fit_bias(layer, logits, wanted, decay=1e-5, **PLAIN)
    half = (log(3) - 1) / 2
    assert numbers(layer) == pytest.approx((1 + half, half), abs=2e-3)


def test_scale_of_two_queries_by_hand() -> None:
    # Of four points with logit 2 three are the new query's, of four with -2 one is:
    # alpha * 2 = log 3 and beta = 0.
    logits = torch.tensor([[0.0, 2.0]] * 4 + [[0.0, -2.0]] * 4)
    new = torch.tensor([1.0, 1, 1, 0, 1, 0, 0, 0])
    layer = BiasLayer([1])
    fit_bias(layer, logits, torch.stack([1 - new, new], dim=1), decay=0.0, **PLAIN)
    assert numbers(layer) == pytest.approx((log(3) / 2, 0.0), abs=1e-3)


def test_points_without_error_do_not_run_away() -> None:
    logits = torch.tensor([[0.0, 4.0], [0.0, -4.0]])
    wanted = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    layer = BiasLayer([1])
    fit_bias(layer, logits, wanted, decay=0.1, **PLAIN)
    # Without slope: 0.1 * (alpha - 1) = 4 * sigmoid(-4 alpha).
    assert 40 / (1 + exp(4 * 1.2587)) == pytest.approx(0.2587, abs=1e-4)
    assert numbers(layer) == pytest.approx((1.2587, 0.0), abs=1e-3)


def test_new_queries_that_fire_on_old_clips_are_lowered() -> None:
    logits = torch.tensor([[0.0, 0.0], [0.0, 3.0], [0.0, 2.5], [0.0, -3.0]])
    wanted = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 0.0]])
    layer = BiasLayer([1])
    fit_bias(layer, logits, wanted, decay=0.1)
    assert float(layer(logits)[2, 1].detach()) < 2.0


def test_a_fitted_correction_is_frozen() -> None:
    layer = BiasLayer([1])
    fit_bias(layer, torch.randn(8, 2), torch.eye(2).repeat(4, 1), decay=0.1)
    assert not any(p.requires_grad for p in layer.parameters())
    assert all(p.grad is None for p in layer.parameters())


class Fixed(nn.Module):
    """A teacher of one old query with a given output."""

    def __init__(self, output: Tensor) -> None:
        super().__init__()
        self.output = output

    def forward(self, x: Any) -> Tensor:
        return self.output


def test_loss_is_shared_as_queries_are_by_hand() -> None:
    plugin = BiCPlugin(10, temperature=1.0, distillation_weight=2.0)
    plugin.teacher = Fixed(torch.tensor([log(3) - 1, 0.5, 0.5])[None, :, None])
    plugin.old_share = 1 / 4
    plugin.bias_layers.append(layer_of([0], 1.0, 1.0))
    output = torch.tensor([-1.0, 9.0, 9.0, 9.0, 1.0, 1.0])[None, :, None]
    loop = SimpleNamespace(mb_x=None, mb_output=output, loss=torch.tensor(4.0))
    plugin.after_forward(loop)
    plugin.before_backward(loop)
    # One of four queries is old; corrected, its target is 3/4 and the model's word 1/2.
    assert float(loop.loss) == pytest.approx(0.75 * 4 + 0.25 * 2 * log(2))


class Watch:
    """Which clips were trained on, set aside, and kept."""

    def __init__(self, strategy: Any, benchmark: Any) -> None:
        self.plugin = strategy.plugins[0]
        names = [s.clip.clip_id for s in benchmark.datasets["train"].samples]
        self.trained: set[str] = set()
        self.aside: set[str] = set()
        self.totals: list[int] = []
        strategy.plugins[0].before_forward = lambda strategy, **_: self.trained.update(
            names[i] for i in strategy.mb_y.sample.tolist()
        )

    def note(self) -> None:
        held = list(self.plugin.held_out.buffer.clip_ids)
        rehearsed = list(self.plugin.storage_policy.buffer.clip_ids)
        self.aside |= set(held)
        assert len({*held, *rehearsed}) == len(held) + len(rehearsed)
        self.totals.append(len(held) + len(rehearsed))


def test_held_out_samples_are_never_trained_on_and_capacity_is_exact(
    parts: Parts, benchmark: Any
) -> None:
    strategy = LocalizationBiC(**parts(train_epochs=2), **SIZES)
    watch = Watch(strategy, benchmark)
    before = [clip_ids(e.dataset) for e in benchmark.train_stream]
    for experience in benchmark.train_stream:
        strategy.train(experience)
        watch.note()
    # 8 clips, of which 4 are set aside, then 12 and 18, more than there is room for.
    assert watch.totals == [8, 10, 10]
    assert not watch.aside & watch.trained
    assert watch.aside | watch.trained == set().union(*before)
    # The benchmark is as it was.
    assert [clip_ids(e.dataset) for e in benchmark.train_stream] == before


def test_held_out_samples_are_of_all_experiences(parts: Parts, benchmark: Any) -> None:
    strategy = LocalizationBiC(**parts(), **SIZES)
    for experience in benchmark.train_stream:
        strategy.train(experience)
    held = clip_ids(strategy.plugins[0].held_out.buffer)
    assert all(held & clip_ids(e.dataset) for e in benchmark.train_stream)


def test_later_experiences_leave_earlier_corrections(
    parts: Parts, benchmark: Any
) -> None:
    strategy = LocalizationBiC(**parts(), **SIZES)
    layers = strategy.plugins[0].bias_layers
    found = []
    for experience in benchmark.train_stream:
        strategy.train(experience)
        found.append([numbers(layer) for layer in layers])
    assert [len(numbers) for numbers in found] == [0, 1, 2]
    assert found[2][0] == found[1][0] != (1.0, 0.0)
    assert [layer.clss.tolist() for layer in layers] == [[3], [4, 5]]


def test_fitting_leaves_the_model_and_the_random_state(
    parts: Parts, benchmark: Any
) -> None:
    strategy = LocalizationBiC(**parts(), **SIZES)
    plugin = strategy.plugins[0]
    for experience in benchmark.train_stream[:2]:
        strategy.train(experience)
    before = {n: v.clone() for n, v in strategy.model.state_dict().items()}
    state = torch.get_rng_state()
    plugin._add_correction(strategy)
    assert torch.equal(torch.get_rng_state(), state)
    after = strategy.model.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert strategy.model.training


def test_outputs_are_corrected_in_evaluation_and_training(
    parts: Parts, benchmark: Any
) -> None:
    strategy = LocalizationBiC(**parts(), **SIZES)
    plugin = strategy.plugins[0]
    for experience in benchmark.train_stream[:2]:
        strategy.train(experience)
    raw, seen = [], []

    def keep(strategy: Any, **_: Any) -> None:
        with torch.no_grad():
            raw.append(strategy.model(strategy.mb_x))
        seen.append(strategy.mb_output.detach())

    plugin.after_eval_iteration = plugin.before_backward = keep
    strategy.eval(benchmark.test_stream[:1])
    n_evaluated = len(raw)
    alpha, beta = numbers(plugin.bias_layers[0])
    assert (alpha, beta) != (1.0, 0.0)
    strategy.train(benchmark.train_stream[2])
    assert 0 < n_evaluated < len(raw)
    for before, after in zip(raw, seen, strict=True):
        others = [i for i in range(before.shape[1]) if i != 3]
        assert torch.equal(after[:, others], before[:, others])
        expected = (alpha * before[:, 3] + beta) * (before != 0).any(1)
        assert torch.allclose(after[:, 3], expected, atol=1e-6)


def test_an_experience_without_a_new_query_is_refused(
    parts: Parts, benchmark: Any
) -> None:
    strategy = LocalizationBiC(**parts(), **SIZES)
    strategy.train(benchmark.train_stream[0])
    with pytest.raises(ValueError, match="no query beyond 3: use DenseDistillation"):
        strategy.train(benchmark.train_stream[0])


@pytest.mark.parametrize("share", [0.0, 0.04, 1.0])
def test_a_memory_without_one_of_its_parts_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match=f"but got 10 and {share}"):
        BiCPlugin(10, val_share=share)


def test_fewer_places_than_experiences_are_refused(
    parts: Parts, benchmark: Any
) -> None:
    strategy = LocalizationBiC(**parts(), mem_size=10, val_share=0.1)
    strategy.train(benchmark.train_stream[0])
    with pytest.raises(ValueError, match="each of 2 experiences but got 1"):
        strategy.train(benchmark.train_stream[1])


def test_an_experience_that_is_held_out_whole_is_refused(
    parts: Parts, benchmark: Any
) -> None:
    strategy = LocalizationBiC(**parts(), mem_size=20, val_share=0.5)
    with pytest.raises(ValueError, match="all 8 of the experience are held out"):
        strategy.train(benchmark.train_stream[0])
