"""One seed, one result, however the samples are read."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from avalanche_vilco.training.strategies import LocalizationReplay

Parts = Callable[..., dict[str, Any]]


@contextmanager
def started_by(method: str) -> Iterator[None]:
    """Loader workers are started by fork or by spawn; Avalanche's loaders take no
    ``multiprocessing_context``."""
    before = torch.multiprocessing.get_start_method(allow_none=True)
    torch.multiprocessing.set_start_method(method, force=True)
    yield
    torch.multiprocessing.set_start_method(before, force=True)


def sha256(tensors: list[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


@torch.no_grad()
def ranked_predictions(model: nn.Module, dataset: Any) -> list[Tensor]:
    model.eval()
    inputs, targets, *_ = dataset.collate_fn(list(dataset.eval()))
    predictions = model.decode(model(inputs), targets)
    return [predictions.segments_sec, predictions.scores, predictions.labels]


def outcome(
    parts: Parts,
    benchmark: Any,
    *,
    experiences: int = 3,
    epochs: int = 2,
    seed: int = 0,
    **loader: Any,
) -> tuple[str, str]:
    """Hashes of the weights and of the ranked predictions after some experiences."""
    arguments = parts(train_epochs=epochs)
    torch.manual_seed(seed)
    strategy = LocalizationReplay(**arguments, mem_size=6)
    for experience in benchmark.train_stream[:experiences]:
        strategy.train(experience, **loader)
    strategy.eval(benchmark.test_stream[:experiences])
    test = benchmark.test_stream[0].dataset
    return (
        sha256(list(strategy.model.state_dict().values())),
        sha256(ranked_predictions(strategy.model, test)),
    )


def test_same_seed_same_weights_and_predictions(parts: Parts, benchmark: Any) -> None:
    first, second = (outcome(parts, benchmark) for _ in range(2))
    assert first == second


def test_another_seed_gives_another_run(parts: Parts, benchmark: Any) -> None:
    first, second = (outcome(parts, benchmark, seed=seed) for seed in (0, 1))
    assert first[0] != second[0]
    assert first[1] != second[1]


@pytest.mark.parametrize(
    ("method", "workers", "length"),
    [
        ("fork", {"num_workers": 2}, {}),
        ("spawn", {"num_workers": 1}, {"experiences": 1, "epochs": 1}),
        ("fork", {"num_workers": 2, "persistent_workers": True}, {"epochs": 1}),
    ],
    ids=["forked", "spawned", "persistent within an epoch"],
)
def test_workers_change_nothing(
    method: str, workers: Any, length: Any, parts: Parts, benchmark: Any
) -> None:
    with started_by(method):
        with_workers = outcome(parts, benchmark, **workers, **length)
    assert with_workers == outcome(parts, benchmark, **length)


def test_persistent_workers_repeat_themselves_over_epochs(
    parts: Parts, benchmark: Any
) -> None:
    # They differ from other loaders: torch draws a seed for the workers of each new
    # iterator from the generator that shuffles, and a kept iterator draws none.
    with started_by("fork"):
        first, second = (
            outcome(parts, benchmark, num_workers=2, persistent_workers=True)
            for _ in range(2)
        )
    assert first == second
