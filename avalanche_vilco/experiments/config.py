"""What a run is made with: names and options looked up, completed and checked."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import msgspec

from avalanche_vilco.benchmarks.spec import (
    Benchmark,
    Hyperparameters,
    find_benchmark,
)
from avalanche_vilco.core.errors import SettingError
from avalanche_vilco.core.precision import Precision
from avalanche_vilco.core.registry import close_names, look_up
from avalanche_vilco.core.settings import check_options, check_value, option_types
from avalanche_vilco.experiments.deviations import (
    ChosenDeviations,
    Selection,
    choose_deviations,
    merged,
)
from avalanche_vilco.training.table import Strategy, check_classes, find_strategy


class RunSettings(Hyperparameters, total=False):
    """What a run may set besides the options of its parts."""

    device: str
    """``"auto"``, the GPU if there is one; ``"cpu"``, ``"cuda"``, ``"cuda:1"``."""
    num_workers: Annotated[int, msgspec.Meta(ge=0)]
    """Loader processes; they do not change results."""
    precision: Precision
    """Of products in the model: ``"bf16"`` computes them in bfloat16 by torch's
    autocast; weights, losses and metrics stay float32."""
    selection: Selection
    """Weights kept of each experience: the ``"last"``, or ``"best_on_valid"``: of the
    epoch that scores best on the valid stream; ``"best_on_test"`` is a deviation."""
    backbone_cache: bool
    """Compute what the model's frozen backbone makes of the videos once, before
    training; it goes to the user's cache folder, and its size is said beforehand."""


class RunArguments(RunSettings, total=False):
    """All that a run takes by name, for the command line and to find close names."""

    benchmark: str
    """Name of a benchmark."""
    strategy: str
    """Name of a strategy."""
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
    """Of weights, order of samples and dropout; the data stays as it is."""
    benchmark_options: Mapping[str, Any]
    """Arguments of the benchmark."""
    strategy_options: Mapping[str, Any]
    """The method's own options."""
    model_options: Mapping[str, Any]
    """Further arguments of the model's builder, such as a decoder's thresholds."""
    deviations: str | Sequence[str]
    """Parts of the public recipe, with the reference protocol only, or ``"all"``."""
    output: Path | Annotated[str, msgspec.Meta(min_length=1)]
    """Folder of the run."""
    fresh: bool
    """Begin anew and replace the run that the folder holds."""


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
    selection: Selection
    backbone_cache: bool
    model_options: Mapping[str, Any]
    precision: Precision = "float32"

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {
            name: dict(value) if isinstance(value, Mapping) else value
            for name, value in vars(self).items()
        }


@dataclass(frozen=True)
class Plan:
    """A run that is not begun: what its configuration names."""

    config: RunConfig
    benchmark: Benchmark
    strategy: Strategy
    deviations: ChosenDeviations
    benchmark_options: Mapping[str, Any]
    """As they were given: objects, where the configuration has their names."""
    backbone_cache: bool | None
    """What was asked for; None leaves it to the benchmark."""


