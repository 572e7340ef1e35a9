import doctest
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"


def test_the_worked_examples_of_the_page_hold():
    result = doctest.testfile(str(PAGE), module_relative=False)
    assert result.attempted > 30
    assert result.failed == 0
