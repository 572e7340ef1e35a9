"""``avalanche-vilco score``: the official numbers, or one line that names the fault."""

import copy
import gzip
import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from avalanche_vilco.benchmarks.submissions import Document
from avalanche_vilco.benchmarks.vilco_nlq.submission import read_queries
from avalanche_vilco.cli.main import main
from avalanche_vilco.core.errors import DataError
from avalanche_vilco.evaluation.functional import top1_tiou
from avalanche_vilco.experiments.score import score

ORACLES = Path(__file__).resolve().parents[3] / "shared/oracles"
MQ_CASES = sorted(int(file.stem[5:]) for file in ORACLES.glob("mq/case_*.json"))
# See the test of a subset without annotations.
MQ_CASES = [number for number in MQ_CASES if number != 40]
NLQ_NAMES = sorted(file.stem for file in ORACLES.glob("nlq/*.json"))
NLQ_REFUSED = [name for name in NLQ_NAMES if name.startswith("err_")]
NLQ_CASES = [name for name in NLQ_NAMES if name not in NLQ_REFUSED]


def load(shared_dir, name):
    return json.loads((shared_dir / f"oracles/{name}.json").read_text())


class Command:
    """The command on two files."""

    def __init__(self, folder, capsys):
        self.folder, self.capsys = folder, capsys
        self.paths = {name: folder / f"{name}.json" for name in ("pred", "gt")}

    def write(self, **contents):
        for name, content in contents.items():
            text = content if isinstance(content, bytes) else json.dumps(content)
            data = text if isinstance(text, bytes) else text.encode()
            self.paths[name].write_bytes(data)

    def __call__(self, task, *options):
        files = "--predictions", self.paths["pred"], "--annotations", self.paths["gt"]
        code = main(["score", "--task", task, *map(str, (*files, *options))])
        return code, *self.capsys.readouterr()

    def numbers(self, task, predictions, annotations, *options):
        self.write(pred=predictions, gt=annotations)
        code, out, err = self(task, *options, "--json")
        assert (code, err) == (0, "")
        return json.loads(out)


@pytest.fixture
def command(tmp_path, capsys):
    return Command(tmp_path, capsys)


def table_of(scores, names, levels):
    rows = [[scores[name][f"{level:g}"] for level in levels] for name in names]
    return torch.tensor(
        [[math.nan if x is None else x for x in row] for row in rows],
        dtype=torch.float64,
    )


def recall_names(ks, times="x"):
    return [f"Recall@{k}{times}" for k in ks]


@pytest.mark.parametrize("number", MQ_CASES)
def test_moment_files_score_as_in_the_official_evaluators(shared_dir, command, number):
    case = load(shared_dir, f"mq/case_{number:02}")
    options = "--subset", case["subset"], "--reference"
    ego4d = command.numbers("mq", case["pred"], case["gt"], *options, "ego4d")
    expected = case["expected"]["official_detection"]
    if not case.get("platform_dependent"):
        scores, tious = ego4d["scores"]["mAP"], expected["tious"]
        for tiou, mean_ap in zip(tious, expected["mAP"], strict=True):
            assert scores[f"{tiou:g}"] == pytest.approx(mean_ap, abs=1e-9)
        assert scores["mean"] == pytest.approx(expected["average_mAP"], abs=1e-9)
        for label, column in expected["activity_index"].items():
            row = table_of(ego4d["groups"][label], ["AP"], tious)[0]
            official = [ap[column] for ap in expected["ap"]]
            assert row.tolist() == pytest.approx(official, abs=1e-9)
    vilco = command.numbers("mq", case["pred"], case["gt"], *options, "vilco")
    for result, name in ((ego4d, "official"), (vilco, "vilco_asl")):
        expected = case["expected"][f"{name}_retrieval"]
        if not expected["error"]:  # a clip without predictions, here a miss
            names = recall_names(expected["k"])
            got = table_of(result["scores"], names, expected["tious"])
            table = torch.tensor(expected["recall"], dtype=torch.float64).T
            torch.testing.assert_close(got, table, atol=1e-9, rtol=0)


