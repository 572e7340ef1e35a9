"""Natural Language Queries as streams: every question once, in its template's
experience."""

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from avalanche.benchmarks.utils.data_loader import TaskBalancedDataLoader
from safetensors.torch import load_file, save_file

from avalanche_vilco.benchmarks.vilco_nlq.generator import unlabelled_nlq, vilco_nlq
from avalanche_vilco.benchmarks.vilco_nlq.layout import NLQ_TEXT_FILE
from avalanche_vilco.benchmarks.vilco_nlq.split import SMALL_DATA_TEST_SHARE
from avalanche_vilco.benchmarks.vilco_nlq.templates import NLQ_TEMPLATES
from avalanche_vilco.core.batch import MomentTargets, QueryClipBatch
from avalanche_vilco.core.errors import DataError
from avalanche_vilco.data.text.tokens import HashedTokens
from avalanche_vilco.ops.timeline import grid_to_seconds

STREAMS = ("train", "valid", "test")


@pytest.fixture(scope="module")
def root(nlq_root: Path) -> Path:
    return nlq_root


@pytest.fixture(scope="module")
def benchmark(root: Path) -> Any:
    return vilco_nlq(root)


@pytest.fixture
def copied(root: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(root, tmp_path / "copy"))


def ids_of(benchmark: Any, stream: str) -> list[list[str]]:
    samples = benchmark.datasets[stream].samples
    templates = [q.class_index for q in benchmark.queries]
    return [
        [s.query.query_id for s in samples if s.template == template]
        for template in templates
    ]


def edit_json(path: Path, change: Any) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def questions_of(content: dict) -> list[dict]:
    return [
        question
        for video in content["videos"]
        for clip in video["clips"]
        for annotation in clip["annotations"]
        for question in annotation["language_queries"]
    ]


def flatten(root: Path, subset: str) -> Path:
    """Replace an official file by the public code's form of it."""
    official = root / f"nlq_{subset}.json"
    content = json.loads(official.read_text())
    lines = [
        json.dumps(
            {
                "query": question["query"],
                "query_id": f"{annotation['annotation_uid']}_{i}",
                "duration": clip["video_end_sec"] - clip["video_start_sec"],
                "video_id": clip["clip_uid"],
                "query_type": "nlq",
                "timestamps": [[question["clip_start_sec"], question["clip_end_sec"]]],
            }
        )
        for video in content["videos"]
        for clip in video["clips"]
        for annotation in clip["annotations"]
        for i, question in enumerate(annotation["language_queries"])
        if question.get("query")
    ]
    official.unlink()
    path = root / f"ego4d_nlq_{subset}_v2.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_thirteen_experiences_with_a_template_each(benchmark):
    for stream in STREAMS:
        experiences = benchmark.streams[stream]
        assert len(experiences) == 13
        for e, experience in enumerate(experiences):
            assert experience.classes_in_this_experience == [e]
            assert set(experience.dataset.targets) <= {e}
            (query,) = experience.queries_in_this_experience
            assert (query.label_id, query.name) == (e, NLQ_TEMPLATES[e])
    assert all(len(e.dataset) for e in benchmark.train_stream)
    assert all(len(e.dataset) for e in benchmark.test_stream)


def test_every_question_has_one_place(benchmark):
    counts = benchmark.report.stage("annotations", "queries")
    placed = [
        sample.query.query_id
        for stream in STREAMS
        for sample in benchmark.datasets[stream].samples
    ]
    assert len(placed) == len(set(placed)) == counts.kept
    in_experiences = sum(
        len(e.dataset) for stream in STREAMS for e in benchmark.streams[stream]
    )
    assert in_experiences == counts.kept
    for unit in ("queries", "windows"):
        fates = benchmark.report.outcomes(unit)
        assert fates["in the streams"] == counts.kept
        first = benchmark.report.stage("annotations", unit)
        assert sum(fates.values()) == first.read


def test_streams_share_no_parent_video(benchmark):
    videos = [
        {sample.clip.video_id for sample in benchmark.datasets[stream].samples}
        for stream in STREAMS
    ]
    assert all(videos)
    assert len(set().union(*videos)) == sum(map(len, videos))


def test_clips_return_in_several_experiences(benchmark):
    homes: dict[str, set[int]] = {}
    for sample in benchmark.datasets["train"].samples:
        homes.setdefault(sample.clip.clip_id, set()).add(sample.template)
    assert max(map(len, homes.values())) > 3


