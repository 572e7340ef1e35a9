"""What is there, missing or damaged in a root of Visual Queries."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

from avalanche_vilco.benchmarks.examination import (
    AnnotatedSubsets,
    ClipFiles,
    read_subsets,
)
from avalanche_vilco.benchmarks.vilco_vq.annotations import (
    CLIP_FOLDER,
    find_vq_files,
    read_unlabelled_visual_queries,
    read_visual_queries,
)
from avalanche_vilco.benchmarks.vilco_vq.clip_videos import (
    clip_faults,
    clip_file_frames,
)
from avalanche_vilco.core.diagnosis import COPY_AGAIN, Diagnosis
from avalanche_vilco.data.media.video import VIDEO_SUFFIX, VideoError, VideoFolder


def examine(root: Path, diagnosis: Diagnosis) -> None:
    """Examine annotations, and the clips' videos with the crops in them.

    :param root: a folder.
    :param diagnosis: gets counts and findings.
    """
    readers = (find_vq_files, read_visual_queries, read_unlabelled_visual_queries)
    found = read_subsets(diagnosis, root, readers, "query sets")
    videos = VideoFolder(diagnosis.path_of("videos", root / CLIP_FOLDER))
    diagnosis.settle_depth(videos.folder)
    with diagnosis.guard("videos", videos.folder):
        if not videos.folder.is_dir():
            remedy = f"expected one file a clip, <clip_uid>{VIDEO_SUFFIX}"
            diagnosis.fault("videos", videos.folder, "no videos", remedy)
            return
        names = {uid + VIDEO_SUFFIX for uid in found.known}
        diagnosis.use(videos.folder, None if found.clips is None else names)
        _examine_videos(diagnosis, videos, found)


def _examine_videos(
    diagnosis: Diagnosis, videos: VideoFolder, found: AnnotatedSubsets
) -> None:
    files = ClipFiles(diagnosis, "videos", videos.folder, found.clips or [])
    by_id = {uid: clip for one in found.read for uid, clip in one.clips.items()}
    faulty = set(videos.missing(clip.clip_id for clip in files.clips))
    files.add_missing(faulty)
    diagnosis.counts["videos"] = {"clips": len(files.clips) - len(faulty)}
    present = [query for query in found.queries if query.clip_id not in faulty]
    faults = clip_faults(present, by_id, videos).values()
    for fault in chain.from_iterable(faults):
        line = f"{fault.record}: {fault.problem}"
        faulty |= files.add_faults([line], fault.hint or COPY_AGAIN)
    for query in present if diagnosis.is_deep else ():
        if query.clip_id not in faulty:
            clip = by_id[query.clip_id]
            try:
                info = videos.info(clip.clip_id)
                frames = clip_file_frames(clip, [query.crop.frame], info).tolist()
                videos.read(clip.clip_id, frames)
            except VideoError as error:
                line = f"{query.clip_id}: {error.problem}"
                faulty |= files.add_faults([line], error.hint or COPY_AGAIN)
    videos.close()
