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

from avalanche_vilco.benchmarks.vilco_mq.embedded import generate_mini_mq
from avalanche_vilco.benchmarks.vilco_mq.official import OFFICIAL_FILES
from avalanche_vilco.benchmarks.vilco_vq.embedded import generate_mini_vq
from avalanche_vilco.cli.main import main
from avalanche_vilco.experiments.doctor import examine

ANNOTATIONS = "ego4d_clip_annotations_v2.json"
TEXT = "query_text.safetensors"
SENTENCES = "format_unique_pretrain_data_v2.jsonl"
SENTENCE_FEATURES = "narration_features.npz"


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


def edit(root: Path, change: Callable[[dict], None]) -> None:
    records = records_of(root)
    change(records[clip(root)])
    (root / ANNOTATIONS).write_text(json.dumps(records))


def edit_features(root: Path, change: Callable[[torch.Tensor], torch.Tensor]) -> str:
    path = feature_file(root)
    torch.save(change(torch.load(path)).contiguous(), path)
    return path.stem


def edit_text(root: Path, change: Callable[[dict], None]) -> None:
    entries = load_file(root / TEXT)
    change(entries)
    save_file(entries, root / TEXT)


def sentences_of(root: Path) -> list[dict]:
    return [json.loads(line) for line in (root / SENTENCES).read_text().splitlines()]


def add_sentence(root: Path, line: str) -> None:
    with (root / SENTENCES).open("a") as file:
        file.write(line + "\n")


# Each plants one fault and returns the name it must be found by.


def truncated_annotations(root: Path) -> str:
    path = root / ANNOTATIONS
    path.write_bytes(path.read_bytes()[:-300])
    return ANNOTATIONS


def no_annotations(root: Path) -> str:
    (root / ANNOTATIONS).unlink()
    return ANNOTATIONS


def window_is_nan(root: Path) -> str:
    edit(root, lambda r: r["annotations"][0].update(segment=[1.0, float("nan")]))
    return clip(root)


def label_has_two_ids(root: Path) -> str:
    def append(record: dict) -> None:
        record["annotations"].append({**record["annotations"][0], "label_id": 99})

    edit(root, append)
    return clip(root)


def key_occurs_twice(root: Path) -> str:
    text = (root / ANNOTATIONS).read_text()
    uid = clip(root)
    second = text.replace(f'"{uid}": {{', f'"{uid}": {{"duration": 1.0, ', 1)
    (root / ANNOTATIONS).write_text(second)
    return uid


def id_leaves_the_root(root: Path) -> str:
    records = records_of(root)
    record = next(r for r in records.values() if r["subset"] == "train")
    records["../secret"] = {**record, "clip_id": "../secret"}
    (root / ANNOTATIONS).write_text(json.dumps(records))
    return "../secret"


def number_is_text(root: Path) -> str:
    edit(root, lambda record: record.update(duration="60"))
    return clip(root)


def no_features_of_a_clip(root: Path) -> str:
    feature_file(root, "val").unlink()
    return clip(root, "val")


def no_feature_folder(root: Path) -> str:
    shutil.rmtree(root / "features")
    return "features"


