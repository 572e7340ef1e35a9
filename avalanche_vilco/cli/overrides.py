"""What overrides on the command line ask for, checked before Hydra composes them.

Hydra answers what it does not know with advice of its own, in several lines, and the
options of strategies and benchmarks with none.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from os.path import normpath
from typing import Any

from avalanche_vilco.benchmarks.spec import DEFAULT_BENCHMARK
from avalanche_vilco.core.errors import SettingError
from avalanche_vilco.experiments.config import RunArguments, resolve

_SWEEPING = frozenset({"-m", "--multirun"})
_PARTS: Mapping[str, str] = {
    "benchmark": "benchmark_options",
    "strategy": "strategy_options",
}


def check_overrides(arguments: Sequence[str]) -> list[str]:
    """Refuse settings that no run takes, in each job of a sweep.

    :param arguments: Hydra's overrides and flags.
    :return: settings of one value, and those that stand in names of folders anyway.
    :raises SettingError: names the setting.
    """
    values: dict[str, list[Any]] = {}
    for text in overrides_of(arguments):
        name, found = _values(text, is_sweep=bool(_SWEEPING & set(arguments)))
        if found is None:
            return []
        if values.setdefault(name, found) is not found and name != "hydra":
            raise SettingError(f"expected {name} once but got it again: {text}")
    outputs: dict[str, dict[str, Any]] = {}
    for each in product(*values.values()):
        job = dict(zip(values, each, strict=True))
        _check_job(job)
        place = str(job.get("output") or "${}")
        # What Hydra fills in may differ.
        if "${" not in place and outputs.setdefault(normpath(place), job) != job:
            raise SettingError(
                f"expected an output for each job but got {place} for several: leave "
                "it out, and each has a folder of its own in outputs"
            )
    fixed = [name for name, several in values.items() if len(several) == 1]
    return [*fixed, "benchmark", "strategy", "seed"]


def sweep_folder(changes: str) -> str:
    """Name of a folder for what a job of a sweep changes; short, and legal anywhere.

    :param changes: overrides, joined.
    """
    name = re.sub(r"[^\w.,=+-]", "_", changes)
    if name == changes and len(name) <= 80:
        return name
    return f"{name[:70]}-{hashlib.sha256(changes.encode()).hexdigest()[:8]}"


def overrides_of(arguments: Sequence[str]) -> Iterator[str]:
    """Arguments that are neither flags nor values of flags.

    :param arguments: Hydra's overrides and flags.
    """
    for before, text in zip(["", *arguments], arguments, strict=False):
        name = text.lstrip("-").partition("=")[0].replace("-", "_")
        if text.startswith("--") and name in RunArguments.__annotations__:
            raise SettingError(f"expected {name}=VALUE, without dashes, but got {text}")
        is_value = before.startswith("-") and before not in _SWEEPING
        if not text.startswith("-") and ("=" in text or not is_value):
            yield text


def _values(text: str, *, is_sweep: bool) -> tuple[str, list[Any] | None]:
    """Name and values of an override; None for what only Hydra can tell."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import ValueType
    from hydra.errors import HydraException

    parser = OverridesParser.create()
    try:
        override = parser.parse_override(text)
        name = str(override.key_or_group)
        if override.is_hydra_override() or override.is_delete():
            return "hydra", [None]
        if not override.is_sweep_override():
            return name, [override.value()]
        if not is_sweep:
            raise SettingError(
                f"expected one value of {name} but got {text!r}: -m runs each, "
                f"{name}=[...] is a list"
            )
        is_glob = override.value_type is ValueType.GLOB_CHOICE_SWEEP
        if is_glob or not override.is_discrete_sweep():
            return name, None
        each = list(override.sweep_string_iterator())
        if not each:
            raise SettingError(f"expected values of {name} but got none: {text}")
        return name, [parser.parse_override(f"value={one}").value() for one in each]
    except SettingError:
        raise
    except (HydraException, ValueError) as error:
        why = str(error).splitlines()[0]
        raise SettingError(f"expected NAME=VALUE but got {text!r}: {why}") from None


def _check_job(values: Mapping[str, Any]) -> None:
    """Refuse what one run would not take; interpolations are Hydra's to fill in."""
    given: dict[str, Any] = {"benchmark": DEFAULT_BENCHMARK, "strategy": "naive"}
    for name, value in values.items():
        if name == "hydra" or (isinstance(value, str) and "${" in value):
            continue
        *within, last = name.split(".")
        for shown, internal in _PARTS.items():
            if internal in (last, *within[:1]):
                raise SettingError(f"expected {shown}.NAME=VALUE but got {name}")
        part = given
        for step in [_PARTS.get(within[0], within[0]), *within[1:]] if within else ():
            if not isinstance(part.get(step), dict):
                part[step] = {}
            part = part[step]
        part[last] = value
    benchmark, strategy = (given.pop(name) for name in _PARTS)
    kept = [*_PARTS.values(), "model_options", "deviations"]
    options: dict[str, Any] = {k: given.pop(k) for k in kept if k in given}
    resolve(benchmark, strategy, given.pop("seed", 0), **options, settings=given)
