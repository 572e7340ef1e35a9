"""Write the answers of a finished run in the official submission formats.

The run's folder holds its strategy as ``checkpoint.pkl``, one of Avalanche's dill
files, which can run code when it is loaded: pass folders of your own runs only.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from avalanche.benchmarks import EagerCLStream
from avalanche.core import SupervisedPlugin
from avalanche.training.plugins import EvaluationPlugin

from avalanche_vilco.benchmarks.scenario import QueryExperience, experience_dataset
from avalanche_vilco.benchmarks.spec import Submission
from avalanche_vilco.core.files import write_atomically
from avalanche_vilco.core.random import generators_kept
from avalanche_vilco.evaluation.metrics.strategy import decoded
from avalanche_vilco.experiments.config import (
    Plan,
    RunConfig,
    narration_option,
    plan_of,
    usable_device,
)
from avalanche_vilco.experiments.deviations import merged
from avalanche_vilco.experiments.resume import CHECKPOINT_FILE, read_progress
from avalanche_vilco.experiments.run import (
    build_model,
    build_strategy,
    fill_backbone_cache,
)
from avalanche_vilco.reports.results import weights_hash
from avalanche_vilco.reports.runs import PROGRESS_FILE, RESULTS_FILE
from avalanche_vilco.training.checkpointing import load_checkpoint

SUBSETS = ("val", "test")


@generators_kept()
def predict(
    run: Path | str,
    output: Path | str | None = None,
    *,
    subset: str = "val",
    benchmark_options: Mapping[str, Any] | None = None,
    device: str = "auto",
    echo: Callable[[str], None] = print,
) -> Path:
    """Write the submission file of a run.

    The strategy is the one in the folder's ``checkpoint.pkl``, as the last experience
    left it, and predicts as in the run's own evaluation. It is loaded without
    safeguards: the folder has to be of your own runs. A checkpoint sets the generators
    of random numbers; they are put back.

    :param run: output folder of a run.
    :param output: file to write; default ``predictions_<subset>.json`` in the folder.
    :param subset: ``"val"``, the run's test stream, which ``avalanche-vilco score``
        scores; or ``"test"``, the clips without annotations.
    :param benchmark_options: arguments of the benchmark over the run's, as where the
        data lie now.
    :param device: ``"auto"`` is the GPU if there is one.
    :param echo: prints a line.
    :return: the file written.
    :raises FileNotFoundError: there is no such run, or its data are absent.
    :raises ValueError: the benchmark has no such file, the data are not those of the
        run, the checkpoint is of another one, or the model is handed the answers'
        labels.
    """
    if subset not in SUBSETS:
        raise ValueError(f"expected subset in {list(SUBSETS)} but got {subset!r}")
    folder = Path(run)
    progress = _read_run(folder)
    trained_on = progress["config"]["device"]
    config = RunConfig(**{**progress["config"], "device": usable_device(device)})
    plan = plan_of(config)
    submission = _submission(plan, subset)
    options = merged(config.benchmark_options, benchmark_options or {})
    # Sentences about clips are for training alone.
    options = merged(options, narration_option(plan.benchmark, False))
    scenario = plan.benchmark.build(**options)
    _check_data(folder, progress, scenario)
    moved_to = None if config.device == trained_on else config.device
    strategy = _restored(folder, plan, scenario, moved_to, echo)
    if subset == "val":
        data, stream = scenario.datasets["test"], scenario.test_stream[:]
        if config.backbone_cache:
            # Evaluated as the run did: kept embeddings are rounded.
            fill_backbone_cache(plan, scenario, strategy.model, echo)
    else:
        # From where the run has its own.
        assert plan.benchmark.unlabelled is not None
        shared = {"dataset_root", "sources"} & options.keys()
        data = plan.benchmark.unlabelled(**{name: options[name] for name in shared})
        stream = one_experience(data, scenario)
    answers = answers_of(strategy, stream, submission.collector(len(data)))
    document = submission.document(data, answers, scenario, options, subset)
    path = Path(output or folder / f"predictions_{subset}.json")
    write_atomically(path, json.dumps(document, allow_nan=False) + "\n")
    echo(f"{len(data)} samples of subset {subset}: {path}")
    return path


def _read_run(folder: Path) -> dict[str, Any]:
    """What a run's folder says of it, as this version writes it."""
    path = folder / PROGRESS_FILE
    if not (path.is_file() and (folder / CHECKPOINT_FILE).is_file()):
        raise FileNotFoundError(
            f"no {PROGRESS_FILE} and {CHECKPOINT_FILE} in {folder}: expected the "
            "output folder of a run"
        )
    progress = read_progress(folder, "run it again")
    if set(progress.get("config", ())) != RunConfig.__dataclass_fields__.keys():
        raise ValueError(f"{path} is of another version: run it again")
    return progress


