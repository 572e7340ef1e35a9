"""Files of any codec, flag, edit list and rate: upright frames, or a refusal."""

import math
import shutil
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from avalanche_vilco.core import remembered
from avalanche_vilco.data.media.video import (
    UnsupportedVideo,
    VideoError,
    VideoFolder,
    open_video,
    probe_video,
)

av = pytest.importorskip("av")

N_FRAMES = 24
CODECS: dict[str, dict[str, Any]] = {
    "b_frames": {"options": {"bf": "2", "g": "10"}},
    "narrow": {"size": (64, 48)},
    "odd": {"codec": "mpeg4", "size": (31, 45), "options": {"g": "8"}},
    "uneven": {"times": lambda k: 10 * k + 3 * (k % 3)},
    "colours": {"pixels": "yuv444p"},
    "av1": {"codec": "libsvtav1", "options": {"preset": "12"}},
}
TURNS: dict[str, tuple[tuple[int, int, int, int], Callable[[Any], Any]]] = {
    "as stored": ((1, 0, 0, 1), lambda image: image),
    "clockwise": ((0, 1, -1, 0), lambda image: np.rot90(image, -1)),
    "upside down": ((-1, 0, 0, -1), lambda image: np.rot90(image, 2)),
    "counterclockwise": ((0, -1, 1, 0), lambda image: np.rot90(image, 1)),
    "mirrored": ((-1, 0, 0, 1), np.fliplr),
    "reflected": ((1, 0, 0, -1), np.flipud),
    "transposed": ((0, 1, 1, 0), lambda image: image.swapaxes(0, 1)),
    "transversed": ((0, -1, -1, 0), lambda i: np.rot90(i.swapaxes(0, 1), 2)),
}


def pictures(height: int, width: int) -> list[Any]:
    rng = np.random.default_rng(0)
    texture = rng.integers(0, 256, (height // 4 + 1, width // 4 + 1, 3), np.uint8)
    texture = texture.repeat(4, 0).repeat(4, 1)[:height, :width]
    return [np.roll(texture, 2 * number, axis=1) for number in range(N_FRAMES)]


def write(path: Path, *tracks: dict[str, Any]) -> None:
    with av.open(str(path), "w") as container:
        streams = []
        for how in tracks:
            stream = container.add_stream(how.get("codec", "libx264"), rate=30)
            stream.height, stream.width = how.get("size", (64, 80))
            stream.pix_fmt = how.get("pixels", "yuv420p")
            stream.codec_context.time_base = Fraction(1, 300)
            stream.options = how.get("options", {})
            streams.append((stream, how.get("times", lambda k: 10 * k)))
        for stream, times in streams:
            for number, image in enumerate(pictures(stream.height, stream.width)):
                frame = av.VideoFrame.from_ndarray(image, format="rgb24")
                frame.time_base, frame.pts = Fraction(1, 300), times(number)
                container.mux(stream.encode(frame))
            container.mux(stream.encode(None))


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, tuple[Path, list[Any]]]:
    """Each file, and its frames as a plain decoder gives them."""
    folder, made = tmp_path_factory.mktemp("files"), {}
    for name, how in CODECS.items():
        path = folder / f"{name}.mp4"
        try:
            write(path, how)
        except av.codec.codec.UnknownCodecError:
            continue
        with av.open(str(path)) as container:
            decoded = list(container.decode(video=0))
        made[name] = (path, [(f.pts, f.to_ndarray(format="rgb24")) for f in decoded])
    return made


@settings(max_examples=40)
@given(data=st.data())
def test_both_decoders_give_upright_frames_or_refuse_by_name(data, files, flagged):
    name = data.draw(st.sampled_from(sorted(files)))
    source, frames = files[name]
    matrix, upright = TURNS[data.draw(st.sampled_from(sorted(TURNS)))]
    skipped = data.draw(st.integers(0, N_FRAMES - 1))
    shift = frames[skipped][0] - frames[0][0]
    path = flagged(source, source.with_name("flagged.mp4"), matrix, shift)
    expected = np.stack([upright(image) for _, image in frames[skipped:]])
    info = probe_video(path)
    assert (info.n_frames, info.n_hidden) == (len(expected), skipped)
    assert (info.height, info.width) == expected.shape[1:3]
    times = [(pts - frames[skipped][0]) * info.time_base for pts, _ in frames[skipped:]]
    assert info.times_sec.tolist() == pytest.approx([float(time) for time in times])
    asked = data.draw(st.lists(st.integers(0, len(expected) - 1), max_size=6))
    for backend in ("pyav", "auto", "decord"):
        try:
            reader = open_video(path, backend=backend)
        except (UnsupportedVideo, ImportError) as error:
            assert backend == "decord" and "pyav" in str(error)
            continue
        for wanted in (range(len(expected)), asked):
            read = reader.read(wanted).permute(0, 2, 3, 1).numpy()
            assert np.abs(read.astype(int) - expected[list(wanted)]).max(initial=0) <= 2
        reader.close()


def test_what_a_header_says_is_told(files):
    info = probe_video(files["b_frames"][0])
    assert (info.codec, info.pixel_format, info.n_tracks) == ("h264", "yuv420p", 1)
    assert info.is_constant_rate and not info.decord_fault
    assert not probe_video(files["uneven"][0]).is_constant_rate
    if "av1" in files:
        assert probe_video(files["av1"][0]).codec in ("av1", "libdav1d")


def edited(content: bytes, old: bytes, new: bytes) -> bytes:
    assert old in content
    return content.replace(old, new)


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (lambda c: c[: c.index(b"moov")], VideoError, "not a readable .*download it"),
        (lambda c: edited(c, b"avc1", b"zzz1"), UnsupportedVideo, "no decoder.*ffmpeg"),
        (lambda c: edited(c, b"vide", b"soun"), UnsupportedVideo, "no video.*cut the"),
    ],
)
def test_a_file_that_is_not_read_says_why_and_what_helps(
    files, tmp_path, change, kind, message
):
    path = tmp_path / "clip.mp4"
    path.write_bytes(change(files["b_frames"][0].read_bytes()))
    for _ in range(2):  # The second answer is the remembered one.
        with pytest.raises(kind, match=message) as caught:
            VideoFolder(tmp_path).info("clip")
        assert type(caught.value) is kind