def actionformer_id(name):
    return int(name[1:]) if name[1:].isdigit() else {"a": 0, "b": 1}.get(name, 77)


def with_label_ids(content):
    """The recorded labels as the numbers that the evaluator was given."""
    if isinstance(content, dict):
        return {
            key: actionformer_id(value) if key == "label" else with_label_ids(value)
            for key, value in content.items()
        }
    if isinstance(content, list):
        return [with_label_ids(each) for each in content]
    return content


@pytest.mark.parametrize("number", [n for n in MQ_CASES if n not in (20, 21, 36)])
def test_moment_files_score_as_in_actionformer(shared_dir, command, number):
    case = with_label_ids(load(shared_dir, f"mq/case_{number:02}"))
    options = "--subset", case["subset"], "--reference", "actionformer"
    result = command.numbers("mq", case["pred"], case["gt"], *options)
    expected = case["expected"]["actionformer_detection"]
    table = torch.tensor(expected["ap"], dtype=torch.float64)
    for label, column in expected["activity_index"].items():
        row = table_of(result["groups"][label], ["AP"], expected["tious"])[0]
        torch.testing.assert_close(row, table[:, column], atol=1e-9, rtol=0)
    recall = table_of(result["scores"], recall_names(expected["k"]), expected["tious"])
    official = torch.tensor(expected["mRecall"], dtype=torch.float64)
    torch.testing.assert_close(recall.T, official, atol=1e-9, rtol=0)


@pytest.mark.parametrize("reference", ["ego4d", "vilco"])
@pytest.mark.parametrize("name", NLQ_CASES)
def test_query_files_score_as_in_the_official_evaluator(
    shared_dir, command, name, reference
):
    case = load(shared_dir, f"nlq/{name}")
    grid = "--k", *case["topK"], "--tiou", *case["thresholds"]
    result = command.numbers(
        *("nlq", case["predictions"], case["ground_truth"]),
        *("--reference", reference, *grid),
    )
    names = recall_names(case["topK"], "")
    got = table_of(result["scores"], names, case["thresholds"])
    expected = torch.tensor(case["expected"]["mean_results"], dtype=torch.float64)
    torch.testing.assert_close(got.T, expected, atol=1e-9, rtol=0)
    rows = read_queries(
        case["ground_truth"], case["predictions"], reference=reference
    ).moments
    best = top1_tiou(rows[0], rows[1], rows.target_segments[:, 0], sort=False)
    # Two equal windows of length zero are 0 / 0 in the official code, a miss here.
    official = [0.0 if x is None else x for x in case["expected"]["top1_iou"]]
    assert best.tolist() == pytest.approx(official, abs=1e-9)
    mean = case["expected"]["mIoU"] or 0.0
    assert result["scores"]["mIoU"]["mean"] == pytest.approx(mean, abs=1e-9)


@pytest.mark.parametrize("name", NLQ_REFUSED)
def test_query_files_that_the_official_code_refuses_are_refused(
    shared_dir, command, name
):
    case = load(shared_dir, f"nlq/{name}")
    command.write(pred=case["predictions"], gt=case["ground_truth"])
    for options in ((), ("--reference", "ego4d")):
        code, out, err = command("nlq", *options)
        assert (code, out) == (1, "")
        assert err.startswith("error: ") and err.count("\n") == 1


