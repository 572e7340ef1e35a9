"""Tables over methods and seeds: text, Markdown, LaTeX, CSV, JSON.

Numbers are in percent. A table holds methods of one setting that keep equally many
training samples, or equally many bytes; its title says how many.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from avalanche_vilco.evaluation.seeds import SeedSummary
from avalanche_vilco.reports.methods import (
    EQUAL_BYTES,
    Interval,
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

MEBIBYTE = 2**20
NUMBERS: Mapping[Number, str] = {"average": "P_T", "bwf": "BwF_T", "chance": "chance"}
_IN_TITLES = {
    *("benchmark", "data", "protocol", "protocol_version"),
    *("epochs", "batch_size", "learning_rate", "weight_decay"),
}
CHANCE: Mapping[str, str] = {
    "vilco_mq": "on shuffled features",
    "vilco_nlq": "on shuffled features",
    "vilco_vq": "when each query shows the crop of another",
}
"""What the chance level is of, by benchmark: see its dataset's ``scrambled``."""
MEMORY_COLUMNS = ("samples", "clips", "hours", "of train", "exemplars", "auxiliary")


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
    before: Sequence[str] = ()
    tables: Sequence[Table] = ()
    after: Sequence[str] = field(default=())


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
    return [_section(setting, view.of(setting)) for setting in settings]


def _section(setting: Setting, view: View) -> Section:
    tables = []
    if view.equal != "bytes":
        tables += _capacity_tables(setting, view)
    if view.equal != "capacity":
        tables += _bytes_tables(setting, view)
    base = setting.find(view.against)
    if base is not None:
        tables.append(_differences(setting, view, base))
    return Section(
        title=setting_title(setting),
        before=_reading_lines(setting, view),
        tables=tables,
        after=note_lines(setting),
    )


