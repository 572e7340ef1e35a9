"""The package as a whole: lazy import, true README, one home for names."""

import subprocess
import sys
from pathlib import Path

import pytest

import avalanche_vilco

REPOSITORY = Path(__file__).resolve().parents[1]


def in_new_process(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_is_lazy() -> None:
    heavy = "{'avalanche', 'torch', 'transformers', 'matplotlib'} & set(sys.modules)"
    assert in_new_process(f"import sys, avalanche_vilco; print({heavy})") == "set()"


def test_data_and_ops_import_without_avalanche() -> None:
    modules = [
        f"avalanche_vilco.{path.relative_to(PACKAGE).with_suffix('').as_posix()}"
        for folder in ("data", "ops", "evaluation/functional")
        for path in sorted((PACKAGE / folder).glob("[a-z]*.py"))
    ]
    imports = "; ".join(f"import {name.replace('/', '.')}" for name in modules)
    assert len(modules) > 10
    code = f"import sys; {imports}; print('avalanche' in sys.modules)"
    assert in_new_process(code) == "False"


PACKAGE = Path(avalanche_vilco.__file__).parent


def test_public_names_resolve_and_unknown_ones_say_what_there_is() -> None:
    for name in avalanche_vilco.__all__:
        assert getattr(avalanche_vilco, name) is not None
    with pytest.raises(AttributeError, match="vilco_mq_tiny"):
        _ = avalanche_vilco.vilco_mqq


def test_what_the_readme_lists_is_there() -> None:
    import re

    table = (REPOSITORY / "README.md").read_text().split("## What is here")[1]
    cells = [line.split("|")[1] for line in table.splitlines() if line[:1] == "|"]
    code = [
        text for cell in cells for text in re.findall("`([A-Za-z_]+)(?:\\(\\))?`", cell)
    ]
    assert len(code) > 8
    for name in code:
        assert getattr(avalanche_vilco, name) is not None


def test_ci_runs_the_test_command_of_the_readme() -> None:
    readme = (REPOSITORY / "README.md").read_text()
    script = (REPOSITORY / ".ci" / "run").read_text()
    install, test = ".venv/bin/pip install -e '.[test]'", ".venv/bin/python -m pytest"
    assert f"python -m venv .venv && {install} && {test}\n" in readme
    assert install in script.replace(" -q", "")
    assert f"\n{test}\n" in script


def test_readme_names_existing_files() -> None:
    import re

    readme = (REPOSITORY / "README.md").read_text()
    for target in re.findall(r"\]\(([^)#:]+)\)", readme):
        assert (REPOSITORY / target).exists(), target


def test_examples_are_short() -> None:
    examples = sorted((REPOSITORY / "examples").glob("*.py"))
    assert len(examples) >= 4
    for example in examples:
        assert len(example.read_text().splitlines()) <= 75, example
