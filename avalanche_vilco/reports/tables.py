"""Tables and plots over the results files of several runs."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from avalanche_vilco.evaluation.matrix import TaskMatrix
from avalanche_vilco.reports.results import MAIN_METRIC, RESULTS_VERSION


def read_results(folders: Iterable[Path]) -> list[dict[str, Any]]:
    """Results of runs.

    :param folders: output folders.
    :raises FileNotFoundError: a folder has no results file: the run did not finish.
    """
    results = []
    for folder in folders:
        path = Path(folder) / "results.json"
        if not path.is_file():
            raise FileNotFoundError(f"no {path}: the run has not finished")
        result = json.loads(path.read_text(encoding="utf-8"))
        if result.get("results_version") != RESULTS_VERSION:
            raise ValueError(
                f"{path}: expected results of version {RESULTS_VERSION} but got "
                f"{result.get('results_version')}"
            )
        results.append(result)
    return results


def by_strategy(
    results: Iterable[Mapping[str, Any]],
) -> dict[str, list[Mapping[str, Any]]]:
    """Runs of each strategy, seeds ascending.

    :raises ValueError: runs of one strategy differ in more than their seed.
    """
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for result in sorted(results, key=lambda r: r["config"]["seed"]):
        groups.setdefault(result["config"]["strategy"], []).append(result)
    for strategy, runs in groups.items():
        _check_comparable(strategy, runs)
    return groups


def _check_comparable(strategy: str, runs: Sequence[Mapping[str, Any]]) -> None:
    seeds = [run["config"]["seed"] for run in runs]
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"{strategy}: a seed occurs twice among {seeds}")
    first = _besides_seed(runs[0])
    for run in runs[1:]:
        other = _besides_seed(run)
        differing = sorted(key for key in first if first[key] != other.get(key))
        if differing:
            raise ValueError(
                f"{strategy}: seeds {seeds[0]} and {run['config']['seed']} differ in "
                f"{differing}; make a table for each"
            )


def _besides_seed(run: Mapping[str, Any]) -> dict[str, Any]:
    facts = {**run["config"], "data files": run["data"]["files"]}
    facts["protocol"] = run["benchmark"]["protocol"]
    return {key: value for key, value in facts.items() if key != "seed"}


def markdown_table(
    results: Iterable[Mapping[str, Any]], metrics: Sequence[str] = (MAIN_METRIC,)
) -> str:
    """One row a strategy: mean and standard deviation over seeds, in percent.

    :param results: of any strategies and seeds.
    :param metrics: names in ``results["scores"]``.
    """
    results = list(results)
    columns = ["strategy", "seeds", "memory, share of training samples"]
    for metric in metrics:
        columns += [f"P_T {metric}", f"BwF_T {metric}", f"chance {metric}"]
    lines = [_row(columns), _row(["---"] * len(columns))]
    for strategy, runs in by_strategy(results).items():
        share = statistics.mean(r["memory"]["share_of_training_samples"] for r in runs)
        cells = [strategy, str(len(runs)), f"{100 * share:.0f} %"]
        for metric in metrics:
            scores = [run["scores"][metric] for run in runs]
            for key in ("average", "bwf", "chance"):
                cells.append(mean_and_spread([score[key] for score in scores]))
        lines.append(_row(cells))
    return "\n".join(lines + _departures(results))


def _departures(results: Iterable[Mapping[str, Any]]) -> list[str]:
    """Lines under a table: runs that the public recipe's departures set apart."""
    lines = []
    for strategy, runs in by_strategy(results).items():
        quirks = sorted({name for run in runs for name in run.get("quirks", {})})
        if any(run["benchmark"]["uses_ground_truth_at_test"] for run in runs):
            lines.append(f"{strategy}: uses ground truth at test: yes")
        if quirks:
            lines.append(f"{strategy}: reference quirks {', '.join(quirks)}")
    return ["", *lines] if lines else []


def mean_and_spread(values: Sequence[float | None]) -> str:
    """Mean ± standard deviation in percent, no spread of one value; ``-`` where a
    value is not defined."""
    known = [100 * value for value in values if value is not None]
    if not known or len(known) < len(values):
        return "-"
    mean = f"{statistics.mean(known):.1f}"
    return mean if len(known) == 1 else f"{mean} ± {statistics.stdev(known):.1f}"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def plot_matrices(
    results: Iterable[Mapping[str, Any]], path: Path, metric: str = MAIN_METRIC
) -> None:
    """Task matrices side by side, mean over seeds, in percent.

    :param results: of any strategies and seeds.
    :param path: PNG, PDF or SVG to write.
    :param metric: name in ``results["matrices"]``.
    """
    from matplotlib.figure import Figure

    groups = by_strategy(results)
    figure = Figure(figsize=(3.1 * len(groups), 3.4), layout="constrained")
    panels = figure.subplots(1, len(groups), squeeze=False)[0]
    for panel, (strategy, runs) in zip(panels, groups.items(), strict=True):
        values = [TaskMatrix.from_dict(run["matrices"][metric]).values for run in runs]
        mean = 100 * np.mean(values, axis=0)
        panel.imshow(mean, cmap="viridis", vmin=0, vmax=60)
        for (i, j), value in _filled(mean):
            colour = "black" if value > 40 else "white"
            panel.text(j, i, f"{value:.0f}", ha="center", va="center", color=colour)
        average = mean_and_spread([r["scores"][metric]["average"] for r in runs])
        forgotten = mean_and_spread([r["scores"][metric]["bwf"] for r in runs])
        panel.set_title(f"{strategy}\nP {average}, BwF {forgotten}", fontsize=10)
        panel.set_xlabel("evaluated on experience")
        panel.set_xticks(range(len(mean)))
        panel.set_yticks(range(len(mean)))
    panels[0].set_ylabel("after training on experience")
    figure.savefig(path, dpi=110, bbox_inches="tight")


def _filled(matrix: Any) -> list[tuple[tuple[int, int], float]]:
    return [
        ((i, j), float(value))
        for i, row in enumerate(matrix)
        for j, value in enumerate(row)
        if value == value
    ]
