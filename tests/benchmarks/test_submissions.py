import json

import pytest
import torch

from avalanche_vilco.benchmarks.vilco_mq.submission import read_moments
from avalanche_vilco.benchmarks.vilco_nlq.submission import read_queries
from avalanche_vilco.core.errors import DataError
from avalanche_vilco.evaluation.functional import (
    counted_labels,
    detection_ap,
    grouped_recall,
    moment_recall,
    recall_hits,
)


def asked(*queries):
    """Annotations of one clip; a query is (start, end, template)."""
    language_queries = [
        {"clip_start_sec": start, "clip_end_sec": end, "query": "?", "template": name}
        for start, end, name in queries
    ]
    part = {"annotation_uid": "a", "language_queries": language_queries}
    return {"videos": [{"clips": [{"clip_uid": "c", "annotations": [part]}]}]}


def answered(number, *windows):
    return {
        "clip_uid": "c",
        "annotation_uid": "a",
        "query_idx": number,
        "predicted_times": [list(window) for window in windows],
    }


def test_every_query_counts_by_default_and_only_answers_in_ego4d():
    annotations = asked((0.0, 10.0, None), (20.0, 30.0, None))
    predictions = {"results": [answered(1, (20.0, 30.0))]}
    for reference, expected in ((None, 0.5), ("ego4d", 1.0)):
        rows = read_queries(annotations, predictions, reference=reference)
        got = moment_recall(
            *rows.moments, k=[1], tiou=[0.3], budget="fixed", reference=reference
        )
        assert got.item() == expected


def test_scores_of_windows_rank_them_by_default():
    annotations = asked((10.0, 20.0, None))
    predictions = [answered(0, (40.0, 50.0, 0.1), (10.0, 20.0, 0.9))]
    for reference, expected in ((None, 1.0), ("ego4d", 0.0)):
        rows = read_queries(annotations, predictions, reference=reference)
        got = moment_recall(
            *rows.moments, k=[1], tiou=[0.5], budget="fixed", reference=reference
        )
        assert got.item() == expected


def test_answers_that_scores_rank_otherwise_than_listed_are_noted():
    annotations = asked((10.0, 20.0, None), (10.0, 20.0, None))
    predictions = [
        answered(0, (40.0, 50.0, 0.1), (10.0, 20.0, 0.9)),
        answered(1, (40.0, 50.0, 0.9), (10.0, 20.0, 0.1)),
    ]
    (note,) = read_queries(annotations, predictions).notes
    assert note.reason.startswith("answers ranked by the scores beside their windows")
    assert note.records == ("c a 0",)
    assert read_queries(annotations, predictions, reference="ego4d").notes == []


def test_recall_by_template_weighs_queries():
    annotations = asked((0.0, 9.0, "who"), (0.0, 9.0, "who"), (0.0, 9.0, "what"))
    predictions = [answered(0, (0.0, 9.0)), answered(2, (0.0, 9.0))]
    rows = read_queries(annotations, predictions)
    hits = recall_hits(*rows.moments, k=[1], tiou=[0.5], budget="fixed")
    names = sorted(set(rows.templates))
    groups = torch.tensor([[names.index(name)] for name in rows.templates])
    got = grouped_recall(hits, groups)
    assert names == ["what", "who"]
    assert got.recall.flatten().tolist() == [1.0, 0.5]
    assert got.n_windows.tolist() == [1, 2]


def test_recall_by_label_leaves_out_repeats():
    windows = torch.tensor([[[0.0, 9.0], [0.0, 9.0], [20.0, 29.0]]])
    labels = torch.tensor([[0, 0, 3]])
    hits = recall_hits(
        windows[:, :1], torch.ones(1, 1), labels[:, :1], windows, labels, tiou=[0.5]
    )
    got = grouped_recall(hits, counted_labels(windows, labels))
    assert got.groups.tolist() == [0, 3] and got.n_windows.tolist() == [1, 1]
    assert got.recall[:, 0, 0].tolist() == [1.0, 0.0]
    with pytest.raises(ValueError, match=r"expected groups of shape \(1, 3\)"):
        grouped_recall(hits, labels[:, :2])


def test_a_subset_is_matched_by_its_whole_name_by_default(shared_dir):
    case = json.loads((shared_dir / "oracles/mq/case_36.json").read_text())
    with pytest.raises(ValueError, match="no ground truth in subset 'validation'"):
        read_moments(case["gt"], case["pred"], subset="validation")


def moment_files(**changes):
    item = {"label": "cut, 'peel' / chop", "start_time": "9.5", "end_time": "12.2"}
    record = {"subset": "val", "clip_id": "c", "annotations": [item]}
    window = {"label": item["label"], "score": 0.5, "segment": [9.5, 12.2], **changes}
    return {"c": record}, {"results": {"c": [window]}}


def test_labels_are_data_and_numbers_in_text_are_numbers(tmp_path):
    paths = []
    for name, content in zip(("gt", "pred"), moment_files(), strict=True):
        paths.append(tmp_path / f"{name}.json")
        paths[-1].write_text(json.dumps(content))
    found = read_moments(*paths)
    assert found.names == {0: "cut, 'peel' / chop"}
    assert detection_ap(*found.moments).mean_ap.tolist() == [1.0] * 5


def test_labels_given_as_numbers_keep_them_in_both_files():
    annotations, predictions = moment_files(label=7)
    annotations["c"]["annotations"][0]["label"] = 7
    annotations["c"]["annotations"].append({**annotations["c"]["annotations"][0]})
    annotations["c"]["annotations"][1]["label"] = 3
    found = read_moments(annotations, predictions)
    assert found.moments.target_labels.tolist() == [[7, 3]]
    assert found.moments.labels.tolist() == [[7]]
    assert found.names == {7: "7", 3: "3"}
    predictions["results"]["c"][0]["label"] = "cut"
    with pytest.raises(DataError, match=r"expected a whole number but got 'cut'"):
        read_moments(annotations, predictions)


def test_predicted_labels_without_ground_truth_are_counted_and_listed():
    annotations, predictions = moment_files()
    known = predictions["results"]["c"][0]
    predictions["results"]["c"] += [dict(known, label="b")] * 2 + [
        dict(known, label="a")
    ]
    (note,) = read_moments(annotations, predictions).notes
    assert (
        note.reason
        == "predictions of labels that the ground truth does not have, ignored"
    )
    assert (note.count, note.records) == (3, ("b (2)", "a (1)"))
