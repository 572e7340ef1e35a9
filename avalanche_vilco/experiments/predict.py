"""Write the answers of a finished run in the official submission formats.

The run's folder holds its strategy as ``checkpoint.pkl``, one of Avalanche's dill
files, which can run code when it is loaded: pass folders of your own runs only.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from avalanche.benchmarks import EagerCLStream
from avalanche.core import SupervisedPlugin
from avalanche.training.plugins import EvaluationPlugin

from avalanche_vilco.benchmarks.scenario import (
    QueryExperience,
    QueryIncrementalScenario,
    experience_dataset,
)
from avalanche_vilco.benchmarks.submissions import track_document
from avalanche_vilco.benchmarks.vilco_mq.deviations import ReferenceDeviations
from avalanche_vilco.benchmarks.vilco_mq.generator import (
    DATA_ROOT_VARIABLE,
    unlabelled_mq,
)
from avalanche_vilco.benchmarks.vilco_nlq.generator import unlabelled_nlq
from avalanche_vilco.benchmarks.vilco_vq.annotations import (
    OFFICIAL_VQ_FILES,
    find_vq_files,
)
from avalanche_vilco.benchmarks.vilco_vq.dataset import VisualDataset
from avalanche_vilco.benchmarks.vilco_vq.embedded import mini_vq_root
from avalanche_vilco.benchmarks.vilco_vq.generator import unlabelled_vq
from avalanche_vilco.core.files import write_atomically
from avalanche_vilco.core.terminal import one_line
from avalanche_vilco.data.moments import MomentDataset
from avalanche_vilco.evaluation.functional.response_track import (
    FrameRows,
    QueryAnswers,
    frame_rows,
    query_answers,
)
from avalanche_vilco.evaluation.metrics.strategy import decoded
from avalanche_vilco.experiments.run import (
    BENCHMARKS,
    CHECKPOINT_FILE,
    MODELS,
    RunConfig,
    build_strategy,
    usable_device,
)
from avalanche_vilco.reports.results import weights_hash
from avalanche_vilco.reports.runs import PROGRESS_FILE, RESULTS_FILE
from avalanche_vilco.training.checkpointing import load_checkpoint
from avalanche_vilco.training.strategies import find_strategy

SUBSETS = ("val", "test")
Window = tuple[float, float, float, int]
"""Start and end in clip seconds, score, channel."""


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
    safeguards: the folder has to be of your own runs.

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
    :raises ValueError: the data are not those of the run, the checkpoint is of
        another one, or the model is handed the answers' labels.
    """
    if subset not in SUBSETS:
        raise ValueError(f"expected subset in {list(SUBSETS)} but got {subset!r}")
    folder = Path(run)
    progress = _progress(folder)
    trained_on = progress["config"]["device"]
    config = RunConfig(**{**progress["config"], "device": usable_device(device)})
    options = _data_options(config, benchmark_options or {})
    benchmark = BENCHMARKS[config.benchmark].build(**options)
    _check_data(folder, progress, benchmark)
    moved_to = None if config.device == trained_on else config.device
    strategy = _restored(folder, config, benchmark, moved_to, echo)
    form = _FORMS[config.benchmark]
    if subset == "val":
        data, stream = benchmark.datasets["test"], benchmark.test_stream
        _take_embeddings(config, benchmark, strategy.model, echo)
    else:
        data = form.unlabelled(options)
        stream = _one_experience(data, benchmark)
    answers = _answers(strategy, stream, form.keeper(len(data)))
    document = form.document(data, answers, benchmark, options, subset)
    path = Path(output or folder / f"predictions_{subset}.json")
    write_atomically(path, json.dumps(document, allow_nan=False) + "\n")
    echo(f"{len(data)} samples of subset {subset}: {path}")
    return path


