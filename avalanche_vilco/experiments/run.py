"""Run one strategy on one benchmark and write its results."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from avalanche.evaluation.metrics import loss_metrics
from avalanche.logging import TensorboardLogger, TextLogger
from avalanche.training.determinism.rng_manager import RNGManager
from avalanche.training.plugins import EvaluationPlugin
from torch import nn

from avalanche_vilco.benchmarks.scenario import QueryIncrementalScenario
from avalanche_vilco.benchmarks.vilco_mq.deviations import (
    DATA_DEVIATIONS,
    ReferenceDeviations,
)
from avalanche_vilco.core.files import write_atomically
from avalanche_vilco.core.registry import look_up
from avalanche_vilco.evaluation.matrix import TaskMatrix
from avalanche_vilco.evaluation.metrics.continual import TaskMatrixMetric
from avalanche_vilco.evaluation.metrics.detection import MomentDetectionMAP
from avalanche_vilco.evaluation.metrics.emission import ExperienceValues, StreamValues
from avalanche_vilco.experiments.chance import chance_level
from avalanche_vilco.experiments.settings import BENCHMARKS, MODELS, BenchmarkSettings
from avalanche_vilco.reports.memory import memory_figures
from avalanche_vilco.reports.results import (
    RESULTS_VERSION,
    summary,
    versions,
    weights_hash,
    write_results,
)
from avalanche_vilco.training.checkpointing import load_checkpoint, save_checkpoint
from avalanche_vilco.training.plugins.best_checkpoint import BestCheckpointPlugin
from avalanche_vilco.training.plugins.progress import ProgressPlugin
from avalanche_vilco.training.strategies import (
    Strategy,
    check_classes,
    find_strategy,
)

CHECKPOINT_FILE = "checkpoint.pkl"


@dataclass(frozen=True)
class RunConfig:
    """Everything that a run depends on, besides the data."""

    benchmark: str
    strategy: str
    seed: int
    model: str
    epochs: int
    batch_size: int
    eval_batch_size: int
    learning_rate: float
    weight_decay: float
    device: str
    num_workers: int
    benchmark_options: Mapping[str, Any]
    strategy_options: Mapping[str, Any]
    deviations: Sequence[str]
    selection: str
    backbone_cache: bool
    model_options: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {
            name: dict(value) if isinstance(value, Mapping) else value
            for name, value in vars(self).items()
        }


def run(
    benchmark: str = "vilco_mq",
    strategy: str = "naive",
    seed: int = 0,
    *,
    model: str | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    eval_batch_size: int | None = None,
    learning_rate: float | None = None,
    weight_decay: float | None = None,
    device: str = "auto",
    num_workers: int = 0,
    benchmark_options: Mapping[str, Any] | None = None,
    strategy_options: Mapping[str, Any] | None = None,
    deviations: Sequence[str] | None = None,
    selection: str = "last",
    backbone_cache: bool | None = None,
    model_options: Mapping[str, Any] | None = None,
    output: Path | str | None = None,
    resume: bool = False,
    echo: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Train on each experience in turn, evaluate the whole test stream after each,
    and write results.

    What is None is the benchmark's, see ``cli.settings.BENCHMARKS``: it suits the
    embedded default data.

    :param benchmark: name in :data:`BENCHMARKS`.
    :param strategy: name in ``training.strategies.STRATEGIES``.
    :param seed: of weights, order of samples and dropout; the data stays as it is.
    :param model: name in :data:`MODELS`; the lower bound takes its ``_lower`` variant.
    :param epochs: passes over each experience; the bounds make ``epochs_factor`` times
        as many over all experiences.
    :param batch_size: samples of a training batch (replay adds as many from memory).
    :param eval_batch_size: samples of an evaluation batch.
    :param learning_rate: of AdamW, constant.
    :param weight_decay: of AdamW.
    :param device: ``"auto"`` is the GPU if there is one.
    :param num_workers: loader processes; do not change results.
    :param benchmark_options: arguments of the benchmark.
    :param strategy_options: the method's own options, over the benchmark's and the
        registry's; None is one of these.
    :param deviations: parts of the public recipe, by name, with the reference protocol
        only: see ``benchmarks.deviations.DEVIATIONS``; ``"all"`` stands for all that concern
        the strategy.
    :param selection: weights kept of each experience: the ``"last"``, or
        ``"best_on_valid"``: of the epoch that scores best on the valid stream;
        ``"best_on_test"`` is a deviation.
    :param backbone_cache: compute what the model's frozen backbone makes of the videos
        once, before training; it goes to the user's cache folder, and its size is said
        beforehand. None is the benchmark's: True for visual queries on the embedded
        default without augmentation.
    :param model_options: further arguments of the builder, such as the ``weights`` of
        a backbone, or a decoder's thresholds.
    :param output: folder of the run; default
        ``outputs/<benchmark>/<strategy>/seed<seed>``.
    :param resume: go on after the last finished experience found in ``output``.
    :param echo: prints a line.
    :return: the content of ``results.json``.
    :raises ValueError: a name is unknown, a deviation does not go with the protocol or
        the strategy, the strategy has nothing to act on, or the folder holds another
        run.
    """
    recipe = find_strategy(strategy)
    home: BenchmarkSettings = look_up("benchmark", benchmark, BENCHMARKS)
    wished = {
        "model": model,
        "epochs": epochs,
        "batch_size": batch_size,
        "eval_batch_size": eval_batch_size,
        "learning_rate": learning_rate,
        "weight_decay": weight_decay,
    }
    size = replace(home.defaults, **_known(wished))
    model = _variant(size.model, strategy, recipe)
    options = _options(strategy, recipe, home, strategy_options or {})
    data_options = dict(benchmark_options or {})
    names = [deviations] if isinstance(deviations, str) else list(deviations or ())
    named = data_options.pop("deviations", ())
    names += [named] if isinstance(named, str) else named
    chosen = _chosen_deviations(names, selection, strategy, options)
    if chosen.memory_unit != "samples":
        options["unit"] = chosen.memory_unit
    if own := [name for name in chosen.names if name in DATA_DEVIATIONS]:
        data_options["deviations"] = own
    if recipe.is_narrated and options["ssl_weight"]:
        data_options.setdefault("narrations", True)
    config = RunConfig(
        benchmark,
        strategy,
        seed,
        model,
        size.epochs,
        size.batch_size,
        size.eval_batch_size,
        size.learning_rate,
        size.weight_decay,
        usable_device(device),
        num_workers,
        {key: _plain(value) for key, value in data_options.items()},
        options,
        list(chosen.names),
        chosen.selection,
        backbone_cache=False,
        model_options={k: _plain(v) for k, v in _known(model_options or {}).items()},
    )
    make_model = look_up("model", model, MODELS)
    folder = Path(output or Path("outputs", benchmark, strategy, f"seed{seed}"))
    _check_benchmark_deviations(benchmark, home, chosen)
    stream = home.build(**data_options)
    _check_deviations(chosen, options, stream)
    check_classes(strategy, recipe, stream.datasets["train"].n_queries)
    caching = _caches_backbone(backbone_cache, benchmark, home, stream)
    config = replace(config, backbone_cache=caching)
    echo(str(stream.report))
    work = _Run(config, recipe, stream, make_model, folder, chosen)
    try:
        if caching:
            work.cache_backbone(echo)
        return work.finish(work.train(resume, echo), echo)
    finally:
        work.close_logs()


