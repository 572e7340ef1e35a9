"""What is there, what is missing and what is damaged in a data root."""

from __future__ import annotations

from pathlib import Path

from avalanche_vilco.benchmarks.spec import Benchmark, benchmark_names, find_benchmark
from avalanche_vilco.core.diagnosis import Diagnosis
from avalanche_vilco.core.files import existing, plain_name

__all__ = ["PARTS", "examinable", "examine"]

PARTS = (
    *("annotations", "features", "query_text", "videos"),
    *("narrations", "narration_features"),
)
"""Parts of a root that may lie elsewhere."""


def examine(
    root: Path | str,
    *,
    benchmark: str | None = None,
    deep: bool | None = None,
    **paths: Path | None,
) -> Diagnosis:
    """Examine a data root without changing it.

    :param root: the folder that a generator gets as ``dataset_root``.
    :param benchmark: name; None: all whose annotation files lie in the root.
    :param deep: read every value of the features, not only the headers; None does so
        where they take at most 1 GiB.
    :param paths: parts that do not lie at their usual place, see :data:`PARTS`.
    :return: counts and findings; no file makes it raise.
    :raises ValueError: no such benchmark, or it has nothing to examine.
    """
    root = Path(root).expanduser()
    diagnosis = Diagnosis(str(root))
    given = {name: path for name, path in paths.items() if path is not None}
    unknown = sorted(given.keys() - set(PARTS))
    if unknown:
        raise ValueError(f"expected parts among {PARTS} but got {unknown}")
    chosen = None if benchmark is None else find_benchmark(benchmark)
    if chosen is not None and chosen.examine is None:
        raise ValueError(f"{benchmark} has nothing to examine")
    if not root.is_dir():
        diagnosis.fault("root", root, "no such folder", "pass the data root")
        return diagnosis
    with diagnosis.guard("root", root):
        found = [one for one in examinable() if _lies_in(one, root, given)]
        found = found if chosen is None else [chosen]
        if not found:
            _tell_expected(diagnosis, root)
        for one in found:
            assert one.examine is not None
            part = Diagnosis(str(root), deep=deep, paths=given, used=diagnosis.used)
            with part.guard("root", root):
                one.examine(root, part)
            diagnosis.include(part, one.name if len(found) > 1 else "")
    for folder, names in diagnosis.used.items():
        if names is not None:
            with diagnosis.guard("features", folder):
                _note_leftovers(diagnosis, folder, names)
    return diagnosis


def examinable() -> list[Benchmark]:
    """Benchmarks whose data roots can be examined."""
    found = map(find_benchmark, benchmark_names())
    return [one for one in found if one.examine is not None]


def _lies_in(benchmark: Benchmark, root: Path, given: dict[str, Path]) -> bool:
    path = given.get("annotations", root)
    names = benchmark.annotation_files
    if path.is_file():
        return plain_name(path) in names
    folders = (path, path / "annotations")
    return any(existing(folder / n).is_file() for folder in folders for n in names)


def _tell_expected(diagnosis: Diagnosis, root: Path) -> None:
    expected = "; ".join(
        f"{', '.join(one.annotation_files)} ({one.name})"
        for one in examinable()
        if one.annotation_files
    )
    problem = f"no annotation file, expected one of {expected}"
    remedy = "annotations come with Ego4D; nothing else can be compared"
    diagnosis.fault("annotations", root, problem, remedy)


def _note_leftovers(diagnosis: Diagnosis, folder: Path, used: set[str]) -> None:
    there = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    names = sorted(there - used)
    if names:
        problem = f"{len(names)} files belong to no clip of the annotation file"
        remedy = "nothing reads them; are they of another annotation version?"
        diagnosis.note("features", folder, problem, remedy, names)
