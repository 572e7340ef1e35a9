"""What is there, missing or damaged in a root of Visual Queries."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from avalanche_vilco.benchmarks.examination import (
    Claims,
    KnownClip,
    add_clip_faults,
    clip_ids_in,
    is_deep_enough,
    read_subsets,
    report_missing,
)
from avalanche_vilco.benchmarks.vilco_vq.annotations import (
    CLIP_FOLDER,
    VisualAnnotations,
    find_vq_files,
    read_unlabelled_visual_queries,
    read_visual_queries,
)
from avalanche_vilco.benchmarks.vilco_vq.clip_videos import (
    clip_faults,
    clip_file_frames,
)
from avalanche_vilco.core.diagnosis import Diagnosis
from avalanche_vilco.data.media.video import VIDEO_SUFFIX, VideoError, VideoFolder


def examine(
    root: Path,
    diagnosis: Diagnosis,
    claims: Claims,
    *,
    deep: bool | None = None,
    annotations: Path | None = None,
    videos: Path | None = None,
) -> None:
    """Examine annotations, and the clips' videos with the crops in them.

    :param root: a folder.
    :param diagnosis: gets counts and findings.
    :param claims: gets the files that belong to a clip.
    :param deep: decode the crop of every query; None: if the files are small.
    :param annotations: folder, if not the root.
    :param videos: folder of the clips, if not ``clips`` in the root.
    """
    *parts, files = read_subsets(
        diagnosis,
        annotations or root,
        find_vq_files,
        read_visual_queries,
        read_unlabelled_visual_queries,
    )
    read = [one for one in parts if one is not None]
    folder = VideoFolder(videos or root / CLIP_FOLDER)
    diagnosis.is_deep = is_deep_enough(deep, [folder.folder])
    if read:
        _count(diagnosis, read)
    with diagnosis.guard("videos", folder.folder):
        if not folder.folder.is_dir():
            remedy = f"expected one file a clip, <clip_uid>{VIDEO_SUFFIX}"
            diagnosis.fault("videos", folder.folder, "no videos", remedy)
            return
        known = None if parts[0] is None else clip_ids_in(files.values())
        claims.add(folder.folder, known, [VIDEO_SUFFIX])
        for one in read:
            _examine_videos(diagnosis, folder, one)


def _count(diagnosis: Diagnosis, read: Sequence[VisualAnnotations]) -> None:
    tallies = [one.report.stage("annotations", "query sets") for one in read]
    subsets = [query.subset for one in read for query in one.queries]
    counts = {name: subsets.count(name) for name in ("train", "val", "test")}
    diagnosis.counts["annotations"] = {
        **{f"{name} queries": n for name, n in counts.items()},
        "clips": sum(len(one.clips) for one in read),
        "query sets rejected": sum(t.read - t.passed_on for t in tallies),
    }


def _examine_videos(
    diagnosis: Diagnosis, videos: VideoFolder, read: VisualAnnotations
) -> None:
    clips = [
        KnownClip(
            *(clip.clip_id, clip.subset, clip.duration_sec),
            is_streamed=clip.subset != "test",
        )
        for clip in read.clips.values()
    ]
    missing = set(videos.missing(read.clips))
    report_missing(diagnosis, "videos", videos.folder, clips, missing)
    counts = diagnosis.counts.setdefault("videos", {"clips": 0})
    counts["clips"] += len(clips) - len(missing)
    faults = [
        fault
        for clip_id, lines in clip_faults(read.queries, read.clips, videos).items()
        if clip_id not in missing
        for fault in lines
    ]
    faulty = add_clip_faults(diagnosis, "videos", videos.folder, faults, clips)
    faulty |= missing
    for query in read.queries if diagnosis.is_deep else ():
        if query.clip_id in faulty:
            continue
        try:
            info = videos.info(query.clip_id)
            clip = read.clips[query.clip_id]
            (frame,) = clip_file_frames(clip, [query.crop.frame], info).tolist()
            videos.read(query.clip_id, [frame])
        except VideoError as error:
            fault = f"{query.clip_id}: {error.problem}"
            faulty |= add_clip_faults(
                diagnosis, "videos", videos.folder, [fault], clips
            )
    videos.close()
