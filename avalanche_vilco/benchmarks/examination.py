"""What the examinations of several benchmarks' data roots have in common."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from avalanche_vilco.benchmarks.items import check_disjoint_parents
from avalanche_vilco.benchmarks.sources import features_in
from avalanche_vilco.core.diagnosis import COPY_AGAIN, Diagnosis
from avalanche_vilco.core.errors import DataError, FeatureError
from avalanche_vilco.core.files import existing, plain_name, read_content
from avalanche_vilco.core.schema import decode_json
from avalanche_vilco.data.features import (
    READABLE,
    SUFFIXES,
    FeatureFolder,
    StoredFeatures,
    open_features,
    open_tokens,
)
from avalanche_vilco.data.text.narrations import (
    Narration,
    narration_files,
    read_narrations,
)

Finder = Callable[[Path], Mapping[str, Path]]

MAX_ANNOTATION_FAULTS = 25
FIX_RECORD = "mend the record, or fetch the file again"
_NOT_ASKED_FOR = "nothing to do: no stream asks for them"


@dataclass(frozen=True)
class KnownClip:
    """What annotations say of a clip's features or video."""

    clip_id: str
    subset: str
    duration_sec: float
    n_steps: float = math.nan
    """Expected steps of its features."""
    is_streamed: bool = True
    """Whether a stream has it; what lacks of others is a note."""


def clip_ids_in(paths: Iterable[Path]) -> frozenset[str]:
    """Ids of all clips in annotation files, also of those that no reader keeps.

    :param paths: JSON files that could be read.
    """
    found: set[str] = set()
    for path in paths:
        content = decode_json(path, read_content(existing(path)), faults=[])
        videos = content.get("videos")
        if videos is None:
            found |= content.keys()
        else:
            clips = (clip for video in videos for clip in video["clips"])
            found |= {str(c.get("clip_uid")) for c in clips if isinstance(c, dict)}
    return frozenset(found)


@dataclass(frozen=True)
class AnnotatedSubsets:
    """What was read of a root with a file for each subset."""

    read: list[Any]
    """Annotations of train and val, and of test, as far as they are sound."""
    clips: list[KnownClip] | None
    """None: those of train and val are at fault."""
    known: frozenset[str]
    """Ids of all clips in the files."""

    @property
    def queries(self) -> list[Any]:
        """Queries of all files."""
        return [query for one in self.read for query in one.queries]


def read_subsets(
    diagnosis: Diagnosis,
    root: Path,
    readers: tuple[Finder, Callable[..., Any], Callable[..., Any]],
    unit: str,
    features_per_sec: float = math.nan,
) -> AnnotatedSubsets:
    """Read and count the files of train and val, and of test if there is one.

    :param diagnosis: gets what is wrong with them.
    :param root: they lie there or in its folder ``annotations``.
    :param readers: finds the files of a folder, reads those of train and val, and that
        of test.
    :param unit: what the queries are called in the report of the annotations.
    :param features_per_sec: steps of features a second.
    """
    folder = diagnosis.path_of("annotations", root)
    find, read, read_test = readers
    files = {**find(folder / "annotations"), **find(folder)}
    labelled = {name: path for name, path in files.items() if name != "test"}
    for subset in [name for name in ("train", "val") if name not in files]:
        problem = f"no {subset} annotations beside {', '.join(sorted(files))}"
        remedy = "train and val make the streams: fetch both files"
        diagnosis.fault("annotations", folder, problem, remedy)
    found: list[Any] = []
    clips: list[KnownClip] | None = None
    faults: list[DataError] = []
    with diagnosis.guard("annotations", folder):
        found.append(read(labelled, faults=faults))
        clips = _known_clips(found[0], features_per_sec)
        if len(labelled) == 2:
            check_disjoint_parents(found[0].clips.values(), files["val"])
    if "test" in files:
        with diagnosis.guard("annotations", files["test"]):
            found.append(read_test(files["test"], faults=faults))
            clips = clips and clips + _known_clips(found[-1], features_per_sec)
    add_record_faults(diagnosis, folder, faults)
    known = {clip.clip_id for clip in clips or ()}
    if clips is not None:
        with diagnosis.guard("annotations", folder):
            official = (p for p in files.values() if plain_name(p).endswith(".json"))
            known |= clip_ids_in(official)
    subsets = Counter(query.subset for one in found for query in one.queries)
    tallies = [one.report.stage("annotations", unit) for one in found]
    diagnosis.counts["annotations"] = {
        **{f"{subset} {unit}": n for subset, n in subsets.items()},
        "clips": sum(len(one.clips) for one in found),
        f"{unit} rejected": sum(tally.read - tally.passed_on for tally in tallies),
    }
    return AnnotatedSubsets(found, clips, frozenset(known))


