"""Visual queries as streams that stock Avalanche takes."""

import json
import pickle
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from avalanche.benchmarks.scenarios import benchmark_from_datasets
from avalanche.training.storage_policy import (
    ClassBalancedBuffer,
)
from torch.utils.data import DataLoader

from avalanche_vilco import vilco_vq
from avalanche_vilco.benchmarks.vilco_vq.annotations import (
    CLIP_FOLDER,
    OFFICIAL_VQ_FILES,
)
from avalanche_vilco.benchmarks.vilco_vq.generator import unlabelled_vq
from avalanche_vilco.core.errors import DataError
from avalanche_vilco.core.visual_batch import TrackWindowTargets, VisualQueryBatch
from avalanche_vilco.data.media.video import VideoError, open_video, probe_video

OPTIONS = {"n_experiences": 3, "valid_share": 0.2}
SOURCES = {"image_size": 32, "n_frames": 10}


@pytest.fixture(scope="module")
def root(vq_root: Path) -> Path:
    return vq_root


@pytest.fixture(scope="module")
def benchmark(root):
    return build(root, narrations=True)


def build(root, *, split=OPTIONS, **sources):
    return vilco_vq(root, **split, sources={**SOURCES, **sources})


@pytest.fixture
def copied(root, tmp_path) -> Path:
    return Path(shutil.copytree(root, tmp_path / "copy"))


def ids(benchmark, name="train"):
    samples = benchmark.datasets[name].samples
    return [
        [samples[i].query.query_id for i in exp.dataset.positions]
        for exp in benchmark.streams[name]
    ]


def test_titles_are_learnt_in_groups_and_each_experience_asks_for_its_own(benchmark):
    titles = [query.name for query in benchmark.queries]
    assert [query.class_index for query in benchmark.queries] == list(
        range(len(titles))
    )
    sizes = benchmark.info["queries_per_experience"]
    taught, untaught = titles[: sum(sizes)], titles[sum(sizes) :]
    assert sorted(taught) + sorted(untaught) == [
        q.name for q in sorted(benchmark.queries, key=lambda q: q.label_id)
    ]
    assert benchmark.info["order"] == taught and sizes == benchmark.n_classes_per_exp
    # Some titles are in val alone: evaluated, counted, and of no training experience.
    assert untaught and len(untaught) == benchmark.info["titles_of_val_alone"]
    assert benchmark.manifest()["source"]["titles_of_val_alone"] == len(untaught)
    tally = benchmark.report.stage("titles", "titles")
    assert (tally.kept, sum(tally.changed.values())) == (sum(sizes), len(untaught))
    assert benchmark.queries[0].tokens.shape == (0, 1) and benchmark.text_dim == 1
    for name, stream in benchmark.streams.items():
        samples = benchmark.datasets[name].samples
        for exp in stream:
            for position, group in zip(
                exp.dataset.positions, exp.dataset.targets, strict=True
            ):
                sample = samples[position]
                assert titles[group] == sample.query.title_key
                assert group in exp.classes_in_this_experience
                assert sample.clip.clip_id == sample.query.clip_id
    assert benchmark.train_stream[1].classes_seen_so_far == set(range(sum(sizes[:2])))


def test_a_training_sample_is_a_query_and_the_others_are_windows(benchmark):
    for name, data in benchmark.datasets.items():
        for query in data.queries:
            starts = [s.start for s in data.samples if s.query is query]
            expected = (
                [None] if name == "train" else list(range(0, query.query_frame, 10))
            )
            assert starts == expected
    assert all(len(exp.dataset) for exp in benchmark.test_stream)
    assert sum(map(len, ids(benchmark, "valid"))) > 0


def test_counts_add_up_to_what_was_read(root, benchmark):
    shared = build(root, split={**OPTIONS, "protocol": "shared_clips"})
    assert shared.info["protocol"] == "shared_clips"
    n_read = shared.report.stage("annotations", "query sets").passed_on
    assert sum(len(data.queries) for data in shared.datasets.values()) == n_read
    outcomes = benchmark.report.outcomes("query sets")
    streamed = sum(len(data.queries) for data in benchmark.datasets.values())
    assert outcomes["in the streams"] == streamed
    first = benchmark.report.stage("annotations", "query sets")
    assert sum(outcomes.values()) == first.read


