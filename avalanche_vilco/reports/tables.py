"""Tables over methods and seeds: text, Markdown, LaTeX, CSV, JSON.

Numbers are in percent. A table holds methods of one setting that keep equally many
training samples, or equally many bytes; its title says how many.
"""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from avalanche_vilco.benchmarks.spec import benchmark_names, find_benchmark
from avalanche_vilco.core.tables import Form, csv_text, escaped, percent, table
from avalanche_vilco.evaluation.seeds import Interval, SeedSummary
from avalanche_vilco.reports.methods import (
    EQUAL_BYTES,
    Method,
    Number,
    Setting,
    over_seeds,
    unequal_seeds,
    unequal_starts,
    unequal_versions,
)
from avalanche_vilco.reports.results import comparability

Equal = Literal["capacity", "bytes", "both"]

NUMBERS: Mapping[Number, str] = {"average": "P_T", "bwf": "BwF_T", "chance": "chance"}
DIFFERENCES: tuple[Number, ...] = ("average", "bwf")
_IN_TITLES = {
    *("benchmark", "data", "protocol", "protocol_version"),
    *("epochs", "batch_size", "learning_rate", "weight_decay"),
}


@dataclass(frozen=True)
class Table:
    """Cells with a title."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Section:
    """Tables of one setting, with what has to be known to read them."""

    title: str
    before: Sequence[str]
    tables: Sequence[Table]
    after: Sequence[str]


@dataclass(frozen=True)
class View:
    """What a report shows."""

    metrics: Sequence[str] = ()
    """Of all settings; empty: each setting's own main metric."""
    interval: Interval = "t"
    equal: Equal = "both"
    against: str | None = None
    """Label of the method that others are compared with, seed by seed."""

    def of(self, setting: Setting) -> View:
        """What it shows of a setting, its metrics by name."""
        return replace(self, metrics=tuple(self.metrics) or (setting.main_metric,))

    def check(self, settings: Sequence[Setting]) -> None:
        """Whether it can be shown.

        :param settings: to be shown.
        :raises ValueError: one lacks a metric, or none has the method to compare with.
        """
        for setting in settings:
            for metric in self.of(setting).metrics:
                if metric not in setting.metrics:
                    known = ", ".join(setting.metrics)
                    raise ValueError(f"expected a metric of {known} but got {metric!r}")
        labels = {method.label: None for s in settings for method in s.methods}
        if settings and self.against not in (None, *labels):
            known = ", ".join(labels)
            raise ValueError(f"expected a method of {known} but got {self.against!r}")


def sections(settings: Iterable[Setting], view: View | None = None) -> list[Section]:
    """A section for each setting.

    :param settings: from :func:`~avalanche_vilco.reports.methods.gather`.
    :param view: metrics and kind of interval.
    :raises ValueError: see :meth:`View.check`.
    """
    settings, view = list(settings), view or View()
    view.check(settings)
    return [
        Section(
            title=setting_title(setting),
            before=_reading_lines(setting, view),
            tables=list(_tables(setting, view.of(setting))),
            after=note_lines(setting),
        )
        for setting in settings
    ]


def _tables(setting: Setting, view: View) -> Iterator[Table]:
    if view.equal != "bytes":
        for capacity, methods in setting.by_capacity().items():
            yield _scores(f"May keep {capacity.text}", methods, view)
    if view.equal != "capacity":
        for methods in setting.by_bytes():
            # Others stand side by side in the tables by capacity.
            if len({method.capacity for method in methods}) > 1:
                ends = (mebibytes(methods[i].bytes_kept) for i in (0, -1))
                within = f"Keep equal bytes (within {100 * (EQUAL_BYTES - 1):.0f} %)"
                yield _scores(f"{within}: {' to '.join(ends)}", methods, view)
    base = setting.find(view.against)
    if base is not None:
        yield _differences(setting, view, base)


def setting_title(setting: Setting) -> str:
    """Data, protocol and hyperparameters in a line.

    It ends with all that tells this setting from the others of the report.
    """
    facts = setting.facts
    title = (
        f"{facts['benchmark']}, {facts['data']}, protocol {facts['protocol']} "
        f"v{facts['protocol_version']}; {facts['epochs']} epochs, batch "
        f"{facts['batch_size']}, learning rate {facts['learning_rate']}, weight decay "
        f"{facts['weight_decay']}"
    )
    telling = [
        f"{name} {_short(facts.get(name, '-'))}"
        for name in setting.differs_in
        if name not in _IN_TITLES
    ]
    return "; ".join([title, *telling])


def _short(text: str, length: int = 40) -> str:
    return text if len(text) <= length else text[: length - 3] + "..."


