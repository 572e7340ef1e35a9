"""iCaRL for localisation: herding, quotas, distillation and nearest means."""

from collections.abc import Callable
from math import log
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from avalanche.benchmarks.utils import AvalancheDataset, DataAttribute
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from avalanche_vilco.benchmarks.vilco_mq.generator import vilco_mq
from avalanche_vilco.training.plugins.icarl import (
    ICaRLPlugin,
    nearest_mean_output,
    query_means,
)
from avalanche_vilco.training.storage_policy import (
    HerdingBuffer,
    QueryQuotaBuffer,
    RandomQuotaBuffer,
    take_turns,
)
from avalanche_vilco.training.strategies import LocalizationICaRL

Parts = Callable[..., dict[str, Any]]
FOUR_POINTS = [[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [0.96, 0.28]]
"""Of unit length, with mean (0.64, 0.52)."""


class Identity(nn.Module):
    """A model whose clips are their own embeddings."""

    def clip_embeddings(self, clips: Tensor) -> Tensor:
        return clips


AGENT = SimpleNamespace(model=Identity(), device="cpu", eval_mb_size=3)


def samples(embeddings: list[list[float]], channels: list[tuple[int, ...]]) -> Any:
    return AvalancheDataset(
        [TensorDataset(torch.tensor(embeddings), torch.zeros(len(embeddings)))],
        data_attributes=[DataAttribute(channels, "class_indices")],
    )


def held(buffer: QueryQuotaBuffer) -> list[list[float]]:
    return [sample[0].tolist() for sample in buffer.buffer]


def numbered(channels: list[tuple[int, ...]], first: int = 0) -> Any:
    return samples([[float(first + i)] for i in range(len(channels))], channels)


def sizes(buffer: QueryQuotaBuffer) -> dict[int, int]:
    return {channel: len(ranks) for channel, ranks in buffer.ranking.items()}


def test_herding_order_of_four_points_by_hand() -> None:
    # (0.6, 0.8) is nearest to the mean; with it (0.96, 0.28) makes (0.78, 0.54),
    # 0.02 off in squared distance against 0.04 and 0.26; then (0, 1) makes
    # (0.52, 0.69), 0.044 off against 0.071.
    buffer = HerdingBuffer(4)
    buffer.update_from_dataset(samples(FOUR_POINTS, [(0,)] * 4), AGENT)
    order = [2, 3, 1, 0]
    assert buffer.ranking == {0: order}
    for size in (3, 2, 1):
        buffer.resize(AGENT, size)
        kept = sorted(order[:size])
        assert held(buffer) == samples_at(kept)
        assert [kept[p] for p in buffer.ranking[0]] == order[:size]


def samples_at(positions: list[int]) -> list[list[float]]:
    return torch.tensor(FOUR_POINTS)[positions].tolist()


def test_embeddings_are_compared_at_unit_length() -> None:
    longer = [[x * (1 + i) for x in point] for i, point in enumerate(FOUR_POINTS)]
    buffer = HerdingBuffer(4)
    buffer.update_from_dataset(samples(longer, [(0,)] * 4), AGENT)
    assert buffer.ranking == {0: [2, 3, 1, 0]}


def test_old_queries_keep_their_order_when_the_model_changes() -> None:
    buffer = HerdingBuffer(4)
    buffer.update_from_dataset(samples(FOUR_POINTS, [(0,)] * 4), AGENT)

    class NewOnly(nn.Module):
        def clip_embeddings(self, clips: Tensor) -> Tensor:
            assert len(clips) == 2, "stored samples are not read again"
            return clips

    agent = SimpleNamespace(model=NewOnly(), device="cpu", eval_mb_size=9)
    buffer.update_from_dataset(samples([[0.8, 0.6], [0.8, -0.6]], [(1,)] * 2), agent)
    kept = held(buffer)
    assert [kept[p] for p in buffer.ranking[0]] == samples_at([2, 3])
    assert len(buffer.ranking[1]) == 2


@pytest.mark.parametrize(
    ("n_samples", "max_size", "expected"),
    [
        ([5, 5, 5], 6, [2, 2, 2]),
        ([5, 5, 5], 7, [3, 2, 2]),
        ([1, 5, 5], 6, [1, 3, 2]),
        ([1, 2, 9], 9, [1, 2, 6]),
        ([1, 1, 1], 9, [1, 1, 1]),
        ([4, 4, 4], 2, [1, 1, 0]),
    ],
)
def test_what_a_query_leaves_goes_to_the_others(n_samples, max_size, expected) -> None:
    channels = [(c,) for c, n in enumerate(n_samples) for _ in range(n)]
    buffer = RandomQuotaBuffer(max_size)
    buffer.update_from_dataset(numbered(channels))
    assert list(sizes(buffer).values()) == expected
    assert len(buffer.buffer) == min(max_size, sum(n_samples))


def test_a_sample_of_several_queries_is_stored_once() -> None:
    buffer = RandomQuotaBuffer(5)
    buffer.update_from_dataset(numbered([(0, 1)] * 3 + [(1,)] * 4))
    assert len(buffer.buffer) == 5
    assert len({value for (value,) in held(buffer)}) == 5


def test_turns_spread_over_experiences() -> None:
    buffer = RandomQuotaBuffer(4)
    buffer.update_from_dataset(numbered([(c,) for c in range(3)] * 2))
    buffer.update_from_dataset(numbered([(c,) for c in range(3, 6)] * 2, first=10))
    assert sizes(buffer) == {0: 1, 1: 1, 2: 0, 3: 1, 4: 1, 5: 0}


def test_update_tells_which_new_samples_were_kept() -> None:
    buffer = RandomQuotaBuffer(4)
    assert len(buffer.update_from_dataset(numbered([(0,)] * 5))) == 4
    kept = buffer.update_from_dataset(numbered([(1,)] * 5, first=10))
    assert len(kept) == 2
    new = {value for (value,) in held(buffer) if value >= 10}
    assert new == {10.0 + i for i in kept}


def test_random_ranks_follow_the_seed_and_draw_nothing_else() -> None:
    state = torch.get_rng_state()
    chosen = []
    for seed in (0, 0, 1):
        buffer = RandomQuotaBuffer(3, seed=seed)
        buffer.update_from_dataset(numbered([(0,)] * 40))
        chosen.append(held(buffer))
    assert chosen[0] == chosen[1] != chosen[2]
    assert torch.equal(torch.get_rng_state(), state)


def test_nothing_to_take_turns_for_ends() -> None:
    assert take_turns([], 3) == []
    assert take_turns([[], [1, 1, 1]], 3) == [1]


def test_a_memory_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 but got 0"):
        ICaRLPlugin(0)


@pytest.fixture
def long_stream(small_root: Path) -> Any:
    return vilco_mq(small_root, per_exp_classes=(2, 1, 1, 1, 1), valid_share=0.2)


def test_capacity_is_exact_over_five_experiences(
    long_stream: Any, parts: Parts
) -> None:
    strategy = LocalizationICaRL(**parts(), mem_size=20)
    buffer = strategy.plugins[0].storage_policy
    seen: set[str] = set()
    counts = []
    for experience in long_stream.train_stream:
        strategy.train(experience)
        seen |= set(experience.dataset.clip_ids)
        ids = list(buffer.buffer.clip_ids)
        assert len(ids) == len(set(ids)) == min(20, len(seen))
        assert set(ids) <= seen
        counts.append(len(ids))
    assert counts[-1] == 20
    assert all(ranks for ranks in buffer.ranking.values())
    other = [*long_stream.valid_stream, *long_stream.test_stream]
    assert not any(set(ids) & set(experience.dataset.clip_ids) for experience in other)


def test_choosing_exemplars_draws_no_random_number_and_leaves_no_hook(
    parts: Parts, benchmark: Any
) -> None:
    strategy = LocalizationICaRL(**parts(), mem_size=6, nearest_mean=True)
    strategy.train(benchmark.train_stream[0])
    plugin, state = strategy.plugins[0], torch.get_rng_state()
    strategy.experience = benchmark.train_stream[1]
    plugin.after_training_exp(strategy)
    assert torch.equal(torch.get_rng_state(), state)
    assert strategy.model.training
    assert not any(module._forward_hooks for module in strategy.model.modules())


def test_old_logits_are_held_at_all_points_of_all_clips(
    parts: Parts, benchmark: Any
) -> None:
    strategy = LocalizationICaRL(**parts(), mem_size=6, distillation_weight=3.0)
    strategy.train(benchmark.train_stream[0])
    plugin = strategy.plugins[0]
    data = benchmark.train_stream[1].dataset
    inputs = data.collate_fn([data[i] for i in range(2)])[0]
    strategy.model.learn_queries(benchmark.queries[3:4])
    output = strategy.model(inputs).detach().requires_grad_()
    loop = SimpleNamespace(mb_x=inputs, mb_output=output, loss=torch.tensor(5.0))
    plugin.before_backward(loop)
    taught = plugin.teacher(inputs)
    assert (output.shape[1], taught.shape[1]) == (4 + 2, 3 + 2)
    valid = (taught != 0).any(1)
    p, q = output[:, :3].sigmoid(), taught[:, :3].sigmoid()
    terms = -(q * p.log() + (1 - q) * (1 - p).log()).sum(1)
    expected = 5 + 3 * float(terms[valid].mean().detach())
    assert float(loop.loss.detach()) == pytest.approx(expected, rel=1e-5)
    loop.loss.backward()
    held_points = output.grad[:, :3].any(1)
    assert torch.equal(held_points, valid)
    assert not output.grad[:, 3:].any()


def test_nearest_mean_of_two_queries_by_hand() -> None:
    # One query's mean points right, the other's up; at two points.
    logits = torch.tensor([[[0.0, -log(3)], [log(3), -5.0]]])
    offsets = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])
    output = torch.cat([logits, offsets], dim=1)
    embeddings = torch.tensor([[[2.0, 0.6], [0.0, 0.8]]])
    scored = nearest_mean_output(output, embeddings, torch.eye(2), temperature=0.5)
    share = torch.tensor([[2.0, 1.2], [0.0, 1.6]]).softmax(dim=0)
    expected = torch.tensor([0.75, 0.25]) * share
    assert torch.allclose(scored[0, :2].sigmoid(), expected)
    assert torch.equal(scored[:, 2:], offsets)