def test_info_says_what_a_result_must_say(benchmark):
    info = benchmark.info
    assert info["benchmark"] == "vilco_vq" and info["data"] == "user data"
    assert (info["image_size"], info["window"]) == (32, 10)
    assert info["comparable_with_paper"] is info["uses_ground_truth_at_test"] is False
    assert info["protocol"] == "exclusive" and info["augment"] is False
    assert "feature_dim" not in info
    assert json.loads(json.dumps(info)) == info


def test_order_seed_and_grouping_make_other_streams(root, benchmark):
    def names(**split):
        streams = build(root, split={**OPTIONS, **split}).train_stream
        return [[q.name for q in e.queries_in_this_experience] for e in streams]

    plain = names()
    order = [name for group in plain for name in group]
    assert order == benchmark.info["order"]
    assert names(fixed_class_order=[2, 0, 1]) == [plain[2], plain[0], plain[1]]
    shuffled = names(fixed_class_order="groups", seed=0)
    assert sorted(shuffled) == sorted(plain)
    assert names(grouping="shuffled") != plain
    assert ids(build(root)) == ids(benchmark)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"protocol": "exclusiv"}, "'exclusiv'. Did you mean exclusive"),
        ({"protocol": "reference"}, "comes from the public pickle alone"),
        ({"fixed_class_order": "queries"}, "fixed_class_order .* got 'queries'"),
        ({"fixed_class_order": [0, 1, 1, 2, 3]}, r"each of 0..4 once but got"),
        ({"grouping": "alone"}, "expected grouping in"),
        ({"n_experiences": 0}, "expected n_experiences in"),
        ({"valid_share": 1.0}, r"expected valid_share in \[0, 1\) but got 1.0"),
        ({"sources": {"missing": "skip"}}, "expected missing in .* got 'skip'"),
        ({"sources": {"n_frames": 0}}, "expected n_frames >= 1 but got 0"),
        ({"sources": {"image_size": 0}}, "expected image_size >= 1 but got 0"),
        ({"sources": {"backend": "ffmpeg"}}, "expected backend in .* got 'ffmpeg'"),
        ({"sources": {"video": "."}}, "no option 'video'. Did you mean videos"),
    ],
)
def test_arguments_out_of_range_are_named(root, arguments, message):
    with pytest.raises(ValueError, match=message):
        vilco_vq(root, **arguments)


def test_missing_and_damaged_videos_are_all_listed(copied):
    clips = sorted((copied / CLIP_FOLDER).iterdir())
    used = {
        sample.clip.clip_id
        for data in build(copied).datasets.values()
        for sample in data.samples
    }
    absent, cut, empty = [path for path in clips if path.stem in used][:3]
    absent.unlink()
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])
    empty.write_bytes(b"")
    with pytest.raises(VideoError, match="3 faults in clips") as caught:
        build(copied)
    assert all(path.stem in str(caught.value) for path in (absent, cut, empty))
    part = build(copied, missing="drop")
    clips_left = part.report.stage("videos", "clips")
    assert clips_left.rejected == {
        "no video file": 1,
        "the video is damaged, or of another clip": 2,
    }
    sets = part.report.stage("videos", "query sets")
    assert sets.passed_on == sum(len(data.queries) for data in part.datasets.values())
    outcomes = part.report.outcomes("query sets")
    assert sum(outcomes.values()) == part.report.stage("annotations", "query sets").read
    left = {s.clip.clip_id for data in part.datasets.values() for s in data.samples}
    assert left == used - {absent.stem, cut.stem, empty.stem}


