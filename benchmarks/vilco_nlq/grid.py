"""Table 3 of ViLCo-Bench (Natural Language Queries), over seeds.

    python benchmarks/vilco_nlq/grid.py --seeds 0 1 2 --jobs 2
    python benchmarks/vilco_nlq/grid.py --data ego4d --root ~/ego4d --seeds 0 1 2

The first runs on the embedded generated default, with settings of its own; the second
on Ego4D's licensed annotations and features, which are not shipped. A finished run is
not run again; an interrupted one goes on after its last experience. `table3.md` and its
plots are written beside the runs.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from avalanche_vilco.cli.grid import main
from avalanche_vilco.experiments.grid import Grid, Row

METRICS = (
    *("Recall@1_tIoU0.3", "Recall@1_tIoU0.5", "Recall@1_tIoUmean"),
    *("Recall@5_tIoU0.3", "Recall@5_tIoU0.5", "Recall@5_tIoUmean"),
)

PAPER: Mapping[str, Any] = {
    "model": "vilco_nlq_base",
    "epochs": 13,
    "batch_size": 4,
    "eval_batch_size": 4,
    "learning_rate": 1e-4,
    "weight_decay": 0.05,
}
"""The public configurations. They warm up and decay the rate; ours is constant."""
MEMORY = {"embedded": 64, "ego4d": 1010}
"""Training samples, each a question with its clip."""

ROWS: Sequence[Row] = (
    Row("upper_bound", "upper_bound"),
    Row("naive", "naive"),
    Row("ewc", "ewc"),
    Row("mas", "mas"),
    Row("gem", "gem"),
    Row("dense_distillation", "dense_distillation"),
    Row("replay", "replay", has_memory=True),
    Row("vilco", "vilco", has_memory=True),
)

GRID = Grid(
    benchmark="vilco_nlq",
    folder=Path(__file__).resolve().parent,
    rows=ROWS,
    paper_tables={3: ("upper_bound", "naive", "ewc", "mas", "vilco")},
    more_on_embedded={3: ("gem", "dense_distillation", "replay")},
    metrics=METRICS,
    paper=PAPER,
    memory=MEMORY,
)

if __name__ == "__main__":
    sys.exit(main(GRID, __doc__))
