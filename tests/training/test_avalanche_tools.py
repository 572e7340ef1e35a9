"""Avalanche's tools, and what a newcomer leaves in, on all three benchmarks."""

import math
import operator
import re
import warnings
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from avalanche import benchmarks, checkpointing, logging, models
from avalanche.evaluation import metrics as stock_metrics
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.supervised import Naive
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from avalanche_vilco import (
    MomentLoss,
    VisualQueryLoss,
    vilco_mq,
    vilco_mq_tiny,
    vilco_nlq,
    vilco_nlq_tiny,
    vilco_vq,
    vilco_vq_tiny,
)
from avalanche_vilco.evaluation import logger as our_loggers
from avalanche_vilco.evaluation import recall_metrics, response_track_metrics
from avalanche_vilco.training.templates import localization_evaluator, track_evaluator

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "strategies.md").read_text()
TABLE = PAGE.split("| tool | verdict |")[1].split("\n\n")[0].splitlines()[2:]
ROWS = [[cell.strip() for cell in row.strip("|").split("|")] for row in TABLE]
KINDS = ("mq", "nlq", "vq")


@pytest.fixture(scope="module")
def benchmark_of(mq_root: Path, nlq_root: Path, vq_root: Path) -> Callable[[str], Any]:
    """The benchmarks by name, two samples an experience."""

    @cache
    def build(kind: str) -> Any:
        benchmark = {
            "mq": lambda: vilco_mq(mq_root),
            "nlq": lambda: vilco_nlq(nlq_root),
            "vq": lambda: vilco_vq(
                vq_root, n_experiences=2, sources={"image_size": 64, "n_frames": 6}
            ),
        }[kind]()
        for experience in (*benchmark.train_stream, *benchmark.test_stream):
            experience.dataset = experience.dataset.subset(range(2))
        return benchmark

    return build


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def benchmark(kind: str, benchmark_of: Callable[[str], Any]) -> Any:
    return benchmark_of(kind)


@pytest.fixture
def base(kind: str, benchmark: Any) -> dict[str, Any]:
    """Arguments of a strategy, as the page has them."""
    if kind == "vq":
        model = vilco_vq_tiny(image_size=64)
    else:
        build = {"mq": vilco_mq_tiny, "nlq": vilco_nlq_tiny}[kind]
        widths = benchmark.info["feature_dim"], benchmark.text_dim
        model = build(feature_dim=widths[0], text_dim=widths[1])
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=1e-3),
        "criterion": VisualQueryLoss() if kind == "vq" else MomentLoss(),
        "train_mb_size": 2,
        "evaluator": track_evaluator() if kind == "vq" else localization_evaluator(),
    }