@pytest.fixture
def odd_clips(copied, flagged) -> list[Path]:
    """Clips of train: one turned, one whose edit list starts two frames later, one
    as it was."""
    used = {s.clip.clip_id for s in build(copied).datasets["train"].samples}
    turned, later, plain = (
        copied / CLIP_FOLDER / f"{uid}.mp4" for uid in sorted(used)[:3]
    )
    flagged(turned, turned, (0, 1, -1, 0))
    frame_ticks = int(probe_video(later).pts[1])
    flagged(later, later, skipped=2 * frame_ticks)
    return [turned, later, plain]


def test_what_a_file_says_of_itself_is_found_when_the_benchmark_is_built(
    copied, odd_clips
):
    turned, later, _ = (path.stem for path in odd_clips)
    problem = rf"1 fault in clips:\s+{turned}: its frames are 48 x 64, .*from the side "
    with pytest.raises(VideoError, match=problem + r"\(.*-display_rotation 0"):
        build(copied)
    benchmark = build(copied, missing="drop")
    reason = {"the video cannot be read as it is": 1}
    assert benchmark.report.stage("videos", "clips").rejected == reason
    used = {s.clip.clip_id for s in benchmark.datasets["train"].samples}
    assert turned not in used and later in used
    for data in benchmark.datasets.values():
        assert len([data[i] for i in range(len(data))]) == len(data)
    pytest.importorskip("decord")
    problem = rf"2 faults in clips:(?s:.*){later}: decord does not read it exactly: "
    with pytest.raises(VideoError, match=problem + "it counts the 2"):
        build(copied, backend="decord")


def test_a_codec_that_decord_does_not_know_is_read_by_the_other_decoder(
    copied, odd_clips
):
    _, later, recoded = (path.stem for path in odd_clips)
    recode_as_av1(odd_clips[2])
    data = build(copied, missing="drop").datasets["train"]
    used = {sample.clip.clip_id for sample in data.samples}
    assert {later, recoded} <= used
    assert len([data[i] for i in range(len(data))]) == len(data)
    pytest.importorskip("decord")
    problem = rf"3 faults in clips:(?s:.*){recoded}: decord does not read it exactly: "
    with pytest.raises(VideoError, match=problem + r"it cannot decode av1 \("):
        build(copied, backend="decord")
    named = build(copied, backend="decord", missing="drop")
    left = {s.clip.clip_id for s in named.datasets["train"].samples}
    assert left == used - {later, recoded}


def recode_as_av1(path: Path) -> None:
    av = pytest.importorskip("av")
    images = open_video(path).read(range(probe_video(path).n_frames))
    with av.open(str(path), "w") as container:
        try:
            stream = container.add_stream("libsvtav1", rate=5)
        except av.codec.codec.UnknownCodecError:
            pytest.skip("this PyAV was built without the AV1 encoder libsvtav1")
        stream.height, stream.width = images.shape[2:]
        stream.pix_fmt = "yuv420p"
        for image in images.permute(0, 2, 3, 1).numpy():
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def test_the_other_queries_are_divided_alike_whatever_videos_are_missing(copied, root):
    whole = build(root)
    lost = whole.datasets["train"].samples[0].clip.clip_id
    (copied / CLIP_FOLDER / f"{lost}.mp4").unlink()
    dropped = build(copied, missing="drop")
    assert dropped.info["order"] == whole.info["order"]
    known = {s.query.query_id: s.query.clip_id for s in whole.datasets["train"].samples}
    for name in ("train", "test"):
        expected = [
            [i for i in part if known.get(i) != lost] for part in ids(whole, name)
        ]
        assert ids(dropped, name) == expected


def test_an_experience_without_any_video_left_is_an_error(copied):
    for path in (copied / CLIP_FOLDER).iterdir():
        path.unlink()
    with pytest.raises(DataError, match=r"experiences \[0, 1, 2\]"):
        build(copied, missing="drop")


def test_clips_that_no_stream_uses_need_no_video(copied, root):
    used = {
        sample.clip.clip_id
        for data in build(root).datasets.values()
        for sample in data.samples
    }
    for path in (copied / CLIP_FOLDER).iterdir():
        if path.stem not in used:
            path.unlink()
    build(copied)