def add_record_faults(
    diagnosis: Diagnosis, path: Path, faults: Sequence[DataError]
) -> None:
    """Add what a reader collected; endless faults end with their number.

    :param path: of the annotations.
    :param faults: of their records.
    """
    for fault in faults[:MAX_ANNOTATION_FAULTS]:
        diagnosis.add_error("annotations", fault, FIX_RECORD)
    if len(faults) > MAX_ANNOTATION_FAULTS:
        problem = f"{len(faults) - MAX_ANNOTATION_FAULTS} more records at fault"
        diagnosis.fault("annotations", path, problem, "mend these, then ask again")


def _known_clips(read: Any, features_per_sec: float) -> list[KnownClip]:
    return [
        KnownClip(
            *(clip.clip_id, clip.subset, clip.duration_sec),
            n_steps=clip.duration_sec * features_per_sec,
            is_streamed=clip.subset != "test",
        )
        for clip in read.clips.values()
    ]


def examine_parts(
    root: Path,
    diagnosis: Diagnosis,
    clips: Sequence[KnownClip] | None,
    known: frozenset[str],
    text: Path,
    examine_text: Callable[[Path], None],
) -> None:
    """Examine features, query text and narrations, which are about the clips.

    :param root: a folder.
    :param diagnosis: gets counts and findings.
    :param clips: what is expected; None: annotations are at fault.
    :param known: ids of all clips in the annotation files.
    :param text: usual place of the query text.
    :param examine_text: examines it.
    """
    sentences, embeddings = narration_files(root)
    sentences = diagnosis.path_of("narrations", sentences)
    embeddings = diagnosis.path_of("narration_features", embeddings)
    features = diagnosis.path_of("features", features_in(root))
    text = diagnosis.path_of("query_text", text)
    diagnosis.settle_depth(features, embeddings)
    with diagnosis.guard("features", features):
        _examine_features(diagnosis, features, clips, known)
    with diagnosis.guard("query text", text):
        if text.exists():
            examine_text(text)
        else:
            remedy = "without it each word has a fixed random vector; see docs/data.md"
            diagnosis.note("query text", text, "no query text", remedy)
    with diagnosis.guard("narrations", sentences):
        _examine_narrations(diagnosis, sentences, embeddings, clips, known)


@dataclass(frozen=True)
class ClipFiles:
    """Files of clips, one each, and what is said of them."""

    diagnosis: Diagnosis
    part: str
    """What they are: ``"features"`` or ``"videos"``."""
    source: Path
    clips: Sequence[KnownClip]

    def add_missing(self, missing: Collection[str]) -> None:
        """Faults of streamed clips that have no file, by subset; a note of others.

        :param missing: ids of clips.
        """
        lacking = [clip for clip in self.clips if clip.clip_id in missing]
        streamed = [clip for clip in lacking if clip.is_streamed]
        for subset in sorted({clip.subset for clip in streamed}):
            ids = [clip.clip_id for clip in streamed if clip.subset == subset]
            problem = f"{len(ids)} {subset} clips have no {self.part}"
            remedy = "extract or copy them, or pass missing='drop' to leave them out"
            self.diagnosis.fault(self.part, self.source, problem, remedy, ids)
        ids = [clip.clip_id for clip in lacking if not clip.is_streamed]
        if ids:
            problem = f"{len(ids)} clips of no stream have no {self.part}"
            self.diagnosis.note(self.part, self.source, problem, _NOT_ASKED_FOR, ids)

    def add_faults(self, faults: Iterable[str], remedy: str = COPY_AGAIN) -> set[str]:
        """Faults of clips; of those that no stream asks for they are notes.

        :param faults: ``"<clip id>: <problem>"``.
        :param remedy: what to do.
        :return: ids of the clips at fault.
        """
        unasked = {clip.clip_id for clip in self.clips if not clip.is_streamed}
        faulty: set[str] = set()
        for fault in faults:
            clip_id, _, problem = fault.partition(": ")
            faulty.add(clip_id)
            where = (self.part, self.source, problem)
            if clip_id in unasked:
                self.diagnosis.note(*where, _NOT_ASKED_FOR, [clip_id])
            else:
                self.diagnosis.fault(*where, remedy, [clip_id])
        return faulty


