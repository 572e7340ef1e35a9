"""``avalanche-vilco doctor``: finds what was planted, by name, and nothing else."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from avalanche_vilco.benchmarks.vilco_mq.embedded import MiniMQConfig
from avalanche_vilco.benchmarks.vilco_mq.layout import OFFICIAL_FILES
from avalanche_vilco.benchmarks.vilco_vq.embedded import MiniVQConfig
from avalanche_vilco.cli.main import main
from avalanche_vilco.experiments.doctor import examine

ANNOTATIONS = "ego4d_clip_annotations_v2.json"
TEXT = "query_text.safetensors"
SENTENCES = "format_unique_pretrain_data_v2.jsonl"
SENTENCE_FEATURES = "narration_features.npz"
LABEL = "boil_water_in_a_kettle"
SEVEN = torch.tensor(7)


@pytest.fixture
def root(mq_root, tmp_path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(mq_root, tmp_path / "root"))


def records_of(root: Path) -> dict:
    return json.loads((root / ANNOTATIONS).read_text())


def clip(root: Path, subset: str = "train", number: int = 0) -> str:
    """A clip's uid, always the same for the same data."""
    records = records_of(root).items()
    return [uid for uid, record in records if record["subset"] == subset][number]


def feature_file(root: Path, subset: str = "train", number: int = 0) -> Path:
    return root / "features" / f"{clip(root, subset, number)}.pt"


def edit(root: Path, **changes: object) -> str:
    """Change the first training record; return its uid."""
    records = records_of(root)
    records[clip(root)].update(changes)
    (root / ANNOTATIONS).write_text(json.dumps(records))
    return clip(root)


def edit_windows(root: Path, *added: dict, **changes: object) -> str:
    windows = records_of(root)[clip(root)]["annotations"]
    windows[0].update(changes)
    added = tuple({**windows[0], **one} for one in added)
    return edit(root, annotations=[*windows, *added])


def cut(path: Path, size: int) -> str:
    """Cut bytes off the end of a file, or all of it."""
    path.write_bytes(path.read_bytes()[:-size])
    return path.stem if path.parent.name == "features" else path.name


def edit_features(
    root: Path, change: Callable[[torch.Tensor], torch.Tensor], subset: str = "train"
) -> str:
    path = feature_file(root, subset)
    torch.save(change(torch.load(path)).contiguous(), path)
    return path.stem


def as_npy(path: Path) -> Path:
    np.save(path.with_suffix(".npy"), torch.load(path).numpy())
    return path.with_suffix(".npy")


def edit_text(root: Path, change: Callable[[dict], None]) -> str:
    entries = load_file(root / TEXT)
    change(entries)
    save_file(entries, root / TEXT)
    return LABEL


def sentences_of(root: Path) -> list[dict]:
    return [json.loads(line) for line in (root / SENTENCES).read_text().splitlines()]


def add_sentence(root: Path, name: str = "", **changes: object) -> str:
    """Add the first sentence again with changes; return a name, else its number."""
    number = len(sentences_of(root)) + 1
    line = json.dumps({**sentences_of(root)[0], **changes})
    with (root / SENTENCES).open("a") as file:
        file.write(line + "\n" if changes else '{"video_id": "a", "query_id"\n')
    return name or f"line {number}"


def without(path: Path, *others: Path) -> str:
    for each in (path, *others):
        shutil.rmtree(each) if each.is_dir() else each.unlink()
    return path.stem if path.parent.name == "features" else path.name


def key_occurs_twice(root: Path) -> str:
    text, uid = (root / ANNOTATIONS).read_text(), clip(root)
    second = text.replace(f'"{uid}": {{', f'"{uid}": {{"duration": 1.0, ', 1)
    (root / ANNOTATIONS).write_text(second)
    return uid


def id_leaves_the_root(root: Path) -> str:
    records = records_of(root)
    records["../secret"] = {**records[clip(root)], "clip_id": "../secret"}
    (root / ANNOTATIONS).write_text(json.dumps(records))
    return "../secret"


