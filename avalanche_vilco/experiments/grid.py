"""A paper's tables over seeds: runs what is not finished, then reports.

``benchmarks/<name>/grid.py`` says which rows there are; this is what all of them do. A
finished run is not run again; an interrupted one goes on after its last experience.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any, TextIO

from avalanche_vilco.benchmarks.spec import find_benchmark

EMBEDDED = "embedded"
"""The generated default among a grid's data."""


@dataclass(frozen=True)
class Row:
    """A configuration. Tables share rows by name, and each is run once a seed."""

    name: str
    strategy: str
    options: Mapping[str, Any] = field(default_factory=dict)
    has_memory: bool = False
    """Takes ``mem_size``, the grid's unless ``options`` say."""
    order: str | None = None
    """``groups``: the experiences in an order drawn from the seed of the run."""
    features: tuple[str, ...] = ()
    """Folders below the root, joined on channels; none takes the benchmark's own."""
    bytes_of: str | None = None
    """Row whose exemplar and auxiliary bytes set ``mem_size``: run after it and after
    the row that is called as the strategy is."""


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The tables of a benchmark."""

    benchmark: str
    folder: Path
    """May have the paper's numbers, in ``paper.csv``."""
    rows: Sequence[Row]
    paper_tables: Mapping[int, Sequence[str]]
    """Rows of each table of the paper."""
    more_on_embedded: Mapping[int, Sequence[str]] = field(default_factory=dict)
    """Further rows of a table on the embedded data."""
    tables_of_features: Sequence[int] = ()
    """Tables that compare features, which the embedded data have one kind of."""
    metrics: Sequence[str]
    """The first is told while the grid runs."""
    paper: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of ``run`` on the paper's data. On the embedded data all are left to
    ``run``."""
    memory: Mapping[str, int]
    """Training samples kept, for each of the data that there are."""


@dataclass(frozen=True, kw_only=True)
class GridOptions:
    """What of a grid is run, and how."""

    data: str = EMBEDDED
    root: Path | None = None
    """Of the paper's data."""
    seeds: Sequence[int] = (0, 1, 2)
    tables: Sequence[int] = ()
    """Numbers; empty: all."""
    rows: Sequence[str] = ()
    """Names; empty: all."""
    jobs: int = 1
    """Runs at once, one torch thread each."""
    output: Path
    mem_size: int | None = None
    """Of rows with a memory."""
    model: str | None = None
    epochs: int | None = None
    device: str = "auto"
    list: bool = False
    """Say what would be run, and run nothing."""
    write_expected: Path | None = None
    """File for what is found."""
    expected: Path | None = None
    """File with what was found."""


@dataclass(frozen=True)
class Job:
    """One run."""

    grid: Grid
    row: Row
    seed: int
    folder: Path
    settings: Mapping[str, Any]
    """Arguments of ``run``."""

    @property
    def label(self) -> str:
        """Row and seed."""
        return f"{self.row.name} seed {self.seed}"


def run_grid(grid: Grid, options: GridOptions) -> list[str]:
    """Run and report.

    :return: a line for each run that failed and for what is not comparable.
    """
    tables = _chosen_tables(grid, options)
    names = list(dict.fromkeys(name for rows in tables.values() for name in rows))
    rows = [row for row in grid.rows if row.name in names]
    failed = _run_all(grid, rows, options)
    if options.write_expected is not None or options.expected is not None:
        failed += _expectations(grid, rows, options)
    for number, members in tables.items():
        failed += _write_table(grid, number, members, options)
    return failed


def _chosen_tables(grid: Grid, options: GridOptions) -> dict[int, list[str]]:
    """Row names of each table."""
    more = grid.more_on_embedded if options.data == EMBEDDED else {}
    tables = {}
    for number, rows in grid.paper_tables.items():
        if options.tables and number not in options.tables:
            continue
        if number in grid.tables_of_features and options.data == EMBEDDED:
            print(f"Table {number} not run (data not here): feature sets of Ego4D")
            continue
        members = [*rows, *more.get(number, ())]
        if options.rows:
            members = [name for name in members if name in options.rows]
        if members:
            tables[number] = members
    return tables


# Running


def _run_all(grid: Grid, rows: Sequence[Row], options: GridOptions) -> list[str]:
    """Run what is not finished; a line for each run that failed."""
    free = [row for row in rows if row.bytes_of is None]
    bound = [row for row in rows if row.bytes_of is not None]
    failed = _run_jobs([job for job, _ in _jobs_of(grid, free, options)], options)
    jobs = []
    for job, problem in _jobs_of(grid, bound, options):
        if not problem:
            jobs.append(job)
        elif options.list:
            print(f"to run later: {job.label} {problem}")
        else:
            failed.append(f"{job.label}: {problem}")
    return failed + _run_jobs(jobs, options)


