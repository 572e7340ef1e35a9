"""``avalanche-vilco run``: every setting of a run on Hydra's command line.

    avalanche-vilco run strategy=replay strategy.mem_size=32 seed=1
    avalanche-vilco run -m strategy=naive,replay seed=0,1,2

What there is to set is read off the signatures of the generators and the table of
strategies. ``null`` takes a default.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from avalanche_vilco.benchmarks.spec import (
    DEFAULT_BENCHMARK,
    benchmark_names,
    find_benchmark,
)
from avalanche_vilco.cli.quiet import import_quietly
from avalanche_vilco.core.registry import look_up
from avalanche_vilco.core.settings import option_types
from avalanche_vilco.core.terminal import one_line
from avalanche_vilco.training.table import STRATEGIES

_HYDRA: Mapping[str, Any] = {
    "output_subdir": None,
    "run": {"dir": "."},
    "sweep": {"dir": "outputs", "subdir": "."},
    "job": {"chdir": False},
}
_GROUPS = ("benchmark", "strategy")


def main(arguments: Sequence[str]) -> int:
    """Run, sweep or show help, as Hydra is told.

    :param arguments: Hydra's overrides and flags.
    :return: 0; bad data or settings leave through ``SystemExit``.
    """
    import hydra

    known = _store_settings()
    try:
        for group, names in known.items():
            _check_choices(group, names, arguments)
    except ValueError as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        raise SystemExit(1) from None
    # Hydra reads sys.argv; it also gives -m, --help and --cfg.
    sys.argv = ["avalanche-vilco run", *map(_own_message, arguments)]
    try:
        hydra.main(version_base="1.3", config_path=None, config_name="run")(run_once)()
    except KeyboardInterrupt:
        print(
            "interrupted: the same command goes on, without fresh=true", file=sys.stderr
        )
        raise
    return 0


def run_once(config: Any) -> None:
    """Make one run, of Hydra's config."""
    from omegaconf import OmegaConf

    settings: dict[str, Any] = OmegaConf.to_container(config, resolve=True)
    benchmark, strategy = (settings.pop(group) for group in _GROUPS)
    name = benchmark.pop("name")
    run = import_quietly("avalanche_vilco.experiments.run").run
    try:
        run(
            name,
            strategy.pop("name"),
            benchmark_options=_wishes(benchmark, _generator_settings(name)),
            strategy_options=strategy,
            **settings,
        )
    except (ValueError, FileNotFoundError, ImportError) as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        raise SystemExit(1) from None


def _own_message(argument: str) -> str:
    """An override that Hydra passes on; a name that is unknown is ours to answer."""
    is_plain = re.match(r"(?!hydra\b)[a-z_][\w.]*=", argument)
    is_group = argument.partition("=")[0] in _GROUPS
    return f"++{argument}" if is_plain and not is_group else argument


def _check_choices(
    group: str, names: Mapping[str, Any], arguments: Sequence[str]
) -> None:
    """Refuse plain names that Hydra would answer with its search path."""
    for argument in arguments:
        if match := re.fullmatch(rf"{group}=([\w,]+)", argument):
            for name in match[1].split(","):
                look_up(group, name, names)


def _wishes(given: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that are neither null nor what they are anyway."""
    found = {}
    for name, value in given.items():
        if isinstance(value, Mapping) and isinstance(usual.get(name), Mapping):
            value = _wishes(value, usual[name]) or None
        if value is not None and value != usual.get(name):
            found[name] = value
    return found


def _generator_settings(name: str) -> dict[str, Any]:
    """Arguments of a benchmark's generator with their defaults."""
    build = inspect.unwrap(find_benchmark(name).build)
    parameters, types = inspect.signature(build).parameters, option_types(build)
    found: dict[str, Any] = {}
    for option, kind in types.items():
        parts = [part for part in getattr(kind, "__args__", ()) if is_dataclass(part)]
        defaults = {f.name: _shown(f.default) for part in parts for f in fields(part)}
        found[option] = defaults or _shown(parameters[option].default)
    return found


def _shown(default: Any) -> Any:
    """A default in YAML, null for what has no form there."""
    if isinstance(default, (tuple, list)):
        return [_shown(value) for value in default]
    return default if isinstance(default, (bool, int, float, str)) else None


def _store_settings() -> dict[str, Mapping[str, Any]]:
    """Tell Hydra of all benchmarks, strategies and settings; by group, their names."""
    from hydra.core.config_store import ConfigStore

    import_quietly("avalanche.training")
    config = import_quietly("avalanche_vilco.experiments.config")

    store, names = ConfigStore.instance(), benchmark_names()
    for name in names:
        node = {"name": name, **_generator_settings(name)}
        store.store(group="benchmark", name=name, node=node)
    benchmarks = list(map(find_benchmark, names))
    for name, strategy in STRATEGIES.items():
        tuned = [b.recipe.strategy_options.get(name, {}) for b in benchmarks]
        # Options that some benchmark has another default of.
        left_open = {option: None for options in tuned for option in options}
        node = {"name": name, **strategy.options, **left_open}
        store.store(group="strategy", name=name, node=node)
    lines = (f"  {name:<20}{each.help}" for name, each in STRATEGIES.items())
    help_text = "\n".join(["", "Strategies", *lines, "", "null takes a default.", ""])
    node = {
        "defaults": [
            {"benchmark": DEFAULT_BENCHMARK},
            {"strategy": "naive"},
            {"override hydra/job_logging": "none"},
            "_self_",
        ],
        "seed": 0,
        **dict.fromkeys(config.RunSettings.__annotations__),
        "deviations": None,
        "model_options": None,
        "fresh": False,
        "output": "outputs/${benchmark.name}/${strategy.name}/seed${seed}",
        "hydra": {
            **_HYDRA,
            "help": {"app_name": "avalanche-vilco run", "footer": help_text},
        },
    }
    store.store(name="run", node=node)
    return {"benchmark": dict.fromkeys(names), "strategy": STRATEGIES}
