"""Results files of finished runs, read and checked."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec

from avalanche_vilco.core.errors import DataError
from avalanche_vilco.evaluation.matrix import TaskMatrix
from avalanche_vilco.reports.results import RESULTS_VERSION

RESULTS_FILE = "results.json"
PROGRESS_FILE = "progress.json"

_Name = Annotated[str, msgspec.Meta(pattern=r"^[\w.@+-]{1,80}$")]
_Count = Annotated[int, msgspec.Meta(ge=0)]
_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Difference = Annotated[float, msgspec.Meta(ge=-1, le=1)]


class Score(msgspec.Struct, frozen=True):
    """One metric after the last experience; None where it is not defined."""

    average: _Share | None
    bwf: _Difference | None
    chance: _Share | None


class Memory(msgspec.Struct, frozen=True):
    """See :class:`~avalanche_vilco.reports.memory.MemoryFigures`."""

    samples: _Count
    clips: _Count
    hours: Annotated[float, msgspec.Meta(ge=0)]
    share_of_training_samples: _Share
    exemplar_bytes: _Count
    auxiliary_bytes: _Count
    unused: _Count = 0


class Configuration(msgspec.Struct, frozen=True):
    """What every configuration has; others are in :attr:`Run.config`."""

    benchmark: _Name
    strategy: _Name
    seed: int
    model: _Name
    epochs: int
    batch_size: int
    learning_rate: float
    weight_decay: float
    strategy_options: dict[str, Any]
    benchmark_options: dict[str, Any]

    @property
    def sources(self) -> dict[str, Any]:
        """Where the benchmark's files lie and how they are read."""
        return self.benchmark_options.get("sources", {})


class BenchmarkInfo(msgspec.Struct, frozen=True):
    """What every ``benchmark.info`` has; others are in :attr:`Run.info`."""

    protocol: str
    protocol_version: Any
    data: str
    uses_ground_truth_at_test: bool
    query_text: str | None = None
    """What words are shown as; None: queries are not words."""
    comparable_with_paper: bool = False
    """Whether data, split, model and schedule are the paper's."""


class DataFacts(msgspec.Struct, frozen=True):
    """Hash of each file read, by name."""

    files: dict[str, str]


class RunResults(msgspec.Struct, frozen=True):
    """Content of a results file."""

    config: Configuration
    benchmark: BenchmarkInfo
    versions: dict[str, str]
    data: DataFacts
    initial_weights_sha256: str
    final_weights_sha256: str
    scores: Annotated[dict[_Name, Score], msgspec.Meta(min_length=1)]
    matrices: dict[_Name, dict[str, Any]]
    memory: Memory
    deviations: dict[str, str]
    averages: str
    main_metric: _Name
    train_epochs: int
    """Passes in each training."""


@dataclass(frozen=True)
class Run:
    """One finished run."""

    folder: Path
    results: RunResults
    config: Mapping[str, Any] = field(repr=False)
    """As in the file."""
    info: Mapping[str, Any] = field(repr=False)
    """``benchmark.info``, as in the file."""

    @property
    def seed(self) -> int:
        """Seed of the run."""
        return self.results.config.seed

    def matrix(self, metric: str) -> TaskMatrix:
        """Task matrix of a metric, in [0, 1]."""
        return TaskMatrix.from_dict(self.results.matrices[metric])


def run_folders(root: Path) -> Iterator[Path]:
    """Folders with a finished or begun run, at or below a folder, sorted.

    :param root: searched without following links.
    """
    for folder, below, files in os.walk(root):
        below.sort()
        if RESULTS_FILE in files or PROGRESS_FILE in files:
            yield Path(folder)


def read_run(folder: Path | str) -> Run:
    """A run's results.

    :param folder: output folder of the run.
    :raises FileNotFoundError: no results file: the run did not finish.
    :raises DataError: the file is damaged, of another version, or its scores do not
        follow from its matrices.
    """
    path = Path(folder) / RESULTS_FILE
    if not path.is_file():
        raise FileNotFoundError(f"no {path}: the run has not finished")
    return run_of(read_results(path), folder)


def run_of(raw: Mapping[str, Any], folder: Path | str) -> Run:
    """A run from the content of its results file.

    :param raw: as in the file.
    :param folder: where it lies or will lie.
    :raises DataError: as :func:`read_run`.
    """
    path = Path(folder) / RESULTS_FILE
    try:
        results = msgspec.convert(raw, RunResults)
    except msgspec.ValidationError as error:
        raise DataError(path, str(error), hint="run it again") from None
    run = Run(Path(folder), results, raw["config"], raw["benchmark"])
    _check_scores(path, run)
    return run


def experiences_done(folder: Path | str) -> int:
    """Experiences that a run has learnt, finished or not.

    :param folder: output folder of the run.
    :raises DataError: its progress file is damaged.
    """
    path = Path(folder) / PROGRESS_FILE
    seconds = read_results(path, version=None).get("seconds")
    if not isinstance(seconds, list):
        raise DataError(path, f"expected a list of seconds but got {seconds!r}")
    return len(seconds)


def read_results(path: Path, version: int | None = RESULTS_VERSION) -> dict[str, Any]:
    """Content of a JSON file of a run.

    :param path: of the file.
    :param version: that it must have; None: any.
    :raises DataError: it is absent, damaged or of another version.
    """
    try:
        raw = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError, UnicodeError, RecursionError) as error:
        problem = f"cannot be read: {error or type(error).__name__}"
        raise DataError(path, problem, hint="run it again") from None
    if not isinstance(raw, dict):
        raise DataError(path, f"expected an object but got {type(raw).__name__}")
    if version is not None and raw.get("results_version") != version:
        found = json.dumps(raw.get("results_version"))[:40]
        problem = f"expected results of version {version} but got {found}"
        raise DataError(path, problem, hint="is it a run's output?")
    return raw


def _check_scores(path: Path, run: Run) -> None:
    """Tables show scores and plots show matrices: they have to agree."""
    results = run.results
    for name, score in results.scores.items():
        try:
            matrix = run.matrix(name)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            problem = f"{type(error).__name__}: {error}"
            raise DataError(path, problem, field=f"matrices.{name}") from None
        if results.averages != "plain":
            continue
        for key, stated, computed in (
            ("average", score.average, matrix.average()),
            ("bwf", score.bwf, matrix.backward_forgetting()),
        ):
            if not _agree(stated, computed):
                problem = f"says {stated} but its matrix gives {computed}"
                raise DataError(path, problem, field=f"scores.{name}.{key}")


def _agree(stated: float | None, computed: float) -> bool:
    if stated is None:
        return math.isnan(computed)
    return math.isclose(stated, computed, rel_tol=0, abs_tol=1e-9)