class Malicious:
    def __reduce__(self):
        return (print, ("not to be seen",))


def malicious_pt(root: Path) -> str:
    torch.save(Malicious(), feature_file(root))
    return clip(root)


def truncated_npy(root: Path) -> str:
    npy = as_npy(feature_file(root))
    feature_file(root).unlink()
    return cut(npy, npy.stat().st_size // 2)


def narrow_text(root: Path) -> str:
    return edit_text(root, lambda e: e.update({LABEL: e[LABEL][:, :-1].contiguous()}))


def narrow_sentence_features(root: Path) -> str:
    arrays = dict(np.load(root / SENTENCE_FEATURES))
    name = next(iter(arrays))
    arrays[name] = arrays[name][:, :-1]
    np.savez(root / SENTENCE_FEATURES, **arrays)
    return name


Plant = Callable[[Path], str]
FAULTS: dict[str, tuple[Plant, str, str]] = {
    "truncated annotations": (
        lambda root: cut(root / ANNOTATIONS, 300),
        *("annotations", "not valid JSON"),
    ),
    "no annotations": (
        lambda root: without(root / ANNOTATIONS) and root.name,
        *("annotations", "no annotation file"),
    ),
    "window is NaN": (
        lambda root: edit_windows(root, segment=[1.0, float("nan")]),
        *("annotations", "expected finite seconds"),
    ),
    "label has two ids": (
        lambda root: edit_windows(root, {"label_id": 99}),
        *("annotations", "contradicts an earlier record"),
    ),
    "key occurs twice": (key_occurs_twice, "annotations", "'duration' occurs twice"),
    "id leaves the root": (id_leaves_the_root, "annotations", "the id has characters"),
    "number is text": (
        lambda root: edit(root, duration="60"),
        *("annotations", "Expected `float`, got `str`"),
    ),
    "no features of a clip": (
        lambda root: without(feature_file(root, "val")),
        *("features", "1 val clips have no features"),
    ),
    "no feature folder": (
        lambda root: without(root / "features"),
        *("features", "no features"),
    ),
    "truncated npy": (truncated_npy, "features", "damaged"),
    "empty pt": (lambda root: cut(feature_file(root), 10**9), "features", "damaged"),
    "malicious pt": (malicious_pt, "features", "refused"),
    "transposed features": (
        lambda root: edit_features(root, lambda f: f.T),
        *("features", "transposed"),
    ),
    "narrow features": (
        lambda root: edit_features(root, lambda f: f[:, :-1]),
        *("features", "expected 32 channels"),
    ),
    "features of another clip": (
        lambda root: edit_features(root, lambda f: torch.cat([f, f[:6]])),
        *("features", "steps"),
    ),
    "NaN in features": (
        lambda root: edit_features(root, lambda f: f.index_fill(0, SEVEN, torch.nan)),
        *("features", "NaN"),
    ),
    "two files of a clip": (
        lambda root: as_npy(feature_file(root)).stem,
        *("features", "leave one"),
    ),
    "label without text": (
        lambda root: edit_text(root, lambda entries: entries.pop(LABEL)),
        *("query text", "no text for"),
    ),
    "narrow text": (narrow_text, "query text", "expected 48 channels but got 47"),
    "truncated text": (
        lambda root: cut(root / TEXT, 10),
        *("query text", "not a safetensors file"),
    ),
    "damaged sentence": (add_sentence, "narrations", "not valid JSON"),
    "sentence without features": (
        lambda root: add_sentence(root, "unheard", query_id="unheard"),
        *("narration features", "1 narrations have no features"),
    ),
    "no sentence features": (
        lambda root: without(root / SENTENCE_FEATURES),
        *("narrations", "missing"),
    ),
    "truncated sentence features": (
        lambda root: cut(root / SENTENCE_FEATURES, 500),
        *("narration features", "no npz archive"),
    ),
    "narrow sentence features": (
        narrow_sentence_features,
        *("narration features", "expected 512 channels but got 511"),
    ),
}


def leftover_file(root: Path) -> str:
    shutil.copy(feature_file(root), root / "features" / "unknown-clip.pt")
    return "unknown-clip.pt"


def no_features_of_a_labelled_test_clip(root: Path) -> str:
    records, uid = records_of(root), clip(root, "test")
    records[uid]["annotations"] = records[clip(root)]["annotations"]
    (root / ANNOTATIONS).write_text(json.dumps(records))
    return without(feature_file(root, "test"))


NOTES: dict[str, tuple[Plant, str, str]] = {
    "leftover file": (leftover_file, "features", "1 files belong to no clip"),
    "no features of a test clip": (
        lambda root: without(feature_file(root, "test")),
        *("features", "1 clips of no stream"),
    ),
    "no features of a labelled test clip": (
        no_features_of_a_labelled_test_clip,
        *("features", "1 clips of no stream"),
    ),
    "truncated features of a test clip": (
        lambda root: cut(feature_file(root, "test"), 100),
        *("features", "is damaged"),
    ),
    "NaN in features of a test clip": (
        lambda root: edit_features(root, lambda f: f.fill_(torch.nan), "test"),
        *("features", "holds NaN"),
    ),
    "sentence of an unknown clip": (
        lambda root: add_sentence(root, "unknown-clip", video_id="unknown-clip"),
        *("narrations", "1 clips are not in the annotation"),
    ),
    "sentence outside its clip": (
        lambda root: add_sentence(
            root, sentences_of(root)[0]["query_id"], timestamps=[[900, 901]]
        ),
        *("narrations", "1 windows lie outside their clip"),
    ),
    "sentence that runs backwards": (
        lambda root: add_sentence(root, SENTENCES, timestamps=[[2, 1]]),
        *("narrations", "1 windows: end before start"),
    ),
    "no query text": (
        lambda root: without(root / TEXT),
        *("query text", "no query text"),
    ),
    "no narrations": (
        lambda root: without(root / SENTENCES, root / SENTENCE_FEATURES),
        *("narrations", "no narrations"),
    ),
}


def test_nothing_is_reported_of_a_mq_root(mq_root, capsys):
    assert examine(mq_root).findings == []
    assert main(["doctor", str(mq_root)]) == 0
    printed = capsys.readouterr().out
    assert "train clips 20, val clips 10, test clips 2, categories 10" in printed
    assert printed.endswith("0 faults, 0 notes (contents read)\n")


@pytest.mark.parametrize("case", FAULTS)
def test_planted_fault_is_found_by_name_and_nothing_else(case, root, capsys):
    plant, part, problem = FAULTS[case]
    name = plant(root)
    assert main(["doctor", str(root), "--json"]) == 1
    printed = json.loads(capsys.readouterr().out)
    (found,) = printed["findings"]
    assert (found["severity"], found["part"]) == ("fault", part)
    assert problem in found["problem"]
    assert (
        name in [*found["records"], Path(found["file"]).name]
        or name in found["problem"]
    )
    assert found["remedy"]
    assert not printed["ok"]


@pytest.mark.parametrize("case", NOTES)
def test_harmless_oddity_is_a_note_and_no_fault(case, root, capsys):
    plant, part, problem = NOTES[case]
    name = plant(root)
    assert main(["doctor", str(root), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    (found,) = printed["findings"]
    assert (found["severity"], found["part"]) == ("note", part)
    assert problem in found["problem"]
    assert name in [*found["records"], Path(found["file"]).name]
    assert printed["ok"]


def test_many_faults_are_found_in_one_go(root, capsys):
    cases = ["window is NaN", "id leaves the root", "no features of a clip"]
    cases += ["label without text", "sentence without features", "damaged sentence"]
    names = {FAULTS[case][0](root) for case in cases} | {leftover_file(root)}
    other = feature_file(root, "train", 3)
    other.write_bytes(b"")
    assert main(["doctor", str(root)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("7 faults, 1 notes")
    findings = [line for line in lines if line.startswith(("FAULT", "NOTE"))]
    assert len(findings) == 8
    for name in names | {other.stem}:
        assert any(name in line for line in findings), name
    assert all(" -> " in line for line in findings)


def test_several_records_at_fault_are_all_named(root):
    uids = [clip(root, "train", number) for number in range(3)]
    records = records_of(root)
    records[uids[0]]["fps"] = 0
    records[uids[1]]["subset"] = "training"
    records[uids[2]]["duration"] = float("inf")
    (root / ANNOTATIONS).write_text(json.dumps(records))
    found = examine(root).findings
    assert sorted(finding.records[0] for finding in found) == sorted(uids)
    assert {finding.file for finding in found} == {str(root / ANNOTATIONS)}


def test_endless_faults_of_records_end(root, monkeypatch):
    monkeypatch.setattr(
        "avalanche_vilco.benchmarks.examination.MAX_ANNOTATION_FAULTS", 2
    )
    records = records_of(root)
    for record in records.values():
        record["fps"] = 0
    (root / ANNOTATIONS).write_text(json.dumps(records))
    found = [one for one in examine(root).findings if one.part == "annotations"]
    assert len({one.records for one in found[:-1]}) == len(found[:-1]) == 2
    assert found[-1].problem == "30 more records at fault"


def test_all_missing_features_are_listed_by_subset(root):
    gone = {"train": set(), "val": set()}
    for subset, number in (("train", 0), ("train", 4), ("train", 5), ("val", 1)):
        gone[subset].add(clip(root, subset, number))
        feature_file(root, subset, number).unlink()
    train, val = examine(root).findings
    assert (set(train.records), set(val.records)) == (gone["train"], gone["val"])
    assert all(uid in train.line() for uid in gone["train"])


def test_long_lists_of_sentences_are_cut_for_people_and_whole_in_json(root):
    for i in range(30):
        add_sentence(root, query_id=f"unheard-{i}")
    (found,) = examine(root).findings
    assert len(found.records) == 30
    assert found.line().count("unheard-") == 20
    assert " and 10 more (see --json)" in found.line()


def test_contents_are_read_unless_told_otherwise_or_large(root, monkeypatch):
    FAULTS["NaN in features"][0](root)
    assert examine(root, deep=False).findings == []
    assert examine(root).n_faults == 1
    monkeypatch.setattr("avalanche_vilco.core.diagnosis.DEEP_BYTES", 10)
    assert not examine(root).is_deep
    assert examine(root, deep=True).n_faults == 1


def test_parts_may_lie_elsewhere(root, tmp_path, capsys):
    elsewhere = tmp_path / "elsewhere"
    shutil.move(root / "features", elsewhere)
    assert main(["doctor", str(root), "--features", str(elsewhere)]) == 0
    assert "0 faults, 0 notes" in capsys.readouterr().out


def test_public_text_folder_is_examined(root, tmp_path):
    entries = load_file(root / TEXT)
    folder = tmp_path / "text"
    folder.mkdir()
    torch.save(entries, folder / "a.pt")
    torch.save({**entries, LABEL: torch.zeros(2, 48)}, folder / "b.pt")
    (found,) = examine(root, query_text=folder).findings
    assert found.records == (LABEL,)
    assert found.file.endswith("b.pt")


def official(root: Path) -> None:
    """Replace the processed file by Ego4D's own form of the same windows."""
    videos: dict[str, dict[str, list]] = {"train": {}, "val": {}, "test": {}}
    for record in records_of(root).values():
        labels = [
            {
                "label": window["label"],
                "primary": True,
                "start_time": window["segment"][0],
                "end_time": window["segment"][1],
            }
            for window in record["annotations"]
        ]
        one = {
            "clip_uid": record["clip_id"],
            "video_start_sec": record["parent_start_sec"],
            "video_end_sec": record["parent_end_sec"],
            "annotations": [{"labels": labels}] if labels else [],
        }
        clips = videos[record["subset"]].setdefault(record["video_id"], [])
        clips.append(one)
    for subset, name in zip(videos, OFFICIAL_FILES.values(), strict=True):
        listed = [
            {"video_uid": uid, "split": subset, "clips": clips}
            for uid, clips in videos[subset].items()
        ]
        (root / name).write_text(json.dumps({"version": "1", "videos": listed}))
    (root / ANNOTATIONS).unlink()


@pytest.fixture
def official_root(tmp_path) -> Path:
    """Ego4D's own files, whose features have the rate of the processed v2 file."""
    root = MiniMQConfig(
        n_train=6,
        n_val=3,
        n_test=1,
        group_size=1,
        min_train_clips=2,
        min_val_clips=1,
        clip_sec=(40.0, 60.0),
        fps=1.8741513727840071,
    ).generate(tmp_path / "official")
    official(root)
    return root


def test_official_files_are_examined(official_root):
    diagnosis = examine(official_root)
    assert diagnosis.findings == []
    assert diagnosis.counts["annotations"]["train clips"] == 6
    assert diagnosis.counts["annotations"]["test clips"] == 1


def test_faults_beside_official_files_are_found(official_root):
    content = json.loads((official_root / OFFICIAL_FILES["train"]).read_text())
    uid = content["videos"][0]["clips"][0]["clip_uid"]
    path = official_root / "features" / f"{uid}.pt"
    path.rename(path.with_name("unknown-clip.pt"))
    missing, leftover = examine(official_root).findings
    assert missing.records == (uid,)
    assert leftover.records == ("unknown-clip.pt",)


@pytest.mark.parametrize("name", ["nothing", ANNOTATIONS])
def test_root_that_is_no_folder_is_a_fault(name, root, capsys):
    assert main(["doctor", str(root / name)]) == 1
    assert "no such folder" in capsys.readouterr().out


def test_empty_root_says_what_is_expected(tmp_path):
    diagnosis = examine(tmp_path)
    (fault,) = diagnosis.findings
    assert (fault.severity, fault.part) == ("fault", "annotations")
    for name in (ANNOTATIONS, "nlq_train.json", "vq_val.json", "(vilco_vq)"):
        assert name in fault.problem


@pytest.mark.parametrize("name", [ANNOTATIONS, TEXT, SENTENCES, SENTENCE_FEATURES])
def test_folder_in_place_of_a_file_is_no_traceback(name, root):
    (root / name).unlink()
    (root / name).mkdir()
    assert examine(root).n_faults >= 1


@pytest.mark.parametrize("name", [ANNOTATIONS, TEXT, SENTENCES, SENTENCE_FEATURES])
@pytest.mark.parametrize("size", [0, 1, 100, 5000])
def test_bytes_of_any_kind_are_no_traceback(name, size, root):
    noise = np.random.default_rng(size).bytes(size)
    (root / name).write_bytes(noise)
    is_legal = name == SENTENCES and size == 0
    assert (examine(root).n_faults == 0) == is_legal


@pytest.mark.parametrize("broken", ["is_file", "open", "iterdir"])
def test_refusal_by_the_system_is_a_fault(broken, root, monkeypatch):
    def refuse(self, *arguments, **options):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, broken, refuse)
    found = examine(root).findings
    assert any("Permission denied" in finding.problem for finding in found)


def test_names_that_a_terminal_would_obey_are_printed_harmlessly(root, capsys):
    for name in (b"\x1b[31mred.pt", b"two\nlines.pt", b"\xff.pt"):
        (root / "features" / os.fsdecode(name)).write_bytes(b"")
    assert main(["doctor", str(root)]) == 0
    (line,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith("NOTE")]
    assert line.isprintable()
    assert "\\x1b[31mred.pt" in line


def test_reader_that_leaves_early_is_no_traceback(root):
    for i in range(3000):
        (root / "features" / f"unknown-clip-{i}-{'x' * 60}.pt").touch()
    command = [sys.executable, "-m", "avalanche_vilco.cli.main", "doctor", str(root)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout and process.stderr
        process.stdout.read(10)
        process.stdout.close()
        errors = process.stderr.read()
    assert (process.returncode, errors) == (0, b"")


def test_sentences_of_unknown_clips_need_no_features(root):
    add_sentence(root, video_id="unknown-clip", query_id="unheard")
    assert examine(root).n_faults == 0


@pytest.mark.parametrize(
    "arguments", [["doctor"], ["doctor", ".", "--fast"], ["cure"], []]
)
def test_bad_usage_exits_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    assert "usage: avalanche-vilco" in capsys.readouterr().err


def test_doctor_changes_nothing(root):
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    examine(root, deep=True)
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before


def test_doctor_starts_without_avalanche(mq_root):
    code = (
        "import sys; from avalanche_vilco.cli.main import main; "
        f"main(['doctor', {str(mq_root)!r}]); "
        "print({'avalanche', 'transformers', 'hydra'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.endswith("set()\n"), done.stderr


@pytest.fixture
def question_root(nlq_root, tmp_path) -> Path:
    return Path(shutil.copytree(nlq_root, tmp_path / "questions"))


@pytest.fixture
def track_root(tmp_path) -> Path:
    return MiniVQConfig(n_train=2, n_val=1, n_test=1).generate(tmp_path / "vq")


def edit_first(path: Path, change: Callable[[dict], object]) -> str:
    """Change the first clip of an official file; return its uid."""
    content = json.loads(path.read_text())
    first = content["videos"][0]["clips"][0]
    change(first)
    path.write_text(json.dumps(content))
    return first["clip_uid"]


def first_clip(root: Path, name: str) -> str:
    return edit_first(root / name, lambda clip: None)


def window_is_text(one: dict) -> None:
    one["annotations"][0]["language_queries"][0]["clip_end_sec"] = "late"


def question_without_features(root: Path) -> str:
    uid = first_clip(root, "nlq_val.json")
    return without(next((root / "features").glob(f"{uid}.*")))


def question_without_text(root: Path) -> str:
    path, found = root / "nlq_query_text.safetensors", []
    edit_first(root / "nlq_train.json", lambda one: found.extend(one["annotations"]))
    entries, query_id = load_file(path), f"{found[0]['annotation_uid']}_0"
    entries.pop(query_id)
    save_file(entries, path)
    return query_id


def truncated_video(root: Path) -> str:
    path = root / "clips" / f"{first_clip(root, 'vq_val.json')}.mp4"
    cut(path, path.stat().st_size // 2)
    return path.stem


def video_in_no_known_codec(root: Path) -> str:
    path = root / "clips" / f"{first_clip(root, 'vq_val.json')}.mp4"
    path.write_bytes(path.read_bytes().replace(b"avc1", b"zzz1"))
    return path.stem


def track_without_video(root: Path) -> str:
    uid = first_clip(root, "vq_train.json")
    return without(root / "clips" / f"{uid}.mp4").removesuffix(".mp4")


def shared_parent(root: Path) -> str:
    content = json.loads((root / "vq_val.json").read_text())
    train = json.loads((root / "vq_train.json").read_text())
    content["videos"][0]["video_uid"] = train["videos"][0]["video_uid"]
    (root / "vq_val.json").write_text(json.dumps(content))
    return "vq_val.json"


OTHERS: dict[str, tuple[Plant, str, str, str]] = {
    "question without features": (
        question_without_features,
        *("question_root", "features", "1 val clips have no"),
    ),
    "window is text": (
        lambda root: edit_first(root / "nlq_train.json", window_is_text),
        *("question_root", "annotations", "got `str`"),
    ),
    "question without text": (
        question_without_text,
        *("question_root", "query text", "1 questions have no text"),
    ),
    "no train questions": (
        lambda root: without(root / "nlq_train.json") and root.name,
        *("question_root", "annotations", "no train annotations"),
    ),
    "track without video": (
        track_without_video,
        *("track_root", "videos", "1 train clips have no videos"),
    ),
    "truncated video": (truncated_video, "track_root", "videos", ""),
    "unknown codec": (video_in_no_known_codec, "track_root", "videos", "no decoder"),
    "video of another clip": (
        lambda root: edit_first(
            root / "vq_val.json",
            lambda one: one.update(video_end_sec=one["video_end_sec"] + 60.0),
        ),
        *("track_root", "videos", "the file lasts"),
    ),
    "no videos": (
        lambda root: without(root / "clips"),
        *("track_root", "videos", "no videos"),
    ),
    "shared parent": (
        shared_parent,
        *("track_root", "annotations", "1 parent videos are in train as well"),
    ),
}


@pytest.mark.parametrize("fixture", ["official_root", "question_root", "track_root"])
def test_every_clip_at_fault_of_official_files_is_named(fixture, request):
    root = request.getfixturevalue(fixture)
    planted = {
        (str(path), (edit_first(path, lambda one: one.update(video_end_sec="480")),))
        for path in [*root.glob("*_train.json"), *root.glob("*_val.json")]
    }
    found = examine(root, deep=False).findings
    faults = [one for one in found if one.severity == "fault"]
    assert {(one.file, one.records) for one in faults} == planted


@pytest.mark.parametrize("case", OTHERS)
def test_planted_fault_of_another_benchmark_is_found_by_name(case, request):
    plant, fixture, part, problem = OTHERS[case]
    root = request.getfixturevalue(fixture)
    name = plant(root)
    found = [one for one in examine(root).findings if one.severity == "fault"]
    assert found and {one.part for one in found} == {part}
    assert problem in found[0].problem
    assert name in [*found[0].records, Path(found[0].file).name]
    assert found[0].remedy
    if case == "unknown codec":
        assert "ffmpeg -i IN" in found[0].remedy


def test_nothing_is_reported_of_sound_roots_alone_or_together(
    mq_root, nlq_root, track_root, tmp_path
):
    for root, part in ((nlq_root, "features"), (track_root, "videos")):
        diagnosis = examine(root, deep=True)
        assert diagnosis.n_faults == 0
        assert diagnosis.counts["annotations"]["clips"] > 0
        assert diagnosis.counts[part]["clips"] > 0
    both = Path(shutil.copytree(nlq_root, tmp_path / "both"))
    for name in ("features", TEXT, ANNOTATIONS):
        copy = shutil.copytree if (mq_root / name).is_dir() else shutil.copy
        options = {"dirs_exist_ok": True} if copy is shutil.copytree else {}
        copy(mq_root / name, both / name, **options)
    shutil.copytree(track_root, both, dirs_exist_ok=True)
    diagnosis = examine(both, deep=False)
    benchmarks = {part.split()[0] for part in diagnosis.counts}
    assert benchmarks == {"vilco_mq", "vilco_nlq", "vilco_vq"}
    assert [one for one in diagnosis.findings if "features" in one.part] == []
    assert examine(both, benchmark="vilco_vq").counts.keys() == {
        "annotations",
        "videos",
    }


def test_flattened_questions_are_examined(question_root):
    for subset in ("train", "val"):
        source = question_root / f"nlq_{subset}.json"
        lines = [
            {
                "query_id": f"{part['annotation_uid']}_{i}",
                "duration": one["video_end_sec"] - one["video_start_sec"],
                "video_id": one["clip_uid"],
                "query": query["query"],
                "timestamps": [[query["clip_start_sec"], query["clip_end_sec"]]],
            }
            for video in json.loads(source.read_text())["videos"]
            for one in video["clips"]
            for part in one["annotations"]
            for i, query in enumerate(part["language_queries"])
        ]
        flattened = source.with_name(f"ego4d_nlq_{subset}_v2.jsonl")
        flattened.write_text("\n".join(map(json.dumps, lines)))
        source.unlink()
    (question_root / "nlq_test_unannotated.json").unlink(missing_ok=True)
    assert examine(question_root).n_faults == 0
