"""``avalanche-vilco report``: tables and plots over the results of runs."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from avalanche_vilco.core.diagnosis import Diagnosis
from avalanche_vilco.core.errors import DataError
from avalanche_vilco.core.files import write_atomically
from avalanche_vilco.core.terminal import tell
from avalanche_vilco.reports import plots, tables
from avalanche_vilco.reports.methods import Setting, gather
from avalanche_vilco.reports.published import (
    Comparison,
    compare,
    published_section,
    read_published,
)
from avalanche_vilco.reports.runs import (
    RESULTS_FILE,
    Run,
    experiences_done,
    read_run,
    run_folders,
)

FORMATS = ("text", "markdown", "latex", "csv", "json")
REPORT_VERSION = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """``avalanche-vilco report``.

    :param arguments: command-line arguments without program and command.
    :return: exit code: 0 no fault, 1 faults or nothing to report, 2 bad usage (raised
        by argparse).
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    diagnosis = Diagnosis("report")
    settings = read_settings(options.folders, diagnosis)
    comparisons = _comparisons(options, settings, diagnosis)
    view = tables.View(
        tuple(options.metrics), options.interval, options.equal, options.against
    )
    try:
        view.check(settings)
    except ValueError as error:
        parser.error(str(error))
    text = _document(options.format, settings, view, comparisons, diagnosis)
    if settings:
        _plot(options, settings)
    _deliver(text, options.output)
    if options.format != "json":
        for finding in diagnosis.findings:
            print(finding.line(), file=sys.stderr)
    return 1 if diagnosis.n_faults else 0


def read_settings(folders: Sequence[Path], diagnosis: Diagnosis) -> list[Setting]:
    """Finished runs at or below folders; what is not one becomes a finding.

    :param folders: searched.
    :param diagnosis: gets a line for each folder that cannot be shown.
    """
    runs = {run.folder.resolve(): run for run in _runs(folders, diagnosis)}
    settings, repetitions = gather(runs.values())
    for twice in repetitions:
        folder = twice.left_out.folder
        problem = f"left out: {twice.kept.folder} has its configuration and seed"
        if twice.is_equal:
            diagnosis.note("run", folder, problem, "nothing, they ended equal")
        else:
            problem += " but ended with other weights"
            diagnosis.fault("run", folder, problem, "delete one of them")
    return settings


def _runs(folders: Sequence[Path], diagnosis: Diagnosis) -> list[Run]:
    runs = []
    for folder in folders:
        if not folder.is_dir():
            diagnosis.fault("folder", folder, "no such folder", "pass output folders")
            continue
        places = list(run_folders(folder))
        if not places:
            problem = f"no {RESULTS_FILE} in it or below"
            diagnosis.fault("folder", folder, problem, "pass output folders of runs")
        found = (_read(place, diagnosis) for place in places)
        runs += [run for run in found if run is not None]
    return runs


def _read(folder: Path, diagnosis: Diagnosis) -> Run | None:
    try:
        return read_run(folder)
    except FileNotFoundError:
        pass
    except DataError as error:
        diagnosis.add_error("run", error, "run it again")
        return None
    try:
        problem = f"unfinished after {experiences_done(folder)} experiences, left out"
        diagnosis.note("run", folder, problem, "the same command with resume=true")
    except DataError as error:
        diagnosis.add_error("run", error, "delete the folder and run it again")
    return None


def _comparisons(
    options: argparse.Namespace, settings: Sequence[Setting], diagnosis: Diagnosis
) -> list[Comparison]:
    if options.paper is None:
        return []
    try:
        published = read_published(options.paper)
    except DataError as error:
        diagnosis.add_error("published numbers", error, "pass a paper.csv")
        return []
    wanted = options.paper_tables or {line.table for line in published}
    published = [line for line in published if line.table in wanted]
    return compare(published, settings, options.interval)


def _document(
    form: str,
    settings: Sequence[Setting],
    view: tables.View,
    comparisons: Sequence[Comparison],
    diagnosis: Diagnosis,
) -> str:
    shown = tables.sections(settings, view)
    if form == "csv":
        return tables.to_csv(settings, view).rstrip("\n")
    if form == "json":
        return _json(settings, view, comparisons, diagnosis)
    if comparisons:
        shown.append(published_section(comparisons))
    return tables.render(shown, form)  # type: ignore[arg-type]


def _json(
    settings: Sequence[Setting],
    view: tables.View,
    comparisons: Sequence[Comparison],
    diagnosis: Diagnosis,
) -> str:
    content: dict[str, Any] = {
        "report_version": REPORT_VERSION,
        "ok": not diagnosis.n_faults,
        "settings": tables.to_dicts(settings, view),
        "published": [_comparison_dict(found) for found in comparisons],
        "findings": [asdict(finding) for finding in diagnosis.findings],
    }
    return json.dumps(content, indent=2, allow_nan=False)


def _comparison_dict(found: Comparison) -> dict[str, Any]:
    line = {
        name: getattr(found.published, name)
        for name in found.published.__struct_fields__
    }
    ours = None if found.ours is None else found.ours.mean
    return {
        **line,
        "ours": ours,
        "ours_method": found.method,
        "data": found.data,
        "reproduced": found.verdict,
    }


def _plot(options: argparse.Namespace, settings: Sequence[Setting]) -> None:
    metric = next(iter(options.metrics), None)
    if options.plot is not None:
        options.plot.parent.mkdir(parents=True, exist_ok=True)
        plots.plot_scores(settings, options.plot, metric, options.interval)
    if options.matrices is not None:
        options.matrices.parent.mkdir(parents=True, exist_ok=True)
        plots.plot_matrices(settings, options.matrices, metric)


def _deliver(text: str, output: Path | None) -> None:
    if output is not None:
        write_atomically(output, text + "\n")
    elif text:
        tell(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="avalanche-vilco report",
        description="Tables and plots over methods and seeds. Methods share a table "
        "only if they differ in nothing but themselves and keep equally many training "
        "samples, or equally many bytes. Exit code: 0 no fault, 1 faults or nothing "
        "to report, 2 bad usage.",
    )
    add = parser.add_argument
    add("folders", nargs="+", type=Path, help="outputs of runs, searched below")
    add("--format", choices=FORMATS, default="text")
    add("--output", type=Path, help="file for the tables instead of stdout")
    add(
        "--metrics",
        nargs="+",
        default=[],
        metavar="METRIC",
        help="default: the main metric of the runs' benchmark; plots show the first",
    )
    add(
        "--interval",
        choices=("t", "bootstrap"),
        default="t",
        help="95 %% interval of the mean over seeds",
    )
    add(
        "--equal",
        choices=("capacity", "bytes", "both"),
        default="both",
        help="what methods of one table keep equally much of",
    )
    add("--against", metavar="METHOD", help="differences from it, seed by seed")
    add("--paper", type=Path, metavar="CSV", help="published numbers to stand beside")
    add("--paper-tables", nargs="+", type=int, metavar="N", help="only these of them")
    add("--plot", type=_image, metavar="FILE", help="P_T and BwF_T with intervals")
    add("--matrices", type=_image, metavar="FILE", help="task matrices")
    return parser


def _image(name: str) -> Path:
    if Path(name).suffix.lower() not in plots.SUFFIXES:
        raise argparse.ArgumentTypeError(
            f"expected a name ending in {', '.join(plots.SUFFIXES)} but got {name!r}"
        )
    return Path(name)
