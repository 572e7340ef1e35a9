"""Plots over methods and seeds."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from avalanche_vilco.evaluation.seeds import Interval
from avalanche_vilco.reports.methods import Method, Number, Setting, over_seeds
from avalanche_vilco.reports.tables import setting_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES = (".png", ".pdf", ".svg")
_PANELS: dict[Number, str] = {
    "average": "P_T in %, more is better",
    "bwf": "BwF_T in %, positive is forgetting",
}


def plot_scores(
    settings: Sequence[Setting],
    path: Path,
    metric: str | None = None,
    interval: Interval = "t",
) -> None:
    """P_T and BwF_T of each method with intervals and the single seeds.

    A row of panels for each setting, methods grouped by what they may keep.

    :param settings: what to show.
    :param path: PNG, PDF or SVG to write.
    :param metric: that all have; None: each setting's main one.
    :param interval: of the mean over seeds.
    """
    from matplotlib.figure import Figure

    heights = [len(s.methods) + len(s.by_capacity()) for s in settings]
    figure = Figure(
        figsize=(11, 1.6 * len(settings) + 0.3 * sum(heights)), layout="constrained"
    )
    grid = figure.subplots(len(settings), 2, squeeze=False, height_ratios=heights)
    for setting, panels in zip(settings, grid, strict=True):
        shown = metric or setting.main_metric
        for panel, (number, label) in zip(panels, _PANELS.items(), strict=True):
            _draw_scores(panel, setting, shown, number, interval)
            panel.set_xlabel(f"{shown}: {label}")
        panels[1].set_yticklabels([])
        title = textwrap.fill(setting_title(setting), 70)
        panels[0].set_title(title, fontsize=8, loc="left")
    figure.savefig(path, dpi=110, bbox_inches="tight")


def _draw_scores(
    panel: Axes, setting: Setting, metric: str, number: Number, interval: Interval
) -> None:
    labels = []
    for capacity, methods in setting.by_capacity().items():
        labels.append((f"may keep {capacity.text}", "bold"))
        for method in methods:
            _draw_method(panel, len(labels), method, metric, number, interval)
            labels.append((method.label, "normal"))
    panel.set_yticks(range(len(labels)), [label for label, _ in labels])
    for tick, (_, weight) in zip(panel.get_yticklabels(), labels, strict=True):
        tick.set_fontweight(weight)
    panel.set_ylim(len(labels) - 0.5, -0.5)
    panel.axvline(0, color="0.7", linewidth=0.8)
    panel.grid(axis="x", color="0.9")


def _draw_method(
    panel: Axes,
    line: int,
    method: Method,
    metric: str,
    number: Number,
    interval: Interval,
) -> None:
    values = method.values(metric, number)
    found = over_seeds(values, interval)
    if found is None:
        panel.text(0, line, " not defined", va="center", color="0.5", fontsize=8)
        return
    if not math.isnan(found.low):
        panel.plot([found.low, found.high], [line, line], color="C0", linewidth=2)
    panel.plot(found.mean, line, "o", color="C0")
    seeds = [100 * value for value in values if value is not None]
    panel.plot(seeds, [line] * len(seeds), "|", color="0.4", markersize=9)


def plot_matrices(
    settings: Sequence[Setting], path: Path, metric: str | None = None
) -> None:
    """Task matrices side by side, mean over seeds, in percent.

    A row of panels for each setting.

    :param settings: what to show.
    :param path: PNG, PDF or SVG to write.
    :param metric: that all have; None: each setting's main one.
    """
    from matplotlib.figure import Figure

    width = max(len(setting.methods) for setting in settings)
    size = (3.1 * width, 3.4 * len(settings))
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(len(settings), width, squeeze=False)
    for setting, panels in zip(settings, grid, strict=True):
        for panel in panels[len(setting.methods) :]:
            panel.set_axis_off()
        for panel, method in zip(panels, setting.methods, strict=False):
            _draw_matrix(panel, method, metric or setting.main_metric)
        panels[0].set_ylabel("after training on experience")
    figure.savefig(path, dpi=110, bbox_inches="tight")


def _draw_matrix(panel: Axes, method: Method, metric: str) -> None:
    matrices = [run.matrix(metric) for run in method.runs]
    mean = 100 * np.mean([matrix.values for matrix in matrices], axis=0)
    panel.imshow(mean, cmap="viridis", vmin=0, vmax=60)
    for (i, j), value in np.ndenumerate(mean):
        if not math.isnan(value):
            colour = "black" if value > 40 else "white"
            panel.text(j, i, f"{value:.0f}", ha="center", va="center", color=colour)
    average, forgetting = (_mean_and_spread(method, metric, n) for n in _PANELS)
    panel.set_title(
        f"{method.label}, {method.capacity.text}\nP {average}, BwF {forgetting}",
        fontsize=9,
    )
    panel.set_xlabel("evaluated on experience")
    panel.set_xticks(range(mean.shape[1]))
    panel.set_yticks(range(mean.shape[0]), matrices[0].step_labels)


def _mean_and_spread(method: Method, metric: str, number: Number) -> str:
    found = over_seeds(method.values(metric, number))
    if found is None:
        return "-"
    spread = "" if math.isnan(found.std) else f" ± {found.std:.1f}"
    return f"{found.mean:.1f}{spread}"