def resolve(
    benchmark: str,
    strategy: str,
    seed: int,
    *,
    benchmark_options: Mapping[str, Any] | None = None,
    strategy_options: Mapping[str, Any] | None = None,
    model_options: Mapping[str, Any] | None = None,
    deviations: str | Sequence[str] | None = None,
    settings: Mapping[str, Any],
) -> Plan:
    """Look names up, put defaults in and refuse what does not fit, reading no data.

    What needs no Avalanche is looked at first. Arguments are those of ``run``, None
    where they are left out.

    :param settings: all others.
    :raises SettingError: names what does not fit, what was expected, and close names.
    """
    given = without_none(settings)
    everything = {
        "seed": seed,
        "benchmark_options": benchmark_options,
        "strategy_options": strategy_options,
        "model_options": model_options,
        "deviations": deviations,
        **settings,
    }
    known = get_type_hints(RunArguments, include_extras=True)
    check_options("run", everything, known, none_is_default=True)
    check_value("seed", seed, known["seed"])
    spec, method = find_benchmark(benchmark), find_strategy(strategy)
    if not spec.has_class_outputs:
        check_classes(strategy, method, 1)
    options = _method_options(spec, strategy, method, strategy_options or {})
    parts = model_options or {}
    numbers: dict[str, Any] = {**spec.recipe.hyperparameters}
    numbers.update((name, given[name]) for name in numbers if name in given)
    model = numbers["model"] = _variant(spec, numbers["model"], strategy, method)
    wanted = given.get("backbone_cache")
    if spec.backbone_cache is None and wanted:
        raise SettingError(
            f"expected backbone_cache to be left out but got {wanted}: models of "
            f"benchmark {benchmark!r} have no backbone, their features are in files"
        )
    device = usable_device(given.get("device", "auto"))
    if parts:
        owner, kinds = f"model {model!r}", option_types(spec.models[model])
        place = "model_options."
        check_options(owner, parts, kinds, within=place, none_is_default=True)
    if benchmark_options:
        kinds, owner = option_types(spec.build), f"benchmark {benchmark!r}"
        place = "benchmark."
        check_options(
            owner, benchmark_options, kinds, within=place, none_is_default=True
        )
    wishes = without_none(benchmark_options)
    chosen = choose_deviations(
        spec,
        [deviations] if isinstance(deviations, str) else list(deviations or ()),
        selection=given.get("selection", "last"),
        strategy=strategy,
        settings={
            "benchmark_options": wishes,
            "strategy_options": options,
        },
    )
    options = chosen.settings("strategy_options", options)
    data_options = chosen.settings("benchmark_options", wishes)
    _check_streams(spec, chosen, data_options)
    if method.is_narrated and options["ssl_weight"]:
        data_options = _with_narrations(spec, data_options)
    config = RunConfig(
        benchmark,
        strategy,
        seed,
        **numbers,
        device=device,
        num_workers=given.get("num_workers", 0),
        benchmark_options=_plain(data_options),
        strategy_options=options,
        deviations=list(chosen.by_name),
        selection=chosen.selection,
        backbone_cache=False,
        model_options=_plain(without_none(parts)),
        precision=given.get("precision", "float32"),
    )
    return Plan(config, spec, method, chosen, data_options, wanted)


def _method_options(
    spec: Benchmark, name: str, method: Strategy, given: Mapping[str, Any]
) -> dict[str, Any]:
    """Options of a strategy: those given, over the benchmark's and its own."""
    owner, place = f"strategy {name!r}", "strategy."
    check_options(owner, given, method.option_types, within=place, none_is_default=True)
    usual = spec.recipe.strategy_options.get(name, {})
    options = {**method.options, **usual, **without_none(given)}
    _check_together(spec, options)
    return options


def _check_together(benchmark: Benchmark, options: Mapping[str, Any]) -> None:
    """Refuse options of a strategy that do not go together, or not with queries.

    :raises SettingError: names them.
    """
    if "val_share" in options:
        size, share = options["mem_size"], options["val_share"]
        if not 0 < round(share * size) < size:
            raise SettingError(
                "expected strategy.mem_size and strategy.val_share that leave samples "
                f"to rehearse and to hold out but got {size} and {share}"
            )
    if options.get("long_term") and options["top_n"] > options["n_prompts"]:
        raise SettingError(
            f"expected strategy.top_n in 1..{options['n_prompts']}, the number of "
            f"prompts, but got {options['top_n']}"
        )
    is_replacing = options.get("prompt_mode") == "replace" and options["long_term"]
    if is_replacing and not benchmark.has_class_outputs:
        raise SettingError(
            "expected strategy.prompt_mode 'prepend' but got 'replace': prompts alone "
            "cannot carry the words or crop of each sample's own query"
        )