def test_queries_without_a_mean_keep_their_logits() -> None:
    output = torch.randn(2, 4 + 2, 5)
    embeddings = torch.randn(2, 3, 5)
    means = torch.nn.functional.normalize(torch.randn(3, 3), dim=1)
    means[1] = 0.0
    scored = nearest_mean_output(output, embeddings, means, temperature=0.1)
    assert torch.equal(scored[:, [1, 3, 4, 5]], output[:, [1, 3, 4, 5]])
    assert not torch.isclose(scored[:, [0, 2]], output[:, [0, 2]]).any()
    total = scored[:, [0, 2]].sigmoid().sum(1)
    assert torch.allclose(total, output[:, [0, 2]].amax(1).sigmoid(), atol=1e-4)


def test_padding_stays_zero() -> None:
    output = torch.randn(1, 2 + 2, 4)
    output[:, :, 2:] = 0.0
    scored = nearest_mean_output(
        output, torch.randn(1, 2, 4), torch.eye(2), temperature=0.1
    )
    assert not scored[:, :, 2:].any()
    assert scored[:, :, :2].all()


def test_means_are_of_the_points_that_answer_for_windows(
    parts: Parts, benchmark: Any
) -> None:
    strategy = LocalizationICaRL(**parts(), mem_size=6, nearest_mean=True)
    strategy.train(benchmark.train_stream[0])
    data = strategy.plugins[0].storage_policy.buffer
    means = strategy.plugins[0].means
    assert means.shape == (3, 16)
    assert torch.allclose(means.norm(dim=1), torch.ones(3))
    # Another batch size must not matter.
    other = SimpleNamespace(
        model=strategy.model, device=torch.device("cpu"), eval_mb_size=1
    )
    assert torch.allclose(query_means(other, data), means, atol=1e-5)
    without = [i for i, own in enumerate(data.class_indices) if 0 not in own]
    assert not query_means(other, data.subset(without))[0].any()


def test_nearest_mean_is_used_in_evaluation_only(parts: Parts, benchmark: Any) -> None:
    ends, scores = [], []
    for nearest_mean in (False, True):
        strategy = LocalizationICaRL(**parts(), mem_size=6, nearest_mean=nearest_mean)
        outputs: list[Tensor] = []
        strategy.plugins[0].after_eval_iteration = lambda strategy, kept=outputs, **_: (
            kept.append(strategy.mb_output)
        )
        for experience in benchmark.train_stream:
            strategy.train(experience)
        strategy.eval(benchmark.test_stream[:1])
        ends.append(strategy.model.state_dict())
        scores.append(outputs[0])
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])
    assert not torch.allclose(scores[0], scores[1])
