"""Runs gathered into methods over seeds, and what may stand beside what.

Runs that differ in anything but method and seed have different *settings* and never
share a table. Methods of one setting are set side by side where they keep equally
many training samples, or equally many bytes.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from avalanche_vilco.data.text.narrations import (
    NARRATION_FEATURE_FILE,
    NARRATION_FILE,
    NARRATION_LMDB,
)
from avalanche_vilco.evaluation.seeds import Interval, SeedSummary, summarise_seeds
from avalanche_vilco.reports.runs import Configuration, Run, Score

Number = Literal["average", "bwf", "chance"]
Facts = Mapping[str, str]

EQUAL_BYTES = 1.05
"""Memories whose bytes differ by at most this factor are said to be equal."""

_OF_THE_METHOD = ("strategy", "strategy_options", "model", "seed")
_WITHOUT_EFFECT = ("device", "num_workers", "eval_batch_size")
_STATED_BY_HASHES = ("dataset_root", "annotations")
_NARRATIONS = (NARRATION_FILE, NARRATION_FEATURE_FILE, NARRATION_LMDB)


def over_seeds(
    values: Sequence[float | None], interval: Interval = "t"
) -> SeedSummary | None:
    """Mean, standard deviation and interval of the mean, in percent.

    :param values: a number in [0, 1] of each run; None where it is not defined.
    :param interval: Student's t, which is honest about few seeds, or the percentile
        bootstrap, which never leaves the range of the runs.
    :return: None if a run lacks the number; NaN spread and interval for one run.
    """
    if not values or any(value is None for value in values):
        return None
    percent = [100 * value for value in values if value is not None]
    return summarise_seeds(percent, interval=interval)


class Capacity(NamedTuple):
    """How much of the training data a method may keep; sorts from none to all."""

    rank: int
    size: int
    text: str


@dataclass(frozen=True)
class Method:
    """Runs of one configuration that differ in their seeds."""

    label: str
    """Strategy, with the options that tell it from others of the setting."""
    runs: Sequence[Run]
    """Seeds ascending."""

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of the runs."""
        return tuple(run.seed for run in self.runs)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Metrics that all runs have."""
        first, *others = (run.results.scores for run in self.runs)
        return tuple(m for m in first if all(m in scores for scores in others))

    def values(self, metric: str, number: Number) -> list[float | None]:
        """A number of each run, in [0, 1] (BwF: [-1, 1])."""
        scores: list[Score] = [run.results.scores[metric] for run in self.runs]
        return [getattr(score, number) for score in scores]

    def memory(self, name: str) -> float:
        """Mean over runs of a figure of :class:`~.runs.Memory`."""
        return statistics.mean(getattr(run.results.memory, name) for run in self.runs)

    @property
    def bytes_kept(self) -> float:
        """Exemplar and auxiliary bytes, mean over runs."""
        return self.memory("exemplar_bytes") + self.memory("auxiliary_bytes")

    @property
    def capacity(self) -> Capacity:
        """What ``mem_size`` allows where the method has one, else what it keeps."""
        memories = [run.results.memory for run in self.runs]
        if all(memory.share_of_training_samples == 1 for memory in memories):
            return Capacity(3, 0, "all training samples")
        options = self.runs[0].results.config.strategy_options
        size = options.get("mem_size") or max(memory.samples for memory in memories)
        if options.get("unit") == "class_slots":
            return Capacity(2, int(size), f"{size} class slots")
        if not size:
            return Capacity(0, 0, "no training samples")
        return Capacity(1, int(size), f"{size} training samples")

    @property
    def exceeds_capacity(self) -> bool:
        """A run keeps more samples than its ``mem_size``."""
        rank, size, _ = self.capacity
        kept = max(run.results.memory.samples for run in self.runs)
        return rank in (1, 2) and kept > size


@dataclass(frozen=True)
class Setting:
    """Methods that differ in nothing but themselves."""

    facts: Facts
    """Data, protocol, order and hyperparameters, as text."""
    methods: Sequence[Method]
    differs_in: Sequence[str]
    """Facts in which the settings of a report differ."""

    @property
    def runs(self) -> list[Run]:
        """Runs of all methods."""
        return [run for method in self.methods for run in method.runs]

    @property
    def metrics(self) -> tuple[str, ...]:
        """Metrics that all methods have."""
        first, *others = (method.metrics for method in self.methods)
        return tuple(m for m in first if all(m in metrics for metrics in others))

    @property
    def main_metric(self) -> str:
        """The one that its runs are judged by."""
        return self.runs[0].results.main_metric

    def find(self, label: str | None) -> Method | None:
        """The method of a label, None if there is none."""
        return next((m for m in self.methods if m.label == label), None)

    def by_capacity(self) -> dict[Capacity, list[Method]]:
        """Methods by the training samples that they may keep, least first."""
        groups: dict[Capacity, list[Method]] = {}
        for method in sorted(self.methods, key=lambda m: m.capacity[:2]):
            groups.setdefault(method.capacity, []).append(method)
        return groups

    def by_bytes(self) -> list[list[Method]]:
        """Methods with memories of equal bytes, least first.

        One that no other equals is alone in its group.
        """
        groups: list[list[Method]] = []
        for method in sorted(self.methods, key=lambda m: m.bytes_kept):
            smallest = groups[-1][0].bytes_kept if groups else -1.0
            if 0 <= method.bytes_kept <= smallest * EQUAL_BYTES:
                groups[-1].append(method)
            else:
                groups.append([method])
        return groups


class Repetition(NamedTuple):
    """Two runs of one configuration and seed."""

    kept: Run
    left_out: Run

    @property
    def is_equal(self) -> bool:
        """They ended with the same weights."""
        first, second = self.kept.results, self.left_out.results
        return first.final_weights_sha256 == second.final_weights_sha256


def gather(runs: Iterable[Run]) -> tuple[list[Setting], list[Repetition]]:
    """Settings with their methods, in the order in which they come.

    :param runs: of any benchmarks, methods and seeds.
    :return: settings, and runs left out because another has their configuration and
        seed.
    """
    groups: dict[str, dict[str, dict[int, Run]]] = {}
    repetitions = []
    facts: dict[str, Facts] = {}
    for run in runs:
        run_facts = setting_facts(run)
        key = json.dumps(run_facts, sort_keys=True)
        facts[key] = run_facts
        seeds = groups.setdefault(key, {}).setdefault(_method_key(run), {})
        if run.seed in seeds:
            repetitions.append(Repetition(seeds[run.seed], run))
        else:
            seeds[run.seed] = run
    differing = _differing(list(facts.values()))
    settings = [
        Setting(facts[key], _methods(list(methods.values())), differing)
        for key, methods in groups.items()
    ]
    return settings, repetitions


def setting_facts(run: Run) -> Facts:
    """All that a run was made with besides its method and seed, as text.

    :param run: finished run.
    """
    config = dict(run.config)
    options = {**config.pop("benchmark_options")}
    options |= options.pop("sources", {})
    info = dict(run.info)
    order = options.pop("fixed_class_order", None)
    if order and options.pop("seed", None) == run.seed:
        # Shuffled anew by each seed: a spread over seeds is one over orders too.
        info["order"] = f"{order} shuffled by the run's seed"
    for name in (*_OF_THE_METHOD, *_WITHOUT_EFFECT):
        config.pop(name, None)
    # Sentences belong to methods that learn from them.
    for name in (*_STATED_BY_HASHES, "narrations"):
        options.pop(name, None)
    facts = {**info, **config, **options, "averages": run.results.averages}
    files = run.results.data.files
    facts.update({f"file {k}": v for k, v in files.items() if k not in _NARRATIONS})
    return {name: _text(value) for name, value in facts.items()}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _method_key(run: Run) -> str:
    config = run.results.config
    files = {k: v for k, v in run.results.data.files.items() if k in _NARRATIONS}
    key = [config.strategy, config.model, config.strategy_options, files]
    return json.dumps(key, sort_keys=True)


def _differing(facts: Sequence[Facts]) -> list[str]:
    names = {name: None for setting in facts for name in setting}
    return [n for n in names if len({setting.get(n) for setting in facts}) > 1]


def _methods(groups: Sequence[Mapping[int, Run]]) -> list[Method]:
    configs = [next(iter(seeds.values())).results.config for seeds in groups]
    most_used = Counter(config.model for config in configs).most_common(1)[0][0]
    return [
        Method(_label(config, configs, most_used), [seeds[n] for n in sorted(seeds)])
        for config, seeds in zip(configs, groups, strict=True)
    ]


def _label(
    config: Configuration, configs: Sequence[Configuration], usual_model: str
) -> str:
    """The strategy, with what tells it from others of its setting."""
    rivals = [c.strategy_options for c in configs if c.strategy == config.strategy]
    extra = [
        f"{name}={json.dumps(value)}"
        for name, value in config.strategy_options.items()
        if any(options.get(name) != value for options in rivals)
    ]
    if config.model != usual_model:
        extra.append(config.model)
    return f"{config.strategy} ({', '.join(extra)})" if extra else config.strategy


def unequal_starts(setting: Setting) -> list[str]:
    """A line for each seed and model whose runs started from unequal weights.

    :param setting: its methods are compared.
    """
    found: dict[str, dict[str, list[str]]] = {}
    for method in setting.methods:
        for run in method.runs:
            start = f"model {run.results.config.model}, seed {run.seed}"
            digest = run.results.initial_weights_sha256[:12]
            found.setdefault(start, {}).setdefault(digest, []).append(method.label)
    return [
        f"initial weights differ ({start}): "
        + "; ".join(f"{digest}: {', '.join(by)}" for digest, by in labels.items())
        for start, labels in found.items()
        if len(labels) > 1
    ]


def unequal_versions(setting: Setting) -> list[str]:
    """A line for each package whose version differs between runs.

    That alone can change a number.

    :param setting: its methods are compared.
    """
    versions = [run.results.versions for run in setting.runs]
    names = sorted({name for found in versions for name in found})
    by_name = {n: {found.get(n, "unknown") for found in versions} for n in names}
    return [
        f"versions differ: {name} {', '.join(sorted(found))}"
        for name, found in by_name.items()
        if len(found) > 1
    ]


def unequal_seeds(setting: Setting) -> list[str]:
    """A line if methods were not run on the same seeds.

    :param setting: its methods are compared.
    """
    seeds: dict[str, list[str]] = {}
    for method in setting.methods:
        seeds.setdefault(" ".join(map(str, method.seeds)), []).append(method.label)
    if len(seeds) < 2:
        return []
    groups = (f"{', '.join(labels)}: {numbers}" for numbers, labels in seeds.items())
    return [f"seeds differ: {'; '.join(groups)}"]