def test_info_says_where_things_come_from(benchmark):
    info = benchmark.info
    assert info["benchmark"] == "vilco_nlq"
    assert info["protocol"] == "exclusive_queries"
    assert info["templates"] == "annotation files"
    assert info["query_text"] == NLQ_TEXT_FILE
    assert info["data_mode"] == "train and val files"
    assert (info["feature_dim"], info["text_dim"]) == (48, 48)
    assert benchmark.text_dim == 48
    assert info["queries_per_experience"] == [1] * 13
    assert info["order"] == list(range(13))
    assert info["uses_ground_truth_at_test"] is False


def test_seed_shuffles_all_streams_alike(root, benchmark):
    shuffled = vilco_nlq(root, seed=3)
    order = shuffled.classes_order
    assert order != list(range(13))
    assert sorted(order) == list(range(13))
    assert vilco_nlq(root, seed=3).classes_order == order
    for stream in STREAMS:
        plain = ids_of(benchmark, stream)
        assert ids_of(shuffled, stream) == [plain[template] for template in order]


def test_order_lists_ids_or_names(root):
    order = [12, *range(12)]
    assert vilco_nlq(root, fixed_class_order=order).classes_order == order
    names = [NLQ_TEMPLATES[i].upper() for i in order]
    assert vilco_nlq(root, fixed_class_order=names).classes_order == order


def test_templates_can_share_an_experience(root):
    grouped = vilco_nlq(root, per_exp_classes=[10, 3])
    assert grouped.n_experiences == 2
    assert grouped.n_classes_per_exp == [10, 3]
    assert set(grouped.train_stream[1].dataset.targets) == {10, 11, 12}


def test_batch_has_clip_and_question(benchmark):
    loader = TaskBalancedDataLoader(benchmark.train_stream[2].dataset, batch_size=4)
    inputs, targets, task_ids = next(iter(loader))
    assert isinstance(inputs, QueryClipBatch)
    assert isinstance(targets, MomentTargets)
    n, steps = inputs.valid.shape
    assert inputs.features.shape == (n, steps, 48)
    assert inputs.tokens.shape == (*inputs.valid_tokens.shape, 48)
    assert torch.equal(inputs.valid_tokens.any(1), torch.ones(n, dtype=torch.bool))
    padded = inputs.tokens[~inputs.valid_tokens]
    assert torch.equal(padded, torch.zeros_like(padded))
    assert targets.labels.tolist() == [[0]] * n
    assert targets.asked.tolist() == [[True]] * n
    assert task_ids.tolist() == [0] * n
    both = torch.cat([inputs, inputs[:1]])
    assert isinstance(both, QueryClipBatch)
    assert len(both) == n + 1


def test_sample_number_leads_back_to_the_question(benchmark):
    data = benchmark.datasets["test"]
    _, targets = data[5]
    sample = data.samples[int(targets["sample"])]
    assert sample.query.query_id.endswith(f"_{sample.query.query_idx}")
    assert targets["segments_sec"].tolist() == [list(sample.query.window_sec)]
    back = grid_to_seconds(
        targets["segments"].double(), float(targets["features_per_sec"])
    )
    assert torch.allclose(back, targets["segments_sec"], atol=1e-4)
    assert data[-1][1]["sample"] == len(data) - 1


def test_tokens_are_those_of_the_question(root, benchmark):
    stored = load_file(root / NLQ_TEXT_FILE)
    data = benchmark.datasets["test"]
    for index in (0, 7):
        query = data.samples[index].query
        expected = stored[query.query_id].float()
        assert torch.equal(data[index][0]["tokens"], expected)


def test_words_are_hashed_without_a_text_store(copied):
    (copied / NLQ_TEXT_FILE).unlink()
    plain = vilco_nlq(copied)
    assert plain.info["query_text"] == "hashed words"
    data = plain.datasets["test"]
    expected = HashedTokens({"q": data.samples[0].query.text}).read("q")
    assert torch.equal(data[0][0]["tokens"], expected)


