"""``avalanche-vilco run``: every setting of a run on Hydra's command line.

    avalanche-vilco run strategy=replay strategy.mem_size=32 seed=1
    avalanche-vilco run -m strategy=naive,replay seed=0,1,2

What there is to set is read off the signatures of the generators and the table of
strategies. ``null`` takes a default.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

from avalanche_vilco.benchmarks.spec import (
    DEFAULT_BENCHMARK,
    benchmark_names,
    find_benchmark,
)
from avalanche_vilco.cli.overrides import check_overrides, overrides_of, sweep_folder
from avalanche_vilco.cli.quiet import import_quietly
from avalanche_vilco.core.errors import SettingError
from avalanche_vilco.core.settings import check_options, option_types
from avalanche_vilco.core.terminal import one_line
from avalanche_vilco.experiments.config import RunArguments, RunSettings
from avalanche_vilco.training.table import STRATEGIES

_HYDRA: Mapping[str, Any] = {
    "output_subdir": None,
    "run": {"dir": "."},
    "sweep": {"dir": "outputs", "subdir": "."},
}
_GROUPS = ("benchmark", "strategy")


def main(arguments: Sequence[str]) -> int:
    """Run, sweep or show help, as Hydra is told.

    :param arguments: Hydra's overrides and flags.
    :return: 0; bad data or settings leave through ``SystemExit``.
    """
    if {"-h", "--help"} & set(arguments):
        import_quietly("avalanche_vilco.cli.help").show(arguments)
        return 0
    fixed = check_overrides(arguments)
    import hydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    _store_settings(fixed)
    # Hydra reads sys.argv; it also gives -m, --help and --cfg.
    # It takes overrides in one piece, which may come before -m here.
    overrides = list(overrides_of(arguments))
    flags = [text for text in arguments if text not in overrides]
    sys.argv = ["avalanche-vilco run", *flags, *map(_own_message, overrides)]
    # Else it prints tracebacks itself, and advice of its own.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        hydra.main(version_base="1.3", config_path=None, config_name="run")(run_once)()
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        raise SettingError(f"Hydra: {one_line(error)}") from None
    except UnicodeDecodeError as error:
        raise SettingError(f"a configuration file is not UTF-8: {error}") from None
    except KeyboardInterrupt:
        print(
            "interrupted: the same command goes on, without fresh=true", file=sys.stderr
        )
        raise
    return 0


def run_once(config: Any) -> None:
    """Make one run, of Hydra's config, or leave through ``SystemExit``."""
    from omegaconf.errors import OmegaConfBaseException

    try:
        _run_of(config)
    except (ValueError, OSError, ImportError, OmegaConfBaseException) as error:
        # Hydra would print what it was given once more.
        print(f"error: {one_line(error)}", file=sys.stderr)
        is_setting = isinstance(error, (SettingError, OmegaConfBaseException))
        raise SystemExit(2 if is_setting else 1) from None


def _run_of(config: Any) -> None:
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    everything: dict[str, Any] = OmegaConf.to_container(config, resolve=True)
    settings = {k: value for k, value in everything.items() if value is not None}
    try:
        benchmark, strategy = (settings.pop(group) for group in _GROUPS)
        name, method = benchmark.pop("name"), strategy.pop("name")
    except (KeyError, AttributeError):
        raise SettingError(
            "expected a configuration with benchmark and strategy: one of your own "
            "begins with 'defaults: [run, _self_]'"
        ) from None
    hydra = HydraConfig.get()
    fixed = hydra.job.config.override_dirname.exclude_keys
    changed = [text.lstrip("+") for text in hydra.overrides.task]
    changed = sorted(text for text in changed if text.partition("=")[0] not in fixed)
    known = get_type_hints(RunArguments, include_extras=True)
    options = {"benchmark_options", "strategy_options"}
    check_options("run", settings, {k: known[k] for k in known.keys() - options})
    if hydra.mode.name == "MULTIRUN" and changed:
        folder = sweep_folder(",".join(changed))
        place = Path("outputs", name, method, folder, f"seed{settings['seed']}")
        settings.setdefault("output", place)
    import_quietly("avalanche_vilco.experiments.run").run(
        name,
        method,
        benchmark_options=_wishes(benchmark, _generator_settings(name)),
        strategy_options=strategy,
        **settings,
    )


def _own_message(argument: str) -> str:
    """An override that Hydra passes on, whether or not it has a value for it."""
    bare = re.sub(r"^\++", "", argument)
    is_plain = re.match(r"(?!hydra\b)[a-z_][\w.]*=", bare)
    is_group = bare.partition("=")[0] in _GROUPS
    return f"++{bare}" if is_plain and not is_group else argument


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


def _store_settings(fixed: Sequence[str]) -> None:
    """Tell Hydra of all benchmarks, strategies and settings.

    :param fixed: settings that do not name the folder of a sweep's job.
    """
    from hydra.core.config_store import ConfigStore

    import_quietly("avalanche.training")
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
    dirname = {"override_dirname": {"exclude_keys": list(fixed)}}
    node = {
        "defaults": [
            {"benchmark": DEFAULT_BENCHMARK},
            {"strategy": "naive"},
            {"override hydra/job_logging": "none"},
            "_self_",
        ],
        "seed": 0,
        **dict.fromkeys(RunSettings.__annotations__),
        "deviations": None,
        "model_options": None,
        "fresh": False,
        "output": None,
        "hydra": {**_HYDRA, "job": {"chdir": False, "config": dirname}},
    }
    store.store(name="run", node=node)