def _submission(plan: Plan, subset: str) -> Submission:
    submission, name = plan.benchmark.submission, plan.benchmark.name
    if submission is None:
        raise ValueError(
            f"benchmark {name!r} has no official file of answers: there is nothing to "
            "write; its results.json has the scores"
        )
    if subset == "test" and plan.benchmark.unlabelled is None:
        raise ValueError(f"benchmark {name!r} has no samples without annotations")
    return submission


def _check_data(folder: Path, progress: Mapping[str, Any], scenario: Any) -> None:
    """Refuse data that the run was not evaluated on, and answers that are given away.

    A model that is handed the labels of each clip's answers has none of its own.
    """
    info = json.loads(json.dumps(scenario.info))
    then = progress["benchmark"]
    differing = sorted(k for k in {*info, *then} if info.get(k) != then.get(k))
    files = scenario.report.files
    differing += [name for name in files if files[name] != progress["files"].get(name)]
    if differing:
        raise ValueError(
            f"the data are not those that {folder} was run on: they differ in "
            f"{differing}; pass the benchmark_options of the run"
        )
    if info["uses_ground_truth_at_test"]:
        raise ValueError(
            f"{folder} hands its model the labels of each clip's answers: there is "
            "nothing to submit"
        )


def _restored(
    folder: Path,
    plan: Plan,
    scenario: Any,
    moved_to: str | None,
    echo: Callable[[str], None],
) -> Any:
    """The run's strategy after its last experience, without its metrics and logs."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="No loggers specified")
        silent = EvaluationPlugin(loggers=[])
    strategy = build_strategy(plan, build_model(plan, scenario), silent)
    strategy, done = load_checkpoint(
        strategy, folder / CHECKPOINT_FILE, device=moved_to
    )
    n_steps = 1 if plan.strategy.is_joint else scenario.n_experiences
    if done < n_steps:
        echo(f"{folder} has learnt {done} of {n_steps} experiences")
    results = folder / RESULTS_FILE
    if results.is_file():
        stored = json.loads(results.read_text(encoding="utf-8"))
        if stored["final_weights_sha256"] != weights_hash(strategy.model):
            raise ValueError(
                f"{folder / CHECKPOINT_FILE} does not hold the weights that {results} "
                "tells of: run it again"
            )
    strategy.plugins = [
        silent if plugin is strategy.evaluator else plugin
        for plugin in strategy.plugins
    ]
    strategy.evaluator = silent
    return strategy


def one_experience(data: Any, scenario: Any) -> list[QueryExperience]:
    """Samples as a stream of their own."""
    dataset = experience_dataset(
        data, range(len(data)), class_indices=[[0]] * len(data), task_label=0
    )
    experience = QueryExperience(
        dataset=dataset,
        current_experience=0,
        groups=[getattr(scenario, "queries", ())],
        task_label=0,
    )
    return list(EagerCLStream("unannotated", [experience]))


class _Collecting(SupervisedPlugin):
    """Hands what is decoded in evaluation to a collector."""

    def __init__(self, collector: Any) -> None:
        super().__init__()
        self._collector = collector

    def after_eval_iteration(self, strategy: Any, **kwargs: Any) -> None:
        self._collector.add(*decoded(strategy))


def answers_of(strategy: Any, stream: Sequence[Any], collector: Any) -> Any:
    """What a strategy answers on a stream."""
    plugin = _Collecting(collector)
    strategy.plugins.append(plugin)
    try:
        strategy.eval(stream)
    finally:
        strategy.plugins.remove(plugin)
    return collector.answers()