@pytest.mark.parametrize("case", ["case11", "case12"])
def test_track_files_score_as_in_the_official_script(shared_dir, capsys, case):
    folder = shared_dir / "oracles/vq2d_file"
    files = "--predictions", f"{folder}/{case}_pred.json"
    files += "--annotations", f"{folder}/{case}_gt.json"
    assert (
        main(["score", "--task", "vq", *files, "--reference", "ego4d", "--json"]) == 0
    )
    scores = json.loads(capsys.readouterr().out)["scores"]
    lines = [
        ("tAP", scores["tAP"]["mean"]),
        ("tAP @ IoU=0.25", scores["tAP"]["0.25"]),
        ("stAP", scores["stAP"]["mean"]),
        ("stAP @ IoU=0.25", scores["stAP"]["0.25"]),
        ("success", 100 * scores["success"]["0.05"]),
        ("recovery %", 100 * scores["recovery"]["0.5"]),
    ]
    printed = [f"{name:<20} | {value:10.3f}" for name, value in lines]
    official = (folder / f"{case}_stdout.txt").read_text().splitlines()
    assert printed == official[-len(printed) :]


def without_repeats(items):
    kept = []
    for item in items:
        same = [
            other
            for other in kept
            if other["label"] == item["label"]
            and math.dist(other["segment"], item["segment"]) <= 1e-3
        ]
        kept += [] if same else [item]
    return kept


def test_ground_truth_of_the_real_file_as_prediction_scores_one(shared_dir, command):
    path = shared_dir / "data/ego4d_mq/ego4d_clip_annotations_v2.json"
    records = json.loads(path.read_text())
    results = {
        uid: [
            {"label": item["label"], "score": 0.5, "segment": item["segment"]}
            for item in without_repeats(record["annotations"])
        ]
        for uid, record in records.items()
        if record["subset"] == "val"
    }
    result = command.numbers("mq", {"results": results}, records)
    assert set(result["scores"]["Recall@1x"].values()) == {1.0}
    assert set(result["scores"]["mAP"].values()) == {1.0}
    counts = result["counts"]
    assert counts["answered"] == counts["queries"]
    assert counts["predictions"] == counts["annotated windows"]
    (repeated,) = result["notes"]
    assert "repeat another one to within 1 ms, left out" in repeated["reason"]
    n_raw = sum(len(records[uid]["annotations"]) for uid in results)
    assert n_raw == counts["annotated windows"] + repeated["count"]


def mq_files():
    window = {"label": "cut", "start_time": 0.0, "end_time": 10.0}
    other = {"label": "wash", "start_time": 20.0, "end_time": 30.0}
    gt = {
        "c1": {"clip_id": "c1", "subset": "val", "annotations": [window, other]},
        "c2": {"clip_id": "c2", "subset": "val", "annotations": [window]},
        "c3": {"clip_id": "c3", "subset": "train", "annotations": [window]},
    }
    answer = {"label": "cut", "score": 0.9, "segment": [0.0, 9.0]}
    unseen = {"label": "paint", "score": 0.8, "segment": [1.0, 2.0]}
    results = {
        "c1": [answer, unseen],
        "c2": [dict(answer, segment=[5.0, 4.0], score=0.85)],
    }
    return {"results": results}, gt


def nlq_files():
    asked = [
        {"clip_start_sec": 0.0, "clip_end_sec": 10.0, "template": "where"},
        {"clip_start_sec": 20.0, "clip_end_sec": 30.0, "template": "who"},
    ]
    part = {"annotation_uid": "a", "language_queries": asked}
    gt = {"videos": [{"clips": [{"clip_uid": "c", "annotations": [part]}]}]}
    answer = {"clip_uid": "c", "annotation_uid": "a", "query_idx": 0}
    return {"results": [{**answer, "predicted_times": [[0.0, 9.0], [4.0, 5.0]]}]}, gt


