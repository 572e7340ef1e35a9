"""Published numbers beside ours, and whether ours reproduce them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from avalanche_vilco.core.tables import read_csv
from avalanche_vilco.evaluation.seeds import Interval, SeedSummary
from avalanche_vilco.reports.methods import Method, Setting, over_seeds
from avalanche_vilco.reports.tables import NUMBERS, Section, Table, score_cell

NOT_RUN = "not run (data not here)"
MARGIN = 1.0
"""Points between a published number and our interval that still count as equal:
published spreads are of one decimal, and over what they are taken is not said."""


class PublishedNumber(msgspec.Struct, frozen=True, kw_only=True):
    """A line of ``paper.csv``."""

    table: int
    section: str = ""
    method: str
    """The paper's name, with its variant."""
    strategy: str
    switches: str = ""
    """``name=on`` or ``name=off`` for options of ours, joined by ``;``."""
    order: str
    """``fixed`` or ``random``."""
    features: int
    """Feature sets joined on channels."""
    metric: str
    number: Literal["average", "bwf"]
    published: float
    """Percent."""
    spread: float | None = None
    """Percent, as printed after ±."""

    def is_of(self, method: Method) -> bool:
        """Whether a method of ours is what the paper's line describes.

        :param method: of ours.
        """
        config = method.runs[0].results.config
        order = config.benchmark_options.get("fixed_class_order")
        features = config.sources.get("features")
        n_features = len(features) if isinstance(features, list) else 1
        return (
            config.strategy == self.strategy
            and ("random" if order else "fixed") == self.order
            and n_features == self.features
            and self._agrees(config.strategy_options)
        )

    def _agrees(self, options: Mapping[str, object]) -> bool:
        pairs = [part.split("=") for part in self.switches.split(";") if part]
        return all(bool(options.get(name)) == (state == "on") for name, state in pairs)


def read_published(path: Path | str) -> list[PublishedNumber]:
    """Lines of a ``paper.csv``.

    :param path: the file.
    :raises DataError: damaged; names the line.
    """
    return read_csv(path, PublishedNumber)


@dataclass(frozen=True)
class Comparison:
    """A published number and ours."""

    published: PublishedNumber
    ours: SeedSummary | None
    """None: no run of ours is of this line."""
    method: str
    """Label of ours, empty without a run."""
    data: str
    verdict: str
    """``yes``, ``no``, ``not run (data not here)`` or why there is none."""


def compare(
    published: Sequence[PublishedNumber],
    settings: Sequence[Setting],
    interval: Interval = "t",
) -> list[Comparison]:
    """Each published number with ours, once for each setting that has it.

    :param published: lines.
    :param settings: of ours.
    :param interval: of the mean over seeds.
    """
    found = []
    for line in published:
        pairs = [
            (setting, method)
            for setting in settings
            for method in setting.methods
            if line.is_of(method) and line.metric in method.metrics
        ]
        if not pairs:
            found.append(Comparison(line, None, "", "", NOT_RUN))
        for setting, method in pairs:
            ours = over_seeds(method.values(line.metric, line.number), interval)
            verdict = _verdict(line, ours, setting, method)
            data = setting.facts["data"]
            found.append(Comparison(line, ours, method.label, data, verdict))
    return found


def _verdict(
    line: PublishedNumber, ours: SeedSummary | None, setting: Setting, method: Method
) -> str:
    if setting.facts["data"].startswith("embedded"):
        return NOT_RUN
    if not method.runs[0].results.benchmark.comparable_with_paper:
        return f"no verdict: not comparable (protocol {setting.facts['protocol']})"
    if ours is None:
        return "no"
    low, high = (ours.mean if math.isnan(x) else x for x in (ours.low, ours.high))
    margin = max(MARGIN, line.spread or 0.0)
    return "yes" if low - margin <= line.published <= high + margin else "no"


def published_section(comparisons: Sequence[Comparison]) -> Section:
    """Published numbers beside ours, a table for each of the paper's.

    :param comparisons: from :func:`compare`.
    """
    numbers = sorted({c.published.table for c in comparisons if c.method})
    others = sorted({c.published.table for c in comparisons} - set(numbers))
    header = ["method", "number", "published", "ours", "", "data of ours", "reproduced"]
    tables = [
        Table(
            f"Table {number} of the paper",
            header,
            [_cells(c) for c in comparisons if c.published.table == number],
        )
        for number in numbers
    ]
    before = []
    if any(c.verdict not in ("yes", "no") for c in comparisons):
        before.append(
            "NOT COMPARABLE: data. Published numbers are of Ego4D by the public code's "
            "split, losses and averages; ours stand beside them for orientation alone "
            "unless the last column says yes or no."
        )
    after = [f"Table {number} of the paper: {NOT_RUN}" for number in others]
    return Section("Published numbers (arXiv 2406.13123)", before, tables, after)


def _cells(found: Comparison) -> list[str]:
    line = found.published
    spread = "" if line.spread is None else f" ± {line.spread:g}"
    return [
        line.method,
        f"{NUMBERS[line.number]} {line.metric}",
        f"{line.published:g}{spread}",
        found.method or "-",
        score_cell(found.ours),
        found.data or "-",
        found.verdict,
    ]
