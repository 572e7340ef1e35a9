"""Streams of parts of experiences, as ``split_online_stream`` makes them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from avalanche.benchmarks import OnlineCLExperience
from avalanche.benchmarks.scenarios.online import split_online_stream
from avalanche.benchmarks.utils import make_avalanche_dataset
from avalanche.training import supervised as stock

import avalanche_vilco as ours
from avalanche_vilco.training import strategies
from avalanche_vilco.training.templates import localization_evaluator, track_evaluator

STRATEGIES: dict[str, Callable[..., Any]] = {
    "Naive": stock.Naive,
    "Replay": stock.Replay,
    "LocalizationNaive": strategies.LocalizationNaive,
    "LocalizationReplay": strategies.LocalizationReplay,
    "ViLCo": strategies.ViLCo,
}
OPTIONS = {"prompt_mode": "prepend", "n_prompts": 3, "top_n": 2, "ssl_weight": 0.0}


@pytest.fixture(scope="module", params=["mq", "vq"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def benchmark(kind: str, request: pytest.FixtureRequest) -> Any:
    """Four samples an experience, or fewer."""
    options = {"n_experiences": 2, "sources": {"image_size": 64, "n_frames": 4}}
    root = request.getfixturevalue(f"{kind}_root")
    benchmark = getattr(ours, f"vilco_{kind}")(
        root, **(options if kind == "vq" else {})
    )
    for experience in (*benchmark.train_stream, *benchmark.test_stream):
        n_samples = min(len(experience.dataset), 4)
        experience.dataset = experience.dataset.subset(range(n_samples))
    return benchmark


def build(kind: str, benchmark: Any, name: str) -> Any:
    torch.manual_seed(0)
    sizes = {"image_size": 64}
    if kind == "mq":
        widths = benchmark.info["feature_dim"], benchmark.text_dim
        sizes = dict(zip(("feature_dim", "text_dim"), widths, strict=True))
    model = getattr(ours, f"vilco_{kind}_tiny")(**sizes)
    options = OPTIONS if name == "ViLCo" else {}
    return STRATEGIES[name](
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1e-3),
        criterion=ours.VisualQueryLoss() if kind == "vq" else ours.MomentLoss(),
        train_mb_size=2,
        evaluator=track_evaluator() if kind == "vq" else localization_evaluator(),
        **({"mem_size": 4} if name not in ("Naive", "LocalizationNaive") else {}),
        **options,
    )


@pytest.mark.parametrize("name", STRATEGIES)
def test_an_online_stream_is_learnt_experience_by_experience(
    name: str, kind: str, benchmark: Any
) -> None:
    strategy, first_two = build(kind, benchmark, name), benchmark.train_stream[:2]
    has_boundaries = "Localization" in name
    numbers, rows, clocks = [], [], []
    for part in split_online_stream(
        first_two, 3, access_task_boundaries=has_boundaries
    ):
        strategy.train(part)
        numbers.append(part.origin_experience.current_experience)
        rows.append(strategy.model.n_queries)
        clock = getattr(benchmark.datasets["train"], "clock", None)
        clocks.append(clock.now[0] if clock is not None else None)
    strategy.eval(benchmark.test_stream)
    seen = [len(each.classes_seen_so_far) if kind == "mq" else 1 for each in first_two]
    assert numbers.count(0) == 2 and rows == [seen[number] for number in numbers]
    if kind == "vq" and not STRATEGIES[name].__module__.startswith("avalanche."):
        assert clocks == numbers
    (metric,) = (m for m in strategy.evaluator.metrics if hasattr(m, "matrices"))
    for matrix in metric.matrices.values():
        assert matrix.taught == ({0}, {1}) and 0 <= matrix.average() <= 1
    weights = torch.cat([p.detach().flatten() for p in strategy.model.parameters()])
    assert weights.isfinite().all()


def test_parts_of_other_benchmarks_are_left_as_avalanche_makes_them() -> None:
    data = make_avalanche_dataset([(0, 0)])
    part = OnlineCLExperience(dataset=data, origin_experience=None)
    assert not hasattr(part, "task_labels")
    part.task_labels = [3]
    assert part.task_labels == [3]
