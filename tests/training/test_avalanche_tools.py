"""Avalanche's tools, and what a newcomer leaves in, on all three benchmarks."""

import math
import operator
import re
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from avalanche import benchmarks, checkpointing, logging, models
from avalanche.evaluation import metrics as stock_metrics
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.supervised import Naive, Replay
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, default_collate

import avalanche_vilco as ours
from avalanche_vilco.evaluation import logger as our_loggers
from avalanche_vilco.evaluation import recall_metrics, response_track_metrics
from avalanche_vilco.training import strategies
from avalanche_vilco.training.experiences import stream_dataset
from avalanche_vilco.training.templates import localization_evaluator, track_evaluator

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "strategies.md").read_text()
TABLE = PAGE.split("| tool | verdict |")[1].split("\n\n")[0].splitlines()[2:]
ROWS = [[cell.strip() for cell in row.strip("|").split("|")] for row in TABLE]
STOCK = (benchmarks, checkpointing, logging, models, stock_metrics, our_loggers)


@pytest.fixture(scope="module", params=["mq", "nlq", "vq"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def benchmark(kind: str, request: pytest.FixtureRequest) -> Any:
    """Two samples an experience."""
    options = {"n_experiences": 2, "sources": {"image_size": 64, "n_frames": 6}}
    root = request.getfixturevalue(f"{kind}_root")
    build = getattr(ours, f"vilco_{kind}")
    benchmark = build(root, **(options if kind == "vq" else {}))
    for experience in (*benchmark.train_stream, *benchmark.test_stream):
        experience.dataset = experience.dataset.subset(range(2))
    return benchmark


@pytest.fixture
def base(kind: str, benchmark: Any) -> dict[str, Any]:
    """Arguments of a strategy, as the page has them."""
    sizes = {"image_size": 64}
    if kind != "vq":
        widths = benchmark.info["feature_dim"], benchmark.text_dim
        sizes = dict(zip(("feature_dim", "text_dim"), widths, strict=True))
    model = getattr(ours, f"vilco_{kind}_tiny")(**sizes)
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=1e-3),
        "criterion": ours.VisualQueryLoss() if kind == "vq" else ours.MomentLoss(),
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


def test_streams_made_anew_draw_as_those_of_the_benchmark(benchmark: Any) -> None:
    split = benchmarks.benchmark_with_validation_stream(benchmark, 0.5)
    for anew in (split, benchmarks.with_task_labels(benchmark)):
        assert anew.train_stream[0].origin_stream.benchmark is None
        data = stream_dataset(anew.train_stream[0])
        assert data is benchmark.datasets["train"]


def test_what_is_left_in_is_told_what_to_pass(
    kind: str, benchmark: Any, base: dict[str, Any]
) -> None:
    model = f"model=vilco_{kind}_tiny()"
    criterion = f"criterion={type(base['criterion']).__name__}()"
    evaluator = "evaluator=" + ("track" if kind == "vq" else "localization")
    for changes, error, tried, advice in (
        ({"evaluator": EvaluationPlugin(stock_metrics.accuracy_metrics(epoch=True))},
         TypeError, "conversion", criterion),
        ({"criterion": nn.CrossEntropyLoss()}, TypeError, "cross_entropy", criterion),
        ({"model": models.SimpleMLP()}, AttributeError, "'contiguous'", model),
    ):  # fmt: skip
        with pytest.raises(error, match=tried) as caught:
            Naive(**{**base, **changes}).train(benchmark.train_stream[0])
        assert all(part in str(caught.value) for part in (advice, evaluator))
    data = benchmark.train_stream[0].dataset
    with pytest.raises(TypeError, match=r"pass collate_fn=dataset\.collate_fn"):
        next(iter(DataLoader(data, batch_size=2)))
    with pytest.raises(TypeError, match="TensorSample"):
        default_collate([benchmark.datasets["train"][0]])
    batch = next(iter(DataLoader(data, 2, collate_fn=data.collate_fn)))
    uses = (
        *(torch.as_tensor, torch.unique, F.relu, operator.neg, nn.Linear(2, 2)),
        lambda part: part / 255,
        lambda part: torch.zeros(2) == part,
    )
    for part, advice in zip(batch, (model, criterion), strict=False):
        assert len(part) == 2 and part == part
        assert not hasattr(part, "view") and not hasattr(part, "__nothing__")
        for use in uses:
            with pytest.raises(TypeError) as caught:
                use(part)
            assert advice in str(caught.value)


def test_everything_says_what_it_is(kind: str, benchmark: Any) -> None:
    experience = benchmark.train_stream[0]
    queries = f"{len(experience.queries_in_this_experience)} queries"
    assert f"vilco_{kind}, {len(benchmark.queries)} queries, " in repr(benchmark)
    assert repr(benchmark.train_stream) in repr(benchmark)
    assert "0 experiences, 0 samples" in repr(benchmark.test_stream[:0])
    for each in (experience, experience.train(), experience.eval()):
        assert f"(0 of train_stream: {queries}" in repr(each)
    assert repr(experience.dataset).startswith("ExperienceDataset(2 samples of ")
    assert repr(experience.dataset.subset([])) == "ExperienceDataset(0 samples)"
    data = benchmark.datasets["train"]
    assert f"({len(data)} samples of " in repr(data)
    assert "(0 samples of 0 clips)" in repr(data.subset([]))
    for part in experience.dataset[0][:2]:
        assert re.match(r"TensorSample\(.*valid=\(\d+,\).*device=cpu\)", repr(part))
    for each in (benchmark, experience, data.samples[0], benchmark.queries[0]):
        assert "array" not in repr(each) and "tensor(" not in repr(each)


@pytest.mark.parametrize("name", ["Replay", "LocalizationReplay", "ViLCo"])
@pytest.mark.parametrize("has_boundaries", [False, True])
def test_an_online_stream_is_learnt_experience_by_experience(
    name: str, has_boundaries: bool, kind: str, benchmark: Any, base: dict[str, Any]
) -> None:
    options = {"prompt_mode": "prepend", "ssl_weight": 0} if name == "ViLCo" else {}
    strategy = {**vars(strategies), "Replay": Replay}[name](
        **base, mem_size=2, **options
    )
    first_two, clocks = benchmark.train_stream[:2], list[Any]()
    for part in benchmarks.split_online_stream(
        first_two, 1, access_task_boundaries=has_boundaries
    ):
        strategy.train(part)
        whole = part.origin_experience
        seen = len(whole.classes_seen_so_far)
        assert strategy.model.n_queries == (seen if kind == "mq" else 1)
        clock = getattr(benchmark.datasets["train"], "clock", None)
        clocks.append(clock and clock.now[0] == whole.current_experience)
    assert clocks == [None if kind != "vq" else True] * 4 or name == "Replay"
    strategy.eval(benchmark.test_stream[:1])
    for matrix in strategy.evaluator.metrics[-1].matrices.values():
        assert matrix.taught == ({0}, {1}) and 0 <= matrix[1, 0] <= 1
    assert all(weight.isfinite().all() for weight in strategy.model.parameters())


def test_parts_of_other_benchmarks_are_left_as_avalanche_makes_them() -> None:
    part = benchmarks.OnlineCLExperience(dataset=[], origin_experience=None)
    assert not hasattr(part, "task_labels")
    part.task_labels = [3]
    assert part.task_labels == [3]
