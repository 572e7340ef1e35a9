"""The page about metrics: its examples run as they stand."""

import ast
import doctest
import re
import shlex
from importlib.metadata import distribution
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from avalanche_vilco.cli.main import main

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"


def blocks_under(heading):
    """Code blocks of a section."""
    section = PAGE.read_text().split(f"\n{heading}\n", 1)[1]
    section = re.split(r"\n#{1,3} ", section, maxsplit=1)[0]
    return re.findall(r"```\w*\n(.*?)```", section, flags=re.DOTALL)


def test_the_worked_examples_of_the_page_hold():
    result = doctest.testfile(str(PAGE), module_relative=False)
    assert result.attempted > 30
    assert result.failed == 0


def test_a_submission_is_scored_as_the_page_shows(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    script, command, printed, complaint = blocks_under("## Score a submission file")
    exec(script, {})
    assert main(shlex.split(command)[1:]) == 0
    assert capsys.readouterr().out == printed
    spoilt = Path("predictions.json").read_text().replace("0.4", "null")
    Path("predictions.json").write_text(spoilt)
    assert main(shlex.split(command)[1:]) == 1
    assert capsys.readouterr().err == complaint


@pytest.mark.parametrize(
    "script", re.findall(r"```python\n([^>].*?)```", PAGE.read_text(), re.DOTALL)
)
def test_code_of_the_page_runs_as_printed(script, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(script, {})


def test_the_logger_of_the_page_is_built(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (script,) = blocks_under("### A logger for the task matrix")
    names = {}
    exec(script, names)
    assert names["matrices"] in names["evaluator"].loggers
    names["board"].writer.close()


NEEDS_A_CLASS = {
    *("accuracy_metrics", "class_accuracy_metrics", "amca_metrics", "bwt_metrics"),
    *("forgetting_metrics", "forward_transfer_metrics", "labels_repartition_metrics"),
    "MAC_metrics",
}


class WithoutClassMetrics(ast.NodeTransformer):
    """Leaves out the metrics that Moment Queries have no use for."""

    def visit_Call(self, node):
        node.args = [arg for arg in node.args if self.is_kept(arg)]
        return self.generic_visit(node)

    def is_kept(self, arg):
        name = getattr(getattr(arg, "func", None), "id", None)
        return name not in NEEDS_A_CLASS


def example_of_avalanche():
    """Avalanche's example with the two lines of the page."""
    path = distribution("avalanche-lib").locate_file("examples/eval_plugin.py")
    imported, argument = blocks_under("## In an `EvaluationPlugin`")[1].splitlines()
    source = Path(path).read_text()
    for place, line in (
        ("from avalanche.models import SimpleMLP\n", f"{imported}\n"),
        ("eval_plugin = EvaluationPlugin(\n", f"        {argument}\n"),
    ):
        assert source.count(place) == 1
        source = source.replace(place, place + line)
    return WithoutClassMetrics().visit(ast.parse(source))


@pytest.mark.filterwarnings("ignore")
def test_two_lines_add_recall_to_the_example_of_avalanche(
    mq_root, tmp_path, monkeypatch, capsys
):
    from avalanche_vilco import MomentLoss, vilco_mq, vilco_mq_tiny

    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    whole = vilco_mq(mq_root)
    benchmark = SimpleNamespace(
        train_stream=whole.train_stream[:2],
        test_stream=whole.test_stream[:2],
        n_classes=whole.n_classes,
    )
    namespace = {"__name__": "eval_plugin"}
    exec(compile(example_of_avalanche(), "eval_plugin.py", "exec"), namespace)
    namespace.update(
        MNIST=lambda **options: None,
        nc_benchmark=lambda *args, **options: benchmark,
        SimpleMLP=lambda num_classes: vilco_mq_tiny(),
        CrossEntropyLoss=MomentLoss,
    )
    namespace["main"](SimpleNamespace(cuda=-1))
    printed = capsys.readouterr().out
    for name in ("Recall@1x_tIoU0.5_Exp", "Recall@5x_tIoUmean_Stream"):
        assert f"{name}" in printed
    assert all(f"`{name}`" in PAGE.read_text() for name in NEEDS_A_CLASS)
