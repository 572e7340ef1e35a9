"""``avalanche-vilco``: the command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence

import avalanche_vilco
from avalanche_vilco.cli.quiet import import_quietly
from avalanche_vilco.core.errors import SettingError
from avalanche_vilco.core.terminal import one_line

USAGE = """\
avalanche-vilco run [benchmark=NAME] [strategy=naive] [seed=0] [NAME=VALUE ...]
       avalanche-vilco doctor ROOT [--json] [--deep | --no-deep]
       avalanche-vilco predict RUN [--subset val|test] [--output FILE]
       avalanche-vilco report FOLDER ... [--format FORMAT] [--plot FILE]
       avalanche-vilco score --task TASK --predictions FILE --annotations FILE

  run      train a strategy on a benchmark, print its task matrix, write results
           (avalanche-vilco run --help lists every setting; -m sweeps over
           comma-separated values)
  doctor   say what is there, missing or damaged in a data folder
           (avalanche-vilco doctor --help)
  predict  write a run's answers in the official submission format
           (avalanche-vilco predict --help)
  report   tables and plots over the methods and seeds of finished runs
           (avalanche-vilco report --help)
  score    metrics of a submission file in the official format
           (avalanche-vilco score --help)
"""
_COMMANDS: Mapping[str, str] = {
    "doctor": "avalanche_vilco.cli.doctor",
    "predict": "avalanche_vilco.cli.predict",
    "report": "avalanche_vilco.cli.report",
    "run": "avalanche_vilco.cli.run",
    "score": "avalanche_vilco.cli.score",
}
"""Module of each command, with a function ``main`` of the arguments."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point.

    :param arguments: command-line arguments without the program's name.
    :return: exit code: 0, 1 for bad data, 2 for bad settings or usage, 130 when
        interrupted. (Bad usage and ``--help`` leave through ``SystemExit``.)
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(
        prog="avalanche-vilco",
        usage=USAGE,
        description=avalanche_vilco.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--version", action="version", version=avalanche_vilco.__version__
    )
    parser.add_argument("command", choices=sorted(_COMMANDS), help=argparse.SUPPRESS)
    command = parser.parse_args(arguments[:1]).command
    try:
        code: int = import_quietly(_COMMANDS[command]).main(arguments[1:])
    except KeyboardInterrupt:
        return 130
    except (ValueError, OSError, ImportError) as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 2 if isinstance(error, SettingError) else 1
    return code


if __name__ == "__main__":
    sys.exit(main())