def test_a_video_in_train_and_val_is_refused(copied):
    train, val = (
        json.loads((copied / OFFICIAL_VQ_FILES[subset]).read_text())
        for subset in ("train", "val")
    )
    uid = val["videos"][0]["video_uid"] = train["videos"][0]["video_uid"]
    (copied / OFFICIAL_VQ_FILES["val"]).write_text(json.dumps(val))
    with pytest.raises(DataError, match=f"1 parent videos are in train.*: {uid}"):
        build(copied)


def test_files_may_lie_in_other_places(copied, tmp_path, benchmark, monkeypatch):
    (copied / "annotations").mkdir()
    for subset in ("train", "val"):
        (copied / OFFICIAL_VQ_FILES[subset]).rename(
            copied / "annotations" / OFFICIAL_VQ_FILES[subset]
        )
    assert ids(build(copied)) == ids(benchmark)
    (copied / CLIP_FOLDER).rename(tmp_path / "elsewhere")
    moved = build(copied, videos=tmp_path / "elsewhere")
    assert ids(moved) == ids(benchmark)
    files = {
        subset: copied / "annotations" / OFFICIAL_VQ_FILES[subset]
        for subset in ("train", "val")
    }
    given = build(None, annotations=files, videos=tmp_path / "elsewhere")
    assert ids(given) == ids(benchmark)
    with pytest.raises(FileNotFoundError, match="videos=FOLDER"):
        vilco_vq(sources={"annotations": files})
    with pytest.raises(FileNotFoundError, match="no val annotations"):
        build(None, annotations={"train": files["train"]}, videos=tmp_path)
    monkeypatch.setenv("AVALANCHE_VILCO_DATA", str(tmp_path / "nothing"))
    with pytest.raises(FileNotFoundError, match="no data folder at"):
        vilco_vq()


def test_a_manifest_gives_the_same_streams(root, benchmark, tmp_path):
    path = tmp_path / "split.json"
    benchmark.write_manifest(path)
    for source in (path, benchmark.manifest()):
        again = build(root, split={"manifest": source})
        for name in benchmark.streams:
            assert ids(again, name) == ids(benchmark, name)
        assert again.manifest()["streams"] == benchmark.manifest()["streams"]
        assert again.info["order"] == benchmark.info["order"]
        assert again.info["group_seed"] == benchmark.info["group_seed"]
    for twice in ({"seed": 1}, {"n_experiences": 3}, {"protocol": "shared_clips"}):
        with pytest.raises(ValueError, match=next(iter(twice))):
            vilco_vq(root, manifest=path, **twice)
    with pytest.raises(FileNotFoundError, match="no manifest at"):
        vilco_vq(root, manifest=tmp_path / "none.json")


def test_the_public_pickle_makes_the_reference_protocol(
    root, public_metadata, tmp_path
):
    public = public_metadata(root)
    file = tmp_path / "vq.pkl"
    file.write_bytes(pickle.dumps(public))
    benchmark = build(root, split={"manifest": file})
    assert benchmark.info["protocol"] == "reference"
    assert [len(exp.dataset) for exp in benchmark.train_stream] == [
        len(public["train"][e]["dict_db"]) for e in range(2)
    ]
    assert [len(exp.dataset) for exp in benchmark.streams["valid"]] == [0, 0]
    again = build(root, split={"manifest": benchmark.manifest()})
    assert ids(again, "test") == ids(benchmark, "test")


def test_batches_are_those_of_the_contract(benchmark):
    dataset = benchmark.train_stream[0].dataset
    loader = DataLoader(dataset, batch_size=3, collate_fn=dataset.collate_fn)
    batch, targets, labels = next(iter(loader))
    assert isinstance(batch, VisualQueryBatch)
    assert isinstance(targets, TrackWindowTargets)
    assert batch.frames.shape == (3, 10, 3, 32, 32)
    assert batch.crop.shape == (3, 3, 32, 32)
    assert batch.narrations.shape == (
        3,
        1,
        benchmark.datasets["train"].narrations.width,
    )
    assert targets.sample.tolist() == list(dataset.positions)[:3]
    assert labels.tolist() == [0, 0, 0]
    assert targets.present.any(1).all()
    asked = [benchmark.datasets["train"].queries[i] for i in targets.query]
    shown = [dataset.clip_ids[i] for i in range(3)]
    assert [query.clip_id for query in asked] == shown