def vq_files():
    track = [
        {"frame_number": f, "x": 0.0, "y": 0.0, "width": 9.0, "height": 9.0}
        for f in (4, 5)
    ]
    sets = {"1": {"is_valid": True, "response_track": track}, "2": {"is_valid": False}}
    part = {"annotation_uid": "a", "query_sets": sets}
    gt = {"videos": [{"clips": [{"clip_uid": "c", "annotations": [part]}]}]}
    boxes = [{"fno": f, "x1": 0.0, "y1": 0.0, "x2": 9.0, "y2": 9.0} for f in (4, 5)]
    answers = {"1": {"bboxes": boxes, "score": 0.5}, "2": {"bboxes": [], "score": 0.1}}
    given = {"annotation_uid": "a", "query_sets": answers}
    clip = {"clip_uid": "c", "predictions": [given]}
    return {"results": {"videos": [{"clips": [clip]}]}}, gt


FILES = {"mq": mq_files, "nlq": nlq_files, "vq": vq_files}


def test_the_table_shows_thresholds_means_counts_and_what_was_skipped(command):
    predictions, annotations = mq_files()
    command.write(pred=predictions, gt=annotations)
    code, out, _ = command("mq")
    assert code == 0
    assert out.splitlines() == [
        "mq, our rules: clips 2, queries 3, answered 2, annotated windows 3, "
        "predictions 3",
        "in %, at IoU    0.1    0.2    0.3    0.4    0.5   mean",
        "mAP           25.00  25.00  25.00  25.00  25.00  25.00",
        "Recall@1x     33.33  33.33  33.33  33.33  33.33  33.33",
        "Recall@5x     33.33  33.33  33.33  33.33  33.33  33.33",
        "note: 1 predictions of labels that the ground truth does not have, ignored: "
        "paint (1)",
        "note: 1 predicted windows that are reversed or without length, never a hit by "
        "default",
    ]


def test_json_has_counts_scores_groups_and_notes(command):
    result = command.numbers("nlq", *nlq_files())
    assert result["task"] == "nlq" and result["reference"] is None
    assert result["predictions"].endswith("pred.json")
    assert result["counts"] == {"queries": 2, "answered": 1, "predictions": 2}
    assert result["scores"]["Recall@1"] == {"0.3": 0.5, "0.5": 0.5, "mean": 0.5}
    assert result["scores"]["mIoU"]["mean"] == pytest.approx(0.45)
    assert result["groups"]["where"]["Recall@5"]["mean"] == 1.0
    assert result["groups"]["who"] == {
        "windows": 1,
        **{f"Recall@{k}": {"0.3": 0.0, "0.5": 0.0, "mean": 0.0} for k in (1, 3, 5)},
    }
    assert result["notes"] == [
        {
            "reason": "queries without an answer, counted as misses",
            "count": 1,
            "records": ["c a 1"],
        }
    ]


def test_query_sets_that_are_not_valid_are_left_out_and_counted(command):
    result = command.numbers("vq", *vq_files())
    assert result["counts"]["queries"] == result["counts"]["predictions"] == 1
    assert result["scores"]["stAP"]["mean"] == result["scores"]["success"]["0.2"] == 1
    assert result["scores"]["stAP large"]["mean"] is None
    assert [(note["count"], note["records"]) for note in result["notes"]] == [
        (1, ["c a 2"]),
        (1, ["c a 2"]),
    ]


def test_tracks_without_the_id_of_their_annotation_belong_to_it_by_place(command):
    """As the public code writes them."""
    predictions, annotations = vq_files()
    expected = command.numbers("vq", predictions, annotations)
    given = predictions["results"]["videos"][0]["clips"][0]["predictions"]
    del given[0]["annotation_uid"]
    assert command.numbers("vq", predictions, annotations) == expected
    given.append(given[0])
    command.write(pred=predictions, gt=annotations)
    assert "expected 'annotation_uid' of part 2 but got none" in command("vq")[2]
    del given[1]
    annotations["videos"] *= 2  # two clips of one id
    command.write(pred=predictions, gt=annotations)
    assert command("vq")[0] == 1


