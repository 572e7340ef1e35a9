"""Which parts of the public recipe a run is made with, whether by name or by option."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal

from avalanche_vilco.benchmarks.spec import Benchmark, Deviation
from avalanche_vilco.core.errors import SettingError
from avalanche_vilco.core.registry import look_up

if TYPE_CHECKING:
    from avalanche_vilco.training.plugins.best_checkpoint import BestCheckpointPlugin

ALL = "all"
"""Stands for all deviations that concern the strategy."""
REFERENCE_PROTOCOL = "reference"
Selection = Literal["last", "best_on_valid", "best_on_test"]
"""Weights kept of an experience; the last one is a deviation."""


@dataclass(frozen=True)
class ChosenDeviations:
    """Deviations of a run, and how it selects weights."""

    by_name: Mapping[str, Deviation]
    """In the order of the benchmark's table."""
    selection: Selection = "last"

    @property
    def effects(self) -> dict[str, str]:
        """What each changes, for results."""
        return {name: deviation.effect for name, deviation in self.by_name.items()}

    @property
    def averages(self) -> str:
        """``"plain"``, or ``"cumulative"``."""
        kinds = {deviation.averages for deviation in self.by_name.values()}
        return "cumulative" if "cumulative" in kinds else "plain"

    def weights(self, n_classes_per_experience: Sequence[int]) -> list[float]:
        """Weight of each experience, by the classes or queries that each brings."""
        if self.averages == "plain":
            return [1.0] * len(n_classes_per_experience)
        return [float(seen) for seen in accumulate(n_classes_per_experience)]

    def settings(
        self,
        kind: Literal["benchmark_options", "strategy_options", "criterion"],
        given: Any,
    ) -> dict[str, Any]:
        """Options with those that the deviations set."""
        for deviation in self.by_name.values():
            given = merged(given, getattr(deviation, kind))
        return dict(given)

    def validate(self, protocol: str) -> None:
        """Refuse deviations outside the reference protocol.

        :raises SettingError: names the deviations.
        """
        if self.by_name and protocol != REFERENCE_PROTOCOL:
            raise SettingError(
                f"expected protocol {REFERENCE_PROTOCOL!r} for the deviations "
                f"{list(self.by_name)} but got {protocol!r}"
            )

    def selection_plugins(self, benchmark: Benchmark) -> list[BestCheckpointPlugin]:
        """The plugin that keeps the best epoch of each experience, if any.

        :param benchmark: whose metric decides, unless the public code has its own.
        """
        from avalanche_vilco.training.plugins.best_checkpoint import (
            BestCheckpointPlugin,
        )

        if self.selection == "best_on_valid":
            metric, value = selection_metric(benchmark)
            return [BestCheckpointPlugin("valid", metric=metric, value=value)]
        by_test = [d.best_on_test for d in self.by_name.values() if d.best_on_test]
        return [BestCheckpointPlugin("test", metric=make()) for make in by_test]


def selection_metric(benchmark: Benchmark) -> tuple[Any, str]:
    """An empty metric, and the name of the value that a best epoch is chosen by."""
    value = benchmark.selection_metric or benchmark.main_metric
    return next(m for m in benchmark.metrics() if value in m.names), value


def choose_deviations(
    benchmark: Benchmark,
    names: Sequence[str],
    *,
    selection: Selection,
    strategy: str,
    settings: Mapping[str, Mapping[str, Any]],
) -> ChosenDeviations:
    """Those asked for by name, by :data:`ALL`, or by a setting that one stands for.

    :param benchmark: whose they are.
    :param names: of them.
    :param selection: weights kept; ``"last"`` leaves it to the names.
    :param strategy: name, for messages.
    :param settings: the run's ``benchmark_options`` and ``strategy_options``.
    :raises SettingError: a name is unknown, or does not go with the benchmark, the
        strategy or the selection.
    """
    known, options = benchmark.deviations, settings["strategy_options"]
    if names and not known:
        raise SettingError(
            f"expected no deviations but got {list(names)}: benchmark "
            f"{benchmark.name!r} has none"
        )
    for name in names:
        look_up("deviation", name, {**known, ALL: None})
    chosen: dict[str, Deviation] = {}
    for name, deviation in known.items():
        if not (
            {name, ALL} & set(names)
            or _is_set(deviation, settings)
            or (deviation.best_on_test and selection == "best_on_test")
        ):
            continue
        missing = sorted(deviation.strategy_options.keys() - options.keys())
        if not missing:
            chosen[name] = deviation
        elif name in names:
            raise SettingError(
                f"the deviation {name!r} does not go with strategy {strategy!r}, which "
                f"has no option {missing[0]!r}: use strategy 'replay'"
            )
    unit = options.get("unit", "samples")
    if unit != "samples" and not any(
        "unit" in d.strategy_options for d in chosen.values()
    ):
        raise SettingError(
            f"expected unit 'samples' but got {unit!r}: benchmark {benchmark.name!r} "
            "has no deviation that counts a memory so"
        )
    return ChosenDeviations(chosen, _selection(benchmark, chosen, selection))


def _is_set(deviation: Deviation, settings: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether settings hold all that a deviation sets."""
    parts = [(given, getattr(deviation, kind)) for kind, given in settings.items()]
    return any(part for _, part in parts) and all(
        merged(given, part) == given for given, part in parts
    )


def _selection(
    benchmark: Benchmark, chosen: Mapping[str, Deviation], wanted: Selection
) -> Selection:
    by_test = [name for name, deviation in chosen.items() if deviation.best_on_test]
    if by_test and wanted == "best_on_valid":
        raise SettingError(
            f"the deviation {by_test[0]!r} and selection={wanted!r} exclude each "
            "other: leave out one"
        )
    if wanted == "best_on_test" and not by_test:
        raise SettingError(
            f"expected selection 'last' or 'best_on_valid' but got {wanted!r}: "
            f"benchmark {benchmark.name!r} has no deviation that selects so"
        )
    return "best_on_test" if by_test else wanted


def merged(given: Any, more: Mapping[str, Any]) -> Any:
    """Options with others put in, at every depth.

    :param given: mapping or dataclass.
    :param more: option -> value, or -> mapping of parts of it.
    """
    before = vars(given) if is_dataclass(given) else given
    changed = {
        name: merged(before.get(name) or {}, value)
        if isinstance(value, Mapping)
        else value
        for name, value in more.items()
    }
    if is_dataclass(given) and not isinstance(given, type):
        return replace(given, **changed)
    return {**given, **changed}
