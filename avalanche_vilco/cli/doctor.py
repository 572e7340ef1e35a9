"""``avalanche-vilco doctor``: what is there, what is missing, what is damaged."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from avalanche_vilco.cli.parser import Parser
from avalanche_vilco.core.terminal import tell
from avalanche_vilco.experiments.doctor import PARTS, examinable, examine


def main(arguments: Sequence[str]) -> int:
    """``avalanche-vilco doctor``.

    :return: exit code: 0 no fault, 1 faults, 2 bad usage (raised by argparse).
    """
    given = vars(_parser().parse_args(arguments))
    root, as_json = given.pop("root"), given.pop("json")
    diagnosis = examine(root, **given)
    tell(json.dumps(diagnosis.to_dict(), indent=2) if as_json else str(diagnosis))
    return 1 if diagnosis.n_faults else 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="avalanche-vilco doctor",
        description="Say what is there, missing or damaged in a data root; change "
        "nothing. Exit code: 0 no fault, 1 faults, 2 bad usage.",
    )
    add = parser.add_argument
    add("root", type=Path, help="the folder that a generator, vilco_mq(ROOT), gets")
    add("--json", action="store_true", help="machine-readable, to stdout")
    add(
        "--benchmark",
        choices=[one.name for one in examinable()],
        help="default: all whose annotation files are there",
    )
    add(
        "--deep",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="read every feature value, not only headers (default: up to 1 GiB)",
    )
    for name in PARTS:
        flag = "--" + name.replace("_", "-")
        add(flag, type=Path, help=f"{name}, if not at its usual place")
    return parser
