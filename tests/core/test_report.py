"""Reports add up, stage by stage."""

import json

from hypothesis import given
from hypothesis import strategies as st

from avalanche_vilco.core.report import DataReport, Tally

reasons = st.sampled_from(["too long", "too short", "odd"])
fate = st.tuples(st.sampled_from(["keep", "change", "reject", "note"]), reasons)


def two_stages() -> DataReport:
    report = DataReport(files={"b.json": "f" * 64, "a.json": "0" * 64})
    first = report.stage("annotations", "windows")
    first.kept = 5
    first.change("clipped", 2)
    first.reject("empty")
    report.stage("annotations", "clips").kept = 3
    second = report.stage("protocol", "windows")
    second.kept = 4
    second.reject("other query", 3)
    second.note("in stream train", 4)
    return report


@given(fates=st.lists(fate))
def test_all_that_was_read_was_kept_changed_or_rejected(fates):
    tally = Tally("stage", "windows")
    for action, reason in fates:
        if action == "keep":
            tally.kept += 1
        else:
            {"change": tally.change, "reject": tally.reject, "note": tally.note}[
                action
            ](reason)
    n_fates = sum(action != "note" for action, _ in fates)
    assert tally.read == n_fates
    assert tally.read == tally.passed_on + sum(tally.rejected.values())
    assert tally.passed_on == tally.kept + sum(tally.changed.values())
    assert sum(tally.notes.values()) == len(fates) - n_fates


@given(
    read=st.integers(0, 1000),
    shares=st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1),
)
def test_fates_over_stages_add_up_to_what_the_first_stage_read(read, shares):
    report, left = DataReport(), read
    for i, (rejected, changed) in enumerate(shares):
        tally = report.stage(f"stage {i}", "windows")
        tally.reject("gone", int(left * rejected))
        left -= tally.rejected.get("gone", 0)
        tally.change("clipped", int(left * changed))
        tally.kept = left - tally.changed.get("clipped", 0)
        assert tally.passed_on == left
    fates = report.outcomes("windows")
    assert sum(fates.values()) == report.tallies[0].read == read
    assert fates["in the streams"] == left


def test_fates_name_stage_and_reason_for_one_unit_only():
    assert two_stages().outcomes("windows") == {
        "in the streams": 4,
        "annotations: empty": 1,
        "protocol: other query": 3,
    }
    assert two_stages().outcomes("clips") == {"in the streams": 3}
    assert two_stages().outcomes("queries") == {}


def test_stage_is_made_once_for_each_unit():
    report = DataReport()
    assert report.stage("a", "clips") is report.stage("a", "clips")
    assert report.stage("a", "clips") is not report.stage("a", "windows")
    assert report.stage("b", "clips") is report.tallies[2]


def test_counting_nothing_leaves_no_reason_behind():
    tally = Tally("a", "clips")
    tally.reject("never", 0)
    tally.change("never", 0)
    tally.note("never", 0)
    assert (tally.rejected, tally.changed, tally.notes) == ({}, {}, {})


def test_json_form_keeps_every_count_and_the_sum():
    stored = json.loads(json.dumps(two_stages().to_dict()))
    assert list(stored["files"]) == ["a.json", "b.json"]
    first, _, second = stored["stages"]
    assert first["read"] == 8 == first["kept"] + 2 + 1
    assert first["changed"] == {"clipped": 2}
    assert second["rejected"] == {"other query": 3}
    assert second["notes"] == {"in stream train": 4}


def test_printed_report_shows_the_sum_with_its_reasons():
    lines = str(two_stages()).splitlines()
    assert lines[0] == "b.json  sha256 ffffffffffff"
    assert (
        "annotations: 8 windows read = 5 kept + 2 changed (clipped) "
        "+ 1 rejected (empty)" in lines
    )
    assert "  of these: 4 in stream train" in lines
