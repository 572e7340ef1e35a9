"""Every Python block of the README and of the pages runs as it is printed.

``~`` is a folder in which ``~/ego4d`` is a small generated data root, and so is the
embedded default. Blocks of a page share their names, from top to bottom.
"""

import doctest
import json
import re
import shutil
from pathlib import Path
from pkgutil import resolve_name
from unittest.mock import create_autospec

import pytest
import torch

import avalanche_vilco
from avalanche_vilco.core.files import cache_folder

ROOT = Path(__file__).resolve().parents[1]
PAGES = {path.name: path.read_text() for path in (ROOT / "docs").glob("*.md")}
PAGES["README.md"] = (ROOT / "README.md").read_text()
BLOCK = re.compile(r"^```python\n(.*?)^```", re.S | re.M)
STAND_INS = {
    "README.md": ("experiments.run:run", "experiments.predict:predict"),
    "data.md": ("data.text.clip_text:clip_query_text",),
    "vilco_vq.md": ("benchmarks.vilco_vq.backbone_cache:cache_backbone",),
}
"""What takes minutes or a model's files, and only has its arguments checked here."""
BENCHMARK = {"vilco_nlq.md": "nlq", "vilco_vq.md": "vq"}
"""Benchmark of a page's data, if not Moment Queries."""


@pytest.fixture
def home(request, tmp_path, monkeypatch):
    """The folder of a user who has data."""
    cached = list(cache_folder().glob("mini_*"))
    name = BENCHMARK.get(request.param, "mq")
    root = tmp_path / "ego4d"
    shutil.copytree(request.getfixturevalue(f"{name}_root"), root)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AVALANCHE_VILCO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("AVALANCHE_VILCO_DATA", str(root))
    (tmp_path / "cache").mkdir()
    for path in cached:
        (tmp_path / "cache" / path.name).symlink_to(path)
    for folder in ("egovlp", "internvideo", "slowfast", "omnivore"):
        (tmp_path / folder).symlink_to(root / "features")
    if request.param == "features.md":
        other_forms(root)
    for place in STAND_INS.get(request.param, ()):
        module, _, name = f"avalanche_vilco.{place}".partition(":")
        stand_in = create_autospec(resolve_name(f"{module}:{name}"), return_value={})
        monkeypatch.setattr(f"{module}.{name}", stand_in)
        monkeypatch.setattr(avalanche_vilco, name, stand_in, raising=False)
    return tmp_path


def other_forms(root):
    from avalanche_vilco.data.features import FeatureFolder, pack_features

    store = FeatureFolder(root / "features")
    ids = sorted(store.ids())
    pack_features(store, ids, root / "egovlp.safetensors")
    pytest.importorskip("lmdb")
    pack_features(store, ids, root / "egovlp.lmdb").rename(root / "egovlp_lmdb")
    (root / "v2" / "omnivore_video_swinl").mkdir(parents=True)
    records = json.loads((root / "ego4d_clip_annotations_v2.json").read_bytes())
    ends = {}
    for record in records.values():
        end = record["parent_end_sec"] * record["fps"]
        ends[record["video_id"]] = max(end, ends.get(record["video_id"], 0))
    for video, steps in ends.items():
        path = root / "v2" / "omnivore_video_swinl" / f"{video}.pt"
        torch.save(torch.ones(round(steps) + 1, 8), path)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("home", "page"),
    [(name, name) for name in sorted(PAGES) if BLOCK.search(PAGES[name])],
    indirect=["home"],
)
def test_every_python_block_runs_as_printed(home, page, capsys):
    names = {"__name__": "__main__"}
    for match in BLOCK.finditer(PAGES[page]):
        line = PAGES[page][: match.start()].count("\n") + 1
        if match[1].startswith(">>>"):
            parser, runner = doctest.DocTestParser(), doctest.DocTestRunner()
            test = parser.get_doctest(match[1], names, page, page, line)
            runner.run(test, clear_globs=False)
            assert runner.failures == 0, capsys.readouterr().out
            names = test.globs
        else:
            exec(compile("\n" * line + match[1], page, "exec"), names)


def test_names_on_the_pages_can_be_imported():
    wanted = {
        name
        for page in PAGES.values()
        for name in re.findall(r"`(avalanche_vilco(?:\.\w+)+)(?:\(.*?\))?`", page)
    }
    assert len(wanted) > 10
    for name in wanted - {"avalanche_vilco.benchmarks"}:  # also a group's name
        assert resolve_name(name) is not None
