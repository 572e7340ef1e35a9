"""A paper's tables over seeds: runs what is not finished, then reports.

`benchmarks/<name>/grid.py` says which rows there are; this is what all of them do. A
finished run is not run again; an interrupted one goes on after its last experience.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any, TextIO


@dataclass(frozen=True)
class Row:
    """A configuration. Tables share rows by name, and each is run once a seed."""

    name: str
    strategy: str
    options: Mapping[str, Any] = field(default_factory=dict)
    has_memory: bool = False
    """Takes `mem_size`, of MEMORY unless `options` say."""
    order: str | None = None
    """`groups`: the experiences in an order drawn from the seed of the run."""
    features: tuple[str, ...] = ()
    """Folders below the root, joined on channels; none takes the benchmark's own."""
    bytes_of: str | None = None
    """Row whose exemplar and auxiliary bytes set `mem_size`: run after it and after
    the row that is called as the strategy is."""


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The tables of a benchmark."""

    benchmark: str
    folder: Path
    """With `paper.csv`."""
    rows: Sequence[Row]
    paper_tables: Mapping[int, Sequence[str]]
    """Rows of each table of the paper."""
    more_on_embedded: Mapping[int, Sequence[str]] = field(default_factory=dict)
    """Further rows of a table on the embedded data."""
    tables_of_features: Sequence[int] = ()
    """Tables that compare features of Ego4D, which the embedded data do not have."""
    metrics: Sequence[str]
    """The first is told while the grid runs."""
    paper: Mapping[str, Any]
    """Arguments of `run` on Ego4D. On the embedded data all are left to `run`."""
    memory: Mapping[str, int]
    """Training samples kept on `embedded` and on `ego4d`."""
    embedded_root: Callable[[], Path]
    """Makes the embedded data, once, before several processes ask for them."""


@dataclass(frozen=True)
class Job:
    """One run."""

    grid: Grid
    row: Row
    seed: int
    folder: Path
    settings: Mapping[str, Any]
    """Arguments of `run`."""

    @property
    def words(self) -> str:
        return f"{self.row.name} seed {self.seed}"


def main(
    grid: Grid, description: str | None, arguments: Sequence[str] | None = None
) -> int:
    """Run and report.

    :param grid: what there is to run.
    :param description: for `--help`.
    :param arguments: of the command line.
    :return: exit code: 1 if a run failed or methods are not comparable.
    """
    options = parse(grid, description, arguments)
    tables = chosen_tables(options)
    names = list(dict.fromkeys(name for rows in tables.values() for name in rows))
    rows = [row for row in grid.rows if row.name in names]
    failed = run_all(rows, options)
    if options.write_expected is not None or options.expected is not None:
        failed += expectations(options, rows)
    for number, members in tables.items():
        failed += report(number, members, options)
    for line in failed:
        print(f"FAILED {line}", file=sys.stderr)
    return 1 if failed else 0


def parse(
    grid: Grid, description: str | None, arguments: Sequence[str] | None
) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", choices=sorted(grid.memory), default="embedded")
    add("--root", type=Path, help="data root, with --data ego4d")
    add("--seeds", nargs="+", type=int, default=[0, 1, 2])
    add("--tables", nargs="+", type=int, choices=sorted(grid.paper_tables))
    add("--rows", nargs="+", choices=[row.name for row in grid.rows], help="only these")
    add("--jobs", type=int, default=1, help="runs at once, one torch thread each")
    add("--output", type=Path, help="default outputs/grid_DATA")
    add("--mem-size", type=int, help="training samples kept, for rows with a memory")
    add("--model", help="another model than the data's")
    add("--epochs", type=int, help="other than the data's")
    add("--device", default="auto")
    add("--list", action="store_true", help="say what would be run, and run nothing")
    add("--write-expected", type=Path, metavar="CSV", help="write what was found")
    add("--expected", type=Path, metavar="CSV", help="compare with what was found")
    options = parser.parse_args(arguments)
    options.grid = grid
    if options.data == "ego4d" and options.root is None:
        parser.error(
            "Ego4D's annotations and features need its licence and are not shipped: "
            "pass --root FOLDER (avalanche-vilco doctor FOLDER examines it), or run "
            "the embedded default with --data embedded"
        )
    if options.data == "embedded" and options.root is not None:
        parser.error("--root goes with --data ego4d")
    options.output = options.output or Path("outputs", f"grid_{options.data}")
    return options


def chosen_tables(options: argparse.Namespace) -> dict[int, list[str]]:
    """Row names of each table."""
    grid: Grid = options.grid
    more = grid.more_on_embedded if options.data == "embedded" else {}
    tables = {}
    for number, rows in grid.paper_tables.items():
        if options.tables and number not in options.tables:
            continue
        if number in grid.tables_of_features and options.data == "embedded":
            print(f"Table {number} not run (data not here): feature sets of Ego4D")
            continue
        members = [*rows, *more.get(number, ())]
        if options.rows:
            members = [name for name in members if name in options.rows]
        if members:
            tables[number] = members
    return tables


# Running


def run_all(rows: Sequence[Row], options: argparse.Namespace) -> list[str]:
    """Run what is not finished; a line for each run that failed."""
    free = [row for row in rows if row.bytes_of is None]
    bound = [row for row in rows if row.bytes_of is not None]
    failed = run_jobs([job for job, _ in jobs_of(free, options)], options)
    jobs = []
    for job, problem in jobs_of(bound, options):
        if problem and not options.list:
            failed.append(f"{job.words}: {problem}")
        else:
            jobs.append(job)
    return failed + run_jobs(jobs, options)


def jobs_of(rows: Sequence[Row], options: argparse.Namespace) -> list[tuple[Job, str]]:
    """A job for each row and seed, with why it cannot be run, if so."""
    found = []
    for seed in options.seeds:
        for row in rows:
            folder = options.output / row.name / f"seed{seed}"
            settings, problem = settings_of(row, seed, options)
            found.append((Job(options.grid, row, seed, folder, settings), problem))
    return found


def settings_of(
    row: Row, seed: int, options: argparse.Namespace
) -> tuple[dict[str, Any], str]:
    own = dict(row.options)
    data: dict[str, Any] = {}
    problem = ""
    if row.has_memory:
        usual = options.grid.memory[options.data]
        own.setdefault("mem_size", options.mem_size or usual)
    if row.bytes_of is not None:
        own["mem_size"], problem = size_for_bytes(row, options)
    if options.root is not None:
        data["dataset_root"] = options.root
    if row.order is not None:
        data.update(order=row.order, seed=seed)
    if row.features:
        data["features"] = [str(options.root / name) for name in row.features]
    settings = {
        **(options.grid.paper if options.data == "ego4d" else {}),
        "device": options.device,
        "benchmark_options": data,
        "strategy_options": own,
    }
    for name in ("model", "epochs"):
        if getattr(options, name) is not None:
            settings[name] = getattr(options, name)
    return settings, problem


def size_for_bytes(row: Row, options: argparse.Namespace) -> tuple[int, str]:
    """Samples with which a row keeps as many bytes as another row does.

    What a sample costs the method, and what it keeps besides (a teacher), is read off
    the row of its strategy's name; of the first seed, so that all seeds have one size.
    """
    assert row.bytes_of is not None
    found = {name: memory_of(name, options) for name in (row.bytes_of, row.strategy)}
    for name, memory in found.items():
        if memory is None:
            return 0, f"needs the bytes of {name}, of which no run has finished"
        if not memory.samples:
            return 0, f"{name} keeps no samples"
    other, own = found[row.bytes_of], found[row.strategy]
    room = other.exemplar_bytes + other.auxiliary_bytes - own.auxiliary_bytes
    size = round(room * own.samples / own.exemplar_bytes)
    return size, "" if size > 0 else f"keeps more bytes than {row.bytes_of} besides"


def memory_of(name: str, options: argparse.Namespace) -> Any:
    """Memory figures of a row's first finished seed, if any."""
    from avalanche_vilco.reports.runs import read_run

    for seed in sorted({0, *options.seeds}):
        try:
            return read_run(options.output / name / f"seed{seed}").results.memory
        except (FileNotFoundError, ValueError):
            continue
    return None