def test_text_may_lie_in_one_store_a_subset(root, tmp_path):
    stored = load_file(root / NLQ_TEXT_FILE)
    train = {s.query.query_id for s in vilco_nlq(root).datasets["train"].samples}
    parts = [tmp_path / "train.safetensors", tmp_path / "rest.safetensors"]
    save_file({i: t for i, t in stored.items() if i in train}, parts[0])
    save_file({i: t for i, t in stored.items() if i not in train}, parts[1])
    split = vilco_nlq(root, sources={"query_text": parts})
    assert split.info["query_text"] == "train.safetensors, rest.safetensors"
    query = split.datasets["test"].samples[0].query
    tokens = split.datasets["test"][0][0]["tokens"]
    assert torch.equal(tokens, stored[query.query_id].float())


def test_questions_without_text_features_are_named(root, tmp_path):
    stored = load_file(root / NLQ_TEXT_FILE)
    gone = sorted(stored)[3]
    save_file(
        {i: t for i, t in stored.items() if i != gone}, tmp_path / "t.safetensors"
    )
    with pytest.raises(DataError, match=rf"no text for 1 of .*{gone}"):
        vilco_nlq(root, sources={"query_text": tmp_path / "t.safetensors"})


def test_store_and_model_exclude_each_other(root):
    with pytest.raises(ValueError, match="expected query_text or text_model"):
        vilco_nlq(
            root, sources={"query_text": root / NLQ_TEXT_FILE, "text_model": root}
        )


def test_shared_parent_video_is_refused(copied):
    val = json.loads((copied / "nlq_val.json").read_text())
    video = val["videos"][0]["video_uid"]

    def rename(content: dict) -> None:
        content["videos"][0]["video_uid"] = video

    edit_json(copied / "nlq_train.json", rename)
    with pytest.raises(DataError, match=rf"1 parent videos are in train.*{video}"):
        vilco_nlq(copied)


def test_experience_without_training_question_is_refused(copied):
    def retell(content: dict) -> None:
        for question in questions_of(content):
            if question.get("template") == NLQ_TEMPLATES[3]:
                question["template"] = NLQ_TEMPLATES[4]

    edit_json(copied / "nlq_train.json", retell)
    with pytest.raises(DataError, match=r"no training question.*experiences \[3\]"):
        vilco_nlq(copied)


def test_untemplated_questions_are_assigned_or_kept_apart(copied):
    def forget(content: dict) -> None:
        for question in questions_of(content)[:3]:
            question["template"] = None

    edit_json(copied / "nlq_val.json", forget)
    near = vilco_nlq(copied)
    apart = vilco_nlq(copied, sources={"untemplated": "apart"})
    lost = near.report.outcomes("queries")["in the streams"]
    lost -= apart.report.outcomes("queries")["in the streams"]
    rejected = apart.report.stage("templates", "queries").rejected
    assert rejected == {"no template, kept apart": lost}
    assert lost >= 3
    assert apart.info["untemplated"] == "apart"


def test_flattened_train_file_gets_predicted_templates(copied, benchmark):
    flatten(copied, "train")
    predicted = vilco_nlq(copied, per_exp_classes=[12, 1])
    assert predicted.info["templates"] == "predicted"
    assert predicted.info["parent_videos"] == "clips stand in"
    tally = predicted.report.stage("templates", "queries")
    (changed,) = [n for why, n in tally.changed.items() if "predicted" in why]
    own = {
        s.query.query_id: s.query.template
        for stream in ("train", "valid")
        for s in benchmark.datasets[stream].samples
    }
    assert changed == len(own)
    found = {
        s.query.query_id: s.query.template
        for stream in ("train", "valid")
        for s in predicted.datasets[stream].samples
    }
    assert found.keys() == own.keys()
    assert sum(found[i] == own[i] for i in own) > 0.7 * len(own)