def test_the_file_of_the_challenge_ranks_two_lists(command):
    predictions, annotations = mq_files()
    right = predictions["results"]
    wrong = {"c1": [{"label": "cut", "score": 0.9, "segment": [50.0, 60.0]}]}
    challenge = {"detect_results": wrong, "retrieve_results": right}
    scores = command.numbers("mq", challenge, annotations)["scores"]
    assert scores["mAP"]["mean"] == 0
    assert scores["Recall@1x"]["mean"] == pytest.approx(1 / 3)


def test_annotation_files_of_every_form_give_the_same(command):
    predictions, annotations = mq_files()
    expected = command.numbers("mq", predictions, annotations)
    processed = json.loads(json.dumps(annotations))
    official = official_moments(annotations)
    for record in processed.values():
        for item in record["annotations"]:
            item["segment"] = [item.pop("start_time"), item.pop("end_time")]
    for form in (processed, official):
        assert command.numbers("mq", predictions, form) == expected


@pytest.mark.parametrize("reference", [None, "ego4d", "actionformer", "vilco"])
def test_clips_without_any_prediction_score_0_as_in_the_public_code(reference):
    _, annotations = mq_files()
    result = score(
        "mq", {"results": {"c1": [], "c2": []}}, annotations, reference=reference
    )
    assert {value for row in result.scores.values() for value in row.values()} == {0.0}
    assert result.counts["predictions"] == 0
    assert "2 clips in the predictions, none with any" in str(result)


def test_a_clip_of_another_subset_is_a_false_positive_and_noted(command):
    predictions, annotations = mq_files()
    predictions["results"]["c3"] = [dict(predictions["results"]["c1"][0], score=1.0)]
    result = command.numbers("mq", predictions, annotations)
    assert result["scores"]["mAP"]["mean"] == pytest.approx(0.125)
    assert ["c3"] in [note["records"] for note in result["notes"]]


def test_clips_nobody_annotated_are_refused_and_false_positives_in_the_references(
    shared_dir, command
):
    case = load(shared_dir, "mq/case_26")
    command.write(pred=case["pred"], gt=case["gt"])
    code, _, err = command("mq")
    assert code == 1
    assert "record 'clipXX': 1 of 3 clips are not in the annotations" in err
    assert command("mq", "--reference", "vilco")[0] == 0


def changed(task, path, value, which="pred"):
    """Files of a task with one value replaced, added (missing key) or taken away."""
    files = dict(zip(("pred", "gt"), FILES[task](), strict=True))
    holder = files[which]
    for step in path[:-1]:
        holder = holder[step]
    if value is None:
        del holder[path[-1]]
    else:
        holder[path[-1]] = value
    return files


