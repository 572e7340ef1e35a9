"""Our named strategies, and what their memories hold."""

import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any, get_args

import avalanche.training.supervised as stock
import pytest
import torch
from avalanche.benchmarks.utils.transform_groups import TransformGroups
from avalanche.logging import TextLogger
from avalanche.training.plugins import EWCPlugin, ReplayPlugin, SupervisedPlugin
from avalanche.training.plugins.evaluation import EvaluationPlugin
from avalanche.training.storage_policy import ExperienceBalancedBuffer
from avalanche.training.templates.problem_type.supervised_problem import (
    SupervisedProblem,
)
from msgspec import Meta
from torch import Tensor

from avalanche_vilco.core.batch import ClipBatch
from avalanche_vilco.core.errors import SettingError
from avalanche_vilco.core.settings import check_options
from avalanche_vilco.evaluation.metrics.emission import ExperienceValues
from avalanche_vilco.training import strategies
from avalanche_vilco.training.kept import kept_by
from avalanche_vilco.training.templates import (
    BatchObjectMixin,
    localization_evaluator,
    track_evaluator,
)

OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "ViLCo": {"mem_size": 6, "ssl_weight": 0.0},
    "LocalizationNaive": {},
    "LocalizationCumulative": {},
    "LocalizationJoint": {},
    "LocalizationReplay": {"mem_size": 6},
    "LocalizationEWC": {"ewc_lambda": 1.0, "mode": "online", "decay_factor": 0.5},
    "LocalizationMAS": {"lambda_reg": 1.0, "alpha": 0.5, "verbose": False},
    "LocalizationSynapticIntelligence": {"si_lambda": [1.0, 2.0], "eps": 1e-7},
    "LocalizationLwF": {"alpha": [1, 1, 1], "temperature": 2},
    "LocalizationICaRL": {
        "mem_size": 6,
        "distillation_weight": 2.0,
        "nearest_mean": True,
    },
    "LocalizationBiC": {"mem_size": 10, "val_share": 0.4, "distillation_weight": 2.0},
    "LocalizationDenseDistillation": {"weight": 2.0, "regression_weight": 3.0},
    "LocalizationGEM": {"patterns_per_exp": 2, "memory_strength": 0.5},
    "LocalizationAGEM": {"patterns_per_exp": 2, "sample_size": 4},
    "LocalizationCWRStar": {"cwr_layer_name": "heads.cls"},
    "LocalizationGDumb": {"mem_size": 6},
    "LocalizationFromScratch": {"reset_optimizer": True},
}
STOCK = {
    "LocalizationJoint": "JointTraining",
    "LocalizationFromScratch": "FromScratchTraining",
}
Parts = Callable[..., dict[str, Any]]


OURS = {
    "ViLCo",
    "LocalizationICaRL",
    "LocalizationBiC",
    "LocalizationDenseDistillation",
}
"""Strategies that Avalanche has none of, or none of the same arguments."""


def and_stock(name: str) -> list[Any]:
    """Our class, and the stock one that takes the same arguments."""
    ours = getattr(strategies, name)
    if name in OURS:
        return [ours]
    return [ours, getattr(stock, STOCK.get(name, name.removeprefix("Localization")))]


def every_strategy() -> Any:
    return pytest.mark.parametrize("name", sorted(OPTIONS))


def train(strategy: Any, benchmark: Any, **options: Any) -> None:
    if isinstance(strategy, stock.JointTraining):
        strategy.train(benchmark.train_stream, **options)
        return
    for experience in benchmark.train_stream:
        strategy.train(experience, **options)


def unpack_as_the_development_head_does(self: Any) -> None:
    """avalanche, commit eb075be, ``supervised_problem.py``, lines 63 to 75."""
    for i, part in enumerate(self.mbatch):
        if isinstance(part, dict):
            self.mbatch[i] = {k: v.to(self.device) for k, v in part.items()}
        elif isinstance(part, Tensor):
            self.mbatch[i] = part.to(self.device)
        else:
            raise TypeError("Unsupported type in batch")


def test_options_above_cover_every_strategy() -> None:
    own = {
        name
        for name, value in vars(strategies).items()
        if inspect.isclass(value) and issubclass(value, BatchObjectMixin)
    }
    assert set(OPTIONS) == own - {"BatchObjectMixin"}