def _examine_features(
    diagnosis: Diagnosis,
    source: Path,
    clips: Sequence[KnownClip] | None,
    known: Iterable[str],
) -> None:
    if not source.exists():
        diagnosis.fault("features", source, "no features", f"expected {READABLE}")
        return
    store = open_features(source)
    counts: dict[str, Any] = {"form": type(store).__name__}
    diagnosis.counts["features"] = counts
    if isinstance(store, FeatureFolder):
        names = {clip_id + suffix for clip_id in known for suffix in SUFFIXES}
        diagnosis.use(source, None if clips is None else names)
    if clips is None:
        counts["compared"] = "no, the annotations are at fault"
        return
    files = ClipFiles(diagnosis, "features", source, clips)
    missing = set(store.missing(clip.clip_id for clip in clips))
    files.add_missing(missing)
    expected = {c.clip_id: c.n_steps for c in clips if c.clip_id not in missing}
    counts["clips"] = len(expected)
    faulty: set[str] = set()
    try:
        store.preflight(expected)
    except FeatureError as error:
        faulty = files.add_faults(error.faults)
    sound = [clip_id for clip_id in expected if clip_id not in faulty]
    if sound:
        counts["width"] = store.width
    for clip_id in sound if diagnosis.is_deep else ():
        try:
            store.read(clip_id)
        except FeatureError as error:
            files.add_faults(error.faults)


def _examine_narrations(
    diagnosis: Diagnosis,
    sentences: Path,
    features: Path,
    clips: Sequence[KnownClip] | None,
    known: frozenset[str],
) -> None:
    there = [path for path in (sentences, features) if path.exists()]
    if not there:
        remedy = "only methods with a narration loss need them"
        diagnosis.note("narrations", sentences, "no narrations", remedy)
        return
    for path in {sentences, features} - set(there):
        problem = f"missing, while {there[0].name} is there"
        diagnosis.fault("narrations", path, problem, "copy it: both are needed")
    if sentences not in there:
        return
    faults: list[DataError] = []
    by_clip, report = read_narrations(sentences, faults=faults)
    for fault in faults:
        diagnosis.add_error("narrations", fault, FIX_RECORD)
    found = [one for clip in by_clip.values() for one in clip]
    diagnosis.counts["narrations"] = {"clips": len(by_clip), "windows": len(found)}
    rejected = report.stage("narrations", "sentences").rejected
    notes: dict[str, Sequence[str]] = {
        f"{count} windows: {reason}": () for reason, count in rejected.items()
    }
    if clips is not None:
        notes |= _unrelated(found, clips, known)
    for problem, records in notes.items():
        remedy = "nothing to do: they are left out and counted"
        diagnosis.note("narrations", sentences, problem, remedy, records)
    if features in there:
        used = [one for one in found if clips is None or one.clip_id in known]
        with diagnosis.guard("narration features", features):
            _examine_narration_features(diagnosis, open_tokens(features), used)


def _unrelated(
    narrations: Sequence[Narration], clips: Sequence[KnownClip], known: frozenset[str]
) -> dict[str, Sequence[str]]:
    """Sentences about no clip, or no part of one."""
    seconds = {clip.clip_id: clip.duration_sec for clip in clips}
    outside = [
        one.query_id
        for one in narrations
        if one.start_sec > seconds.get(one.clip_id, math.inf) or one.end_sec < 0
    ]
    strangers = sorted({one.clip_id for one in narrations} - known)
    notes = {
        f"{len(outside)} windows lie outside their clip": outside,
        f"{len(strangers)} clips are not in the annotation file": strangers,
    }
    return {problem: records for problem, records in notes.items() if records}


def _examine_narration_features(
    diagnosis: Diagnosis, store: StoredFeatures, narrations: Sequence[Narration]
) -> None:
    part = "narration features"
    wanted = list(dict.fromkeys(one.query_id for one in narrations))
    missing = store.missing(wanted)
    lacking = set(missing)
    if missing:
        problem = f"{len(missing)} narrations have no features"
        remedy = "copy the file again, or pass missing='drop' to leave them out"
        diagnosis.fault(part, store.source, problem, remedy, missing)
    widths: dict[str, int] = {}
    for query_id in (
        [q for q in wanted if q not in lacking] if diagnosis.is_deep else ()
    ):
        try:
            widths[query_id] = store.read(query_id).shape[1]
        except DataError as error:
            diagnosis.add_error(part, error, COPY_AGAIN)
    expected = Counter(widths.values()).most_common(1)
    for query_id, width in widths.items():
        if width != expected[0][0]:
            problem = f"expected {expected[0][0]} channels but got {width}"
            fault = DataError(store.source, problem, record=query_id)
            diagnosis.add_error(part, fault, COPY_AGAIN)