def run_jobs(jobs: Sequence[Job], options: argparse.Namespace) -> list[str]:
    left = [job for job in jobs if not is_finished(job)]
    if jobs:
        print(f"{len(jobs) - len(left)} of {len(jobs)} runs are there already")
    if options.list:
        print("\n".join(f"to run: {job.words} {dict(job.settings)}" for job in left))
        return []
    return work_off(left, options.jobs) if left else []


def is_finished(job: Job) -> bool:
    """Whether the folder holds this very run, finished; `run` refuses another's."""
    from avalanche_vilco.benchmarks.spec import find_benchmark
    from avalanche_vilco.reports.runs import read_run
    from avalanche_vilco.training.strategies import find_strategy

    spec = find_benchmark(job.grid.benchmark)
    usual = spec.recipe.strategy_options.get(job.row.strategy, {})
    try:
        config = read_run(job.folder).config
        recipe = find_strategy(job.row.strategy)
    except (FileNotFoundError, ValueError):
        return False
    wanted = all_settings(job)
    model = wanted["model"].removesuffix(recipe.model_variant) + recipe.model_variant
    data, own = wanted.pop("benchmark_options"), wanted.pop("strategy_options")
    found = config["benchmark_options"]
    return (
        {name: config[name] for name in wanted} == {**wanted, "model": model}
        and config["strategy_options"] == {**recipe.options, **usual, **own}
        and all(str(found.get(name)) == str(value) for name, value in data.items())
    )


def all_settings(job: Job) -> dict[str, Any]:
    """What decides the run's numbers, with the defaults of `run`."""
    from avalanche_vilco.benchmarks.spec import find_benchmark

    names = ("model", "epochs", "batch_size", "learning_rate", "weight_decay")
    usual = find_benchmark(job.grid.benchmark).recipe.hyperparameters
    defaults = {name: usual[name] for name in names}
    given = {name: job.settings[name] for name in names if name in job.settings}
    options = ("benchmark_options", "strategy_options")
    return {**defaults, **given, **{name: dict(job.settings[name]) for name in options}}