@every_strategy()
def test_runs_on_the_development_head_of_avalanche(
    name: str, parts: Parts, benchmark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        SupervisedProblem, "_unpack_minibatch", unpack_as_the_development_head_does
    )
    strategy = getattr(strategies, name)(**parts(), **OPTIONS[name])
    train(strategy, benchmark)
    values = strategy.eval(benchmark.test_stream)
    assert 0 <= values["Recall@1x_tIoU0.5_Stream/eval_phase/test_stream"] <= 1
    assert all(torch.isfinite(p).all() for p in strategy.model.parameters())


def test_stock_strategies_do_not_run_there(
    parts: Parts, benchmark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        SupervisedProblem, "_unpack_minibatch", unpack_as_the_development_head_does
    )
    with pytest.raises(TypeError, match="Unsupported type in batch"):
        stock.Naive(**parts()).train(benchmark.train_stream[0])


@every_strategy()
def test_takes_the_arguments_of_stock_without_a_warning(
    name: str, parts: Parts
) -> None:
    common = {
        "train_mb_size": 3,
        "train_epochs": 2,
        "eval_mb_size": 5,
        "device": "cpu",
        "plugins": [SupervisedPlugin()],
        "eval_every": 1,
    }
    accepted = inspect.signature(and_stock(name)[-1].__init__).parameters
    options = {**parts(), **common, **OPTIONS[name]}
    if name in OURS:
        accepted = {**accepted, **inspect.signature(stock.Naive.__init__).parameters}
    for option in set(OPTIONS[name]) | set(common):
        assert option in accepted
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        strategy = getattr(strategies, name)(**options)
    assert (strategy.train_mb_size, strategy.train_epochs) == (3, 2)
    assert strategy.eval_mb_size == 5
    assert type(strategy.plugins[0]) is SupervisedPlugin


@every_strategy()
def test_default_evaluator_reads_windows(name: str, parts: Parts) -> None:
    options = parts()
    del options["evaluator"]
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        strategy = getattr(strategies, name)(**options, **OPTIONS[name])
    metrics = strategy.evaluator.metrics
    assert any(isinstance(metric, ExperienceValues) for metric in metrics)
    assert not any("Acc" in str(metric) for metric in metrics)


@every_strategy()
def test_an_evaluator_that_is_passed_is_used(name: str, parts: Parts) -> None:
    mine = localization_evaluator(k=(1,))
    options = {**parts(), **OPTIONS[name], "evaluator": mine}
    assert getattr(strategies, name)(**options).evaluator is mine


def test_our_evaluators_take_loggers_and_name_what_they_do_not_take() -> None:
    with pytest.raises(SettingError, match=r"no option 'tious'\. Did you mean tiou"):
        localization_evaluator(tious=(0.5,))
    with pytest.raises(SettingError, match=r"expected tiou of type Sequence"):
        localization_evaluator(tiou=0.5)
    with pytest.raises(SettingError, match="expected rule of type PeakRule"):
        track_evaluator(rule="zz")
    loggers: list[Any] = [TextLogger()]
    assert localization_evaluator(loggers=loggers[0]).loggers == loggers
    assert localization_evaluator(loggers=loggers).loggers == loggers
    assert track_evaluator(loggers=loggers).loggers == loggers


def test_no_evaluator_means_none(parts: Parts) -> None:
    options = {**parts(), "evaluator": None}
    with pytest.warns(UserWarning, match="No loggers"):
        assert strategies.LocalizationNaive(**options).evaluator.metrics == []


@every_strategy()
def test_unknown_argument_is_refused_by_name(name: str, parts: Parts) -> None:
    for cls in and_stock(name):
        options = {**OPTIONS[name], "batchsize": 3}
        with pytest.raises(TypeError, match="unexpected keyword argument: batchsize"):
            cls(**parts(), **options)


