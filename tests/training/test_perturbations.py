"""What training and predictions may depend on, and what changes neither.

Test annotations, the features of other test clips, later experiences and evaluations
are changed; weights, and what is predicted for other clips, stay bit for bit.
"""

import json
import random
import shutil
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from avalanche.core import SupervisedPlugin
from avalanche.training import supervised as stock
from avalanche.training.determinism.rng_manager import RNGManager
from avalanche.training.plugins import EvaluationPlugin
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from avalanche_vilco.core.random import generators_kept
from avalanche_vilco.evaluation import recall_metrics, task_matrix_metrics
from avalanche_vilco.experiments.chance import chance_level
from avalanche_vilco.experiments.config import resolve
from avalanche_vilco.experiments.run import build_model, build_strategy
from avalanche_vilco.reports.results import weights_hash
from avalanche_vilco.training.passes import batches_of, evaluating
from avalanche_vilco.training.strategies import STRATEGIES
from avalanche_vilco.training.templates import localization_evaluator, track_evaluator

Parts = Callable[..., dict[str, Any]]
METHODS = ("naive", "replay", "vilco")
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "replay": {"mem_size": 5},
    "vilco": {"mem_size": 5, "ssl_weight": 0.0},
    "bic": {"mem_size": 6, "val_share": 0.5},
    "icarl": {"mem_size": 5},
}
TASKS: Mapping[str, Mapping[str, Any]] = {
    "mq": {},
    "nlq": {"per_exp_classes": (3, 3, 3, 2, 2)},
    "vq": {"sources": {"image_size": 32, "n_frames": 4}},
}
LATER: Mapping[str, tuple[int, ...]] = {
    "mq": (0, 1, 2, 3, 8, 9, 4, 5, 6, 7),
    "nlq": (0, 1, 2, 3, 4, 5, 8, 6, 7, 12, 11, 10, 9),
    "vq": (0, 1, 4, 2, 3),
}
"""Orders that begin with the first two experiences of the usual one."""


# --- Annotations that only test reads -------------------------------------------------


def edit_val(task: str, root: Path, change: Callable[[list[Any]], None]) -> None:
    """Change the annotations of val: a list of clips, in each a list of windows,
    questions or query sets under ``annotations``."""
    if task == "mq":
        path = root / "ego4d_clip_annotations_v2.json"
        content = json.loads(path.read_text())
        clips = [clip for clip in content.values() if clip["subset"] == "val"]
        change(clips)
        train = {k: v for k, v in content.items() if v["subset"] != "val"}
        content = {**{clip["clip_id"]: clip for clip in clips}, **train}
    else:
        path = root / f"{task}_val.json"
        content, name = json.loads(path.read_text()), "language_queries"
        groups = []
        for clip in [c for video in content["videos"] for c in video["clips"]]:
            for group in clip["annotations"]:
                listed = group.get(name) or list(group.get("query_sets", {}).values())
                groups.append({"annotations": listed, "place": group})
        change(groups)
        for group in groups:
            place, listed = group["place"], group["annotations"]
            if task == "vq":
                name = "query_sets"
                listed = {str(i + 1): one for i, one in enumerate(listed)}
            place[name] = listed
        random.Random(0).shuffle(content["videos"])
    path.unlink()
    path.write_text(json.dumps(content))


def permuted(task: str, seed: int, clips: list[Any]) -> None:
    """Exchange labels, templates and titles, spoil windows, add a new label or title,
    drop and shuffle."""
    draw = random.Random(seed)
    names = {"mq": ("label", "label_id"), "nlq": ("template",), "vq": ("object_title",)}
    every = [one for clip in clips for one in clip["annotations"]]
    values = [[one[name] for name in names[task]] for one in every]
    draw.shuffle(values)
    for one, new in zip(every, values, strict=True):
        one.update(zip(names[task], new, strict=True))
        if draw.random() < 0.2:
            if task == "mq":
                one.update(label="a new one", label_id=77)
            elif task == "vq":
                one.update(object_title=f"a new one {draw.randrange(3)}")
        if task == "mq":
            one["segment"] = [t * 0.9 for t in one["segment"]]
        elif task == "vq":
            one["response_track"] = one["response_track"][:2]
    for clip in clips:
        draw.shuffle(clip["annotations"])
        if task != "vq" and len(clip["annotations"]) > 1:
            del clip["annotations"][0]
    draw.shuffle(clips)


