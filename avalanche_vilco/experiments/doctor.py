"""``avalanche-vilco doctor``: what is there, what is missing, what is damaged."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from avalanche_vilco.benchmarks.vilco_mq.annotations import (
    MomentAnnotations,
    read_moment_annotations,
)
from avalanche_vilco.benchmarks.vilco_mq.layout import (
    ANNOTATION_FILES,
    FEATURE_FOLDER,
    QUERY_TEXT_FILE,
    find_annotations,
)
from avalanche_vilco.benchmarks.vilco_mq.official import (
    OFFICIAL_FILES,
    read_official_moments,
)
from avalanche_vilco.core.diagnosis import COPY_AGAIN, Diagnosis
from avalanche_vilco.core.errors import DataError, FeatureError
from avalanche_vilco.data.features import (
    SUFFIXES,
    FeatureFolder,
    FeatureStore,
    StoredFeatures,
    open_features,
    open_tokens,
)
from avalanche_vilco.data.moments import MomentClip
from avalanche_vilco.data.text.narrations import (
    Narration,
    narration_files,
    read_narrations,
)
from avalanche_vilco.data.text.tokens import examine_query_text

__all__ = ["Paths", "examine", "main"]

DEEP_BYTES = 2**30
"""Contents are read without being asked where features take no more than this."""
MAX_ANNOTATION_FAULTS = 25
_NOT_ASKED_FOR = "nothing to do: no stream asks for them"
_FIX_RECORD = "mend the record, or fetch the file again"


@dataclass(frozen=True)
class Paths:
    """Where the parts of a data root lie; None: nothing found."""

    annotations: Path | None
    """Processed file, or folder of Ego4D's own files."""
    features: Path
    query_text: Path
    narrations: Path
    narration_features: Path

    @classmethod
    def under(cls, root: Path, **given: Path | None) -> Paths:
        """The usual places under a root, but for those given."""
        sentences, embeddings = narration_files(root)
        usual = {
            "annotations": find_annotations(root),
            "features": root / FEATURE_FOLDER,
            "query_text": root / QUERY_TEXT_FILE,
            "narrations": sentences,
            "narration_features": embeddings,
        }
        usual.update({name: path for name, path in given.items() if path is not None})
        return cls(**usual)  # type: ignore[arg-type]


def examine(
    root: Path | str, *, deep: bool | None = None, **paths: Path | None
) -> Diagnosis:
    """Examine a data root without changing it.

    :param root: the folder that ``vilco_mq(root)`` would get.
    :param deep: read every value of the features, not only the headers; ``None``
        does so where they take at most :data:`DEEP_BYTES`.
    :param paths: fields of :class:`Paths` that do not lie at their usual place.
    :return: counts and findings; no file makes it raise.
    """
    root = Path(root).expanduser()
    diagnosis = Diagnosis(str(root))
    if not root.is_dir():
        diagnosis.fault("root", root, "no such folder", "pass the data root")
        return diagnosis
    with diagnosis.guard("root", root):
        _examine_parts(diagnosis, root, Paths.under(root, **paths), deep)
    return diagnosis


def _examine_parts(
    diagnosis: Diagnosis, root: Path, places: Paths, deep: bool | None
) -> None:
    diagnosis.is_deep = _total_bytes(places) <= DEEP_BYTES if deep is None else deep
    annotations, known = _examine_annotations(diagnosis, root, places.annotations)
    with diagnosis.guard("features", places.features):
        _examine_features(diagnosis, places.features, annotations, known)
    with diagnosis.guard("query text", places.query_text):
        _examine_query_text(diagnosis, places.query_text, annotations)
    with diagnosis.guard("narrations", places.narrations):
        _examine_narrations(diagnosis, places, annotations, known)


def _total_bytes(places: Paths) -> int:
    total = 0
    for place in (places.features, places.narration_features):
        files = [place] if place.is_file() else list(place.glob("*"))
        total += sum(file.stat().st_size for file in files if file.is_file())
    return total


# Annotations


