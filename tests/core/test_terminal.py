"""Output survives names from files, narrow encodings and readers that leave."""

import io
import os

from avalanche_vilco.core.terminal import one_line, tell


def test_a_message_is_one_line_that_a_terminal_does_not_obey():
    assert one_line("a\n b\t\x1b[31mc\x00") == "a b \\x1b[31mc\\x00"
    assert one_line(ValueError("größer")) == "größer"


def test_text_beyond_the_encoding_of_the_output_is_escaped(monkeypatch):
    out = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(out, encoding="ascii"))
    tell("größer")
    assert out.getvalue() == b"gr\\xf6\\xdfer\n"


def test_a_reader_that_has_left_is_no_error(monkeypatch):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as out:
        monkeypatch.setattr("sys.stdout", out)
        tell("x" * 100_000)
        print("more")