def _variant(model: str, strategy: str, recipe: Strategy) -> str:
    """The builder that a strategy takes."""
    own = model.removesuffix(recipe.model_variant) + recipe.model_variant
    if own not in MODELS and model in MODELS:
        raise ValueError(
            f"strategy {strategy!r} takes {own!r}, but {model!r} has no such variant"
        )
    return own


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _options(
    name: str, recipe: Strategy, home: BenchmarkSettings, given: Mapping[str, Any]
) -> dict[str, Any]:
    unknown = sorted(set(given) - set(recipe.options))
    if unknown:
        raise ValueError(
            f"strategy {name!r} has no option {unknown}; it takes "
            f"{sorted(recipe.options) or 'none'}"
        )
    return {
        **recipe.options,
        **home.strategy_options.get(name, {}),
        **_known(given),
    }


def _chosen_deviations(
    names: Sequence[str], selection: str, strategy: str, options: Mapping[str, Any]
) -> ReferenceDeviations:
    """All departures asked for, whether by name or by an option."""
    if options.get("unit") == "class_slots":
        names = [*names, "class_slot_memory"]
    chosen = ReferenceDeviations.from_names(names, selection=selection)
    if chosen.memory_unit == "samples" or "unit" in options:
        return chosen
    if "class_slot_memory" not in names:
        return replace(chosen, memory_unit="samples")
    raise ValueError(
        f"the deviation 'class_slot_memory' does not go with strategy {strategy!r}, whose "
        "memory has no units: use strategy 'replay'"
    )


