"""``avalanche-vilco report``: tables and plots over the results of runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from avalanche_vilco.cli.parser import Parser, whole_number
from avalanche_vilco.core.diagnosis import Diagnosis
from avalanche_vilco.core.files import write_atomically
from avalanche_vilco.core.terminal import tell
from avalanche_vilco.reports.plots import SUFFIXES
from avalanche_vilco.reports.report import report
from avalanche_vilco.reports.tables import View


def main(arguments: Sequence[str] | None = None) -> int:
    """``avalanche-vilco report``.

    :return: exit code: 0 no fault, 1 faults or nothing to report, 2 bad usage (raised
        by argparse).
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    diagnosis = Diagnosis("report")
    try:
        text = report(
            options.folders,
            diagnosis,
            form=options.format,
            view=View(
                options.metrics, options.interval, options.equal, options.against
            ),
            paper=options.paper,
            paper_tables=options.paper_tables,
            plot=options.plot,
            matrices=options.matrices,
        )
    except ValueError as error:
        parser.error(str(error))
    if options.output is not None:
        write_atomically(options.output, text + "\n")
    elif text:
        tell(text)
    if options.format != "json":
        for finding in diagnosis.findings:
            print(finding.line(), file=sys.stderr)
    return 1 if diagnosis.n_faults else 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="avalanche-vilco report",
        description="Tables and plots over methods and seeds. Methods share a table "
        "only if they differ in nothing but themselves and keep equally many training "
        "samples, or equally many bytes. Exit code: 0 no fault, 1 faults or nothing "
        "to report, 2 bad usage.",
    )
    add = parser.add_argument
    add("folders", nargs="+", type=Path, help="outputs of runs, searched below")
    forms = ("text", "markdown", "latex", "csv", "json")
    add("--format", choices=forms, default="text")
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
    add(
        "--paper-tables",
        nargs="+",
        type=whole_number(1),
        default=[],
        metavar="N",
        help="only these of them",
    )
    add("--plot", type=_image, metavar="FILE", help="P_T and BwF_T with intervals")
    add("--matrices", type=_image, metavar="FILE", help="task matrices")
    return parser


def _image(name: str) -> Path:
    if Path(name).suffix.lower() not in SUFFIXES:
        raise argparse.ArgumentTypeError(
            f"expected a name ending in {', '.join(SUFFIXES)} but got {name!r}"
        )
    return Path(name)
