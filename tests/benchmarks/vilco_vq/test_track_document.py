"""Files of the VQ2D challenge, written and read."""

import json
from typing import Any

import pytest
import torch

from avalanche_vilco.benchmarks.vilco_vq.submission import read_tracks, track_document
from avalanche_vilco.cli.score import main
from avalanche_vilco.core.errors import DataError
from avalanche_vilco.evaluation.functional import Tracks
from avalanche_vilco.evaluation.functional.response_track import QueryAnswers

# A file holds one answer to a query and at least one box: the cases with several
# answers, and those with none, are scored as records alone (functional/).
CASES = (
    *("adjacent_touching", "float_boxes", "negative_coords", "negative_scores"),
    "no_overlap",
    *("one_frame_gt_and_pred", "one_frame_gt_long_pred", "one_frame_shared"),
    *("perfect_single", "pred_contains_gt_time", "random_10_single", "random_12_ties"),
    *("small_objects", "spatial_iou_exactly_0.5", "temporal_perfect_spatial_zero"),
    *("ties_fp_first", "ties_fp_last", "ties_three_queries", "tiou_exactly_0.25"),
    *("tiou_exactly_0.5", "zero_area_pred"),
)


def answers_of(tracks, numbers=None):
    """Answers from (boxes with frame first, score)."""
    rows = [box for boxes, _ in tracks for box in boxes]
    owners = [owner for owner, (boxes, _) in enumerate(tracks) for _ in boxes]
    table = torch.tensor(rows, dtype=torch.float64).reshape(-1, 5)
    return QueryAnswers(
        torch.arange(len(tracks)) if numbers is None else torch.tensor(numbers),
        torch.tensor([score for _, score in tracks], dtype=torch.float64),
        Tracks(table[:, 1:], table[:, 0].long(), torch.tensor(owners).long()),
    )


def official(queries):
    """An annotation file that asks queries, two in an annotation, three in a clip."""
    content: dict[str, Any] = {"version": "1.0.5", "videos": []}
    keys = []
    for number, query in enumerate(queries):
        if number % 3 == 0:
            clips = [{"clip_uid": f"c{number // 3}", "annotations": []}]
            content["videos"].append({"video_uid": "v", "split": "val", "clips": clips})
        parts = content["videos"][-1]["clips"][0]["annotations"]
        if number % 3 != 1:
            parts.append({"annotation_uid": f"a{number}", "query_sets": {}})
        name = str(1 + len(parts[-1]["query_sets"]))
        parts[-1]["query_sets"][name] = {
            "is_valid": True,
            "response_track": query["response_track"],
        }
        keys.append((f"c{number // 3}", parts[-1]["annotation_uid"], name))
    return content, keys


def printed(capsys, predictions, annotations, *options):
    files = ["--predictions", str(predictions), "--annotations", str(annotations)]
    assert main(["--task", "vq", *files, "--json", *options]) == 0
    return json.loads(capsys.readouterr().out)["scores"]


@pytest.mark.parametrize("name", CASES)
def test_written_files_score_as_the_official_code_says(
    shared_dir, tmp_path, capsys, name
):
    case = json.loads((shared_dir / f"oracles/vq2d/{name}.json").read_text())
    content, keys = official(case["queries"])
    tracks = []
    for query in case["queries"]:
        (track,) = query["predictions"]
        boxes = [
            [b[k] for k in ("fno", "x1", "y1", "x2", "y2")] for b in track["bboxes"]
        ]
        tracks.append((boxes, track["score"]))
    (tmp_path / "gt.json").write_text(json.dumps(content))
    document = track_document(tmp_path / "gt.json", keys, answers_of(tracks))
    (tmp_path / "pred.json").write_text(json.dumps(document))
    found = printed(
        capsys, tmp_path / "pred.json", tmp_path / "gt.json", "--reference", "ego4d"
    )
    expected = case["expected_arrays"]
    for ours, theirs, scale in (
        ("tAP", "temporal_ap@[.25,.5,.75,.95]", 1),
        ("stAP", "spatiotemporal_ap@[.25,.5,.75,.95]", 1),
        ("recovery", "recovery@[.5,.75,.95]", 100),
        ("success", "success@[.05,.1,.2]", 100),
    ):
        values = [scale * v for level, v in found[ours].items() if level != "mean"]
        assert values == pytest.approx(expected[theirs], abs=1e-9)


@pytest.mark.parametrize("case", ["case11", "case12"])
def test_official_files_written_again_score_the_same(
    shared_dir, tmp_path, capsys, case
):
    folder = shared_dir / "oracles/vq2d_file"
    asked, given = folder / f"{case}_gt.json", folder / f"{case}_pred.json"
    read = read_tracks(asked, given)
    own = read.tracks
    answers = QueryAnswers(own.queries, own.scores, own.predicted)
    again = tmp_path / "again.json"
    again.write_text(json.dumps(track_document(asked, read.queries, answers)))
    for options in ((), ("--reference", "ego4d")):
        first = printed(capsys, given, asked, *options)
        assert printed(capsys, again, asked, *options) == first
    written = read_tracks(asked, again).tracks.predicted
    assert all(torch.equal(a, b) for a, b in zip(own.predicted, written, strict=True))


def test_every_query_set_of_the_file_is_in_it_by_place():
    box = {"frame_number": 1, "x": 0, "y": 0, "width": 9, "height": 9}
    content, keys = official([{"response_track": [box]}] * 4)
    sets = content["videos"][0]["clips"][0]["annotations"][0]["query_sets"]
    sets["3"] = {"is_valid": False}
    answer = [[5, 0.25, 1, 10.125, 20]], 0.75
    document = track_document(content, keys, answers_of([answer], numbers=[1]))
    assert document["challenge"] == "ego4d_vq2d_challenge"
    assert document["version"] == content["version"]
    nothing = {"bboxes": [], "score": 0.0}
    written = {"fno": 5, "x1": 0.25, "y1": 1.0, "x2": 10.125, "y2": 20.0}
    videos = document["results"]["videos"]
    assert [(v["video_uid"], v["split"], len(v["clips"])) for v in videos] == [
        ("v", "val", 1),
        ("v", "val", 1),
    ]
    assert videos[0]["clips"] == [
        {
            "clip_uid": "c0",
            "predictions": [
                {
                    "annotation_uid": "a0",
                    "query_sets": {
                        "1": nothing,
                        "2": {"bboxes": [written], "score": 0.75},
                        "3": nothing,
                    },
                },
                {"annotation_uid": "a2", "query_sets": {"1": nothing}},
            ],
        }
    ]
    notes = {note.reason: note.count for note in read_tracks(content, document).notes}
    assert notes["queries without an answer, counted as misses"] == 3


def test_answers_to_other_queries_are_refused():
    content, keys = official([{"response_track": []}])
    answers = answers_of([([], 0.5)])
    with pytest.raises(
        ValueError, match=r"got 1 to others, such as \('c0', 'b', '1'\)"
    ):
        track_document(content, [("c0", "b", "1")], answers)
    with pytest.raises(DataError, match="annotations: Expected `object`, got `array`"):
        track_document([{"query_idx": 0}], keys, answers)
