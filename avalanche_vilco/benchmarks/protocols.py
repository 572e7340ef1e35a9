"""Protocols: which clips an experience has, and which of their windows.

``exclusive`` gives each clip to one experience, ``shared_clips`` to each that asks a
query of it, ``reference`` splits as the public benchmark code does. What each keeps
of the real file stands in ``docs/protocols.md``.

``python -m avalanche_vilco.benchmarks.protocols FILE`` prints these counts.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from avalanche_vilco.benchmarks.split import (
    assign_clips,
    held_out_parents,
    query_groups,
)
from avalanche_vilco.benchmarks.vilco_mq.annotations import read_moment_annotations
from avalanche_vilco.benchmarks.vilco_mq.reference_split import (
    own_window_mask,
    reference_places,
)
from avalanche_vilco.core.errors import DataError
from avalanche_vilco.core.report import DataReport
from avalanche_vilco.data.moments import MomentClip, MomentSample

STREAMS = ("train", "valid", "test")

Groups = Sequence[Sequence[int]]
Split = Mapping[str, Sequence[Sequence[MomentClip]]]
"""Stream -> experiences -> clips."""
Streams = Mapping[str, list[list[MomentSample]]]
"""Stream -> experiences -> samples."""


@dataclass(frozen=True)
class Protocol:
    """How clips and windows are divided over experiences."""

    name: str
    version: str
    """Changes with what the streams hold; travels into results and manifests."""
    windows: str
    """How windows are read: ``"clipped"`` or ``"raw"``."""
    valid_share: float
    """Share of the training clips that the valid stream holds by default."""
    shares_clips: bool
    """Whether a clip may be in several experiences."""
    splits_before_dropping: bool
    """Whether a clip without features still counts when places are given."""
    place: Callable[[Sequence[MomentClip], Groups], list[tuple[int, ...]]]
    """Experiences of each clip, of train and val together."""
    keeps: Callable[[MomentClip, Sequence[int]], npt.NDArray[np.bool_]]
    """(N,) mask of the windows that a clip has in an experience with these ids."""
    losses: Callable[[MomentClip, Sequence[int], Groups], Mapping[str, int]]
    """Reason -> windows that a clip with these places loses."""


def split_clips(
    clips: Sequence[MomentClip],
    groups: Groups,
    protocol: Protocol,
    valid_share: float,
) -> Split:
    """Divide clips over streams and experiences.

    :param clips: annotated clips of train and val, in file order.
    :param groups: category ids of each experience.
    :param protocol: the rule.
    :param valid_share: share of the training clips held out by parent, in [0, 1).
    :return: stream -> experiences -> clips in file order.
    """
    places = protocol.place(clips, groups)
    train = [i for i, clip in enumerate(clips) if clip.subset == "train"]
    homes = [
        -1 if not places[i] else 0 if protocol.shares_clips else places[i][0]
        for i in train
    ]
    held = held_out_parents([clips[i] for i in train], np.array(homes), valid_share)
    split: dict[str, list[list[MomentClip]]]
    split = {name: [[] for _ in groups] for name in STREAMS}
    for clip, own in zip(clips, places, strict=True):
        is_held = clip.subset == "train" and clip.video_id in held
        name = "test" if clip.subset == "val" else "valid" if is_held else "train"
        for experience in own:
            split[name][experience].append(clip)
    return split


def stream_samples(split: Split, groups: Groups, protocol: Protocol) -> Streams:
    """Samples of a split: each clip with its windows in its experience.

    :param split: stream -> experiences -> clips.
    :param groups: category ids of each experience, in order of learning.
    :param protocol: decides which windows are kept.
    """
    channels = {label: i for i, label in enumerate(x for g in groups for x in g)}
    return {
        name: [
            [_sample(clip, group, channels, protocol) for clip in own]
            for own, group in zip(experiences, groups, strict=True)
        ]
        for name, experiences in split.items()
    }


def _sample(
    clip: MomentClip,
    group: Sequence[int],
    channels: Mapping[int, int],
    protocol: Protocol,
) -> MomentSample:
    kept = protocol.keeps(clip, group)
    windows = clip.windows_sec[kept]
    if protocol.windows == "raw":
        # The public files hold float32; equal numbers need its rounding.
        windows = windows.astype(np.float32).astype(np.float64)
    labels = [channels[label] for label in clip.label_ids[kept].tolist()]
    own_channels = np.array(labels, dtype=np.int64)
    windows.setflags(write=False)
    own_channels.setflags(write=False)
    return MomentSample(
        clip, windows, own_channels, tuple(sorted(channels[label] for label in group))
    )


def count_split(
    clips: Iterable[MomentClip],
    split: Split,
    groups: Groups,
    protocol: Protocol,
    report: DataReport,
) -> None:
    """Count what a protocol keeps of the clips and why it leaves the rest.

    :param clips: all clips that could have a place.
    :param split: where they are.
    :param groups: category ids of each experience.
    :param protocol: the rule.
    :param report: where to count, as stage ``protocol <name>``.
    """
    stage = f"protocol {protocol.name}"
    windows, members = report.stage(stage, "windows"), report.stage(stage, "clips")
    places: dict[str, list[int]] = {}
    for experiences in split.values():
        for experience, own in enumerate(experiences):
            for clip in own:
                places.setdefault(clip.clip_id, []).append(experience)
    for clip in clips:
        own_places = places.get(clip.clip_id, [])
        losses = protocol.losses(clip, own_places, groups)
        for reason, count in losses.items():
            windows.reject(reason, count)
        windows.kept += len(clip.label_ids) - sum(losses.values())
        if own_places:
            members.kept += 1
        else:
            members.reject("no place in an experience that asks for it")


def count_streams(streams: Streams, protocol: Protocol, report: DataReport) -> None:
    """Note what each stream holds.

    :param streams: samples by stream and experience.
    :param protocol: names the stage.
    :param report: where to note.
    """
    windows = report.stage(f"protocol {protocol.name}", "windows")
    clips = report.stage(f"protocol {protocol.name}", "clips")
    for name, experiences in streams.items():
        samples = [sample for experience in experiences for sample in experience]
        windows.note(f"in stream {name}", sum(len(s.class_indices) for s in samples))
        clips.note(f"in stream {name}", len({s.clip.clip_id for s in samples}))
        if protocol.shares_clips:
            clips.note(f"samples in stream {name}", len(samples))


def _exclusive_places(
    clips: Sequence[MomentClip], groups: Groups
) -> list[tuple[int, ...]]:
    places: dict[str, tuple[int, ...]] = {}
    for subset in ("train", "val"):
        members = [clip for clip in clips if clip.subset == subset]
        homes = assign_clips(members, groups).tolist()
        for clip, home in zip(members, homes, strict=True):
            places[clip.clip_id] = (home,) if home >= 0 else ()
    return [places[clip.clip_id] for clip in clips]


def _shared_places(
    clips: Sequence[MomentClip], groups: Groups
) -> list[tuple[int, ...]]:
    home = {label: e for e, group in enumerate(groups) for label in group}
    return [
        tuple(sorted({home[label] for label in clip.label_ids.tolist()}))
        for clip in clips
    ]


def _reference_places(
    clips: Sequence[MomentClip], groups: Groups
) -> list[tuple[int, ...]]:
    return [(e,) if e >= 0 else () for e in reference_places(clips, groups)]


def _asked_windows(clip: MomentClip, group: Sequence[int]) -> npt.NDArray[np.bool_]:
    mask: npt.NDArray[np.bool_] = np.isin(clip.label_ids, group)
    return mask


def _losses(clip: MomentClip, places: Sequence[int], groups: Groups) -> dict[str, int]:
    total = len(clip.label_ids)
    if not places:
        return {"the clip has no place": total}
    kept = sum(int(_asked_windows(clip, groups[e]).sum()) for e in places)
    return {"query of another experience than the clip's": total - kept}


def _reference_losses(
    clip: MomentClip, places: Sequence[int], groups: Groups
) -> dict[str, int]:
    total = len(clip.label_ids)
    if not places:
        return {f"{clip.subset}: the clip is dropped": total}
    own = int(_asked_windows(clip, groups[places[0]]).sum())
    kept = int(own_window_mask(clip, groups[places[0]]).sum())
    return {
        f"{clip.subset}: outside the clip's group": total - own,
        f"{clip.subset}: starts or ends at or past the clip's end": own - kept,
    }


EXCLUSIVE = Protocol(
    name="exclusive",
    version="1",
    windows="clipped",
    valid_share=0.1,
    shares_clips=False,
    splits_before_dropping=False,
    place=_exclusive_places,
    keeps=_asked_windows,
    losses=_losses,
)
SHARED_CLIPS = Protocol(
    name="shared_clips",
    version="1",
    windows="clipped",
    valid_share=0.1,
    shares_clips=True,
    splits_before_dropping=False,
    place=_shared_places,
    keeps=_asked_windows,
    losses=_losses,
)
REFERENCE = Protocol(
    name="reference",
    version="1",
    windows="raw",
    # The public code selects on its evaluation split and holds nothing out.
    valid_share=0.0,
    shares_clips=False,
    splits_before_dropping=True,
    place=_reference_places,
    keeps=own_window_mask,
    losses=_reference_losses,
)
PROTOCOLS: Mapping[str, Protocol] = {
    protocol.name: protocol for protocol in (EXCLUSIVE, SHARED_CLIPS, REFERENCE)
}
"""Protocols by name."""


@dataclass(frozen=True)
class StreamCount:
    """What one experience of a stream holds."""

    stream: str
    experience: int
    clips: int
    windows: int
    hours: float


def stream_counts(streams: Streams) -> list[StreamCount]:
    """Clips, windows and hours of each experience.

    :param streams: samples by stream and experience.
    """
    return [
        StreamCount(
            name,
            experience,
            len(samples),
            sum(len(sample.class_indices) for sample in samples),
            sum(sample.clip.duration_sec for sample in samples) / 3600,
        )
        for name, experiences in streams.items()
        for experience, samples in enumerate(experiences)
    ]


def counts_table(counts: Sequence[StreamCount]) -> str:
    """A Markdown table with a row for each experience and one for all.

    :param counts: from :func:`stream_counts`.
    """
    names = list(dict.fromkeys(count.stream for count in counts))
    numbers = sorted({count.experience for count in counts})
    rows = [
        ["experience", *(f"{name}: clips / windows / hours" for name in names)],
        ["---"] * (1 + len(names)),
    ]
    for label, chosen in [*((str(n), {n}) for n in numbers), ("all", set(numbers))]:
        cells = [_cell(counts, name, chosen) for name in names]
        rows.append([label, *cells])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _cell(counts: Sequence[StreamCount], stream: str, experiences: set[int]) -> str:
    own = [c for c in counts if c.stream == stream and c.experience in experiences]
    clips, windows = sum(c.clips for c in own), sum(c.windows for c in own)
    return f"{clips:,} / {windows:,} / {sum(c.hours for c in own):.1f}"


def file_counts(path: Path | str, protocol: str) -> list[StreamCount]:
    """Counts of a protocol on an annotation file, in five groups of the fixed order.

    :param path: processed annotation file; features are not needed.
    :param protocol: name of the protocol.
    """
    rule = PROTOCOLS[protocol]
    read = read_moment_annotations(path, windows=rule.windows)
    clips = [c for c in read.clips if c.subset != "test" and len(c.label_ids)]
    groups = query_groups(
        list(read.label_names), n_experiences=5, group_sizes=None, order=None, seed=None
    )
    split = split_clips(clips, groups, rule, rule.valid_share)
    return stream_counts(stream_samples(split, groups, rule))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the counts of all protocols on an annotation file.

    :param arguments: command-line arguments; those of the process if not given.
    :return: exit status.
    """
    parser = argparse.ArgumentParser(
        prog="python -m avalanche_vilco.benchmarks.protocols",
        description="Print what each protocol keeps of an annotation file.",
    )
    parser.add_argument("file", metavar="FILE", help="processed annotation file")
    file = parser.parse_args(arguments).file
    try:
        for name in PROTOCOLS:
            print(f"## {name}\n\n{counts_table(file_counts(file, name))}\n")
    except (FileNotFoundError, DataError) as error:
        parser.exit(1, f"error: {error}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
