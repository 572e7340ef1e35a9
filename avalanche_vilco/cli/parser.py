"""A parser that says in one line what is wrong, with the close names."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NoReturn

from avalanche_vilco.core.registry import close_names


class Parser(argparse.ArgumentParser):
    """Says what is wrong without the usage, which ``--help`` has."""

    def error(self, message: str) -> NoReturn:
        """Leave with 2."""
        start = "unrecognized arguments: "
        if message.startswith(start):
            flag = message.removeprefix(start).split("=")[0].split()[0]
            message += f".{close_names(flag, self._option_string_actions)}"
        self.exit(2, f"{self.prog}: error: {message} (usage: {self.prog} --help)\n")


def whole_number(least: int = 0) -> Callable[[str], int]:
    """Type of an argument: an integer from ``least`` on."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(
                f"expected an integer >= {least} but got {text!r}"
            )
        return value

    return read
