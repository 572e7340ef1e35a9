"""Frames of video files: exact, equal from both decoders, in bounded memory."""

import gc
import multiprocessing
import pickle
from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from avalanche_vilco.core.errors import DataError
from avalanche_vilco.data.media.video import (
    VideoError,
    VideoFolder,
    check_frames,
    fitted_size,
    open_video,
    probe_video,
    write_video,
)

forked = pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(),
    reason="this system does not fork: no worker inherits what is open",
)
BITS, SIDE = 12, 8
NTSC = Fraction(30000, 1001)


def has_decord() -> bool:
    try:
        import av  # noqa: F401
        import decord  # noqa: F401
    except ImportError:
        return False
    return True


needs_decord = pytest.mark.skipif(
    not has_decord(), reason="decord has no wheel for this platform"
)
backends = pytest.mark.parametrize(
    "backend", ["pyav", pytest.param("decord", marks=needs_decord)]
)


def numbered(height: int = 96, width: int = 128) -> Iterator[np.ndarray]:
    """Moving texture; blocks along the lower edge spell the frame's number."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (height // 8, width // 8, 3), dtype=np.uint8)
    texture = coarse.repeat(8, 0).repeat(8, 1)
    for number in count():
        frame = np.roll(texture, number, axis=1)
        for bit in range(BITS):
            value = 255 * (number >> bit & 1)
            frame[-SIDE:, bit * SIDE : (bit + 1) * SIDE] = value
        yield frame


def numbers_in(frames: torch.Tensor) -> list[int]:
    """Numbers that frames of any size spell."""
    height, width = frames.shape[2:]
    middles = (torch.arange(BITS) + 0.5) * SIDE * width / 128
    row = int(height - 0.5 * SIDE * height / 96)
    bits = frames[:, :, row, middles.long()].float().mean(dim=1) > 127
    return (bits.long() << torch.arange(BITS)).sum(dim=1).tolist()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clips")

    def write(name: str, n: int, fps: Any, **options: Any) -> None:
        write_video(folder / name, islice(numbered(), n), fps, **options)

    write("five.mp4", 200, 5)
    write("ntsc.mp4", 300, NTSC)
    write("one.mp4", 1, 5)
    write("start.mp4", 150, 5, options={"movflags": "faststart"})
    write("plain.mkv", 150, 5)
    write("open.mp4", 150, 5, options={"x264-params": "open-gop=1:keyint=20:bframes=3"})
    return folder


def has_b_frames(path: Path) -> bool:
    import av

    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        stamps = [p.pts for p in container.demux(stream) if p.size]
    return stamps != sorted(stamps)


@backends
@pytest.mark.parametrize("name", ["five.mp4", "ntsc.mp4", "plain.mkv"])
def test_unsorted_and_repeated_frames_equal_sequential_decoding(folder, name, backend):
    assert has_b_frames(folder / name)
    check_exactness(open_video(folder / name, backend=backend))


def check_exactness(reader: Any) -> None:
    in_order = reader.read(range(reader.info.n_frames))
    assert numbers_in(in_order) == list(range(reader.info.n_frames))
    asked = [50, 3, 3, 49]
    assert torch.equal(reader.read(asked), in_order[asked])
    rng = np.random.default_rng(1)
    for _ in range(10):
        asked = rng.integers(0, reader.info.n_frames, 3).tolist()
        assert torch.equal(reader.read(asked), in_order[asked])
    reader.close()


def test_frames_that_lean_on_a_later_key_frame_are_exact_by_default(folder):
    reader = open_video(folder / "open.mp4")
    assert reader.info.has_leading_frames
    check_exactness(reader)


@needs_decord
def test_decord_is_refused_where_it_would_give_other_frames(folder):
    with pytest.raises(VideoError, match=r"decord miscounts .* backend=\"pyav\""):
        open_video(folder / "open.mp4", backend="decord")


@needs_decord
@pytest.mark.parametrize("size", [None, (54, 72)])
def test_both_decoders_give_equal_pixels(folder, size):
    asked = [7, 149, 0, 31, 30, 29]
    for name in ("five.mp4", "ntsc.mp4", "plain.mkv"):
        one, other = (
            open_video(folder / name, backend=backend).read(asked, size=size)
            for backend in ("pyav", "decord")
        )
        assert torch.equal(one, other)


@backends
def test_resized_frames_show_the_frames_that_were_asked_for(folder, backend):
    frames = open_video(folder / "five.mp4", backend=backend).read(
        [99, 4], size=(48, 64)
    )
    assert frames.shape == (2, 3, 48, 64)
    assert frames.dtype == torch.uint8
    assert numbers_in(frames) == [99, 4]


@backends
def test_no_frames_asked_gives_none(folder, backend):
    assert open_video(folder / "one.mp4", backend=backend).read([]).shape[0] == 0


@backends
@pytest.mark.parametrize("frame", [200, -1])
def test_a_frame_that_is_not_there_is_an_index_error(folder, backend, frame):
    reader = open_video(folder / "five.mp4", backend=backend)
    with pytest.raises(IndexError, match=f"has frames 0 to 199 but got {frame}"):
        reader.read([0, frame])


def test_frame_numbers_are_whole(folder):
    with pytest.raises(TypeError, match="expected a list of frame numbers"):
        open_video(folder / "five.mp4").read([0.5])  # type: ignore[list-item]


def test_a_file_of_2997_fps_is_mapped_by_its_real_rate(folder):
    info = probe_video(folder / "ntsc.mp4")
    assert info.fps == pytest.approx(29.97003, abs=1e-5)
    five_fps = np.arange(50)
    found = info.frames_at(five_fps / 5)
    assert found.tolist() == np.rint(five_fps * 30000 / 1001 / 5).astype(int).tolist()
    assert found[-1] == 294
    by_int_division = five_fps * (int(info.fps) // 5)
    assert by_int_division[-1] == 245


def test_equal_rates_map_each_frame_to_itself(folder):
    info = probe_video(folder / "five.mp4")
    assert info.frames_at(np.arange(200) / 5).tolist() == list(range(200))
    assert info.duration_sec == pytest.approx(40)


def test_of_two_frames_equally_near_the_earlier_is_taken(folder):
    info = probe_video(folder / "five.mp4")
    assert info.frames_at([-3.0, 0.1, 0.11, 1e6]).tolist() == [0, 0, 1, 199]


def test_times_count_from_the_first_frame_whatever_its_time_stamp(folder, tmp_path):
    import av

    late = tmp_path / "late.mp4"
    with av.open(str(folder / "five.mp4")) as source, av.open(str(late), "w") as sink:
        stream = source.streams.video[0]
        copied = sink.add_stream_from_template(stream)
        for packet in source.demux(stream):
            if packet.size:
                packet.pts += 3 * stream.duration
                packet.dts += 3 * stream.duration
                packet.stream = copied
                sink.mux(packet)
    info = probe_video(late)
    assert info.times_sec[:2].tolist() == pytest.approx([0, 0.2])
    for backend in ("pyav", "auto"):
        assert numbers_in(open_video(late, backend=backend).read([120, 2])) == [120, 2]


@backends
def test_a_file_of_one_frame_has_one(folder, backend):
    reader = open_video(folder / "one.mp4", backend=backend)
    assert (reader.info.n_frames, reader.info.fps) == (1, 5)
    assert reader.info.duration_sec == pytest.approx(0.2)
    assert numbers_in(reader.read([0, 0])) == [0, 0]


@backends
@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"", "the file is empty"), (b"not a video at all" * 99, "not a readable video")],
)
def test_what_is_no_video_is_one_named_error(tmp_path, backend, content, problem):
    path = tmp_path / "bad.mp4"
    path.write_bytes(content)
    with pytest.raises(VideoError, match=f"bad.mp4: {problem}"):
        open_video(path, backend=backend)


@backends
@pytest.mark.parametrize("name", ["five.mp4", "start.mp4", "plain.mkv"])
def test_a_truncated_file_is_an_error_before_any_frame_is_read(
    folder, tmp_path, name, backend
):
    whole = (folder / name).read_bytes()
    path = tmp_path / name
    path.write_bytes(whole[: len(whole) * 6 // 10])
    with pytest.raises(VideoError, match=r"truncated: its header|not a readable video"):
        open_video(path, backend=backend)


def test_a_truncated_file_tells_how_many_frames_are_there(folder, tmp_path):
    whole = (folder / "start.mp4").read_bytes()
    path = tmp_path / "cut.mp4"
    path.write_bytes(whole[: len(whole) * 8 // 10])
    with pytest.raises(VideoError, match=r"header says 150 frames, but only \d+ are"):
        probe_video(path)


def test_damage_inside_a_file_is_the_same_error_and_other_frames_stay(folder, tmp_path):
    content = bytearray((folder / "five.mp4").read_bytes())
    middle = len(content) // 2
    content[middle : middle + 200] = bytes(200)
    path = tmp_path / "hurt.mp4"
    path.write_bytes(content)
    reader = open_video(path, backend="pyav")
    with pytest.raises(VideoError, match=r"hurt\.mp4: frame \d+ of 200 cannot"):
        reader.read(range(200))
    assert numbers_in(reader.read([199, 5])) == [199, 5]
    with pytest.raises(VideoError, match=r"hurt\.mp4: frame \d+ of 200 cannot"):
        check_frames(path)
    check_frames(folder / "five.mp4")


def test_an_absent_file_is_not_called_damaged(tmp_path):
    with pytest.raises(FileNotFoundError, match="no video at"):
        open_video(tmp_path / "gone.mp4")


def test_a_file_without_pictures_is_refused(tmp_path):
    import av

    path = tmp_path / "sound.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=16000)
        frame = av.AudioFrame.from_ndarray(
            np.zeros((1, 1024), np.float32), "fltp", "mono"
        )
        frame.sample_rate = 16000
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    with pytest.raises(VideoError, match="no video stream"):
        probe_video(path)


@backends
@forked
def test_forked_workers_open_their_own_files(folder, backend):
    videos = VideoFolder(folder, backend=backend)
    here = videos.read("five", range(0, 160, 20))
    there = DataLoader(
        range(0, 160, 20),
        batch_size=4,
        num_workers=2,
        collate_fn=partial(videos.read, "five"),
        multiprocessing_context="fork",
        timeout=60,
    )
    assert torch.equal(torch.cat(list(there)), here)
    assert torch.equal(videos.read("five", range(0, 160, 20)), here)


@forked
def test_forked_workers_do_not_close_what_the_parent_has_dropped(folder):
    videos = VideoFolder(folder)
    # Nothing is read: a decoder that still works ahead is waited for when it closes.
    dropped = VideoFolder(folder)
    dropped.__dict__["itself"] = dropped
    dropped._reader("five")
    gc.disable()
    try:
        del dropped
        there = DataLoader(
            [3],
            num_workers=1,
            collate_fn=lambda frames: (gc.collect(), videos.read("five", frames))[1],
            multiprocessing_context="fork",
            timeout=60,
        )
        assert numbers_in(next(iter(there))) == [3]
    finally:
        gc.enable()


@backends
def test_a_pickle_holds_no_open_file(folder, backend):
    videos = VideoFolder(folder, backend=backend)
    first = videos.read("five", [3])
    again = pickle.loads(pickle.dumps(videos))
    assert not again._open.get()
    assert torch.equal(again.read("five", [3]), first)
    with pytest.raises(TypeError, match="does not pickle"):
        pickle.dumps(open_video(folder / "five.mp4", backend=backend))


def test_few_files_are_open_at_once(folder):
    videos = VideoFolder(folder, max_open=2)
    for name in ("five", "ntsc", "one", "five"):
        videos.read(name, [0])
    assert list(videos._open.get()) == ["one", "five"]
    videos.close()
    assert not videos._open.get()
    assert numbers_in(videos.read("ntsc", [9])) == [9]


def test_clips_without_file_are_listed(folder):
    videos = VideoFolder(folder)
    assert videos.missing(["gone", "five", "away"]) == ["gone", "away"]
    with pytest.raises(FileNotFoundError, match="no video at"):
        videos.read("gone", [0])


def test_a_uid_cannot_name_a_file_outside_the_folder(folder):
    with pytest.raises(DataError, match="the id has characters"):
        VideoFolder(folder).path("../five")


@backends
def test_500_random_reads_grow_memory_by_less_than_50_mib(tmp_path, backend):
    psutil = pytest.importorskip("psutil")
    frames = islice(numbered(120, 160), 300)
    write_video(tmp_path / "long.mp4", frames, 5, key_frame_every=25)
    videos = VideoFolder(tmp_path, backend=backend)
    rng = np.random.default_rng(2)
    videos.read("long", [0, 150, 299], size=(112, 112))
    before = psutil.Process().memory_info().rss
    for frame in rng.integers(0, 300, 500).tolist():
        videos.read("long", [frame], size=(112, 112))
    grown = psutil.Process().memory_info().rss - before
    assert grown < 50 * 2**20


def test_backends_are_named(folder):
    with pytest.raises(ValueError, match=r"expected backend in .* but got 'ffmpeg'"):
        VideoFolder(folder, backend="ffmpeg")


@pytest.mark.parametrize("options", [{"threads": 0}, {"max_open": 0}])
def test_numbers_below_one_are_refused(folder, options):
    with pytest.raises(ValueError, match="expected threads"):
        VideoFolder(folder, **options)


def test_without_decord_pyav_reads_and_decord_is_asked_for_by_name(folder, monkeypatch):
    monkeypatch.setattr("avalanche_vilco.data.media.video.find_spec", lambda name: None)
    assert numbers_in(open_video(folder / "five.mp4").read([8])) == [8]
    with pytest.raises(ImportError, match="decord is not installed"):
        open_video(folder / "five.mp4", backend="decord")


def test_without_any_decoder_the_error_names_the_package(folder, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "av", None)
    with pytest.raises(ImportError, match="pip install av"):
        probe_video(folder / "five.mp4")


def test_writing_needs_a_frame_and_even_sizes(tmp_path):
    with pytest.raises(ValueError, match="at least one frame"):
        write_video(tmp_path / "none.mp4", [], 5)
    with pytest.raises(ValueError, match="expected even sizes but got 95 x 128"):
        write_video(tmp_path / "odd.mp4", [np.zeros((95, 128, 3), np.uint8)], 5)


def test_fitted_sizes_keep_the_shape():
    assert fitted_size(1080, 1920, 448) == (252, 448)
    assert fitted_size(96, 128, 128) == (96, 128)
    assert fitted_size(1, 4000, 100) == (1, 100)
