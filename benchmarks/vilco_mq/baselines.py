"""Stock strategies on the embedded Moment Queries default, over seeds.

    python benchmarks/vilco_mq/baselines.py --seeds 0 1 2 --output outputs/baselines

Writes one results folder a run, table.md and matrices.png. A finished run is not run
again; an interrupted one goes on after its last experience.
"""

import argparse
from pathlib import Path

from avalanche_vilco.cli.run import run
from avalanche_vilco.reports.results import write_atomically
from avalanche_vilco.reports.tables import markdown_table, plot_matrices, read_results

STRATEGIES = ("naive", "replay", "ewc", "mas", "lwf", "cumulative", "joint")
METRICS = ("Recall@1x_tIoU0.3", "Recall@1x_tIoU0.5", "Recall@5x_tIoU0.5")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strategies", nargs="+", default=STRATEGIES)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--output", type=Path, default=Path("outputs/baselines"))
    options = parser.parse_args()
    folders = []
    for seed in options.seeds:
        for strategy in options.strategies:
            folder = options.output / strategy / f"seed{seed}"
            if not (folder / "results.json").is_file():
                run("vilco_mq", strategy, seed, output=folder, resume=True)
            folders.append(folder)
    results = read_results(folders)
    table = markdown_table(results, METRICS)
    print(table)
    write_atomically(options.output / "table.md", table + "\n")
    plot_matrices(results, options.output / "matrices.png")


if __name__ == "__main__":
    main()
