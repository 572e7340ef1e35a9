"""What must stay when the code is rearranged: weights, matrices, files, to the digit.

    python benchmarks/fingerprints.py record before.json --jobs 2
    python benchmarks/fingerprints.py record after.json --jobs 2
    python benchmarks/fingerprints.py compare before.json after.json

`record` generates the three embedded data sets anew and hashes their files, trains the
methods of Moment Queries on the embedded default and three methods each of Language
and Visual Queries for one epoch, and writes the submission files of the first. Each
job is one process with one torch thread. A job whose record is in the file is not run
again. `compare` lists every value that differs, and exits with 1 if one does.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

MQ_STRATEGIES = (
    *("naive", "replay", "ewc", "mas", "si", "lwf", "dense_distillation", "icarl"),
    *("bic", "gem", "agem", "vilco", "upper_bound"),
)
ONE_EPOCH_STRATEGIES = ("naive", "replay", "vilco")
PREDICTED_STRATEGY = "naive"
TIMES = ("seconds", "versions")
"""Parts of the results that no two runs share."""


def jobs() -> Iterator[str]:
    """Names of all jobs, the slow ones first."""
    for benchmark in ("vilco_vq", "vilco_nlq"):
        for strategy in ONE_EPOCH_STRATEGIES:
            yield f"run {benchmark} {strategy} 1"
    for strategy in reversed(MQ_STRATEGIES):
        yield f"run vilco_mq {strategy}"
    for benchmark in ("vilco_mq", "vilco_nlq", "vilco_vq"):
        yield f"data {benchmark}"


def perform(job: str) -> Any:
    """The record of a job, computed in this process."""
    kind, *arguments = job.split()
    return data_hashes(*arguments) if kind == "data" else run_record(*arguments)


def data_hashes(benchmark: str) -> dict[str, str]:
    """File -> SHA-256 of an embedded data set, generated anew."""
    from avalanche_vilco.benchmarks.spec import find_benchmark

    with tempfile.TemporaryDirectory() as folder:
        root = find_benchmark(benchmark).embedded_root(Path(folder))
        return {
            path.relative_to(root).as_posix(): file_hash(path)
            for path in sorted(root.rglob("*"))
            if path.is_file()
        }


def run_record(benchmark: str, strategy: str, epochs: str = "") -> dict[str, Any]:
    """Results of a run of seed 0, without times, and the hash of its submission."""
    import torch

    from avalanche_vilco import predict, run

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        results = run(
            benchmark,
            strategy,
            seed=0,
            epochs=int(epochs) if epochs else None,
            output=folder,
            echo=lambda line: None,
        )
        kept = {name: value for name, value in results.items() if name not in TIMES}
        kept["matrices.csv"] = file_hash(Path(folder, "matrices.csv"))
        if strategy == PREDICTED_STRATEGY:
            for subset in ("val", "test"):
                path = predict(folder, subset=subset, echo=lambda line: None)
                kept[f"predictions_{subset}.json"] = file_hash(path)
    return kept


def file_hash(path: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def record(path: Path, wanted: Sequence[str], n_jobs: int) -> int:
    """Run what is not in the file yet; one line a job.

    :param path: JSON file, job -> record.
    :param wanted: jobs.
    :param n_jobs: processes at a time.
    :return: exit code.
    """
    done = json.loads(path.read_text()) if path.is_file() else {}
    failed = 0
    with ThreadPoolExecutor(n_jobs) as pool:
        rest = [job for job in wanted if job not in done]
        for job, result in zip(rest, pool.map(_performed_apart, rest), strict=True):
            if isinstance(result, str):
                failed += 1
                print(f"{job}: failed\n{result}", file=sys.stderr, flush=True)
                continue
            done[job] = result
            path.with_suffix(".part").write_text(json.dumps(done, indent=1))
            path.with_suffix(".part").replace(path)
            print(job, flush=True)
    return 1 if failed else 0


def _performed_apart(job: str) -> Any:
    """The record of a job from a process of its own; the error's text if it fails."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "perform", job]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        return done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def renamed(value: Any, names: Mapping[str, str]) -> Any:
    """A record with other keys at every depth.

    :param value: of a record.
    :param names: old -> new.
    """
    if isinstance(value, Mapping):
        items = value.items()
        return {names.get(key, key): renamed(one, names) for key, one in items}
    return value


def differences(before: Any, after: Any, where: str = "") -> Iterator[str]:
    """Lines of what two records do not share."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in sorted(before.keys() | after.keys()):
            spot = f"{where} / {key}" if where else key
            if key not in before or key not in after:
                missing = "before" if key not in before else "after"
                yield f"{spot}: not there {missing}"
            else:
                yield from differences(before[key], after[key], spot)
    elif before != after:
        yield f"{where}: {before!r:.200} -> {after!r:.200}"


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module's text.

    :param arguments: command-line arguments; those of the process if not given.
    :return: exit code.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("file", type=Path)
    recording.add_argument("--jobs", type=int, default=1, help="processes at a time")
    recording.add_argument("--only", default="", help="jobs whose names have this")
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument(
        "--renamed",
        nargs="*",
        default=[],
        metavar="OLD=NEW",
        help="keys that have another name afterwards",
    )
    performing = commands.add_parser("perform", help="one job, to the standard output")
    performing.add_argument("job")
    options = parser.parse_args(arguments)
    if options.command == "perform":
        print(json.dumps(perform(options.job)))
        return 0
    if options.command == "record":
        wanted = [job for job in jobs() if options.only in job]
        return record(options.file, wanted, options.jobs)
    records = [json.loads(p.read_text()) for p in (options.before, options.after)]
    names = dict(pair.split("=") for pair in options.renamed)
    lines = list(differences(renamed(records[0], names), records[1]))
    print("\n".join(lines) or f"equal: {', '.join(records[0])}")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