def test_annotations_may_be_named_one_by_one(copied, benchmark):
    val = copied / "elsewhere.json"
    (copied / "nlq_val.json").rename(val)
    with pytest.raises(FileNotFoundError, match=r"no val annotations.*nlq_val\.json"):
        vilco_nlq(copied)
    files = {"train": copied / "nlq_train.json", "val": val}
    named = vilco_nlq(copied, sources={"annotations": files})
    assert ids_of(named, "test") == ids_of(benchmark, "test")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"protocol": "exclusive"},
            "unknown protocol .* Did you mean exclusive_queries",
        ),
        ({"sources": {"untemplated": "drop"}}, "expected untemplated in"),
        ({"valid_share": 1.0}, r"expected valid_share in \[0, 1\) but got 1.0"),
        (
            {"fixed_class_order": ["Objects: nothing"]},
            "expected one of the 13 templates",
        ),
        ({"per_exp_classes": [5, 5]}, "sum up to 13"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(options, message, root):
    with pytest.raises(ValueError, match=message):
        vilco_nlq(root, **options)


def test_reference_reads_as_the_public_split_does(copied):
    def spoil(content: dict) -> None:
        first, second = questions_of(content)[:2]
        first["query"] = "Query Text: Where did I put the mug?"
        first["template"] = None
        second["clip_end_sec"] = 1000.0

    edit_json(copied / "nlq_val.json", spoil)
    reference = vilco_nlq(copied, protocol="reference")
    samples = reference.datasets["test"].samples
    assert not len(reference.datasets["valid"])
    assert "Query Text: Where did I put the mug?" in {s.query.text for s in samples}
    assert max(s.query.window_sec[1] for s in samples) == 1000.0
    for template in range(13):
        own = [s.query for s in samples if s.template == template]
        guessed = [query.is_template_guessed for query in own]
        assert guessed == sorted(guessed)
    assert sum(s.query.is_template_guessed for s in samples) >= 1
    assert reference.info["protocol"] == "reference"


def test_small_data_split_the_val_file_by_video(copied):
    (copied / "nlq_train.json").unlink()
    with pytest.raises(FileNotFoundError, match="small_data=True"):
        vilco_nlq(copied)
    small = vilco_nlq(copied, per_exp_classes=[13], sources={"small_data": True})
    assert small.info["data_mode"] == "val file split by video"
    videos = [
        {sample.clip.video_id for sample in small.datasets[stream].samples}
        for stream in STREAMS
    ]
    assert len(set().union(*videos)) == sum(map(len, videos))
    assert len(small.datasets["test"])


def test_real_val_makes_a_small_data_stream(shared_dir, noise_features):
    folder = shared_dir / "data" / "ego4d_nlq"
    small = vilco_nlq(
        valid_share=0.0,
        sources={
            "annotations": folder,
            "features": noise_features(),
            "small_data": True,
        },
    )
    assert small.info["data_mode"] == "val file split by video"
    assert small.n_experiences == 13
    sizes = {s: [len(e.dataset) for e in small.streams[s]] for s in STREAMS}
    assert all(sizes["train"])
    assert all(sizes["test"])
    assert sum(sizes["train"]) + sum(sizes["test"]) == 4552
    tested = {s.clip.clip_id for s in small.datasets["test"].samples}
    assert len(tested) / 415 == pytest.approx(SMALL_DATA_TEST_SHARE, abs=0.02)
    trained = {s.clip.video_id for s in small.datasets["train"].samples}
    assert trained.isdisjoint(s.clip.video_id for s in small.datasets["test"].samples)
    inputs, _ = small.datasets["train"][0]
    duration = small.datasets["train"].samples[0].clip.duration_sec
    assert len(inputs["features"]) == round(duration * 30 / 16.043)


def test_real_train_and_val_make_streams_with_predicted_templates(
    shared_dir, noise_features
):
    folder = shared_dir / "data" / "ego4d_nlq"
    whole = vilco_nlq(sources={"annotations": folder, "features": noise_features()})
    assert whole.info["templates"] == "predicted"
    sizes = {s: [len(e.dataset) for e in whole.streams[s]] for s in STREAMS}
    assert sizes["test"] == [
        547, 726, 752, 22, 386, 235, 555, 363, 353, 333, 73, 116, 91
    ]  # fmt: skip
    assert sum(sizes["train"]) + sum(sizes["valid"]) == 13847
    assert sum(sizes["valid"]) / 13847 == pytest.approx(0.1, abs=0.02)
    fates = whole.report.outcomes("queries")
    assert fates == {"in the streams": 18399, "annotations: no query text": 2}


def test_manifest_gives_the_same_streams_back(root, tmp_path):
    made = vilco_nlq(root, seed=5, valid_share=0.3, per_exp_classes=[7, 6])
    made.write_manifest(tmp_path / "split.json")
    for source in (tmp_path / "split.json", made.manifest()):
        again = vilco_nlq(root, manifest=source)
        assert again.classes_order == made.classes_order
        for stream in STREAMS:
            assert ids_of(again, stream) == ids_of(made, stream)
    assert again.manifest()["streams"] == made.manifest()["streams"]


def test_manifest_sets_small_data(root):
    made = vilco_nlq(root, per_exp_classes=[13], sources={"small_data": True})
    again = vilco_nlq(root, manifest=made.manifest())
    assert again.info["data_mode"] == "val file split by video"
    assert ids_of(again, "test") == ids_of(made, "test")


def test_small_data_that_a_manifest_sets_are_refused(root, benchmark):
    with pytest.raises(ValueError, match="sets small_data already"):
        vilco_nlq(root, manifest=benchmark.manifest(), sources={"small_data": True})


def test_questions_in_the_wrong_place_of_a_manifest_are_named(root, benchmark):
    manifest = json.loads(json.dumps(benchmark.manifest()))
    test, train = (manifest["streams"][name][0] for name in ("test", "train"))
    known, test[0] = test[0], "nobody_0"
    with pytest.raises(
        DataError, match=r"1 questions are not in .*:\n  test: nobody_0"
    ):
        vilco_nlq(root, manifest=manifest)
    test[0] = test[1]
    with pytest.raises(DataError, match=r"is in test\[0\] already"):
        vilco_nlq(root, manifest=manifest)
    train[0], test[0] = known, train[0]
    with pytest.raises(DataError, match="is of subset 'val', but stream train"):
        vilco_nlq(root, manifest=manifest)


def public_metadata(benchmark: Any) -> dict[str, dict[str, list[dict]]]:
    """The public split script's structure."""
    return {
        subset: {
            query.name: [
                {
                    "query_id": s.query.query_id,
                    "query": s.query.text,
                    "timestamps": [list(s.query.window_sec)],
                    "query_template": query.name,
                }
                for s in benchmark.datasets[stream].samples
                if s.template == query.class_index
            ]
            for query in benchmark.queries
        }
        for subset, stream in (("train", "train"), ("val", "test"))
    }


def test_public_pickle_is_read_as_a_manifest(root, tmp_path):
    reference = vilco_nlq(
        root, protocol="reference", fixed_class_order=[12, *range(12)]
    )
    path = tmp_path / "nlq.pkl"
    path.write_bytes(pickle.dumps(public_metadata(reference)))
    again = vilco_nlq(root, manifest=path)
    assert again.info["protocol"] == "reference"
    assert again.info["templates"] == "manifest"
    assert again.classes_order == reference.classes_order
    for stream in STREAMS:
        assert ids_of(again, stream) == ids_of(reference, stream)


class _Runs:
    def __reduce__(self) -> tuple:
        return print, ("this must not run",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (_Runs(), "refused, it asks for builtins.print"),
        ({"train": {}}, "field 'train'"),
        ({"train": {"nonsense": []}, "val": {}}, "expected one of the 13 templates"),
        (
            {"train": {NLQ_TEMPLATES[0]: [{"query": "?"}]}, "val": {}},
            "expected a query with its query_id",
        ),
    ],
)
def test_bad_pickles_are_refused(content, message, root, tmp_path, capsys):
    path = tmp_path / "nlq.pkl"
    path.write_bytes(pickle.dumps(content))
    with pytest.raises(DataError, match=message):
        vilco_nlq(root, manifest=path)
    assert "must not run" not in capsys.readouterr().out


def test_unannotated_questions_can_be_answered(root):
    data = unlabelled_nlq(root)
    content = json.loads((root / "nlq_test_unannotated.json").read_text())
    asked = [q for q in questions_of(content) if q["query"].strip()]
    assert [s.query.text for s in data.samples] == [
        " ".join(q["query"].split()) for q in asked
    ]
    inputs, targets = data[0]
    assert inputs["tokens"].shape[1] == 48
    assert targets["segments_sec"].shape == (0, 2)
    assert targets["duration_sec"] > 0
    assert data.samples[0].template == -1
    file = root / "nlq_test_unannotated.json"
    for annotations in (file, {"test": file}, {"train": "of", "val": "the run"}):
        again = unlabelled_nlq(root, sources={"annotations": annotations})
        assert len(again) == len(data)


def test_unannotated_file_must_be_there(copied):
    (copied / "nlq_test_unannotated.json").unlink()
    with pytest.raises(FileNotFoundError, match="no test annotations"):
        unlabelled_nlq(copied)
