"""Windows, pictures and targets of visual queries."""

import pickle
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from avalanche_vilco.benchmarks.vilco_vq.annotations import (
    ResponseTrack,
    VisualClip,
    VisualCrop,
    VisualQuery,
)
from avalanche_vilco.benchmarks.vilco_vq.clip_videos import VisualPictures
from avalanche_vilco.benchmarks.vilco_vq.dataset import (
    TitleNarrations,
    VisualDataset,
    VisualSample,
    clip_frame_count,
    evaluation_starts,
    training_starts,
)
from avalanche_vilco.data.media.frame_embeddings import (
    ClipEmbeddings,
    write_frame_embeddings,
)
from avalanche_vilco.data.media.pictures import cut_crop
from avalanche_vilco.data.media.video import VideoError, VideoFolder, write_video

FPS = 5.0
SIZE = (96, 128)
SCALE = 4
"""Annotations are drawn in frames of this many times the file's size."""
N_FRAMES = 70
T = 10


def make_clip(n_frames: int = N_FRAMES, clip_id: str = "clip") -> VisualClip:
    return VisualClip(clip_id, "video", "train", FPS, n_frames / FPS, 0.0)


def make_query(
    first: int = 20,
    n: int = 5,
    query_frame: int = 40,
    *,
    query_id: str = "a_1",
    crop_frame: int = 3,
    size: tuple[int, int] = (SCALE * SIZE[0], SCALE * SIZE[1]),
    clip_id: str = "clip",
    title: str = "Red  box",
) -> VisualQuery:
    """An object that moves to the right by 4 pixels of the file a frame."""
    unit = size[1] / SIZE[1]
    lefts = unit * (4 * np.arange(n) + 8)
    boxes = np.stack(
        [lefts, np.full(n, 24 * unit), lefts + 16 * unit, np.full(n, 48 * unit)], 1
    )
    track = ResponseTrack(np.arange(first, first + n), boxes, size)
    box = (40 * unit, 30 * unit, 60 * unit, 40 * unit)
    crop = VisualCrop(crop_frame, box, size)
    return VisualQuery(
        query_id, "a", "1", clip_id, "train", title, query_frame, crop, track
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Frame k is grey with a white rectangle, 16 x 24 pixels, from (8 + 4 (k - 20),
    24); its upper left corner tells k."""
    path = tmp_path_factory.mktemp("clips")

    def frame(k: int):
        picture = np.full((*SIZE, 3), 60, dtype=np.uint8)
        left = 8 + 4 * (k - 20)
        if 20 <= k < 40:
            picture[24:48, left : left + 16] = 255
        picture[:16, 64:] = 3 * k + 20
        return picture

    frames = [frame(k) for k in range(N_FRAMES)]
    write_video(path / "clip.mp4", frames, FPS, crf=4)
    write_video(path / "other.mp4", frames[::-1], FPS, crf=4)
    # Six frames of the file for one of the annotations.
    slow = [frames[k // 6] for k in range(6 * 12)]
    write_video(path / "ntsc.mp4", slow, Fraction(30000, 1001), crf=4)
    return path


@pytest.fixture
def videos(folder) -> VideoFolder:
    return VideoFolder(folder, backend="pyav")


def dataset(videos, *samples, image_size=128, n_frames=T, **options) -> VisualDataset:
    chosen = samples or (sample_at(None, make_query(), make_clip()),)
    pictures = VisualPictures(videos, image_size)
    return VisualDataset(chosen, pictures, n_frames=n_frames, **options)


def sample_at(start: int | None, query: VisualQuery, clip: VisualClip) -> VisualSample:
    return VisualSample(query=query, clip=clip, start=start, title_index=0)


def training(query_id: str = "a_1", **options) -> VisualSample:
    query = make_query(query_id=query_id, **options)
    clip = make_clip(clip_id=query.clip_id)
    return sample_at(None, query, clip)


def windows(query: VisualQuery, clip: VisualClip, window: int = T):
    starts = evaluation_starts(query.query_frame, window)
    return [sample_at(start, query, clip) for start in starts]


def number_shown(picture: torch.Tensor) -> int:
    """The frame number that a square of 128 pixels tells."""
    return round((picture[:, 18:30, 70:120].float().mean().item() - 20) / 3)


@st.composite
def clips_and_queries(draw):
    n_frames = draw(st.integers(1, 120))
    query_frame = draw(st.integers(1, n_frames))
    first = draw(st.integers(0, query_frame - 1))
    n = draw(st.integers(1, n_frames - first))
    return make_clip(n_frames), make_query(first, n, query_frame)


@given(clips_and_queries(), st.integers(1, 40))
@settings(max_examples=150)
def test_training_windows_lie_in_the_clip_and_hold_the_track(pair, window):
    clip, query = pair
    assert query.track is not None
    first, last = query.track.frames[[0, -1]].tolist()
    n_frames = round(clip.duration_sec * clip.fps)
    starts = training_starts(clip, query, window)
    assert len(starts) >= 1
    for start in starts:
        assert 0 <= start < query.query_frame
        assert start + window <= n_frames or (start == 0 and window > n_frames)
        if last - first < window:
            assert start <= first and last < start + window
        else:
            assert first <= start and start + window <= last + 1
    can_see_the_end = 0 < last - first + 1 < window and last + 1 < n_frames
    if can_see_the_end and starts[0] > 0:
        assert starts[0] + window - 1 > last


@given(clips_and_queries(), st.integers(1, 40))
@settings(max_examples=80)
def test_evaluation_windows_cover_each_searched_frame_once(pair, window):
    clip, query = pair
    data = dataset(None, *windows(query, clip, window), n_frames=window)
    searched: list[int] = []
    for sample in data.samples:
        frames = data._window(sample, sample.start)
        assert frames.stop <= clip_frame_count(clip, query)
        targets = data._targets(sample, frames)
        searched += targets["frame_numbers"][targets["searched"]].tolist()
        assert targets["valid"].sum() == len(frames)
        assert not targets["present"][~targets["valid"]].any()
    assert searched == list(range(query.query_frame))


def test_a_clip_shorter_than_a_window_is_shown_whole(videos):
    short = VisualClip("clip", "video", "train", FPS, 1.2, 0.0)
    query = make_query(first=2, n=2, query_frame=5)
    sample = sample_at(None, query, short)
    inputs, targets = dataset(videos, sample)[0]
    assert inputs["valid"].tolist() == [True] * 6 + [False] * 4
    assert targets["frame_numbers"].tolist() == [0, 1, 2, 3, 4, 5, -1, -1, -1, -1]
    assert targets["searched"].sum() == 5
    assert inputs["frames"].shape == (T, 3, 128, 128)
    assert inputs["frames"][6:].sum() == 0 < inputs["frames"][5].sum()


def test_training_without_a_track_is_refused():
    clip, query = make_clip(), make_query()
    bare = replace(query, track=None)
    with pytest.raises(ValueError, match="a_1 has no track"):
        training_starts(clip, bare, T)
    data = dataset(None, *windows(bare, clip))
    targets = data._targets(data.samples[2], range(20, 30))
    assert not targets["present"].any()
    assert targets["track_frames"].shape == (0,)
    assert targets["track_boxes"].shape == (0, 4)


def starts_of(data, **options) -> list[int]:
    loader = DataLoader(data, batch_size=4, collate_fn=data.collate_fn, **options)
    return [int(n) for _, targets in loader for n in targets.frame_numbers[:, 0]]


def test_draws_depend_on_seed_experience_epoch_and_query_alone(videos):
    samples = [training(f"q_{i}") for i in range(12)]
    data = dataset(videos, *samples, image_size=16)
    seen = {}
    for address in ((0, 0), (0, 1), (1, 0)):
        data.clock.set(*address)
        seen[address] = starts_of(data)
    seen["seed"] = starts_of(dataset(videos, *samples, image_size=16, draw_seed=1))
    assert all(one != other for one, other in pairwise(seen.values()))
    data.clock.set(0, 1)
    assert starts_of(data) == seen[0, 1]
    assert starts_of(data.subset(range(11, -1, -1))) == seen[0, 1][::-1]
    assert len(set(seen[0, 1])) > 2
    assert starts_of(dataset(videos, *samples, image_size=16)) == seen[0, 0]


def test_workers_change_no_draw_even_those_that_stay_alive(videos):
    data = dataset(videos, *(training(f"q_{i}") for i in range(8)), image_size=16)
    with_workers = DataLoader(
        data,
        batch_size=4,
        collate_fn=data.collate_fn,
        num_workers=2,
        persistent_workers=True,
    )
    drawn = []
    for epoch in (1, 2):
        data.clock.set(0, epoch)
        alone = starts_of(data)
        drawn.append(
            [int(n) for _, targets in with_workers for n in targets.frame_numbers[:, 0]]
        )
        assert drawn[-1] == alone
    assert drawn[0] != drawn[1]


def test_draws_take_nothing_from_torchs_generator_nor_depend_on_it(videos):
    data = dataset(videos, augment=True)
    torch.manual_seed(1)
    first = data[0][0]["frames"]
    state = torch.get_rng_state()
    torch.manual_seed(2)
    again = data[0][0]["frames"]
    assert torch.equal(first, again)
    torch.manual_seed(1)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_dataset_goes_to_a_spawned_worker_without_what_it_keeps(videos):
    data = dataset(videos, *windows(make_query(), make_clip()))
    assert data[0][0]["frames"].any()
    small = len(pickle.dumps(data))
    assert small < 20_000 < data[0][0]["frames"].nbytes
    again = pickle.loads(pickle.dumps(data))
    assert torch.equal(again[1][0]["frames"], data[1][0]["frames"])


def test_targets_of_a_sample_map_back_to_its_track(videos):
    query = make_query()
    inputs, targets = dataset(videos)[0]
    length, left, top = targets["square"].tolist()
    present = targets["present"]
    assert present.sum() == 5
    shift = torch.tensor([left, top, left, top])
    back = targets["boxes"][present].double() * length - shift
    assert (back - torch.from_numpy(query.track.boxes)).abs().max() < 0.01
    assert targets["frame_numbers"][present].tolist() == query.track.frames.tolist()
    assert targets["boxes"][~present].abs().sum() == 0
    assert torch.equal(targets["track_boxes"], torch.from_numpy(query.track.boxes))
    assert targets["track_frames"].tolist() == query.track.frames.tolist()
    assert torch.equal(inputs["valid"], targets["valid"])


@pytest.mark.parametrize("image_size", [128, 64, 98])
def test_boxes_lie_where_the_object_is_seen(videos, image_size):
    data = dataset(videos, image_size=image_size)
    inputs, targets = data[0]
    assert inputs["frames"].dtype == inputs["crop"].dtype == torch.uint8
    for picture, box, present in zip(
        inputs["frames"], targets["boxes"], targets["present"], strict=True
    ):
        if present:
            rows, columns = np.nonzero(picture.float().mean(0).numpy() > 170)
            inside = columns < 0.45 * image_size
            seen = [
                *(columns[inside].min(), rows[inside].min()),
                *(columns[inside].max() + 1, rows[inside].max() + 1),
            ]
            assert np.abs(box.numpy() * image_size - seen).max() < 1.2


def test_tracks_drawn_in_another_size_than_the_crop_are_told_in_the_crops(videos):
    query = make_query()
    small = make_query(size=SIZE)
    mixed = replace(query, track=small.track)
    sample = sample_at(20, mixed, make_clip())
    targets = dataset(videos, sample)[0][1]
    plain = dataset(videos, sample_at(20, query, make_clip()))[0][1]
    for name in ("square", "boxes", "track_boxes"):
        assert torch.allclose(targets[name], plain[name]), name


def test_frames_and_crop_are_those_that_are_named(videos):
    for sample in (training(), *windows(make_query(), make_clip())):
        inputs, targets = dataset(videos, sample)[0]
        shown = [number_shown(p) for p in inputs["frames"][inputs["valid"]]]
        assert shown == targets["frame_numbers"][targets["valid"]].tolist()


def test_a_file_of_ntsc_rate_shows_the_frames_of_its_annotations(videos):
    clip = make_clip(12, clip_id="ntsc")
    query = make_query(first=2, n=3, query_frame=11, clip_id="ntsc")
    inputs, _ = dataset(videos, sample_at(0, query, clip))[0]
    assert [number_shown(picture) for picture in inputs["frames"]] == list(range(10))


def count_reads(videos, monkeypatch) -> list[tuple[str, int]]:
    reads: list[tuple[str, int]] = []
    read = videos.read

    def counted(clip_id, frames, **options):
        reads.append((clip_id, len(frames)))
        return read(clip_id, frames, **options)

    monkeypatch.setattr(videos, "read", counted)
    return reads


def test_an_access_reads_its_clip_once_and_a_crop_once_for_all(videos, monkeypatch):
    reads = count_reads(videos, monkeypatch)
    data = dataset(videos, training(), *windows(make_query(), make_clip()))
    expected = data[0]
    assert reads == [("clip", T + 1)]
    crops = [data[i][0]["crop"] for i in range(len(data))]
    assert len(reads) == 1 + len(data)
    assert all(torch.equal(crop, expected[0]["crop"]) for crop in crops)
    # Other queries of a clip search the same windows.
    data[1], data[2]
    assert len(reads) == 1 + len(data)


def test_a_crop_is_cut_before_it_is_scaled_down(videos, monkeypatch):
    reads = count_reads(videos, monkeypatch)
    small = dataset(videos, image_size=32)[0][0]
    assert sorted(n for _, n in reads) == [1, T]
    picture = videos.read("clip", [3])[0]
    assert torch.equal(
        small["crop"], cut_crop(picture, make_query().crop.relative_box, 32)
    )


def test_what_is_kept_stays_below_its_limit(videos):
    one = 3 * 96 * 128
    pictures = VisualPictures(videos, 128, cache_bytes=25 * one)
    for k in range(5):
        shown = (make_query(query_id=f"q_{k}"), make_clip())
        window, _ = pictures.window_and_crop(
            make_clip(), range(10 * k, 10 * k + 10), shown, keep=True
        )
        assert window.shape == (10, 3, 96, 128)
        assert pictures._cache.currsize <= 25 * one
    assert pictures._cache.currsize > 10 * one


def test_annotations_of_another_aspect_than_the_file_are_refused(videos):
    wide = make_query(size=(1080, 1920))
    sample = sample_at(0, wide, make_clip())
    with pytest.raises(VideoError, match=r"128 x 96.*1920 x 1080"):
        dataset(videos, sample)[0]


def test_numbers_that_make_no_sense_are_refused(videos):
    with pytest.raises(ValueError, match="n_frames >= 1 but got 0"):
        dataset(videos, n_frames=0)
    with pytest.raises(ValueError, match="sizes >= 1 but got 0 and 0"):
        dataset(videos, image_size=0)
    with pytest.raises(IndexError):
        dataset(videos)[1]


def test_boxes_that_leave_the_frame_are_absent_and_the_crop_stays(videos):
    plain = dataset(videos)
    data = dataset(videos, augment=True)
    # At the left edge, so that some cut-outs leave it out.
    track = ResponseTrack(
        np.arange(20, 25), np.tile([0.0, 0.0, 8.0, 8.0], (5, 1)), (384, 512)
    )
    query = make_query()
    at_edge = replace(query, track=track)
    edge = dataset(videos, sample_at(None, at_edge, make_clip()), augment=True)
    counts = set()
    for epoch in range(12):
        data.clock.set(0, epoch)
        edge.clock.set(0, epoch)
        inputs, targets = data[0]
        assert torch.equal(inputs["crop"], plain[0][0]["crop"])
        assert (targets["present"] == (targets["boxes"].sum(1) > 0)).all()
        assert torch.equal(edge[0][1]["valid"], targets["valid"])
        boxes, present = edge[0][1]["boxes"], edge[0][1]["present"]
        assert (boxes[~present] == 0).all()
        assert (boxes[present][:, 2:] > boxes[present][:, :2]).all()
        counts.add(int(present.sum()))
    assert counts == {0, 5}


def test_evaluation_windows_are_never_augmented(videos):
    samples = windows(make_query(), make_clip())
    plain, data = dataset(videos, *samples), dataset(videos, *samples, augment=True)
    for i in range(len(samples)):
        assert torch.equal(plain[i][0]["frames"], data[i][0]["frames"])


def test_scrambled_samples_show_the_crop_of_another_query_and_nothing_else(videos):
    queries = [make_query(query_id=f"q_{i}", crop_frame=2 + i) for i in range(4)]
    other = make_query(query_id="q_4", crop_frame=7, clip_id="other")
    samples = [one for q in queries for one in windows(q, make_clip())]
    samples += windows(other, make_clip(clip_id="other"))
    data = dataset(videos, *samples)
    scrambled = data.scrambled(0)
    assert scrambled is not None
    again, elsewhere = data.scrambled(0), data.scrambled(1)
    shown = [scrambled._shown(sample).query_id for sample in scrambled.samples]
    asked = [sample.query.query_id for sample in samples]
    assert all(a != b for a, b in zip(shown, asked, strict=True))
    assert set(shown) == set(asked) and len(set(zip(shown, asked, strict=True))) == 5
    assert shown == [again._shown(sample).query_id for sample in again.samples]
    assert shown != [elsewhere._shown(s).query_id for s in elsewhere.samples]
    crops = {s.query.query_id: data[i][0]["crop"] for i, s in enumerate(samples)}
    for i, name in enumerate(shown):
        inputs, targets = scrambled[i]
        assert torch.equal(inputs["crop"], crops[name])
        assert torch.equal(inputs["frames"], data[i][0]["frames"])
        assert torch.equal(targets["boxes"], data[i][1]["boxes"])
    assert dataset(videos, *windows(make_query(), make_clip())).scrambled(0) is None


def test_embeddings_stand_in_for_pixels_frame_by_frame(videos, tmp_path):
    data = dataset(videos, training("q_0"), *windows(make_query(), make_clip()))
    frames = data.frames_read()["clip"]
    assert frames[0] == 0 and {20, 24, 33} <= set(frames)
    embeddings = torch.tensor(frames).float().view(-1, 1, 1, 1).expand(-1, 2, 3, 3)
    crops = torch.stack([torch.full((2, 3, 3), 500.0), torch.full((2, 3, 3), 501.0)])
    clip = ClipEmbeddings("clip", frames, [embeddings], ["q_0", "a_1"], crops)
    data.embeddings = write_frame_embeddings(
        tmp_path / "store", "print", (2, 3, 3), [clip]
    )
    for i in range(len(data)):
        inputs, targets = data[i]
        assert inputs["frames"].dtype == inputs["crop"].dtype == torch.float16
        assert inputs["frames"].shape == (T, 2, 3, 3)
        shown = inputs["frames"][:, 0, 0, 0][targets["valid"]]
        assert shown.tolist() == targets["frame_numbers"][targets["valid"]].tolist()
        assert inputs["crop"][0, 0, 0] == 500 + (i > 0)
    batch, _ = data.collate_fn([data[0], data[1]])
    assert batch.frames.dtype == torch.float16
    data.embeddings = None
    assert data[0][0]["frames"].dtype == torch.uint8
    with pytest.raises(ValueError, match="augment=False"):
        dataset(videos, augment=True).embeddings = write_frame_embeddings(
            tmp_path / "more", "print", (2, 3, 3), []
        )


def test_all_frames_that_training_may_read_are_listed(videos):
    data = dataset(videos, training())
    listed = set(data.frames_read()["clip"])
    read = set()
    for epoch in range(60):
        data.clock.set(0, epoch)
        read |= set(data[0][1]["frame_numbers"].tolist())
    assert read == listed


def test_titles_are_told_as_sentences_about_their_track(videos):
    queries = [
        make_query(query_id="q_0", title="Red  box"),
        make_query(query_id="q_1", title="red box "),
        make_query(query_id="q_2", title="blue box", clip_id="other"),
    ]
    clips = {name: make_clip(clip_id=name) for name in ("clip", "other")}
    narrations = TitleNarrations(queries, clips, width=6)
    embeddings, seconds, numbers = narrations.of_clip("clip")
    assert embeddings.shape == (2, narrations.width) and torch.equal(*embeddings)
    assert seconds.tolist() == [[4.0, 5.0]] * 2 and seconds.dtype == torch.float64
    assert numbers[0] == numbers[1] != narrations.of_clip("other")[2][0]
    assert narrations.of_clip("third")[0].shape[0] == 0
    samples = [sample_at(None, q, clips[q.clip_id]) for q in queries]
    data = dataset(videos, *samples, narrations=narrations)
    for i in range(3):
        inputs, targets = data[i]
        assert torch.equal(
            inputs["narrations"][0], narrations.of_title(queries[i].title_key)[0]
        )
        first, last = inputs["narrated"][0].long().tolist()
        at = targets["present"].nonzero()[:, 0]
        assert (first, last) == (at[0], at[-1])
        assert inputs["sentences"].shape == (1,)
    shared, apart = (narrations.of_title(t)[0] for t in ("red box", "blue box"))
    assert not torch.equal(shared, apart)
