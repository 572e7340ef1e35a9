"""Everything on finished runs: tables, plots, published numbers and findings."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import msgspec

from avalanche_vilco.core.diagnosis import Diagnosis
from avalanche_vilco.core.errors import DataError
from avalanche_vilco.core.tables import Form
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

REPORT_VERSION = 1


def report(
    folders: Sequence[Path],
    diagnosis: Diagnosis,
    *,
    form: Form | Literal["csv", "json"] = "text",
    view: tables.View | None = None,
    paper: Path | None = None,
    paper_tables: Collection[int] = (),
    plot: Path | None = None,
    matrices: Path | None = None,
) -> str:
    """A document on the finished runs at or below folders.

    :param folders: searched.
    :param diagnosis: gets a finding for whatever cannot be shown.
    :param form: of the document.
    :param view: metrics, kind of interval and what tables hold equal.
    :param paper: ``paper.csv`` with published numbers to set beside.
    :param paper_tables: numbers of its tables; empty: all.
    :param plot: image to write with scores and intervals.
    :param matrices: image to write with task matrices.
    :raises ValueError: see :meth:`~.tables.View.check`.
    """
    view = view or tables.View()
    settings = read_settings(folders, diagnosis)
    view.check(settings)
    found: list[Comparison] = []
    if paper is not None:
        try:
            lines = read_published(paper)
        except DataError as error:
            diagnosis.add_error("published numbers", error, "pass a paper.csv")
            lines = []
        lines = [x for x in lines if not paper_tables or x.table in paper_tables]
        found = compare(lines, settings, view.interval)
    _draw(settings, view, plot, matrices)
    if form == "csv":
        return tables.to_csv(settings, view).rstrip("\n")
    if form == "json":
        return _json(settings, view, found, diagnosis)
    shown = tables.sections(settings, view)
    return tables.render(shown + ([published_section(found)] if found else []), form)


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
        below = list(run_folders(folder))
        if not below:
            problem = f"no {RESULTS_FILE} in it or below"
            diagnosis.fault("folder", folder, problem, "pass output folders of runs")
        found = (_read(one, diagnosis) for one in below)
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
        diagnosis.note("run", folder, problem, "the same command goes on")
    except DataError as error:
        diagnosis.add_error("run", error, "delete the folder and run it again")
    return None


def _draw(
    settings: Sequence[Setting],
    view: tables.View,
    plot: Path | None,
    matrices: Path | None,
) -> None:
    metric = next(iter(view.metrics), None)
    for path in filter(None, (plot, matrices)):
        path.parent.mkdir(parents=True, exist_ok=True)
    if settings and plot is not None:
        plots.plot_scores(settings, plot, metric, view.interval)
    if settings and matrices is not None:
        plots.plot_matrices(settings, matrices, metric)


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
        "published": [
            {
                **msgspec.structs.asdict(found.published),
                "ours": None if found.ours is None else found.ours.mean,
                "ours_method": found.method,
                "data": found.data,
                "reproduced": found.verdict,
            }
            for found in comparisons
        ],
        "findings": [asdict(finding) for finding in diagnosis.findings],
    }
    return json.dumps(content, indent=2, allow_nan=False)
