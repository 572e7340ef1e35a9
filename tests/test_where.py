"""The page that says where what stands is true."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "where.md"
ROWS = re.findall(r"^\| (?!you want to|---)(.+) \|$", PAGE.read_text(), re.M)


def located(path: str) -> Path:
    return ROOT / path[1:] if path.startswith("/") else ROOT / "avalanche_vilco" / path


@pytest.mark.parametrize("row", ROWS)
def test_the_files_exist_and_the_first_has_what_to_look_for(row: str) -> None:
    _, files, name = row.split(" | ")
    first, *more = map(located, re.findall(r"`([^`]+)`", files))
    assert len(more) < 2
    assert all(path.is_file() for path in (first, *more))
    (name,) = re.findall(r"`([^`]+)`", name)
    assert any(name in path.read_text() for path in (first, *more))


def test_every_room_is_on_the_page() -> None:
    package = ROOT / "avalanche_vilco"
    rooms = {path.name for path in package.iterdir() if (path / "__init__.py").exists()}
    assert {room for room in rooms if f"`{room}/" in PAGE.read_text()} == rooms
    assert len(ROWS) >= 20
