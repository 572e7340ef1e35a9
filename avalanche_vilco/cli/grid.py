"""Command line of the scripts ``benchmarks/<name>/grid.py``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from avalanche_vilco.cli.parser import Parser, whole_number
from avalanche_vilco.core.errors import SettingError
from avalanche_vilco.core.terminal import one_line
from avalanche_vilco.experiments.grid import EMBEDDED, Grid, GridOptions, run_grid


def main(
    grid: Grid, description: str | None, arguments: Sequence[str] | None = None
) -> int:
    """Run and report.

    :return: exit code: 1 if a run failed or methods are not comparable, 2 for wrong
        settings, 130 when interrupted.
    """
    options = parse(grid, description, arguments)
    try:
        failed = run_grid(grid, options)
    except KeyboardInterrupt:
        return 130
    except SettingError as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 2
    for line in failed:
        print(f"FAILED {line}", file=sys.stderr)
    return 1 if failed else 0


def parse(
    grid: Grid, description: str | None, arguments: Sequence[str] | None
) -> GridOptions:
    """What the command line asks for."""
    parser = Parser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", choices=sorted(grid.memory), default=EMBEDDED)
    add("--root", type=Path, help="data root, with --data ego4d")
    add("--seeds", nargs="+", type=whole_number(), default=[0, 1, 2])
    add("--tables", nargs="+", type=int, choices=sorted(grid.paper_tables), default=())
    names = [row.name for row in grid.rows]
    add("--rows", nargs="+", choices=names, default=(), help="only these")
    add(
        "--jobs",
        type=whole_number(1),
        default=1,
        help="runs at once, one torch thread each",
    )
    add("--output", type=Path, help="default outputs/grid_DATA")
    add(
        "--mem-size",
        type=whole_number(),
        help="training samples kept, for rows with a memory",
    )
    add("--model", help="another model than the data's")
    add("--epochs", type=whole_number(1), help="other than the data's")
    add("--device", default="auto")
    add("--list", action="store_true", help="say what would be run, and run nothing")
    add("--write-expected", type=Path, metavar="CSV", help="write what was found")
    add("--expected", type=Path, metavar="CSV", help="compare with what was found")
    options = vars(parser.parse_args(arguments))
    data = options["data"]
    if data != EMBEDDED and options["root"] is None:
        parser.error(
            "the paper's data need a licence and are not shipped: pass --root FOLDER "
            "(avalanche-vilco doctor FOLDER examines it), or run the embedded default "
            "with --data embedded"
        )
    if data == EMBEDDED and options["root"] is not None:
        parser.error("--root goes with --data ego4d")
    options["output"] = options["output"] or Path("outputs", f"grid_{data}")
    return GridOptions(**options)