def _caches_backbone(
    wanted: bool | None,
    name: str,
    home: BenchmarkSettings,
    benchmark: QueryIncrementalScenario,
) -> bool:
    if home.caches_backbone is None:
        if wanted:
            raise ValueError(
                f"expected backbone_cache to be left out but got {wanted}: models of "
                f"benchmark {name!r} have no backbone, their features are in files"
            )
        return False
    return home.caches_backbone(benchmark) if wanted is None else wanted


def _check_benchmark_deviations(
    name: str, home: BenchmarkSettings, deviations: ReferenceDeviations
) -> None:
    if deviations.names and not home.has_deviations:
        raise ValueError(
            f"the deviations {list(deviations.names)} are of the public code of moment "
            f"queries: benchmark {name!r} has none"
        )


def _check_deviations(
    deviations: ReferenceDeviations,
    options: Mapping[str, Any],
    benchmark: QueryIncrementalScenario,
) -> None:
    deviations.validate(benchmark.info["protocol"])
    n_queries = benchmark.n_classes
    if deviations.memory_unit == "class_slots" and options["mem_size"] < n_queries:
        raise ValueError(
            f"expected mem_size of at least one slot for each of {n_queries} queries "
            f"but got {options['mem_size']}"
        )


def usable_device(wanted: str) -> str:
    """Name of a device; ``"auto"`` is the GPU if there is one."""
    if wanted != "auto":
        return wanted
    return "cuda" if torch.cuda.is_available() else "cpu"