NAN, C1 = math.nan, ("results", "c1")
NLQ, VQ = ("results", 0), ("results", "videos", 0, "clips", 0, "predictions", 0)
VQ_1 = (*VQ, "query_sets", "1")
ASKED = ("videos", 0, "clips", 0, "annotations", 0)
FAULTS = [
    ("mq", (*C1, 0, "score"), NAN, "record 'c1', field '[0].segment, score': .* nan"),
    ("mq", (*C1, 0, "score"), "high", "field '[0].score': Expected `float`, got `str`"),
    ("mq", (*C1, 1, "score"), None, "field '[1]': Object missing .* `score`"),
    ("mq", (*C1, 1, "score"), True, "field '[1].score': Expected `float`, got `bool`"),
    ("mq", (*C1, 1, "segment"), [0.0, math.inf], "'[1].segment, score': .* inf"),
    ("mq", (*C1, 1, "segment"), 3.0, "'[1].segment': Expected `array`, got `float`"),
    (
        "mq",
        (*C1, 1, "segment"),
        [3.0],
        "'[1].segment': Expected `array` of length >= 2",
    ),
    ("mq", (*C1, 0, "label"), 7, "'[0].label': expected the name of a label but got 7"),
    ("mq", C1, {}, "record 'c1': Expected `array`, got `object`"),
    ("mq", ("results", "c9"), [], "record 'c9': 1 of 3 clips are not in the annot"),
    ("mq", ("results",), {}, "there are no predictions"),
    ("mq", ("results",), [], "predictions of task 'mq' but these are .* 'nlq'"),
    ("nlq", (*NLQ, "query_idx"), 5, "record 'c a 5': the annotations do not ask"),
    ("nlq", (*NLQ, "query_idx"), -1, "record 'c a -1': the annotations do not ask"),
    ("nlq", (*NLQ, "query_idx"), 0.5, "[0].query_idx': expected a whole number but"),
    ("nlq", (*NLQ, "clip_uid"), "z", "record 'z a 0': the annotations do not ask"),
    ("nlq", (*NLQ, "clip_uid"), None, "'results[0]': Object missing .* `clip_uid`"),
    (
        "nlq",
        (*NLQ, "predicted_times"),
        [1, 2],
        "'predicted_times[0]': Expected `array`",
    ),
    ("nlq", (*NLQ, "predicted_times"), [[0, NAN]], "'predicted_times[0]': .* nan"),
    ("nlq", (*NLQ, "predicted_times"), [], "there are no predictions"),
    ("nlq", ("results",), [], "there are no predictions"),
    ("nlq", ("results",), {"c": []}, "task 'nlq' but these are predictions of 'mq'"),
    ("vq", (*VQ_1, "score"), NAN, "record 'c a 1', field 'score': .* got [nan]"),
    ("vq", (*VQ_1, "bboxes", 0, "x1"), NAN, "field 'bboxes[0]': .* got .* nan"),
    ("vq", (*VQ_1, "bboxes", 0, "fno"), 9, "'bboxes': expected consecutive frames, "),
    ("vq", (*VQ_1, "bboxes", 0, "fno"), 2**40, "'bboxes[0]': .* of 31 bits, but got"),
    ("vq", (*VQ_1, "bboxes"), [], "there are no predictions"),
    ("vq", (*VQ, "annotation_uid"), "b", "record 'c b 1': the annotations do not ask"),
    ("vq", (*VQ, "query_sets"), [], "'predictions[0].query_sets': Expected `object`"),
    ("vq", ("results",), [], "task 'vq' but these are predictions of 'nlq'"),
]


def matches(message, pattern):
    """Every part of a pattern between ``.*`` occurs, in this order."""
    return re.search(".*".join(map(re.escape, pattern.split(" .* "))), message)


@pytest.mark.parametrize("task, path, value, message", FAULTS)
def test_a_fault_in_predictions_is_one_line_with_file_record_and_field(
    command, task, path, value, message
):
    command.write(**changed(task, path, value))
    code, out, err = command(task)
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert err.startswith(f"error: {command.paths['pred']}")
    assert matches(err, message), err
    assert err.endswith(")\n")  # the hint what to do


@pytest.mark.parametrize(
    "task, path, value, message",
    [
        ("mq", ("c1", "subset"), None, "record 'c1': Object missing .* `subset`"),
        (
            "mq",
            ("c1", "annotations", 0, "end_time"),
            NAN,
            "'annotations[0].start_time, ",
        ),
        ("mq", ("c1", "annotations"), {}, "'annotations': Expected `array`, got `obj"),
        (
            "nlq",
            (*ASKED, "language_queries", 1, "clip_end_sec"),
            None,
            "'c a 1': Object missing required field `clip_end_sec`",
        ),
        ("nlq", (*ASKED, "language_queries"), [], "no queries are asked"),
        ("vq", (*ASKED, "query_sets", "1", "response_track"), [], "'response_track'"),
        (
            "vq",
            (*ASKED, "query_sets", "1", "is_valid"),
            0,
            "no valid queries are asked",
        ),
    ],
)
def test_a_fault_in_annotations_is_one_line_with_file_record_and_field(
    command, task, path, value, message
):
    command.write(**changed(task, path, value, "gt"))
    code, _, err = command(task)
    assert code == 1 and err.count("\n") == 1
    assert err.startswith(f"error: {command.paths['gt']}")
    assert matches(err, message), err


