"""A benchmark as a value, and the registry of benchmarks.

Whatever stands above a benchmark (runs, submissions, scores, reports, doctor, grids)
knows the :class:`Benchmark` that :func:`find_benchmark` gives for its name, and nothing
else of it. A package of one's own adds a benchmark with an entry point::

    [project.entry-points."avalanche_vilco.benchmarks"]
    my_benchmark = "my_package.benchmark:BENCHMARK"

``tests/experiments/external`` is the shortest one. Runs need of its generator a
``Scenario`` whose ``datasets`` have ``samples`` with a ``clip`` (``clip_id``,
``duration_sec``), ``collate_fn``, ``narrations`` (None: none), ``subset(positions)``,
``scrambled(seed)`` for the chance level (None: nothing to exchange) and
``exemplar_bytes(positions)``; and ``info`` with ``benchmark``, ``protocol``,
``protocol_version``, ``data`` and ``uses_ground_truth_at_test``.
"""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

import msgspec

from avalanche_vilco.core.errors import DataError
from avalanche_vilco.core.registry import look_up
from avalanche_vilco.core.schema import convert

if TYPE_CHECKING:
    from torch import nn

    from avalanche_vilco.core.diagnosis import Diagnosis
    from avalanche_vilco.evaluation.metrics.emission import MetricState

GROUP = "avalanche_vilco.benchmarks"
"""Group of the entry points."""
_OWN = ("vilco_mq", "vilco_nlq", "vilco_vq")
"""Found without entry points too: those of a source checkout may be stale."""
DEFAULT_BENCHMARK = _OWN[0]

AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]


class Hyperparameters(TypedDict, total=False):
    """What a run may set of its training."""

    model: str
    """Name of a builder, see :attr:`Benchmark.models`."""
    epochs: AtLeastOne
    """Passes over each experience; the bounds make a multiple of them."""
    batch_size: AtLeastOne
    """Samples of a training batch; replay adds as many from memory."""
    eval_batch_size: AtLeastOne
    """Samples of an evaluation batch."""
    learning_rate: Annotated[float, msgspec.Meta(gt=0)]
    """Of AdamW, constant."""
    weight_decay: NotNegative
    """Of AdamW."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What a run takes where it does not say otherwise; it suits the embedded data."""

    hyperparameters: Hyperparameters
    strategy_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Options that differ from a strategy's own defaults, by strategy."""


def read_recipe(path: Path) -> Recipe:
    """A recipe from a YAML file with the fields of :class:`Recipe`.

    :param path: of the file.
    :raises DataError: a field is missing, unknown or of another type.
    """
    hint = "write it like the recipe.yaml of vilco_mq"
    try:
        content = msgspec.yaml.decode(path.read_bytes())
    except msgspec.DecodeError as error:
        raise DataError(path, f"not valid YAML: {error}", hint=hint) from None
    recipe = convert(content, Recipe, path, hint=hint)
    names, given = Hyperparameters.__annotations__, content["hyperparameters"]
    for name in sorted(names.keys() ^ given.keys()):
        problem = "missing" if name in names else "unknown"
        raise DataError(path, problem, field=f"hyperparameters.{name}", hint=hint)
    return recipe


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """A part of the public recipe that changes numbers: settings of a run by a name.

    It is allowed with ``protocol="reference"`` only.
    """

    effect: str
    """What it changes, for results."""
    benchmark_options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the generator that it sets, at every depth."""
    strategy_options: Mapping[str, Any] = field(default_factory=dict)
    criterion: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the criterion."""
    averages: Literal["plain", "cumulative"] = "plain"
    """``"cumulative"`` weighs an experience by the queries seen when it was learnt."""
    best_on_test: Callable[[], MetricState] | None = None
    """Metric on the test stream by which the epoch that is kept is chosen; None: as
    the run says."""


@dataclass(frozen=True, kw_only=True)
class Submission:
    """Official files of answers: how a run's are written, and how files are scored."""

    task: str
    """Short name of the benchmark, in scores and on their command line."""
    collector: Callable[[int], Any]
    """Makes, for a number of samples, an object that is given each mini-batch by
    ``add(predictions, targets)`` and has all of them as ``answers()``."""
    document: Callable[..., Mapping[str, Any]]
    """JSON form of ``(data, answers, scenario, options, subset)``: the dataset, what
    the collector has, what the generator built with which options, and ``"val"`` or
    ``"test"``."""
    score: Callable[..., None]
    """Scores a file: ``(result, predictions, annotations)``, the
    :class:`~avalanche_vilco.benchmarks.submissions.Score` that gets the numbers and
    two documents; its keyword-only arguments are the options it takes."""
    role_of: Callable[[Any], str | None]
    """Whether parsed JSON is of this benchmark: ``"predictions"``, ``"annotations"`` or
    None."""
    references: Sequence[str] = ()
    """Public evaluators whose numbers it can reproduce."""