def _check_streams(
    benchmark: Benchmark, chosen: ChosenDeviations, options: Mapping[str, Any]
) -> None:
    """Refuse deviations and a selection that the streams asked for do not have.

    What a manifest sets is known when it is read.

    :raises SettingError: names them.
    """
    if options.get("manifest") is not None:
        return
    if chosen.by_name:
        # The generator is imported for it, and Avalanche with it.
        parameters = inspect.signature(benchmark.build).parameters
        if "protocol" in parameters:
            chosen.validate(options.get("protocol", parameters["protocol"].default))
    if chosen.selection == "best_on_valid" and options.get("valid_share") == 0:
        raise SettingError(
            "expected benchmark.valid_share above 0 but got 0: "
            "selection=best_on_valid scores the valid stream"
        )


def plan_of(config: RunConfig) -> Plan:
    """The plan of a run that was made.

    :raises ValueError: a name is not known here.
    """
    benchmark = find_benchmark(config.benchmark)
    chosen = choose_deviations(
        benchmark,
        config.deviations,
        selection=config.selection,
        strategy=config.strategy,
        settings={
            "benchmark_options": config.benchmark_options,
            "strategy_options": config.strategy_options,
        },
    )
    strategy, options = find_strategy(config.strategy), config.benchmark_options
    return Plan(config, benchmark, strategy, chosen, options, config.backbone_cache)


def without_none(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Options that are set, at every depth."""
    return {
        name: without_none(value) if isinstance(value, Mapping) else value
        for name, value in (options or {}).items()
        if value is not None
    }


def usable_device(wanted: str) -> str:
    """Name of a device that is here; ``"auto"`` is the GPU if there is one.

    :raises SettingError: there is none of this name.
    """
    if wanted == "cpu":
        return wanted
    import torch

    n_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    usable = ["cpu", *(["cuda"] if n_gpus else ())]
    usable += [f"cuda:{number}" for number in range(n_gpus)]
    usable += ["mps"] if torch.backends.mps.is_available() else []
    if wanted == "auto":
        return "cuda" if n_gpus else "cpu"
    if wanted not in usable:
        legal, why = ["auto", *usable], close_names(wanted, ["auto", *usable, "cuda"])
        if re.fullmatch(r"cuda(:\d+)?", wanted):
            why = f" torch sees {n_gpus} GPUs here"
        raise SettingError(f"expected device in {legal} but got {wanted!r}.{why}")
    return wanted


def narration_option(benchmark: Benchmark, value: bool) -> dict[str, Any]:
    """The benchmark's option that reads sentences about clips, with a value.

    :param value: whether they are read.
    :return: empty if it has none.
    """
    sources = option_types(benchmark.build).get("sources")
    kinds = [kind for kind in get_args(sources) if is_dataclass(kind)]
    has_them = any("narrations" in option_types(kind) for kind in kinds)
    return {"sources": {"narrations": value}} if has_them else {}


def _with_narrations(
    benchmark: Benchmark, options: Mapping[str, Any]
) -> dict[str, Any]:
    sources = options.get("sources") or {}
    if isinstance(sources, Mapping):
        is_given = sources.get("narrations") is not None
    else:
        # A field's default is not a wish.
        is_given = bool(getattr(sources, "narrations", False))
    return merged(options, {} if is_given else narration_option(benchmark, True))


def _variant(benchmark: Benchmark, model: str, name: str, strategy: Strategy) -> str:
    """Name of the builder that a strategy takes."""
    look_up("model", model, benchmark.models)
    wanted = model.removesuffix(strategy.model_variant) + strategy.model_variant
    if wanted not in benchmark.models:
        raise SettingError(
            f"strategy {name!r} takes {wanted!r}, but {model!r} has no such variant"
        )
    return wanted


def _plain(value: Any) -> Any:
    """JSON form of an option; objects by their class."""
    if is_dataclass(value):
        given = {field.name: getattr(value, field.name) for field in fields(value)}
        defaults = {field.name: field.default for field in fields(value)}
        value = {k: v for k, v in given.items() if v is not defaults[k]}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (str, int, float)):
        return value
    return str(value) if isinstance(value, Path) else type(value).__name__