@pytest.mark.parametrize("task", FILES)
def test_files_that_are_no_json_are_named(command, task):
    predictions, annotations = FILES[task]()
    whole = json.dumps(predictions).encode()
    for content, message in [
        (whole[:-9], "not valid JSON: "),
        (b"", "the file is empty"),
        (b"\xff\xfe\xfa", "not valid JSON: "),
        (b"[" * 100_000, "not valid JSON: "),
        (b"3", "Expected `object`, got `int`"),
    ]:
        command.write(pred=content, gt=annotations)
        code, _, err = command(task)
        assert code == 1 and err.count("\n") == 1
        if not (task == "nlq" and content == b"3"):
            assert message in err
    command.paths["pred"].unlink()
    assert "cannot be read: No such file or directory" in command(task)[2]


def test_an_id_answered_twice_is_refused(command):
    predictions, annotations = nlq_files()
    predictions["results"] *= 2
    command.write(pred=predictions, gt=annotations)
    assert "record 'c a 0': is answered twice" in command("nlq")[2]
    predictions, annotations = vq_files()
    predictions["results"]["videos"] *= 2
    command.write(pred=predictions, gt=annotations)
    assert "record 'c a 1': occurs twice" in command("vq")[2]


def official_moments(annotations):
    videos = []
    for uid, record in annotations.items():
        labels = [{**item, "primary": True} for item in record["annotations"]]
        labels.append({**labels[0], "label": "paint", "primary": False})
        clip = {"clip_uid": uid, "annotations": [{"labels": labels}]}
        videos.append({"split": record["subset"], "clips": [clip]})
    return {"videos": videos}


@pytest.mark.parametrize("task", FILES)
@pytest.mark.parametrize("inside", ["videos", "clips", "annotations"])
def test_ground_truth_that_returns_is_refused_by_its_id(command, task, inside):
    """A query asked twice would be one, a clip that returns would lose its windows."""
    predictions, annotations = FILES[task]()
    if task == "mq":
        annotations = official_moments(annotations)
        if inside == "annotations":  # those of several annotators, which are pooled
            return
    holder = annotations
    for name in ("videos", "clips", "annotations"):
        if name == inside:
            holder[name].append(copy.deepcopy(holder[name][0]))
        holder = holder[name][0]
    command.write(pred=predictions, gt=annotations)
    code, _, err = command(task)
    name = {"mq": "c1", "nlq": "c a 0", "vq": "c a 1"}[task]
    assert code == 1 and err.startswith(f"error: {command.paths['gt']}, ")
    assert f"record '{name}'" in err and "twice" in err


@settings(max_examples=50)
@given(st.data())
def test_any_key_that_occurs_twice_is_refused_by_name(tmp_path, data):
    task = data.draw(st.sampled_from(sorted(FILES)))
    files = dict(zip(("pred", "gt"), FILES[task](), strict=True))
    which = data.draw(st.sampled_from(sorted(files)))
    paths = [path for path in nodes(files[which]) if path]
    path = data.draw(st.sampled_from([p for p in paths if isinstance(p[-1], str)]))
    holder = files[which]
    for step in path[:-1]:
        holder = holder[step]
    holder["again"] = holder[path[-1]]
    for name, content in files.items():
        text = json.dumps(content).replace('"again"', json.dumps(path[-1]))
        (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=f"key '{path[-1]}' occurs twice") as caught:
        score(task, tmp_path / "pred", tmp_path / "gt")
    assert caught.value.file == str(tmp_path / which)
    assert (caught.value.record or caught.value.field) or len(path) == 1