def _progress(folder: Path) -> dict[str, Any]:
    path = folder / PROGRESS_FILE
    if not (path.is_file() and (folder / CHECKPOINT_FILE).is_file()):
        raise FileNotFoundError(
            f"no {PROGRESS_FILE} and {CHECKPOINT_FILE} in {folder}: expected the "
            "output folder of a run"
        )
    try:
        progress = json.loads(path.read_text(encoding="utf-8"))
        names = progress["config"].keys()
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error}): run it again") from None
    if names != RunConfig.__dataclass_fields__.keys():
        raise ValueError(f"{path} is of another version: run it again")
    return progress


def _data_options(config: RunConfig, given: Mapping[str, Any]) -> dict[str, Any]:
    options = {**config.benchmark_options, **given}
    # Sentences about clips are for training alone.
    options.pop("narrations", None)
    return options


def _check_data(
    folder: Path, progress: Mapping[str, Any], benchmark: QueryIncrementalScenario
) -> None:
    """Refuse data that the run was not evaluated on, and a model that is handed the
    labels of the answers.
    """
    info = json.loads(json.dumps(benchmark.info))
    then = progress["benchmark"]
    differing = sorted(k for k in {*info, *then} if info.get(k) != then.get(k))
    files = benchmark.report.files
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
    config: RunConfig,
    benchmark: QueryIncrementalScenario,
    moved_to: str | None,
    echo: Callable[[str], None],
) -> Any:
    """The run's strategy after its last experience, without its metrics and logs."""
    recipe = find_strategy(config.strategy)
    deviations = ReferenceDeviations.from_names(
        config.deviations, selection=config.selection
    )
    home = BENCHMARKS[config.benchmark]
    model = MODELS[config.model](
        **home.model_arguments(benchmark), **config.model_options
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="No loggers specified")
        silent = EvaluationPlugin(loggers=[])
    strategy = build_strategy(config, recipe, model, deviations, silent)
    strategy, done = load_checkpoint(
        strategy, folder / CHECKPOINT_FILE, device=moved_to
    )
    n_steps = 1 if recipe.is_joint else benchmark.n_experiences
    if done < n_steps:
        echo(f"{folder} has learnt {done} of {n_steps} experiences")
    _check_weights(folder, strategy)
    strategy.plugins = [
        silent if plugin is strategy.evaluator else plugin
        for plugin in strategy.plugins
    ]
    strategy.evaluator = silent
    return strategy


def _check_weights(folder: Path, strategy: Any) -> None:
    results = folder / RESULTS_FILE
    if not results.is_file():
        return
    told = json.loads(results.read_text(encoding="utf-8"))["final_weights_sha256"]
    if told != weights_hash(strategy.model):
        raise ValueError(
            f"{folder / CHECKPOINT_FILE} does not hold the weights that {results} "
            "tells of: run it again"
        )


def _take_embeddings(
    config: RunConfig,
    benchmark: QueryIncrementalScenario,
    model: Any,
    echo: Callable[[str], None],
) -> None:
    """Evaluate on the backbone's embeddings where the run did: they are rounded."""
    if not config.backbone_cache:
        return
    from avalanche_vilco.benchmarks.vilco_vq.backbone_cache import cache_backbone

    # A store is found by what it holds: the streams are those of the run.
    is_selecting = config.selection == "best_on_valid"
    streams = ("train", "valid", "test") if is_selecting else ("train", "test")
    device = config.device
    cache_backbone(benchmark, model.backbone, device=device, streams=streams, echo=echo)


def _one_experience(
    data: MomentDataset | VisualDataset, benchmark: QueryIncrementalScenario
) -> list[QueryExperience]:
    """Samples as a stream of their own."""
    clips = [sample.clip.clip_id for sample in data.samples]
    dataset = experience_dataset(
        data,
        range(len(data)),
        groups=[0] * len(data),
        clip_ids=clips,
        task_label=0,
        collate_fn=data.collate_fn,
    )
    experience = QueryExperience(
        dataset=dataset,
        current_experience=0,
        groups=[benchmark.queries],
        task_label=0,
    )
    return list(EagerCLStream("unannotated", [experience]))


