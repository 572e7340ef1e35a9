"""``avalanche-vilco run --help``: every setting, with what it means and may be."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from avalanche_vilco.benchmarks.spec import (
    DEFAULT_BENCHMARK,
    Hyperparameters,
    benchmark_names,
    find_benchmark,
)
from avalanche_vilco.core.settings import option_types, type_name
from avalanche_vilco.core.terminal import tell
from avalanche_vilco.experiments.config import RunArguments, RunSettings
from avalanche_vilco.training.table import STRATEGIES

_USAGE = """\
avalanche-vilco run [benchmark=NAME] [strategy=NAME] [NAME=VALUE ...]
avalanche-vilco run -m NAME=VALUE,VALUE ...    runs every combination

null takes a default. Hydra's flags: --hydra-help."""


def show(arguments: Sequence[str]) -> None:
    """Print the help, with the options of the benchmark that is named.

    :param arguments: of the command line.
    """
    chosen = [a.partition("=")[2] for a in arguments if a.startswith("benchmark=")]
    benchmark = find_benchmark([DEFAULT_BENCHMARK, *chosen][-1])
    tell(_USAGE)
    kinds = get_type_hints(RunArguments, include_extras=True)
    for name in ("benchmark_options", "strategy_options"):
        del kinds[name]
    texts = _texts(Hyperparameters) | _texts(RunSettings) | _texts(RunArguments)
    recipe: Mapping[str, Any] = benchmark.recipe.hyperparameters
    usual = {"strategy": "naive", "benchmark": DEFAULT_BENCHMARK, "seed": 0, **recipe}
    _section(f"Settings, with the defaults of {benchmark.name}", kinds, texts, usual)
    tell("\nBenchmarks, and their models (model=NAME)")
    for name in benchmark_names():
        tell(f"  {name:<20}{', '.join(find_benchmark(name).models)}")
    tell("\nStrategies, and their options (strategy.NAME=VALUE)")
    for name, strategy in STRATEGIES.items():
        tell(f"  {name:<20}{strategy.help}")
        usual = {**strategy.options, **benchmark.recipe.strategy_options.get(name, {})}
        for option, kind in strategy.option_types.items():
            _line(f"    .{option}", usual[option], kind, _meaning(kind))
    build = inspect.unwrap(benchmark.build)
    kinds, parameters = option_types(build), inspect.signature(build).parameters
    usual = {n: p.default for n, p in parameters.items() if p.default is not p.empty}
    title = f"Options of {benchmark.name} (benchmark.NAME=VALUE)"
    _section(title, kinds, _texts(build), usual)
    for part in get_args(kinds.get("sources")):
        if isinstance(part, type) and is_dataclass(part):
            title = "Where its files lie (benchmark.sources.NAME=VALUE)"
            texts = {
                n: t for k in reversed(part.__mro__[:-1]) for n, t in _texts(k).items()
            }
            _section(title, option_types(part), texts, vars(part))


def _section(
    title: str,
    kinds: Mapping[str, Any],
    texts: Mapping[str, str],
    usual: Mapping[str, Any],
) -> None:
    tell(f"\n{title}")
    for name, kind in kinds.items():
        _line(f"  {name}", usual.get(name), kind, texts.get(name, ""))


def _line(name: str, default: Any, kind: Any, text: str) -> None:
    head = name if default is None else f"{name}={default}"
    whole = f"{text.rstrip('.')} ({type_name(kind)})".strip()
    indent = " " * 26
    lines = textwrap.wrap(whole, 88, initial_indent=indent, subsequent_indent=indent)
    if len(head) < 25:
        lines[0] = f"{head:<26}{lines[0].strip()}"
    else:
        lines.insert(0, head)
    tell("\n".join(lines))


def _meaning(kind: Any) -> str:
    """Description in a type, at any depth."""
    if get_origin(kind) is Annotated:
        found = [getattr(meta, "description", None) for meta in get_args(kind)[1:]]
        return next(filter(None, found), "")
    return next(filter(None, map(_meaning, get_args(kind))), "")


def _texts(target: Any) -> dict[str, str]:
    """First sentence on each field of a class, or each parameter of a function."""
    if inspect.isclass(target):
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(target))).body
        assert isinstance(body, ast.ClassDef)
        found = {
            ast.unparse(field.target): str(ast.literal_eval(text.value))
            for field, text in zip(body.body, body.body[1:], strict=False)
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr)
        }
    else:
        pattern = r":param (\w+): (.*?)(?=\n:|\Z)"
        found = dict(re.findall(pattern, inspect.getdoc(target) or "", re.S))
    return {name: _first_sentence(text) for name, text in found.items()}


def _first_sentence(text: str) -> str:
    text = re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"\1", " ".join(text.split()))
    return re.split(r"(?<=[.;]) ", text.replace("``", ""))[0].rstrip(".;")