@every_strategy()
def test_positional_arguments_are_taken_with_the_warning_of_stock(
    name: str, parts: Parts
) -> None:
    options = parts()
    first = [options.pop(key) for key in ("model", "optimizer", "criterion")]
    for cls in and_stock(name):
        with pytest.warns(Warning, match="accept named") as caught:
            strategy = cls(*first, **options, **OPTIONS[name])
        assert strategy.model is first[0]
        assert strategy.optimizer is first[1]
        assert sum("accept named" in str(w.message) for w in caught) == 1


@every_strategy()
def test_signature_shows_the_arguments_of_the_method(name: str) -> None:
    shown = inspect.signature(getattr(strategies, name).__init__).parameters
    assert {"model", "optimizer", "criterion"} <= set(shown)
    if "evaluator" in shown:
        assert shown["evaluator"].default is localization_evaluator


def test_evaluator_default_of_a_users_own_subclass_stays() -> None:
    def my_evaluator() -> EvaluationPlugin:
        return EvaluationPlugin()

    class Mine(BatchObjectMixin, stock.Naive):
        def __init__(self, *, evaluator: Any = my_evaluator, **kwargs: Any) -> None:
            super().__init__(evaluator=evaluator, **kwargs)

    default = inspect.signature(Mine.__init__).parameters["evaluator"].default
    assert default is my_evaluator


def test_plugins_list_of_the_user_stays_as_it_is(parts: Parts) -> None:
    for name in ("LocalizationAGEM", "LocalizationSynapticIntelligence"):
        mine: list[Any] = []
        getattr(strategies, name)(**parts(plugins=mine), **OPTIONS[name])
        assert mine == []


def clips_of(experience: Any) -> set[str]:
    return set(experience.dataset.clip_ids)


@pytest.mark.parametrize(
    "name",
    ["LocalizationReplay", "LocalizationGDumb", "LocalizationAGEM", "LocalizationGEM"],
)
def test_memory_holds_training_clips_only(
    name: str, parts: Parts, benchmark: Any
) -> None:
    strategy = getattr(strategies, name)(**parts(), **OPTIONS[name])
    for experience in benchmark.train_stream:
        strategy.train(experience)
        strategy.eval(benchmark.valid_stream)
        strategy.eval(benchmark.test_stream)
    train = benchmark.datasets["train"].samples
    stored = {train[i].clip.clip_id for i in kept_by(strategy).samples}
    taught = set().union(*map(clips_of, benchmark.train_stream))
    other = [*benchmark.valid_stream, *benchmark.test_stream]
    assert stored
    assert stored <= taught
    assert not any(stored & clips_of(experience) for experience in other)


def test_stock_memory_leaves_the_unused_share_of_a_small_experience_empty(
    parts: Parts, benchmark: Any
) -> None:
    policy = ExperienceBalancedBuffer(6)
    benchmark.train_stream[1].dataset = benchmark.train_stream[1].dataset.subset([0])
    strategy = strategies.LocalizationReplay(**parts(), mem_size=6)
    strategy.plugins[0].storage_policy = policy
    train(strategy, benchmark)
    sizes = [len(policy.buffer_groups[e].buffer) for e in range(3)]
    assert sizes == [2, 1, 2]


def test_memory_keeps_references_and_no_features(parts: Parts, benchmark: Any) -> None:
    strategy = strategies.LocalizationReplay(**parts(), mem_size=6)
    train(strategy, benchmark)
    kept = kept_by(strategy).tensors
    width = benchmark.info["feature_dim"]
    assert all(width not in tensor.shape for tensor in kept)
    assert sum(tensor.numel() for tensor in kept) < 1000