def setting_title(setting: Setting) -> str:
    """Data, protocol and hyperparameters in a line, with all that tells this setting
    from the others of the report.
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
    lines = [
        "In percent: mean ± standard deviation over seeds [95 % "
        f"{kind[view.interval]} of the mean]. P_T: average over the experiences after "
        "the last one. BwF_T: backward forgetting, positive is forgetting. chance: "
        f"the same model {_chance(setting)}.",
        *comparability(setting.runs[0].info).splitlines(),
    ]
    if setting.facts["averages"] != "plain":
        lines.append("P_T and BwF_T are weighted by the queries seen so far.")
    return lines


def _chance(setting: Setting) -> str:
    """What the model is shown instead of what says the answer."""
    return CHANCE.get(setting.facts["benchmark"], "on scrambled samples")


def note_lines(setting: Setting) -> list[str]:
    """What could make the methods of a setting incomparable, one line each.

    :param setting: its methods are shown.
    """
    starts = unequal_starts(setting)
    if not starts:
        starts = ["initial weights: equal for all methods of a seed and model"]
    return [
        *starts,
        *unequal_seeds(setting),
        *unequal_versions(setting),
        *(line for method in setting.methods for line in _method_notes(method)),
    ]


def _method_notes(method: Method) -> list[str]:
    lines = []
    results = [run.results for run in method.runs]
    deviations = sorted({name for result in results for name in result.deviations})
    passes = {r.train_epochs for r in results} - {None, results[0].config.epochs}
    if any(result.benchmark.uses_ground_truth_at_test for result in results):
        lines.append(f"{method.label}: uses ground truth at test: yes")
    if deviations:
        lines.append(f"{method.label}: reference deviations {', '.join(deviations)}")
    if passes:
        told = ", ".join(map(str, sorted(p for p in passes if p is not None)))
        lines.append(f"{method.label}: trains for {told} epochs")
    if method.exceeds_capacity:
        kept = max(result.memory.samples for result in results)
        size = method.capacity.words
        lines.append(f"{method.label}: keeps {kept} samples, more than its {size}")
    return lines


def _capacity_tables(setting: Setting, view: View) -> list[Table]:
    groups = setting.by_capacity()
    return [
        Table(
            f"May keep {capacity.words}",
            _header(view),
            [_cells(method, view) for method in methods],
        )
        for capacity, methods in groups.items()
    ]


def _bytes_tables(setting: Setting, view: View) -> list[Table]:
    """Groups that the tables by capacity do not show side by side."""
    groups = [
        group
        for group in setting.by_bytes()
        if len({method.capacity for method in group}) > 1
    ]
    return [
        Table(
            f"Keep equal bytes (within {100 * (EQUAL_BYTES - 1):.0f} %): "
            f"{_mebibytes(group[0].bytes_kept)} to {_mebibytes(group[-1].bytes_kept)}",
            _header(view),
            [_cells(method, view) for method in group],
        )
        for group in groups
    ]


def _header(view: View) -> list[str]:
    scores = [f"{word} {m}" for m in view.metrics for word in NUMBERS.values()]
    return ["method", "seeds", *scores, *MEMORY_COLUMNS]


def _cells(method: Method, view: View) -> list[str]:
    scores = [
        told(over_seeds(method.values(metric, number), view.interval), number)
        for metric in view.metrics
        for number in NUMBERS
    ]
    return [method.label, str(len(method.runs)), *scores, *_memory_cells(method)]


def _memory_cells(method: Method) -> list[str]:
    return [
        f"{method.memory('samples'):.0f}",
        f"{method.memory('clips'):.0f}",
        f"{method.memory('hours'):.1f} h",
        f"{100 * method.memory('share_of_training_samples'):.0f} %",
        _mebibytes(method.memory("exemplar_bytes")),
        _mebibytes(method.memory("auxiliary_bytes")),
    ]


def _mebibytes(count: float) -> str:
    return f"{count / MEBIBYTE:.2f} MiB" if count else "0"


def told(found: SeedSummary | None, number: Number = "average") -> str:
    """``20.3 ± 3.6 [11.4, 29.2]``; the mean alone for one run and for chance, ``-``
    where there is no number.

    :param found: in percent.
    :param number: what it is.
    """
    if found is None:
        return "-"
    if number == "chance" or math.isnan(found.std):
        return f"{found.mean:.1f}"
    return f"{found.mean:.1f} ± {found.std:.1f} [{found.low:.1f}, {found.high:.1f}]"


# Against one method, seed by seed


def _differences(setting: Setting, view: View, base: Method) -> Table:
    scores = [f"{NUMBERS[n]} {m}" for m in view.metrics for n in ("average", "bwf")]  # type: ignore[index]
    others = [method for method in setting.methods if method is not base]
    return Table(
        f"Minus {base.label} ({base.capacity.words}), seed by seed",
        ["method", "may keep", "seeds", *scores],
        [_difference_cells(method, base, view) for method in others],
    )


def _difference_cells(method: Method, base: Method, view: View) -> list[str]:
    seeds = [seed for seed in method.seeds if seed in base.seeds]
    numbers: tuple[Number, ...] = ("average", "bwf")
    scores = [
        told(difference(method, base, metric, number, view.interval))
        for metric in view.metrics
        for number in numbers
    ]
    return [method.label, method.capacity.words, str(len(seeds)), *scores]


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
    own = dict(zip(method.seeds, method.values(metric, number), strict=True))
    theirs = dict(zip(base.seeds, base.values(metric, number), strict=True))
    pairs = [(own[seed], theirs[seed]) for seed in own if seed in theirs]
    gains = [None if a is None or b is None else a - b for a, b in pairs]
    return over_seeds(gains, interval)


# Renderings


def render(
    found: Sequence[Section], form: Literal["text", "markdown", "latex"] = "text"
) -> str:
    """Sections as a document.

    :param found: sections.
    :param form: of the document.
    """
    lines = [line for section in found for line in _FORMS[form](section)]
    return "\n".join(lines).strip("\n")


def _printable(text: str) -> str:
    """Names come from files, and may hold what a terminal would obey."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _as_text(section: Section) -> Iterable[str]:
    yield from ("", _printable(section.title), *map(_printable, section.before))
    for table in section.tables:
        cells = [[_printable(c) for c in row] for row in (table.header, *table.rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        yield from ("", _printable(table.title))
        for row in cells:
            padded = (c.ljust(w) for c, w in zip(row, widths, strict=True))
            yield "  " + "  ".join(padded).rstrip()
    yield from ("", *map(_printable, section.after))


def _as_markdown(section: Section) -> Iterable[str]:
    yield from ("", f"## {_markdown(section.title)}", "")
    for line in section.before:
        yield f"{_markdown(line)}  "
    for table in section.tables:
        yield from ("", f"### {_markdown(table.title)}", "")
        for row in (table.header, ["---"] * len(table.header), *table.rows):
            yield f"| {' | '.join(map(_markdown, row))} |"
    yield ""
    for line in section.after:
        yield f"- {_markdown(line)}"


def _markdown(text: str) -> str:
    return _printable(text).replace("|", "\\|")


def _as_latex(section: Section) -> Iterable[str]:
    yield from ("", f"% {_printable(section.title)}")
    for line in (*section.before, *section.after):
        yield f"% {_printable(line)}"
    for table in section.tables:
        yield from ("\\begin{table}", f"\\caption{{{_latex(table.title)}}}")
        yield f"\\begin{{tabular}}{{l{'r' * (len(table.header) - 1)}}}"
        yield "\\toprule"
        yield " & ".join(map(_latex, table.header)) + " \\\\"
        yield "\\midrule"
        for row in table.rows:
            yield " & ".join(map(_latex, row)) + " \\\\"
        yield from ("\\bottomrule", "\\end{tabular}", "\\end{table}")


_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        **{c: f"\\{c}" for c in "&%$#_{}"},
    }
)