def _plain(value: Any) -> Any:
    """JSON form of an argument; objects by their class."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (str, int, float)):
        return value
    return str(value) if isinstance(value, Path) else type(value).__name__


class _Run:
    """The parts of one run."""

    def __init__(
        self,
        config: RunConfig,
        recipe: Strategy,
        benchmark: QueryIncrementalScenario,
        make_model: Callable[..., nn.Module],
        folder: Path,
        deviations: ReferenceDeviations,
    ) -> None:
        RNGManager.set_random_seeds(config.seed)
        self.config = config
        self.home: BenchmarkSettings = BENCHMARKS[config.benchmark]
        self.recipe = recipe
        self.benchmark = benchmark
        self.folder = folder
        self.deviations = deviations
        self.weights = deviations.weights(benchmark.info["queries_per_experience"])
        self.checkpoint = folder / CHECKPOINT_FILE
        folder.mkdir(parents=True, exist_ok=True)
        self.model = _built(make_model, config, self.home.model_arguments(benchmark))
        self.initial_weights = weights_hash(self.model)
        self.strategy = build_strategy(
            config, recipe, self.model, deviations, self._evaluator()
        )
        self.strategy.plugins.append(ProgressPlugin(self.n_steps))
        self.seconds: list[dict[str, float]] = []

    def _evaluator(self) -> EvaluationPlugin:
        home, metrics = self.home, list[Any]()
        # A state for each plugin: they empty it at different times.
        kinds = zip(home.states(), home.states(), home.states(), strict=True)
        for by_experience, of_stream, of_matrix in kinds:
            metrics += [
                ExperienceValues(by_experience, home.states_title),
                StreamValues(of_stream, home.states_title),
                TaskMatrixMetric(of_matrix, weights=self.weights, future=home.future),
            ]
        log = (self.folder / "log.txt").open("a", encoding="utf-8", buffering=1)
        return EvaluationPlugin(
            *metrics,
            loss_metrics(epoch=True, experience=True, stream=True),
            loggers=[TensorboardLogger(self.folder / "tensorboard"), TextLogger(log)],
        )

    @property
    def n_steps(self) -> int:
        """How often the strategy trains."""
        return 1 if self.recipe.is_joint else self.benchmark.n_experiences

    def close_logs(self) -> None:
        """Close the files that the evaluator's loggers write."""
        for logger in self.strategy.evaluator.loggers:
            if isinstance(logger, TextLogger):
                logger.file.close()

    def cache_backbone(self, echo: Callable[[str], None]) -> None:
        """Compute the embeddings of the backbone for the streams that a run reads."""
        from avalanche_vilco.benchmarks.vilco_vq.backbone_cache import cache_backbone

        backbone: Any = self.model.backbone
        is_selecting = self.deviations.selection == "best_on_valid"
        streams = ("train", "valid", "test") if is_selecting else ("train", "test")
        # The draws of a run are the same whether the embeddings are there or not.
        with torch.random.fork_rng(devices=[]):
            cache_backbone(
                self.benchmark,
                backbone,
                device=self.config.device,
                streams=streams,
                progress=sys.stderr.isatty(),
                echo=echo,
            )

    def train(self, resume: bool, echo: Callable[[str], None]) -> Any:
        """Train and evaluate, experience by experience."""
        self._claim_folder()
        steps: list[Any] = list(self.benchmark.train_stream)
        if self.recipe.is_joint:
            steps = [steps]
        done = self._resume(echo) if resume else self._start_anew()
        self._write_progress()
        for number, step in enumerate(steps[done:], start=done):
            self._learn(step)
            self._save()
            echo(self._progress(number))
        return self.strategy

    def _learn(self, step: Any) -> None:
        workers = self.config.num_workers
        begun = time.perf_counter()
        self.strategy.train(step, eval_streams=[], num_workers=workers)
        trained = time.perf_counter()
        self.strategy.eval(self.benchmark.test_stream[:], num_workers=workers)
        self.seconds.append(
            {"train": trained - begun, "eval": time.perf_counter() - trained}
        )

    def _save(self) -> None:
        # Written first: the checkpoint says how many experiences were learnt, and a
        # stop in between leaves a progress file that is ahead, never behind.
        self._write_progress()
        with self._without_loggers():
            save_checkpoint(self.strategy, self.checkpoint)

    @contextmanager
    def _without_loggers(self) -> Iterator[None]:
        """Loggers are of a process: loaded from a checkpoint they would write where
        the run once lay.
        """
        loggers = self.strategy.evaluator.loggers
        self.strategy.evaluator.loggers = []
        try:
            yield
        finally:
            self.strategy.evaluator.loggers = loggers

    def _write_progress(self) -> None:
        state = {**self._identity(), "seconds": self.seconds}
        write_atomically(self._progress_file, json.dumps(state))

    def _identity(self) -> dict[str, Any]:
        """What a run that goes on must share with the one that stopped."""
        identity = {
            "config": self.config.to_dict(),
            "files": self.benchmark.report.files,
            "benchmark": self.benchmark.info,
        }
        return json.loads(json.dumps(identity))

    def _resume(self, echo: Callable[[str], None]) -> int:
        if not (self._progress_file.is_file() and self.checkpoint.is_file()):
            echo(f"nothing to resume in {self.folder}: starting anew")
            return 0
        with self._without_loggers():
            self.strategy, done = load_checkpoint(self.strategy, self.checkpoint)
        self.model = self.strategy.model
        self.seconds = self._stored_progress()["seconds"][:done]
        echo(f"resumed after {done} experiences")
        return done

    @property
    def _progress_file(self) -> Path:
        return self.folder / "progress.json"

    def _stored_progress(self) -> dict[str, Any]:
        try:
            state = json.loads(self._progress_file.read_text(encoding="utf-8"))
            return {**state, "seconds": list(state["seconds"])}
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{self._progress_file} is damaged ({error}): delete the folder"
            ) from None

    def _start_anew(self) -> int:
        # A later resume must not find the weights of an earlier try.
        self.checkpoint.unlink(missing_ok=True)
        return 0

    def _claim_folder(self) -> None:
        """Refuse a folder of another run; results of an earlier try go."""
        if self._progress_file.is_file():
            state, own = self._stored_progress(), self._identity()
            differing = sorted(key for key in own if own[key] != state.get(key))
            if differing:
                raise ValueError(
                    f"{self.folder} holds a run with another configuration: it differs "
                    f"in {differing}; pass another output, or delete the folder"
                )
        (self.folder / "results.json").unlink(missing_ok=True)

    def _progress(self, number: int) -> str:
        took = self.seconds[-1]
        name = self.home.main_metric
        average = self.matrices()[name].average(weights=self.weights)
        # Other names, such as stAP25, stay as they are.
        words = name.replace("Recall", "R").replace("_tIoU", " at tIoU ")
        everything = " (all experiences)" if self.recipe.is_joint else ""
        return (
            f"experience {number + 1}/{self.n_steps}{everything}: "
            f"trained in {took['train']:.1f} s, evaluated in {took['eval']:.1f} s, "
            f"average {words} {100 * average:.1f} %"
        )

    def matrices(self) -> dict[str, TaskMatrix]:
        """Task matrix by metric name."""
        found: dict[str, TaskMatrix] = {}
        for metric in self.strategy.evaluator.metrics:
            if isinstance(metric, TaskMatrixMetric):
                found.update(metric.matrices)
        return found

    def finish(self, strategy: Any, echo: Callable[[str], None]) -> dict[str, Any]:
        """Chance level, memory, results file and the summary."""
        matrices = self.matrices()
        results = {
            "results_version": RESULTS_VERSION,
            "config": self.config.to_dict(),
            "benchmark": self.benchmark.info,
            "versions": versions(),
            "data": self.benchmark.report.to_dict(),
            "initial_weights_sha256": self.initial_weights,
            "final_weights_sha256": weights_hash(strategy.model),
            "main_metric": self.home.main_metric,
            "scores": self._scores(matrices),
            "deviations": self.deviations.effects,
            "averages": self.deviations.averages,
            "selection": self._selection(strategy),
            "matrices": {name: m.to_dict() for name, m in matrices.items()},
            "memory": memory_figures(strategy, self.benchmark).to_dict(),
            "train_epochs": self.strategy.train_epochs,
            "seconds": self.seconds,
        }
        write_results(self.folder, results, matrices)
        echo(summary(results, matrices))
        echo(f"results: {self.folder / 'results.json'}")
        return results

    def _selection(self, strategy: Any) -> dict[str, Any]:
        """How weights were selected, and the epoch kept of each experience."""
        plugins = [p for p in strategy.plugins if isinstance(p, BestCheckpointPlugin)]
        chosen = plugins[0].chosen if plugins else []
        return {"by": self.deviations.selection, "epochs": list(chosen)}

    def _scores(self, matrices: Mapping[str, TaskMatrix]) -> dict[str, Any]:
        chance = chance_level(
            self.strategy.model,
            self.benchmark,
            self.home.states(),
            seed=self.config.seed,
            averages=self.deviations.averages,
            device=self.config.device,
            batch_size=self.config.eval_batch_size,
        )
        return {
            name: {
                "average": _defined(matrix.average(weights=self.weights)),
                "bwf": _defined(matrix.backward_forgetting(weights=self.weights)),
                "chance": _defined(chance[name]),
            }
            for name, matrix in matrices.items()
        }


