"""``avalanche-vilco score``: the numbers of a submission file."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

import torch

from avalanche_vilco.cli.parser import Parser, whole_number
from avalanche_vilco.core.errors import SettingError
from avalanche_vilco.core.terminal import tell
from avalanche_vilco.experiments.score import score, score_options, scored_benchmark


def main(arguments: Sequence[str]) -> int:
    """``avalanche-vilco score``.

    :return: 0; bad usage is raised by argparse.
    :raises ValueError: a file or the device is at fault.
    """
    options = _options(arguments)
    as_json = options.pop("json")
    if options["device"] == "cuda" and not torch.cuda.is_available():
        raise SettingError("--device cuda: no such device here, use --device cpu")
    result = score(**options)
    text = json.dumps(result.to_dict(), indent=2, allow_nan=False)
    tell(text if as_json else str(result))
    return 0


def _options(arguments: Sequence[str]) -> dict[str, Any]:
    parser = _parser()
    options = vars(parser.parse_args(arguments))
    task = options.pop("task")
    try:
        benchmark = scored_benchmark(task)
    except ValueError as error:
        parser.error(str(error))
    submission = benchmark.submission
    known = () if submission is None else submission.references
    if options["reference"] not in (None, *known):
        parser.error(f"--reference of task {task} is one of {tuple(known)}")
    given = {name for name in ("subset", "k", "tiou") if options[name] is not None}
    unknown = sorted(given - score_options(benchmark))
    if unknown:
        flags = " and ".join(f"--{name}" for name in unknown)
        parser.error(f"task {task} does not take {flags}")
    options = {name: value for name, value in options.items() if value is not None}
    return {"benchmark": benchmark.name, **options}


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="avalanche-vilco score",
        description="Score a submission file in the official format. Exit code: 0 "
        "scored, 1 a file is at fault, 2 bad usage.",
    )
    add = parser.add_argument
    add("--task", metavar="TASK", required=True, help="mq, nlq, vq, or a benchmark")
    add("--predictions", metavar="FILE", required=True, help="the submission, JSON")
    add("--annotations", metavar="FILE", required=True, help="what it answers, JSON")
    add("--reference", help="public evaluator to reproduce (default: our own rules)")
    add("--subset", help="subset to score, task mq (default: val)")
    add("--device", choices=("cpu", "cuda"), default="cpu")
    add("--k", type=whole_number(1), nargs="+", help="predictions that recall looks at")
    add("--tiou", type=_level, nargs="+", help="thresholds, tasks mq and nlq")
    add("--json", action="store_true", help="machine-readable, to stdout")
    return parser


def _level(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"expected a number in (0, 1] but got {text}")
    return value