def test_no_evaluation_input_depends_on_the_answers(copied, benchmark):
    path = copied / OFFICIAL_VQ_FILES["val"]
    content = json.loads(path.read_text())
    for video in content["videos"]:
        for clip in video["clips"]:
            for annotation in clip["annotations"]:
                for one in annotation["query_sets"].values():
                    # A reader refuses a track without boxes: one says as little.
                    for box in one["response_track"][:1]:
                        box.update(frame_number=0, x=1.0, y=2.0, width=3.0, height=4.0)
                    one["response_track"] = one["response_track"][:1]
    path.write_text(json.dumps(content))
    emptied = build(copied, narrations=True)
    assert ids(emptied, "test") == ids(benchmark, "test")
    data, other = (b.datasets["test"] for b in (benchmark, emptied))
    geometry = ("valid", "searched", "frame_numbers", "square", "query", "query_frame")
    for i in range(0, len(data), 5):
        (inputs, targets), (inputs_e, targets_e) = data[i], other[i]
        assert inputs.keys() == inputs_e.keys() == {"frames", "valid", "crop"}
        assert all(torch.equal(inputs[name], inputs_e[name]) for name in inputs)
        assert all(torch.equal(targets[name], targets_e[name]) for name in geometry)
    changed = [data[i][1]["present"] != other[i][1]["present"] for i in range(9)]
    assert torch.stack(changed).any()


def test_the_unannotated_file_gives_windows_to_answer(root, copied):
    data = unlabelled_vq(root, sources=SOURCES)
    assert len(data) == sum(-(-q.query_frame // 10) for q in data.queries)
    batch, targets = data.collate_fn([data[0], data[1]])
    assert batch.frames.shape == (2, 10, 3, 32, 32)
    assert not targets.present.any() and targets.track_frames.shape == (2, 0)
    assert targets.query.tolist() == [0, 0]
    assert {sample.title_index for sample in data.samples} == {-1}
    lost = data.samples[0].clip.clip_id
    (copied / CLIP_FOLDER / f"{lost}.mp4").unlink()
    with pytest.raises(VideoError, match=lost):
        unlabelled_vq(copied)
    part = unlabelled_vq(copied, sources={**SOURCES, "missing": "drop"})
    assert {query.clip_id for query in part.queries} == {
        query.clip_id for query in data.queries if query.clip_id != lost
    }


def test_stock_buffers_hold_queries_and_draw_their_windows_anew(benchmark):
    buffer = ClassBalancedBuffer(6, adaptive_size=True)
    for exp in benchmark.train_stream:
        buffer.post_adapt(SimpleNamespace(experience=exp), exp)
    stored = buffer.buffer
    assert 3 <= len(stored) <= 6
    data = benchmark.datasets["train"]
    windows = []
    for epoch in range(8):
        data.clock.set(2, epoch)
        inputs, targets, _ = stored.collate_fn([stored[i] for i in range(len(stored))])
        windows.append(tuple(targets.frame_numbers[:, 0].tolist()))
        assert isinstance(inputs, VisualQueryBatch)
    data.clock.set(0, 0)
    assert len(set(windows)) > 1
    assert len(set(stored.positions)) == len(stored)
    assert targets.sample.tolist() == list(stored.positions)
    clips = [data.samples[i].clip.clip_id for i in stored.positions]
    assert list(stored.clip_ids) == clips


def test_avalanches_own_benchmark_takes_the_datasets(benchmark):
    datasets = [exp.dataset for exp in benchmark.train_stream]
    stock = benchmark_from_datasets(train=datasets)
    assert [len(exp.dataset) for exp in stock.train_stream] == list(map(len, datasets))