def _examine_annotations(
    diagnosis: Diagnosis, root: Path, path: Path | None
) -> tuple[MomentAnnotations | None, frozenset[str]]:
    """Annotations without the records at fault, and the ids of all records."""
    if path is None:
        names = ", ".join(ANNOTATION_FILES)
        problem = f"no annotation file, expected one of {names}"
        remedy = "they come with Ego4D's moment queries; nothing else can be compared"
        diagnosis.fault("annotations", root, problem, remedy)
        return None, frozenset()
    with diagnosis.guard("annotations", path):
        if path.is_dir():
            annotations: MomentAnnotations | None = read_official_moments(path)
        else:
            annotations = _read_sound_records(diagnosis, path)
        if annotations is not None:
            _count_annotations(diagnosis, path, annotations)
            return annotations, _all_ids(path)
    return None, frozenset()


def _all_ids(path: Path) -> frozenset[str]:
    """Ids of all clips in the files, also of those that no reader keeps."""
    if path.is_file():
        return frozenset(_raw_records(path))
    official = [_raw_records(path / name) for name in OFFICIAL_FILES.values()]
    return frozenset(
        clip["clip_uid"]
        for content in official
        for video in content.get("videos", ())
        for clip in video["clips"]
    )


def _read_sound_records(diagnosis: Diagnosis, path: Path) -> MomentAnnotations | None:
    """Read again and again, each time without the record at fault."""
    source, said = path, ""
    n_faults = 0
    with tempfile.TemporaryDirectory() as scratch:
        while n_faults < MAX_ANNOTATION_FAULTS:
            try:
                return read_moment_annotations(source)
            except DataError as error:
                error.file, previous = str(path), said
                said = f"{error.record} {error.field} {error.problem}"
                if said != previous:
                    diagnosis.add_error("annotations", error, _FIX_RECORD)
                    n_faults += 1
                records = _raw_records(source)
                # A key that occurs twice goes with rewriting, the record can stay.
                if source != path and records.pop(error.record or "", None) is None:
                    return None
                if not records:
                    return None
                source = Path(scratch, path.name)
                source.write_text(json.dumps(records), encoding="utf-8")
    problem = f"stopped after {MAX_ANNOTATION_FAULTS} faults"
    diagnosis.fault("annotations", path, problem, "mend these, then ask again")
    return None


def _raw_records(path: Path) -> dict[str, Any]:
    try:
        records = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return records if isinstance(records, dict) else {}


def _count_annotations(
    diagnosis: Diagnosis, path: Path, annotations: MomentAnnotations
) -> None:
    subsets = [clip.subset for clip in annotations.clips]
    usable = [clip.subset for clip in annotations.clips if len(clip.windows_sec)]
    windows = annotations.report.stage("annotations", "windows")
    diagnosis.counts["annotations"] = {
        "file": path.name,
        **{f"{name} clips": subsets.count(name) for name in ("train", "val", "test")},
        "categories": len(annotations.label_names),
        "windows": windows.passed_on,
        "windows rejected": windows.read - windows.passed_on,
    }
    for subset in ("train", "val"):
        if subset not in usable:
            problem = f"no clip of subset {subset!r} has a usable window"
            remedy = "train and val make the streams: fetch the whole file"
            diagnosis.fault("annotations", path, problem, remedy)


# Features


def _examine_features(
    diagnosis: Diagnosis,
    source: Path,
    annotations: MomentAnnotations | None,
    known: frozenset[str],
) -> None:
    if not source.exists():
        remedy = f"expected one file a clip, <clip_uid> + {', '.join(SUFFIXES)}"
        diagnosis.fault("features", source, "no features", remedy)
        return
    store = open_features(source)
    counts: dict[str, Any] = {"form": type(store).__name__}
    diagnosis.counts["features"] = counts
    if annotations is None:
        counts["compared"] = "no, the annotations are at fault"
        return
    clips = annotations.clips
    gone = set(store.missing(clip.clip_id for clip in clips))
    _report_missing(diagnosis, source, [c for c in clips if c.clip_id in gone])
    if isinstance(store, FeatureFolder):
        _report_leftovers(diagnosis, source, known)
    present = [clip for clip in clips if clip.clip_id not in gone]
    counts["clips"] = len(present)
    _examine_present(diagnosis, source, store, present)