class _Keeper(SupervisedPlugin, ABC):
    """Keeps what is decoded in evaluation."""

    def after_eval_iteration(self, strategy: Any, **kwargs: Any) -> None:
        self.keep(*decoded(strategy))

    @abstractmethod
    def keep(self, predictions: Any, targets: Any) -> None:
        """Keep a mini-batch."""

    @abstractmethod
    def answers(self) -> Any:
        """What the document is made of."""


class _WindowKeeper(_Keeper):
    """Ranked windows of each sample, by its position.

    :param n_samples: of the stream.
    """

    def __init__(self, n_samples: int) -> None:
        super().__init__()
        self._windows: list[list[Window]] = [[] for _ in range(n_samples)]

    def keep(self, predictions: Any, targets: Any) -> None:
        rows = zip(
            targets.sample.tolist(),
            predictions.segments_sec.tolist(),
            predictions.scores.tolist(),
            predictions.labels.tolist(),
            strict=True,
        )
        for sample, segments, scores, labels in rows:
            self._windows[sample] = [
                (*segment, score, label)
                for segment, score, label in zip(segments, scores, labels, strict=True)
                if label >= 0
            ]

    def answers(self) -> list[list[Window]]:
        return self._windows


class _TrackKeeper(_Keeper):
    """The track of each query, from its windows.

    :param n_samples: of the stream, windows here.
    """

    def __init__(self, n_samples: int) -> None:
        super().__init__()
        self._rows: list[FrameRows] = []

    def keep(self, predictions: Any, targets: Any) -> None:
        rows = frame_rows(predictions)
        self._rows.append(FrameRows(*(column.cpu() for column in rows)))

    def answers(self) -> QueryAnswers:
        columns = zip(*self._rows, strict=True)
        return query_answers(FrameRows(*(torch.cat(column) for column in columns)))


def _answers(strategy: Any, stream: Any, keeper: _Keeper) -> Any:
    strategy.plugins.append(keeper)
    strategy.eval(stream[:] if not isinstance(stream, list) else stream)
    strategy.plugins.remove(keeper)
    return keeper.answers()


def _moment_document(
    data: MomentDataset,
    answers: Sequence[Sequence[Window]],
    benchmark: QueryIncrementalScenario,
    options: Mapping[str, Any],
    subset: str,
) -> dict[str, Any]:
    """Of Ego4D's Moment-Queries challenge. A clip that several experiences ask is in
    it once, as in the first.
    """
    names = [query.name for query in benchmark.queries]
    results: dict[str, list[dict[str, Any]]] = {}
    for sample, windows in zip(data.samples, answers, strict=True):
        results.setdefault(
            sample.clip.clip_id,
            [
                {"label": names[label], "score": score, "segment": [start, end]}
                for start, end, score, label in windows
            ],
        )
    return {
        "version": "1.0",
        "challenge": "ego4d_moment_queries",
        "detect_results": results,
        "retrieve_results": results,
    }


def _question_document(
    data: Any,
    answers: Sequence[Sequence[Window]],
    benchmark: QueryIncrementalScenario,
    options: Mapping[str, Any],
    subset: str,
) -> dict[str, Any]:
    """Of Ego4D's Natural-Language-Queries challenge, best window first."""
    results = [
        {
            "clip_uid": sample.clip.clip_id,
            "annotation_uid": sample.query.annotation_uid,
            "query_idx": sample.query.query_idx,
            "predicted_times": [[start, end] for start, end, _, _ in windows],
        }
        for sample, windows in zip(data.samples, answers, strict=True)
    ]
    return {
        "version": "1.0",
        "challenge": "ego4d_nlq_challenge",
        "results": results,
    }


def _track_document(
    data: VisualDataset,
    answers: QueryAnswers,
    benchmark: QueryIncrementalScenario,
    options: Mapping[str, Any],
    subset: str,
) -> dict[str, Any]:
    """Of Ego4D's Visual-Queries-2D challenge. Query sets that the protocol leaves out
    are in it, without boxes.
    """
    keys = [(q.clip_id, q.annotation_uid, q.set_number) for q in data.queries]
    return track_document(_vq_file(options, subset), keys, answers)