def test_flags_that_no_picture_can_follow_are_refused(files, tmp_path, flagged):
    source, path = files["b_frames"][0], tmp_path / "clip.mp4"
    half = math.sqrt(0.5)
    flagged(source, path, (half, half, -half, half))
    with pytest.raises(UnsupportedVideo, match=r"by 45 degrees.*ffmpeg -i IN"):
        probe_video(path)
    flagged(source, path, skipped=10**6)
    with pytest.raises(UnsupportedVideo, match=r"shows none of its 24.*ignore_editl"):
        probe_video(path)


def test_a_folder_refuses_at_its_check_what_its_decoder_would_not_read(
    files, tmp_path, flagged
):
    source, frames = files["b_frames"]
    shift = frames[7][0] - frames[0][0]
    flagged(source, tmp_path / "clip.mp4", skipped=shift)
    assert VideoFolder(tmp_path).read("clip", [16]).shape == (1, 3, 64, 80)
    pytest.importorskip("decord")
    with pytest.raises(UnsupportedVideo, match=r"counts the 7 frames.*\"pyav\" or"):
        VideoFolder(tmp_path, backend="decord").info("clip")


def test_a_file_with_two_tracks_is_read_alike(tmp_path):
    path = tmp_path / "two.mp4"
    write(path, {}, {"size": (64, 96)})
    assert probe_video(path).n_tracks == 2
    read = [open_video(path, backend=one).read([3]) for one in ("auto", "pyav")]
    assert read[0].equal(read[1])


def test_the_check_is_remembered_until_the_file_changes(files, tmp_path, monkeypatch):
    path, opened = tmp_path / "clip.mp4", []
    shutil.copy(files["b_frames"][0], path)
    monkeypatch.setattr(remembered, "FOLDER", str(tmp_path / "cache"))
    plainly = av.open
    monkeypatch.setattr(
        av, "open", lambda *a, **k: opened.append(a) or plainly(*a, **k)
    )

    def looks() -> int:
        before, info = len(opened), probe_video(path)
        assert info.pts.tolist() == first.pts.tolist() and info.path == path
        assert info.keys.tolist() == first.keys.tolist()
        assert (info.time_base, info.turn) == (first.time_base, first.turn)
        return len(opened) - before

    first = probe_video(path)
    assert looks() == 0
    path.touch()
    assert looks() == 1 and looks() == 0
    (entry,) = (tmp_path / "cache").iterdir()
    whole = entry.read_bytes()
    for damaged in (b"", whole[:-3], whole[:40] + b"x" + whole[41:], b"x" * 99):
        entry.write_bytes(damaged)
        assert looks() == 1 and looks() == 0
    entry.unlink()
    entry.parent.rmdir()
    entry.parent.write_text("no folder can be made here")
    assert looks() == looks() == 1
