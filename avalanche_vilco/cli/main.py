"""``avalanche-vilco``: the command line."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import avalanche_vilco

USAGE = """\
avalanche-vilco run [benchmark=vilco_mq] [strategy=naive] [seed=0] [NAME=VALUE ...]
       avalanche-vilco doctor ROOT [--json] [--deep | --no-deep]
       avalanche-vilco predict RUN [--subset val|test] [--output FILE]
       avalanche-vilco report FOLDER ... [--format FORMAT] [--plot FILE]
       avalanche-vilco score --task mq|nlq|vq --predictions FILE --annotations FILE

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


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point.

    :param arguments: command-line arguments without the program's name.
    :return: exit code: 0, 1 for bad data or settings, 2 for bad usage, 130 when
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
    return _COMMANDS[command](arguments[1:])


def _run(settings: Sequence[str]) -> int:
    import hydra

    # Hydra reads sys.argv; it also gives -m, --help and --cfg.
    sys.argv = ["avalanche-vilco run", *settings]
    decorate = hydra.main(
        version_base="1.3", config_path="pkg://avalanche_vilco.conf", config_name="run"
    )
    try:
        decorate(_run_config)()
    except KeyboardInterrupt:
        print("interrupted: the same command with resume=true goes on", file=sys.stderr)
        return 130
    return 0


def _run_config(config: Any) -> None:
    from omegaconf import OmegaConf

    settings: dict[str, Any] = OmegaConf.to_container(config, resolve=True)
    benchmark, strategy = settings.pop("benchmark"), settings.pop("strategy")
    with warnings.catch_warnings():
        # Avalanche and its dependencies warn of their own deprecations on import.
        warnings.simplefilter("ignore")
        from avalanche_vilco.experiments.run import run
    # Avalanche's stock plugins call what Avalanche has deprecated.
    warnings.filterwarnings("ignore", category=DeprecationWarning, module="avalanche")
    try:
        run(
            benchmark.pop("name"),
            strategy.pop("name"),
            benchmark_options={k: v for k, v in benchmark.items() if v is not None},
            strategy_options=strategy,
            **settings,
        )
    except (ValueError, FileNotFoundError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(1) from None


def _doctor(arguments: Sequence[str]) -> int:
    from avalanche_vilco.experiments.doctor import main as examine_and_tell

    try:
        return examine_and_tell(arguments)
    except KeyboardInterrupt:
        return 130


def _predict(arguments: Sequence[str]) -> int:
    with warnings.catch_warnings():
        # Avalanche and its dependencies warn of their own deprecations on import.
        warnings.simplefilter("ignore")
        from avalanche_vilco.experiments.predict import main as write_predictions

    try:
        return write_predictions(arguments)
    except KeyboardInterrupt:
        return 130


def _report(arguments: Sequence[str]) -> int:
    from avalanche_vilco.cli.report import main as gather_and_tell

    try:
        return gather_and_tell(arguments)
    except KeyboardInterrupt:
        return 130


def _score(arguments: Sequence[str]) -> int:
    from avalanche_vilco.experiments.score import main as read_and_score

    try:
        return read_and_score(arguments)
    except KeyboardInterrupt:
        return 130


_COMMANDS: Mapping[str, Callable[[Sequence[str]], int]] = {
    "doctor": _doctor,
    "predict": _predict,
    "report": _report,
    "run": _run,
    "score": _score,
}


if __name__ == "__main__":
    sys.exit(main())