def _reading_lines(setting: Setting, view: View) -> list[str]:
    kind = {"t": "t-interval", "bootstrap": "percentile-bootstrap interval"}
    name = setting.facts["benchmark"]
    # A report may be read where the package of a run's benchmark is not installed.
    is_known = name in benchmark_names()
    chance = find_benchmark(name).chance if is_known else "on scrambled samples"
    lines = [
        "In percent: mean ± standard deviation over seeds [95 % "
        f"{kind[view.interval]} of the mean]. P_T: average over the experiences after "
        "the last one. BwF_T: backward forgetting, positive is forgetting. chance: "
        f"the same model {chance}.",
        *comparability(setting.runs[0].info).splitlines(),
    ]
    if setting.facts["averages"] != "plain":
        lines.append("P_T and BwF_T are weighted by the queries seen so far.")
    return lines


def note_lines(setting: Setting) -> list[str]:
    """What could make the methods of a setting incomparable, one line each.

    :param setting: its methods are shown.
    """
    equal = ["initial weights: equal for all methods of a seed and model"]
    return [
        *(unequal_starts(setting) or equal),
        *unequal_seeds(setting),
        *unequal_versions(setting),
        *(line for method in setting.methods for line in _method_notes(method)),
    ]


def _method_notes(method: Method) -> Iterator[str]:
    results = [run.results for run in method.runs]
    deviations = sorted({name for result in results for name in result.deviations})
    epochs = {r.train_epochs for r in results} - {results[0].config.epochs}
    if any(result.benchmark.uses_ground_truth_at_test for result in results):
        yield f"{method.label}: uses ground truth at test: yes"
    if deviations:
        yield f"{method.label}: reference deviations {', '.join(deviations)}"
    if epochs:
        yield f"{method.label}: trains for {', '.join(map(str, sorted(epochs)))} epochs"
    if method.exceeds_capacity:
        kept = max(result.memory.samples for result in results)
        size = method.capacity.text
        yield f"{method.label}: keeps {kept} samples, more than its {size}"


def _scores(title: str, methods: Iterable[Method], view: View) -> Table:
    columns = [(metric, number) for metric in view.metrics for number in NUMBERS]
    memory = ("samples", "clips", "hours", "of train", "exemplars", "auxiliary")
    rows = [
        [
            method.label,
            str(len(method.runs)),
            *(
                score_cell(over_seeds(method.values(m, n), view.interval), n)
                for m, n in columns
            ),
            *_memory_cells(method),
        ]
        for method in methods
    ]
    names = [f"{NUMBERS[number]} {metric}" for metric, number in columns]
    return Table(title, ["method", "seeds", *names, *memory], rows)


def _memory_cells(method: Method) -> list[str]:
    unused = method.memory("unused")
    return [
        f"{method.memory('samples'):.0f}"
        + (f" ({unused:.0f} unused)" if unused else ""),
        f"{method.memory('clips'):.0f}",
        f"{method.memory('hours'):.1f} h",
        f"{percent(method.memory('share_of_training_samples'), 0)} %",
        mebibytes(method.memory("exemplar_bytes")),
        mebibytes(method.memory("auxiliary_bytes")),
    ]


def mebibytes(count: float) -> str:
    """``1.50 MiB``, ``0`` for none.

    :param count: of bytes.
    """
    return f"{count / 2**20:.2f} MiB" if count else "0"


def score_cell(found: SeedSummary | None, number: Number = "average") -> str:
    """``20.3 ± 3.6 [11.4, 29.2]``, ``-`` where there is no number.

    The mean alone for one run and for chance.

    :param found: in percent.
    :param number: what it is.
    """
    if found is None:
        return "-"
    if number == "chance" or math.isnan(found.std):
        return f"{found.mean:.1f}"
    return f"{found.mean:.1f} ± {found.std:.1f} [{found.low:.1f}, {found.high:.1f}]"


def _differences(setting: Setting, view: View, base: Method) -> Table:
    columns = [(metric, number) for metric in view.metrics for number in DIFFERENCES]
    rows = [
        [
            method.label,
            method.capacity.text,
            str(len(set(method.seeds) & set(base.seeds))),
            *(
                score_cell(difference(method, base, m, n, view.interval))
                for m, n in columns
            ),
        ]
        for method in setting.methods
        if method is not base
    ]
    return Table(
        f"Minus {base.label} ({base.capacity.text}), seed by seed",
        ["method", "may keep", "seeds", *(f"{NUMBERS[n]} {m}" for m, n in columns)],
        rows,
    )