def test_rehearsal_reads_as_many_clips_however_many_experiences_are_past(
    parts: Parts, benchmark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = benchmark.datasets["train"].store
    reads: list[str] = []
    read = type(store).read
    monkeypatch.setattr(
        type(store),
        "read",
        lambda self, clip: (reads.append(clip), read(self, clip))[1],
    )
    strategy = strategies.LocalizationReplay(**parts(), mem_size=4)
    per_batch = []
    for experience in benchmark.train_stream:
        reads.clear()
        strategy.train(experience)
        per_batch.append(len(reads) / (len(experience.dataset) / 2))
    assert per_batch == [2, 4, 4]


class Reads(SupervisedPlugin):
    """Keeps what each pass reads, by sample."""

    def __init__(self) -> None:
        super().__init__()
        self.training: dict[int, float] = {}
        self.evaluation: dict[int, float] = {}

    def after_forward(self, strategy: Any, **kwargs: Any) -> None:
        self.training.update(_first_values(strategy))

    def after_eval_forward(self, strategy: Any, **kwargs: Any) -> None:
        self.evaluation.update(_first_values(strategy))


def _first_values(strategy: Any) -> dict[int, float]:
    samples = strategy.mb_y.sample.tolist()
    return dict(zip(samples, strategy.mb_x.features[:, 0, 0].tolist(), strict=True))


def _add_one(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {**inputs, "features": inputs["features"] + 1}


def test_memory_is_read_with_training_transforms_and_evaluation_without(
    parts: Parts, benchmark: Any
) -> None:
    groups = TransformGroups({"train": (_add_one, None), "eval": (None, None)})
    whole = benchmark.datasets["train"]
    for experience in benchmark.train_stream:
        dataset = experience.dataset
        experience.dataset = type(dataset)(
            [dataset], transform_groups=groups, collate_fn=dataset.collate_fn
        )
    reads = Reads()
    strategy = strategies.LocalizationReplay(**parts(plugins=[reads]), mem_size=6)
    train(strategy, benchmark)
    raw = {i: float(whole[i][0]["features"][0, 0]) for i in reads.training}
    rehearsed = [i for i in reads.training if i in _positions(benchmark, 0)]
    assert rehearsed
    for i, value in reads.training.items():
        assert value == pytest.approx(raw[i] + 1, abs=1e-5)
    strategy.eval(benchmark.train_stream)
    assert reads.evaluation.keys() >= reads.training.keys()
    for i, value in reads.training.items():
        assert reads.evaluation[i] == pytest.approx(value - 1, abs=1e-5)
    buffer = strategy.plugins[1].storage_policy.buffer.eval()
    first, second = (float(buffer[0][0]["features"].sum()) for _ in range(2))
    assert first == second


def _positions(benchmark: Any, experience: int) -> set[int]:
    whole = [sample.clip.clip_id for sample in benchmark.datasets["train"].samples]
    own = clips_of(benchmark.train_stream[experience])
    return {i for i, clip in enumerate(whole) if clip in own}


class Batches(SupervisedPlugin):
    """Keeps the losses and the clips of training batches."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []
        self.samples: list[list[int]] = []

    def before_backward(self, strategy: Any, **kwargs: Any) -> None:
        self.losses.append(float(strategy.loss))
        self.samples.append(strategy.mb_y.sample.tolist())


def test_joint_is_one_training_on_the_union(parts: Parts, benchmark: Any) -> None:
    joint = Batches()
    strategy = strategies.LocalizationJoint(**parts(plugins=[joint], train_epochs=2))
    strategy.train(benchmark.train_stream, shuffle=False)
    expected = _losses_by_hand(parts(), benchmark, epochs=2)
    union = sum(len(experience.dataset) for experience in benchmark.train_stream)
    seen = [i for batch in joint.samples for i in batch]
    assert len(seen) == 2 * union
    assert len(set(seen)) == union
    assert strategy.model.n_queries == benchmark.n_classes
    assert joint.losses == pytest.approx(expected, abs=1e-6)
    assert kept_by(strategy).samples == set(seen)


def _losses_by_hand(
    parts: Mapping[str, Any], benchmark: Any, *, epochs: int
) -> list[float]:
    model, criterion = parts["model"], parts["criterion"]
    model.train()
    for experience in benchmark.train_stream:
        model.adaptation(experience)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_rate(parts))
    samples = [s for e in benchmark.train_stream for s in e.dataset]
    collate = benchmark.train_stream[0].dataset.collate_fn
    losses = []
    for start in list(range(0, len(samples), 2)) * epochs:
        inputs, targets, *_ = collate(samples[start : start + 2])
        loss = criterion(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    return losses


def _rate(parts: Mapping[str, Any]) -> float:
    return parts["optimizer"].defaults["lr"]


def test_head_of_stock_from_scratch_keeps_what_it_learnt(
    parts: Parts, benchmark: Any
) -> None:
    rows = {}
    for cls in (stock.FromScratchTraining, strategies.LocalizationFromScratch):
        start = _HeadAtStart()
        train(cls(**parts(plugins=[start])), benchmark)
        rows[cls] = [bool(weight.any()) for weight in start.weights]
    assert rows[stock.FromScratchTraining] == [False, True, True]
    assert rows[strategies.LocalizationFromScratch] == [False, False, False]


class _HeadAtStart(SupervisedPlugin):
    def __init__(self) -> None:
        super().__init__()
        self.weights: list[Tensor] = []

    def before_training_epoch(self, strategy: Any, **kwargs: Any) -> None:
        self.weights.append(strategy.model.heads.cls.weight.detach().clone())


class _MomentAtStart(SupervisedPlugin):
    def __init__(self) -> None:
        super().__init__()
        self.moments: list[Tensor | None] = []

    def before_training_epoch(self, strategy: Any, **kwargs: Any) -> None:
        weight = strategy.model.stem.projection.weight
        moment = strategy.optimizer.state[weight].get("exp_avg")
        self.moments.append(None if moment is None else moment.clone())


def test_optimizer_state_of_old_parameters_survives_growth(
    parts: Parts, benchmark: Any
) -> None:
    start = _MomentAtStart()
    strategy = strategies.LocalizationNaive(**parts(plugins=[start]))
    weight = strategy.model.stem.projection.weight
    strategy.train(benchmark.train_stream[0])
    kept = strategy.optimizer.state[weight]["exp_avg"].clone()
    strategy.train(benchmark.train_stream[1])
    assert start.moments[0] is None
    assert start.moments[1] is not None
    assert torch.equal(start.moments[1], kept)
    assert kept.any()


@pytest.mark.parametrize(
    "name",
    ["LocalizationICaRL", "LocalizationBiC", "LocalizationDenseDistillation", "ViLCo"],
)
def test_ours_go_with_stock_plugins(name: str, parts: Parts, benchmark: Any) -> None:
    mine = [EWCPlugin(ewc_lambda=1.0)]
    strategy = getattr(strategies, name)(**parts(plugins=mine), **OPTIONS[name])
    plain = strategies.LocalizationNaive(**parts())
    for each in (strategy, plain):
        train(each, benchmark)
    assert all(torch.isfinite(p).all() for p in strategy.model.parameters())
    weights = [each.model.stem.projection.weight for each in (strategy, plain)]
    assert not torch.equal(*weights)


def test_rows_of_the_table_name_arguments_of_their_class() -> None:
    for name, row in strategies.STRATEGIES.items():
        known = inspect.signature(row.build.__init__).parameters
        for argument in (row.seed_argument, row.regression_argument):
            assert argument is None or argument in known, name
        assert row.options.keys() <= known.keys(), name
        if "Joint" not in row.class_name:
            assert row.help == (inspect.getdoc(row.build) or "").splitlines()[0]
        check_options(name, row.options, row.option_types)
        for option, kind in row.option_types.items():
            ranges = get_args(known[option].annotation)[1:]
            assert not any(isinstance(r, Meta) for r in ranges) or ranges[0].ge == (
                get_args(kind)[1].ge
            ), option


def test_options_of_the_table_are_checked_with_their_range() -> None:
    row = strategies.find_strategy("vilco")
    with pytest.raises(ValueError, match=r"expected ssl_weight >= 0 but got -1"):
        check_options("vilco", {"ssl_weight": -1}, row.option_types)
    with pytest.raises(ValueError, match="Did you mean replay"):
        strategies.find_strategy("reply")


def test_stacked_plugins_keep_their_order(parts: Parts) -> None:
    mine = [ReplayPlugin(mem_size=6), EWCPlugin(1.0)]
    strategy = strategies.LocalizationAGEM(**parts(plugins=mine), patterns_per_exp=2)
    assert strategy.plugins[:2] == mine


def test_batches_keep_their_kind_when_unpacked(parts: Parts, benchmark: Any) -> None:
    strategy = strategies.LocalizationNaive(**parts())
    dataset = benchmark.train_stream[0].dataset
    strategy.mbatch = dataset.collate_fn([dataset[0], dataset[1]])
    strategy._unpack_minibatch()
    assert isinstance(strategy.mb_x, ClipBatch)
