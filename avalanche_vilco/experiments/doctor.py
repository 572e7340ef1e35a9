"""What is there, what is missing and what is damaged in a data root."""

from __future__ import annotations

import inspect
from pathlib import Path

from avalanche_vilco.benchmarks.examination import Claims
from avalanche_vilco.benchmarks.spec import (
    Benchmark,
    benchmark_names,
    find_benchmark,
)
from avalanche_vilco.core.diagnosis import Diagnosis

__all__ = ["examinable", "examine", "place_names"]


def examine(
    root: Path | str,
    *,
    benchmark: str | None = None,
    deep: bool | None = None,
    **places: Path | None,
) -> Diagnosis:
    """Examine a data root without changing it.

    :param root: the folder that a generator gets as ``dataset_root``.
    :param benchmark: name; None: all whose annotation files lie in the root.
    :param deep: read every value of the features, not only the headers; None does so
        where they take at most 1 GiB.
    :param places: parts that do not lie at their usual place, see :func:`place_names`.
    :return: counts and findings; no file makes it raise.
    :raises ValueError: no such benchmark, or it has nothing to examine.
    """
    root = Path(root).expanduser()
    diagnosis = Diagnosis(str(root))
    given = {name: path for name, path in places.items() if path is not None}
    unknown = sorted(given.keys() - set(place_names()))
    if unknown:
        raise ValueError(f"expected places among {place_names()} but got {unknown}")
    if not root.is_dir():
        diagnosis.fault("root", root, "no such folder", "pass the data root")
        return diagnosis
    with diagnosis.guard("root", root):
        known = examinable()
        if benchmark is None:
            chosen = [one for one in known if _lies_in(one, root, given)]
        else:
            chosen = [one for one in known if one.name == benchmark]
            find_benchmark(benchmark)
        if not chosen:
            _tell_expected(diagnosis, root, known)
        claims = Claims()
        for one in chosen:
            _examine_one(one, root, diagnosis, claims, given, deep, len(chosen) > 1)
        claims.note_leftovers(diagnosis)
    return diagnosis


def examinable() -> list[Benchmark]:
    """Benchmarks whose data roots can be examined."""
    found = map(find_benchmark, benchmark_names())
    return [one for one in found if one.examine is not None]


def place_names() -> list[str]:
    """Names of the parts of a root that may lie elsewhere, of all benchmarks."""
    return sorted({name for one in examinable() for name in _places_of(one)})


def _places_of(benchmark: Benchmark) -> set[str]:
    assert benchmark.examine is not None
    parameters = inspect.signature(benchmark.examine).parameters.values()
    names = {one.name for one in parameters if one.kind is one.KEYWORD_ONLY}
    return names - {"deep"}


def _lies_in(benchmark: Benchmark, root: Path, given: dict[str, Path]) -> bool:
    place = given.get("annotations", root)
    if place.is_file():
        return place.name in benchmark.annotation_files
    folders = (place, place / "annotations")
    names = benchmark.annotation_files
    return any((folder / name).is_file() for folder in folders for name in names)


def _tell_expected(
    diagnosis: Diagnosis, root: Path, benchmarks: list[Benchmark]
) -> None:
    expected = "; ".join(
        f"{', '.join(one.annotation_files)} ({one.name})" for one in benchmarks
    )
    problem = f"no annotation file, expected one of {expected}"
    remedy = "annotations come with Ego4D; nothing else can be compared"
    diagnosis.fault("annotations", root, problem, remedy)


def _examine_one(
    benchmark: Benchmark,
    root: Path,
    diagnosis: Diagnosis,
    claims: Claims,
    given: dict[str, Path],
    deep: bool | None,
    is_one_of_several: bool,
) -> None:
    assert benchmark.examine is not None
    own = Diagnosis(str(root))
    places = {name: given[name] for name in _places_of(benchmark) & given.keys()}
    with own.guard("root", root):
        benchmark.examine(root, own, claims, deep=deep, **places)
    diagnosis.include(own, benchmark.name if is_one_of_several else "")