def _vq_file(options: Mapping[str, Any], subset: str) -> Path:
    """Annotation file of a subset, found as the benchmark does."""
    given = options.get("annotations")
    if isinstance(given, Mapping) and subset in given:
        return Path(given[subset]).expanduser()
    root = options.get("dataset_root") or os.environ.get(DATA_ROOT_VARIABLE)
    base = Path(root).expanduser() if root else mini_vq_root()
    if given is not None and not isinstance(given, Mapping):
        base = Path(given).expanduser()
    found = {**find_vq_files(base / "annotations"), **find_vq_files(base)}
    if subset not in found:
        raise FileNotFoundError(f"no {OFFICIAL_VQ_FILES[subset]} in {base}")
    return found[subset]


def _unlabelled_visual(options: Mapping[str, Any]) -> VisualDataset:
    names = ["dataset_root", "videos", "backend", "image_size", "crop_size", "n_frames"]
    names.append("missing")
    shared = {name: options[name] for name in names if name in options}
    if options.get("annotations") is not None:
        shared["annotations"] = _vq_file(options, "test")
    return unlabelled_vq(**shared)


def _unlabelled(
    read: Callable[..., MomentDataset], *names: str
) -> Callable[[Mapping[str, Any]], MomentDataset]:
    """A reader of clips without annotations, by the benchmark's arguments that it
    shares.
    """
    return lambda options: read(**{k: v for k, v in options.items() if k in names})


@dataclass(frozen=True)
class _Form:
    """How a benchmark's answers become a file."""

    unlabelled: Callable[[Mapping[str, Any]], Any]
    """Reads the clips without annotations, by the benchmark's arguments."""
    keeper: Callable[[int], _Keeper]
    document: Callable[..., dict[str, Any]]


_FORMS: Mapping[str, _Form] = {
    "vilco_mq": _Form(
        _unlabelled(
            unlabelled_mq,
            *("dataset_root", "annotations", "categories", "features", "features_of"),
            *("features_per_sec", "grid", "missing", "length_tolerance"),
        ),
        _WindowKeeper,
        _moment_document,
    ),
    "vilco_nlq": _Form(
        _unlabelled(
            unlabelled_nlq,
            *("dataset_root", "features", "features_of", "features_per_sec", "grid"),
            *("query_text", "text_model", "missing", "length_tolerance"),
        ),
        _WindowKeeper,
        _question_document,
    ),
    "vilco_vq": _Form(_unlabelled_visual, _TrackKeeper, _track_document),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """``avalanche-vilco predict``.

    :param arguments: command-line arguments without program and command.
    :return: exit code: 0 written, 1 the run or its data are at fault, 2 bad usage
        (raised by argparse).
    """
    options = _parser().parse_args(arguments)
    root = options.dataset_root
    moved = {} if root is None else {"dataset_root": root}
    warnings.filterwarnings("ignore", category=DeprecationWarning, module="avalanche")
    try:
        predict(
            options.run,
            options.output,
            subset=options.subset,
            benchmark_options=moved,
            device=options.device,
        )
    except (ValueError, FileNotFoundError, ImportError) as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="avalanche-vilco predict",
        description="Write a run's answers in Ego4D's submission format, from "
        "checkpoint.pkl in its folder. That file can run code "
        "when it is loaded: pass folders of your own runs only. Exit code: 0 written, "
        "1 the run or its data are at fault, 2 bad usage.",
    )
    add = parser.add_argument
    add("run", metavar="RUN", help="output folder of a run")
    add(
        "--subset",
        choices=SUBSETS,
        default="val",
        help="val: the run's test stream (default); test: clips without annotations",
    )
    add("--output", metavar="FILE", help="default RUN/predictions_SUBSET.json")
    add("--dataset-root", metavar="DIR", help="where the data lie now")
    add("--device", default="auto")
    return parser


__all__ = ["main", "predict"]