def difference(
    method: Method,
    base: Method,
    metric: str,
    number: Number,
    interval: Interval = "t",
) -> SeedSummary | None:
    """A number minus that of another method with the same seed, in percent.

    Both start from the same weights, so this spreads less than either.

    :param method: compared with ``base`` on the seeds that both have.
    :param metric: of both.
    :return: None without a common seed, or where a number is not defined.
    """
    values = dict(zip(method.seeds, method.values(metric, number), strict=True))
    bases = dict(zip(base.seeds, base.values(metric, number), strict=True))
    pairs = [(values[seed], bases[seed]) for seed in values if seed in bases]
    gains = [None if a is None or b is None else a - b for a, b in pairs]
    return over_seeds(gains, interval)


# --- Documents ------------------------------------------------------------------------


_LATEX_TABLE = "\\begin{{table}}\n\\caption{{{}}}\n{}\n\\end{{table}}"
_LAYOUTS: Mapping[Form, Sequence[str]] = {
    "text": ("{}", "{}", "{}\n{}", "{}"),
    "markdown": ("## {}\n", "{}  ", "### {}\n\n{}", "- {}"),
    "latex": ("% {}", "% {}", _LATEX_TABLE, "% {}"),
}
"""How title, lines before, tables (title and cells) and lines after are written."""


def render(found: Sequence[Section], form: Form = "text") -> str:
    """Sections as a document.

    :param found: sections.
    :param form: of the document.
    """
    lines = (line for section in found for line in _lines(section, form))
    return "\n".join(lines).strip("\n")


def _lines(section: Section, form: Form) -> Iterator[str]:
    title, before, with_cells, after = _LAYOUTS[form]
    # In a comment of LaTeX nothing is obeyed.
    line_form: Form = "text" if form == "latex" else form
    yield from ("", title.format(escaped(section.title, line_form)))
    yield from (before.format(escaped(line, line_form)) for line in section.before)
    for one in section.tables:
        cells = table(one.header, one.rows, form)
        cells = textwrap.indent(cells, "  ") if form == "text" else cells
        yield from ("", with_cells.format(escaped(one.title, form), cells))
    yield ""
    yield from (after.format(escaped(line, line_form)) for line in section.after)


# --- For programs ---------------------------------------------------------------------


def to_dicts(settings: Iterable[Setting], view: View | None = None) -> list[dict]:
    """Everything in the tables as JSON types, numbers in percent and not rounded.

    :param settings: from :func:`~avalanche_vilco.reports.methods.gather`.
    :param view: kind of interval and metrics.
    """
    view = view or View()
    return [
        {
            "setting": dict(setting.facts),
            "methods": [_method_dict(m, view.of(setting)) for m in setting.methods],
            "equal_bytes": [
                [method.label for method in group]
                for group in setting.by_bytes()
                if len(group) > 1
            ],
            "notes": note_lines(setting),
        }
        for setting in settings
    ]


def _method_dict(method: Method, view: View) -> dict[str, Any]:
    first = method.runs[0].results
    return {
        "method": method.label,
        "strategy": first.config.strategy,
        "options": first.config.strategy_options,
        "model": first.config.model,
        "seeds": list(method.seeds),
        "folders": [str(run.folder) for run in method.runs],
        "capacity": method.capacity.text,
        "memory": {
            name: method.memory(name) for name in first.memory.__struct_fields__
        },
        "uses_ground_truth_at_test": first.benchmark.uses_ground_truth_at_test,
        "deviations": sorted(first.deviations),
        "scores": {
            metric: _score_dict(method, metric, view) for metric in view.metrics
        },
    }


def _score_dict(method: Method, metric: str, view: View) -> dict[str, Any]:
    found = {n: over_seeds(method.values(metric, n), view.interval) for n in NUMBERS}
    values = {
        f"{name}_{part}": getattr(summary, part, math.nan)
        for name, summary in found.items()
        for part in ("mean", "std", "low", "high")
    }
    return {name: None if math.isnan(x) else x for name, x in values.items()}


def to_csv(settings: Iterable[Setting], view: View | None = None) -> str:
    """One line a method and metric, numbers in percent and not rounded.

    :param settings: from :func:`~avalanche_vilco.reports.methods.gather`.
    :param view: kind of interval and metrics.
    """
    return csv_text(
        [
            line
            for number, setting in enumerate(to_dicts(settings, view))
            for method in setting["methods"]
            for line in _csv_lines(number, setting["setting"], method)
        ]
    )


def _csv_lines(
    number: int, facts: Mapping[str, str], method: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    for metric, scores in method["scores"].items():
        yield {
            "setting": number,
            **{key: facts[key] for key in ("benchmark", "data", "protocol", "epochs")},
            **{key: method[key] for key in ("capacity", "method", "strategy")},
            "options": json.dumps(method["options"], sort_keys=True),
            "model": method["model"],
            "seeds": " ".join(map(str, method["seeds"])),
            "metric": metric,
            **scores,
            **method["memory"],
            "uses_ground_truth_at_test": method["uses_ground_truth_at_test"],
            "deviations": " ".join(method["deviations"]),
        }
