"""``avalanche-vilco predict``: a run's answers in the official format."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from avalanche_vilco.cli.parser import Parser
from avalanche_vilco.cli.quiet import import_quietly
from avalanche_vilco.experiments.config import usable_device


def main(arguments: Sequence[str]) -> int:
    """Write a file of answers.

    :return: 0; bad usage is raised by argparse.
    """
    options = _parser().parse_args(arguments)
    root, device = options.dataset_root, usable_device(options.device)
    import_quietly("avalanche_vilco.experiments.predict").predict(
        options.run,
        options.output,
        subset=options.subset,
        benchmark_options={} if root is None else {"dataset_root": root},
        device=device,
    )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="avalanche-vilco predict",
        description="Write a run's answers in the benchmark's submission format, from "
        "checkpoint.pkl in its folder. That file can run code "
        "when it is loaded: pass folders of your own runs only. Exit code: 0 written, "
        "1 the run or its data are at fault, 2 bad usage.",
    )
    add = parser.add_argument
    add("run", metavar="RUN", help="output folder of a run")
    add(
        "--subset",
        choices=("val", "test"),
        default="val",
        help="val: the run's test stream (default); test: clips without annotations",
    )
    add("--output", metavar="FILE", help="default RUN/predictions_SUBSET.json")
    add("--dataset-root", metavar="DIR", help="where the data lie now")
    add("--device", default="auto")
    return parser
