"""The results file of a run, and what the terminal says at its end."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import nn

import avalanche_vilco
from avalanche_vilco.benchmarks.spec import benchmark_names, find_benchmark
from avalanche_vilco.core.files import write_atomically
from avalanche_vilco.core.tables import percent
from avalanche_vilco.evaluation.matrix import TaskMatrix, matrices_csv

MATRICES_FILE = "matrices.csv"
RESULTS_VERSION = 1
PACKAGES = ("avalanche-lib", "torch", "numpy", "torchmetrics")


def weights_hash(model: nn.Module) -> str:
    """SHA-256 of a model's parameters and buffers, by name."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def versions() -> dict[str, str]:
    """Versions that a result depends on, and the number of threads.

    Threads decide the order in which sums are taken on a CPU.
    """
    found = {
        "avalanche_vilco": avalanche_vilco.__version__,
        "python": platform.python_version(),
    }
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed as a package"
    return {**found, "torch_threads": str(torch.get_num_threads())}


def write_results(
    folder: Path, results: Mapping[str, Any], matrices: Mapping[str, TaskMatrix]
) -> None:
    """Write ``results.json`` and ``matrices.csv``.

    :param folder: output folder of the run.
    :param results: JSON-safe.
    :param matrices: task matrix by metric name, in [0, 1].
    """
    text = json.dumps(results, indent=2, allow_nan=False)
    write_atomically(folder / "results.json", text + "\n")
    write_atomically(folder / MATRICES_FILE, matrices_csv(matrices))


def summary(results: Mapping[str, Any], matrices: Mapping[str, TaskMatrix]) -> str:
    """The end of a run for the terminal.

    Matrix, numbers, memory and what the numbers may be compared with.
    """
    main = results["main_metric"]
    lines = [f"\n{main}, {results['config']['strategy']}"]
    lines.append(matrices[main].to_text())
    head = f"\n{'after the last experience, in %':<36}"
    lines.append(head + f"{'P_T':>9}{'BwF_T':>9}{'chance':>9}")
    for name, row in results["scores"].items():
        cells = (percent(row[key]) for key in ("average", "bwf", "chance"))
        lines.append(f"  {name:<34}" + "".join(f"{cell:>9}" for cell in cells))
    if results["averages"] != "plain":
        lines.append(
            "  weighted by the queries seen so far; the table's are plain means"
        )
    lines += ["", _memory_line(results["memory"]), comparability(results["benchmark"])]
    return "\n".join([*lines, *deviation_lines(results)])


def _memory_line(memory: Mapping[str, float]) -> str:
    unused = f" ({memory['unused']} places unused)" if memory.get("unused") else ""
    return (
        f"memory: {memory['samples']} samples{unused} of {memory['clips']} clips, "
        f"{memory['hours']:.1f} h, "
        f"{percent(memory['share_of_training_samples'], 0)} % of the training samples; "
        f"exemplars {memory['exemplar_bytes'] / 2**20:.1f} MiB, "
        f"auxiliary {memory['auxiliary_bytes'] / 2**20:.1f} MiB"
    )


def deviation_lines(results: Mapping[str, Any]) -> list[str]:
    """Parts of the public recipe in a result, and how its weights were selected.

    :param results: of one run.
    """
    deviations, selection = results["deviations"], results["selection"]
    lines = [f"reference deviations: {', '.join(deviations) or 'none'}"]
    lines += [f"  {name}: {effect}" for name, effect in deviations.items()]
    if selection["by"] != "last":
        epochs = ", ".join("-" if e is None else str(e) for e in selection["epochs"])
        lines.append(f"weights kept: {selection['by']}, of epochs {epochs} (from 0)")
    return lines


def comparability(info: Mapping[str, Any]) -> str:
    """What the numbers may be compared with.

    :param info: ``benchmark.info``.
    """
    if str(info["data"]).startswith("embedded"):
        data = f"{info['data']}: compares with other runs on it, not with the paper"
    else:
        is_public = info["protocol"] == "reference"
        other = "model, losses and schedule" if is_public else "split and averages"
        paper = f"not with the paper, whose {other} differ"
        if info.get("comparable_with_paper"):
            paper = "and with the paper"
        data = (
            "user data: compares with runs of equal file hashes, protocol and order; "
            f"{paper}"
        )
    leak = "yes" if info["uses_ground_truth_at_test"] else "no"
    return (
        f"data: {data}\nprotocol: {info['protocol']} v{info['protocol_version']}; "
        f"uses ground truth at test: {leak}{_queries(info)}"
    )


def _queries(info: Mapping[str, Any]) -> str:
    """What a model is asked by, if it is."""
    if info.get("query_text") is not None:
        return f"; query text: {info['query_text']}"
    name = info["benchmark"]
    queries = find_benchmark(name).queries if name in benchmark_names() else ""
    return f"; queries: {queries}" if queries else ""