def _built(
    make_model: Callable[..., nn.Module],
    config: RunConfig,
    arguments: Mapping[str, Any],
) -> nn.Module:
    """The model of a run, with random weights."""
    try:
        return make_model(**arguments, **config.model_options)
    except TypeError as error:
        if not config.model_options:
            raise
        raise ValueError(
            f"model {config.model!r} does not take model_options "
            f"{dict(config.model_options)}: {error}"
        ) from error


def build_strategy(
    config: RunConfig,
    recipe: Strategy,
    model: nn.Module,
    deviations: ReferenceDeviations,
    evaluator: EvaluationPlugin,
) -> Any:
    """The strategy of a run, untrained.

    :param config: of the run.
    :param recipe: of its strategy.
    :param model: to train.
    :param deviations: of the run.
    :param evaluator: metrics and loggers.
    """
    home: BenchmarkSettings = BENCHMARKS[config.benchmark]
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=config.learning_rate,
        weight_decay=config.weight_decay,
        foreach=True,
    )
    return recipe.build(
        model=model,
        optimizer=optimizer,
        criterion=home.loss(deviations),
        train_mb_size=config.batch_size,
        train_epochs=config.epochs * recipe.epochs_factor,
        eval_mb_size=config.eval_batch_size,
        device=torch.device(config.device),
        plugins=_selection_plugins(deviations.selection, home),
        evaluator=evaluator,
        **config.strategy_options,
        **_own_seed(config, recipe),
        **_own_output(home, recipe),
    )


def _own_seed(config: RunConfig, recipe: Strategy) -> dict[str, int]:
    """The run's seed, for methods that draw by themselves."""
    return {recipe.seed_argument: config.seed} if recipe.seed_argument else {}


def _own_output(home: BenchmarkSettings, recipe: Strategy) -> dict[str, int]:
    """What the model's output holds, for methods that take it apart."""
    name = recipe.regression_argument
    return {name: home.n_regression} if name else {}


def _defined(value: float) -> float | None:
    return None if math.isnan(value) else value


def _selection_plugins(
    selection: str, home: BenchmarkSettings
) -> list[BestCheckpointPlugin]:
    if selection == "best_on_test":
        # The public code selects by mAP.
        return [BestCheckpointPlugin("test", metric=MomentDetectionMAP())]
    return [home.selection("valid")] if selection == "best_on_valid" else []


__all__: Sequence[str] = [
    "BENCHMARKS",
    "CHECKPOINT_FILE",
    "MODELS",
    "RunConfig",
    "build_strategy",
    "run",
    "usable_device",
]