def _latex(text: str) -> str:
    return _printable(text).translate(_LATEX)


_FORMS: Mapping[str, Callable[[Section], Iterable[str]]] = {
    "text": _as_text,
    "markdown": _as_markdown,
    "latex": _as_latex,
}


# For programs


def to_dicts(settings: Iterable[Setting], view: View | None = None) -> list[dict]:
    """Everything in the tables as JSON types, numbers in percent and not rounded.

    :param settings: from :func:`~avalanche_vilco.reports.methods.gather`.
    :param view: kind of interval and metrics.
    """
    view = view or View()
    return [
        {
            "setting": dict(setting.facts),
            "methods": [
                _method_dict(method, view.of(setting)) for method in setting.methods
            ],
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
        "capacity": method.capacity.words,
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
    return {
        f"{name}_{part}": None if summary is None else _known(getattr(summary, part))
        for name, summary in found.items()
        for part in ("mean", "std", "low", "high")
    }


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def to_csv(settings: Iterable[Setting], view: View | None = None) -> str:
    """One line a method and metric, numbers in percent and not rounded.

    :param settings: from :func:`~avalanche_vilco.reports.methods.gather`.
    :param view: kind of interval and metrics.
    """
    lines: list[dict[str, Any]] = []
    for number, setting in enumerate(to_dicts(settings, view)):
        for method in setting["methods"]:
            lines += _csv_lines(number, setting["setting"], method)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(lines[0]) if lines else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def _csv_lines(
    number: int, facts: Mapping[str, str], method: Mapping[str, Any]
) -> list[dict[str, Any]]:
    common = {
        "setting": number,
        **{name: facts[name] for name in ("benchmark", "data", "protocol", "epochs")},
        "capacity": method["capacity"],
        "method": method["method"],
        "strategy": method["strategy"],
        "options": json.dumps(method["options"], sort_keys=True),
        "model": method["model"],
        "seeds": " ".join(map(str, method["seeds"])),
    }
    rest = {
        **method["memory"],
        "uses_ground_truth_at_test": method["uses_ground_truth_at_test"],
        "deviations": " ".join(method["deviations"]),
    }
    return [
        {**common, "metric": metric, **scores, **rest}
        for metric, scores in method["scores"].items()
    ]