def _report_missing(
    diagnosis: Diagnosis, source: Path, clips: Sequence[MomentClip]
) -> None:
    streamed = [clip for clip in clips if clip.is_streamed]
    for subset in sorted({clip.subset for clip in streamed}):
        ids = [clip.clip_id for clip in streamed if clip.subset == subset]
        problem = f"{len(ids)} {subset} clips have no features"
        remedy = "extract or copy them, or pass missing='drop' to leave them out"
        diagnosis.fault("features", source, problem, remedy, ids)
    ids = [clip.clip_id for clip in clips if not clip.is_streamed]
    if ids:
        problem = f"{len(ids)} clips of no stream have no features"
        diagnosis.note("features", source, problem, _NOT_ASKED_FOR, ids)


def _report_leftovers(
    diagnosis: Diagnosis, folder: Path, known: frozenset[str]
) -> None:
    names = sorted(
        path.name
        for path in folder.iterdir()
        if not path.name.startswith(".")
        and not (path.suffix in SUFFIXES and path.stem in known)
    )
    if names:
        problem = f"{len(names)} files belong to no clip of the annotation file"
        remedy = "nothing reads them; are they of another annotation version?"
        diagnosis.note("features", folder, problem, remedy, names)


def _examine_present(
    diagnosis: Diagnosis,
    source: Path,
    store: FeatureStore,
    clips: Sequence[MomentClip],
) -> None:
    expected = {c.clip_id: c.duration_sec * c.features_per_sec for c in clips}
    unasked = frozenset(clip.clip_id for clip in clips if not clip.is_streamed)
    faulty: set[str] = set()
    try:
        store.preflight(expected)
    except FeatureError as error:
        faulty = _add_feature_faults(diagnosis, source, error, unasked)
    sound = [clip_id for clip_id in expected if clip_id not in faulty]
    if sound:
        diagnosis.counts["features"]["width"] = store.width
    for clip_id in sound if diagnosis.is_deep else ():
        try:
            store.read(clip_id)
        except FeatureError as error:
            _add_feature_faults(diagnosis, source, error, unasked)


def _add_feature_faults(
    diagnosis: Diagnosis, source: Path, error: FeatureError, unasked: frozenset[str]
) -> set[str]:
    """Faults of clips; of those that no stream asks for they are notes."""
    faulty: set[str] = set()
    for fault in error.faults:
        clip_id, _, problem = fault.partition(": ")
        faulty.add(clip_id)
        if clip_id in unasked:
            diagnosis.note("features", source, problem, _NOT_ASKED_FOR, [clip_id])
        else:
            diagnosis.fault("features", source, problem, COPY_AGAIN, [clip_id])
    return faulty


# Text and narrations


def _examine_query_text(
    diagnosis: Diagnosis, path: Path, annotations: MomentAnnotations | None
) -> None:
    if not path.exists():
        remedy = "without it each word has a fixed random vector; see docs/data.md"
        diagnosis.note("query text", path, "no query text", remedy)
        return
    labels = list(annotations.label_names.values()) if annotations else []
    tokens, faults = examine_query_text(path, labels)
    for fault in faults:
        diagnosis.add_error("query text", fault, "write the entry again")
    diagnosis.counts["query text"] = {
        "categories": len(tokens),
        "tokens": sum(len(value) for value in tokens.values()),
    }


def _examine_narrations(
    diagnosis: Diagnosis,
    places: Paths,
    annotations: MomentAnnotations | None,
    known: frozenset[str],
) -> None:
    sentences, features = places.narrations, places.narration_features
    there = [path for path in (sentences, features) if path.exists()]
    if not there:
        remedy = "only methods with a narration loss need them"
        diagnosis.note("narrations", sentences, "no narrations", remedy)
        return
    for path in {sentences, features} - set(there):
        problem = f"missing, while {there[0].name} is there"
        diagnosis.fault("narrations", path, problem, "copy it: both are needed")
    if len(there) == 1 and features in there:
        return
    faults: list[DataError] = []
    by_clip, report = read_narrations(sentences, faults=faults)
    for fault in faults:
        diagnosis.add_error("narrations", fault, _FIX_RECORD)
    told = [one for clip in by_clip.values() for one in clip]
    rejected = report.stage("narrations", "sentences").rejected
    diagnosis.counts["narrations"] = {"clips": len(by_clip), "windows": len(told)}
    _note_windows(diagnosis, sentences, rejected, told, annotations, known)
    if features in there:
        used = [one for one in told if annotations is None or one.clip_id in known]
        with diagnosis.guard("narration features", features):
            _examine_narration_features(diagnosis, features, used)