def _jobs_of(
    grid: Grid, rows: Sequence[Row], options: GridOptions
) -> list[tuple[Job, str]]:
    """A job for each row and seed, with why it cannot be run, if so."""
    found = []
    for seed in options.seeds:
        for row in rows:
            folder = options.output / row.name / f"seed{seed}"
            settings, problem = settings_of(grid, row, seed, options)
            found.append((Job(grid, row, seed, folder, settings), problem))
    return found


def settings_of(
    grid: Grid, row: Row, seed: int, options: GridOptions
) -> tuple[dict[str, Any], str]:
    """Arguments of ``run``, and why there can be none, if so."""
    strategy_options = dict(row.options)
    data: dict[str, Any] = {}
    problem = ""
    if row.has_memory:
        usual = options.mem_size or grid.memory[options.data]
        strategy_options.setdefault("mem_size", usual)
    if row.bytes_of is not None:
        strategy_options["mem_size"], problem = _size_for_bytes(row, options)
    if options.root is not None:
        data["dataset_root"] = options.root
        if row.features:
            folders = [str(options.root / name) for name in row.features]
            data["sources"] = {"features": folders}
    if row.order is not None:
        data.update(fixed_class_order=row.order, seed=seed)
    settings = {
        **({} if options.data == EMBEDDED else grid.paper),
        "device": options.device,
        "benchmark_options": data,
        "strategy_options": strategy_options,
    }
    wanted = {"model": options.model, "epochs": options.epochs}
    settings.update((k, v) for k, v in wanted.items() if v is not None)
    return settings, problem


def _size_for_bytes(row: Row, options: GridOptions) -> tuple[int, str]:
    """Samples with which a row keeps as many bytes as another row does.

    What a sample costs the method, and what it keeps besides (a teacher), is read off
    the row of its strategy's name; of the first seed, so that all seeds have one size.
    """
    assert row.bytes_of is not None
    found = {name: _memory_of(name, options) for name in (row.bytes_of, row.strategy)}
    for name, memory in found.items():
        if memory is None:
            return 0, f"needs the bytes of {name}, of which no run has finished"
        if not memory.samples:
            return 0, f"{name} keeps no samples"
    other, method = found[row.bytes_of], found[row.strategy]
    room = other.exemplar_bytes + other.auxiliary_bytes - method.auxiliary_bytes
    size = round(room * method.samples / method.exemplar_bytes)
    return size, "" if size > 0 else f"keeps more bytes than {row.bytes_of} besides"


def _memory_of(name: str, options: GridOptions) -> Any:
    """Memory figures of a row's first finished seed, if any."""
    from avalanche_vilco.reports.runs import read_run

    for seed in sorted({0, *options.seeds}):
        try:
            return read_run(options.output / name / f"seed{seed}").results.memory
        except (FileNotFoundError, ValueError):
            continue
    return None


def _run_jobs(jobs: Sequence[Job], options: GridOptions) -> list[str]:
    left = [job for job in jobs if not _is_finished(job)]
    if jobs:
        print(f"{len(jobs) - len(left)} of {len(jobs)} runs are there already")
    if options.list:
        print("\n".join(f"to run: {job.label} {dict(job.settings)}" for job in left))
        return []
    return work_off(left, options.jobs) if left else []


def _is_finished(job: Job) -> bool:
    """Whether the folder holds this very run, finished; ``run`` refuses another's.

    :raises SettingError: it is none that could be run.
    """
    from avalanche_vilco.experiments.config import resolve
    from avalanche_vilco.reports.runs import read_run

    options = ("benchmark_options", "strategy_options")
    plan = resolve(
        job.grid.benchmark,
        job.row.strategy,
        job.seed,
        settings={k: v for k, v in job.settings.items() if k not in options},
        **{name: job.settings[name] for name in options},
    )
    try:
        found = read_run(job.folder).config
    except (FileNotFoundError, ValueError):
        return False
    wanted = json.loads(json.dumps(plan.config.to_dict()))
    free = {"device", "num_workers", "backbone_cache"}
    return all(found.get(name) == wanted[name] for name in wanted.keys() - free)