@dataclass(frozen=True, kw_only=True)
class BackboneCache:
    """What a model's frozen ``backbone`` makes of the videos, computed once."""

    is_default: Callable[[Any], bool]
    """Whether a run with this scenario computes it, unless told otherwise."""
    fill: Callable[..., int]
    """Computes it: ``fill(scenario, backbone, device, streams, progress, echo)``."""


def feature_widths(scenario: Any) -> Mapping[str, int]:
    """Widths of video features and of token features, for a localiser of windows.

    :param scenario: that a model is built for.
    """
    width = scenario.info["feature_dim"]
    return {"feature_dim": width, "text_dim": scenario.text_dim}


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """All that the rest of the package knows of a benchmark."""

    name: str
    version: str
    """Changes whenever the same settings may give other numbers."""
    paper: str
    """What it reproduces."""
    build: Callable[..., Any]
    """The generator, which makes a ``Scenario`` of ``dataset_root`` and options."""
    unlabelled: Callable[..., Any] | None = None
    """Dataset of samples without answers, of ``dataset_root`` and ``sources``."""
    embedded_root: Callable[..., Path] | None = None
    """Folder of the generated default in a cache folder, made if it is not there."""
    models: Mapping[str, Callable[..., nn.Module]]
    """Builders by name. A model maps inputs to one tensor, and has
    ``decode(output, targets)``, whose result the metrics take."""
    model_arguments: Callable[[Any], Mapping[str, Any]] = lambda scenario: {}
    """What a builder takes of a scenario."""
    has_class_outputs: bool = True
    """Whether each class has an output channel; queries that are inputs share one."""
    n_regression: int = 0
    """Regression channels of the models' output, after those of classes."""
    criterion: Callable[..., nn.Module]
    """Makes the loss of output and targets; its arguments are those of deviations."""
    metrics: Callable[[], Sequence[MetricState]]
    """Makes the metrics, empty: values in [0, 1] by names that no two share."""
    main_metric: str
    """The value that is told while a run goes on."""
    selection_metric: str = ""
    """The value that the best epoch has the highest of; empty: the main metric."""
    future: Literal["nan", "value"]
    """Whether experiences not yet learnt have a score."""
    queries: str = ""
    """What a model is asked by, where it is not the text that ``info`` names."""
    chance: str = "on scrambled samples"
    """What the chance level is of: see the dataset's ``scrambled``."""
    recipe: Recipe
    deviations: Mapping[str, Deviation] = field(default_factory=dict)
    """Parts of the public recipe by name."""
    backbone_cache: BackboneCache | None = None
    """None: models have no backbone."""
    submission: Submission | None = None
    """None: there is no official file of answers."""
    annotation_files: Sequence[str] = ()
    """Names of the files by which doctor knows a data root as the benchmark's, there or
    in its folder ``annotations``."""
    examine: Callable[[Path, Diagnosis], None] | None = None
    """Finds what is missing or damaged in a data root; None: nothing to examine."""


class _Deferred:
    """A function that is imported when it is first needed."""

    def __init__(self, location: str) -> None:
        self._location = location

    @cached_property
    def __wrapped__(self) -> Callable[..., Any]:
        return pkgutil.resolve_name(self._location)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__wrapped__(*args, **kwargs)


def deferred(location: str) -> Callable[..., Any]:
    """A function that is imported when it is called or its signature is asked for.

    Scoring a file or examining a folder then does without Avalanche (8 to 10 s).

    :param location: ``package.module:name``.
    """
    return _Deferred(location)


def benchmark_names() -> list[str]:
    """Names of all benchmarks, installed packages' included."""
    return sorted(_entry_points())


def find_benchmark(name: str) -> Benchmark:
    """The benchmark of a name.

    :param name: one of :func:`benchmark_names`.
    :raises ValueError: unknown, with close names; or its entry point leads to
        something else.
    """
    point: EntryPoint = look_up("benchmark", name, _entry_points())
    benchmark = point.load()
    if not isinstance(benchmark, Benchmark) or benchmark.name != name:
        raise ValueError(
            f"expected entry point {name!r} of group {GROUP} to lead to a Benchmark of "
            f"that name but got {benchmark!r:.80} at {point.value}"
        )
    return benchmark


def _entry_points() -> dict[str, EntryPoint]:
    installed = _installed(tuple(sys.path))
    own = {
        name: EntryPoint(name, f"{GROUP}.{name}.benchmark:BENCHMARK", GROUP)
        for name in _OWN
    }
    return {**installed, **own}


@cache
def _installed(path: tuple[str, ...]) -> dict[str, EntryPoint]:
    """Entry points of the packages on a path: to list them takes 10 ms."""
    return {point.name: point for point in entry_points(group=GROUP)}