@pytest.mark.parametrize("task", FILES)
def test_archives_score_as_the_files_in_them(command, task):
    predictions, annotations = FILES[task]()
    expected = command.numbers(task, predictions, annotations)
    packed = [gzip.compress(json.dumps(one).encode()) for one in FILES[task]()]
    command.write(pred=packed[0], gt=packed[1])
    assert json.loads(command(task, "--json")[1]) == expected
    command.write(gt=packed[1][:-9])
    assert "gt.json: damaged or truncated gzip archive" in command(task)[2]


def test_exchanged_files_and_a_subset_without_annotations_are_named(
    shared_dir, command
):
    predictions, annotations = mq_files()
    command.write(pred=annotations, gt=predictions)
    assert "are predictions and annotations exchanged?" in command("mq")[2]
    case = load(shared_dir, "mq/case_40")
    command.write(pred=case["pred"], gt=case["gt"])
    assert "no ground truth in subset 'val'" in command("mq")[2]


def test_names_from_files_cannot_steer_the_terminal(command):
    predictions, annotations = mq_files()
    predictions["results"]["c1"][1]["label"] = "pa\x1b[2Jint\nscore: 100"
    command.write(pred=predictions, gt=annotations)
    _, out, _ = command("mq")
    assert "\x1b" not in out and "pa\\x1b[2Jint score: 100 (1)" in out


@pytest.mark.parametrize(
    "task, options",
    [
        ("nlq", ("--reference", "actionformer")),
        ("vq", ("--tiou", "0.5")),
        ("mq", ("--tiou", "50")),
        ("mq", ("--k", "0")),
        ("mq", ("--device", "abacus")),
    ],
)
def test_bad_usage_is_exit_code_two(command, task, options):
    with pytest.raises(SystemExit) as left:
        command(task, *options)
    assert left.value.code == 2


def test_a_device_that_is_not_there_is_named(command, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    predictions, annotations = mq_files()
    command.write(pred=predictions, gt=annotations)
    code, _, err = command("mq", "--device", "cuda")
    assert code == 2 and err.startswith("error: --device cuda: no such device here")


JUNK = [None, True, -1, 0.5, 1e400, 10**400, "", "x", [], {}, [[]], [None], {"a": 1}]


def nodes(content, path=()):
    """Paths of everything in parsed JSON."""
    yield path
    if isinstance(content, dict | list):
        items = content.items() if isinstance(content, dict) else enumerate(content)
        for key, value in items:
            yield from nodes(value, (*path, key))


@settings(max_examples=300)
@given(st.data())
def test_whatever_replaces_a_part_of_a_file_there_is_a_score_or_a_message(data):
    task = data.draw(st.sampled_from(sorted(FILES)))
    files = dict(zip(("pred", "gt"), FILES[task](), strict=True))
    which = data.draw(st.sampled_from(sorted(files)))
    path = data.draw(st.sampled_from(list(nodes(files[which]))))
    junk = copy.deepcopy(data.draw(st.sampled_from(JUNK)))
    if path:
        holder = files[which]
        for step in path[:-1]:
            holder = holder[step]
        holder[path[-1]] = junk
    else:
        files[which] = junk
    reference = data.draw(st.sampled_from([None, "ego4d", "vilco"]))
    documents = (
        Document(files["pred"], "predictions"),
        Document(files["gt"], "annotations"),
    )
    try:
        result = score(task, *documents, reference=reference)
    except ValueError as error:
        assert str(error).startswith(("predictions", "annotations"))
    else:
        for name, row in result.scores.items():
            unasked = any(size in name for size in ("small", "medium", "large"))
            has_nan = any(map(math.isnan, row.values()))
            assert all(0 <= x <= 1 for x in row.values() if not math.isnan(x))
            assert unasked or not has_nan or reference == "vilco"


def test_scoring_does_not_wait_for_avalanche():
    code = (
        "import sys; from avalanche_vilco.cli.score import _options; "
        "_options(['--task', 'mq', '--predictions', 'a', '--annotations', 'b']); "
        "print('avalanche' in sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "False"