def _note_windows(
    diagnosis: Diagnosis,
    path: Path,
    rejected: Mapping[str, int],
    told: Sequence[Narration],
    annotations: MomentAnnotations | None,
    known: frozenset[str],
) -> None:
    remedy = "nothing to do: they are left out and counted"
    notes: list[tuple[str, Sequence[str]]] = [
        (f"{count} windows: {reason}", ()) for reason, count in rejected.items()
    ]
    if annotations is not None:
        seconds = {clip.clip_id: clip.duration_sec for clip in annotations.clips}
        outside = [
            one.query_id
            for one in told
            if one.start_sec > seconds.get(one.clip_id, math.inf) or one.end_sec < 0
        ]
        if outside:
            notes.append((f"{len(outside)} windows lie outside their clip", outside))
        strangers = sorted({one.clip_id for one in told} - known)
        if strangers:
            problem = f"{len(strangers)} clips are not in the annotation file"
            notes.append((problem, strangers))
    for problem, records in notes:
        diagnosis.note("narrations", path, problem, remedy, tuple(records))


def _examine_narration_features(
    diagnosis: Diagnosis, path: Path, told: Sequence[Narration]
) -> None:
    store = open_tokens(path)
    wanted = dict.fromkeys(one.query_id for one in told)
    known = store.ids()
    gone = tuple(query_id for query_id in wanted if query_id not in known)
    if gone:
        problem = f"{len(gone)} narrations have no features"
        remedy = "copy the file again, or pass missing='drop' to leave them out"
        diagnosis.fault("narration features", path, problem, remedy, gone)
    if diagnosis.is_deep:
        _read_narration_features(diagnosis, store, [q for q in wanted if q in known])


def _read_narration_features(
    diagnosis: Diagnosis, store: StoredFeatures, query_ids: Sequence[str]
) -> None:
    widths: dict[str, int] = {}
    for query_id in query_ids:
        try:
            widths[query_id] = store.read(query_id).shape[1]
        except DataError as error:
            diagnosis.add_error("narration features", error, COPY_AGAIN)
    usual = Counter(widths.values()).most_common(1)
    for query_id, width in widths.items():
        if width != usual[0][0]:
            problem = f"expected {usual[0][0]} channels but got {width}"
            fault = DataError(store.source, problem, record=query_id)
            diagnosis.add_error("narration features", fault, COPY_AGAIN)


# Command line


def main(arguments: Sequence[str] | None = None) -> int:
    """``avalanche-vilco doctor``.

    :param arguments: command-line arguments without program and command.
    :return: exit code: 0 no fault, 1 faults, 2 bad usage (raised by argparse).
    """
    options = _parser().parse_args(arguments)
    given = vars(options)
    root, as_json, deep = given.pop("root"), given.pop("json"), given.pop("deep")
    diagnosis = examine(root, deep=deep, **given)
    _tell(json.dumps(diagnosis.to_dict(), indent=2) if as_json else str(diagnosis))
    return 1 if diagnosis.n_faults else 0


def _tell(text: str) -> None:
    encoding = sys.stdout.encoding or "utf-8"
    try:
        print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)
    except BrokenPipeError:
        # The reader, such as head, has seen enough; Python would flush once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="avalanche-vilco doctor",
        description="Say what is there, missing or damaged in a data root; change "
        "nothing. Exit code: 0 no fault, 1 faults, 2 bad usage.",
    )
    parser.add_argument("root", type=Path, help="the folder that vilco_mq(ROOT) gets")
    parser.add_argument(
        "--json", action="store_true", help="machine-readable, to stdout"
    )
    parser.add_argument(
        "--deep",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="read every feature value, not only headers (default: up to 1 GiB)",
    )
    for name in Paths.__dataclass_fields__:
        flag = "--" + name.replace("_", "-")
        parser.add_argument(flag, type=Path, help=f"{name}, if not at its usual place")
    return parser


if __name__ == "__main__":
    sys.exit(main())