@pytest.fixture
def changed(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Callable[[str, int], Path]:
    """A root of a task whose val annotations are permuted, beside the same data."""

    def make(task: str, seed: int) -> Path:
        root, folder = request.getfixturevalue(f"{task}_root"), tmp_path / "changed"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for path in root.iterdir():
            if path.suffix == ".json":
                shutil.copy(path, folder)
            else:
                (folder / path.name).symlink_to(path)
        edit_val(task, folder, partial(permuted, task, seed))
        return folder

    return make


def training_side(scenario: Any) -> Any:
    """All that training reads of its experiences, without pixels and features."""
    found = []
    for name in ("train", "valid"):
        samples = scenario.datasets[name].samples
        for experience in scenario.streams[name]:
            data = experience.dataset
            found.append(
                [
                    [name_of(samples[i]) for i in data.positions],
                    [list(map(list, data.class_indices)), list(data.targets)],
                    [
                        (q.class_index, q.label_id, q.name)
                        for q in experience.queries_in_this_experience
                    ],
                    sorted(experience.classes_seen_so_far),
                    sorted(experience.future_classes),
                ]
            )
    return found


def name_of(sample: Any) -> tuple[str, str, Any]:
    """Clip, question and first frame, where there are such."""
    query = getattr(sample, "query", None)
    start = getattr(sample, "start", None)
    return sample.clip.clip_id, getattr(query, "query_id", ""), start


@pytest.mark.parametrize("task", TASKS)
@settings(max_examples=6)
@given(seed=st.integers(0, 1000), data=st.data())
def test_streams_of_training_follow_from_training_annotations_alone(
    task: str, seed: int, data: st.DataObject, request: Any, changed: Any
) -> None:
    options = dict(TASKS[task])
    if task == "vq":
        options["grouping"] = data.draw(st.sampled_from(["together", "shuffled"]))
    if task != "nlq":
        protocols = st.sampled_from(["exclusive", "shared_clips"])
        options["protocol"] = data.draw(protocols)
    build = partial(resolve_benchmark(task).build, **options)
    usual = build(request.getfixturevalue(f"{task}_root"))
    assert training_side(build(changed(task, seed))) == training_side(usual)


def resolve_benchmark(task: str) -> Any:
    return plan_of(task, "naive").benchmark


def plan_of(task: str, method: str) -> Any:
    return resolve(
        f"vilco_{task}",
        method,
        0,
        benchmark_options={},
        strategy_options=OPTIONS.get(method, {}),
        model_options={},
        deviations=[],
        settings={"epochs": 1, "device": "cpu", "batch_size": 3},
    )


# --- Training and predictions ---------------------------------------------------------


class Noise:
    """Features or pictures of some clips turned and shifted."""

    def __init__(self, data: Any, clips: set[str]) -> None:
        self.data, self.clips = data, clips
        self.collate_fn = data.collate_fn

    def eval(self) -> Any:
        return self

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        inputs, targets = self.data[index]
        if self.data.samples[index].clip.clip_id in self.clips:
            inputs = {
                name: value if value.dtype == torch.bool else value.flip(0).roll(1, -1)
                for name, value in inputs.items()
            }
        return inputs, targets


def predicted(strategy: Any, data: Any, noisy: set[str]) -> list[dict[str, Tensor]]:
    """Outputs of samples, read in batches of four."""
    runner = SimpleNamespace(eval_mb_size=4, device="cpu")
    rows: list[Any] = []
    with evaluating(strategy.model):
        for inputs, _ in batches_of(Noise(data, noisy), runner):
            rows += list(strategy.model(inputs))
    return rows


def trained(
    task: str, method: str, root: Path, *, order: Any = None, evaluates: bool = False
) -> tuple[list[str], Any, Any]:
    """Hashes of the weights after each of two experiences, strategy and scenario."""
    plan = plan_of(task, method)
    chosen = dict(TASKS[task])
    if order is not None:
        chosen["fixed_class_order"] = order
    scenario = plan.benchmark.build(root, **chosen)
    RNGManager.set_random_seeds(0)
    model = build_model(plan, scenario)
    evaluator = track_evaluator if task == "vq" else localization_evaluator
    strategy = build_strategy(plan, model, evaluator())
    hashes = []
    for experience in scenario.train_stream[:2]:
        data = experience.dataset
        experience.dataset = data.subset(range(min(4, len(data))))
        strategy.train(experience, eval_streams=[])
        if evaluates:
            strategy.eval(scenario.test_stream[:3])
        hashes.append(weights_hash(model))
    return hashes, strategy, scenario


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("task", TASKS)
def test_what_is_learnt_and_predicted_does_not_depend_on_anything_else(
    task: str, method: str, request: Any, changed: Any
) -> None:
    root = request.getfixturevalue(f"{task}_root")
    usual, strategy, scenario = trained(task, method, root)
    other, again, moved = trained(
        task, method, changed(task, 3), order=LATER[task], evaluates=True
    )
    assert usual == other and usual[0] != usual[1]
    data, theirs = (one.datasets["test"] for one in (scenario, moved))
    places = [{name_of(s): i for i, s in enumerate(d.samples)} for d in (data, theirs)]
    common = sorted(places[0].keys() & places[1].keys(), key=str)
    data, theirs = (
        one.subset([place[name] for name in common])
        for one, place in zip((data, theirs), places, strict=True)
    )
    noisy = {name[0] for name in common[1::2]} - {common[0][0]}
    found = [predicted(strategy, data, set()), predicted(again, theirs, noisy)]
    equal = [torch.equal(*pair) for pair in zip(*found, strict=True)]
    assert equal == [name[0] not in noisy for name in common]


# --- Evaluation in between ------------------------------------------------------------


class Evaluating(SupervisedPlugin):
    """Evaluates within training, now and then, and stops some evaluations half-way."""

    def __init__(self, streams: Iterable[Any], rate: float, seed: int) -> None:
        super().__init__()
        self.streams, self.rate = list(streams), rate
        self.draw = random.Random(seed)
        self.stops = False

    def now(self, strategy: Any) -> None:
        while self.draw.random() < self.rate:
            stream = self.draw.choice(self.streams)
            part = stream[: self.draw.randrange(1, len(stream) + 1)]
            self.stops = self.draw.random() < 0.3
            try:
                strategy.eval(part)
            except KeyError:
                assert strategy.model.training is strategy.is_training
            self.stops = False

    def after_eval_forward(self, strategy: Any, **kwargs: Any) -> None:
        for draw in (random.random, np.random.rand, partial(torch.rand, 1)):
            draw()
        if self.stops:
            raise KeyError

    def before_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        self.now(strategy)

    def before_backward(self, strategy: Any, **kwargs: Any) -> None:
        self.now(strategy)

    def after_training_epoch(self, strategy: Any, **kwargs: Any) -> None:
        self.now(strategy)


def weights_with(
    method: str, parts: Parts, benchmark: Any, *, rate: float, seed: int = 0
) -> str:
    streams = [benchmark.streams[name] for name in ("train", "valid", "test")]
    plugin = Evaluating(streams, rate, seed)
    strategy = STRATEGIES[method].build(
        **parts(plugins=[plugin]), **OPTIONS.get(method, {})
    )
    for experience in benchmark.train_stream[:2]:
        strategy.train(experience, eval_streams=[])
        plugin.now(strategy)
    return weights_hash(strategy.model)


@pytest.mark.parametrize("method", [*METHODS, "bic", "icarl"])
@settings(max_examples=3)
@given(seed=st.integers(0, 1000))
def test_evaluations_at_any_place_change_no_weight(
    method: str, seed: int, parts: Parts, benchmark: Any
) -> None:
    usual = weights_with(method, parts, benchmark, rate=0.0)
    assert weights_with(method, parts, benchmark, rate=0.4, seed=seed) == usual


@pytest.mark.parametrize("build", [stock.Naive, partial(stock.Replay, mem_size=5)])
def test_our_evaluator_keeps_generators_under_stock_strategies_too(
    build: Any, parts: Parts, benchmark: Any
) -> None:
    found = []
    for evaluates in (False, True):
        strategy = build(**parts())
        for experience in benchmark.train_stream[:2]:
            strategy.train(experience, eval_streams=[])
            for _ in range(evaluates + evaluates):
                strategy.eval(benchmark.test_stream)
        found.append(weights_hash(strategy.model))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "metrics", [task_matrix_metrics, partial(recall_metrics, stream=False)]
)
def test_each_metric_alone_keeps_generators_under_stock_strategies(
    metrics: Any, parts: Parts, benchmark: Any
) -> None:
    evaluator = EvaluationPlugin(metrics(), loggers=[])
    strategy = stock.Naive(**parts(evaluator=evaluator))
    before = torch.get_rng_state()
    strategy.eval(benchmark.test_stream)
    assert torch.equal(torch.get_rng_state(), before)


def test_chance_level_and_what_raises_leave_generators_and_modes(
    parts: Parts, benchmark: Any
) -> None:
    model = parts()["model"].train()
    model.learn_queries(benchmark.queries)
    model.heads.eval()
    draws = [random.random, np.random.rand, partial(torch.rand, 1)]
    states = [
        random.getstate(),
        np.random.get_state()[1].tolist(),
        torch.get_rng_state(),
    ]
    metrics = resolve_benchmark("mq").metrics()
    chance_level(model, benchmark, metrics, weights=[1.0] * 3, seed=0)
    with pytest.raises(KeyError), generators_kept():
        for draw in draws:
            draw()
        raise KeyError
    assert model.training and not model.heads.training
    assert states[:2] == [random.getstate(), np.random.get_state()[1].tolist()]
    assert torch.equal(states[2], torch.get_rng_state())