def work_off(jobs: Sequence[Job], n_workers: int) -> list[str]:
    """Run jobs, showing how far they are; a line for each that failed."""
    # Read by torch of the workers when they import it.
    os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
    make_embedded = find_benchmark(jobs[0].grid.benchmark).embedded_root
    is_embedded = not any(
        "dataset_root" in j.settings["benchmark_options"] for j in jobs
    )
    if is_embedded and make_embedded is not None:
        # Once, before several processes ask for them.
        make_embedded()
    began, failed, n_done = time.monotonic(), [], 0
    context = get_context("spawn")
    with ProcessPoolExecutor(
        n_workers, mp_context=context, initializer=end_with_parent
    ) as pool:
        waiting: dict[Future[str], Job] = {pool.submit(work, job): job for job in jobs}
        try:
            while waiting:
                done, _ = wait(waiting, return_when=FIRST_COMPLETED)
                for future in done:
                    job, n_done = waiting.pop(future), n_done + 1
                    if error := future.exception():
                        outcome = f"{type(error).__name__}: {error}"
                        failed.append(f"{job.label}: {outcome}")
                    else:
                        outcome = future.result()
                    each = (time.monotonic() - began) / n_done
                    rest = f"{each * len(waiting) / 60:.0f} min left"
                    line = f"[{n_done}/{len(jobs)}, {rest}] {job.label}: {outcome}"
                    print(line, flush=True)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in active_children():
                worker.terminate()
            print("interrupted: the same command goes on", file=sys.stderr)
            raise
    return failed


def end_with_parent() -> None:
    """End this process when the one that began it is gone, however it went.

    A worker of a grid that was killed would train on, in folders that the same command
    goes on with. What it has written is whole.
    """
    parent = parent_process()
    if parent is not None:

        def wait_and_end() -> None:
            parent.join()
            os._exit(1)

        Thread(target=wait_and_end, daemon=True).start()


def work(job: Job) -> str:
    """One run in a process of its own, which says all in ``grid.log``; its score."""
    job.folder.mkdir(parents=True, exist_ok=True)
    with (job.folder / "grid.log").open("a", encoding="utf-8", buffering=1) as log:
        # Avalanche sets filters of its own against ours.
        warnings.showwarning = lambda *what: print(what[0], file=log)
        try:
            results = _train(job, log)
        except Exception:
            # The grid goes on and prints one line; the whole of it is told here.
            traceback.print_exc(file=log)
            raise
    main_metric = job.grid.metrics[0]
    score = results["scores"][main_metric]
    bwf = "-" if score["bwf"] is None else f"{100 * score['bwf']:.1f}"
    return f"P_T {100 * score['average']:.1f}, BwF_T {bwf} ({main_metric})"


def _train(job: Job, log: TextIO) -> dict[str, Any]:
    import torch

    from avalanche_vilco.experiments.run import run

    torch.set_num_threads(1)

    def echo(line: str) -> None:
        print(line, file=log)
        if line.startswith("experience "):
            print(f"  {job.label}: {line}", flush=True)

    return run(
        job.grid.benchmark,
        job.row.strategy,
        job.seed,
        output=job.folder,
        echo=echo,
        **job.settings,
    )


# Reporting


def _write_table(
    grid: Grid, number: int, members: Sequence[str], options: GridOptions
) -> list[str]:
    """Write a table with its plots; lines about faults and unequal starts."""
    from avalanche_vilco.core.diagnosis import Diagnosis
    from avalanche_vilco.core.files import write_atomically
    from avalanche_vilco.reports.methods import unequal_starts
    from avalanche_vilco.reports.report import read_settings, report
    from avalanche_vilco.reports.runs import run_folders
    from avalanche_vilco.reports.tables import View

    places = [
        options.output / name / f"seed{s}" for name in members for s in options.seeds
    ]
    folders = [folder for folder in places if folder in run_folders(folder)]
    if options.list or not folders:
        return []
    base, diagnosis = options.output / f"table{number}", Diagnosis("report")
    paper = grid.folder / "paper.csv"
    text = report(
        folders,
        diagnosis,
        form="markdown",
        view=View(grid.metrics),
        paper=paper if paper.is_file() else None,
        paper_tables=[number],
        plot=base.with_suffix(".png"),
        matrices=base.with_name(f"{base.name}_matrices.png"),
    )
    write_atomically(base.with_suffix(".md"), text + "\n")
    print(f"Table {number}: {base.with_suffix('.md')}")
    for finding in diagnosis.findings:
        print(finding.line(), file=sys.stderr)
    if diagnosis.n_faults:
        return [f"table {number}: see the faults above"]
    settings = read_settings(folders, Diagnosis("report"))
    return [line for setting in settings for line in unequal_starts(setting)]


def _expectations(grid: Grid, rows: Sequence[Row], options: GridOptions) -> list[str]:
    """Write numbers, or compare with earlier ones; a line for each that differs."""
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
        expected.write_expected(options.write_expected, runs, grid.metrics)
        print(f"expected: {options.write_expected}")
    if options.expected is None:
        return []
    checks = expected.check(expected.read_expected(options.expected), runs)
    print("\n".join(map(str, checks)))
    return [str(check) for check in checks if check.reproduced == "no"]
