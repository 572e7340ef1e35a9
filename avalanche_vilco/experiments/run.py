"""Run one strategy on one benchmark and write its results."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from avalanche.evaluation.metrics import loss_metrics
from avalanche.logging import TensorboardLogger, TextLogger
from avalanche.training.determinism.rng_manager import RNGManager
from avalanche.training.plugins import EvaluationPlugin
from torch import nn

from avalanche_vilco.core.errors import SettingError
from avalanche_vilco.core.registry import look_up
from avalanche_vilco.evaluation.matrix import TaskMatrix, number_or_none
from avalanche_vilco.evaluation.metrics.continual import TaskMatrixMetric
from avalanche_vilco.evaluation.metrics.emission import ExperienceValues, StreamValues
from avalanche_vilco.experiments.chance import chance_level
from avalanche_vilco.experiments.config import Plan, RunSettings, resolve
from avalanche_vilco.experiments.resume import BOARD_FOLDER, LOG_FILE, RunFolder
from avalanche_vilco.models.localizer import GrowingHead, Localizer
from avalanche_vilco.reports.memory import memory_figures
from avalanche_vilco.reports.results import (
    RESULTS_VERSION,
    summary,
    versions,
    weights_hash,
    write_results,
)
from avalanche_vilco.training.plugins.best_checkpoint import BestCheckpointPlugin
from avalanche_vilco.training.plugins.progress import ProgressPlugin
from avalanche_vilco.training.table import check_classes

if TYPE_CHECKING:
    from typing_extensions import Unpack


def run(
    benchmark: str,
    strategy: str = "naive",
    seed: int = 0,
    *,
    benchmark_options: Mapping[str, Any] | None = None,
    strategy_options: Mapping[str, Any] | None = None,
    model_options: Mapping[str, Any] | None = None,
    deviations: str | Sequence[str] | None = None,
    output: Path | str | None = None,
    fresh: bool = False,
    echo: Callable[[str], None] = print,
    **settings: Unpack[RunSettings],
) -> dict[str, Any]:
    """Train on each experience in turn, evaluate after each, and write results.

    After each experience the whole test stream is evaluated. What is None or left out
    is the benchmark's, see its ``recipe.yaml``: it suits the embedded default data.

    :param benchmark: name, see ``benchmarks.spec.benchmark_names``.
    :param strategy: name; the lower bound takes the ``_lower`` variant of the model,
        and the bounds make a multiple of the epochs over all experiences.
    :param seed: of weights, order of samples and dropout; the data stays as it is.
    :param benchmark_options: arguments of the benchmark.
    :param strategy_options: the method's own options, over the benchmark's and the
        strategy's; None is one of these.
    :param model_options: further arguments of the builder, such as the ``weights`` of
        a backbone, or a decoder's thresholds.
    :param deviations: parts of the public recipe, by name, with the reference protocol
        only; ``"all"`` stands for all that concern the strategy.
    :param output: folder of the run; default
        ``outputs/<benchmark>/<strategy>/seed<seed>``.
        An interrupted run of the same settings and data found there goes on after its
        last experience; a finished one is left as it is and its results are returned.
    :param fresh: begin anew whatever ``output`` holds. Checkpoint and results of the
        earlier run stay until those of this one take their places.
    :param echo: prints a line.
    :param settings: ``model``, ``epochs`` and others of
        :class:`~avalanche_vilco.experiments.config.RunSettings`.
    :return: the content of ``results.json``.
    :raises SettingError: a name or value is not one that is expected, a deviation does
        not go with the protocol or the strategy, the strategy has nothing to act on,
        or the folder holds another run.
    :raises DataError: a file is damaged.
    """
    plan = resolve(
        benchmark,
        strategy,
        seed,
        benchmark_options=benchmark_options,
        strategy_options=strategy_options,
        model_options=model_options,
        deviations=deviations,
        settings={**settings, "output": output, "fresh": fresh},
    )
    place = Path(output or Path("outputs", benchmark, strategy, f"seed{seed}"))
    place = place.expanduser()
    folder = RunFolder(place, is_free=fresh)
    # Told before the data are read; whether embeddings are kept depends on them.
    folder.claim({"config": plan.config.to_dict()}, open_settings=["backbone_cache"])
    plan, scenario = prepare(plan)
    folder.claim(
        {
            "config": plan.config.to_dict(),
            "files": scenario.report.files,
            "benchmark": scenario.info,
        }
    )
    if (results := folder.finished(echo)) is not None:
        return results
    echo(str(scenario.report))
    work = _Run(plan, scenario, folder)
    try:
        if plan.config.backbone_cache:
            is_seen = sys.stderr.isatty()
            fill_backbone_cache(plan, scenario, work.model, echo, progress=is_seen)
        work.train(echo)
        return work.finish(echo)
    finally:
        work.close_logs()


def prepare(plan: Plan) -> tuple[Plan, Any]:
    """Read the data of a run.

    :raises SettingError: the plan does not go with the data.
    """
    benchmark, config = plan.benchmark, plan.config
    scenario = benchmark.build(**plan.benchmark_options)
    plan.deviations.validate(scenario.info["protocol"])
    n_classes, options = sum(new_classes(scenario)), config.strategy_options
    if options.get("unit") == "class_slots" and options["mem_size"] < n_classes:
        raise SettingError(
            "expected strategy.mem_size of at least one slot for each of "
            f"{n_classes} queries but got {options['mem_size']}"
        )
    if benchmark.has_class_outputs:
        check_classes(config.strategy, plan.strategy, n_classes)
    _check_lists(plan, scenario)
    cache, wanted = benchmark.backbone_cache, plan.backbone_cache
    if cache is not None and wanted is None:
        wanted = cache.is_default(scenario)
    return replace(plan, config=replace(config, backbone_cache=bool(wanted))), scenario


def _check_lists(plan: Plan, scenario: Any) -> None:
    """Refuse what has not one value for each experience, and selection by nothing.

    :raises SettingError: names the option.
    """
    n_experiences = len(scenario.train_stream)
    for name, value in plan.config.strategy_options.items():
        is_list = isinstance(value, Sequence) and not isinstance(value, str)
        if is_list and len(value) != n_experiences:
            raise SettingError(
                f"expected strategy.{name} as one number, or one for each of "
                f"{n_experiences} experiences, but got {len(value)}"
            )
    if plan.config.selection == "best_on_valid" and not any(
        len(experience.dataset) for experience in scenario.streams.get("valid", ())
    ):
        raise SettingError(
            "expected a valid stream with samples for selection=best_on_valid but got "
            "none: set benchmark.valid_share"
        )


def new_classes(scenario: Any) -> list[int]:
    """Number of classes, or queries, that each experience brings."""
    return [len(e.classes_in_this_experience) for e in scenario.train_stream]


def fill_backbone_cache(
    plan: Plan,
    scenario: Any,
    model: Any,
    echo: Callable[[str], None],
    *,
    progress: bool = True,
) -> None:
    """Compute the embeddings of the backbone for the streams that a run reads.

    :param model: with the ``backbone``.
    """
    assert plan.benchmark.backbone_cache is not None
    is_selecting = plan.config.selection == "best_on_valid"
    streams = ("train", "valid", "test") if is_selecting else ("train", "test")
    # The draws of a run are the same whether the embeddings are there already or not.
    with torch.random.fork_rng(devices=[]):
        plan.benchmark.backbone_cache.fill(
            scenario,
            model.backbone,
            device=plan.config.device,
            streams=streams,
            progress=progress,
            echo=echo,
        )


def build_model(plan: Plan, scenario: Any) -> nn.Module:
    """The model of a run, with random weights."""
    builder, config = plan.benchmark.models[plan.config.model], plan.config
    arguments = plan.benchmark.model_arguments(scenario)
    for name in arguments.keys() & config.model_options.keys():
        if arguments[name] != config.model_options[name]:
            raise SettingError(
                f"expected model_options.{name} {arguments[name]}, which these data "
                f"have, but got {config.model_options[name]}: leave it out"
            )
    model = builder(**{**arguments, **config.model_options})
    if config.precision != "float32":
        if not isinstance(model, Localizer):
            raise SettingError(
                f"expected precision 'float32' but got {config.precision!r}: model "
                f"{config.model!r} is no Localizer, which chooses it"
            )
        model.precision = config.precision
    return model


def build_strategy(plan: Plan, model: nn.Module, evaluator: EvaluationPlugin) -> Any:
    """The strategy of a run, untrained."""
    config, method, benchmark = plan.config, plan.strategy, plan.benchmark
    options = dict(config.strategy_options)
    if method.seed_argument:
        options[method.seed_argument] = config.seed
    if method.regression_argument:
        options[method.regression_argument] = benchmark.n_regression
    if (layer := options.get("cwr_layer_name")) is not None:
        # A head that grows has no row before it has learnt.
        look_up("strategy.cwr_layer_name", layer, _layers_of_queries(model))
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=config.learning_rate,
        weight_decay=config.weight_decay,
        fused=True,
    )
    return method.build(
        model=model,
        optimizer=optimizer,
        criterion=benchmark.criterion(**plan.deviations.settings("criterion", {})),
        train_mb_size=config.batch_size,
        train_epochs=config.epochs * method.epochs_factor,
        eval_mb_size=config.eval_batch_size,
        device=torch.device(config.device),
        plugins=plan.deviations.selection_plugins(benchmark),
        evaluator=evaluator,
        **options,
    )


def _layers_of_queries(model: nn.Module) -> dict[str, nn.Module]:
    """Layers with a row of weights for each query, by name.

    In a model with other heads than ours any layer with weights may be.
    """
    weighted = {name: m for name, m in model.named_modules() if hasattr(m, "weight")}
    growing = [n for n, part in weighted.items() if isinstance(part, GrowingHead)]
    return {name: weighted[name] for name in growing or weighted}


class _Run:
    """The parts of one run."""

    def __init__(self, plan: Plan, scenario: Any, folder: RunFolder) -> None:
        RNGManager.set_random_seeds(plan.config.seed)
        self.plan = plan
        self.scenario = scenario
        self.weights = plan.deviations.weights(new_classes(scenario))
        self.folder = folder
        self.model = build_model(plan, scenario)
        self.initial_weights = weights_hash(self.model)
        self.strategy = build_strategy(plan, self.model, self._evaluator())
        self.strategy.plugins.append(ProgressPlugin(self.n_steps))
        self.seconds: list[dict[str, float]] = []

    def _evaluator(self) -> EvaluationPlugin:
        benchmark, metrics = self.plan.benchmark, list[Any]()
        title, make = benchmark.name, benchmark.metrics
        # A state for each plugin: they empty it at different times.
        kinds = zip(make(), make(), make(), strict=True)
        for by_experience, of_stream, of_matrix in kinds:
            metrics += [
                ExperienceValues(by_experience, title),
                StreamValues(of_stream, title),
                TaskMatrixMetric(
                    of_matrix, weights=self.weights, future=benchmark.future
                ),
            ]
        with warnings.catch_warnings():
            # They write into the folder, which is made when the training begins.
            warnings.filterwarnings("ignore", message="No loggers specified")
            return EvaluationPlugin(
                *metrics,
                loss_metrics(epoch=True, experience=True, stream=True),
                loggers=[],
            )

    @property
    def n_steps(self) -> int:
        """How often the strategy trains."""
        return 1 if self.plan.strategy.is_joint else self.scenario.n_experiences

    def close_logs(self) -> None:
        """Close the files that the evaluator's loggers write."""
        for logger in self.strategy.evaluator.loggers:
            if isinstance(logger, TextLogger):
                logger.file.close()

    def train(self, echo: Callable[[str], None]) -> None:
        """Train and evaluate, experience by experience."""
        steps: list[Any] = list(self.scenario.train_stream)
        if self.plan.strategy.is_joint:
            steps = [steps]
        self.strategy, self.seconds = self.folder.load(self.strategy, echo)
        self.folder.begin()
        folder = self.folder.folder
        log = (folder / LOG_FILE).open("a", encoding="utf-8", buffering=1)
        board = TensorboardLogger(folder / BOARD_FOLDER)
        self.strategy.evaluator.loggers = [board, TextLogger(log)]
        for number, step in enumerate(steps[len(self.seconds) :], len(self.seconds)):
            self._learn(step)
            self.folder.save(self.strategy, self.seconds)
            echo(self._progress(number))

    def _learn(self, step: Any) -> None:
        workers = self.plan.config.num_workers
        begun = time.perf_counter()
        self.strategy.train(step, eval_streams=[], num_workers=workers)
        trained = time.perf_counter()
        self.strategy.eval(self.scenario.test_stream[:], num_workers=workers)
        self.seconds.append(
            {"train": trained - begun, "eval": time.perf_counter() - trained}
        )

    def _progress(self, number: int) -> str:
        seconds, name = self.seconds[-1], self.plan.benchmark.main_metric
        average = self.matrices()[name].average(weights=self.weights)
        # Other names, such as stAP25, stay as they are.
        label = name.replace("Recall", "R").replace("_tIoU", " at tIoU ")
        everything = " (all experiences)" if self.plan.strategy.is_joint else ""
        return (
            f"experience {number + 1}/{self.n_steps}{everything}: trained in "
            f"{seconds['train']:.1f} s, evaluated in {seconds['eval']:.1f} s, "
            f"average {label} {100 * average:.1f} %"
        )

    def matrices(self) -> dict[str, TaskMatrix]:
        """Task matrix by metric name."""
        found: dict[str, TaskMatrix] = {}
        for metric in self.strategy.evaluator.metrics:
            if isinstance(metric, TaskMatrixMetric):
                found.update(metric.matrices)
        return found

    def finish(self, echo: Callable[[str], None]) -> dict[str, Any]:
        """Chance level, memory, results file and the summary."""
        matrices, deviations = self.matrices(), self.plan.deviations
        plugins = self.strategy.plugins
        choosers = [p for p in plugins if isinstance(p, BestCheckpointPlugin)]
        results = {
            "results_version": RESULTS_VERSION,
            "config": self.plan.config.to_dict(),
            "benchmark": self.scenario.info,
            "versions": versions(),
            "data": self.scenario.report.to_dict(),
            "initial_weights_sha256": self.initial_weights,
            "final_weights_sha256": weights_hash(self.strategy.model),
            "main_metric": self.plan.benchmark.main_metric,
            "scores": self._scores(matrices),
            "deviations": deviations.effects,
            "averages": deviations.averages,
            "selection": {
                "by": deviations.selection,
                # The epoch kept of each experience.
                "epochs": list(choosers[0].chosen) if choosers else [],
            },
            "matrices": {name: m.to_dict() for name, m in matrices.items()},
            "memory": memory_figures(self.strategy, self.scenario).to_dict(),
            "train_epochs": self.strategy.train_epochs,
            "seconds": self.seconds,
        }
        folder = self.folder.folder
        write_results(folder, results, matrices)
        self.folder.write_progress(self.seconds, finished=True)
        echo(summary(results, matrices))
        echo(f"results: {folder / 'results.json'}")
        return results

    def _scores(self, matrices: Mapping[str, TaskMatrix]) -> dict[str, Any]:
        chance = chance_level(
            self.strategy.model,
            self.scenario,
            self.plan.benchmark.metrics(),
            weights=self.weights,
            seed=self.plan.config.seed,
            device=self.plan.config.device,
            batch_size=self.plan.config.eval_batch_size,
        )
        return {
            name: {
                "average": number_or_none(matrix.average(weights=self.weights)),
                "bwf": number_or_none(matrix.backward_forgetting(weights=self.weights)),
                "chance": number_or_none(chance[name]),
            }
            for name, matrix in matrices.items()
        }