def work_off(jobs: Sequence[Job], n_workers: int) -> list[str]:
    """Run jobs, showing how far they are; a line for each that failed."""
    # Read by torch of the workers when they import it.
    os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
    if not any("dataset_root" in job.settings["benchmark_options"] for job in jobs):
        jobs[0].grid.embedded_root()
    began, failed, n_done = time.monotonic(), [], 0
    context = get_context("spawn")
    with ProcessPoolExecutor(n_workers, mp_context=context) as pool:
        waiting: dict[Future[str], Job] = {pool.submit(work, job): job for job in jobs}
        try:
            while waiting:
                done, _ = wait(waiting, return_when=FIRST_COMPLETED)
                for future in done:
                    job, n_done = waiting.pop(future), n_done + 1
                    words = outcome(future)
                    failed += [f"{job.words}: {words}"] if future.exception() else []
                    each = (time.monotonic() - began) / n_done
                    rest = f"{each * len(waiting) / 60:.0f} min left"
                    line = f"[{n_done}/{len(jobs)}, {rest}] {job.words}: {words}"
                    print(line, flush=True)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in active_children():
                worker.terminate()
            print("interrupted: the same command goes on", file=sys.stderr)
            raise SystemExit(130) from None
    return failed


def outcome(future: Future[str]) -> str:
    error = future.exception()
    return future.result() if error is None else f"{type(error).__name__}: {error}"


def work(job: Job) -> str:
    """One run, in a process of its own; all that it says goes to `grid.log`."""
    job.folder.mkdir(parents=True, exist_ok=True)
    with (job.folder / "grid.log").open("a", encoding="utf-8", buffering=1) as log:
        # Avalanche sets filters of its own against ours.
        warnings.showwarning = lambda *what: print(what[0], file=log)
        try:
            results = train(job, log)
        except Exception:
            # The grid goes on and prints one line; the whole of it is told here.
            traceback.print_exc(file=log)
            raise
    main_metric = job.grid.metrics[0]
    score = results["scores"][main_metric]
    bwf = "-" if score["bwf"] is None else f"{100 * score['bwf']:.1f}"
    return f"P_T {100 * score['average']:.1f}, BwF_T {bwf} ({main_metric})"


def train(job: Job, log: TextIO) -> dict[str, Any]:
    import torch

    from avalanche_vilco.experiments.run import run

    torch.set_num_threads(1)

    def echo(line: str) -> None:
        print(line, file=log)
        if line.startswith("experience "):
            print(f"  {job.words}: {line}", flush=True)

    return run(
        job.grid.benchmark,
        job.row.strategy,
        job.seed,
        output=job.folder,
        resume=True,
        echo=echo,
        **job.settings,
    )


# Reporting


def report(
    number: int, members: Sequence[str], options: argparse.Namespace
) -> list[str]:
    """Write a table with its plots; lines about runs that are not comparable."""
    from avalanche_vilco.cli.report import main as write_report
    from avalanche_vilco.reports.methods import gather, unequal_starts
    from avalanche_vilco.reports.runs import read_run

    folders = [
        folder
        for name in members
        for seed in options.seeds
        if has_begun(folder := options.output / name / f"seed{seed}")
    ]
    if options.list or not folders:
        return []
    base = options.output / f"table{number}"
    paper = options.grid.folder / "paper.csv"
    code = write_report(
        [
            *map(str, folders),
            *("--format", "markdown", "--output", str(base.with_suffix(".md"))),
            *("--metrics", *options.grid.metrics),
            *("--paper", str(paper), "--paper-tables", str(number)),
            *("--plot", str(base.with_suffix(".png"))),
            *("--matrices", str(base.with_name(f"{base.name}_matrices.png"))),
        ]
    )
    print(f"Table {number}: {base.with_suffix('.md')}")
    if code:
        return [f"table {number}: see the faults above"]
    finished = [f for f in folders if (f / "results.json").is_file()]
    settings, _ = gather(map(read_run, finished))
    return [line for setting in settings for line in unequal_starts(setting)]


def has_begun(folder: Path) -> bool:
    from avalanche_vilco.reports.runs import run_folders

    return folder in run_folders(folder)


def expectations(options: argparse.Namespace, rows: Sequence[Row]) -> list[str]:
    """Write, or compare with, numbers found earlier."""
    from avalanche_vilco.reports import expected
    from avalanche_vilco.reports.runs import read_run

    runs = {
        row.name: [
            read_run(folder)
            for seed in options.seeds
            if (folder := options.output / row.name / f"seed{seed}").is_dir()
            and (folder / "results.json").is_file()
        ]
        for row in rows
    }
    if options.write_expected is not None:
        expected.write_expected(options.write_expected, runs, options.grid.metrics)
        print(f"expected: {options.write_expected}")
    if options.expected is None:
        return []
    checks = expected.check(expected.read_expected(options.expected), runs)
    print("\n".join(map(str, checks)))
    return [str(check) for check in checks if check.reproduced == "no"]