def truncated_npy(root: Path) -> str:
    path = feature_file(root)
    np.save(path.with_suffix(".npy"), torch.load(path).numpy())
    path.unlink()
    npy = path.with_suffix(".npy")
    npy.write_bytes(npy.read_bytes()[: npy.stat().st_size // 2])
    return path.stem


def empty_pt(root: Path) -> str:
    feature_file(root).write_bytes(b"")
    return clip(root)


class Malicious:
    def __reduce__(self):
        return (print, ("not to be seen",))


def malicious_pt(root: Path) -> str:
    torch.save(Malicious(), feature_file(root))
    return clip(root)


def transposed_features(root: Path) -> str:
    return edit_features(root, lambda features: features.T)


def narrow_features(root: Path) -> str:
    return edit_features(root, lambda features: features[:, :-1])


def features_of_another_clip(root: Path) -> str:
    return edit_features(root, lambda features: torch.cat([features, features[:6]]))


def nan_in_features(root: Path) -> str:
    return edit_features(
        root, lambda f: f.clone().index_fill_(0, torch.tensor(7), torch.nan)
    )


def two_files_of_a_clip(root: Path) -> str:
    path = feature_file(root)
    np.save(path.with_suffix(".npy"), torch.load(path).numpy())
    return path.stem


def label_without_text(root: Path) -> str:
    edit_text(root, lambda entries: entries.pop("boil_water_in_a_kettle"))
    return "boil_water_in_a_kettle"


def narrow_text(root: Path) -> str:
    label = "boil_water_in_a_kettle"
    edit_text(root, lambda e: e.update({label: e[label][:, :-1].contiguous()}))
    return label


def truncated_text(root: Path) -> str:
    path = root / TEXT
    path.write_bytes(path.read_bytes()[:-10])
    return TEXT


def damaged_sentence(root: Path) -> str:
    number = len(sentences_of(root)) + 1
    add_sentence(root, '{"video_id": "a", "query_id"')
    return f"line {number}"


def sentence_without_features(root: Path) -> str:
    first = sentences_of(root)[0]
    add_sentence(root, json.dumps({**first, "query_id": "unheard"}))
    return "unheard"


def no_sentence_features(root: Path) -> str:
    (root / SENTENCE_FEATURES).unlink()
    return SENTENCE_FEATURES


def truncated_sentence_features(root: Path) -> str:
    path = root / SENTENCE_FEATURES
    path.write_bytes(path.read_bytes()[:-500])
    return SENTENCE_FEATURES


def narrow_sentence_features(root: Path) -> str:
    arrays = dict(np.load(root / SENTENCE_FEATURES))
    name = next(iter(arrays))
    arrays[name] = arrays[name][:, :-1]
    np.savez(root / SENTENCE_FEATURES, **arrays)
    return name


FAULTS: dict[Callable[[Path], str], tuple[str, str]] = {
    truncated_annotations: ("annotations", "not valid JSON"),
    no_annotations: ("annotations", "no annotation file"),
    window_is_nan: ("annotations", "expected finite seconds"),
    label_has_two_ids: ("annotations", "contradicts an earlier record"),
    key_occurs_twice: ("annotations", "'duration' occurs twice"),
    id_leaves_the_root: ("annotations", "the id has characters"),
    number_is_text: ("annotations", "Expected `float`, got `str`"),
    no_features_of_a_clip: ("features", "1 val clips have no features"),
    no_feature_folder: ("features", "no features"),
    truncated_npy: ("features", "damaged"),
    empty_pt: ("features", "damaged"),
    malicious_pt: ("features", "refused"),
    transposed_features: ("features", "transposed"),
    narrow_features: ("features", "expected 32 channels"),
    features_of_another_clip: ("features", "steps"),
    nan_in_features: ("features", "NaN"),
    two_files_of_a_clip: ("features", "leave one"),
    label_without_text: ("query text", "no text for"),
    narrow_text: ("query text", "expected 48 channels but got 47"),
    truncated_text: ("query text", "not a safetensors file"),
    damaged_sentence: ("narrations", "truncated"),
    sentence_without_features: ("narration features", "1 narrations have no features"),
    no_sentence_features: ("narrations", "missing"),
    truncated_sentence_features: ("narration features", "no npz archive"),
    narrow_sentence_features: (
        "narration features",
        "expected 512 channels but got 511",
    ),
}


# Notes: legal, but worth a word.


def leftover_file(root: Path) -> str:
    shutil.copy(feature_file(root), root / "features" / "unknown-clip.pt")
    return "unknown-clip.pt"


def no_features_of_a_test_clip(root: Path) -> str:
    feature_file(root, "test").unlink()
    return clip(root, "test")


def no_features_of_a_labelled_test_clip(root: Path) -> str:
    records = records_of(root)
    uid = clip(root, "test")
    records[uid]["annotations"] = records[clip(root)]["annotations"]
    (root / ANNOTATIONS).write_text(json.dumps(records))
    feature_file(root, "test").unlink()
    return uid


def truncated_features_of_a_test_clip(root: Path) -> str:
    path = feature_file(root, "test")
    path.write_bytes(path.read_bytes()[:100])
    return path.stem


def nan_in_features_of_a_test_clip(root: Path) -> str:
    path = feature_file(root, "test")
    torch.save(torch.full_like(torch.load(path), torch.nan), path)
    return path.stem


def sentence_of_an_unknown_clip(root: Path) -> str:
    add_sentence(
        root, json.dumps({**sentences_of(root)[0], "video_id": "unknown-clip"})
    )
    return "unknown-clip"


def sentence_outside_its_clip(root: Path) -> str:
    first = sentences_of(root)[0]
    add_sentence(root, json.dumps({**first, "timestamps": [[900, 901]]}))
    return first["query_id"]


def sentence_that_runs_backwards(root: Path) -> str:
    first = sentences_of(root)[0]
    add_sentence(root, json.dumps({**first, "timestamps": [[2, 1]]}))
    return SENTENCES


def no_query_text(root: Path) -> str:
    (root / TEXT).unlink()
    return TEXT


def no_narrations(root: Path) -> str:
    (root / SENTENCES).unlink()
    (root / SENTENCE_FEATURES).unlink()
    return SENTENCES


NOTES: dict[Callable[[Path], str], tuple[str, str]] = {
    leftover_file: ("features", "1 files belong to no clip"),
    no_features_of_a_test_clip: ("features", "1 clips of no stream"),
    no_features_of_a_labelled_test_clip: ("features", "1 clips of no stream"),
    truncated_features_of_a_test_clip: ("features", "is damaged"),
    nan_in_features_of_a_test_clip: ("features", "holds NaN"),
    sentence_of_an_unknown_clip: ("narrations", "1 clips are not in the annotation"),
    sentence_outside_its_clip: ("narrations", "1 windows lie outside their clip"),
    sentence_that_runs_backwards: ("narrations", "1 windows: end before start"),
    no_query_text: ("query text", "no query text"),
    no_narrations: ("narrations", "no narrations"),
}


def named(plant: Callable) -> str:
    return plant.__name__


def test_nothing_is_reported_of_a_mq_root(mq_root, capsys):
    assert examine(mq_root).findings == []
    assert main(["doctor", str(mq_root)]) == 0
    printed = capsys.readouterr().out
    assert "train clips 20, val clips 10, test clips 2, categories 10" in printed
    assert printed.endswith("0 faults, 0 notes (contents read)\n")


@pytest.mark.parametrize("plant", FAULTS, ids=named)
def test_planted_fault_is_found_by_name_and_nothing_else(plant, root, capsys):
    name = plant(root)
    part, problem = FAULTS[plant]
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


@pytest.mark.parametrize("plant", NOTES, ids=named)
def test_harmless_oddity_is_a_note_and_no_fault(plant, root, capsys):
    name = plant(root)
    part, problem = NOTES[plant]
    assert main(["doctor", str(root), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    (found,) = printed["findings"]
    assert (found["severity"], found["part"]) == ("note", part)
    assert problem in found["problem"]
    assert name in [*found["records"], Path(found["file"]).name]
    assert printed["ok"]


def test_many_faults_are_found_in_one_go(root, capsys):
    plants = [
        window_is_nan,
        id_leaves_the_root,
        no_features_of_a_clip,
        label_without_text,
        sentence_without_features,
        damaged_sentence,
        leftover_file,
    ]
    names = {plant(root) for plant in plants}
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
        "avalanche_vilco.benchmarks.vilco_mq.examine.MAX_ANNOTATION_FAULTS", 2
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
    first = sentences_of(root)[0]
    for i in range(30):
        add_sentence(root, json.dumps({**first, "query_id": f"unheard-{i}"}))
    (found,) = examine(root).findings
    assert len(found.records) == 30
    assert found.line().count("unheard-") == 20
    assert " and 10 more (see --json)" in found.line()


def test_contents_are_read_unless_told_otherwise_or_large(root, monkeypatch):
    nan_in_features(root)
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
    torch.save(
        {**entries, "boil_water_in_a_kettle": torch.zeros(2, 48)}, folder / "b.pt"
    )
    (found,) = examine(root, query_text=folder).findings
    assert found.records == ("boil_water_in_a_kettle",)
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
    root = generate_mini_mq(
        tmp_path / "official",
        n_train=6,
        n_val=3,
        n_test=1,
        group_size=1,
        min_train_clips=2,
        min_val_clips=1,
        clip_sec=(40.0, 60.0),
        fps=1.8741513727840071,
    )
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


def test_fault_in_an_official_file_is_found_by_its_clip(official_root):
    path = official_root / OFFICIAL_FILES["val"]
    content = json.loads(path.read_text())
    one = content["videos"][0]["clips"][0]
    one["video_end_sec"] = "480"
    path.write_text(json.dumps(content))
    (found,) = examine(official_root).findings
    assert found.file == str(path)
    assert one["clip_uid"] in found.line()


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


@pytest.mark.parametrize("broken", ["is_file", "read_bytes", "open", "iterdir"])
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
    first = sentences_of(root)[0]
    stranger = {**first, "video_id": "unknown-clip", "query_id": "unheard"}
    add_sentence(root, json.dumps(stranger))
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


# Other benchmarks, and several in one root


@pytest.fixture
def question_root(nlq_root, tmp_path) -> Path:
    return Path(shutil.copytree(nlq_root, tmp_path / "questions"))


@pytest.fixture
def track_root(tmp_path) -> Path:
    return generate_mini_vq(tmp_path / "vq", n_train=2, n_val=1, n_test=1)


def clips_in(root: Path, name: str) -> list[str]:
    videos = json.loads((root / name).read_text())["videos"]
    return [clip["clip_uid"] for video in videos for clip in video["clips"]]


def edit_file(path: Path, change: Callable[[dict], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def first_annotation(content: dict) -> dict:
    return content["videos"][0]["clips"][0]["annotations"][0]


def question_without_features(root: Path) -> str:
    uid = clips_in(root, "nlq_val.json")[0]
    next((root / "features").glob(f"{uid}.*")).unlink()
    return uid


def question_window_is_text(root: Path) -> str:
    def change(content: dict) -> None:
        first_annotation(content)["language_queries"][0]["clip_end_sec"] = "late"

    edit_file(root / "nlq_train.json", change)
    return clips_in(root, "nlq_train.json")[0]


def question_without_text(root: Path) -> str:
    path = root / "nlq_query_text.safetensors"
    entries = load_file(path)
    train = json.loads((root / "nlq_train.json").read_text())
    query_id = f"{first_annotation(train)['annotation_uid']}_0"
    entries.pop(query_id)
    save_file(entries, path)
    return query_id


def no_train_questions(root: Path) -> str:
    (root / "nlq_train.json").unlink()
    return root.name


def track_without_video(root: Path) -> str:
    uid = clips_in(root, "vq_train.json")[0]
    (root / "clips" / f"{uid}.mp4").unlink()
    return uid


def truncated_video(root: Path) -> str:
    uid = clips_in(root, "vq_val.json")[0]
    path = root / "clips" / f"{uid}.mp4"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return uid


def video_of_another_clip(root: Path) -> str:
    def change(content: dict) -> None:
        content["videos"][0]["clips"][0]["video_end_sec"] += 60.0

    edit_file(root / "vq_val.json", change)
    return clips_in(root, "vq_val.json")[0]


def no_video_folder(root: Path) -> str:
    shutil.rmtree(root / "clips")
    return "clips"


OTHERS: dict[Callable[[Path], str], tuple[str, str, str]] = {
    question_without_features: ("question_root", "features", "1 val clips have no"),
    question_window_is_text: ("question_root", "annotations", "got `str`"),
    question_without_text: ("question_root", "query text", "1 questions have no text"),
    no_train_questions: ("question_root", "annotations", "no train annotations"),
    track_without_video: ("track_root", "videos", "1 train clips have no videos"),
    truncated_video: ("track_root", "videos", ""),
    video_of_another_clip: ("track_root", "videos", "the file lasts"),
    no_video_folder: ("track_root", "videos", "no videos"),
}


@pytest.mark.parametrize("plant", OTHERS, ids=named)
def test_planted_fault_of_another_benchmark_is_found_by_name(plant, request):
    fixture, part, problem = OTHERS[plant]
    root = request.getfixturevalue(fixture)
    name = plant(root)
    found = [one for one in examine(root).findings if one.severity == "fault"]
    assert found and {one.part for one in found} == {part}
    assert problem in found[0].problem
    assert name in [*found[0].records, Path(found[0].file).name]
    assert found[0].remedy


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
        lines = []
        for video in json.loads(source.read_text())["videos"]:
            for one in video["clips"]:
                for part in one["annotations"]:
                    for i, query in enumerate(part["language_queries"]):
                        window = [query["clip_start_sec"], query["clip_end_sec"]]
                        line = {
                            "query_id": f"{part['annotation_uid']}_{i}",
                            "duration": one["video_end_sec"] - one["video_start_sec"],
                            "video_id": one["clip_uid"],
                            "query": query["query"],
                            "timestamps": [window],
                        }
                        lines.append(json.dumps(line))
        source.with_name(f"ego4d_nlq_{subset}_v2.jsonl").write_text("\n".join(lines))
        source.unlink()
    (question_root / "nlq_test_unannotated.json").unlink(missing_ok=True)
    assert examine(question_root).n_faults == 0