def evaluate(
    base: dict[str, Any], benchmark: Any, *metrics: Any, logger: Any = None
) -> Any:
    """All values of a strategy trained on one experience and evaluated on it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="No loggers specified")
        evaluator = EvaluationPlugin(*metrics, loggers=[logger] if logger else [])
    strategy = Naive(**{**base, "evaluator": evaluator})
    strategy.train(benchmark.train_stream[0])
    values = strategy.eval(benchmark.test_stream[:1])
    for output in ("writer", "file"):
        getattr(getattr(logger, output, None), "close", int)()
    return values


def written(values: dict[str, float], folder: Path) -> bool:
    """Whether the files of a folder have all values."""
    content = b"".join(path.read_bytes() for path in folder.iterdir())
    return bool(values) and all(name.encode() in content for name in values)


STOCK = (benchmarks, checkpointing, logging, models, stock_metrics, our_loggers)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_row(
    row: list[str], kind: str, benchmark: Any, base: Any, tmp_path: Path
) -> None:
    _, verdict, _, how = row
    codes = re.findall(r"`([^`]+)`", how)
    names = {
        **{name: each for part in STOCK for name, each in vars(part).items()},
        **{"Naive": Naive, "written": written, "isfinite": math.isfinite},
        "metrics": response_track_metrics() if kind == "vq" else recall_metrics(),
        "evaluate": partial(evaluate, base, benchmark),
        "strategy": Naive(**base),
        "base": base,
        "benchmark": benchmark,
        "folder": tmp_path,
    }
    if verdict == "works":
        assert [eval(code, names) for code in codes][-1]
        return
    assert verdict.startswith("refused, because ")
    with pytest.raises(Exception) as caught:
        eval(codes[-1], names)
    assert re.findall(r"`([^`]+)`", verdict)[0] in str(caught.value)


PASSED = {
    "mq": ("model=vilco_mq_tiny()", "criterion=MomentLoss()"),
    "nlq": ("model=vilco_nlq_tiny()", "criterion=MomentLoss()"),
    "vq": ("model=vilco_vq_tiny()", "criterion=VisualQueryLoss()"),
}
"""What messages name, of inputs and of targets."""


def test_what_is_left_in_is_told_what_to_pass(
    kind: str, benchmark: Any, base: dict[str, Any]
) -> None:
    model, criterion = PASSED[kind]
    evaluator = "evaluator=" + ("track" if kind == "vq" else "localization")
    experience = benchmark.train_stream[0]
    mlp = models.SimpleMLP()
    for changes, error, tried, advice in (
        ({"evaluator": None}, TypeError, "conversion", criterion),
        ({"criterion": nn.CrossEntropyLoss()}, TypeError, "cross_entropy", criterion),
        ({"model": mlp}, AttributeError, "has no attribute 'contiguous'", model),
    ):
        wrong = {**base, **changes}
        if wrong["evaluator"] is None:
            del wrong["evaluator"]
        wrong["optimizer"] = torch.optim.SGD(wrong["model"].parameters(), lr=1e-3)
        with pytest.raises(error, match=tried) as caught:
            Naive(**wrong).train(experience)
        assert all(part in str(caught.value) for part in (advice, evaluator))
    for data in (experience.dataset, benchmark.datasets["train"]):
        with pytest.raises(TypeError, match="pass collate_fn="):
            next(iter(DataLoader(data, batch_size=2)))
        batch = next(iter(DataLoader(data, 2, collate_fn=data.collate_fn)))
        with pytest.raises(TypeError, match="cannot join samples"):
            torch.utils.data.default_collate([data[0]])
        for part, advice in zip(batch, (model, criterion), strict=False):
            assert len(part) == 2
            assert not hasattr(part, "view") and not hasattr(part, "__nothing__")
            for use in (
                torch.as_tensor,
                torch.unique,
                F.relu,
                operator.neg,
                lambda each: each / 255,
                lambda each: torch.zeros(2) == each,
                lambda each: nn.Linear(2, 2)(each),
            ):
                with pytest.raises(TypeError) as caught:
                    use(part)
                assert advice in str(caught.value)


def test_everything_says_what_it_is(kind: str, benchmark: Any) -> None:
    experience = benchmark.train_stream[0]
    n_queries = len(experience.queries_in_this_experience)
    assert f"vilco_{kind}, " in repr(benchmark)
    assert repr(benchmark.train_stream) in repr(benchmark)
    assert "0 experiences, 0 samples" in repr(benchmark.test_stream[:0])
    for each in (experience, experience.train(), experience.eval()):
        assert f"(0 of train_stream: {n_queries} queries" in repr(each)
    assert repr(experience.dataset).startswith("ExperienceDataset(2 samples of ")
    empty = experience.dataset.subset([])
    assert repr(empty) == "ExperienceDataset(0 samples)"
    data = benchmark.datasets["train"]
    assert f"{len(data)} samples of " in repr(data)
    assert "(0 samples of 0 clips)" in repr(data.subset([]))
    inputs, targets, _ = experience.dataset[0]
    for part in (inputs, targets):
        assert repr(part).startswith(f"sample of {part.kind.__name__}(")
        assert "valid=(" in repr(part) and "device=cpu" in repr(part)
    for each in (benchmark, experience, data.samples[0], benchmark.queries[0]):
        assert "array" not in repr(each) and "tensor(" not in repr(each)
